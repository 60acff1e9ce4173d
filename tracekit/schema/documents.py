"""What is generated from the declared tables: one JSON file a table, and the data dictionary for people."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tracekit.schema.column import Column, Table
from tracekit.schema.tables import TABLES

_ROOT = Path(__file__).parents[2]
_DICTIONARY = Path("docs/data-dictionary.md")


def table_json(table: Table) -> str:
    """The table's declaration as JSON."""
    columns = [
        {"name": c.name, "type": c.type, "unit": c.unit, "nullable": c.nullable, "doc": c.doc} for c in table.columns
    ]
    return json.dumps({"table": table.name, "row": table.doc, "columns": columns}, indent=2, ensure_ascii=False) + "\n"


def dictionary_markdown() -> str:
    """All tables as one Markdown page."""
    lines = [
        "# Data dictionary",
        "",
        "Generated from `tracekit/schema/tables.py` by `python -m tracekit.schema`. Instants are int64 nanoseconds from",
        "the run's start (`start_unix_ns` in `run.json`: the first arrival); shares are 0..1; null means unknown or not",
        "applicable, never 0 or -1. A table that a source cannot fill is absent.",
    ]
    for table in TABLES:
        lines += [
            "",
            f"## {table.name}",
            "",
            f"One row is {table.doc}.",
            "",
            "| column | type | unit | meaning |",
            "|---|---|---|---|",
        ]
        lines += [_row(column) for column in table.columns]
    return "\n".join(lines) + "\n"


def _row(column: Column) -> str:
    required = "" if column.nullable else ", never null"
    return f"| `{column.name}` | {column.type}{required} | {column.unit or ''} | {column.doc} |"


def documents() -> dict[Path, str]:
    """Every generated file, relative to the project, with its content."""
    generated = {Path("schemas") / f"{table.name}.json": table_json(table) for table in TABLES}
    return generated | {_DICTIONARY: dictionary_markdown()}


def drifted(root: Path) -> list[Path]:
    """The generated files under ``root`` that are missing or say something else than the declaration."""
    return [
        path
        for path, content in documents().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != content
    ]


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with ``--check`` say which have drifted; returns the exit code."""
    if "--check" in arguments:
        stale = drifted(_ROOT)
        for path in stale:
            sys.stderr.write(f"{path} has drifted: run python -m tracekit.schema\n")
        return 1 if stale else 0
    for path, content in documents().items():
        (_ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (_ROOT / path).write_text(content, encoding="utf-8")
    return 0
