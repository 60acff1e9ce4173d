"""The tables behind the charts of a report, small enough for a page whatever the size of the run."""

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.compare.run_sql import sql
from tracekit.run import Run

BUCKETS: Final = 400
QUANTILES: Final = 200
GANTT_REQUESTS: Final = 60
_STATES: Final = """
SELECT
    time_ns // $bucket_ns * $bucket_ns / 1e9 AS time_s,
    AVG(num_running_reqs) AS running,
    MAX(num_running_reqs) AS most_running,
    AVG(num_waiting_reqs) AS waiting,
    100 * AVG(kv_cache_usage) AS kv_percent
FROM states
GROUP BY time_ns // $bucket_ns
ORDER BY time_s
"""
_COMPOSITION: Final = """
SELECT
    start_ns // $bucket_ns * $bucket_ns / 1e9 AS time_s,
    AVG(num_decode_reqs) AS decode,
    AVG(num_short_extend_reqs) AS short_extend,
    AVG(num_long_extend_reqs) AS long_extend,
    AVG(num_prefill_reqs) AS prefill,
    AVG(num_scheduled_tokens - num_decode_reqs) AS prefill_tokens
FROM steps
GROUP BY start_ns // $bucket_ns
ORDER BY time_s
"""
_EVICTIONS: Final = """
SELECT time_ns // $bucket_ns * $bucket_ns / 1e9 AS time_s, COUNT(*) AS preemptions
FROM preemptions
GROUP BY time_ns // $bucket_ns
ORDER BY time_s
"""
_SPAN: Final = """
SELECT GREATEST(
    (SELECT COALESCE(MAX(until_ns), MAX(time_ns), 0) FROM states),
    (SELECT COALESCE(MAX(last_token_ns), 0) FROM requests)
) AS end_ns
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
WITH hits AS (
    SELECT request_id, MIN(time_ns) AS first_ns, COUNT(*) AS times FROM preemptions GROUP BY request_id
),
middle AS (
    SELECT QUANTILE_DISC(time_ns, 0.5) AS ns FROM preemptions
),
chosen AS (
    SELECT request_id FROM hits, middle ORDER BY ABS(first_ns - middle.ns), request_id LIMIT $most
)
SELECT p.request_id, p.phase, p.start_ns / 1e9 AS start_s, COALESCE(p.end_ns, p.start_ns) / 1e9 AS end_s
FROM phases AS p
JOIN chosen USING (request_id)
ORDER BY start_s, p.request_id, p.phase
"""


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


def series_of(run: Run, label: str) -> Series:
    """Aggregate a run for charts: at most 400 instants, 200 quantiles, 60 requests."""
    end_ns = int(sql({"run": run}, _SPAN)["end_ns"][0] or 1)
    bucket = {"bucket_ns": max(end_ns // BUCKETS, 1)}
    tables = {"run": run}
    return Series(
        label,
        states=sql(tables, _STATES, parameters=bucket),
        composition=sql(tables, _COMPOSITION, parameters=bucket),
        evictions=sql(tables, _EVICTIONS, parameters=bucket),
        ecdf=sql(tables, _ECDF, parameters={"points": QUANTILES}),
        gantt=sql(tables, _GANTT, parameters={"most": GANTT_REQUESTS}),
        bound_by=_bound_by(run),
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
