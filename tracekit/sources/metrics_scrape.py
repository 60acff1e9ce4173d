"""One ``/metrics`` scrape: the samples tracekit uses, by engine, and when it was taken.

Names by version: the pairs in ``GAUGES`` and ``COUNTERS`` are the same quantity under its names, newest first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from tracekit.sources.files import open_bytes
from tracekit.sources.observation import Accounting

GAUGES: Final = {
    "num_running_reqs": ("num_requests_running",),
    "num_waiting_reqs": ("num_requests_waiting",),
    "num_swapped_reqs": ("num_requests_swapped",),
    "kv_cache_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "prefix_hit_rate": ("gpu_prefix_cache_hit_rate",),
    "prompt_tps": ("avg_prompt_throughput_toks_per_s",),
    "generation_tps": ("avg_generation_throughput_toks_per_s",),
}
COUNTERS: Final = {
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "prefix_queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "prefix_hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
}
HISTOGRAMS: Final = {
    "ttft_ns": ("time_to_first_token_seconds",),
    "itl_ns": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot_ns": ("request_time_per_output_token_seconds",),
    "e2e_ns": ("e2e_request_latency_seconds",),
    "queue_ns": ("request_queue_time_seconds",),
    "prefill_ns": ("request_prefill_time_seconds",),
    "decode_ns": ("request_decode_time_seconds",),
    "inference_ns": ("request_inference_time_seconds",),
    "request_prompt_tokens": ("request_prompt_tokens",),
    "request_generation_tokens": ("request_generation_tokens",),
    "iteration_tokens": ("iteration_tokens_total",),
    "request_num_preemptions": ("request_num_preemptions",),
}
_PREFIX: Final = "vllm:"
_BY_REASON: Final = "num_requests_waiting_by_reason"
_CACHE_CONFIG: Final = "cache_config_info"
_WANTED: Final = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        _BY_REASON,
        _CACHE_CONFIG,
        *(name for names in GAUGES.values() for name in names),
        *(f"{name}{end}" for names in COUNTERS.values() for name in names for end in ("", "_total", "_created")),
        *(f"{name}{end}" for names in HISTOGRAMS.values() for name in names for end in ("_bucket", "_sum")),
    )
)
_LINE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?\s+\S+(?:\s+(\d+(?:\.\d+)?))?\s*(?:#.*)?$")
_TIME_IN_NAME: Final = re.compile(r"(?<![0-9])(\d{10}(?:\.\d+)?|\d{13}|\d{16}|\d{19})(?![0-9])")
_UNIX_FROM_MS: Final = 100_000_000_000
_MAX_LINE: Final = 1 << 20
_LARGEST: Final = float(1 << 53)
"""Beyond this a float no longer counts; NaN and infinity are no values either."""

Bucket = tuple[str, float | None]
"""A histogram's metric and a bucket's upper edge; without an edge its sum."""

Samples = list[tuple[str, dict[str, str], float]]


@dataclass
class EngineSample:
    """What one scrape says of one engine: values by canonical name, cumulative counters, cumulative bucket counts.

    ``histogram_names``: the name under which a histogram was found, by metric.
    """

    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    buckets: dict[Bucket, float] = field(default_factory=dict)
    histogram_names: dict[str, str] = field(default_factory=dict)
    created: float | None = None
    cache_config: dict[str, str] = field(default_factory=dict)
    model_name: str | None = None


@dataclass
class Scrape:
    """One reading of an endpoint; ``time_ns`` is null while only the file's name or date tells it."""

    file: str
    time_ns: int | None
    engines: dict[int | None, EngineSample] = field(default_factory=dict)


def sample_name(line: str) -> str | None:
    """The metric's name when a line is a sample of the exposition format."""
    match = _LINE.match(line)
    return match[1] if match else None


def read_scrapes(path: Path, accounting: Accounting) -> list[Scrape]:
    """The scrapes in a file: one, or one a timestamp. Lines are counted; blank and comment lines are other."""
    by_time: dict[int | None, dict[str, tuple[int, str]]] = {}
    for number, line in _lines(path):
        accounting.read += 1
        if not line.strip() or line.lstrip().startswith("#"):
            accounting.other += 1
            continue
        match = _LINE.match(line)
        if match is None:
            accounting.add_unreadable(number)
        elif match[1] not in _WANTED:
            accounting.other += 1
        else:
            key = line[: line.rfind("}") + 1] or match[1]
            lines = by_time.setdefault(_stamp_ns(match[2]), {})
            if key in lines:
                accounting.understood += 1
                accounting.duplicates += 1
            lines[key] = (number, line)
    return [
        _scrape(path, time_ns, list(lines.values()), accounting)
        for time_ns, lines in sorted(by_time.items(), key=lambda item: item[0] or 0)
    ]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_bytes(path) as stream:
        number = 0
        while line := stream.readline(_MAX_LINE):
            number += 1
            yield number, line.decode("utf-8", errors="replace").rstrip("\r\n")


