# ruff: noqa: ANN401 - columns and numpy records
"""How fast the kernel is, beside the model and a plain numba loop in the same run: ``python -m benchmarks.speed``.

Equality comes first: random replays are compared with the model, and the figures count only if none differs. The plain
loop is the kernel with lockstep off: every decode is visited at every step. ``--quick`` runs smaller cases.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracekit.config import EngineConfig
from tracekit.model.rules import rules_for
from tracekit.replay.clients import ArrivalMode, Clients
from tracekit.replay.compiled import run_kernel
from tracekit.replay.simulate import Simulation
from tracekit.replay.workload import workload_of
from tracekit.schema.parquet import conform
from tracekit.schema.tables import REQUESTS
from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.parameters import StepTime

RULES = rules_for("0.33.0")
STEP_TIME = StepTime(AffineParameters(10e6, 40e3, 25e3, 0.0), 0, "given", "benchmark")
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Workload:
    """Requests and an engine; ``unit`` is what the figure counts."""

    name: str
    frame: pl.DataFrame
    config: EngineConfig
    unit: str
    wanted: float
    model_share: float = 1.0
    """Share of the requests that the model replays for its figure."""


def frame_of(arrival_ns: Any, prompt: Any, output: Any, **more: Any) -> pl.DataFrame:
    """A requests table of numpy columns."""
    count = len(arrival_ns)
    columns = {
        "request_id": pl.Series(np.arange(count)).cast(pl.String).str.zfill(8),
        "arrival_ns": arrival_ns, "num_prompt_tokens": prompt, "num_output_tokens": output, **more,
    }  # fmt: skip
    return conform(REQUESTS, pl.DataFrame(columns), "benchmark")


def engine_of(num_running: int, **more: Any) -> EngineConfig:
    """An engine with room for so many running requests."""
    values: dict[str, Any] = {
        "max_num_seqs": num_running, "max_num_batched_tokens": max(8192, 16 * num_running), "max_model_len": 262_144,
        "num_gpu_blocks": num_running * 13_000 + 1, "enable_prefix_caching": False, "async_scheduling": True,
        "scheduler_reserve_full_isl": True, **more,
    }  # fmt: skip
    return EngineConfig(**values)


def decodes(num_running: int, num_tokens: int, wanted: float) -> Workload:
    """Everybody arrives at once and decodes for as long."""
    rng = np.random.default_rng(1)
    output = num_tokens + rng.integers(0, 64, num_running)
    frame = frame_of(np.zeros(num_running, np.int64), np.full(num_running, 16), output)
    share = min(1.0, 200_000 / (num_running * num_tokens))
    return Workload(
        f"decode-heavy, {num_running:,} running", frame, engine_of(num_running), "request-steps/s", wanted, share
    )


def storm(num_requests: int, *, caching: bool, wanted: float) -> Workload:
    """KV for about 20 to 150 running requests, hundreds waiting."""
    rng = np.random.default_rng(2)
    frame = frame_of(
        np.sort(rng.integers(0, num_requests * SECOND // 20, num_requests)),
        rng.integers(50, 1500, num_requests), rng.integers(200, 2000, num_requests),
    )  # fmt: skip
    config = engine_of(
        256, num_gpu_blocks=6001, max_num_batched_tokens=8192, enable_prefix_caching=caching,
        scheduler_reserve_full_isl=False,
    )  # fmt: skip
    name = f"preemption storm, caching {'on' if caching else 'off'}"
    return Workload(name, frame, config, "request-steps/s", wanted, min(1.0, 60 / num_requests))


def chat(num_requests: int, wanted: float) -> Workload:
    """1,000 in, 200 out, 10 requests/s on a 25 ms step."""
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(SECOND / 10, num_requests)).astype(np.int64)
    frame = frame_of(arrival, np.full(num_requests, 1000), np.full(num_requests, 200))
    config = engine_of(256, num_gpu_blocks=40_001, max_num_batched_tokens=8192)
    return Workload(
        "1,000 in / 200 out, 10 requests/s", frame, config, "requests/s", wanted, min(1.0, 400 / num_requests)
    )


def mooncake(num_requests: int, wanted: float) -> Workload:
    """958 blocks a prompt, half of them shared, prefix caching on."""
    rng = np.random.default_rng(4)
    stems = rng.integers(0, 2**63, (64, 958), dtype=np.uint64)
    shared = rng.integers(0, 959, num_requests)
    hashes = []
    for number in range(num_requests):
        own = rng.integers(0, 2**63, 958 - shared[number], dtype=np.uint64)
        hashes.append(np.concatenate([stems[number % 64][: shared[number]], own]))
    lists = pl.Series(np.concatenate(hashes)).reshape((num_requests, 958)).arr.to_list()
    arrival = np.cumsum(rng.exponential(SECOND / 4, num_requests)).astype(np.int64)
    frame = frame_of(arrival, np.full(num_requests, 958 * 16), np.full(num_requests, 180), block_hashes=lists)
    config = engine_of(256, num_gpu_blocks=120_001, enable_prefix_caching=True, max_num_batched_tokens=16_384)
    return Workload("Mooncake synthetic, caching on", frame, config, "requests/s", wanted, min(1.0, 60 / num_requests))


def memory_of(workload: Workload, *, lockstep: bool, steps: str = "none") -> Any:
    """The kernel's arrays, ready to run."""
    from tracekit.kernel.memory import memory_for
    from tracekit.replay.compiled_columns import columns_of

    columns = columns_of(workload.frame, workload.config, RULES, ArrivalMode(), None)
    return memory_for(
        columns.requests, columns.hashes, columns.num_open, columns.num_arrivals, workload.config, RULES, STEP_TIME,
        max_concurrency=None, sample_at=(), books_computed_prompts=True, steps=steps, lockstep=lockstep,
    )  # fmt: skip


