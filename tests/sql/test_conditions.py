"""Objectives, conditions that fail a comparison, and the bands of percentiles."""

import math

import numpy as np
import pytest

from tests.sql.runs import request, run
from tracekit.compare.bands import band
from tracekit.compare.conditions import judge, parse_condition, parse_objectives
from tracekit.compare.metrics import compare
from tracekit.errors import ConfigError

# E2E 1 s, TTFT 100 n ms, TPOT (1000 - 100 n) ms
SERVED = [request(str(n), arrival=1000 * n, first=1100 * n, last=1000 * n + 1000, tokens=2) for n in range(5)]


def figures(rows: list[dict[str, object]], **objectives: float) -> tuple[float | None, float | None]:
    comparison = compare(run(requests=rows), run(requests=rows), objectives=objectives)
    return comparison.get("slo_share", "total").left, comparison.get("goodput_rps", "total").left


def test_goodput_counts_requests_that_meet_all_objectives() -> None:
    assert figures(SERVED, ttft_ms=300) == (0.8, 4 / 5)
    assert figures(SERVED, ttft_ms=300, tpot_ms=800) == (0.4, 2 / 5)
    assert figures(SERVED, e2e_ms=999) == (0, 0)


def test_one_output_token_has_no_tpot_to_miss() -> None:
    assert figures([request("a", first=7, last=7, tokens=1)], tpot_ms=1, ttft_ms=10)[0] == 1


def test_refused_and_failed_requests_meet_nothing_and_aborted_ones_do_not_count() -> None:
    others = [request(r, reason=r) for r in ("rejected", "error", "unfinished", "abort")]
    assert figures([*SERVED, *others], e2e_ms=1000)[0] == 5 / 8


def test_an_objective_on_an_unknown_latency_is_unknown() -> None:
    assert figures(SERVED, queue_ms=10) == (None, None)
    assert figures([], e2e_ms=10) == (None, None)
    notes = compare(run(requests=SERVED), run(requests=SERVED), objectives={"queue_ms": 1.0}).notes
    assert any("slo_share unknown" in note for note in notes)


def test_without_objectives_there_is_no_goodput() -> None:
    with pytest.raises(KeyError):
        compare(run(requests=SERVED), run(requests=SERVED)).get("goodput_rps", "total")


def test_objectives_are_read_as_people_write_them() -> None:
    assert parse_objectives("ttft_ms=500, tpot_ms=50") == {"ttft_ms": 500, "tpot_ms": 50}
    assert parse_objectives({"e2e_ms": 2}) == {"e2e_ms": 2}


@pytest.mark.parametrize(
    "text", ["", "ttft_ms", "ttft=5", "ttft_ms=", "ttft_ms=-1", "ttft_ms=nan", "e2e_ms=1,e2e_ms=2"]
)
def test_objectives_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        parse_objectives(text)


@pytest.mark.parametrize("text", ["", "ttft_ms", "ttft_ms.p99=1", "ttft_ms.p99>", "ttft_ms.p99>1%%", "p99 > x", ">5"])
def test_conditions_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--fail-if"):
        parse_condition(text)


# (condition, fails), where every TTFT is 4 ms on the left and 5 ms on the right
@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("ttft_ms.p99>+10%", True), ("ttft_ms.p99>30%", False), ("ttft_ms.p50 < -1%", False), ("ttft_ms.mean>4.9", True),
        ("ttft_ms.mean>5", False), ("num_requests>0", True), ("num_requests.total<1", False), ("queue_ms.p50>1", True),
        ("num_preemptions>+10%", True),
    ],
)  # fmt: skip
def test_condition(text: str, *, failed: bool) -> None:
    left, right = (
        run(
            requests=[request("a", first=f, last=9, tokens=2)], preemptions=[{"time_ns": 1, "request_id": "a"}][: f - 4]
        )
        for f in (4, 5)
    )
    assert [v.failed for v in judge(compare(left, right), [parse_condition(text)])] == [failed]


@pytest.mark.parametrize("text", ["ttft.p99>1", "ttft_ms.p98>1", "ttft_ms>1", "goodput_rps>1"])
def test_condition_on_what_is_not_there_is_refused(text: str) -> None:
    one = run(requests=SERVED)
    with pytest.raises(ConfigError, match="--fail-if"):
        judge(compare(one, one), [parse_condition(text)])


def test_a_band_holds_the_true_percentile_as_often_as_it_says() -> None:
    source = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        values = np.sort(source.exponential(size=300))
        found = band("ttft_ms", "p90", {"ttft_ms": values})
        assert found is not None
        held += found.low <= -math.log(0.1) <= found.high
    assert 180 <= held <= 200


def test_bands_are_the_same_every_time_and_null_where_they_say_nothing() -> None:
    values = {"ttft_ms": np.arange(100.0), "e2e_ms": np.arange(9.0)}
    assert band("ttft_ms", "p50", values) == band("ttft_ms", "p50", values)
    assert [band("ttft_ms", "mean", values), band("e2e_ms", "p50", values), band("itl_ms", "p50", values)] == [None] * 3


def test_rows_carry_the_bands_of_both_sides() -> None:
    left, right = (
        run(requests=[request(str(n), first=n * f, last=1000, tokens=2) for n in range(1, 101)]) for f in (1, 2)
    )
    row = compare(left, right).get("ttft_ms", "p50")
    assert row.left_band is not None
    assert row.right_band is not None
    assert row.left_band.low < 50.5 < row.left_band.high
    assert row.right_band == (2 * row.left_band.low, 2 * row.left_band.high)
