"""What a column and a table are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column: Arrow type by name (``int64``, ``list<uint64>``, ...), unit, nullability and one line of meaning."""

    name: str
    type: str
    doc: str
    unit: str | None = None
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """One table of a run: what a row is, and its columns in stored order."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        """The column names in stored order."""
        return tuple(column.name for column in self.columns)
