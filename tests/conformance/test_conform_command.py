import gzip
import json
import shutil
from pathlib import Path

import pytest

from tracekit.cli.main import main

GOLDEN = Path(__file__).parent / "golden"


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A single recording of one's own: the light case as vLLM 0.33.0 decided it."""
    index = json.loads((GOLDEN / "index.json").read_text())
    digest = next(digest for digest, labels in index["light"].items() if "0.33.0" in labels)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "workload.jsonl"):
        shutil.copy(GOLDEN / "light" / name, folder / name)
    steps = gzip.decompress((GOLDEN / "light" / f"{digest}.jsonl.gz").read_bytes())
    (folder / "steps.jsonl").write_bytes(steps)
    return folder


def test_a_recording_that_agrees_ends_with_the_verdict(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("conform", recording, "--rules", "0.33.0") == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("agree: 1 of 1 cases")
    steps = len((recording / "steps.jsonl").read_text().splitlines())
    assert f"{steps:,} of {steps:,} steps" in last


def test_the_first_difference_is_shown_and_the_answer_is_no(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (recording / "steps.jsonl").read_text().splitlines()]
    rows[7]["free_blocks"] += 1
    (recording / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("conform", recording, "--rules", "0.33.0") == 1
    printed = capsys.readouterr().out
    assert "step 7 differs in free_blocks" in printed
    assert "recorded" in printed
    assert printed.strip().splitlines()[-1].startswith("DIFFER: 0 of 1 cases")
    assert call("conform", recording, "--rules", "0.33.0", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"] is False
    assert found["differences"][0]["step"] == 7


def test_a_path_without_a_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("conform", tmp_path, "--rules", "0.33.0") == 2
    assert "error:" in capsys.readouterr().err


def test_a_single_recording_needs_its_version(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("conform", recording) == 2
    assert "--rules" in capsys.readouterr().err


def test_a_certificate_lists_every_label(recording: Path, tmp_path: Path) -> None:
    page = tmp_path / "certificate.md"
    assert call("conform", recording, "--rules", "0.33.0", "--certificate", page) == 0
    assert "| 0.33.0 |" in page.read_text()
