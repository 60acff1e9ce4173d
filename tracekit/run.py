"""A Run: what happened, observed or simulated, in the same tables; load it, look at it, save it."""

import html
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from tracekit import __version__
from tracekit.config import SETTINGS, ConfigValue, setting_value
from tracekit.errors import ConfigError, InputError, OutputExistsError
from tracekit.schema.parquet import (
    check_values,
    conform,
    empty,
    num_rows,
    read_frame,
    read_metadata,
    read_table,
    write_table,
)
from tracekit.schema.tables import REQUESTS, TABLES, TABLES_BY_NAME

Kind = Literal["observed", "simulated", "reconstructed"]

RUN_FILE: Final = "run.json"
NUMBERED: Final = "request_id: "
"""How the note begins that a trace's requests had to be numbered."""
_KINDS: Final = ("observed", "simulated", "reconstructed")
_FORMAT: Final = 1


@dataclass
class Run:
    """Tables of one run and how they came about.

    ``tables`` holds the frames by name; ask for one with ``run.requests`` or ``run.table(name)``: a table that the
    source could not fill is absent and shows as an empty frame. ``start_unix_ns``: wall clock of the first arrival,
    null when unknown. ``info``: what else ``run.json`` says (sources, skipped, notes, step_time, engine).
    """

    kind: Kind
    tables: dict[str, pl.DataFrame]
    config: dict[str, ConfigValue] = field(default_factory=dict)
    start_unix_ns: int | None = None
    info: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        self.tables = {name: conform(TABLES_BY_NAME[name], frame, name) for name, frame in self.tables.items()}

    @property
    def name(self) -> str:
        """The directory's or file's name, or the kind of a run that lies in memory only."""
        return self.label or (self.path.name if self.path else self.kind)

    def has(self, name: str) -> bool:
        """Whether the table is there at all."""
        return name in self.tables or (self.path is not None and (self.path / f"{name}.parquet").is_file())

    def table(self, name: str) -> pl.DataFrame:
        """The table of that name with all its declared columns; empty when the run does not have it."""
        if name not in self.tables:
            declared = TABLES_BY_NAME[name]
            if not self.has(name) or self.path is None:
                return empty(declared)
            self.tables[name] = read_table(declared, self.path / f"{name}.parquet")
        return self.tables[name]

    @property
    def requests(self) -> pl.DataFrame:
        """What arrived and what became of it."""
        return self.table("requests")

    @property
    def steps(self) -> pl.DataFrame:
        """The scheduler's steps."""
        return self.table("steps")

    @property
    def preemptions(self) -> pl.DataFrame:
        """The evictions."""
        return self.table("preemptions")

    @property
    def engine_stats(self) -> pl.DataFrame:
        """The periodic samples."""
        return self.table("engine_stats")

    @property
    def events(self) -> pl.DataFrame:
        """Anything else with a time."""
        return self.table("events")

    @property
    def distributions(self) -> pl.DataFrame:
        """Histograms."""
        return self.table("distributions")

    def save(self, path: str | Path, *, force: bool = False) -> list[str]:
        """Write the run: a directory, or the requests alone when the path ends in ``.parquet``.

        Nothing half-written is ever seen under the path. Returns the names of tables that a single file cannot hold.
        Raises ``OutputExistsError`` when the path exists, unless ``force`` is given and it is a run.
        """
        target = Path(path)
        if target.suffix == ".parquet":
            with _swapped_in(target, force=force) as sibling:
                write_table(REQUESTS, self.requests, sibling, {"tracekit.run": json.dumps(self.describe_json())})
            return [table.name for table in TABLES if table is not REQUESTS and self.table(table.name).height]
        with _swapped_in(target, force=force) as sibling:
            sibling.mkdir()
            for table in TABLES:
                if table is REQUESTS or self.has(table.name):
                    write_table(table, self.table(table.name), sibling / f"{table.name}.parquet")
            text = json.dumps(self.describe_json(), indent=1, ensure_ascii=False)
            (sibling / RUN_FILE).write_text(text + "\n", encoding="utf-8")
        self.path = target
        return []

    def describe_json(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        return {
            "format": _FORMAT,
            "tracekit_version": __version__,
            "kind": self.kind,
            "start_unix_ns": self.start_unix_ns,
            "config": {name: asdict(value) for name, value in sorted(self.config.items())},
            "tables": {table.name: self.table(table.name).height for table in TABLES if self.has(table.name)},
            **self.info,
        }

    def describe(self) -> dict[str, Any]:
        """The run in a few figures: kind, requests, span, lengths, preemptions; unknown ones are None."""
        requests = self.requests
        arrivals = requests["arrival_ns"].drop_nulls()
        first, last = (arrivals.min(), arrivals.max()) if len(arrivals) else (None, None)
        started = None
        if self.start_unix_ns is not None:
            started = datetime.fromtimestamp(self.start_unix_ns / 1e9, tz=UTC).isoformat(timespec="seconds")
        return {
            "kind": self.kind,
            "started": started,
            "num_requests": requests.height,
            "arrivals_span_s": (last - first) / 1e9 if isinstance(first, int) and isinstance(last, int) else None,
            "mean_prompt_tokens": requests["num_prompt_tokens"].mean(),
            "mean_output_tokens": requests["num_output_tokens"].mean(),
            "num_steps": self.steps.height if self.has("steps") else None,
            "num_preemptions": self.preemptions.height if self.has("preemptions") else None,
            "num_engine_stats": self.engine_stats.height if self.has("engine_stats") else None,
        }

    def __repr__(self) -> str:
        figures = ", ".join(f"{k}={_short(v)}" for k, v in self.describe().items() if v is not None and k != "kind")
        return f"<{self.kind} run {self.name}: {figures}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key.replace('_', ' '))}</th>"
            f"<td>{html.escape(_short(value))}</td></tr>"
            for key, value in self.describe().items()
            if value is not None
        )
        config = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value.value))}</td>"
            f"<td>{value.origin}</td><td>{html.escape(value.where or '')}</td></tr>"
            for name, value in sorted(self.config.items())
        )
        return (
            f"<b>{html.escape(self.name)}</b><table>{rows}</table><details><summary>config</summary>"
            f"<table><tr><th>key</th><th>value</th><th>origin</th><th>where</th></tr>{config}</table></details>"
        )


