"""From what a server and its clients left behind to one observed run."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.config import STEP_TIME_SETTINGS, ConfigValue, parse_setting
from tracekit.errors import InputError
from tracekit.progress import Progress, no_progress
from tracekit.run import Run
from tracekit.schema.parquet import conform
from tracekit.schema.tables import TABLES
from tracekit.sources import (
    agent_sessions,
    aiperf,
    any_table,
    azure,
    bailian,
    bench_serve,
    burstgpt,
    event_traces,
    guidellm,
    metrics,
    mooncake,
    otlp,
    vllm_log,
)
from tracekit.sources.clocks import Placement, local_to_unix, place_local, place_relative, shifted
from tracekit.sources.files import material_of, sha256_of
from tracekit.sources.joining import join_requests, looks_closed_loop
from tracekit.sources.observation import Material, Observation, Options, Source

SOURCES: Final[tuple[Source, ...]] = (
    vllm_log.SOURCE,
    metrics.SOURCE,
    bench_serve.SOURCE,
    guidellm.SOURCE,
    aiperf.SOURCE,
    otlp.SOURCE,
    agent_sessions.SOURCE,
    event_traces.SOURCE,
    bailian.SOURCE,
    mooncake.SOURCE,
    burstgpt.SOURCE,
    azure.SOURCE,
    any_table.SOURCE,
)
"""In the order in which they are asked, and read: what tells the configuration comes before what needs it."""

_LARGE_BYTES: Final = 1 << 20
_RANK: Final = {"given": 0, "logged": 1, "inferred": 2, "default": 3}


@dataclass
class Part:
    """One source: its files, what it tells, and where its clock lies."""

    material: Material
    source: Source
    observation: Observation
    placement: Placement | None = None


def ingest(
    paths: Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - the option's name
    columns: Sequence[str] = (),
    settings: Sequence[str] = (),
    timezone: str | None = None,
    start: int | None = None,
    hash_key: str | None = None,
    strict: bool = False,
    progress: Progress = no_progress,
) -> Run:
    """Read one incident's files into an observed run.

    ``columns``: ``TARGET=SOURCE[:UNIT]`` for tables; ``settings``: ``key=value``; ``timezone``: zone of the server
    log's clock; ``start``: which start of the server in the log, from 1. Instants of the run are ns from its first
    arrival. Raises ``InputError`` or ``ConfigError``; nothing is dropped without being counted in ``run.info``.
    """
    if not paths:
        msg = "nothing to ingest: give at least one file or directory"
        raise InputError(msg)
    given = dict(parse_setting(setting) for setting in settings)
    options = Options(
        columns=tuple(any_table.parse_column(column) for column in columns),
        config=dict(given),
        hash_key=hash_key.encode() if hash_key is not None else None,
        strict=strict,
        start=start,
        progress=_with_rate(progress),
    )
    parts = _read_all([material_of(Path(path)) for path in paths], format, options)
    if strict:
        _refuse_unreadable(parts)
    unix_known = _align(parts, timezone)
    tables, skipped = _merge_tables(parts)
    start_ns = _start_of(tables)
    tables = shifted(tables, -start_ns)
    config = _merge_config(parts, given)
    step_time = {name: config.pop(name).value for name in STEP_TIME_SETTINGS if name in config}
    info: dict[str, Any] = {
        "sources": [_describe(part) for part in parts],
        "skipped": skipped,
        "notes": _notes(parts, tables),
    }
    if step_time:
        info["step_time"] = {"form": "affine", **step_time, "origin": "given", "where": "--set"}
    return Run("observed", tables, config, start_ns if unix_known else None, info)


def _with_rate(progress: Progress) -> Progress:
    """The same callback, told how fast the bytes of a large source are read."""
    began: dict[str, float] = {}

    def told(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        took = now - began.setdefault(what, now)
        rate = f", {done / took / 1e6:,.0f} MB/s" if took > 0 and total >= _LARGE_BYTES else ""
        progress(f"{what}{rate}{', bytes' if total >= _LARGE_BYTES else ''}", done, total)

    return told


def _read_all(materials: Sequence[Material], forced: str | None, options: Options) -> list[Part]:
    chosen = sorted(
        ((_source_of(material, forced), material) for material in materials),
        key=lambda pair: SOURCES.index(pair[0]),
    )
    parts: list[Part] = []
    known = dict(options.config)
    for source, material in chosen:
        observation = source.read(material, _with_config(options, known))
        for name, value in observation.config.items():
            if name not in known or _RANK[value.origin] < _RANK[known[name].origin]:
                known[name] = value
        parts.append(Part(material, source, observation))
    order = [material.path for material in materials]
    return sorted(parts, key=lambda part: order.index(part.material.path))


def _with_config(options: Options, config: Mapping[str, ConfigValue]) -> Options:
    return Options(options.columns, dict(config), options.hash_key, options.strict, options.start, options.progress)


def _source_of(material: Material, forced: str | None) -> Source:
    if not material.head:
        msg = f"{material.path}: the file is empty"
        raise InputError(msg)
    names = ", ".join(source.name for source in SOURCES)
    if forced is not None:
        for source in SOURCES:
            if source.name == forced:
                return source
        msg = f"--format: expected one of {names}"
        raise InputError(msg)
    for source in SOURCES:
        if source.detects(material):
            return source
    msg = (
        f"{material.path}: no known format; tracekit reads {names} "
        "(any CSV, JSONL or Parquet table with --column TARGET=SOURCE)"
    )
    raise InputError(msg)


def _refuse_unreadable(parts: Iterable[Part]) -> None:
    for part in parts:
        account = part.observation.accounting
        if account.unreadable:
            where = ", ".join(map(str, account.unreadable_at))
            msg = (
                f"{part.material.path}: {account.unreadable} unreadable {account.unit} ({where}); --strict refuses them"
            )
            raise InputError(msg)


def _align(parts: Sequence[Part], timezone: str | None) -> bool:
    """Bring all clocks to one; returns whether it is absolute. Each part's placement says how."""
    for part in parts:
        if part.observation.clock == "local" and timezone is not None:
            part.observation.tables = local_to_unix(part.observation.tables, timezone)
            part.observation.clock = "unix"
            part.placement = Placement(0, f"--timezone {timezone}")
        elif part.observation.clock == "unix":
            part.placement = Placement(0, "absolute time in the source")
    placed = [part for part in parts if part.observation.clock == "unix"]
    is_unix = bool(placed)
    for kind, place in (("local", place_local), ("relative", place_relative)):
        for part in parts:
            if part.observation.clock != kind or part.placement is not None:
                continue
            if not placed:
                part.placement = Placement(0, "the only clock" if len(parts) == 1 else "the reference for the others")
            else:
                found = place(part.observation, [other.observation for other in placed])
                part.placement = found or _by_start(part, placed)
            part.observation.tables = shifted(part.observation.tables, part.placement.offset_ns)
            placed.append(part)
    return is_unix


