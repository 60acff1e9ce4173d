"""Flags are named as the run's own version takes them."""

import polars as pl
import pytest

from tracekit.config import ConfigValue
from tracekit.report.answers import recording_flags
from tracekit.run import Run


def flags(version: str, **columns: list[object]) -> set[str]:
    requests = pl.DataFrame({"request_id": ["a"], **columns})
    run = Run("observed", {"requests": requests}, {"vllm_version": ConfigValue(version, "logged")})
    return {flag.split(" > ")[0] for flag, _ in recording_flags(run)}


SCRAPE = "curl -s localhost:8000/metrics"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.6.6.post1", {"(leave out) --disable-log-requests"}),
        ("0.10.1", {"--enable-log-requests"}),
        ("0.11.0", {"--enable-log-requests", "--enable-log-requests --enable-log-outputs"}),
        (
            "0.33.0",
            {
                "--enable-log-requests",
                "--enable-log-requests --enable-log-outputs",
                "VLLM_LOGGING_LEVEL=DEBUG --enable-log-requests",
                "--enable-logging-iteration-details",
            },
        ),
    ],
)
def test_flags_are_those_of_the_version(version: str, expected: set[str]) -> None:
    assert flags(version) == expected | {SCRAPE}


def test_what_is_recorded_already_is_not_proposed() -> None:
    assert not any("outputs" in flag for flag in flags("0.33.0", num_generated_tokens=[5]))
    assert not any("DEBUG" in flag for flag in flags("0.33.0", block_hashes=[[1]]))


def test_an_unknown_version_proposes_nothing() -> None:
    assert recording_flags(Run("observed", {})) == []
