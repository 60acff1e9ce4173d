"""What the tests of the table sources share: write a file, read it, and check that its account adds up."""

from pathlib import Path

import polars as pl
import pytest

from tracekit.config import ConfigValue
from tracekit.schema.parquet import conform
from tracekit.schema.tables import TABLES_BY_NAME
from tracekit.sources import any_table, ingest, vllm_log
from tracekit.sources.files import material_of
from tracekit.sources.observation import Observation, Options, Source

SHARED = Path(__file__).parents[3] / "shared" / "data"
SOURCES = tuple(source for source in ingest.SOURCES if source is not vllm_log.SOURCE)
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")

USUAL = ("arrival=t", "num_prompt_tokens=p", "num_output_tokens=o")


def detected(path: Path) -> list[str]:
    material = material_of(path)
    return [source.name for source in SOURCES if source.detects(material)]


def read(source: Source, path: Path, *columns: str, strict: bool = False, **config: int) -> Observation:
    options = Options(
        columns=tuple(any_table.parse_column(column) for column in columns),
        config={name: ConfigValue(value, "given") for name, value in config.items()},
        strict=strict,
    )
    observation = source.read(material_of(path), options)
    account = observation.accounting
    assert account.read == account.understood + account.other + account.unreadable
    for name, frame in observation.tables.items():
        conform(TABLES_BY_NAME[name], frame, name)
    return observation


def table(path: Path, *columns: str, strict: bool = False, **config: int) -> pl.DataFrame:
    return read(any_table.SOURCE, path, *columns, strict=strict, **config).tables["requests"]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
