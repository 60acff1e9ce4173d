"""The README's commands are run as they stand there."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tracekit.cli.main import _COMMANDS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of that language, in order."""
    found: list[str] = []
    fence: str | None = None
    for line in README.splitlines():
        if line.startswith("```"):
            if fence is None and line[3:] == language:
                found.append("")
            fence = line[3:] if fence is None else None
        elif fence == language:
            found[-1] += line + "\n"
    return found


def commands(block: str) -> list[str]:
    joined = block.replace("\\\n", " ")
    return [line.split("#")[0].strip() for line in joined.splitlines() if line.startswith("tracekit ")]


def test_every_command_is_in_the_readme_or_its_help() -> None:
    shown = {shlex.split(command)[1] for block in blocks("sh") for command in commands(block)}
    assert shown >= set(_COMMANDS)


def test_the_incident_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = next(block for block in blocks("sh") if block.startswith("cd sample_traces"))
    folder = shlex.split(block.splitlines()[0])[1]
    shutil.copytree(ROOT / folder, tmp_path / "storm", ignore=shutil.ignore_patterns("run"))
    monkeypatch.chdir(tmp_path / "storm")
    found = commands(block)
    assert len(found) == 6
    for command in found:
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(command)[1:])
        assert stopped.value.code == 0, command
    printed = capsys.readouterr().out
    assert "335" in printed
    assert "preempts" in printed


def test_the_figures_shown_are_those_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = next(block for block in blocks("") if "observed" in block).splitlines()[1:]
    path = next(word for block in blocks("sh") for word in block.split() if word.endswith("requests.parquet"))
    with pytest.raises(SystemExit) as stopped:
        main(["replay", str(ROOT / path), "--quiet"])
    assert stopped.value.code == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in shown:
        assert any(line.split()[-4:] == words[-4:] for words in printed if words), line


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = blocks("python")[0]
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own README
    assert "tracekit" in sys.modules
