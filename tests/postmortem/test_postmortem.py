"""Planted incidents are called by their names, a healthy run healthy, and every number has its query."""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

import tracekit
from tests.postmortem.incidents import INCIDENTS, healthy, preemption_storm, queueing_with_free_kv
from tests.test_cli import call
from tests.test_storm import SAMPLE, ingest
from tracekit.postmortem import KINDS, Postmortem, find, postmortem
from tracekit.postmortem.asking import query_text
from tracekit.run import Run, load

RUN = SAMPLE / "run"


@cache
def incident(kind: str) -> Run:
    return INCIDENTS[kind]()


@cache
def storm_a() -> Postmortem:
    return postmortem(load(RUN), remedies=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_incident_is_called_by_its_name(kind: str) -> None:
    found, _ = find(incident(kind))
    assert [finding.kind for finding in found] == [kind]
    assert found[0].causes
    assert re.search(r"\d", found[0].title)


def test_a_healthy_run_is_called_healthy() -> None:
    found = postmortem(healthy())
    assert found.is_healthy
    assert found.num_replays == 0


def test_a_storm_names_what_filled_the_pool_and_who_paid() -> None:
    run = incident("preemption_storm")
    (finding,) = find(run)[0]
    evidence = finding.evidence
    assert evidence["num_preemptions"] == run.preemptions.height
    assert evidence["num_victims"] == run.preemptions["request_id"].n_unique()
    assert evidence["num_lost_tokens"] == run.preemptions["num_computed_tokens"].sum()
    assert evidence["states"]["during"]["mean_kv_cache_usage"] > 0.9
    assert any("long outputs" in cause for cause in finding.causes)
    assert any("admission outruns the pool" in cause for cause in finding.causes)
    first = finding.chain[0]
    assert first["victim"] == run.preemptions["request_id"][0]
    assert first["num_blocks"] > 0
    assert finding.start_s == pytest.approx(run.preemptions["time_ns"].min() / 1e9)


def test_remedies_are_replayed_from_the_smallest() -> None:
    found = postmortem(preemption_storm())
    (remedies,) = found.remedies
    pool = next(remedy for remedy in remedies if remedy.candidate.family == "larger pool")
    assert pool.removes_it
    blocks = int(pool.candidate.settings[0].partition("=")[2])
    base = found.run.config["num_gpu_blocks"].value
    # The step below was tried too and does not remove the storm.
    smaller = [1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0]
    step = smaller.index(round(blocks / int(base), 2))
    if step:
        less = tracekit.replay(found.run, settings={"num_gpu_blocks": int(int(base) * smaller[step - 1])})
        assert "preemption_storm" in {finding.kind for finding in find(less)[0]}
    assert pool.values["num_preemptions.total"] < found.outcome["num_preemptions"]
    assert any(remedy.candidate.estimated for remedy in remedies)


def test_more_requests_at_once_remove_a_queue_with_free_blocks() -> None:
    found = postmortem(queueing_with_free_kv())
    remedy = found.remedies[0][0]
    assert remedy.removes_it
    assert remedy.candidate.settings[0].startswith("max_num_seqs=")
    assert remedy.effects["ttft_ms.p99"] < -0.5


def test_the_storm_of_a_real_engine_is_where_its_counter_grew() -> None:
    storm = storm_a().findings[0]
    assert storm.kind == "preemption_storm"
    counter = load(RUN).engine_stats.drop_nulls("num_preemptions").sort("time_ns")
    grew = counter.filter(counter["num_preemptions"].diff() > 0)["time_ns"] / 1e9
    assert storm.start_s == pytest.approx(grew.min(), abs=15)
    assert storm.end_s == pytest.approx(grew.max(), abs=15)
    assert storm_a().source == "replayed"
    assert any("V1 logs none" in text for text in storm_a().unknown)


def test_a_run_that_knows_its_steps_is_judged_by_them() -> None:
    found = postmortem(incident("preemption_storm"), remedies=False)
    assert found.source == "simulated"
    assert found.unknown == [
        "no prefix hashes: whether prompts share content, and so the prefix cache, cannot be judged"
    ]


def test_the_command_prints_one_screen_and_fails_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "storm"
    incident("preemption_storm").save(path)
    assert call("postmortem", path, "--no-remedies", "--fail-on", "preemption_storm") == 1
    printed = capsys.readouterr().out
    assert "1. preemption storm" in printed
    assert "because" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert call("postmortem", path, "--no-remedies", "--fail-on", "log_silence") == 0
    assert call("postmortem", path, "--no-remedies", "--fail-on", "nothing") == 2
    assert "expected any, preemption_storm" in capsys.readouterr().err


def test_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "queue"
    incident("queueing_with_free_kv").save(path)
    assert call("postmortem", path, "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert {"kind", "start_s", "end_s", "evidence", "remedies"} <= set(finding)
    assert {"set", "removes_it", "effects"} <= set(finding["remedies"][0])


def test_markdown_escapes_what_a_log_may_hold() -> None:
    from tracekit.report.postmortem import postmortem_markdown

    run = incident("head_of_line_blocking")
    hostile = "<img src=x onerror=alert(1)>|[a](b)"
    named = run.requests.with_columns(request_id=run.requests["request_id"].replace("r8", hostile))
    tables = {"requests": named, "steps": run.steps, "preemptions": run.preemptions}
    text = postmortem_markdown(postmortem(Run("simulated", tables, run.config, None, run.info), remedies=False))
    assert "<img" not in text
    assert "\\|\\[a\\]\\(b\\)" in text


def test_every_number_has_its_query(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "storm"
    incident("preemption_storm").save(path)
    assert call("postmortem", path, "--no-remedies", "--show-sql") == 0
    printed = capsys.readouterr().out
    for finding in find(incident("preemption_storm"))[0]:
        for name in finding.queries:
            assert f"-- {name}" in printed
            assert query_text(name).rstrip() in printed


@pytest.mark.parametrize(
    "path", sorted((files("tracekit.postmortem") / "queries").iterdir(), key=str), ids=lambda p: p.name
)
def test_queries_say_what_their_columns_mean(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("-- ")
    assert text.rstrip().splitlines()[-1].startswith(("ORDER BY", "LIMIT"))


def test_a_log_alone_is_not_called_healthy() -> None:
    lines = load(RUN).engine_stats
    found = postmortem(Run("observed", {"engine_stats": lines}, {}, None, {}))
    assert not found.is_healthy
    assert found.is_blind
    assert "ingest the client" in found.unknown[0]


def test_a_setting_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("postmortem", RUN, "--set", "nosuch=1") == 2
    assert "nosuch" in capsys.readouterr().err


def test_an_unknown_device_is_fitted_on_the_run_itself() -> None:
    run = ingest(SAMPLE)
    said: list[str] = []
    found = tracekit.postmortem(run, remedies=False, announce=said.append)
    assert any("note: step time" in line and "largest error in sample" in line for line in said)
    recorded = run.engine_stats["num_preemptions"].max()
    storms = [finding for finding in found.findings if finding.kind == "preemption_storm"]
    assert sum(finding.evidence["num_preemptions"] for finding in storms) == pytest.approx(recorded, rel=0.05)


def test_a_device_that_cannot_be_fitted_is_said_to_be_unknown() -> None:
    run = ingest(SAMPLE)
    untimed = run.requests.select("request_id", "arrival_ns", "num_prompt_tokens", "num_generated_tokens", "max_tokens")
    said: list[str] = []
    tracekit.postmortem(Run("observed", {"requests": untimed}, dict(run.config)), remedies=False, announce=said.append)
    assert any("cannot be fitted on this run" in line and "--step-time" in line for line in said)
