"""Every metric of a comparison, worked out by hand on small runs."""

import math
from typing import Any

import pytest

from tests.sql.runs import MS, Rows, request, run, sample, step
from tracekit.compare.conditions import judge, parse_condition
from tracekit.compare.metrics import compare
from tracekit.errors import InputError
from tracekit.report.text import comparison_text, verdicts_text
from tracekit.run import Run
from tracekit.window import windowed

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms")
SAMPLED = ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage")
METRICS = (
    {metric: ["mean", "p50", "p90", "p95", "p99"] for metric in LATENCIES}
    | {metric: ["mean", "max", "mae"] for metric in SAMPLED}
    | {"peak_running_reqs": ["max"], "num_requests": ["total"], "num_preemptions": ["total"], "output_tps": ["total"]}
)
EMPTY = run()
ONE = run(
    requests=[
        request(
            "a", arrival=10, scheduled=15, first=50, last=130, tokens=5, itl_ns=[20 * MS, 10 * MS, 25 * MS, 25 * MS]
        )
    ]
)
FIVE = run(requests=[request(str(n), first=100 * n, last=1000 * n, tokens=2) for n in range(1, 6)])
FAILED = run(
    requests=[
        request("a", first=5, last=9, tokens=3, reason="abort"),
        request("b", reason="error"),
        request("c", reason="rejected"),
    ]
)

