"""Every shared trace ingests; its counts add up; a name, gzip or standard input changes nothing; Parquet keeps it all."""

import gzip
import io
from pathlib import Path

import polars as pl
import pytest

from tests.sources.reading import SHARED, needs_shared
from tracekit.api import ingest
from tracekit.run import Run, load

COLUMNS = {
    "llmservingsim-rtxpro6000-llama8b/requests.jsonl": (
        "arrival=queued_ts", "scheduled=scheduled_ts", "first_token=first_token_ts", "last_token=last_token_ts",
        "num_prompt_tokens=input_toks", "num_output_tokens=output_toks",
    ),
    "llmservingsim-rtxpro6000-llama8b/workload.jsonl": (
        "arrival=arrival_time_ns", "num_prompt_tokens=input_toks", "num_output_tokens=output_toks",
    ),
    "guidellm/requests.parquet": (
        "arrival=arrival_timestamp_ms", "num_prompt_tokens=prompt_token_count", "num_output_tokens=max_new_tokens",
    ),
}  # fmt: skip
NO_TRACE = {
    "guidellm/benchmark.csv", "guidellm/responses.parquet", "guidellm/run.json",
    "llmservingsim-rtxpro6000-llama8b/config.json", "llmservingsim-rtxpro6000-llama8b/meta.json",
    "llmservingsim-rtxpro6000-llama8b/timeseries.csv",
}  # fmt: skip
"""Averages, outputs and settings that lie beside the traces: they hold no arrivals."""
TRACES = SHARED / "traces"
CASES = sorted(
    str(path.relative_to(TRACES))
    for path in TRACES.rglob("*")
    if path.is_file() and str(path.relative_to(TRACES)) not in NO_TRACE
)


class Input:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def shape(run: Run) -> list[pl.DataFrame]:
    """What a run holds but for the names of its files."""
    return [
        run.table(name).drop("file", strict=False) for name in ("requests", "engine_stats", "events") if run.has(name)
    ]


@needs_shared
@pytest.mark.parametrize("case", CASES)
def test_a_shared_trace(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = COLUMNS.get(case, ())
    whole = ingest(TRACES / case, columns=columns, hash_key="k")
    account = whole.info["sources"][0]["accounting"]
    assert account["read"] == account["understood"] + account["other"] + account["unreadable"] > 0
    assert account["unreadable"] == 0
    if not case.endswith(".txt"):
        assert whole.requests.height > 0
    data = (TRACES / case).read_bytes()
    (tmp_path / "other-name").write_bytes(data)
    (tmp_path / "packed.bin").write_bytes(gzip.compress(data, 1))
    monkeypatch.setattr("sys.stdin", Input(data))
    for path in (tmp_path / "other-name", tmp_path / "packed.bin", "-"):
        again = ingest(path, columns=columns, hash_key="k")
        assert again.info["sources"][0]["format"] == whole.info["sources"][0]["format"]
        assert again.info["sources"][0]["accounting"] == account
        for left, right in zip(shape(whole), shape(again), strict=True):
            assert left.equals(right)
    assert again.info["sources"][0]["file"] == "stdin"
    whole.save(tmp_path / "run")
    back = load(tmp_path / "run")
    for left, right in zip(shape(whole), shape(back), strict=True):
        assert left.equals(right)
    assert back.config == whole.config