def request_steps(memory: Any) -> int:
    """How many requests were scheduled, summed over the steps."""
    return int(memory.engine["request_steps"])


def time_kernel(workload: Workload, *, lockstep: bool, repeats: int, limit: int | None = None) -> tuple[float, Any]:
    """The best of some runs of the loop alone, as units a second."""
    best, memory = float("inf"), None
    part = workload if limit is None else Workload(**{**workload.__dict__, "frame": workload.frame.head(limit)})
    for _ in range(repeats):
        memory = memory_of(part, lockstep=lockstep)
        start = time.perf_counter()
        run_kernel(memory)
        best = min(best, time.perf_counter() - start)
    return units(part, memory) / best, memory


def units(workload: Workload, memory: Any) -> float:
    return workload.frame.height if workload.unit == "requests/s" else request_steps(memory)


def time_model(workload: Workload) -> float:
    """The model on the first part of the same requests."""
    count = max(1, round(workload.frame.height * workload.model_share))
    frame = workload.frame.head(count)
    if workload.model_share < 1 and "decode" in workload.name:
        frame = workload.frame.with_columns(num_output_tokens=pl.lit(max(2, round(200_000 / workload.frame.height))))
    simulation = Simulation(
        workload.config, RULES, STEP_TIME, Clients(workload_of(frame, workload.config, None).arrivals, ArrivalMode())
    )
    start = time.perf_counter()
    simulation.run()
    taken = time.perf_counter() - start
    if workload.unit == "requests/s":
        return frame.height / taken
    scheduled = simulation.recording.tables(frame)["steps"]["num_scheduled_reqs"].sum()
    return float(scheduled) / taken


def show(workload: Workload, figure: float, plain: float, model: float) -> bool:
    """One line of the table."""
    reached = figure >= workload.wanted
    print(
        f"{workload.name:36s} {figure:18,.0f} {workload.unit:15s} {workload.wanted:15,.0f} {'yes' if reached else 'NO':>4s}"
        f" {figure / plain:9.1f}x {figure / model:12,.0f}x", flush=True
    )  # fmt: skip
    return reached


def equality(count: int) -> int:
    """How many of so many random replays differ from the model."""
    from tests.kernel.random_cases import random_case
    from tests.kernel.test_equality import assert_equal_to_model

    different = 0
    for seed in range(count):
        try:
            assert_equal_to_model(random_case(seed), lockstep=True)
        except AssertionError:
            different += 1
    return different


