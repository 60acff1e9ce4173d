"""Records of AIPerf (``profile_export.jsonl``): one object a request, instants in ns since 1970, values with units."""

from typing import Any, Final

from tracekit.sources.json_rows import RequestRows, count, documents, inner, name_of, nanoseconds
from tracekit.sources.observation import Material, Observation, Options, Source
from tracekit.sources.table_values import NS_PER_UNIT

_KEYS: Final = (b'"metadata"', b'"metrics"', b'"request_start_ns"')
_OUTPUT: Final = ("output_sequence_length", "output_token_count")
_GAPS: Final = ("inter_chunk_latency", "inter_token_latencies")


def detects(material: Material) -> bool:
    """JSON lines whose first has metadata with a start and metrics."""
    first = material.head.lstrip(b"\xef\xbb\xbf \r\n\t").split(b"\n", 1)[0]
    return first.startswith(b"{") and all(key in first for key in _KEYS)


def read(material: Material, options: Options) -> Observation:
    """Read what the client measured of each request; warm-up requests are other, failed ones have no latencies."""
    rows = RequestRows.of(material, options, "aiperf", "unix")
    for path in material.files:
        for number, record in documents(path):
            if inner(record, "metadata", "benchmark_phase") == "warmup":
                rows.other("request of the warm-up")
            elif isinstance(record, dict):
                rows.add(number, _row(record))
            else:
                rows.refuse(number, "no JSON object")
    options.progress(material.name, 1, 1)
    return rows.done()


def _row(record: dict[str, Any]) -> dict[str, Any]:
    known, metrics = record.get("metadata"), record.get("metrics")
    sent = nanoseconds(inner(known, "request_start_ns"), "ns")
    outputs = [count(inner(metrics, name, "value")) for name in _OUTPUT]
    row: dict[str, Any] = {
        "request_id": name_of(inner(known, "x_request_id") or inner(known, "session_num")),
        "session_id": name_of(inner(known, "conversation_id")) if inner(known, "turn_index") else None,
        "arrival_ns": sent,
        "num_prompt_tokens": count(inner(metrics, "input_sequence_length", "value")),
        "num_output_tokens": next((value for value in outputs if value is not None), None),
    }
    ended = nanoseconds(inner(known, "request_end_ns"), "ns")
    if inner(known, "was_cancelled") is True or record.get("error"):
        cancelled = inner(known, "was_cancelled") is True
        return row | {"finish_reason": "abort" if cancelled else "error", "finished_ns": ended}
    to_first = _duration(inner(metrics, "time_to_first_token"))
    if sent is not None and to_first is not None:
        row["first_token_ns"] = sent + to_first
        row["last_token_ns"] = ended
    else:
        row["finished_ns"] = ended
    row["itl_ns"] = next((gaps for name in _GAPS if (gaps := _gaps(inner(metrics, name))) is not None), None)
    return row


def _duration(metric: object) -> int | None:
    unit = inner(metric, "unit")
    return nanoseconds(inner(metric, "value"), unit) if unit in NS_PER_UNIT else None


def _gaps(metric: object) -> list[int] | None:
    values, unit = inner(metric, "value"), inner(metric, "unit")
    if not isinstance(values, list) or unit not in NS_PER_UNIT:
        return None
    gaps = [nanoseconds(value, unit) for value in values]
    return None if None in gaps else [gap for gap in gaps if gap is not None]


SOURCE: Final = Source("aiperf", "records of AIPerf (profile_export.jsonl)", detects, read)
