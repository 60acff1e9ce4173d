"""The tabulated step time: durations by the number of tokens and of requests, from tables measured elsewhere.

``tokens(T) + reqs(n) + per_context_token*C + per_attention_pair*A + per_prefill_step`` and the host's share; between two
counts of a table a straight line, beyond its last one the line of its last two.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeGuard

from tracekit.errors import ConfigError
from tracekit.step_time.physical import padded

Table = tuple[tuple[int, float], ...]

_TABLES: Final = {"tokens_ms": 1e6, "reqs_us": 1e3}
_NUMBERS: Final = {
    "t0_ms": 1e6,
    "per_seq_us": 1e3,
    "per_context_token_us": 1e3,
    "per_attention_pair_us": 1e3,
    "per_prefill_step_ms": 1e6,
}
_NAMES: Final = ("gpu", "model", "source")
TABULATED_KEYS: Final = (*_NAMES, "tensor_parallel_size", "padding", *_TABLES, *_NUMBERS)
_LARGEST: Final = 1e9
_FAR: Final = 1000
_EXAMPLE: Final = '"tokens_ms": [[1, 6.1], [256, 12.4]], "reqs_us": [[1, 0], [256, 900]]'


class TabulatedParameters(NamedTuple):
    """Nanoseconds by ascending count (``tokens``, ``reqs``), the host's (``t0``, ``per_seq``) and the linear rest.

    ``padding``: the CUDA-graph sizes, ascending; a step's tokens are padded to the next. A request may take less than
    nothing in ``reqs``: where decodes cost less than the same tokens of a prefill.
    """

    tokens: Table
    reqs: Table
    padding: tuple[int, ...] = ()
    t0: float = 0.0
    per_seq: float = 0.0
    per_context_token: float = 0.0
    per_attention_pair: float = 0.0
    per_prefill_step: float = 0.0


def tabulated_of_tokens(p: TabulatedParameters, num_tokens: int) -> float:
    """Everything that depends on the tokens alone, ns."""
    return p.t0 + _between(p.tokens, padded(p.padding, num_tokens))


def tabulated_of_reqs(p: TabulatedParameters, num_reqs: int) -> float:
    """Everything that depends on the number of requests alone, ns."""
    return p.per_seq * num_reqs + _between(p.reqs, num_reqs)


def _between(table: Table, count: int) -> float:
    place = min(max(bisect_left(table, (count, 0.0)), 1), len(table) - 1)
    if len(table) == 1 or count <= table[0][0]:
        return table[0][1]
    (low, at_low), (high, at_high) = table[place - 1], table[place]
    return at_low + (at_high - at_low) * (count - low) / (high - low)


def tabulated_from_dict(given: Mapping[str, Any], where: str) -> TabulatedParameters:
    """Check a tabulated step time's object and make its parameters; raises ``ConfigError``."""
    for name in _NAMES:
        if not isinstance(given.get(name, ""), str):
            msg = f"{where}: {name} must be a text"
            raise ConfigError(msg)
    tokens, reqs = (_table(given.get(key), key, unit, where) for key, unit in _TABLES.items())
    numbers = {key: _number(given.get(key, 0), key, where) * unit for key, unit in _NUMBERS.items()}
    padding = given.get("padding", [])
    if not _is_list(padding) or any(type(size) is not int for size in padding) or list(padding) != sorted(set(padding)):
        msg = f"{where}: padding must be ascending whole numbers of tokens, such as [1, 2, 4, 8]"
        raise ConfigError(msg)
    if any(after[1] < before[1] for before, after in pairwise(tokens)):
        msg = f"{where}: tokens_ms must not fall: more tokens take no less time"
        raise ConfigError(msg)
    made = TabulatedParameters(tokens, reqs, tuple(padding), *numbers.values())
    # A step has at least as many tokens as requests, so these are the shortest that can be; far beyond the tables too.
    counts = [count for count, _ in reqs]
    if any(tabulated_of_tokens(made, n) + tabulated_of_reqs(made, n) <= 0 for n in (*counts, _FAR * counts[-1])):
        msg = f"{where}: a step must take time; reqs_us takes more away than tokens_ms and t0_ms give"
        raise ConfigError(msg)
    return made


def _table(found: object, key: str, unit: float, where: str) -> Table:
    if _is_list(found) and found and all(_is_list(row) and len(row) == 2 for row in found):  # noqa: PLR2004
        counts = [row[0] for row in found]
        rising = all(type(count) is int and count >= 0 for count in counts) and counts == sorted(set(counts))
        low = 0.0 if key == "tokens_ms" else -_LARGEST
        if rising:
            return tuple((row[0], _number(row[1], key, where, low) * unit) for row in found)
    msg = f"{where}: {key} must be rows of an ascending count and a time, such as {_EXAMPLE}"
    raise ConfigError(msg)


def _is_list(found: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(found, Sequence) and not isinstance(found, str)


def _number(value: object, key: str, where: str, low: float = 0.0) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= _LARGEST:
        return float(value)
    msg = f"{where}: {key} must be numbers from {low:g} to {_LARGEST:g}"
    raise ConfigError(msg)
