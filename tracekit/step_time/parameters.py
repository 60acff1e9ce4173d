"""The step time as users give it: a small JSON object, and what a run stores of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tracekit.errors import ConfigError
from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.catalogued import PHYSICAL_KEYS, physical_from_dict
from tracekit.step_time.duration import StepParameters
from tracekit.step_time.tabulated import TABULATED_KEYS, TabulatedParameters, tabulated_from_dict

_AFFINE_KEYS: Final = {"t0_ms": 1e6, "per_token_us": 1e3, "per_seq_us": 1e3, "per_context_token_us": 1e3}
_FORMS: Final = {"affine": tuple(_AFFINE_KEYS), "physical": PHYSICAL_KEYS, "tabulated": TABULATED_KEYS}
FRONTEND: Final = "frontend_ms"
CHAT: Final = "frontend_chat_ms"
"""Keys of a step time: from arrival to the engine, and what a chat completion takes more."""
_FRONTENDS: Final = (FRONTEND, CHAT)
_ABOUT: Final = frozenset({"form", "origin", "where", "fit"})
_LARGEST: Final = 1e7
_LEAST_SHOWN_NS: Final = 0.01
_EXAMPLE: Final = (
    '{"form": "affine", "t0_ms": 20, "per_token_us": 40, "per_seq_us": 25, "per_context_token_us": 0, "frontend_ms": 4}'
)


@dataclass(frozen=True)
class StepTime:
    """A step time, the frontend's constant, and where they come from.

    ``frontend_ns``: a request reaches the engine this long after its arrival, a chat completion ``chat_ns`` later
    still. ``origin``: given, logged, inferred or default, as for a config value. ``described``: what physical or
    tabulated parameters were made from, as a file gives it. ``fit``: what a calibration saw and how well it did
    (``tracekit fit``), kept as it is.
    """

    parameters: StepParameters
    frontend_ns: int
    origin: str
    where: str
    described: Mapping[str, Any] = field(default_factory=dict, compare=False)
    fit: Mapping[str, Any] = field(default_factory=dict, compare=False)
    chat_ns: int = 0

    def describe(self) -> str:
        """The step time in one line for people."""
        p = self.parameters
        frontend = f", frontend {self.frontend_ns / 1e6:.3g} ms" if self.frontend_ns else ""
        if self.chat_ns:
            frontend += f", chat {self.chat_ns / 1e6:.3g} ms more"
        if isinstance(p, AffineParameters):
            parts = [f"{p.t0 / 1e6:.4g} ms", f"{p.per_token / 1e3:.3g} us/token", f"{p.per_seq / 1e3:.3g} us/request"]
            if p.per_context_token >= _LEAST_SHOWN_NS:
                parts.append(f"{p.per_context_token / 1e3:.2g} us/context token")
            return " + ".join(parts) + frontend
        host = f"host {p.t0 / 1e6:.3g} ms + {p.per_seq / 1e3:.3g} us/request"
        of = f"{self.described.get('model')} on {self.described.get('gpu')}"
        if isinstance(p, TabulatedParameters):
            return f"{of}: tables of {self.described.get('source', 'a file')}, {host}{frontend}"
        scales = ", ".join(
            f"{name} x{value:.3g}"
            for name, value in (
                ("bandwidth", p.bandwidth_scale),
                ("compute", p.compute_scale),
                ("all-reduce", p.allreduce_scale),
            )
            if value != 1
        )
        return f"{of}: {scales or 'catalogue'}, {host}{frontend}"

    def to_dict(self) -> dict[str, Any]:
        """The step time as ``run.json`` stores it and ``--step-time`` reads it."""
        p = self.parameters
        if isinstance(p, AffineParameters):
            own: dict[str, Any] = {
                "form": "affine",
                "t0_ms": p.t0 / 1e6,
                "per_token_us": p.per_token / 1e3,
                "per_seq_us": p.per_seq / 1e3,
                "per_context_token_us": p.per_context_token / 1e3,
            }
        else:
            own = {"form": "tabulated" if isinstance(p, TabulatedParameters) else "physical", **self.described}
        frontend = {FRONTEND: self.frontend_ns / 1e6}
        if self.chat_ns:
            frontend[CHAT] = self.chat_ns / 1e6
        about = {"origin": self.origin, "where": self.where}
        return {**own, **frontend, **about, **({"fit": dict(self.fit)} if self.fit else {})}


GENERIC: Final = StepTime(AffineParameters(10e6, 40e3, 25e3, 0.0), 0, "default", "generic affine default")
"""Used when nothing is known of the device: 10 ms a step, 40 us a token, 25 us a request."""


def step_time_from_file(path: Path) -> StepTime:
    """Read a step time from a JSON file; raises ``ConfigError`` with what is expected."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror or type(error).__name__})"
        raise ConfigError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path}: expected a JSON object such as {_EXAMPLE}"
        raise ConfigError(msg) from error
    return step_time_from_dict(found, "given", str(path))


