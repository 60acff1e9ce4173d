"""tracekit: what did the vLLM scheduler do to my requests, why, and what would have helped?

The library has the verbs of the command line: ``ingest``, ``replay``, ``compare``, ``sql``, ``explain``,
``fit``, ``capacity``, ``conform``, and ``load``.
Names are resolved on first use, so that ``import tracekit`` costs next to nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.api import (
        capacity,
        compare,
        explain,
        export_anonymous,
        export_perfetto,
        fit,
        ingest,
        postmortem,
        replay,
        sql,
    )
    from tracekit.conform import conform
    from tracekit.errors import ConfigError, InputError, OutputExistsError, TracekitError
    from tracekit.run import Run, load

__version__ = "0.1.0"

_HOMES = {
    "ingest": "tracekit.api",
    "replay": "tracekit.api",
    "compare": "tracekit.api",
    "sql": "tracekit.api",
    "explain": "tracekit.api",
    "fit": "tracekit.api",
    "capacity": "tracekit.api",
    "postmortem": "tracekit.api",
    "report": "tracekit.api",
    "export_anonymous": "tracekit.api",
    "export_perfetto": "tracekit.api",
    "conform": "tracekit.conform",
    "load": "tracekit.run",
    "Run": "tracekit.run",
    "TracekitError": "tracekit.errors",
    "InputError": "tracekit.errors",
    "ConfigError": "tracekit.errors",
    "OutputExistsError": "tracekit.errors",
}

__all__ = [
    "ConfigError",
    "InputError",
    "OutputExistsError",
    "Run",
    "TracekitError",
    "capacity",
    "compare",
    "conform",
    "explain",
    "export_anonymous",
    "export_perfetto",
    "fit",
    "ingest",
    "load",
    "postmortem",
    "replay",
    "report",
    "sql",
]


class _Library(ModuleType):
    """Keeps a verb a verb: importing the room ``tracekit.replay`` would bind its module over ``tracekit.replay()``."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module 'tracekit' has no attribute '{name}'"
        raise AttributeError(msg)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
