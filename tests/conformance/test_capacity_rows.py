"""Start-ups that the real planners of six versions computed (``capacity/``), planned anew."""

import gzip
import json
from pathlib import Path

import pytest

from tests.test_cli import call
from tracekit.catalogue.models import find_model
from tracekit.conform import conform
from tracekit.conform.capacity_rows import _layers
from tracekit.errors import ConfigError
from tracekit.model.capacity import LayerCache
from tracekit.model.capacity.from_shape import layers_of

ROWS = sorted((Path(__file__).parent / "capacity").glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.name)
def test_every_recorded_start_is_planned_alike(path: Path) -> None:
    (result,) = conform([path]).capacity
    assert [d.fields for d in result.differences] == []
    assert result.num_agreeing == result.num_rows > 600
    assert result.num_failed_starts > 40


def test_the_command_names_faults_and_ends_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("conform", ROWS[0], ROWS[4]) == 0
    printed = capsys.readouterr().out
    assert "vLLM itself breaks here: AssertionError" in printed
    assert printed.strip().splitlines()[-1] == "agree: 2,567 of 2,567 capacity rows"


def test_a_row_that_differs_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.loads(gzip.decompress(ROWS[2].read_bytes()).splitlines()[0])
    row["out"]["nb"] += 1
    changed = tmp_path / "rows.jsonl"
    changed.write_text(json.dumps(row) + "\n")
    assert call("conform", changed) == 1
    assert "nb: recorded" in capsys.readouterr().out


def test_a_file_of_something_else_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "rows.jsonl"
    changed.write_text('{"v": "0.33.0"}\n')
    assert call("conform", changed) == 2
    assert "rows.jsonl:1: expected a capacity row, key 'm' is missing" in capsys.readouterr().err


def cache_of(cache: LayerCache) -> tuple[object, ...]:
    tokens = None if cache.is_state else cache.block_size
    window = None if cache.is_full else (cache.window, cache.chunk)
    return cache.kind, tokens, cache.block_bytes, window, cache.num_checkpoint_blocks if cache.is_state else 0


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.name)
def test_the_catalogue_builds_the_layers_of_the_recorded_models(path: Path) -> None:
    compared = 0
    for line in gzip.decompress(path.read_bytes()).splitlines():
        row = json.loads(line)
        try:
            shape = find_model(row["m"]).shape
        except ConfigError:
            continue  # a made-up variant
        if "layers" not in row or (row["v"].startswith("0.6") and "-" in shape.layers):
            continue  # V0 rows do not say which layers have no cache
        mode = row.get("mamba_mode")
        built = layers_of(
            shape, row["v"], tensor_parallel_size=row["tp"], kv_cache_dtype=row["kv"], block_size=row["bs"],
            max_model_len=row["L"], enable_prefix_caching=None if mode is None else mode != "none",
            gdn_checkpoint_alignment=row.get("ckpt"),
        )  # fmt: skip
        recorded = sorted((number, cache_of(cache)) for number, cache in _layers(row))
        assert sorted((number, cache_of(cache)) for number, cache in built.layers) == recorded, row["id"]
        compared += 1
    assert compared > 500
