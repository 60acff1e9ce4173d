import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.sources.reading import SHARED, needs_shared, read, write
from tracekit.errors import InputError
from tracekit.sources import bench_serve


def result(path: Path, **changes: Any) -> Path:
    whole = {
        "date": "20260101-000000", "model_id": "/models/Qwen", "request_rate": "inf", "max_concurrency": None, "completed": 2, "failed": 1,
        "total_input_tokens": 30, "request_throughput": 1.0, "input_lens": [10, 20, 30], "output_lens": [3, 1, 0],
        "ttfts": [0.5, 0.25, 0.0], "itls": [[0.1, 0.2], [], []], "start_times": [1463.578082518, 1463.0, 1463.5],
        "generated_texts": ["my secret", "", ""], "errors": ["", "", "Internal secret"],
    }  # fmt: skip
    whole |= changes
    return write(path, json.dumps({name: value for name, value in whole.items() if value != "absent"}))


def test_instants_are_sums_of_what_the_client_measured(tmp_path: Path) -> None:
    found = read(bench_serve.SOURCE, result(tmp_path / "x"))
    rows = found.tables["requests"]
    assert rows["request_id"].to_list() == ["bench-1", "bench-2", "bench-0"]
    assert rows["arrival_ns"].to_list() == [1_463_000_000_000, 1_463_500_000_000, 1_463_578_082_518]
    assert rows["first_token_ns"].to_list() == [1_463_250_000_000, None, 1_464_078_082_518]
    assert rows["last_token_ns"].to_list() == [1_463_250_000_000, None, 1_464_378_082_518]
    assert rows["itl_ns"].to_list() == [[], None, [100_000_000, 200_000_000]]
    assert found.clock == "relative"
    assert found.config["model"].value == "Qwen"


def test_failed_requests_have_no_latencies_and_no_text(tmp_path: Path) -> None:
    found = read(bench_serve.SOURCE, result(tmp_path / "x"))
    failed = found.tables["requests"].filter(request_id="bench-2").row(0, named=True)
    assert failed["finish_reason"] == "error"
    assert failed["num_prompt_tokens"] == 30
    assert failed["num_output_tokens"] is failed["num_generated_tokens"] is failed["last_token_ns"] is None
    assert "secret" not in repr(found)


def test_an_all_failed_run_has_arrivals_only(tmp_path: Path) -> None:
    path = result(
        tmp_path / "x", output_lens=[0, 0, 0], errors=["e", "e", "e"], ttfts=[0.0, 0.0, 0.0], itls=[[], [], []]
    )
    rows = read(bench_serve.SOURCE, path).tables["requests"]
    assert rows["first_token_ns"].null_count() == 3
    assert rows["arrival_ns"].null_count() == 0


def test_totals_that_differ_from_the_lists_are_said(tmp_path: Path) -> None:
    notes = read(bench_serve.SOURCE, result(tmp_path / "x", completed=3)).notes
    assert any("says 3 completed, its lists hold 2" in note for note in notes)


def test_a_closed_loop_client_is_said(tmp_path: Path) -> None:
    notes = read(bench_serve.SOURCE, result(tmp_path / "x", max_concurrency=4)).notes
    assert any("--max-concurrency 4" in note for note in notes)


def test_without_start_times_only_an_all_at_once_load_can_be_read(tmp_path: Path) -> None:
    found = read(bench_serve.SOURCE, result(tmp_path / "x", start_times="absent"))
    assert found.tables["requests"]["arrival_ns"].to_list() == [0, 0, 0]
    assert any("at 0" in note for note in found.notes)
    for changes in ({"max_concurrency": 4}, {"request_rate": 2.5}):
        with pytest.raises(InputError, match="no start_times"):
            read(bench_serve.SOURCE, result(tmp_path / "y", start_times="absent", **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_lens": "absent"}, "--save-detailed"),
        ({"ttfts": [0.5]}, "ttfts has 1 entries, input_lens 3"),
        ({"output_lens": []}, "output_lens is empty"),
    ],
)
def test_a_result_that_says_nothing_of_requests_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(bench_serve.SOURCE, result(tmp_path / "x", **changes))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    text = result(tmp_path / "x").read_text()
    with pytest.raises(InputError, match="damaged or ends early"):
        read(bench_serve.SOURCE, write(tmp_path / "y", text[:-30]))
    with pytest.raises(InputError, match="y:2: expected one JSON object"):
        read(bench_serve.SOURCE, write(tmp_path / "y", f"{text}\n{text[:-30]}"))


def test_appended_results_and_a_sweeps_directory_hold_several(tmp_path: Path) -> None:
    text = result(tmp_path / "x").read_text()
    (tmp_path / "sweep" / "a").mkdir(parents=True)
    write(tmp_path / "sweep" / "a" / "run=0.json", text)
    write(tmp_path / "sweep" / "a" / "run=1.json", text)
    write(tmp_path / "sweep" / "summary.json", "[{}]")
    appended = read(bench_serve.SOURCE, write(tmp_path / "z", f"{text}\n{text}\n"))
    swept = read(bench_serve.SOURCE, tmp_path / "sweep")
    for found in (appended, swept):
        rows = found.tables["requests"]
        assert (rows.height, rows["request_id"].n_unique(), found.accounting.read) == (6, 6, 6)
        assert any("2 results" in note for note in found.notes)
    assert swept.skipped == {"file without single requests": 1}


def test_values_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    found = read(bench_serve.SOURCE, result(tmp_path / "x", start_times=[1.0, None, 10**400], output_lens=[3, "x", 0]))
    assert (found.accounting.understood, found.accounting.unreadable_at) == (1, [2, 3])


@needs_shared
@pytest.mark.parametrize(("name", "count"), [("day05_large_i2048_o256_c4", 16), ("day06_c8_i128_o64_n64", 64)])
def test_recorded_results_agree_with_their_own_means(name: str, count: int) -> None:
    path = SHARED / "traces/vllm-bench-serve" / f"{name}.json"
    said = json.loads(path.read_text())
    rows = read(bench_serve.SOURCE, path).tables["requests"]
    assert rows.height == count
    means = rows.select(
        ttft=(pl.col("first_token_ns") - pl.col("arrival_ns")).mean() / 1e6,
        tpot=((pl.col("last_token_ns") - pl.col("first_token_ns")) / (pl.col("num_generated_tokens") - 1)).mean() / 1e6,
        e2e=(pl.col("last_token_ns") - pl.col("arrival_ns")).mean() / 1e6,
    ).row(0, named=True)
    assert means["ttft"] == pytest.approx(said["mean_ttft_ms"], rel=1e-6)
    assert means["tpot"] == pytest.approx(said["mean_tpot_ms"], rel=2e-3)
    assert means["e2e"] == pytest.approx(said["mean_e2el_ms"], rel=2e-3)
