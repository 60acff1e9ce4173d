"""The step time as users give it: a small JSON object, and what a run stores of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tracekit.errors import ConfigError
from tracekit.step_time.affine import AffineParameters

_KEYS: Final = {"t0_ms": 1e6, "per_token_us": 1e3, "per_seq_us": 1e3, "per_context_token_us": 1e3, "frontend_ms": 1e6}
_LARGEST: Final = 1e7
_EXAMPLE: Final = (
    '{"form": "affine", "t0_ms": 20, "per_token_us": 40, "per_seq_us": 25, "per_context_token_us": 0, "frontend_ms": 4}'
)


@dataclass(frozen=True)
class StepTime:
    """An affine step time, the frontend's constant, and where they come from.

    ``frontend_ns``: a request reaches the engine this long after its arrival. ``origin``: given, logged, inferred or
    default, as for a config value.
    """

    parameters: AffineParameters
    frontend_ns: int
    origin: str
    where: str

    def to_dict(self) -> dict[str, Any]:
        """The step time as ``run.json`` stores it and ``--step-time`` reads it."""
        p = self.parameters
        return {
            "form": "affine",
            "t0_ms": p.t0 / 1e6,
            "per_token_us": p.per_token / 1e3,
            "per_seq_us": p.per_seq / 1e3,
            "per_context_token_us": p.per_context_token / 1e3,
            "frontend_ms": self.frontend_ns / 1e6,
            "origin": self.origin,
            "where": self.where,
        }


GENERIC: Final = StepTime(AffineParameters(10e6, 40e3, 25e3, 0.0), 0, "default", "generic affine default")
"""Used when nothing is known of the device: 10 ms a step, 40 us a token, 25 us a request."""


def step_time_from_file(path: Path) -> StepTime:
    """Read a step time from a JSON file; raises ``ConfigError`` with what is expected."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror or type(error).__name__})"
        raise ConfigError(msg) from error
    except ValueError as error:
        msg = f"{path}: expected a JSON object such as {_EXAMPLE}"
        raise ConfigError(msg) from error
    return step_time_from_dict(found, "given", str(path))


def step_time_from_dict(found: object, origin: str, where: str) -> StepTime:
    """Check a JSON object and make a ``StepTime`` of it; raises ``ConfigError``."""
    if not isinstance(found, Mapping) or found.get("form", "affine") != "affine":
        msg = f"{where}: expected a JSON object of form affine, such as {_EXAMPLE}"
        raise ConfigError(msg)
    unknown = sorted(set(found) - set(_KEYS) - {"form", "origin", "where"})
    if unknown:
        msg = f"{where}: unknown key '{unknown[0]}' in a step time; known are {', '.join(_KEYS)}"
        raise ConfigError(msg)
    ns = {key: _number(found.get(key, 0), key, where) * scale for key, scale in _KEYS.items()}
    parameters = AffineParameters(ns["t0_ms"], ns["per_token_us"], ns["per_seq_us"], ns["per_context_token_us"])
    if parameters.t0 + parameters.per_token + parameters.per_seq <= 0:
        msg = f"{where}: a step must take time; give at least one of t0_ms, per_token_us, per_seq_us"
        raise ConfigError(msg)
    return StepTime(parameters, round(ns["frontend_ms"]), origin, where)


def _number(value: object, key: str, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return float(value)
    msg = f"{where}: {key} must be a number from 0 to {_LARGEST:g}"
    raise ConfigError(msg)
