"""Any table of requests (CSV, TSV, JSON lines, a JSON list, Parquet) through ``--column TARGET=SOURCE``."""

from typing import Final

import polars as pl

from tracekit.schema.parquet import read_metadata
from tracekit.sources import (
    agent_sessions,
    aiperf,
    azure,
    bailian,
    bench_serve,
    burstgpt,
    event_traces,
    guidellm,
    metrics,
    mooncake,
    otlp,
)
from tracekit.sources.any_rows import good_rows, refuse_nothing_usable
from tracekit.sources.block_hashes import DEFAULT_BLOCK_SIZE, stored_block_size
from tracekit.sources.files import left_out_note
from tracekit.sources.observation import Accounting, ColumnMapping, Material, Observation, Options, Source
from tracekit.sources.request_rows import finish
from tracekit.sources.table_columns import INSTANTS, mappings_for, parse_column
from tracekit.sources.table_read import batches, open_table, table_kind
from tracekit.sources.table_rows import Converter, one_clock

__all__ = ["SOURCE", "detects", "parse_column", "read"]

_NAMED_FORMATS: Final = (
    azure, mooncake, bench_serve, metrics, burstgpt, bailian, guidellm, aiperf, otlp, agent_sessions, event_traces,
)  # fmt: skip


def detects(material: Material) -> bool:
    """A table that is none of the traces and results with a format of their own."""
    return table_kind(material.head) is not None and not any(source.detects(material) for source in _NAMED_FORMATS)


def read(material: Material, options: Options) -> Observation:
    """Read a table of requests; every row is understood, blank (other), or unreadable with its reason counted.

    Without ``options.columns`` the table must carry the canonical names. Raises ``InputError`` when a needed column is
    missing, instants are on different clocks, no row can be used, or (``strict``) a row is refused.
    """
    table = open_table(material.files, material.head)
    where = str(material.path)
    mappings, is_canonical = mappings_for(options.columns, table.columns, where)
    observation = Observation("table", material.name, "relative", accounting=Accounting("rows"))
    observation.notes.extend(left_out_note(material))
    hashing = _hashing(mappings, options, observation, is_canonical=is_canonical, material=material)
    converter = Converter(mappings, where, hashing)
    rows = batches(table, converter.wanted, observation.accounting, options.progress)
    good = list(good_rows(rows, converter, observation, strict=options.strict))
    refuse_nothing_usable(observation, where)
    is_unix = one_clock(converter.absolute, mappings, where)
    observation.clock = "unix" if is_unix else "relative"
    _note_units(converter, observation)
    frame = pl.concat(good) if good else converter.no_rows()
    observation.tables["requests"] = finish(frame, observation)
    return observation


def _hashing(
    mappings: tuple[ColumnMapping, ...],
    options: Options,
    observation: Observation,
    *,
    is_canonical: bool,
    material: Material,
) -> tuple[int, int] | None:
    mapping = next((mapping for mapping in mappings if mapping.target == "block_hashes"), None)
    if mapping is None:
        return None
    known = options.config.get("hash_block_size")
    if is_canonical:
        given = known.value if known is not None else _stored_hash_block_size(material)
        observation.hash_block_size = (
            given if isinstance(given, int) else stored_block_size(DEFAULT_BLOCK_SIZE, options.config)
        )
        return None
    engine = options.config.get("block_size")
    if mapping.unit is not None:
        tokens_per_id, how = int(mapping.unit), "as given"
    elif known is not None:
        tokens_per_id, how = int(known.value), "from hash_block_size"
    elif engine is not None:
        tokens_per_id, how = int(engine.value), "taken from the engine's block_size"
    else:
        tokens_per_id, how = DEFAULT_BLOCK_SIZE, "assumed; say block_hashes=SOURCE:TOKENS otherwise"
    block_size = stored_block_size(tokens_per_id, options.config)
    observation.hash_block_size = block_size
    observation.notes.append(
        f"{observation.file}: an id of {mapping.sources[0]} stands for {tokens_per_id} tokens ({how}); hashed in blocks of {block_size}"
    )
    return tokens_per_id, block_size


def _stored_hash_block_size(material: Material) -> object:
    """What the ``run.json`` in a Parquet file says of its hashes; a stranger's may hold anything."""
    found: object = read_metadata(material.files[0])
    for key in ("config", "hash_block_size", "value"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def _note_units(converter: Converter, observation: Observation) -> None:
    sources = {mapping.target: mapping.sources[0] for mapping in converter.mappings}
    inferred = [f"{sources[target]} in {unit}" for target, unit in converter.units.items()]
    if inferred:
        clock = "Unix time" if observation.clock == "unix" else "a clock with its own zero"
        said = ", ".join(dict.fromkeys(inferred))
        times = f", read as {clock}" if any(target in INSTANTS for target in converter.units) else ""
        observation.notes.append(
            f"{observation.file}: units inferred: {said}{times}; give them with --column TARGET=SOURCE:UNIT"
        )
    if converter.zoneless:
        observation.notes.append(
            f"{observation.file}: {', '.join(sorted(converter.zoneless))} names no zone; read as UTC"
        )


SOURCE: Final = Source(
    "table", "any CSV, TSV, JSON lines, JSON list or Parquet table, mapped with --column", detects, read
)
