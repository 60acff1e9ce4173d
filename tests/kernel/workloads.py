"""Random replays for the kernel: weighted to storms, tiny pools, prefix eviction, priority, and the model's answer."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import strategies as st

from tracekit.config import EngineConfig
from tracekit.model.rules import EngineCrashError, Rules, rules_for
from tracekit.replay.clients import ArrivalMode, Clients
from tracekit.replay.compiled import why_never_sent
from tracekit.replay.replay import _prefix_cache
from tracekit.replay.simulate import Simulation
from tracekit.replay.workload import compressed, workload_of
from tracekit.schema.parquet import conform
from tracekit.schema.tables import REQUESTS
from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.parameters import StepTime

VERSIONS = (
    "0.33.0", "0.31.0", "0.24.0", "0.19.0", "0.12.0", "0.11.2", "0.10.2", "0.9.2", "0.8.5", "0.8.4", "0.7.3",
    "0.33.0", "0.33.0", "0.27.0", "0.10.1",
)  # fmt: skip
MS = 1_000_000


@dataclass(frozen=True)
class Case:
    """One replay: what arrives, and what it runs with."""

    rows: tuple[dict[str, Any], ...]
    config: EngineConfig
    version: str
    step_time: StepTime
    mode: ArrivalMode
    rate: float = 1.0
    sample_at: tuple[int, ...] = ()

    @property
    def rules(self) -> Rules:
        return rules_for(self.version, "v1")

    @property
    def frame(self) -> pl.DataFrame:
        frame = pl.DataFrame(
            list(self.rows),
            schema={
                "request_id": pl.String, "arrival_ns": pl.Int64, "parent_request_id": pl.String, "think_ns": pl.Int64,
                "num_prompt_tokens": pl.Int64, "num_output_tokens": pl.Int64, "max_tokens": pl.Int64,
                "priority": pl.Int32, "block_hashes": pl.List(pl.UInt64), "finished_ns": pl.Int64,
                "finish_reason": pl.String,
            },
        )  # fmt: skip
        return conform(REQUESTS, frame, "test")


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    block_size = draw(st.sampled_from((1, 2, 4, 4, 16)))
    max_model_len = draw(st.integers(8, 96))
    chunked = draw(st.sampled_from((True, True, False)))
    budget = draw(st.integers(1, 80)) if chunked else draw(st.integers(max_model_len, 128))
    by_priority = draw(st.sampled_from(("fcfs", "fcfs", "priority")))
    return EngineConfig(
        max_num_seqs=draw(st.integers(1, 12)),
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        num_gpu_blocks=-(-max_model_len // block_size) + draw(st.integers(1, 12)),
        block_size=block_size,
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 0, 3, 16))),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        scheduling_policy=by_priority,
        async_scheduling=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.2))),
        prefill_schedule_interval=draw(st.sampled_from((1, 1, 3))),
        max_num_active_seqs=draw(st.none() | st.integers(1, 6)),
    )


@st.composite
def requests(draw: st.DrawFn, number: int, config: EngineConfig, span_ms: int, *, turns: bool) -> dict[str, Any]:
    long = st.integers(1, config.max_model_len + 2)
    short = st.integers(1, max(config.max_model_len // 3, 1))
    prompt = draw(short | long)
    output = draw(st.integers(0, config.max_model_len) | st.integers(1, 6))
    row: dict[str, Any] = {
        "request_id": f"{draw(st.sampled_from('abc'))}{number}",
        "arrival_ns": draw(st.integers(0, span_ms)) * MS,
        "num_prompt_tokens": prompt,
        "num_output_tokens": output,
        "max_tokens": draw(st.none() | st.integers(1, config.max_model_len)),
        "priority": draw(st.sampled_from((None, 0, 1, 2))),
        "finish_reason": draw(st.sampled_from((None, None, "stop", "length"))),
    }
    if draw(st.sampled_from((True, True, False))):
        stem = draw(st.integers(0, 2)) * 1000
        own = draw(st.integers(0, 6))
        named = prompt // config.block_size + draw(st.sampled_from((0, 0, 0, 2)))
        row["block_hashes"] = [stem + i if i < own else stem + number * 17 + 100 + i for i in range(named)]
    if draw(st.integers(0, 7)) == 0:
        row |= {"finish_reason": "abort", "finished_ns": row["arrival_ns"] + draw(st.integers(0, 200)) * MS}
    elif draw(st.integers(0, 9)) == 0:
        row["finish_reason"] = "rejected"
    if turns and draw(st.booleans()):
        row["parent_request_id"] = f"{draw(st.sampled_from('abc'))}{draw(st.integers(0, number))}"
        row["think_ns"] = draw(st.none() | st.integers(0, 30).map(lambda ms: ms * MS))
        if draw(st.booleans()):
            row["arrival_ns"] = None
    return row


@st.composite
def cases(draw: st.DrawFn) -> Case:
    version = draw(st.sampled_from(VERSIONS))
    config = draw(configs())
    turns = draw(st.sampled_from((False, False, True)))
    span_ms = draw(st.sampled_from((0, 20, 300)))
    count = draw(st.integers(1, 24))
    rows = tuple(draw(requests(number, config, span_ms, turns=turns)) for number in range(count))
    parameters = AffineParameters(*(draw(st.sampled_from(values)) for values in (
        (10e6, 1e6, 333_333.3), (0.0, 40e3, 123.456), (25e3, 0.0), (0.0, 7.77))))  # fmt: skip
    return Case(
        rows,
        config,
        version,
        StepTime(parameters, draw(st.sampled_from((0, 4 * MS))), "given", "test"),
        ArrivalMode(draw(st.booleans()) if turns else False, draw(st.none() | st.integers(1, 8))),
        draw(st.sampled_from((1.0, 1.0, 1.5))),
        tuple(sorted(draw(st.sets(st.integers(0, 400), max_size=4)))) and
        tuple(at * MS for at in sorted(draw(st.sets(st.integers(0, 400), max_size=6)))),
    )  # fmt: skip


def by_model(case: Case) -> tuple[dict[str, pl.DataFrame], Counter[str], Counter[str], list[str], dict[str, int]]:
    """What the model records."""
    frame = case.frame
    workload = workload_of(compressed(frame, case.rate), case.config, None)
    simulation = Simulation(
        case.config, case.rules, case.step_time, Clients(workload.arrivals, case.mode), sample_at=case.sample_at
    )
    notes = list(workload.notes)
    try:
        simulation.run()
    except EngineCrashError as crash:
        notes.append(f"the replay ends where the recorded version dies: {crash}")
    left_out = workload.left_out + simulation.clients.left_out
    if simulation.clients.num_never_sent:
        left_out[why_never_sent(notes != workload.notes)] += simulation.clients.num_never_sent
    return simulation.recording.tables(frame), left_out, simulation.refused, notes, _prefix_cache(simulation)
