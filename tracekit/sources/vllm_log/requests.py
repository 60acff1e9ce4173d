"""The requests of a log, joined by id over their lines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracekit.sources.vllm_log.lifecycle import Received, parse_added, parse_end, parse_received, without_suffix
from tracekit.sources.vllm_log.prompt_hashes import Hashing
from tracekit.sources.vllm_log.records import Record
from tracekit.sources.vllm_log.request_lines import ADDED, RECEIVED, RequestLine

if TYPE_CHECKING:
    from tracekit.sources.vllm_log.reader import Reader


@dataclass(slots=True)
class Request:
    """One request; ``line`` is where it first appears, ``block_hashes`` its chain of digests."""

    line: int
    time: int | None
    source_id: str
    max_tokens: int | None = None
    num_prompt_tokens: int | None = None
    block_hashes: bytes | None = None
    finished: int | None = None
    finished_line: int | None = None
    finish_reason: str | None = None
    num_generated_tokens: int | None = None


@dataclass
class Requests:
    """All requests seen; ``open`` maps an id to the newest request of that name, ``announced`` one to
    details that came before the request's line.
    """

    hashing: Hashing = field(default_factory=Hashing)
    rows: list[Request] = field(default_factory=list)
    open: dict[str, Request] = field(default_factory=dict)
    announced: dict[str, Request] = field(default_factory=dict)
    num_received: int = 0
    num_added: int = 0

    def take(self, line: int, time: int | None, record: Record, read: Callable[..., Any], reader: "Reader") -> bool:
        """Take in a line about requests; returns False when it starts like one and does not parse."""
        message = record.message
        if message.startswith("Received request ") or " details: prompt" in message[:200]:
            received = read(parse_received)
            if received is None:
                return False
            self._receive(line, time, received, reader)
            return True
        if message.startswith("Added request "):
            added = read(parse_added)
            if added is None:
                return False
            self._add(line, time, added)
            reader.current.has_data = True
            return True
        end = parse_end(message)
        if end is None:
            # The interim parts of a streamed answer, and the body of a request, say nothing that is kept.
            return message.startswith(("Generated response ", "Request ")) and _is_whole(message)
        for request_id in end.request_ids:
            self._end(line, time, request_id, end.reason, end.num_generated_tokens, reader)
        return True

    def take_usual(self, lines: Sequence[RequestLine], base: int, before: int | None, reader: "Reader") -> None:
        """Take in usual lines, whose fields are known already.

        ``base``: number of lines before their piece; ``before``: the instant of the record before it.
        """
        if not lines:
            return
        start = reader.current
        arrives = False
        for line, kind, request_id, max_tokens, num_printed, hashes, time in lines:
            when = before if time is None else time
            if kind == RECEIVED:
                request = self._arrive(base + line, when, request_id, max_tokens)
                if hashes is not None and num_printed is not None:
                    _fill_prompt(request, hashes, num_printed, start.max_log_len)
                arrives = True
            elif kind == ADDED:
                self._add(base + line, when, request_id)
                arrives = True
            else:
                self._end(base + line, when, request_id, None, None, reader)
        start.has_data |= arrives

    def _receive(self, line: int, time: int | None, received: Received, reader: "Reader") -> None:
        if received.is_details:
            request = self.open.get(received.request_id)
            if request is None or request.num_prompt_tokens is not None or request.finished is not None:
                # The request's own line is yet to come.
                request = self.announced[received.request_id] = Request(line, time, received.request_id)
        else:
            request = self._arrive(line, time, received.request_id, received.max_tokens)
            reader.current.has_data = True
        if received.token_ids is not None:
            (hashes,), (count,) = self.hashing.chains([received.token_ids])
            _fill_prompt(request, hashes, count, reader.current.max_log_len)

    def _arrive(self, line: int, time: int | None, request_id: str, max_tokens: int | None) -> Request:
        self.num_received += 1
        request = self.announced.pop(request_id, None)
        if request is None:
            request = Request(line, time, request_id, max_tokens)
        else:
            request.line, request.time, request.max_tokens = line, time, max_tokens
        self.rows.append(request)
        self.open[request_id] = request
        return request

    def _add(self, line: int, time: int | None, internal_id: str) -> None:
        self.num_added += 1
        if internal_id in self.open:
            return
        request_id = without_suffix(internal_id, self.open)
        if request_id not in self.open:
            request = Request(line, time, request_id)
            self.rows.append(request)
            self.open[request_id] = request

    def _end(
        self, line: int, time: int | None, internal_id: str, reason: str | None, generated: int | None, reader: "Reader"
    ) -> None:
        request_id = without_suffix(internal_id, self.open)
        request = self.open.get(request_id)
        if request is None:
            reader.count("ends of requests whose arrival is not in the log")
            return
        if generated is not None:
            request.num_generated_tokens = generated
        if request.finished is None:
            request.finished, request.finished_line = time, line
            if reason == "abort":
                reader.event(line, time, "abort", request_id=request_id)
        request.finish_reason = request.finish_reason or reason


def _is_whole(message: str) -> bool:
    return "(streaming delta)" in message[:200] or message.startswith("Request ") or " output: " in message


def _fill_prompt(request: Request, hashes: bytes, num_printed: int, max_log_len: int | None) -> None:
    request.block_hashes = hashes
    # --max-log-len cuts the printed ids, so that there may be more.
    if max_log_len is None or num_printed < max_log_len:
        request.num_prompt_tokens = num_printed