def _stamp_ns(text: str | None) -> int | None:
    if text is None:
        return None
    stamp = Decimal(text)
    # Prometheus writes milliseconds, OpenMetrics seconds.
    return int(stamp * (1_000_000 if stamp >= _UNIX_FROM_MS else 1_000_000_000))


def _scrape(path: Path, time_ns: int | None, lines: list[tuple[int, str]], accounting: Accounting) -> Scrape:
    return assembled(path.name, time_ns, [(s.name, s.labels, s.value) for s in _parsed(lines, accounting)])


def is_wanted(name: str) -> bool:
    """Whether a metric of this name is used."""
    return name in _WANTED


def assembled(file: str, time_ns: int | None, found_samples: Samples) -> Scrape:
    """A scrape of its samples (name, labels, value)."""
    scrape = Scrape(file, time_ns)
    samples: dict[tuple[int | None, str], list[tuple[dict[str, str], float]]] = {}
    for metric, labels, value in found_samples:
        number = _engine_number(labels.get("engine"))
        samples.setdefault((number, metric.removeprefix(_PREFIX)), []).append((labels, value))
    for (engine, name), found in samples.items():
        if name != _CACHE_CONFIG:
            _put(scrape.engines.setdefault(engine, EngineSample()), name, found)
    for (engine, name), found in samples.items():
        if name == _CACHE_CONFIG:
            # Before 0.9 it has no engine label though the others have one.
            target = scrape.engines.get(engine) or next(iter(scrape.engines.values()), EngineSample())
            target.cache_config = dict(found[0][0])
            scrape.engines = scrape.engines or {engine: target}
    return scrape


def _engine_number(label: object) -> int | None:
    is_number = isinstance(label, str) and re.fullmatch(r"[0-9]{1,5}", label) is not None
    return int(str(label)) if is_number else None


def _parsed(lines: list[tuple[int, str]], accounting: Accounting) -> Iterator[Any]:
    try:
        families = list(text_string_to_metric_families("\n".join(line for _, line in lines) + "\n"))
    except (ValueError, KeyError, IndexError):
        yield from _parsed_singly(lines, accounting)
        return
    accounting.understood += len(lines)
    for family in families:
        yield from family.samples


def _parsed_singly(lines: Iterable[tuple[int, str]], accounting: Accounting) -> Iterator[Any]:
    for number, line in lines:
        try:
            samples = [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
        except (ValueError, KeyError, IndexError):
            accounting.add_unreadable(number)
            continue
        accounting.understood += 1
        yield from samples


def _put(target: EngineSample, name: str, found: list[tuple[dict[str, str], float]]) -> None:
    labels = found[0][0]
    target.model_name = target.model_name or labels.get("model_name")
    found = [(labels, value) for labels, value in found if abs(value) < _LARGEST]
    values = [value for _, value in found]
    if not values:
        return
    if name == _BY_REASON:
        deferred = [value for each, value in found if each.get("reason") == "deferred"]
        if deferred:
            target.gauges["num_deferred_reqs"] = sum(deferred)
        return
    for column, names in GAUGES.items():
        if name in names:
            # Aliases of one quantity: the newest name wins.
            is_first = name == names[0] or column not in target.gauges
            if is_first:
                target.gauges[column] = max(values) if column in {"kv_cache_usage", "prefix_hit_rate"} else sum(values)
            return
    for column, names in COUNTERS.items():
        if name.removesuffix("_total") in names:
            if name.removesuffix("_total") == names[0] or column not in target.counters:
                target.counters[column] = sum(values)
            return
        if name.removesuffix("_created") in names:
            target.created = max(values[0], target.created or 0.0)
            return
    histogram, _, part = name.rpartition("_")
    _put_histogram(target, histogram, part, found)


def _put_histogram(target: EngineSample, name: str, part: str, found: list[tuple[dict[str, str], float]]) -> None:
    metric = next((metric for metric, names in HISTOGRAMS.items() if name in names), None)
    if metric is None:
        return
    known = target.histogram_names.setdefault(metric, name)
    if known != name:
        if name != HISTOGRAMS[metric][0]:
            return
        target.histogram_names[metric] = name
        target.buckets = {bucket: count for bucket, count in target.buckets.items() if bucket[0] != metric}
    scale = 10**9 if metric.endswith("_ns") else 1
    for labels, value in found:
        try:
            edge = None if part == "sum" else float(Decimal(labels.get("le", "")) * scale)
        except ArithmeticError:
            continue
        if edge is not None and edge != edge:  # noqa: PLR0124 - a NaN is no edge
            continue
        more = value * scale if part == "sum" else value
        target.buckets[metric, edge] = target.buckets.get((metric, edge), 0.0) + more


def time_of_name(name: str) -> int | None:
    """The Unix time in a file's name (``012_1796090943.274.prom``; seconds, ms, us or ns), in ns."""
    found = _TIME_IN_NAME.findall(name)
    if not found:
        return None
    digits = found[-1].partition(".")[0]
    return int(Decimal(found[-1]) * 10 ** (19 - len(digits)))
