"""The Chrome trace of a run: valid JSON, every step, every phase, names from logs as data only."""

import json
from pathlib import Path

import pytest

import tracekit
from tests.postmortem.incidents import preemption_storm
from tests.test_cli import call
from tests.test_storm import SAMPLE
from tracekit.run import Run


@pytest.fixture(scope="module")
def storm() -> Run:
    return preemption_storm()


def events_of(path: Path) -> list[dict[str, object]]:
    found = json.loads(path.read_text())
    assert found["displayTimeUnit"] == "ms"
    return list(found["traceEvents"])


def test_every_step_and_phase_is_there(storm: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    count = tracekit.export_perfetto(storm, path)
    events = events_of(path)
    assert len(events) == count
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert len(steps) == storm.steps.height
    assert steps[0]["ts"] == storm.steps["start_ns"][0] / 1000
    assert sum(event["ph"] == "i" for event in events) == storm.preemptions.height
    phases = [event for event in events if event.get("cat") == "request"]
    assert {event["name"] for event in phases} == {"waiting", "prefill", "decode", "preempted"} - (
        set() if any(event["name"] == "waiting" for event in phases) else {"waiting"}
    )
    assert all(event["dur"] >= 0 for event in phases)  # type: ignore[operator]
    tracks = [event for event in events if event["name"] == "thread_name" and event["pid"] == 2]
    assert len(tracks) == storm.requests.height


def test_an_observed_run_shows_its_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    assert call("export", SAMPLE / "run", "--perfetto", path) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    assert any(event["ph"] == "C" for event in events_of(path))
    assert call("export", SAMPLE / "run", "--perfetto", path) == 2
    assert "exists" in capsys.readouterr().err
    assert call("export", SAMPLE / "run") == 2
    assert "--anonymous F or --perfetto F" in capsys.readouterr().err


def test_a_run_without_anything_to_show_is_an_error(tmp_path: Path) -> None:
    from tracekit.errors import InputError

    with pytest.raises(InputError, match="replay it first"):
        tracekit.export_perfetto(Run("observed", {}, {}, None, {}), tmp_path / "trace.json")
