"""``/metrics`` scrapes of vLLM: samples of the engine's state, exact preemption counts, latency histograms, settings."""

from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from tracekit.config import GIB, SETTINGS, ConfigValue, setting_value
from tracekit.errors import ConfigError, InputError
from tracekit.schema.parquet import polars_schema
from tracekit.schema.tables import DISTRIBUTIONS, ENGINE_STATS, EVENTS
from tracekit.sources.files import left_out_note, read_head
from tracekit.sources.metrics_range import is_range, range_scrapes
from tracekit.sources.metrics_scrape import Bucket, EngineSample, Scrape, read_scrapes, sample_name, time_of_name
from tracekit.sources.observation import Accounting, Material, Observation, Options, Source

_LABELS: Final = {
    "cache_dtype": "kv_cache_dtype",
    "kv_cache_size_tokens": "kv_cache_tokens",
    "kv_cache_max_concurrency": "max_concurrency",
}
_OTHER_MEANING: Final = frozenset({"hash_block_size", "swap_space"})
"""Labels that share a setting's name but mean something else or do not apply to V1."""
_FILES_LOOKED_AT: Final = 20
_RESTART_S: Final = 1.0
_SUM_SLACK: Final = 0.01
_MOST_READINGS: Final = 128
"""A histogram is kept as of at most so many scrapes, so that a part of the run can be told from the rest."""


def detects(material: Material) -> bool:
    """Prometheus text with vLLM's metrics, in the first file or one of the next few."""
    if _is_scrape(material.head):
        return True
    return len(material.files) > 1 and any(_is_scrape(read_head(path)) for path in material.files[1:_FILES_LOOKED_AT])


