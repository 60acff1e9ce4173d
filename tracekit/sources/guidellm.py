"""Results of guidellm (JSON): 0.3 with flat times, 0.6 with ``info.timings``, 0.8 (metadata version 2) alike.

Prompts and outputs stand in these files beside the figures: only numbers and ids are looked at.
"""

from collections.abc import Iterator
from typing import Any, Final

from tracekit.config import setting_value
from tracekit.errors import InputError
from tracekit.sources.json_rows import RequestRows, count, documents, inner, name_of, nanoseconds
from tracekit.sources.observation import Material, Observation, Options, Source

_ENDS: Final = {"successful": None, "errored": "error", "incomplete": "abort"}
_CSV_HEAD: Final = b"Run Info,"


def detects(material: Material) -> bool:
    """A JSON object of guidellm's with benchmarks; or its CSV, which is refused with what to give instead."""
    head = material.head.lstrip(b"\xef\xbb\xbf \r\n\t")
    if head.startswith(_CSV_HEAD) and b"Request Counts" in head:
        return True
    return head.startswith(b"{") and (b'"guidellm_version"' in head[:2000] or _is_old(head))


def _is_old(head: bytes) -> bool:
    return b'"benchmarks"' in head[:2000] and b'"run_id"' in head and b'"profile"' in head


def read(material: Material, options: Options) -> Observation:
    """Read what the client measured of each request, all benchmarks of the file one after the other.

    Arrival is the instant of sending. Failed and incomplete requests keep their place without latencies; the token
    counts of incomplete ones are targets, so their output is unknown. Raises ``InputError`` for a summary.
    """
    if not material.head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
        msg = f"{material.path}: a CSV of guidellm holds averages only; give the benchmark.json of the same run"
        raise InputError(msg)
    rows = RequestRows.of(material, options, "guidellm", "unix")
    number = benchmarks = 0
    for path in material.files:
        for _, document in documents(path):
            for benchmark in _listed(inner(document, "benchmarks")):
                benchmarks += 1
                for end, request in _requests(benchmark):
                    number += 1
                    rows.add(number, _row(request, end))
            _note_model(document, rows)
    if benchmarks > 1:
        rows.observation.notes.append(
            f"{material.name}: it holds {benchmarks} benchmarks of different loads; cut one out with --from and --until"
        )
    options.progress(material.name, 1, 1)
    return rows.done()


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _requests(benchmark: object) -> Iterator[tuple[str | None, Any]]:
    found = inner(benchmark, "requests")
    for name, end in _ENDS.items():
        for request in _listed(inner(found, name)):
            yield end, request


def _row(request: object, end: str | None) -> dict[str, Any]:
    timings = inner(request, "info", "timings") or {}

    def instant(*names: str) -> int | None:
        values = [inner(timings, name) for name in names] + [inner(request, name) for name in names]
        return next((nanoseconds(value, "s") for value in values if value is not None), None)

    row: dict[str, Any] = {
        "request_id": name_of(inner(request, "request_id")),
        "arrival_ns": instant("request_start", "request_start_time", "start_time"),
        "num_prompt_tokens": count(inner(request, "prompt_tokens")),
        "num_output_tokens": count(inner(request, "output_tokens")) if end != "abort" else None,
        "finished_ns": instant("request_end", "request_end_time", "end_time"),
        "finish_reason": end,
    }
    if end is None:
        row["first_token_ns"] = instant("first_token_iteration", "first_iteration", "first_token_time")
        row["last_token_ns"] = instant("last_token_iteration", "last_iteration", "last_token_time")
        row["finished_ns"] = row["finished_ns"] if row["last_token_ns"] is None else None
    return row


def _note_model(document: object, rows: RequestRows) -> None:
    model = inner(document, "args", "backend_kwargs", "model") or inner(document, "args", "model")
    if isinstance(model, str) and model:
        rows.observation.config = {"model": setting_value("model", model, "inferred", rows.observation.file)}


SOURCE: Final = Source(
    "guidellm", "result of guidellm (JSON; its CSV and its other outputs are summaries)", detects, read
)
