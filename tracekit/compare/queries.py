"""The named queries: each ``queries/<name>.sql`` answers one question and documents its columns in its header.

A header line ``-- $name = value: meaning`` declares a parameter with its default. A query that names ``observed.`` or
``simulated.`` needs two runs; every other one reads the tables of a single run.
"""

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from tracekit.errors import InputError

ParameterValue = int | float | str | bool | None

_PARAMETER: Final = re.compile(r"^\$(\w+) = (\S+): ", re.MULTILINE)


@dataclass(frozen=True)
class NamedQuery:
    """A stored query: its text, its header as prose, its parameters' defaults and how many runs it reads."""

    name: str
    doc: str
    sql: str
    parameters: dict[str, ParameterValue]
    num_runs: int

    @property
    def summary(self) -> str:
        """The first line of the header."""
        return self.doc.partition("\n")[0]


def list_queries() -> list[NamedQuery]:
    """Every stored query, by name."""
    folder = files("tracekit.compare") / "queries"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [named_query(name.removesuffix(".sql")) for name in names]


def named_query(name: str) -> NamedQuery:
    """The stored query of that name; raises ``InputError`` with the names there are."""
    folder = files("tracekit.compare") / "queries"
    known = {entry.name.removesuffix(".sql"): entry for entry in folder.iterdir() if entry.name.endswith(".sql")}
    if name not in known:
        msg = f"no query is named {name!r}; there are: {', '.join(sorted(known))}"
        raise InputError(msg)
    sql = known[name].read_text(encoding="utf-8")
    header = _header(sql)
    doc = "\n".join(header)
    body = sql.split("\n", len(header))[-1]
    return NamedQuery(
        name, doc, sql, declared_parameters(sql), 2 if re.search(r"\b(observed|simulated)\.", body) else 1
    )


def declared_parameters(sql: str) -> dict[str, ParameterValue]:
    """The parameters that a query's header declares, with their defaults (JSON: ``10``, ``0.5``, ``"text"``, ``null``)."""
    found: dict[str, ParameterValue] = {}
    for name, value in _PARAMETER.findall("\n".join(_header(sql))):
        try:
            found[name] = json.loads(value)
        except ValueError:
            continue  # a user's own comment that looks alike
    return found


def _header(sql: str) -> list[str]:
    lines = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").removeprefix(" ").rstrip())
    return lines
