"""What a fit may vary: the numbers of a step time as a vector, and the step time of a vector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tracekit.step_time.parameters import CHAT, FRONTEND, StepTime, step_time_from_dict

Vector = np.ndarray[Any, np.dtype[np.float64]]

OUTSIDE_STEPS: Final = frozenset({FRONTEND, CHAT})
"""The numbers that no step's duration depends on."""
_SCALE: Final = {
    "t0_ms": 10.0, "per_token_us": 40.0, "per_seq_us": 25.0, "per_context_token_us": 0.01, FRONTEND: 5.0, CHAT: 5.0,
    "bandwidth_scale": 1.0, "compute_scale": 1.0, "allreduce_scale": 1.0,
}  # fmt: skip
"""A usual size of each number: steps of the search and its damping are relative to it."""
_PRIOR: Final = {"bandwidth_scale": 0.2, "compute_scale": 0.2, "allreduce_scale": 0.3}
"""How far a catalogue's scale is usually off 1 (standard deviation)."""
_LOWEST_SCALE: Final = 0.05
_NOTHING: Final = 1e-6


@dataclass(frozen=True)
class Form:
    """The numbers that are fitted, by their names in a step time's file, and what stands beside them there.

    The last one is always the frontend's constant.
    """

    form: str
    names: tuple[str, ...]
    start: Vector
    beside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scale(self) -> Vector:
        """A usual size of each number."""
        return np.array([_SCALE[name] for name in self.names])

    @property
    def lowest(self) -> Vector:
        """What no number may go below: 0, and for a scale a twentieth."""
        return np.array([_LOWEST_SCALE if name in _PRIOR else 0.0 for name in self.names])

    @property
    def prior(self) -> Vector:
        """One over the standard deviation of each number around its start; 0 where nothing is known before."""
        return np.array([1 / _PRIOR[name] if name in _PRIOR else 0.0 for name in self.names])

    def step_time(self, vector: Sequence[float] | Vector, where: str = "tracekit fit") -> StepTime:
        """The step time of a vector."""
        numbers = {
            name: float(f"{value:.7g}") if value > _NOTHING * usual else 0.0
            for name, value, usual in zip(self.names, vector, self.scale, strict=True)
        }
        return step_time_from_dict({"form": self.form, **self.beside, **numbers}, "inferred", where)

    def with_chat(self) -> "Form":
        """The form with a number of its own for what chat completions take more."""
        return replace(self, names=(*self.names[:-1], CHAT, FRONTEND), start=np.insert(self.start, -1, 0.0))

    def slowed(self, vector: Vector, factor: float) -> Vector:
        """The vector with every step so much longer; the frontend stays."""
        changed = vector.copy()
        for place, name in enumerate(self.names):
            if name not in OUTSIDE_STEPS:
                changed[place] *= 1 / factor if name in {"bandwidth_scale", "compute_scale"} else factor
        return np.maximum(changed, self.lowest)


def affine_form(start: StepTime | None = None) -> Form:
    """The affine form, from an affine step time or the generic one."""
    names = ("t0_ms", "per_token_us", "per_seq_us", "per_context_token_us", FRONTEND)
    given = start.to_dict() if start is not None else {}
    usual = {"t0_ms": 10.0, "per_token_us": 40.0, "per_seq_us": 25.0}
    return Form("affine", names, np.array([float(given.get(name, usual.get(name, 0.0))) for name in names]))


def physical_form(described: Mapping[str, Any]) -> Form:
    """The physical form around the catalogue's parameters for a GPU and a model (``step_time.catalogued``)."""
    made = step_time_from_dict({"form": "physical", **described}, "default", "catalogue").parameters
    names = ["t0_ms", "per_seq_us", "bandwidth_scale", "compute_scale"]
    start = [made.t0 / 1e6, made.per_seq / 1e3, 1.0, 1.0]
    if described.get("tensor_parallel_size", 1) > 1:
        names.append("allreduce_scale")
        start.append(1.0)
    beside = {key: value for key, value in described.items() if key not in names}
    return Form("physical", (*names, FRONTEND), np.array([*start, 0.0]), beside)
