"""A replay that is not what the engine's own counter says is doubted, first thing."""

import json

import pytest

from tests.test_cli import call
from tests.test_storm import SAMPLE
from tracekit.postmortem import postmortem
from tracekit.report.postmortem import postmortem_markdown, verdict
from tracekit.run import load
from tracekit.step_time.parameters import step_time_from_dict

RUN = SAMPLE / "run"
FAST = ("--set", "t0_ms=5", "--set", "per_token_us=20", "--set", "per_seq_us=5")


def test_another_device_is_doubted_before_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("postmortem", RUN, "--no-remedies", *FAST) == 0
    printed = capsys.readouterr().out
    assert "DOUBTFUL: the engine counted 335 preemptions, the replay has" in printed
    assert printed.index("DOUBTFUL") < printed.index("1. ")
    assert call("postmortem", RUN, "--no-remedies", "--json", *FAST) == 0
    assert "the engine counted 335" in json.loads(capsys.readouterr().out)["doubt"]


def test_the_right_device_is_not_doubted() -> None:
    found = postmortem(load(RUN), remedies=False)
    assert found.doubt is None
    assert "Doubtful" not in postmortem_markdown(found)


def test_nothing_found_in_a_doubtful_replay_is_not_called_healthy() -> None:
    found = postmortem(load(RUN), step_time=step_time_from_dict({"t0_ms": 0.1}, "given", "test"), remedies=False)
    assert found.doubt is not None
    assert not found.is_healthy
    found.findings, found.remedies = [], []
    assert verdict(found).startswith("cannot tell")
    assert "**Doubtful**" in postmortem_markdown(found)
