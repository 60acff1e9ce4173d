import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from tracekit.cli.main import main

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "vllm" / "0.33.0" / "storm_a" / "run"


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    frame = pl.DataFrame({
        "arrival_s": [0.0, 0.1, 0.2], "num_prompt_tokens": [100, 200, 50], "num_output_tokens": [10, 20, 1],
    })  # fmt: skip
    frame.write_parquet(tmp_path / "trace.parquet")
    return tmp_path / "trace.parquet"


POOL = ("--set", "num_gpu_blocks=1000", "--set", "t0_ms=10")


def test_replay_of_a_bare_trace_prints_figures(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("replay", trace, *POOL) == 0
    printed = capsys.readouterr()
    assert "3 length" in printed.out
    assert "TTFT" in printed.out
    assert "was not kept" in printed.err


def test_replay_keeps_the_run_and_show_reads_it(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("replay", trace, *POOL, "-o", tmp_path / "sim", "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert call("show", tmp_path / "sim") == 0
    shown = capsys.readouterr().out
    assert "simulated run" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_json_is_the_result_alone(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("replay", trace, *POOL, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["num_requests"] == 3
    assert found["comparison"] is None


def test_the_sample_is_compared_with_what_was_observed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("replay", SAMPLE / "requests.parquet", "--json", "--quiet") == 0
    rows = json.loads(capsys.readouterr().out)["comparison"]
    by_name = {(row["metric"], row["stat"]): row for row in rows}
    assert by_name["num_preemptions", "total"]["left"] == 335
    assert set(rows[0]) >= {"metric", "stat", "left", "right", "error"}


def test_compare_prints_at_most_80_columns(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, blocks in (("small", "100"), ("large", "1000")):
        assert call("replay", trace, "--set", f"num_gpu_blocks={blocks}", "-o", tmp_path / name, "-q") == 0
    capsys.readouterr()
    assert call("compare", tmp_path / "small", tmp_path / "large") == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "nowhere.parquet"], "no such file"),
        (["show", "nowhere"], "no such file"),
        (["ingest", "nowhere.log"], "nowhere.log"),
        (["compare", "nowhere", "nowhere"], "no such file"),
        (["replay", "TRACE"], "number of KV blocks"),
        (["replay", "TRACE", "--set", "max_num_seq=3"], "did you mean max_num_seqs"),
        (["replay", "TRACE", "--set", "num_gpu_blocks=1000", "--step-time", "nowhere.json"], "cannot be read"),
        (["replay", "TRACE", "--set", "num_gpu_blocks=1000", "--rules", "next"], "expected a version"),
        (["replay", "TRACE", "--rate", "fast"], "--rate"),
        (["replay", "TRACE", "--set", "num_gpu_blocks=1000", "--rate", "1e-300x"], "--rate must be from"),
        (["replay", "TRACE", "--set", "num_gpu_blocks=1000", "--max-concurrency", "9" * 20], "must be from 1 to"),
        (["conform", "nowhere"], "no such file"),
        (["ingest", "TRACE", "--column", "arrival"], "column"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(
    trace: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*(trace if argument == "TRACE" else argument for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"a,b\n1,2\n",
        b"PAR1 is what I am not",
        b"\x00" * 4096,
        b"{\n",
        b"hello\nworld\n",
    ],
)
def test_files_of_no_use_are_refused_and_nothing_is_written(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.bin").write_bytes(content)
    assert call("ingest", "x.bin") == 2
    assert "x.bin" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_an_existing_output_is_refused_before_any_work(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    assert call("replay", trace, *POOL, "-o", tmp_path / "taken") == 2
    assert "exists" in capsys.readouterr().err
    assert call("replay", trace, *POOL, "-o", tmp_path / "taken", "--force") == 2


def test_interrupting_leaves_nothing_half_written(tmp_path: Path) -> None:
    frame = pl.DataFrame({
        "arrival_s": [i / 100 for i in range(60_000)], "num_prompt_tokens": [300] * 60_000, "num_output_tokens": [200] * 60_000,
    })  # fmt: skip
    frame.write_parquet(tmp_path / "long.parquet")
    code = "from tracekit.cli.main import main; main()"
    command = [sys.executable, "-c", code, "replay", "long.parquet", *POOL, "-o", "sim", "--engine", "model"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert b"interrupted" in error
    assert [p.name for p in tmp_path.iterdir()] == ["long.parquet"]


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = "from tracekit.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "show", str(SAMPLE)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, error = process.communicate(timeout=60)
    assert b"Traceback" not in error


def test_compare_is_a_gate(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, t0 in (("fast", "10"), ("slow", "20")):
        assert call("replay", trace, *POOL[:2], "--set", f"t0_ms={t0}", "-o", tmp_path / name, "-q") == 0
    capsys.readouterr()
    gate = ("--fail-if", "tpot_ms.p99>+10%")
    assert call("compare", tmp_path / "fast", tmp_path / "fast", *gate, "--slo", "ttft_ms=500,tpot_ms=15") == 0
    printed = capsys.readouterr().out
    assert "ok    tpot_ms.p99>+10%: +0.00%" in printed
    assert "goodput" in printed
    assert call("compare", tmp_path / "fast", tmp_path / "slow", *gate) == 1
    assert "FAIL  tpot_ms.p99>+10%" in capsys.readouterr().out
    assert call("compare", tmp_path / "fast", tmp_path / "slow", *gate, "--json") == 1
    assert json.loads(capsys.readouterr().out)[0]["metric"] == "ttft_ms"
    for bad in (("--fail-if", "tpot_ms.p99"), ("--fail-if", "tpot.p99>1"), ("--slo", "ttft=1")):
        assert call("compare", tmp_path / "fast", tmp_path / "slow", *bad) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
