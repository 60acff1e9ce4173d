"""The stored queries: documented, packaged, and answering on runs with and without content."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.sql.runs import MS, SECOND, request, run, sample, step
from tracekit.compare.database import VIEWS, connect
from tracekit.compare.queries import NamedQuery, list_queries, named_query
from tracekit.compare.run_sql import sql
from tracekit.errors import InputError
from tracekit.run import Run

QUERIES = list_queries()
SMALL = run(
    requests=[
        request("a", scheduled=10, first=20, last=90, tokens=5, num_prompt_tokens=100),
        request("b", arrival=5, scheduled=10, first=20, last=60, tokens=3, num_prompt_tokens=50),
    ],
    steps=[
        step(0, 10, 10, 2, bound_by="none", kv_cache_usage=0.8, num_preempted_reqs=0),
        step(1, 20, 20, 1, 1, bound_by="preempted", kv_cache_usage=0.9, num_preempted_reqs=1),
        step(2, 40, 20, 2, 0, finished=1, bound_by="none", kv_cache_usage=0.9, num_preempted_reqs=0),
        step(3, 60, 30, 1, 0, finished=1, bound_by="none", kv_cache_usage=0.5, num_preempted_reqs=0),
    ],
    preemptions=[{"step": 1, "time_ns": 20 * MS, "request_id": "b", "resumed_step": 2, "num_computed_tokens": 51}],
    engine_stats=[sample(15, 2), sample(50, 2)],
    distributions=[
        {"metric": "itl_ns", "bucket_low": 0.0, "bucket_high": 20.0 * MS, "count": 6},
        {"metric": "num_running_reqs", "engine": 0, "bucket_low": 0.0, "bucket_high": 1.0, "count": 50 * MS},
        {"metric": "num_running_reqs", "engine": 0, "bucket_low": 1.0, "bucket_high": 2.0, "count": 30 * MS},
    ],
)


def _answer(query: NamedQuery, subject: Run, **parameters: Any) -> pl.DataFrame:
    runs = {"observed": subject, "simulated": subject} if query.num_runs == 2 else {"observed": subject}
    return sql(runs, query.sql, parameters=parameters)


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.name)
@pytest.mark.parametrize("subject", [run(), SMALL], ids=["empty", "small"])
def test_query_answers(query: Any, subject: Run) -> None:
    frame = _answer(query, subject)
    assert frame.columns
    if subject is SMALL and query.name != "config":
        assert frame.height


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.name)
def test_header_says_what_every_output_column_and_parameter_means(query: Any) -> None:
    documented = set(re.findall(r"\w+", query.doc))
    assert [column for column in _answer(query, SMALL).columns if column not in documented] == []
    assert set(re.findall(r"\$(\w+)", query.sql)) == set(query.parameters)
    assert len(query.summary) < 100


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.name)
def test_rows_have_a_total_order(query: Any) -> None:
    body = query.sql.split("\n\n")[-1]
    assert "ORDER BY" in body
    assert _answer(query, SMALL).equals(_answer(query, SMALL))


@pytest.mark.parametrize(
    "name", ["latencies", "phases", "samples", "states_from_steps", "states_from_requests", "states_from_samples"]
)
def test_views_are_documented(name: str) -> None:
    text = (files("tracekit.compare") / "views" / f"{name}.sql").read_text(encoding="utf-8")
    assert text.startswith("-- ")


# (query, parameters, columns, expected rows) on SMALL
ANSWERS = [
    ("request_phases", {"request_id": "b"}, ["phase", "start_s", "duration_ms"], [
        ("waiting", 0.005, 5), ("prefill", 0.01, 10), ("preempted", 0.02, 20), ("decode", 0.04, 20),
    ]),
    ("request_phases", {}, ["request_id", "phase", "duration_ms"], [
        ("a", "waiting", 10), ("a", "prefill", 10), ("a", "decode", 70),
    ]),
    ("concurrency_over_time", {"interval_s": 0.02}, ["time_s", "num_running_reqs", "num_waiting_reqs"], [
        (0.02, 1, 1), (0.04, 2, 0), (0.06, 1, 0), (0.08, 1, 0), (0.1, 0, 0),
    ]),
    ("preemptions_over_time", {"interval_s": 1}, ["time_s", "num_preemptions", "num_computed_tokens"], [(0, 1, 51)]),
    ("most_preempted_requests", {}, ["request_id", "num_preemptions", "preempted_ms", "e2e_ms"], [("b", 1, 20, 55)]),
    ("slowest_requests", {"limit": 1}, ["request_id", "e2e_ms", "ttft_ms", "queue_ms", "tpot_ms"], [("a", 90, 20, 10, 17.5)]),
    ("bound_by_time", {}, ["bound_by", "num_steps", "share"], [("none", 3, 0.75), ("preempted", 1, 0.25)]),
    ("finish_reasons", {}, ["finish_reason", "num_requests", "share"], [("stop", 2, 1)]),
    ("throughput_over_time", {"interval_s": 10}, ["prompt_tps", "output_tps", "num_finished"], [(15, 0.8, 2)]),
    ("matched_requests", {}, ["num_matched", "num_only_observed", "num_only_simulated"], [(2, 0, 0)]),
    ("steps_summary", {}, ["num_steps", "mean_step_ms", "max_running_reqs", "num_preempted_reqs"], [(4, 20, 2, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "columns", "expected"), ANSWERS, ids=[a[0] for a in ANSWERS])
def test_answer(name: str, parameters: dict[str, Any], columns: list[str], expected: Any) -> None:
    rows = _answer(named_query(name), SMALL, **parameters).select(columns).rows()
    assert [[pytest.approx(v) if isinstance(v, float) else v for v in row] for row in expected] == [
        list(r) for r in rows
    ]


def test_phases_of_a_request_tile_its_life() -> None:
    with connect({"observed": SMALL}) as connection:
        gaps = connection.execute(
            "SELECT start_ns - LAG(end_ns) OVER (PARTITION BY request_id ORDER BY start_ns) AS gap FROM phases QUALIFY gap <> 0"
        ).fetchall()
    assert gaps == []


def test_token_counts_are_kept_by_throughput_over_time() -> None:
    subject = run(requests=[request("a", first=1500, last=4500, tokens=30, num_prompt_tokens=7)])
    frame = _answer(named_query("throughput_over_time"), subject, interval_s=1)
    assert frame["output_tps"].to_list() == pytest.approx([5, 10, 10, 5])
    assert frame["prompt_tps"].to_list() == [7, 0, 0, 0]


def test_samples_put_the_engines_of_one_moment_together() -> None:
    rows = [
        sample(1000, 1, engine=0), sample(1002, 2, engine=1), sample(11000, 5, engine=1),
        sample(21000, 3, engine=0), sample(21001, 4, engine=1), sample(21001, 99),
    ]  # fmt: skip
    found = sql({"o": run(engine_stats=rows)}, "SELECT time_ns, num_running_reqs FROM samples ORDER BY time_ns").rows()
    assert found == [(1 * SECOND, 3), (11 * SECOND, 5), (21 * SECOND, 7)]


def test_unknown_query_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="request_phases"):
        named_query("phasess")


def test_sql_files_are_in_the_package() -> None:
    folder = files("tracekit.compare")
    for part, least in (("queries", len(QUERIES)), ("views", len(VIEWS))):
        assert len([e for e in (folder / part).iterdir() if e.name.endswith(".sql")]) >= least
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'packages = ["tracekit"]' in pyproject
