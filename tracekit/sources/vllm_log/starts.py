"""The starts of a server in one log: where each begins, what it said about itself, whether it served."""

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from tracekit.config import ConfigValue, Origin, Scalar, parse_version, setting_value
from tracekit.errors import ConfigError
from tracekit.sources.vllm_log.startup import Said
from tracekit.sources.vllm_log.versions import guess_version

_BLOCK_SIZE: Final = 16
_ROUNDING: Final = 0.0051
_TOLERANCE: Final = 0.0005


@dataclass
class Printed:
    """Sizes as printed, line by line (tensor-parallel workers print their own, a copied line is printed twice)."""

    kv_cache_tokens: list[int] = field(default_factory=list)
    max_concurrency: list[tuple[int, float]] = field(default_factory=list)
    available_kv_gib: list[float] = field(default_factory=list)
    model_load: list[tuple[float, str]] = field(default_factory=list)
    num_gpu_blocks: list[int] = field(default_factory=list)
    v0_blocks: list[tuple[int, int | None]] = field(default_factory=list)
    block_overrides: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Start:
    """One start of the server. ``said``: name -> value, origin and line (counted over all files, from 0)."""

    first_line: int
    has_server_version: bool = False
    has_banner: bool = False
    has_args: bool = False
    engines: dict[str, str] = field(default_factory=dict)
    is_ready: bool = False
    has_data: bool = False
    has_failed: bool = False
    said: dict[str, tuple[Scalar, Origin, int]] = field(default_factory=dict)
    printed: Printed = field(default_factory=Printed)
    stats_place: tuple[str, int] | None = None
    kv_place: tuple[str, int] | None = None
    max_log_len: int | None = None

    @property
    def served(self) -> bool:
        """Whether the server came up or something was asked of it."""
        return self.is_ready or self.has_data

    def say(self, said: list[Said], line: int, origin: Origin = "logged") -> None:
        """Note settings; what is printed after the server came up does not change it."""
        for name, value in said:
            if not self.served or name not in self.said:
                self.said[name] = (value, origin, line)

    def least(self, name: str, value: float, line: int) -> None:
        """Note a size of which several workers print their own: the engine uses the smallest."""
        known = self.said.get(name)
        if known is None or value < known[0]:  # type: ignore[operator]
            self.said[name] = (value, "logged", line)

    @property
    def is_marked(self) -> bool:
        """Whether a line that only a starting server prints was seen; a log cut later has none."""
        return self.has_server_version or self.has_banner or self.has_args or bool(self.engines)

    def begins_anew(self, marker: str, process: str = "", process_id: str = "") -> bool:
        """Whether a marker (``version``, ``banner``, ``args``, ``engine``) cannot belong to this start any more."""
        if self.served:
            return True
        if marker == "engine" and self.engines:
            # Ranks of one start have different names; the same name with another number is another start.
            return process in self.engines and (not process or self.engines[process] != process_id)
        if self.engines or "kv_cache_tokens" in self.said:
            return True
        seen = {"version": self.has_server_version, "banner": self.has_banner, "args": self.has_args}
        return seen.get(marker, False)

    def mark(self, marker: str, process: str, process_id: str) -> None:
        """Note a marker that belongs to this start."""
        if marker == "version":
            self.has_server_version = True
        elif marker == "banner":
            self.has_banner = True
        elif marker == "args":
            self.has_args = True
        else:
            self.engines[process] = process_id


def choose(starts: list[Start], wanted: int | None) -> int | None:
    """The position of the start that is the run: the one asked for (from 1), else the last that served, else the last."""
    if not starts:
        return None
    if wanted is not None:
        return wanted - 1
    served = [position for position, start in enumerate(starts) if start.served]
    return served[-1] if served else len(starts) - 1


