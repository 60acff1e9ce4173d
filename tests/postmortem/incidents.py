"""Planted incidents, one a kind, made by replaying synthetic requests, and a healthy run."""

import random
from typing import Any

import polars as pl

from tests.replay.traces import MS, step_time, trace
from tracekit.replay.clients import ArrivalMode
from tracekit.replay.replay import replay
from tracekit.run import Run
from tracekit.schema.parquet import conform
from tracekit.schema.tables import ENGINE_STATS

SECOND = 1000 * MS


def requests(count: int, *, every_ms: float, prompt: int, output: int, **more: Any) -> list[dict[str, Any]]:
    rng = random.Random(7)  # noqa: S311 - no secret
    return [
        {
            "arrival_ns": int(number * every_ms * MS),
            "num_prompt_tokens": max(1, int(prompt * rng.uniform(0.8, 1.2))),
            "num_output_tokens": max(1, int(output * rng.uniform(0.8, 1.2))),
            **more,
        }
        for number in range(count)
    ]


def simulated(rows: list[dict[str, Any]], mode: ArrivalMode | None = None, **config: Any) -> Run:
    found = trace(rows, **{"max_model_len": 20_000, "max_num_batched_tokens": 8192, **config})
    return replay(found, step_time=step_time(10, 20, 20), mode=mode, steps="all")


def healthy() -> Run:
    return simulated(requests(200, every_ms=200, prompt=200, output=50), num_gpu_blocks=4000)


def preemption_storm() -> Run:
    quiet = requests(60, every_ms=500, prompt=100, output=50)
    burst = [
        {**row, "arrival_ns": 10 * SECOND + row["arrival_ns"]}
        for row in requests(80, every_ms=20, prompt=100, output=400)
    ]
    return simulated(quiet + burst, num_gpu_blocks=600, max_model_len=4096, scheduler_reserve_full_isl=False)


def queueing_with_free_kv() -> Run:
    return simulated(requests(120, every_ms=100, prompt=100, output=100), num_gpu_blocks=8000, max_num_seqs=4)


def head_of_line_blocking() -> Run:
    long_outputs = requests(8, every_ms=1, prompt=400, output=900)
    huge = {"arrival_ns": 5 * SECOND, "num_prompt_tokens": 9000, "num_output_tokens": 20}
    small = [
        {**row, "arrival_ns": row["arrival_ns"] + int(5.1 * SECOND)}
        for row in requests(60, every_ms=30, prompt=60, output=10)
    ]
    return simulated([*long_outputs, huge, *small], num_gpu_blocks=900, max_model_len=12_000)


def prefill_stall() -> Run:
    decodes = requests(20, every_ms=10, prompt=50, output=3000)
    prefills = [
        {**row, "arrival_ns": row["arrival_ns"] + SECOND} for row in requests(60, every_ms=400, prompt=7000, output=3)
    ]
    return simulated(decodes + prefills, num_gpu_blocks=20_000)


def prefix_cache_collapse() -> Run:
    stems = [[number * 1000 + block for block in range(50)] for number in range(8)]
    rows = []
    for number in range(400):
        shared = {
            "arrival_ns": number * 300 * MS, "num_prompt_tokens": 810, "num_output_tokens": 20,
            "block_hashes": stems[number % 8],
        }  # fmt: skip
        rows.append(shared)
        if number >= 200:
            own = [10**9 + number * 1000 + block for block in range(300)]
            rows.append(
                {
                    "arrival_ns": number * 300 * MS + MS,
                    "num_prompt_tokens": 4810,
                    "num_output_tokens": 5,
                    "block_hashes": own,
                }
            )
    return simulated(rows, num_gpu_blocks=600, max_model_len=8000)


def inadmissible_request() -> Run:
    rows = requests(50, every_ms=200, prompt=200, output=50)
    rows[10] |= {"num_prompt_tokens": 19_000, "num_output_tokens": 100}
    return simulated(rows, num_gpu_blocks=1251, max_model_len=18_000)


def client_cap() -> Run:
    rows = requests(300, every_ms=1, prompt=100, output=60)
    return simulated(rows, ArrivalMode(max_concurrency=8), num_gpu_blocks=8000)


def log_silence() -> Run:
    run = simulated(requests(300, every_ms=1000, prompt=200, output=1000), num_gpu_blocks=8000)
    times = [10 * SECOND * n for n in range(30) if not 9 < n < 18]
    lines = pl.DataFrame({
        "time_ns": times, "source": ["log"] * len(times), "num_running_reqs": [10] * len(times),
        "num_waiting_reqs": [0] * len(times),
    })  # fmt: skip
    tables = {"requests": run.requests, "engine_stats": conform(ENGINE_STATS, lines, "test")}
    return Run("observed", tables, run.config, None, {})


INCIDENTS = {
    "preemption_storm": preemption_storm, "queueing_with_free_kv": queueing_with_free_kv,
    "head_of_line_blocking": head_of_line_blocking, "prefill_stall": prefill_stall,
    "prefix_cache_collapse": prefix_cache_collapse, "inadmissible_request": inadmissible_request,
    "client_cap": client_cap, "log_silence": log_silence,
}  # fmt: skip
