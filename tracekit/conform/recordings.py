"""Recorded cases on disk.

A *set* is a folder with ``index.json`` ({case: {log: [labels with exactly these rows]}}) and a folder a case:
``config.json``, ``workload.jsonl``, ``<log>.jsonl.gz``. A label is a vLLM version, with ``-v0`` or ``-v1`` where the
engine is not that version's default; ``!`` behind it: vLLM crashed after the last row. A *recording* is one folder with
``config.json``, ``workload.jsonl`` and ``steps.jsonl[.gz]``; its rules must be named.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import InputError
from tracekit.model.rules import Engine, Rules, rules_for

Row = dict[str, Any]


@dataclass(frozen=True)
class Log:
    """One file of recorded rows and the labels, all with the same rules, that it stands for."""

    path: Path
    labels: tuple[str, ...]
    rules: Rules
    crashed: bool


@dataclass(frozen=True)
class Case:
    """A configuration, a workload, and what engines decided."""

    name: str
    config: Row
    workload: tuple[Row, ...]
    logs: tuple[Log, ...]


def find_cases(path: Path, rules: str | None, engine: Engine | None) -> Iterator[Case]:
    """The cases of a set, or a single recording; ``rules`` and ``engine`` restrict a set's labels."""
    if (path / "index.json").is_file():
        index = read_object(path / "index.json")
        for name in sorted(index):
            logs = tuple(_logs_of(path / name, index[name], rules, engine))
            if logs:
                yield _case(path / name, logs)
        return
    if not path.exists():
        msg = f"{path}: no such file or directory"
        raise InputError(msg)
    log = next((path / name for name in ("steps.jsonl", "steps.jsonl.gz") if (path / name).is_file()), None)
    if log is None or not (path / "config.json").is_file():
        msg = f"{path}: expected index.json, or config.json, workload.jsonl and steps.jsonl[.gz]"
        raise InputError(msg)
    if rules is None:
        msg = f"{path}: a single recording needs the vLLM version whose rules apply (--rules VERSION)"
        raise InputError(msg)
    yield _case(path, (Log(log, (rules,), rules_for(rules, engine), crashed=False),))


def read_object(path: Path) -> Row:
    """A JSON object; raises ``InputError`` for anything else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        msg = f"{path}: expected a JSON object"
        raise InputError(msg) from error
    if not isinstance(value, dict):
        msg = f"{path}: expected a JSON object, found {type(value).__name__}"
        raise InputError(msg)
    return value


def read_rows(path: Path) -> list[Row]:
    """One JSON object a line, gzipped or not; raises ``InputError`` with the line's number."""
    rows: list[Row] = []
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows.append(_row(path, number, line))
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror or 'not a gzip file'})"
        raise InputError(msg) from error
    return rows


def _row(path: Path, number: int, line: str) -> Row:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        msg = f"{path}:{number}: expected a JSON object"
        raise InputError(msg)
    return value


def _case(folder: Path, logs: tuple[Log, ...]) -> Case:
    return Case(folder.name, read_object(folder / "config.json"), tuple(read_rows(folder / "workload.jsonl")), logs)


def _logs_of(
    folder: Path, index: Mapping[str, Sequence[str]], rules: str | None, engine: Engine | None
) -> Iterator[Log]:
    wanted = None if rules is None else rules_for(rules, engine)
    for digest in sorted(index):
        groups: dict[tuple[Rules, object, object, bool], list[str]] = {}
        for label in index[digest]:
            label_rules = _rules_of_label(label)
            if wanted in {None, label_rules} and engine in {None, label_rules.engine}:
                key = (label_rules, label_rules.prefix_stats, label_rules.window, label.endswith("!"))
                groups.setdefault(key, []).append(label)
        for (*_, crashed), labels in groups.items():
            yield Log(folder / f"{digest}.jsonl.gz", tuple(labels), _rules_of_label(labels[0]), crashed)


def _rules_of_label(label: str) -> Rules:
    version, _, suffix = label.rstrip("!").partition("-")
    engines: dict[str, Engine] = {"v0": "v0", "v1": "v1"}
    return rules_for(version, engines.get(suffix))
