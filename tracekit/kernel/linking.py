"""Optimise an entry and its callees once, as a whole, instead of every callee on its own as well.

numba links each function's callees into it, then optimises and emits it, on every level of the call tree. Callees of
the kernel are called by compiled code only, so they are linked and nothing else; that saves about half of the first
compilation. The hook is numba's own class of code library; where a numba version has another one, compilation is as
slow as it would be without this module.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import codegen, registry


class _LinkedLibrary(codegen.JITCodeLibrary):  # type: ignore[misc,unused-ignore]
    """The code of a callee: neither optimised nor emitted, since its entry will be."""

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002 - numba's signature
        """Nobody calls it from Python."""
        self._ensure_finalized()  # type: ignore[no-untyped-call,unused-ignore]
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call,unused-ignore]
        self._finalized = True


@contextmanager
def optimised_as_a_whole(entry: str) -> Iterator[None]:
    """Compile the function of this name with its callees merely linked into it."""
    target: Any = registry.cpu_target.target_context.codegen()
    usual = target._library_class  # noqa: SLF001 - see above

    def library(owner: Any, name: str, **options: Any) -> Any:  # noqa: ANN401 - numba's objects
        chosen = usual if name.rpartition(".")[2] == entry else _LinkedLibrary
        return chosen(owner, name, **options)

    def set_env(env_name: str, env: Any) -> None:  # noqa: ANN401
        if target._engine.get_global_value_address(env_name):  # noqa: SLF001 - a callee's is not emitted
            type(target).set_env(target, env_name, env)

    library._unserialize = usual._unserialize  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
    target._library_class, target.set_env = library, set_env  # noqa: SLF001
    try:
        yield
    finally:
        target._library_class = usual  # noqa: SLF001
        del target.set_env
