"""Prometheus' answers to ``query_range`` (or ``query``) as scrapes: one for every instant that any series has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tracekit.sources.json_rows import documents, inner, nanoseconds
from tracekit.sources.metrics_scrape import Samples, Scrape, assembled, is_wanted
from tracekit.sources.observation import Accounting

_KINDS: Final = (b'"matrix"', b'"vector"')
_LOOK: Final = 4096


def is_range(head: bytes) -> bool:
    """Whether text starts like an answer of Prometheus' HTTP API that holds vLLM's metrics."""
    start = head.lstrip(b"\xef\xbb\xbf \r\n\t")[:_LOOK]
    return (
        start.startswith(b"{")
        and b'"resultType"' in start
        and any(kind in start for kind in _KINDS)
        and b'"vllm:' in head
    )


def range_scrapes(path: Path, accounting: Accounting) -> list[Scrape]:
    """The scrapes in a file of one answer, or of one a line (a query each). Every value is counted.

    Series of other metrics, and of expressions (``rate(...)`` has no name), are other.
    """
    by_time: dict[int, Samples] = {}
    number = 0
    for _, document in documents(path):
        for metric, values in _series(document):
            name = str(metric.get("__name__", ""))
            for value in values:
                number += 1
                accounting.read += 1
                if not is_wanted(name):
                    accounting.other += 1
                    continue
                sample = _sample(value)
                if sample is None:
                    accounting.add_unreadable(number)
                    continue
                accounting.understood += 1
                labels = {key: str(label) for key, label in metric.items()}
                by_time.setdefault(sample[0], []).append((name, labels, sample[1]))
    return [assembled(path.name, time_ns, samples) for time_ns, samples in sorted(by_time.items())]


def _series(document: object) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    results = inner(document, "data", "result")
    for series in results if isinstance(results, list) else []:
        metric, values, single = (inner(series, key) for key in ("metric", "values", "value"))
        if isinstance(metric, dict):
            yield metric, values if isinstance(values, list) else [single]


def _sample(pair: object) -> tuple[int, float] | None:
    if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004 - an instant and a value
        return None
    time_ns = nanoseconds(pair[0], "s")
    try:
        return None if time_ns is None else (time_ns, float(pair[1]))
    except (TypeError, ValueError):
        return None
