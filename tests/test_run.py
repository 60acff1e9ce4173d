import json
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.config import ConfigValue
from tracekit.errors import InputError, OutputExistsError
from tracekit.run import Run, load
from tracekit.schema.parquet import conform
from tracekit.schema.tables import TABLES_BY_NAME


def small_run() -> Run:
    requests = pl.DataFrame(
        {"request_id": ["a", "b"], "arrival_ns": [0, 5], "num_prompt_tokens": [3, 4], "num_output_tokens": [1, 2]}
    )
    events = pl.DataFrame({"time_ns": [1], "kind": ["start"]})
    config = {"max_num_seqs": ConfigValue(8, "logged", "server.log:3")}
    return Run("observed", {"requests": requests, "events": events}, config, 10**18, {"notes": ["hello"]})


def test_a_run_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    small_run().save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert back.kind == "observed"
    assert back.start_unix_ns == 10**18
    assert back.config["max_num_seqs"] == ConfigValue(8, "logged", "server.log:3")
    assert back.info["notes"] == ["hello"]
    assert back.requests["request_id"].to_list() == ["a", "b"]
    assert back.events["kind"].to_list() == ["start"]
    assert not back.has("steps")
    assert back.steps.height == 0


def test_absent_tables_are_absent_on_disk(tmp_path: Path) -> None:
    small_run().save(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["events.parquet", "requests.parquet", "run.json"]


def test_a_single_file_keeps_the_config_and_says_what_is_lost(tmp_path: Path) -> None:
    assert small_run().save(tmp_path / "run.parquet") == ["events"]
    back = load(tmp_path / "run.parquet")
    assert back.config["max_num_seqs"].value == 8
    assert back.requests.height == 2


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        small_run().save(tmp_path / name)
    for file in ("requests.parquet", "run.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_an_output_that_exists_is_refused(tmp_path: Path) -> None:
    small_run().save(tmp_path / "run")
    with pytest.raises(OutputExistsError, match="--force"):
        small_run().save(tmp_path / "run")
    small_run().save(tmp_path / "run", force=True)
    assert load(tmp_path / "run").requests.height == 2


def test_force_replaces_runs_only(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")
    with pytest.raises(OutputExistsError, match="not a run"):
        small_run().save(tmp_path / "home", force=True)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "precious"


def test_a_failed_save_leaves_the_old_run_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run().save(tmp_path / "run")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracekit.run.json.dumps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_run().save(tmp_path / "run", force=True)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert load(tmp_path / "run").requests.height == 2


def test_requests_file_inside_a_run_is_that_run(tmp_path: Path) -> None:
    small_run().save(tmp_path / "run")
    assert load(tmp_path / "run" / "requests.parquet").events.height == 1


def test_a_bare_parquet_with_arrivals_in_seconds_is_a_trace(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"arrival_s": [0.0, 1.5], "num_prompt_tokens": [1, 2], "num_output_tokens": [3, 4], "note": ["x", "y"]}
    )
    frame.write_parquet(tmp_path / "trace.parquet")
    run = load(tmp_path / "trace.parquet")
    assert run.requests["arrival_ns"].to_list() == [0, 1_500_000_000]
    assert run.requests["request_id"].n_unique() == 2


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.DataFrame({"arrival_s": [0.0], "num_output_tokens": [3]}), "num_prompt_tokens is missing"),
        (pl.DataFrame({"arrival_s": ["now"], "num_prompt_tokens": [1], "num_output_tokens": [3]}), "number of seconds"),
        (pl.DataFrame({"arrival_ns": [2**63 - 1], "num_prompt_tokens": [1], "num_output_tokens": [3]}), "146 years"),
        (pl.DataFrame({"arrival_ns": [-(2**63)], "num_prompt_tokens": [1], "num_output_tokens": [3]}), "146 years"),
        (
            pl.DataFrame({"arrival_s": [1e300], "num_prompt_tokens": [1], "num_output_tokens": [3]}),
            "no number of seconds",
        ),
        (pl.DataFrame({"arrival_ns": ["0"], "num_prompt_tokens": [1], "num_output_tokens": [3]}), "must be int64"),
        (pl.DataFrame({"arrival_ns": [0], "num_prompt_tokens": [-1], "num_output_tokens": [3]}), "not be negative"),
    ],
)
def test_a_bare_parquet_that_is_no_trace_is_refused(tmp_path: Path, frame: pl.DataFrame, message: str) -> None:
    frame.write_parquet(tmp_path / "trace.parquet")
    with pytest.raises(InputError, match=message):
        load(tmp_path / "trace.parquet")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "observed"}',
        '{"kind": "observed", "config": {}, "skipped": "x"}',
        '{"kind": "observed", "config": {}, "notes": 3}',
        '{"kind": "observed", "config": {}, "step_time": [1]}',
        '{"kind": "stolen", "config": {}}',
        '{"kind": "observed", "config": {"api_key": {"value": "s", "origin": "given"}}}',
    ],
)
def test_a_strange_run_json_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(InputError):
        load(tmp_path / "run")


