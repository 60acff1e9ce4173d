"""Compile functions with numba, and keep the machine code where the user may write.

numba's own cache does not see changes in callees, so the cache directory is named by a hash of every source that goes
into the kernel. It is the user's own (mode 0700, ``XDG_CACHE_HOME`` respected), so a read-only install works.
"""

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba as _numba
import numpy as np
from numba.core import types

from tracekit.kernel.linking import optimised_as_a_whole
from tracekit.step_time import duration

numba: Any = _numba  # its stubs know neither all options nor the configuration

Function = TypeVar("Function", bound=Callable[..., Any])

_NEVER_COMPILED: Final = frozenset({"__init__.py", "memory.py"})
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy", "nogil": True}


def compiled(function: Function) -> Function:
    """Compile a function that other compiled functions call; no fastmath, Python's integer semantics."""
    return _called_from_compiled(function, {})


def inlined(function: Function) -> Function:
    """The same for what runs at every step: its code stands where it is called."""
    return _called_from_compiled(function, {"forceinline": True})


def _called_from_compiled(function: Function, options: dict[str, bool]) -> Function:
    dispatcher: Any = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS, **options)(function)
    template = dispatcher.get_call_template

    def one_width(args: Any, kws: Any) -> Any:  # noqa: ANN401 - numba types
        """Compile for 64-bit integers only: callers' narrower ones are widened, not another specialisation."""
        widened = tuple(
            types.int64 if isinstance(arg, types.Integer) else types.unliteral(arg)  # type: ignore[no-untyped-call]
            for arg in args
        )
        return template(widened, kws)

    dispatcher.get_call_template = one_width
    return cast("Function", dispatcher)


def compiled_entry(function: Function) -> Function:
    """Compile a function that Python calls, with its machine code and that of its callees cached on disk."""
    directory = cache_directory()
    configured = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory or "")
    try:
        dispatcher: Any = numba.njit(cache=directory is not None, **_OPTIONS)(function)
    finally:
        numba.config.CACHE_DIR = configured
    compile_one = dispatcher.compile

    def compile_as_a_whole(signature: Any) -> Any:  # noqa: ANN401 - numba types
        with optimised_as_a_whole(function.__name__):
            return compile_one(signature)

    dispatcher.compile = compile_as_a_whole
    return cast("Function", dispatcher)


@cache
def cache_directory() -> Path | None:
    """The directory for this kernel's machine code, made when absent; None when none can be written (then each process
    compiles anew).
    """
    for root in _roots():
        directory = root / "tracekit" / f"kernel-{_sources_hash()}"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            owned = not hasattr(os, "getuid") or directory.stat().st_uid == os.getuid()
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError:
            continue
        if owned:
            directory.chmod(0o700)
            return directory
    return None


def is_compiled(entry: str = "run") -> bool:
    """Whether the machine code of an entry is there already, so that a start is quick."""
    directory = cache_directory()
    return directory is not None and any(directory.rglob(f"*.{entry}-*.nbc"))


def _roots() -> list[Path]:
    configured = os.environ.get("XDG_CACHE_HOME")
    if configured and Path(configured).is_absolute():
        return [Path(configured)]
    try:
        return [Path.home() / ".cache"]
    except RuntimeError:
        return []


def _sources_hash() -> str:
    kernel = sorted(source for source in Path(__file__).parent.glob("*.py") if source.name not in _NEVER_COMPILED)
    sources = [*kernel, Path(str(duration.__file__))]
    digest = hashlib.sha256()
    for text in (numba.__version__, np.__version__, sys.version, platform.machine()):
        digest.update(text.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:20]