def flatness() -> float:
    """The most expensive step over the cheapest, by number of running requests, decodes only.

    The difference of a long and a short run: what admissions and ends cost is in both.
    """
    costs = []
    for running in (64, 256, 1024, 4096):
        seconds, steps = [], []
        for num_tokens in (1_000, 180_000):
            workload = decodes(running, num_tokens, 0)
            rate, memory = time_kernel(workload, lockstep=True, repeats=5)
            seconds.append(request_steps(memory) / rate)
            steps.append(int(memory.engine["num_steps"]))
        costs.append((seconds[1] - seconds[0]) / (steps[1] - steps[0]) * 1e9)
    print(
        "cost per step, decode only: "
        + ", ".join(f"{r:,} running {c:,.0f} ns" for r, c in zip((64, 256, 1024, 4096), costs, strict=True))
    )
    return max(costs) / min(costs)


def day() -> float:
    """Seconds for a day of one busy GPU, the loop."""
    workload = chat(864_000, 0)
    _, memory = time_kernel(workload, lockstep=True, repeats=1)
    best = float("inf")
    for _ in range(2):
        memory = memory_of(workload, lockstep=True, steps="sample")
        start = time.perf_counter()
        run_kernel(memory)
        best = min(best, time.perf_counter() - start)
    hours = int(memory.engine["now"]) / SECOND / 3600
    print(
        f"a day of one busy GPU ({hours:.1f} h, {int(memory.engine['num_steps']):,} steps), the loop: {best:.3f} s (wanted: under 0.5)"
    )
    return best


_ALONE = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6)
"""


def whole_command(num_requests: int) -> tuple[float, float]:
    """Seconds and GB of ``tracekit replay`` as a process of its own: read, replay, write requests and default steps."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.parquet"
        chat(num_requests, 0).frame.select("arrival_ns", "num_prompt_tokens", "num_output_tokens").write_parquet(trace)
        command = [
            sys.executable, "-m", "tracekit", "replay", str(trace), "-o", str(Path(folder) / "run"), "--rules", "0.33.0",
            "--set", "num_gpu_blocks=40001", "--set", "max_num_seqs=256", "--set", "max_num_batched_tokens=8192",
            "--set", "max_model_len=4096", "--set", "enable_prefix_caching=false", "--quiet",
        ]  # fmt: skip
        # A process starts with the peak of the one that made it, so a small one stands between.
        done = subprocess.run([sys.executable, "-c", _ALONE, *command], check=True, capture_output=True, text=True)  # noqa: S603
    taken, memory = (float(word) for word in done.stdout.split())
    print(f"tracekit replay of {num_requests:,} requests, whole process: {taken:.2f} s, {memory:.2f} GB (wanted: 6, 2)")
    return taken, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--equal", type=int, default=40)
    options = parser.parse_args()
    quick = 10 if options.quick else 1
    different = equality(options.equal)
    print(f"random replays that differ from the model: {different} of {options.equal}")
    if different:
        return 1
    print(f"{'case':36s} {'kernel':>18s} {'':15s} {'wanted':>15s} {'':>4s} {'plain loop':>10s} {'model':>13s}")
    builders: list[Callable[[], Workload]] = [
        lambda: decodes(256, 100_000 // quick, 1e9),
        lambda: decodes(1024, 100_000 // quick, 5e9),
        lambda: storm(4000 // quick, caching=False, wanted=300e6),
        lambda: storm(4000 // quick, caching=True, wanted=50e6),
        lambda: chat(1_000_000 // quick, 3e6),
        lambda: mooncake(20_000 // quick, 20_000),
    ]
    reached = True
    for build in builders:
        workload = build()
        figure, _ = time_kernel(workload, lockstep=True, repeats=3)
        limit = None if workload.unit != "requests/s" else min(workload.frame.height, 50_000)
        plain, _ = time_kernel(workload, lockstep=False, repeats=1, limit=limit)
        reached &= show(workload, figure, plain, time_model(workload))
    seconds, memory = whole_command(1_000_000 // quick)
    reached &= seconds < 6 and memory < 2
    ratio = flatness()
    print(f"most over least: {ratio:.2f} (wanted: at most 2)")
    reached &= ratio <= 2 and day() < 0.5
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
