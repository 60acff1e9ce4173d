"""Traces whose lines hold requests a level down: dynamo's request events, aibrix's lists of requests, tool-calling plans."""

from typing import Any, Final

from tracekit.hashing import chain_ids
from tracekit.sources.block_hashes import stored_block_size
from tracekit.sources.json_rows import RequestRows, count, documents, inner, name_of, nanoseconds
from tracekit.sources.observation import Material, Observation, Options, Source

_DYNAMO: Final = b'"dynamo.request.trace.'
_PLAN: Final = (b'"num_turns"', b'"input_prompt_length"', b'"assistant_response_length"')


def detects(material: Material) -> bool:
    """Lines of one of these three shapes."""
    head = material.head.lstrip(b"\xef\xbb\xbf \r\n\t")
    if not head.startswith(b"{"):
        return False
    is_aibrix = b'"timestamp"' in head[:200] and b'"requests"' in head[:300] and b'"Prompt Length"' in head
    return _DYNAMO in head or is_aibrix or all(key in head for key in _PLAN)


def read(material: Material, options: Options) -> Observation:
    """Read arrivals, lengths and prefix structure; a line without a request is other."""
    rows = RequestRows.of(material, options, "event-trace", "unix" if _DYNAMO in material.head else "relative")
    plans = 0
    for path in material.files:
        for number, line in documents(path):
            if not isinstance(line, dict):
                rows.refuse(number, "no JSON object")
            elif "num_turns" in line:
                plans += 1
                _plan(number, line, rows)
            elif isinstance(line.get("requests"), list):
                for request in line["requests"]:
                    rows.add(number, _aibrix_row(line, request))
            elif line.get("event_type") == "request_end":
                rows.add(number, _dynamo_row(line, options, rows))
            else:
                rows.other("event that is no end of a request")
    if plans:
        rows.observation.notes.append(f"{material.name}: no arrival is recorded; {plans} conversations all begin at 0")
    if rows.rows and all(row["arrival_ns"] is None or row["arrival_ns"] < 1 << 58 for row in rows.rows):
        rows.observation.clock = "relative"
    options.progress(material.name, 1, 1)
    return rows.done()


def _aibrix_row(line: dict[str, Any], request: object) -> dict[str, Any]:
    return {
        "arrival_ns": nanoseconds(line.get("timestamp"), "ms"),
        "num_prompt_tokens": count(inner(request, "Prompt Length")),
        "num_output_tokens": count(inner(request, "Output Length")),
    }


def _dynamo_row(line: dict[str, Any], options: Options, rows: RequestRows) -> dict[str, Any]:
    request = line.get("request")
    arrived = nanoseconds(inner(request, "request_received_ms"), "ms")
    lasted = nanoseconds(inner(request, "total_time_ms"), "ms")
    tokens, size = (count(inner(request, "replay", key)) for key in ("input_length", "trace_block_size"))
    ids = inner(request, "replay", "input_sequence_hashes")
    row: dict[str, Any] = {
        "request_id": name_of(inner(request, "request_id")),
        "session_id": name_of(inner(line, "agent_context", "session_id")),
        "arrival_ns": arrived,
        "num_prompt_tokens": tokens,
        "num_output_tokens": count(inner(request, "output_tokens")),
        "finished_ns": arrived + lasted if arrived is not None and lasted is not None else None,
    }
    if isinstance(ids, list) and size and tokens is not None:
        # An entry is the hash of a whole prefix, so it names its block as an id does.
        stored = rows.observation.hash_block_size or stored_block_size(size, options.config)
        rows.observation.hash_block_size = stored
        row["block_hashes"] = chain_ids(ids, size, stored, tokens)
    return row


def _plan(number: int, line: dict[str, Any], rows: RequestRows) -> None:
    """A conversation as a plan: each turn answers, a tool is called, and its output is added to the prompt."""
    answers = [count(value) for value in _listed(line.get("assistant_response_length"))]
    outputs = [count(value) for value in _listed(line.get("tool_call_output_length"))]
    waits = [nanoseconds(value, "s") for value in _listed(line.get("tool_call_latency"))]
    answers.append(count(line.get("final_assistant_response_length")))
    prompt = count(line.get("input_prompt_length"))
    for turn, answer in enumerate(answers):
        name = f"plan-{number}:{turn}"
        row: dict[str, Any] = {
            "request_id": name,
            "session_id": f"plan-{number}",
            "arrival_ns": None if turn else 0,
            "num_prompt_tokens": prompt,
            "num_output_tokens": answer,
        }
        if turn:
            row["parent_request_id"] = f"plan-{number}:{turn - 1}"
            row["think_ns"] = waits[turn - 1] if turn <= len(waits) else 0
        rows.add(number, row)
        added = outputs[turn] if turn < len(outputs) else 0
        prompt = prompt + answer + added if None not in (prompt, answer, added) else None  # type: ignore[operator]


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


SOURCE: Final = Source(
    "event-trace",
    "dynamo's request events, aibrix's request lists, plans of tool-calling turns (JSON lines)",
    detects,
    read,
)
