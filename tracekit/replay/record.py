"""What a replay writes down: requests, steps, preemptions, periodic samples and the ITL histogram."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from tracekit.model.plan import StepPlan
from tracekit.model.request import Request
from tracekit.replay.workload import Arrival
from tracekit.schema.parquet import empty, polars_schema
from tracekit.schema.tables import DISTRIBUTIONS, ENGINE_STATS, PREEMPTIONS, REQUESTS, STEPS

MOST_STEP_ROWS: Final = 2_000_000
"""More steps than this are kept as a sample, unless all are asked for."""
NUM_FINISHED: Final = STEPS.column_names.index("num_finished_reqs")
NUM_PREEMPTED: Final = STEPS.column_names.index("num_preempted_reqs")


@dataclass(slots=True)
class Outcome:
    """What became of one arrival in the simulation; instants in ns from the run's start, null: it did not happen."""

    arrival: Arrival
    request: Request
    engine: int
    arrival_ns: int
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finished_ns: int | None = None
    num_generated_tokens: int = 0
    finish_reason: str = "unfinished"

    def stamp_token(self, now: int, itl: Counter[int]) -> None:
        """Book one output token that reached the host at ``now``."""
        self.num_generated_tokens += 1
        if self.last_token_ns is None:
            self.first_token_ns = now
        else:
            itl[bucket_low(now - self.last_token_ns)] += 1
        self.last_token_ns = now


@dataclass
class Recording:
    """Everything a replay recorded, as lists of rows in time order of each engine."""

    outcomes: list[Outcome] = field(default_factory=list)
    steps: list[list[int | float | str | None]] = field(default_factory=list)
    preemptions: list[dict[str, int | str | None]] = field(default_factory=list)
    engine_stats: list[dict[str, int | float | str | None]] = field(default_factory=list)
    itl: Counter[int] = field(default_factory=Counter)
    running_ns: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Device time by (engine, requests running)."""

    def add_step(
        self, plan: StepPlan, *, step: int, engine: int, decided: int, start: int, duration: int
    ) -> list[int | float | str | None]:
        """Book a step; the row is returned so that the number of requests it finished can be filled in later."""
        row: list[int | float | str | None] = [
            step, engine, start, duration, decided, plan.num_running, plan.num_waiting, len(plan.scheduled),
            plan.num_scheduled_tokens, plan.num_decode, plan.num_short_extend, plan.num_long_extend, plan.num_prefill,
            plan.num_context_tokens, plan.num_free_blocks, plan.kv_cache_usage,
            len(plan.admitted) + len(plan.resumed), len(plan.preemptions), 0, plan.bound_by,
        ]  # fmt: skip
        self.steps.append(row)
        self.running_ns[engine, plan.num_running] += duration
        return row

    def tables(self, trace: pl.DataFrame) -> dict[str, pl.DataFrame]:
        """The recorded tables; ``trace`` gives the arrival columns of the requests."""
        steps = pl.DataFrame(self.steps, schema=polars_schema(STEPS), orient="row").sort("start_ns", "engine")
        tables = {
            "requests": self._requests(trace),
            "steps": steps,
            "preemptions": pl.DataFrame(self.preemptions, schema=polars_schema(PREEMPTIONS)).sort(
                "time_ns", "engine", maintain_order=True
            ),
            "distributions": self._distributions(),
        }
        if self.engine_stats:
            tables["engine_stats"] = pl.DataFrame(self.engine_stats, schema=polars_schema(ENGINE_STATS))
        return tables

    def _requests(self, trace: pl.DataFrame) -> pl.DataFrame:
        became = pl.DataFrame(
            [
                (
                    o.arrival.row, o.engine, o.arrival_ns, o.queued_ns, o.scheduled_ns, o.first_token_ns,
                    o.last_token_ns, o.finished_ns, o.num_generated_tokens,
                    o.request.num_cached_tokens if o.scheduled_ns is not None else None,
                    o.request.num_preemptions, o.request.num_recomputed_tokens, o.finish_reason,
                )
                for o in self.outcomes
            ],
            schema={
                "row": pl.UInt32, "engine": pl.Int32, "arrival_ns": pl.Int64, "queued_ns": pl.Int64,
                "scheduled_ns": pl.Int64, "first_token_ns": pl.Int64, "last_token_ns": pl.Int64,
                "finished_ns": pl.Int64, "num_generated_tokens": pl.Int64, "num_cached_tokens": pl.Int64,
                "num_preemptions": pl.Int64, "num_recomputed_tokens": pl.Int64, "finish_reason": pl.String,
            },
            orient="row",
        )  # fmt: skip
        kept = [
            "request_id", "source_request_id", "parent_request_id", "session_id", "think_ns", "num_prompt_tokens",
            "num_output_tokens", "max_tokens", "priority", "block_hashes",
        ]  # fmt: skip
        arrived = trace.select(kept).with_row_index("row")
        joined = became.join(arrived, on="row", how="left", maintain_order="left").drop("row")
        refused = trace.filter(finish_reason="rejected").select(
            *kept, "engine", "arrival_ns", "finish_reason", "finished_ns"
        )
        frame = pl.concat([joined, refused], how="diagonal") if refused.height else joined
        if not frame.height:
            return empty(REQUESTS)
        return frame.select(c for c in REQUESTS.column_names if c in frame.columns).sort("arrival_ns", "request_id")

    def _distributions(self) -> pl.DataFrame:
        itl = [(None, low, count) for low, count in sorted(self.itl.items())]
        running = [(engine, number, ns) for (engine, number), ns in sorted(self.running_ns.items()) if ns]
        return distributions_of(itl, running)


def distributions_of(itl: Sequence[tuple[None, int, int]], running: Sequence[tuple[int, int, int]]) -> pl.DataFrame:
    """The table of (engine, lower edge in ns, gaps) and (engine, requests running, device time in ns)."""
    rows: list[tuple[str, int | None, None, float, float, int, None]]
    rows = [("itl_ns", engine, None, float(low), float(bucket_high(low)), count, None) for engine, low, count in itl]
    rows += [
        ("num_running_reqs", engine, None, number - 1.0, float(number), ns, None) for engine, number, ns in running
    ]
    return pl.DataFrame(rows, schema=polars_schema(DISTRIBUTIONS), orient="row") if rows else empty(DISTRIBUTIONS)


def bucket_low(gap_ns: int) -> int:
    """The lower edge of the histogram bucket of a gap: 7 significant bits, so a bucket is at most 1.6 % wide."""
    shift = max(0, gap_ns.bit_length() - 7)
    return (gap_ns >> shift) << shift


def bucket_high(low: int) -> int:
    """The upper edge of the bucket that starts at ``low``."""
    return low + (1 << max(0, low.bit_length() - 7))


def sampled(steps: pl.DataFrame) -> pl.DataFrame:
    """The first step of every second of each engine, and every step that preempts."""
    second = pl.col("start_ns") // 1_000_000_000
    is_first = (second != second.shift()).over("engine").fill_null(value=True)
    return steps.filter(is_first | (pl.col("num_preempted_reqs") > 0))


def ns_bound_by(steps: pl.DataFrame) -> dict[str, int]:
    """The device's time in ns at each limit that kept the head of the waiting queue out."""
    found = steps.group_by("bound_by").agg(pl.col("duration_ns").sum()).sort("bound_by")
    return {name: ns for name, ns in found.iter_rows() if ns}
