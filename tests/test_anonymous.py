"""An anonymous export decides the same in a replay and holds no name, text or wall clock."""

from pathlib import Path

import polars as pl
import pytest

from tracekit.anonymous import anonymous
from tracekit.cli.main import main
from tracekit.config import ConfigValue
from tracekit.errors import InputError
from tracekit.run import Run, load


def observed() -> Run:
    frame = pl.DataFrame(
        {
            "request_id": ["alice-1", "bob-2", "alice-3"],
            "source_request_id": [None, None, "alice-1"],
            "session_id": ["alice", None, "alice"],
            "parent_request_id": [None, "gone", "alice-1"],
            "arrival_ns": [0, 5, 7],
            "num_prompt_tokens": [32, 48, 64],
            "num_output_tokens": [3, 4, 5],
            "block_hashes": [[7, 8], None, [7, 8, 2**64 - 1, 10]],
            "finish_reason": ["stop", None, "abort"],
        },
        schema_overrides={"block_hashes": pl.List(pl.UInt64)},
    )
    config = {
        "model": ConfigValue("secret-model", "logged", "secret.log:3"),
        "vllm_version": ConfigValue("0.33.0", "logged", "secret.log:1"),
        "num_gpu_blocks": ConfigValue(100, "logged", "secret.log:2"),
    }
    info = {"notes": ["secret note"], "sources": [{"file": "secret.log"}]}
    return Run("observed", {"requests": frame}, config, 1_790_000_000_000_000_000, info)


def test_names_become_numbers_and_links_stay() -> None:
    shared = anonymous(observed()).requests
    assert shared["request_id"].to_list() == ["r1", "r2", "r3"]
    assert shared["parent_request_id"].to_list() == [None, "r4", "r1"]
    assert shared["session_id"].to_list() == ["s1", None, "s1"]
    assert shared["source_request_id"].null_count() == 3
    for kept in ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "finish_reason"):
        assert shared[kept].to_list() == observed().requests[kept].to_list()


def test_equal_prefixes_stay_equal_under_new_hashes() -> None:
    first, second = (anonymous(observed()).requests["block_hashes"].to_list() for _ in range(2))
    assert first[1] is None
    assert first[0] == first[2][:2]
    assert len({*first[2]}) == 4
    assert not {*first[2]} & {7, 8, 2**64 - 1, 10}
    assert not {*first[2]} & {*second[2]}


@pytest.mark.parametrize("name", ["shared", "shared.parquet"])
def test_no_name_is_left_in_any_file(tmp_path: Path, name: str) -> None:
    observed().save(tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "run"), "--anonymous", str(tmp_path / name)])
    assert ended.value.code == 0
    written = tmp_path / name
    for path in [written] if written.is_file() else sorted(written.iterdir()):
        data = path.read_bytes()
        for secret in (b"alice", b"bob", b"secret", b"1790000000"):
            assert secret not in data, path
    back = load(written)
    assert back.start_unix_ns is None
    assert back.config["num_gpu_blocks"] == ConfigValue(100, "logged")
    assert "model" not in back.config


def test_a_replay_of_the_export_decides_the_same() -> None:
    from tracekit.api import replay

    given = {"num_gpu_blocks": 12, "max_model_len": 128, "vllm_version": "0.33.0"}
    run = observed()
    run.tables["requests"] = run.requests.with_columns(parent_request_id=pl.lit(None, pl.String))
    ours, theirs = (replay(each, settings=given) for each in (run, anonymous(run)))
    columns = ["first_token_ns", "finished_ns", "num_cached_tokens", "num_preemptions"]
    assert ours.requests.select(columns).equals(theirs.requests.select(columns))


def test_a_run_without_requests_is_refused() -> None:
    with pytest.raises(InputError, match="no requests"):
        anonymous(Run("observed", {}))


def test_nothing_asked_for_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "somewhere"])
    assert ended.value.code == 2
    assert "--anonymous" in capsys.readouterr().err
