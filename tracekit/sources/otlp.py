"""OpenTelemetry spans that vLLM exports (``llm_request``): one document, or one ``resourceSpans`` object a line."""

from collections.abc import Iterator
from typing import Any, Final

from tracekit.sources.json_rows import RequestRows, count, documents, inner, name_of, nanoseconds
from tracekit.sources.observation import Material, Observation, Options, Source

_SPAN: Final = "llm_request"
_USAGE: Final = "gen_ai.usage."
_LATENCY: Final = "gen_ai.latency."


def detects(material: Material) -> bool:
    """JSON with ``resourceSpans`` that speak of generative AI."""
    head = material.head.lstrip(b"\xef\xbb\xbf \r\n\t")
    return head.startswith((b"{", b"[")) and b'"resourceSpans"' in head[:2000] and b"gen_ai." in head


def read(material: Material, options: Options) -> Observation:
    """Read a row a span: arrival is the span's start, instants follow from vLLM's own durations (seconds).

    Other spans are counted as other. ``num_output_tokens`` is over all choices of a request.
    """
    rows = RequestRows.of(material, options, "otlp", "unix")
    number = 0
    for path in material.files:
        for line, document in documents(path):
            if not isinstance(document, dict | list):
                rows.refuse(line, "no JSON object")
                continue
            for span in _spans(document):
                number += 1
                if span.get("name") == _SPAN or _USAGE + "prompt_tokens" in _attributes(span):
                    rows.add(number, _row(span))
                else:
                    rows.other("span that is no llm_request")
    options.progress(material.name, 1, 1)
    return rows.done()


def _spans(document: object) -> Iterator[dict[str, Any]]:
    for part in document if isinstance(document, list) else [document]:
        for resource in _listed(inner(part, "resourceSpans")):
            for scope in _listed(inner(resource, "scopeSpans")) or _listed(
                inner(resource, "instrumentationLibrarySpans")
            ):
                yield from (span for span in _listed(inner(scope, "spans")) if isinstance(span, dict))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name; OTLP writes whole numbers as text."""
    found: dict[str, Any] = {}
    for entry in _listed(span.get("attributes")):
        value = inner(entry, "value")
        if isinstance(value, dict) and len(value) == 1 and isinstance(inner(entry, "key"), str):
            found[entry["key"]] = next(iter(value.values()))
    return found


def _row(span: dict[str, Any]) -> dict[str, Any]:
    known = _attributes(span)
    arrived = nanoseconds(span.get("startTimeUnixNano"), "ns")

    def behind(name: str) -> int | None:
        seconds = nanoseconds(known.get(_LATENCY + name), "s")
        return None if seconds is None or arrived is None else arrived + seconds

    last = behind("e2e")
    # Without an end of its own the request lasts as long as its span.
    end = nanoseconds(span.get("endTimeUnixNano"), "ns") if last is None else None
    return {
        "request_id": name_of(known.get("gen_ai.request.id")),
        "arrival_ns": arrived,
        "num_prompt_tokens": count(known.get(_USAGE + "prompt_tokens")),
        "num_output_tokens": count(known.get(_USAGE + "completion_tokens")),
        "max_tokens": count(known.get("gen_ai.request.max_tokens")),
        # vLLM's queue time starts when the engine gets the request, some ms after its arrival, which no attribute tells.
        "first_token_ns": behind("time_to_first_token"),
        "last_token_ns": last,
        "finished_ns": end,
    }


SOURCE: Final = Source("otlp", "OpenTelemetry spans of vLLM (JSON with resourceSpans)", detects, read)