def _by_start(part: Part, placed: Sequence[Part]) -> Placement:
    """The last resort: let the first instants coincide, and say so."""
    own = _start_of(part.observation.tables)
    reference = min(_start_of(other.observation.tables) for other in placed)
    part.observation.notes.append(
        f"{part.observation.file}: its clock could not be aligned with the others by running counts; its first instant "
        "was laid on theirs (give --timezone, or sources with absolute time)"
    )
    return Placement(reference - own, "first instants laid together")


def _merge_tables(parts: Sequence[Part]) -> tuple[dict[str, pl.DataFrame], list[dict[str, Any]]]:
    skipped = [
        {"file": part.observation.file, "what": what, "count": count}
        for part in parts
        for what, count in part.observation.skipped.items()
        if count
    ]
    tables: dict[str, pl.DataFrame] = {}
    for table in TABLES[1:]:
        frames = [part.observation.tables[table.name] for part in parts if table.name in part.observation.tables]
        if frames:
            merged = pl.concat([conform(table, frame, table.name) for frame in frames])
            time_column = "start_ns" if table.name == "steps" else "time_ns"
            tables[table.name] = merged.sort(time_column, maintain_order=True)
    requests, lost = join_requests([part.observation for part in parts])
    skipped.extend(lost)
    if requests is not None:
        tables["requests"] = requests
    return tables, skipped


def _start_of(tables: Mapping[str, pl.DataFrame]) -> int:
    """The first arrival, else the first instant of anything."""
    for name, column in (
        ("requests", "arrival_ns"),
        ("steps", "start_ns"),
        ("engine_stats", "time_ns"),
        ("events", "time_ns"),
    ):
        if name in tables and column in tables[name].columns:
            first = tables[name][column].min()
            if isinstance(first, int):
                return first
    return 0


def _merge_config(parts: Sequence[Part], given: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    merged = dict(given)
    for part in sorted(parts, key=lambda part: SOURCES.index(part.source)):
        for name, value in part.observation.config.items():
            if name not in merged or _RANK[value.origin] < _RANK[merged[name].origin]:
                merged[name] = value
        size = part.observation.hash_block_size
        if size is not None and merged.get("hash_block_size", ConfigValue(0, "default")).value != size:
            merged["hash_block_size"] = ConfigValue(size, "inferred", part.observation.file)
    return merged


def _describe(part: Part) -> dict[str, Any]:
    observation, placement = part.observation, part.placement
    clock: dict[str, Any] = {"kind": observation.clock}
    if placement is not None:
        clock |= {"offset_ns": placement.offset_ns, "how": placement.how}
        if placement.error is not None:
            clock["fit_error"] = round(placement.error, 4)
    return {
        "file": observation.file,
        "format": observation.format,
        "files": len(part.material.files),
        "bytes": sum(path.stat().st_size for path in part.material.files),
        "sha256": sha256_of(part.material.files),
        "accounting": asdict(observation.accounting),
        "clock": clock,
    }


def _notes(parts: Sequence[Part], tables: Mapping[str, pl.DataFrame]) -> list[str]:
    notes = [note for part in parts for note in part.observation.notes]
    said = any("--max-concurrency" in note for note in notes)
    if not said and "requests" in tables and (bound := looks_closed_loop(tables["requests"])) is not None:
        notes.append(
            f"the client looks closed-loop: never more than {bound} in flight, and a new request mostly follows an end; "
            f"replay with --max-concurrency {bound} to let arrivals follow completions"
        )
    return notes