def _short(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def load(path: str | Path) -> Run:
    """Load a run directory, a run's single file, or a bare Parquet file with the arrival columns (a trace).

    Raises ``InputError`` when it is none of these.
    """
    source = Path(path)
    if source.is_dir():
        return _load_directory(source)
    if not source.exists():
        msg = f"{source}: no such file or directory"
        raise InputError(msg)
    if source.name == "requests.parquet" and (source.parent / RUN_FILE).is_file():
        return _load_directory(source.parent)
    frame = read_frame(source)
    described = read_metadata(source)
    requests = _trace_requests(frame, str(source))
    if described is None:
        notes = [f"{source.name} is a bare trace: arrivals only, no configuration", *_id_notes(frame)]
        return Run("observed", {"requests": requests}, info={"notes": notes}, path=source)
    run = _from_json(described, f"{source} (its metadata)")
    run.tables["requests"] = requests
    run.path = source
    return run


def _load_directory(source: Path) -> Run:
    try:
        found = json.loads((source / RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"{source}: not a run, it has no {RUN_FILE}; make one with: tracekit ingest SOURCE... -o RUN"
        raise InputError(msg) from None
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{source / RUN_FILE}: expected JSON ({type(error).__name__})"
        raise InputError(msg) from error
    run = _from_json(found, str(source / RUN_FILE))
    _check_heights(source, found.get("tables"))
    run.path = source
    return run


def _check_heights(source: Path, counts: object) -> None:
    """The tables must be those that ``run.json`` speaks of; only the files' footers are read."""
    if counts is None:
        return
    if not isinstance(counts, Mapping):
        msg = f"{source / RUN_FILE}: tables must be a JSON object"
        raise InputError(msg)
    for name, count in counts.items():
        path = source / f"{name}.parquet"
        if name not in TABLES_BY_NAME or not path.is_file():
            continue
        height = num_rows(path)
        if height != count:
            msg = f"{path}: {height:,} rows, but {RUN_FILE} says {count!r}: it belongs to another run, or was cut"
            raise InputError(msg)


def _from_json(found: object, where: str) -> Run:
    """A run without tables from the content of ``run.json``, which may come from a stranger: everything is checked."""
    if (
        not isinstance(found, Mapping)
        or found.get("kind") not in _KINDS
        or not isinstance(found.get("config"), Mapping)
    ):
        msg = f"{where}: expected an object with kind and config, as tracekit writes it"
        raise InputError(msg)
    written = found.get("format", _FORMAT)
    if written != _FORMAT or isinstance(written, bool):
        newer = isinstance(written, int) and written > _FORMAT
        msg = (
            f"{where}: format {str(written)[:20]!r} is not known (expected {_FORMAT})"
            + "; a newer tracekit reads it" * newer
        )
        raise InputError(msg)
    config: dict[str, ConfigValue] = {}
    for name, entry in found["config"].items():
        if (
            name not in SETTINGS
            or not isinstance(entry, Mapping)
            or not isinstance(entry.get("value"), bool | int | float | str)
        ):
            msg = f"{where}: config holds an entry that is not a known key with a value"
            raise InputError(msg)
        origin = entry.get("origin")
        if origin not in {"logged", "given", "inferred", "default"}:
            msg = f"{where}: config.{name}.origin must be logged, given, inferred or default"
            raise InputError(msg)
        try:
            value = setting_value(name, entry["value"], origin, f"{where}: config")
        except ConfigError as error:
            raise InputError(str(error)) from error
        config[name] = ConfigValue(value.value, origin, str(entry["where"]) if entry.get("where") else None)
    start = found.get("start_unix_ns")
    if start is not None and (not isinstance(start, int) or abs(start) >= 1 << 63):
        msg = f"{where}: start_unix_ns must be a whole number or null"
        raise InputError(msg)
    _check_info(found, where)
    known = {"format", "tracekit_version", "kind", "config", "start_unix_ns", "tables"}
    return Run(found["kind"], {}, config, start, {key: value for key, value in found.items() if key not in known})


_INFO_TYPES: Final[dict[str, type]] = {
    "sources": list,
    "skipped": list,
    "limits": list,
    "notes": list,
    "step_time": dict,
    "replayed": dict,
    "prefix_cache": dict,
}


def _check_info(found: Mapping[str, Any], where: str) -> None:
    """What else ``run.json`` says must have the shape that tracekit writes, since people are shown it."""
    for name, kind in _INFO_TYPES.items():
        if name in found and not isinstance(found[name], kind):
            msg = f"{where}: {name} must be a {'list' if kind is list else 'JSON object'}"
            raise InputError(msg)
    for entry in found.get("skipped", []):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("count"), int) or "what" not in entry:
            msg = f"{where}: skipped must hold objects with what and count"
            raise InputError(msg)
    if not all(isinstance(count, int) for count in found.get("prefix_cache", {}).values()):
        msg = f"{where}: prefix_cache must hold whole numbers"
        raise InputError(msg)


def _id_notes(frame: pl.DataFrame) -> list[str]:
    """Say why a trace's requests are numbered."""
    if "request_id" not in frame.columns:
        return []
    ids = frame["request_id"]
    counts = {"missing": ids.null_count(), "repeated": ids.len() - ids.null_count() - ids.drop_nulls().n_unique()}
    found = " and ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return [f"{NUMBERED}{found}, so requests are numbered; its own ids stand in source_request_id"] if found else []


def _trace_requests(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    """The requests of a bare Parquet file: the declared columns, ``arrival_s`` read as well as ``arrival_ns``."""
    names = set(frame.columns)
    missing = [name for name in ("num_prompt_tokens", "num_output_tokens") if name not in names]
    if missing or not names & {"arrival_ns", "arrival_s"}:
        wanted = missing[0] if missing else "arrival_ns (or arrival_s)"
        msg = (
            f"{where}: not a trace, column {wanted} is missing; map foreign columns with: "
            f"tracekit ingest {Path(where).name} --column arrival=... --column num_prompt_tokens=... "
            "--column num_output_tokens=... -o RUN"
        )
        raise InputError(msg)
    if "arrival_ns" not in names:
        if not frame["arrival_s"].dtype.is_numeric():
            msg = f"{where}: arrival_s must be a number of seconds, found {str(frame['arrival_s'].dtype).lower()}"
            raise InputError(msg)
        seconds = frame["arrival_s"].cast(pl.Float64)
        arrival = (seconds * 1e9).round(0).cast(pl.Int64, strict=False)
        if arrival.null_count() > seconds.null_count():
            msg = f"{where}: arrival_s holds a value that is no number of seconds (row {(arrival.is_null() & seconds.is_not_null()).arg_max()})"
            raise InputError(msg)
        frame = frame.with_columns(arrival.alias("arrival_ns"))
    if "request_id" not in names or frame["request_id"].null_count() or frame["request_id"].is_duplicated().any():
        renamed = {"request_id": "source_request_id"} if "request_id" in names else {}
        frame = frame.rename(renamed).with_columns(
            request_id=pl.concat_str(pl.lit("request-"), pl.int_range(frame.height).cast(pl.String))
        )
        if renamed:
            frame = frame.with_columns(pl.col("source_request_id").cast(pl.String))
    elif frame["request_id"].dtype.is_integer():
        frame = frame.with_columns(pl.col("request_id").cast(pl.String))
    requests = conform(REQUESTS, frame.select(c for c in frame.columns if c in REQUESTS.column_names), where)
    check_values(REQUESTS, requests, where)
    return requests


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that exists (with ``force``: that is not a run) before any work is done for it."""
    target = Path(path)
    if target.exists() and not force:
        msg = f"{target} exists; choose another name or give --force"
        raise OutputExistsError(msg)
    if target.exists() and not _is_run(target):
        msg = f"{target} exists and is not a run of tracekit; --force does not replace it"
        raise OutputExistsError(msg)
    if not target.parent.is_dir():
        msg = f"{target.parent}: no such directory"
        raise OutputExistsError(msg)


@contextmanager
def _swapped_in(target: Path, *, force: bool) -> Iterator[Path]:
    """Give a sibling path to write to and move it into place at the end; on any failure nothing is left behind."""
    check_output(target, force=force)
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    sibling = target.with_name(f".{target.name}.{token}.new")
    old = target.with_name(f".{target.name}.{token}.old")
    try:
        yield sibling
        if target.exists():
            target.rename(old)
        sibling.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        for leftover in (sibling, old):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def _is_run(target: Path) -> bool:
    if target.is_dir():
        return (target / RUN_FILE).is_file()
    return target.suffix == ".parquet" and read_metadata(target) is not None
