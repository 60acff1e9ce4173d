"""The recorded decisions of real vLLM schedulers (``golden``, ``golden-beyond``) against the model.

Default: the versions people run most. ``-m slow`` is the full set: every version, every case (about two minutes).
"""

from pathlib import Path

import pytest

from tracekit.conform import ConformReport, conform

HERE = Path(__file__).parent
SETS = (HERE / "golden", HERE / "golden-beyond")


def assert_agrees(report: ConformReport) -> None:
    failed = [f"{r.case} {r.labels[0]}: {r.difference}" for r in report.results if not r.agrees]
    assert not failed, f"{report.verdict}\n" + "\n".join(failed)[:4000]


@pytest.mark.parametrize("version", ["0.33.0", "0.11.2", "0.8.5", "0.6.6"])
def test_decisions_equal_the_recorded_ones(version: str) -> None:
    report = conform(SETS, version, jobs=2)
    assert report.results
    assert_agrees(report)


@pytest.mark.parametrize("version", ["0.33.0", "0.20.2", "0.11.2", "0.8.5"])
def test_the_kernel_decides_as_recorded(version: str) -> None:
    report = conform(SETS, version, decider="kernel")
    assert report.results
    assert_agrees(report)


@pytest.mark.slow
def test_the_kernel_agrees_with_all_recorded_v1_versions() -> None:
    report = conform(SETS, decider="kernel", jobs=2)
    assert len({result.case for result in report.results}) == 70
    assert_agrees(report)


@pytest.mark.slow
def test_all_recorded_versions_agree() -> None:
    report = conform(SETS, jobs=2)
    assert len({result.case for result in report.results}) == 91
    assert_agrees(report)