def step_time_from_dict(found: object, origin: str, where: str) -> StepTime:
    """Check a JSON object and make a ``StepTime`` of it; raises ``ConfigError``."""
    if not isinstance(found, Mapping) or found.get("form", "affine") not in _FORMS:
        msg = f"{where}: expected a JSON object of form affine, physical or tabulated, such as {_EXAMPLE}"
        raise ConfigError(msg)
    form = found.get("form", "affine")
    known = _FORMS[form]
    unknown = sorted(set(found) - set(known) - _ABOUT - set(_FRONTENDS))
    if unknown:
        msg = f"{where}: unknown key '{unknown[0]}' in a step time; known are {', '.join((*known, *_FRONTENDS))}"
        raise ConfigError(msg)
    fit = found.get("fit", {})
    if not isinstance(fit, Mapping):
        msg = f"{where}: fit must be an object, as tracekit fit writes it"
        raise ConfigError(msg)
    _check_fit(fit, where)
    frontend_ns, chat_ns = (round(_number(found.get(key, 0), key, where) * 1e6) for key in _FRONTENDS)
    if form != "affine":
        given = {key: value for key, value in found.items() if key in known}
        made = physical_from_dict(given, where) if form == "physical" else tabulated_from_dict(given, where)
        return StepTime(made, frontend_ns, origin, where, given, fit, chat_ns)
    ns = {key: _number(found.get(key, 0), key, where) * scale for key, scale in _AFFINE_KEYS.items()}
    parameters = AffineParameters(*ns.values())
    if parameters.t0 + parameters.per_token + parameters.per_seq <= 0:
        msg = f"{where}: a step must take time; give at least one of t0_ms, per_token_us, per_seq_us"
        raise ConfigError(msg)
    return StepTime(parameters, frontend_ns, origin, where, fit=fit, chat_ns=chat_ns)


def _check_fit(fit: Mapping[str, Any], where: str) -> None:
    """What a replay asks of a fit must be readable: the configuration it holds for, and its coverage."""
    for name in ("config", "coverage"):
        if not isinstance(fit.get(name, {}), Mapping):
            msg = f"{where}: fit.{name} must be an object, as tracekit fit writes it"
            raise ConfigError(msg)
    for name, ends in fit.get("coverage", {}).items():
        are_two = isinstance(ends, list | tuple) and len(ends) == 2  # noqa: PLR2004
        if not are_two or not all(isinstance(end, int | float) for end in ends):
            msg = f"{where}: fit.coverage.{name} must be two numbers"
            raise ConfigError(msg)


def write_step_time(step_time: StepTime, path: Path) -> None:
    """Write a step time's file, whole or not at all; raises ``ConfigError`` where that is not possible."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(json.dumps(step_time.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        msg = f"{path}: cannot be written ({error.strerror or type(error).__name__})"
        raise ConfigError(msg) from error


def _number(value: object, key: str, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return float(value)
    msg = f"{where}: {key} must be a number from 0 to {_LARGEST:g}"
    raise ConfigError(msg)
