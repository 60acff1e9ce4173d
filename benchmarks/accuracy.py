"""How well a calibrated, and an uncalibrated, step time reproduces recorded runs: ``python -m benchmarks.accuracy [DATA]``.

DATA: the folder with ``engine-runs/`` and ``traces/`` (default ``../shared/data``). The engine runs are real vLLM with a
stand-in device whose step time is known, so a fit is held against the device itself; the GPU trace is held against
what it measured. Exits 1 where a figure misses its goal.
"""

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import polars as pl

import tracekit
from tracekit.fit.fit import METRICS, Errors, Fit, errors_between
from tracekit.run import Run
from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.duration import of_reqs, of_tokens

COLUMNS = (
    "request_id=id", "arrival=t_send", "first_token=t_first", "last_token=t_end", "num_prompt_tokens=usage.prompt_tokens",
    "num_output_tokens=usage.completion_tokens", "max_tokens=max_tokens",
)  # fmt: skip
HASHES = ("block_hashes=hash_ids:16", "session_id=session")
GPU_COLUMNS = (
    "arrival=queued_ts:s", "queued=queued_ts:s", "scheduled=scheduled_ts:s", "first_token=first_token_ts:s",
    "last_token=last_token_ts:s", "num_prompt_tokens=input_toks", "num_output_tokens=output_toks",
)  # fmt: skip
GPU_SETTINGS = {
    "vllm_version": "0.19.0", "model": "meta-llama/Llama-3.1-8B", "gpu": "RTX PRO 6000", "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
}  # fmt: skip
PYTHON_MS = {"0.11.2": 0.7}
"""What a synchronous engine adds to each step of the device."""

FRONTEND = "the frontend is no constant there, see docs/step-time.md"


@dataclass(frozen=True)
class Line:
    """One figure of the table: the worst error of its kind, the goal, and why it misses where that is known."""

    case: str
    figure: str
    worst: float
    goal: float
    why: str = ""


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit code."""
    data = Path(arguments[0]) if arguments else Path(__file__).parents[1] / ".." / "shared" / "data"
    if not (data / "engine-runs").is_dir():
        print(f"{data}: no engine-runs/ there; give the folder of the recordings")
        return 2
    missed = 0
    print(f"{'case':60}{'figure':26}{'worst':>8}{'goal':>7}")
    for line in lines(data):
        is_missed = line.worst > line.goal
        missed += is_missed
        verdict = "  MISSED" + f": {line.why}" * bool(line.why) if is_missed else ""
        print(f"{line.case:60}{line.figure:26}{line.worst:8.2%}{line.goal:7.0%}{verdict}")
    return int(missed > 0)


def lines(data: Path) -> Iterator[Line]:
    """Every figure, one after another."""
    for version in ("0.33.0", "0.11.2"):
        folder = data / "engine-runs" / version / "storm_a"
        run = ingest(folder, (*COLUMNS, *HASHES))
        case = f"vLLM {version} storm_a, client latencies"
        yield steps_line(f"{case}", tracekit.fit(run), folder, 0.03)
        first = tracekit.fit(run, first=0.25)
        yield steps_line(f"{case}, first 25 %", first, folder, 0.03)
        assert first.held_out is not None
        yield from error_lines(f"{case}, first 25 %, rest", first.held_out, 0.03)
    folder = data / "engine-runs" / "0.33.0"
    fitted = tracekit.fit(ingest(folder / "storm_a", (*COLUMNS, *HASHES)))
    other = ingest(folder / "storm_c", (*COLUMNS, *HASHES))
    yield from error_lines("vLLM 0.33.0 storm_a, predicts storm_c", replayed(other, fitted), 0.03)
    folder = folder / "iter_details"
    run = ingest(folder, COLUMNS)
    found = tracekit.fit(run)
    yield steps_line("vLLM 0.33.0 iter_details, iteration lines", found, folder, 0.02)
    other = ingest(folder.parent / "steady_a", (*COLUMNS, *HASHES))
    yield from error_lines("vLLM 0.33.0 iter_details, predicts steady_a", replayed(other, found), 0.03, why=FRONTEND)
    first = tracekit.fit(run, first=0.5)
    yield steps_line("vLLM 0.33.0 iter_details, first 50 %", first, folder, 0.02)
    assert first.held_out is not None
    yield from error_lines("vLLM 0.33.0 iter_details, first 50 %, rest", first.held_out, 0.03, why=FRONTEND)
    yield from gpu_lines(data / "traces" / "llmservingsim-rtxpro6000-llama8b")


def gpu_lines(folder: Path) -> Iterator[Line]:
    """The run of a real GPU: calibrated on its first quarter, and by the catalogue alone."""
    run = tracekit.ingest(folder / "requests.jsonl", columns=GPU_COLUMNS, settings=GPU_SETTINGS)
    found = tracekit.fit(run, first=0.25)
    assert found.held_out is not None
    yield from error_lines("RTX PRO 6000 Llama-8B, first 25 %, rest", found.held_out, 0.03)
    yield from error_lines("RTX PRO 6000 Llama-8B, catalogue only", replayed(run), 0.15, 0.15)
    if find_spec("aiconfigurator_core") is not None:
        tables = errors_between(run, tracekit.replay(run, step_time="aiconfigurator"))
        yield from error_lines("RTX PRO 6000 Llama-8B, aiconfigurator's tables", tables, 0.15, 0.15)


def ingest(folder: Path, columns: Sequence[str]) -> Run:
    """An engine run as a user has it: log, scrapes, the client's table."""
    return tracekit.ingest(folder / "server.log", folder / "metrics", folder / "client.jsonl", columns=columns)


def replayed(run: Run, fitted: Fit | None = None) -> Errors:
    """The errors of a replay of a run, with a fitted step time or with the catalogue's."""
    return errors_between(run, tracekit.replay(run, step_time=fitted.step_time if fitted else None))


def steps_line(case: str, fitted: Fit, folder: Path, goal: float) -> Line:
    """The median error of the fitted duration over the device's own steps."""
    with gzip.open(folder / "steps_trace.jsonl.gz", "rt") as file:
        steps = pl.DataFrame([{key: row[key] for key in ("tokens", "n", "dur")} for row in map(json.loads, file)])
    python = PYTHON_MS.get(folder.parent.name, 0.0)
    parameters = fitted.step_time.parameters
    assert isinstance(parameters, AffineParameters)
    errors = [
        abs((of_tokens(parameters, tokens) + of_reqs(parameters, count)) / 1e6 / (1e3 * duration + python) - 1)
        for tokens, count, duration in steps.iter_rows()
    ]
    return Line(case, "step time, median", median(errors), goal)


def error_lines(case: str, errors: Errors, goal: float, ttft_goal: float = 0.05, why: str = "") -> Iterator[Line]:
    """The worst of mean, p50, p90, p99, by metric; ``why``: what TTFT's misses come from."""
    for metric in METRICS:
        known = [abs(error) for (name, _), error in errors.errors.items() if name == metric and error is not None]
        is_ttft = metric == "ttft_ms"
        yield Line(case, f"{metric} mean..p99", max(known), ttft_goal if is_ttft else goal, why if is_ttft else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