def config_of(start: Start, where: "WhereOf") -> tuple[dict[str, ConfigValue], list[str]]:
    """The configuration that a start stated, and notes about what it could not settle."""
    config: dict[str, ConfigValue] = {}
    notes: list[str] = []
    for name, (value, origin, line) in start.said.items():
        try:
            config[name] = setting_value(name, value, origin, where[line])
        except ConfigError:
            notes.append(f"{where[line]}: {name} has a value that vLLM would refuse; left out")
    _infer_version(start, config, where)
    _infer_blocks(config, start, where)
    return config, notes


class WhereOf:
    """Names a line: ``server.log:12``."""

    def __init__(self, files: list[tuple[int, str]]) -> None:
        self._files = files

    def place(self, line: int) -> tuple[str, int]:
        """The file and the number (from 1) of a line counted over all files."""
        first, name = self._files[0]
        for low, candidate in self._files:
            if low > line:
                break
            first, name = low, candidate
        return name, line - first + 1

    def columns(self, lines: pl.Series) -> list[pl.Series]:
        """The columns ``file`` and ``number`` of many lines."""
        firsts = pl.Series([first for first, _ in self._files], dtype=pl.Int64)
        names = pl.Series([name for _, name in self._files], dtype=pl.String)
        index = firsts.search_sorted(lines, side="right") - 1
        return [names.gather(index).alias("file"), (lines - firsts.gather(index) + 1).alias("number")]

    def __getitem__(self, line: int) -> str:
        name, number = self.place(line)
        return f"{name}:{number}"


def _infer_version(start: Start, config: dict[str, ConfigValue], where: "WhereOf") -> None:
    if "vllm_version" not in config:
        stats, kv = start.stats_place, start.kv_place
        guess = guess_version(stats[0] if stats else None, kv[0] if kv else None)
        if guess:
            place = stats if stats and stats[0] == guess[1] else kv
            line = place[1] if place else 0
            config["vllm_version"] = ConfigValue(guess[0], "inferred", f"{where[line]} [{guess[1]}]")


def _infer_blocks(config: dict[str, ConfigValue], start: Start, where: "WhereOf") -> None:
    """Derive the number of blocks from the KV cache size where that is exact (see ``exact_blocks``)."""
    if "num_gpu_blocks" in config or "kv_cache_tokens" not in config:
        return
    tokens = int(config["kv_cache_tokens"].value)
    block = int(config["block_size"].value) if "block_size" in config else _BLOCK_SIZE
    lengths = {length for length, _ in start.printed.max_concurrency}
    length = lengths.pop() if len(lengths) == 1 else None
    concurrency = min((x for _, x in start.printed.max_concurrency), default=None)
    version = (0, 0, 0)
    if "vllm_version" in config:
        try:
            version = parse_version(str(config["vllm_version"].value))
        except ConfigError:
            version = (0, 0, 0)
    blocks = exact_blocks(tokens, block, length, concurrency, by_concurrency=version >= (0, 20, 0))
    if blocks is not None:
        line = start.said["kv_cache_tokens"][2]
        config["num_gpu_blocks"] = ConfigValue(
            blocks, "inferred", f"{where[line]}, {tokens} tokens in blocks of {block}"
        )


def exact_blocks(
    tokens: int, block_size: int, length: int | None, concurrency: float | None, *, by_concurrency: bool
) -> int | None:
    """The number of KV blocks behind a printed size in tokens; None where it does not follow.

    Before 0.20 the size is blocks * block_size; since then int(concurrency * length) with concurrency =
    blocks / ceil(length / block_size). A model whose layers differ (sliding window, Mamba) breaks either, which shows
    when the printed concurrency does not fit. The printed size includes V1's null block.
    """
    per_request = -(-length // block_size) if length else None
    if by_concurrency and length and per_request:
        blocks = -(-tokens * per_request // length)
        if int(blocks / per_request * length) != tokens:
            return None
    elif tokens % block_size == 0:
        blocks = tokens // block_size
    else:
        return None
    if per_request and concurrency is not None:
        fits = abs(blocks / per_request - concurrency) <= _ROUNDING + _TOLERANCE * concurrency
        return blocks if fits else None
    return blocks