# (run, metric, stat, expected left value)
ONE_SIDED = [
    ("no requests", EMPTY, "num_requests", "total", 0),
    ("no requests", EMPTY, "ttft_ms", "p50", None),
    ("no requests", EMPTY, "num_preemptions", "total", None),
    ("no requests", EMPTY, "output_tps", "total", None),
    ("no requests", EMPTY, "peak_running_reqs", "max", None),
    ("one request", ONE, "num_requests", "total", 1),
    ("one request", ONE, "ttft_ms", "p99", 40),
    ("one request", ONE, "tpot_ms", "mean", 20),
    ("one request", ONE, "e2e_ms", "p50", 120),
    ("one request", ONE, "queue_ms", "p90", 5),
    ("one request", ONE, "itl_ms", "mean", 20),
    ("one request", ONE, "itl_ms", "p50", 22.5),
    ("one request", ONE, "output_tps", "total", 5 / 0.120),
    ("one request", ONE, "peak_running_reqs", "max", 1),
    ("five requests", FIVE, "ttft_ms", "mean", 300),
    ("five requests", FIVE, "ttft_ms", "p50", 300),
    ("five requests", FIVE, "ttft_ms", "p90", 460),
    ("five requests", FIVE, "ttft_ms", "p95", 480),
    ("five requests", FIVE, "ttft_ms", "p99", 496),
    ("five requests", FIVE, "tpot_ms", "p50", 2700),
    ("five requests", FIVE, "queue_ms", "p50", None),
    ("five requests", FIVE, "peak_running_reqs", "max", None),
    ("output length 0", run(requests=[request("a", tokens=0)]), "ttft_ms", "p50", None),
    ("output length 1", run(requests=[request("a", first=7, last=7, tokens=1)]), "ttft_ms", "p50", 7),
    ("output length 1", run(requests=[request("a", first=7, last=7, tokens=1)]), "tpot_ms", "p50", None),
    ("output length 1", run(requests=[request("a", first=7, last=7, tokens=1)]), "e2e_ms", "p50", 7),
    ("all failed", FAILED, "num_requests", "total", 3),
    ("all failed", FAILED, "ttft_ms", "mean", None),
    ("all failed", FAILED, "e2e_ms", "mean", None),
    ("unknown end", run(requests=[request("a", first=7, last=9, tokens=2, reason=None)]), "e2e_ms", "p50", 9),
    ("a log without requests", run(engine_stats=[sample(0, 3)]), "num_requests", "total", None),
    (
        "a log without requests",
        run(engine_stats=[sample(0, 3, generation_tps=100.0), sample(10, 3, generation_tps=200.0), sample(20, 0)]),
        "output_tps", "total", 150,
    ),
    ("samples alone give no peak", run(engine_stats=[sample(0, 3)]), "peak_running_reqs", "max", None),
    ("no evictions", run(preemptions=[]), "num_preemptions", "total", 0),
    ("evictions", run(preemptions=[{"time_ns": 1, "request_id": "a"}] * 2), "num_preemptions", "total", 2),
    (
        "own counts",
        run(requests=[request("a", num_preemptions=2), request("b", num_preemptions=1)]),
        "num_preemptions", "total", 3,
    ),
    (
        "counter", run(engine_stats=[sample(t, source="metrics", num_preemptions=n) for t, n in ((0, 4), (5, 4), (9, 10))]),
        "num_preemptions", "total", 6,
    ),
    (
        "counter that resets",
        run(engine_stats=[sample(t, source="metrics", num_preemptions=n) for t, n in ((0, 4), (5, 9), (9, 2), (12, 3))]),
        "num_preemptions", "total", 8,
    ),
    ("one reading", run(engine_stats=[sample(0, num_preemptions=4)]), "num_preemptions", "total", None),
    (
        "counters of two engines",
        run(engine_stats=[sample(t, engine=e, num_preemptions=t * (e + 1)) for t in (0, 10) for e in (0, 1)]),
        "num_preemptions", "total", 30,
    ),
    ("steps", run(steps=[step(0, 0, 10, 2), step(1, 10, 10, 7), step(2, 20, 10, 3)]), "peak_running_reqs", "max", 7),
    (
        "engines peak together",
        run(steps=[step(0, 0, 10, 2, engine=0), step(1, 10, 10, 5, engine=0), step(0, 5, 20, 4, engine=1)]),
        "peak_running_reqs", "max", 9,
    ),
    (
        "histogram, interpolated",
        run(distributions=[
            {"metric": "itl_ns", "bucket_low": 0.0, "bucket_high": 10.0 * MS, "count": 50},
            {"metric": "itl_ns", "bucket_low": 10.0 * MS, "bucket_high": 20.0 * MS, "count": 50},
        ]),
        "itl_ms", "p90", 18,
    ),
    (
        "histogram, mean of the middles",
        run(distributions=[
            {"metric": "ttft_ns", "bucket_low": None, "bucket_high": 10.0 * MS, "count": 3},
            {"metric": "ttft_ns", "bucket_low": 10.0 * MS, "bucket_high": None, "count": 1},
        ]),
        "ttft_ms", "mean", (3 * 5 + 10) / 4,
    ),
    (
        "histogram, mean from the sums of the engines",
        run(distributions=[
            {"metric": "ttft_ns", "engine": 0, "bucket_low": None, "bucket_high": 10.0 * MS, "count": 3, "sum": 6.0 * MS},
            {"metric": "ttft_ns", "engine": 0, "bucket_low": 10.0 * MS, "bucket_high": None, "count": 0, "sum": 6.0 * MS},
            {"metric": "ttft_ns", "engine": 1, "bucket_low": None, "bucket_high": 10.0 * MS, "count": 1, "sum": 8.0 * MS},
        ]),
        "ttft_ms", "mean", 14 / 4,
    ),
    (
        "histogram, the sum of one engine unknown",
        run(distributions=[
            {"metric": "ttft_ns", "engine": 0, "bucket_low": None, "bucket_high": 10.0 * MS, "count": 3, "sum": 6.0 * MS},
            {"metric": "ttft_ns", "engine": 1, "bucket_low": None, "bucket_high": 10.0 * MS, "count": 1},
        ]),
        "ttft_ms", "mean", 5,
    ),
    (
        "the newest histogram of each engine",
        run(distributions=[
            {"metric": "e2e_ns", "engine": 0, "time_ns": 1, "bucket_low": 0.0, "bucket_high": 900.0 * MS, "count": 9},
            {"metric": "e2e_ns", "engine": 0, "time_ns": 2, "bucket_low": 0.0, "bucket_high": 10.0 * MS, "count": 1},
            {"metric": "e2e_ns", "engine": 1, "time_ns": 3, "bucket_low": 10.0 * MS, "bucket_high": 20.0 * MS, "count": 1},
        ]),
        "e2e_ms", "p50", 10,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("side", "metric", "stat", "expected"),
    [case[1:] for case in ONE_SIDED],
    ids=[f"{c[0]}: {c[2]}.{c[3]}" for c in ONE_SIDED],
)
def test_a_side_s_figure(side: Run, metric: str, stat: str, expected: Any) -> None:
    row = compare(side, EMPTY).get(metric, stat)
    assert row.left == (expected if expected is None else pytest.approx(expected))


STEPS = run(
    "simulated",
    steps=[
        step(0, 0, 100, 2, 1, kv_cache_usage=0.5),
        step(1, 100, 100, 3, 0, finished=3, kv_cache_usage=0.9),
        step(2, 500, 100, 1, 0, finished=1, kv_cache_usage=0.3),
    ],
)
# (samples of the observed side, metric, stat, left, right)
CONCURRENCY = [
    ("a decision holds", [sample(50, 2, 1), sample(150, 3)], "num_running_reqs", "mean", 2.5, 2.5),
    ("idle gap", [sample(50, 4), sample(300, 2), sample(550, 2)], "num_running_reqs", "mean", 8 / 3, 1),
    (
        "idle gap: absolute difference",
        [sample(50, 4), sample(300, 2), sample(550, 2)],
        "num_running_reqs",
        "mae",
        None,
        5 / 3 / 4,
    ),
    (
        "idle gap: nothing uses blocks",
        [sample(50, 4, kv_cache_usage=0.4), sample(300, 2, kv_cache_usage=0.2), sample(550, 2, kv_cache_usage=0.3)],
        "kv_cache_usage",
        "mean",
        0.3,
        0.8 / 3,
    ),
    (
        "idle ends are cut",
        [sample(-900, 0), sample(50, 4), sample(599, 1), sample(900, 0)],
        "num_running_reqs",
        "mean",
        2.5,
        1.5,
    ),
    ("beyond the common span", [sample(-900, 9), sample(50, 4), sample(900, 9)], "num_running_reqs", "max", 4, 2),
    ("waiting", [sample(50, 2, 3), sample(150, 3, 1)], "num_waiting_reqs", "max", 3, 1),
    ("engines add up", [sample(50, 1, engine=0), sample(50.2, 2, engine=1)], "num_running_reqs", "max", 3, 2),
    (
        "log and metrics are both samples",
        [sample(50, 2), sample(150, 4, source="metrics")],
        "num_running_reqs",
        "mean",
        3,
        2.5,
    ),
    ("unknown KV usage", [sample(50, 2), sample(150, 3)], "kv_cache_usage", "mean", None, None),
    ("nothing ran", [sample(50, 0)], "num_running_reqs", "mean", None, None),
]


@pytest.mark.parametrize(
    ("samples", "metric", "stat", "left", "right"), [c[1:] for c in CONCURRENCY], ids=[c[0] for c in CONCURRENCY]
)
def test_states_at_the_observed_instants(
    samples: Rows, metric: str, stat: str, left: float | None, right: float | None
) -> None:
    observed = run(engine_stats=samples)
    row = compare(observed, STEPS).get(metric, stat)
    assert [row.left, row.right] == [None if v is None else pytest.approx(v) for v in (left, right)]
    swapped = compare(STEPS, observed).get(metric, stat)
    mirrored = (row.left, row.right) if stat == "mae" else (row.right, row.left)
    assert (swapped.left, swapped.right) == mirrored


def test_a_finish_in_flight_at_the_last_decision_no_longer_runs() -> None:
    # Two steps in flight: the second was decided before the first one's output ended a request.
    steps = [
        step(0, 0, 100, 2, finished=1),
        step(1, 100, 100, 2, finished=1, scheduled_ns=1),
        step(2, 900, 10, 1, finished=1),
    ]
    observed = run(engine_stats=[sample(50, 2), sample(400, 2), sample(905, 1)])
    row = compare(observed, run("simulated", steps=steps)).get("num_running_reqs", "mean")
    assert (row.left, row.right) == (pytest.approx(5 / 3), pytest.approx(1))


def test_states_come_from_requests_without_steps() -> None:
    simulated = run("simulated", requests=[
        request("a", scheduled=0, first=10, last=100, tokens=2),
        request("b", arrival=0, scheduled=50, first=60, last=80, tokens=2),
    ])  # fmt: skip
    comparison = compare(run(engine_stats=[sample(20, 1, 1), sample(70, 2), sample(90, 1)]), simulated)
    assert comparison.get("num_running_reqs", "mean").error == pytest.approx(0)
    assert comparison.get("num_waiting_reqs", "max").right == 1
    assert comparison.get("peak_running_reqs", "max").right == 2


def test_a_coarse_histogram_is_compared_within_its_own_buckets() -> None:
    # 10 queue times of 1 s in a bucket of 0 to 2 s, against ten exact ones of 1 s: equal, though read as 1.8 s at p90.
    coarse = run(distributions=[{"metric": "queue_ns", "bucket_low": 0.0, "bucket_high": 2000.0 * MS, "count": 10}])
    exact = run(
        "simulated", requests=[request(str(n), scheduled=1000, first=1001, last=1001, tokens=1) for n in range(10)]
    )
    for comparison in (compare(coarse, exact), compare(exact, coarse)):
        row = comparison.get("queue_ms", "p90")
        assert (row.left, row.right, row.error) == (pytest.approx(1800), pytest.approx(1800), 0)
        assert any("queue_ms: both sides" in note for note in comparison.notes)


def test_a_mean_is_exact_where_the_histogram_has_its_sum() -> None:
    row = {"metric": "queue_ns", "bucket_low": 0.0, "bucket_high": 2000.0 * MS, "count": 10, "sum": 12_000.0 * MS}
    exact = run(
        "simulated", requests=[request(str(n), scheduled=1500, first=1501, last=1501, tokens=1) for n in range(10)]
    )
    mean = compare(run(distributions=[row]), exact).get("queue_ms", "mean")
    assert (mean.left, mean.right, mean.left_bounds, mean.right_bounds) == (1200, 1500, None, None)
    without = compare(run(distributions=[{**row, "sum": None}]), exact).get("queue_ms", "mean")
    assert (without.left, without.right, without.left_bounds) == (1000, 1000, (0, 2000))


def test_what_a_part_of_a_run_lacks_is_said() -> None:
    rows = [request("a", first=90, last=90, tokens=1), request("b", arrival=9000, first=9100, last=9100, tokens=1)]
    scraped = run(
        requests=rows,
        distributions=[
            {"metric": name, "bucket_low": 0.0, "bucket_high": 2000.0 * MS, "count": 2} for name in ("itl_ns", "e2e_ns")
        ],
    )
    for comparison in (compare(scraped, scraped, skip_first=0.5), compare(windowed(scraped, last="5s"), STEPS)):
        # The requests still tell e2e_ms.
        assert comparison.warnings == [
            f"{scraped.name}: itl_ms unknown: a histogram of the whole run cannot be cut to a part of it"
        ]
    assert compare(scraped, scraped).warnings == []


def test_of_a_part_a_histogram_is_not_compared_with_requests() -> None:
    readings = [
        {"metric": "ttft_ns", "time_ns": s * 10**9, "bucket_low": 0.0, "bucket_high": 2000.0 * MS, "count": n, "sum": n * 90.0 * MS}
        for s, n in ((0, 0), (5, 1), (10, 4))
    ]  # fmt: skip
    scraped = run(distributions=readings)
    exact = run(
        "simulated",
        requests=[
            request(str(n), arrival=n * 1000, first=n * 1000 + 90, last=n * 1000 + 90, tokens=1) for n in range(9)
        ],
    )
    whole, part = compare(scraped, exact), compare(scraped, exact, skip_first=0.7)
    assert (whole.get("ttft_ms", "mean").left, whole.get("ttft_ms", "mean").right) == (90, 90)
    assert whole.warnings == []
    for stat in ("mean", "p99"):
        assert part.get("ttft_ms", stat).left is None
        assert part.get("ttft_ms", stat).right == pytest.approx(90)
    assert [w.partition(":")[0] for w in part.warnings] == ["ttft_ms not compared"]
    same = compare(windowed(scraped, since="5s"), windowed(scraped, since="5s"))
    assert (same.get("ttft_ms", "mean").left, same.get("ttft_ms", "mean").n_left) == (90, 3)
    assert [w.partition(":")[0] for w in compare(scraped, scraped, skip_first=0.7).warnings] == [
        "neither run tells when requests arrived"
    ]


def test_a_condition_on_a_guess_says_so() -> None:
    coarse = run(distributions=[{"metric": "itl_ns", "bucket_low": 0.0, "bucket_high": 2000.0 * MS, "count": 10}])
    verdicts = judge(compare(coarse, coarse), [parse_condition("itl_ms.p99>10"), parse_condition("itl_ms.p99>+1%")])
    assert [verdict.is_guess for verdict in verdicts] == [True, True]
    assert "itl_ms.p99>10: 1,980 (a guess within a bucket" in verdicts_text(verdicts)


def test_a_figure_from_buckets_carries_them_and_is_marked() -> None:
    edges = ((0.0, 100.0, 6), (100.0, 2000.0, 3), (2000.0, None, 1))
    scraped = run(
        distributions=[
            {"metric": "ttft_ns", "bucket_low": low * MS, "bucket_high": high and high * MS, "count": count}
            for low, high, count in edges
        ]
    )
    exact = run(requests=[request(str(n), first=50, last=90, tokens=2) for n in range(10)])
    comparison = compare(scraped, exact)
    assert comparison.get("ttft_ms", "p50").left_bounds == (0, 100)
    assert comparison.get("ttft_ms", "p90").left_bounds == (100, 2000)
    assert comparison.get("ttft_ms", "p99").left_bounds == (2000, None)
    assert comparison.get("ttft_ms", "p50").right_bounds == (0, 100)
    assert comparison.get("ttft_ms", "mean").left_bounds == (230, None)
    assert comparison.get("e2e_ms", "p50").right_bounds is None
    text = comparison_text(comparison, "scraped", "exact")
    assert "p90  in 0.1 to 2 s" in text
    assert "p99  in 2 s up" in text
    assert "~2.00 s" in text
    assert any(note.startswith("~ is a guess") for note in comparison.notes)
    assert "~" not in comparison_text(compare(exact, exact), "exact", "exact")


def test_a_fine_histogram_is_compared_with_exact_values() -> None:
    fine = run(
        "simulated",
        distributions=[{"metric": "ttft_ns", "bucket_low": 99.0 * MS, "bucket_high": 101.0 * MS, "count": 10}],
    )
    exact = run(requests=[request(str(n), first=90, last=90, tokens=1) for n in range(10)])
    row = compare(exact, fine).get("ttft_ms", "p50")
    assert (row.left, row.right) == (pytest.approx(90), pytest.approx(100))


def test_two_observed_runs_meet_at_the_nearest_samples() -> None:
    left = run(engine_stats=[sample(100, 1), sample(200, 2), sample(300, 3)])
    right = run(engine_stats=[sample(90, 1), sample(190, 2), sample(290, 3), sample(390, 9)])
    assert compare(left, right).get("num_running_reqs", "mae").right == 0


def test_without_samples_a_grid_is_compared() -> None:
    comparison = compare(STEPS, STEPS)
    row = comparison.get("num_running_reqs", "mae")
    assert (row.right, row.n_left) == (0, 1000)
    assert any("1,000 instants" in note for note in comparison.notes)


def test_equal_runs_have_no_error_and_every_metric_is_there() -> None:
    full = run(
        requests=[request("a", scheduled=0, first=20, last=60, tokens=3, itl_ns=[20 * MS, 20 * MS])],
        steps=[step(0, 0, 20, 1, kv_cache_usage=0.5), step(1, 20, 40, 1, finished=1, kv_cache_usage=0.5)],
        preemptions=[],
        engine_stats=[sample(10, 1, kv_cache_usage=0.5)],
    )
    comparison = compare(full, full)
    found: dict[str, list[str]] = {}
    for row in comparison.to_rows():
        assert list(row)[:5] == ["metric", "stat", "left", "right", "error"]
        assert list(row)[5:] == [
            "n_left", "n_right", "left_band", "right_band", "left_bounds", "right_bounds",
        ]  # fmt: skip
        assert row["error"] in {0, None}
        found.setdefault(row["metric"], []).append(row["stat"])
    assert found == METRICS
    assert comparison.frame.columns == ["metric", "stat", "left", "right", "error", "n_left", "n_right"]
    assert [r.metric for r in comparison.rows if r.left is None and r.stat != "mae"] == []


def test_error_is_null_where_a_side_is_unknown_or_left_is_0() -> None:
    comparison = compare(run(preemptions=[]), run(preemptions=[{"time_ns": 1, "request_id": "a"}]))
    row = comparison.get("num_preemptions", "total")
    assert (row.left, row.right, row.error) == (0, 1, None)
    assert comparison.get("ttft_ms", "p50").error is None


def test_error_is_right_over_left_minus_1() -> None:
    left, right = (run(requests=[request("a", first=f, last=9, tokens=2)]) for f in (4, 5))
    assert compare(left, right).get("ttft_ms", "p50").error == pytest.approx(0.25)


def test_skip_first_leaves_out_early_arrivals_on_both_sides() -> None:
    requests = [request(str(n), arrival=100 * n, first=100 * n + n, last=100 * n + 50, tokens=2) for n in range(11)]
    left = run(requests=requests, engine_stats=[sample(100 * n, n + 1) for n in range(11)])
    comparison = compare(left, left, skip_first=0.5)
    assert comparison.get("num_requests", "total").left == 6
    assert comparison.get("ttft_ms", "mean").left == pytest.approx(7.5)
    assert comparison.get("num_running_reqs", "mean").n_left == 6
    assert any("first 50%" in note for note in comparison.notes)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_skip_first_outside_of_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="skip_first"):
        compare(EMPTY, EMPTY, skip_first=share)


def test_notes_say_what_is_unknown_and_why() -> None:
    notes = compare(run(engine_stats=[sample(0, 3)]), STEPS).notes
    assert any(note.startswith("observed and simulated: num_preemptions unknown") for note in notes)
    assert any(note.startswith("observed: peak_running_reqs unknown") for note in notes)


def test_notes_count_unmatched_requests() -> None:
    left, right = run(requests=[request("a"), request("b")]), run(requests=[request("b"), request("c")])
    assert any("1 requests are in both runs, 2 in one only" in note for note in compare(left, right).notes)