def _is_scrape(head: bytes) -> bool:
    if b"vllm:" not in head or b"\0" in head:
        return False
    if is_range(head):
        return True
    lines = head.decode("utf-8", errors="replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    if not (first.startswith(("# HELP ", "# TYPE ")) or sample_name(first) is not None):
        return False
    return any((name := sample_name(line)) is not None and name.startswith("vllm:") for line in lines)


def read(material: Material, options: Options) -> Observation:
    """Read scrapes in order of time into ``engine_stats``, ``distributions``, ``events`` (restarts) and the config.

    A scrape's time: its samples' timestamps, else a Unix time in the file's name, else the file's date. Counters grow
    over a restart of the engine: what they had reached before is added. Raises ``InputError`` when no file holds a
    vLLM metric or when several scrapes in one file cannot be told apart.
    """
    observation = Observation("metrics", material.name, "unix", accounting=Accounting("lines"))
    observation.notes.extend(left_out_note(material))
    scrapes = _all_scrapes(material, options, observation)
    if not any(scrape.engines for scrape in scrapes):
        msg = f"{material.path}: expected vLLM's metrics (vllm:num_requests_running ...), found none"
        raise InputError(msg)
    series: dict[int | None, _Engine] = {}
    for scrape in scrapes:
        for number, sample in sorted(scrape.engines.items(), key=lambda item: -1 if item[0] is None else item[0]):
            series.setdefault(number, _Engine(number)).add(scrape, sample)
    observation.tables["engine_stats"] = pl.DataFrame(
        [row for engine in series.values() for row in engine.rows], schema=polars_schema(ENGINE_STATS)
    ).sort("time_ns", "engine", maintain_order=True)
    _put_restarts(observation, list(series.values()))
    buckets = [row for engine in series.values() for row in engine.distributions()]
    if buckets:
        observation.tables["distributions"] = pl.DataFrame(buckets, schema=polars_schema(DISTRIBUTIONS))
    if len(scrapes) == 1:
        observation.notes.append(
            f"{observation.file}: a single scrape; its histograms cover all since the engine's start"
        )
    last = scrapes[-1].file
    where = last if len(material.files) == 1 else f"{observation.file}/{last}"
    observation.config = _config(list(series.values()), observation, where)
    return observation


def _all_scrapes(material: Material, options: Options, observation: Observation) -> list[Scrape]:
    scrapes: list[Scrape] = []
    by_date = 0
    without = 0
    for done, path in enumerate(material.files):
        options.progress(material.name, done, len(material.files))
        duplicates = observation.accounting.duplicates
        is_answer = is_range(read_head(path))
        found = range_scrapes(path, observation.accounting) if is_answer else read_scrapes(path, observation.accounting)
        if observation.accounting.duplicates > duplicates and found and found[0].time_ns is None:
            msg = (
                f"{path}: several scrapes without timestamps; expected one file a scrape with its Unix time in the name"
            )
            raise InputError(msg)
        without += not any(scrape.engines for scrape in found)
        for scrape in found:
            if scrape.time_ns is None:
                scrape.time_ns = time_of_name(path.name)
            if scrape.time_ns is None:
                scrape.time_ns = path.stat().st_mtime_ns
                by_date += 1
        scrapes.extend(found)
    options.progress(material.name, len(material.files), len(material.files))
    if by_date:
        observation.notes.append(
            f"{observation.file}: {by_date} scrapes carry no time in samples or name; the files' dates were used"
        )
    if without:
        observation.skipped["file without vLLM metrics"] = without
    return sorted(scrapes, key=lambda scrape: scrape.time_ns or 0)


@dataclass
class _Engine:
    """One engine through all scrapes: rows, restarts, and what its counters had reached before each."""

    number: int | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[tuple[int, str]] = field(default_factory=list)
    last: EngineSample = field(default_factory=EngineSample)
    last_ns: int | None = None
    preemptions_before: float = 0.0
    base: dict[Bucket, float] = field(default_factory=dict)
    earlier: dict[Bucket, float] = field(default_factory=dict)
    readings: list[tuple[int, dict[Bucket, float]]] = field(default_factory=list)

    def add(self, scrape: Scrape, sample: EngineSample) -> None:
        """Take one more scrape, later than those before."""
        time_ns = scrape.time_ns or 0
        is_restart = self.last_ns is not None and _restarted(self.last, sample)
        if self.last_ns is None:
            self.base = dict(sample.buckets)
        elif is_restart:
            self.restarts.append((time_ns, scrape.file))
            self.preemptions_before += self.last.counters.get("preemptions", 0.0)
            self.earlier = self._grown()
            self.base = {}
        self.rows.append(self._row(time_ns, sample, is_restart=is_restart))
        if not sample.cache_config:
            sample.cache_config = self.last.cache_config
        if self.last_ns is not None and not is_restart:
            # Series of one answer may end at different instants: what is not there has not changed.
            sample.counters = self.last.counters | sample.counters
            sample.buckets = self.last.buckets | sample.buckets
        self.last, self.last_ns = sample, time_ns
        if self.readings and self.readings[-1][0] == time_ns:
            self.readings.pop()
        self.readings.append((time_ns, self._grown()))
        if len(self.readings) > _MOST_READINGS:
            self.readings = self.readings[::2]

    def _row(self, time_ns: int, sample: EngineSample, *, is_restart: bool) -> dict[str, Any]:
        gauges, counters = sample.gauges, sample.counters
        queries = counters.get("prefix_queries", 0.0)
        rate = counters.get("prefix_hits", 0.0) / queries if queries > 0 else gauges.get("prefix_hit_rate")
        preemptions = counters.get("preemptions")
        row: dict[str, Any] = {
            "time_ns": time_ns,
            "engine": self.number,
            "kv_cache_usage": gauges.get("kv_cache_usage"),
            # V0 exports -1 while its prefix cache is off.
            "prefix_hit_rate": rate if rate is not None and rate >= 0 else None,
            "num_preemptions": None if preemptions is None else int(preemptions + self.preemptions_before),
            "prompt_tps": gauges.get("prompt_tps"),
            "generation_tps": gauges.get("generation_tps"),
            "source": "metrics",
        }
        for name in ("num_running_reqs", "num_waiting_reqs", "num_swapped_reqs", "num_deferred_reqs"):
            row[name] = int(gauges[name]) if name in gauges else None
        elapsed_ns = time_ns - self.last_ns if self.last_ns is not None else 0
        for column, counter in (("prompt_tps", "prompt_tokens"), ("generation_tps", "generation_tokens")):
            if counter in counters:
                grown = counters[counter] - self.last.counters.get(counter, 0.0)
                row[column] = grown * 1e9 / elapsed_ns if elapsed_ns > 0 and not is_restart else None
        return row

    def _grown(self) -> dict[Bucket, float]:
        base = self.base if len(self.rows) > 1 or self.restarts else {}
        return {
            bucket: self.earlier.get(bucket, 0.0) + self.last.buckets.get(bucket, 0.0) - base.get(bucket, 0.0)
            for bucket in self.earlier | self.last.buckets
        }

    def distributions(self) -> list[dict[str, Any]]:
        """Buckets of what was counted since the first scrape, as of several later ones (a single scrape: all it holds)."""
        last = self._grown()
        metrics = [
            metric
            for metric in dict.fromkeys(metric for metric, _ in last)
            if any(count > 0 for (name, edge), count in last.items() if name == metric and edge is not None)
        ]
        readings = self.readings
        if len(self.rows) > 1:
            # Nothing is counted at the first, from which all others count.
            readings = [(readings[0][0], dict.fromkeys(last, 0.0)), *readings[1:]]
        if readings[-1][0] != self.last_ns:
            readings = [*readings, (self.last_ns or 0, last)]
        return [
            row for time_ns, grown in readings for metric in metrics for row in self._histogram(metric, grown, time_ns)
        ]

    def _histogram(self, metric: str, grown: dict[Bucket, float], time_ns: int) -> list[dict[str, Any]]:
        low, below = None, 0.0
        buckets: list[tuple[float | None, float, int]] = []
        for edge in sorted(edge for name, edge in grown if name == metric and edge is not None):
            buckets.append((low, edge, max(round(grown[metric, edge] - below), 0)))
            low, below = edge, grown[metric, edge]
        total = _possible_sum(grown.get((metric, None)), buckets)
        return [
            {
                "metric": metric,
                "engine": self.number,
                "time_ns": time_ns,
                "bucket_low": low,
                "bucket_high": None if edge == float("inf") else edge,
                "count": count,
                "sum": total,
            }
            for low, edge, count in buckets
        ]


def _possible_sum(total: float | None, buckets: list[tuple[float | None, float, int]]) -> float | None:
    """A histogram's sum, null where its buckets contradict it by more than what a scrape in passing leaves open."""
    if total is None:
        return None
    least = sum(count * (low or 0.0) for low, _, count in buckets)
    most = sum(count * edge for _, edge, count in buckets if count)
    return total if least * (1 - _SUM_SLACK) <= total <= most * (1 + _SUM_SLACK) else None


def _restarted(before: EngineSample, after: EngineSample) -> bool:
    if before.created and after.created and after.created > before.created + _RESTART_S:
        return True
    return any(value < before.counters.get(name, 0.0) for name, value in after.counters.items())


def _put_restarts(observation: Observation, engines: list[_Engine]) -> None:
    restarts = [
        {"time_ns": time_ns, "engine": engine.number, "kind": "restart", "file": file}
        for engine in engines
        for time_ns, file in engine.restarts
    ]
    if restarts:
        observation.tables["events"] = pl.DataFrame(restarts, schema=polars_schema(EVENTS)).sort(
            "time_ns", maintain_order=True
        )
        observation.notes.append(
            f"{observation.file}: counters started anew {len(restarts)} times (the engine restarted); their growth is summed over all starts"
        )


def _config(engines: list[_Engine], observation: Observation, where: str) -> dict[str, ConfigValue]:
    found: dict[str, ConfigValue] = {}
    first = next((engine for engine in engines if engine.last.cache_config), engines[0])
    if first.last.model_name:
        found["model"] = setting_value("model", first.last.model_name, "logged", where)
    labels = dict(first.last.cache_config)
    if first.number is None and "swap_space_bytes" in labels and labels.get("num_cpu_blocks", "None") != "None":
        labels["swap_space_gib"] = labels["swap_space_bytes"]
    for label, text in labels.items():
        name = "swap_space" if label == "swap_space_gib" else _LABELS.get(label, label)
        if name not in SETTINGS or label in _OTHER_MEANING or text in {"None", ""}:
            continue
        try:
            raw = float(text) / GIB if label == "swap_space_gib" else text
            found[name] = setting_value(name, raw, "logged", where)
        except (ConfigError, ValueError):
            observation.skipped[f"unreadable label {name} of cache_config_info"] = 1
    numbers = {engine.number for engine in engines if engine.number is not None}
    if len(numbers) > 1:
        found["data_parallel_size"] = ConfigValue(max(numbers) + 1, "inferred", where)
    counts = {engine.last.cache_config.get("num_gpu_blocks") for engine in engines if engine.last.cache_config}
    if len(counts) > 1:
        observation.notes.append(
            f"{observation.file}: the engines have different numbers of KV blocks; the first one's is kept"
        )
    return found


SOURCE: Final = Source(
    "metrics",
    "vLLM's /metrics: one scrape, a directory with one file a scrape, or Prometheus' query_range JSON",
    detects,
    read,
)