def test_another_format_and_swapped_tables_are_errors(tmp_path: Path) -> None:
    small_run().save(tmp_path / "run")
    found = json.loads((tmp_path / "run" / "run.json").read_text())
    for changed, message in (
        ({"format": 99}, "format '99' is not known .* a newer tracekit"),
        ({"format": "x"}, "format 'x' is not known"),
        ({"tables": {**found["tables"], "requests": 7}}, "2 rows, but run.json says 7"),
        ({"tables": []}, "tables must be a JSON object"),
    ):
        (tmp_path / "run" / "run.json").write_text(json.dumps({**found, **changed}))
        with pytest.raises(InputError, match=message):
            load(tmp_path / "run")


@pytest.mark.parametrize(
    ("table", "frame", "message"),
    [
        ("requests", {"request_id": ["chatcmpl-", "chatcmpl-"], "arrival_ns": [0, 5]}, "must be unique"),
        (
            "distributions",
            {"metric": ["ttft_ns", "ttft_ns"], "bucket_low": [0.0, 1.0], "bucket_high": [1.0, float("nan")], "count": [1, 1]},
            "distributions.bucket_high must be a finite number or null .row 1.",
        ),
    ],
)  # fmt: skip
def test_a_run_with_values_that_no_run_has_is_refused(
    tmp_path: Path, table: str, frame: dict[str, list[object]], message: str
) -> None:
    run = small_run()
    run.tables[table] = conform(TABLES_BY_NAME[table], pl.DataFrame(frame), table)
    run.save(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        load(tmp_path / "run").table(table)


def test_numbered_requests_are_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    columns = {"arrival_s": [0.0, 1.0, 2.0], "num_prompt_tokens": [10, 20, 30], "num_output_tokens": [5, 5, 5]}
    pl.DataFrame({"request_id": ["a", "a", None], **columns}).write_parquet(path)
    note = "request_id: 1 missing and 1 repeated, so requests are numbered; its own ids stand in source_request_id"
    assert note in load(path).info["notes"]
    assert note in tracekit.replay(path, settings={"num_gpu_blocks": 100}).info["notes"]
    pl.DataFrame({"request_id": ["a", "b", "c"], **columns}).write_parquet(path)
    assert not any("request_id" in note for note in load(path).info["notes"])


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="not a run"):
        load(tmp_path)


def test_a_notebook_shows_the_run_escaped() -> None:
    run = small_run()
    run.config["model"] = ConfigValue("<script>", "logged", "server.log:1")
    shown = run._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "num_requests=2" in repr(run)


def test_run_json_holds_the_contract_keys(tmp_path: Path) -> None:
    small_run().save(tmp_path / "run")
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert described["config"]["max_num_seqs"] == {"value": 8, "origin": "logged", "where": "server.log:3"}
    assert described["kind"] == "observed"
    assert described["tables"] == {"requests": 2, "events": 1}
