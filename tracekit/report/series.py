"""The tables behind the charts of a report, small enough for a page whatever the size of the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.compare.queries import named_query
from tracekit.compare.run_sql import sql
from tracekit.run import Run

BUCKETS: Final = 400
QUANTILES: Final = 200
GANTT_REQUESTS: Final = 60
_EVICTION_BUCKETS: Final = 100
_SPAN: Final = """
SELECT
    LEAST((SELECT MIN(time_ns) FROM states), (SELECT MIN(arrival_ns) FROM requests)) AS start_ns,
    GREATEST(
        (SELECT MAX(COALESCE(until_ns, time_ns)) FROM states), (SELECT MAX(last_token_ns) FROM requests)
    ) AS end_ns
"""
_STATES: Final = """
WITH held AS (
    SELECT *, GREATEST(COALESCE(until_ns, $end_ns), time_ns + 1) AS last_ns FROM states
),
spread AS (
    SELECT *, UNNEST(RANGE((time_ns - $start_ns) // $bucket_ns, (last_ns - 1 - $start_ns) // $bucket_ns + 1)) AS bucket
    FROM held
),
weighted AS (
    SELECT
        *,
        (
            LEAST(last_ns, $start_ns + (bucket + 1) * $bucket_ns) - GREATEST(time_ns, $start_ns + bucket * $bucket_ns)
        )::DOUBLE AS ns
    FROM spread
),
engines AS (
    SELECT
        bucket,
        engine,
        SUM(num_running_reqs * ns) / SUM(ns) FILTER (num_running_reqs IS NOT NULL) AS running,
        SUM(num_waiting_reqs * ns) / SUM(ns) FILTER (num_waiting_reqs IS NOT NULL) AS waiting,
        SUM(kv_cache_usage * ns) / SUM(ns) FILTER (kv_cache_usage IS NOT NULL) AS usage
    FROM weighted
    GROUP BY bucket, engine
)
SELECT
    ($start_ns + bucket * $bucket_ns) / 1e9 AS time_s,
    ROUND(SUM(running), 3) AS running,
    ROUND(SUM(waiting), 3) AS waiting,
    ROUND(100 * AVG(usage), 3) AS kv_percent
FROM engines
GROUP BY bucket
ORDER BY bucket
"""
_COMPOSITION: Final = """
SELECT
    ($start_ns + b.bucket * $bucket_ns) / 1e9 AS time_s,
    COALESCE(ROUND(AVG(num_decode_reqs), 3), 0) AS decode,
    COALESCE(ROUND(AVG(num_short_extend_reqs), 3), 0) AS short_extend,
    COALESCE(ROUND(AVG(num_long_extend_reqs), 3), 0) AS long_extend,
    COALESCE(ROUND(AVG(num_prefill_reqs), 3), 0) AS prefill,
    ROUND(COALESCE(SUM(num_scheduled_tokens - num_decode_reqs), 0) * 1e9 / $bucket_ns, 1) AS prompt_tps
FROM (SELECT UNNEST(RANGE(0, ($end_ns - $start_ns) // $bucket_ns + 1)) AS bucket) AS b
LEFT JOIN steps AS s ON (s.start_ns - $start_ns) // $bucket_ns = b.bucket
WHERE EXISTS (SELECT 1 FROM steps WHERE num_decode_reqs IS NOT NULL)
GROUP BY b.bucket
ORDER BY b.bucket
"""
_ECDF: Final = """
WITH measured AS (
    SELECT 'TTFT' AS metric, ttft_ns / 1e6 AS ms FROM latencies WHERE ttft_ns IS NOT NULL
    UNION ALL SELECT 'TPOT', tpot_ns / 1e6 FROM latencies WHERE tpot_ns IS NOT NULL
    UNION ALL SELECT 'E2E', e2e_ns / 1e6 FROM latencies WHERE e2e_ns IS NOT NULL
),
ranked AS (
    SELECT
        metric,
        ms,
        ROW_NUMBER() OVER (PARTITION BY metric ORDER BY ms) AS nth,
        COUNT(*) OVER (PARTITION BY metric) AS n
    FROM measured
)
SELECT metric, MAX(nth / n) AS share, MAX(ms) AS ms
FROM ranked
GROUP BY metric, nth * $points // n
ORDER BY metric, share
"""
_GANTT: Final = """
WITH worst AS (
    SELECT AVG(time_ns) AS ns
    FROM preemptions
    GROUP BY time_ns // $eviction_ns
    ORDER BY COUNT(*) DESC, MIN(time_ns)
    LIMIT 1
),
chosen AS (
    SELECT request_id
    FROM preemptions, worst
    GROUP BY request_id
    ORDER BY MIN(ABS(time_ns - worst.ns)), request_id
    LIMIT $most
)
SELECT p.request_id, p.phase, p.start_ns / 1e9 AS start_s, COALESCE(p.end_ns, $end_ns) / 1e9 AS end_s
FROM phases AS p
JOIN chosen USING (request_id)
ORDER BY start_s, p.request_id, p.phase
"""


@dataclass(frozen=True)
class Window:
    """The time that all sides of a report share; ``eviction_ns``: the wider buckets in which preemptions are counted."""

    start_ns: int
    end_ns: int
    bucket_ns: int
    eviction_ns: int


@dataclass(frozen=True)
class Series:
    """One side's tables; empty where the run does not know."""

    label: str
    states: pl.DataFrame
    composition: pl.DataFrame
    evictions: pl.DataFrame
    ecdf: pl.DataFrame
    gantt: pl.DataFrame
    bound_by: pl.DataFrame


def window_of(runs: Sequence[Run]) -> Window:
    """From the first event of any run to the last, in at most ``BUCKETS`` buckets."""
    spans = [sql({"run": run}, _SPAN).row(0) for run in runs]
    start_ns = min((start for start, _ in spans if start is not None), default=0)
    end_ns = max(max((end for _, end in spans if end is not None), default=0), start_ns + 1)
    return Window(
        start_ns, end_ns,
        bucket_ns=-(-(end_ns - start_ns) // BUCKETS),
        eviction_ns=_round_width((end_ns - start_ns) // _EVICTION_BUCKETS),
    )  # fmt: skip


def _round_width(ns: int) -> int:
    """The next of 1, 2, 5, 10, ... milliseconds."""
    width = 1_000_000
    while True:
        for factor in (1, 2, 5):
            if width * factor >= ns:
                return width * factor
        width *= 10


def series_of(run: Run, label: str, window: Window) -> Series:
    """Aggregate a run for charts: 400 time-weighted means, 200 quantiles, the phases of 60 requests."""
    tables = {"run": run}
    span = {"start_ns": window.start_ns, "end_ns": window.end_ns, "bucket_ns": window.bucket_ns}
    return Series(
        label,
        states=sql(tables, _STATES, parameters=span),
        composition=sql(tables, _COMPOSITION, parameters=span),
        evictions=_evictions(run, window),
        ecdf=sql(tables, _ECDF, parameters={"points": QUANTILES}),
        gantt=sql(
            tables,
            _GANTT,
            parameters={"most": GANTT_REQUESTS, "end_ns": window.end_ns, "eviction_ns": window.eviction_ns},
        ),
        bound_by=_bound_by(run),
    )


def _evictions(run: Run, window: Window) -> pl.DataFrame:
    """Preemptions in equal intervals, none of them left out; empty where neither rows nor a counter tell them."""
    if not (run.has("preemptions") or run.engine_stats["num_preemptions"].count()):
        return pl.DataFrame()
    width_s = window.eviction_ns / 1e9
    found = sql({"run": run}, named_query("preemptions_over_time").sql, parameters={"interval_s": width_s})
    first, last = window.start_ns // window.eviction_ns, window.end_ns // window.eviction_ns
    counted = found.select(
        nth=(pl.col("time_s") / width_s).round().cast(pl.Int64), preemptions=pl.col("num_preemptions")
    )
    every = pl.DataFrame({"nth": range(first, last + 1)}, schema={"nth": pl.Int64})
    return every.join(counted, on="nth", how="left", maintain_order="left").select(
        time_s=pl.col("nth") * width_s, preemptions=pl.col("preemptions").fill_null(0)
    )


def _bound_by(run: Run) -> pl.DataFrame:
    """Device time by limit: as the replay booked it, else from the steps."""
    booked = run.info.get("ns_bound_by")
    if booked:
        rows = [(name, ns / 1e9) for name, ns in booked.items()]
        return pl.DataFrame(rows, schema={"bound_by": pl.String, "seconds": pl.Float64}, orient="row")
    return sql(
        {"run": run},
        "SELECT bound_by, SUM(duration_ns) / 1e9 AS seconds FROM steps WHERE bound_by IS NOT NULL GROUP BY bound_by "
        "ORDER BY seconds DESC, bound_by",
    )
