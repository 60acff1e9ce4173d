"""The queries of a postmortem and the answers they gave, so that every number can be traced to its SQL."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def query_text(name: str) -> str:
    """The documented SQL of one query."""
    return (files("tracekit.postmortem") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


@dataclass
class Asking:
    """One run's database; ``asked`` holds the names and parameters of what was asked, in order."""

    connection: "duckdb.DuckDBPyConnection"
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def rows(self, name: str, **parameters: float) -> list[dict[str, Any]]:
        """The rows of a query."""
        if (name, parameters) not in self.asked:
            self.asked.append((name, parameters))
        result = self.connection.execute(query_text(name), parameters or None)
        columns = [column[0] for column in result.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

    def row(self, name: str, **parameters: float) -> dict[str, Any] | None:
        """The only row of a query, or None."""
        found = self.rows(name, **parameters)
        return found[0] if found else None
