"""A span of a run: what is in it, what is not, and histograms that count only what happened within."""

import pytest

from tests.sql.runs import MS, Rows, request, run, sample
from tracekit.compare.metrics import compare
from tracekit.errors import ConfigError
from tracekit.run import Run
from tracekit.window import IN_FLIGHT, histograms_between, windowed

EDGES = ((0.0, 100.0 * MS), (100.0 * MS, None))


def scrapes(*readings: tuple[float, int, int], engine: int = 0) -> Rows:
    """Readings of one cumulative histogram: (second, observations below 100 ms, at or above)."""
    return [
        {"metric": "ttft_ns", "engine": engine, "time_ns": round(at * 1e9), "bucket_low": low, "bucket_high": high, "count": n}
        for at, *counts in readings
        for (low, high), n in zip(EDGES, counts, strict=True)
    ]  # fmt: skip


def scraped(*readings: tuple[float, int, int]) -> Run:
    return run(
        requests=[request(str(n), arrival=1000 * n, first=1000 * n + 10, last=1000 * n + 20) for n in range(40)],
        engine_stats=[sample(0, 1), sample(40_000, 1)],
        distributions=scrapes(*readings),
    )


@pytest.mark.parametrize(
    ("low", "high", "counts"),
    [
        (None, None, [1, 0, 5, 2, 9, 9]),
        (None, 25, [5, 2]),
        (10, None, [8, 9]),
        (10, 25, [4, 2]),
        (22, None, [4, 7]),
        (5, 25, []),
        (31, None, []),
    ],
)
def test_a_cumulative_histogram_is_cut_between_its_readings(
    low: float | None, high: float | None, counts: list[int]
) -> None:
    frame = scraped((10, 1, 0), (20, 5, 2), (30, 9, 9)).table("distributions")
    low_ns, high_ns = (None if at is None else round(at * 1e9) for at in (low, high))
    assert histograms_between(frame, low_ns, high_ns).sort("time_ns")["count"].to_list() == counts


def test_counters_that_started_again_cannot_be_cut() -> None:
    frame = scraped((10, 5, 5), (20, 1, 7)).table("distributions")
    assert not histograms_between(frame, 10_000_000_000, None).height


def test_a_histogram_of_the_whole_run_is_not_that_of_a_part() -> None:
    whole = run(distributions=[{"metric": "ttft_ns", "bucket_low": 0.0, "bucket_high": 1.0, "count": 3}])
    assert not histograms_between(whole.table("distributions"), 0, None).height


def test_engines_are_cut_each_by_its_own_readings() -> None:
    rows = scrapes((10, 1, 0), (20, 5, 2)) + scrapes((12, 3, 3), (20, 4, 3), engine=1)
    frame = run(distributions=rows).table("distributions")
    assert histograms_between(frame, 12_000_000_000, None).sort("engine", "bucket_low")["count"].to_list() == [
        4,
        2,
        1,
        0,
    ]


def test_skip_first_compares_a_part_with_a_part() -> None:
    before, after = (
        run(
            requests=[request(str(n), arrival=1000 * n) for n in range(41)],
            distributions=scrapes((10, 0, 100), (20, 0, 100), (40, *later)),
        )
        for later in ((100, 100), (100, 200))
    )
    found = compare(before, after, skip_first=0.5)
    (row,) = [row for row in found.rows if (row.metric, row.stat) == ("ttft_ms", "mean")]
    # The first half is above 100 ms without an upper edge (counts as 100); the second half is in the middle of 0..100.
    assert (row.left, row.right) == (pytest.approx(50), pytest.approx(75))


def test_a_span_in_which_nothing_happened_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"nothing happened in that span of time; the run ends at 40\.0 s"):
        windowed(scraped((10, 1, 0)), since="2h")


def test_requests_before_the_span_are_left_out() -> None:
    cut = windowed(scraped((10, 1, 0)), since="20s", until="30s")
    assert cut.requests["request_id"].to_list() == [str(n) for n in range(20, 30)]


def test_what_a_part_inherits_is_counted() -> None:
    whole = run(
        requests=[
            request("before", arrival=0, first=10, last=900),
            request("over", arrival=0, first=10, last=1500),
            request("waiting", arrival=900, first=1900, last=2500),
            request("after", arrival=1000, first=1900, last=2500),
        ]
    )
    assert windowed(whole, since="1s").info[IN_FLIGHT] == 2
    assert IN_FLIGHT not in windowed(whole, until="1s").info
