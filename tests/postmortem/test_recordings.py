"""Storms of recorded engines lie where their own preemption counters grow (needs the shared recordings)."""

from pathlib import Path

import pytest

import tracekit
from tracekit.postmortem import postmortem
from tracekit.run import Run
from tracekit.step_time.parameters import step_time_from_dict

RUNS = Path(__file__).parents[3] / "shared" / "data" / "engine-runs"
COLUMNS = (
    "request_id=id", "arrival=t_send:s", "first_token=t_first:s", "last_token=t_end:s", "max_tokens=max_tokens",
    "num_prompt_tokens=usage.prompt_tokens", "num_output_tokens=usage.completion_tokens",
)  # fmt: skip
STORM_COLUMNS = (*COLUMNS, "session_id=session", "block_hashes=hash_ids:16")
DEVICE = {"t0_ms": 20, "per_token_us": 40, "per_seq_us": 25, "frontend_ms": 4}
pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="needs ../shared/data/engine-runs")


def observed(case: str, columns: tuple[str, ...]) -> Run:
    folder = RUNS / case
    return tracekit.ingest(folder / "server.log", folder / "metrics", folder / "client.jsonl", columns=columns)


@pytest.mark.parametrize(
    ("case", "columns"),
    [("0.33.0/storm_a", STORM_COLUMNS), ("0.11.2/storm_a", STORM_COLUMNS), ("0.33.0/storm_a_big_pool", STORM_COLUMNS)],
)
def test_storms_lie_where_the_counter_grows(case: str, columns: tuple[str, ...]) -> None:
    run = observed(case, columns)
    found = postmortem(run, step_time=step_time_from_dict(DEVICE, "given", "test"), remedies=False)
    storm = next(finding for finding in found.findings if finding.kind == "preemption_storm")
    counter = run.engine_stats.drop_nulls("num_preemptions").sort("time_ns")
    recorded = counter["num_preemptions"].max()
    # A straggler long after the rest is no part of the storm.
    grew = counter.filter(counter["num_preemptions"].is_between(1, 0.99 * recorded))["time_ns"] / 1e9
    assert storm.start_s == pytest.approx(grew.min(), abs=20)
    assert storm.end_s == pytest.approx(grew.max(), abs=20)
    assert storm.evidence["num_preemptions"] == pytest.approx(recorded, rel=0.05)


def test_twice_the_blocks_leave_what_the_engine_with_twice_the_blocks_recorded() -> None:
    run = observed("0.33.0/storm_a_big_pool", STORM_COLUMNS)
    replayed = tracekit.replay(run, step_time=DEVICE)
    assert replayed.config["num_gpu_blocks"].value == 2048
    assert replayed.preemptions.height == pytest.approx(171, rel=0.05)


@pytest.mark.parametrize(
    "case", ["0.33.0/default", "0.11.2/default", "0.8.5.post1/default", "0.6.6.post1/default", "0.6.6.post1/swap"]
)
def test_the_default_recordings_are_told_as_a_user_has_them(case: str) -> None:
    run = observed(case, COLUMNS)
    # Nobody says how fast the device is: the postmortem fits it on the run's own latencies.
    found = postmortem(run, remedies=False)
    (storm,) = (finding for finding in found.findings if finding.kind == "preemption_storm")
    counter = run.engine_stats.drop_nulls("num_preemptions").sort("time_ns")
    recorded = counter["num_preemptions"].max()
    # The counter is read every five seconds.
    grew = counter.filter(counter["num_preemptions"].diff() > 0)["time_ns"] / 1e9
    assert storm.start_s == pytest.approx(grew.min(), abs=7)
    assert storm.end_s == pytest.approx(grew.max(), abs=10)
    assert storm.evidence["num_preemptions"] == pytest.approx(recorded, rel=0.1)
