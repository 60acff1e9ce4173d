from pathlib import Path

import pytest

from tests.sources.reading import SHARED, needs_shared, read, write
from tracekit.errors import InputError
from tracekit.sources import azure

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def test_seven_decimals_crlf_and_no_last_newline(tmp_path: Path) -> None:
    path = write(tmp_path / "x", HEADER + "2023-11-16 18:17:04.0319601,3180,8\r\n2023-11-16 18:17:03.9799600,4808,10")
    found = read(azure.SOURCE, path)
    rows = found.tables["requests"]
    assert rows["arrival_ns"].to_list() == [1_700_158_623_979_960_000, 1_700_158_624_031_960_100]
    assert rows["num_prompt_tokens"].to_list() == [4808, 3180]
    assert "num_generated_tokens" not in rows.columns
    assert found.clock == "unix"
    assert any("UTC" in note for note in found.notes)


def test_images_between_the_columns_do_not_shift_them(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-01 00:00:00.0000000,3,100,7\n"
    )
    assert read(azure.SOURCE, path).tables["requests"].select("num_prompt_tokens", "num_output_tokens").row(0) == (
        100,
        7,
    )


def test_rows_without_a_number_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "x", HEADER + "2023-11-16 18:17:03.9,10,1\r\n2023-11-16 18:17:04,,1\r\nsoon,5,5\r\n\r\n")
    found = read(azure.SOURCE, path)
    assert (found.accounting.understood, found.accounting.unreadable, found.accounting.other) == (1, 2, 1)
    with pytest.raises(InputError, match="row 2: num_prompt_tokens: missing"):
        read(azure.SOURCE, path, strict=True)


@needs_shared
def test_the_code_trace() -> None:
    found = read(azure.SOURCE, SHARED / "traces/azure/AzureLLMInferenceTrace_code.csv", strict=True)
    assert found.tables["requests"].height == found.accounting.read == 8819
