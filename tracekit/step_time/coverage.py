"""What a fitted step time was fitted on, and whether a replay asks it for more."""

from collections.abc import Mapping
from typing import Any, Final

from tracekit.errors import ConfigError

IDENTITY: Final = ("model", "gpu", "tensor_parallel_size", "quantization", "dtype")
"""Another one of these is another device: a fit says nothing of it."""
RANGES: Final = ("num_scheduled_reqs", "num_scheduled_tokens", "num_context_tokens")
_MARGIN: Final = 1.1
_WORDS: Final = {
    "num_scheduled_reqs": "requests", "num_scheduled_tokens": "tokens", "num_context_tokens": "context tokens",
}  # fmt: skip


def check_identity(fit: Mapping[str, Any], config: Mapping[str, Any], where: str) -> list[str]:
    """Refuse a fit of another device (``ConfigError``); returns notes on what may differ.

    ``config``: plain values by name; a value unknown on one side is no difference.
    """
    fitted = fit.get("config")
    if not isinstance(fitted, Mapping):
        return []
    for name in IDENTITY:
        one, two = fitted.get(name), config.get(name)
        if one is not None and two is not None and str(one).lower() != str(two).lower():
            msg = (
                f"{where}: this step time was fitted with {name} {one}, the replay has {two}: a fit cannot be carried "
                'over; fit a run of that device, or give a step time of the form "physical"'
            )
            raise ConfigError(msg)
    one, two = fitted.get("vllm_version"), config.get("vllm_version")
    if one is not None and two is not None and one != two:
        return [f"the step time was fitted on vLLM {one}, the replay decides as {two}: its kernels may differ"]
    return []


def beyond(fit: Mapping[str, Any], largest: Mapping[str, float | None]) -> str | None:
    """How far a replay's steps reach beyond what was fitted, in words; null when they do not."""
    coverage = fit.get("coverage")
    if not isinstance(coverage, Mapping):
        return None
    found = []
    for name in RANGES:
        seen, asked = coverage.get(name), largest.get(name)
        if isinstance(seen, list | tuple) and len(seen) == 2 and asked is not None and asked > _MARGIN * seen[1]:  # noqa: PLR2004
            found.append(f"{asked:,.0f} {_WORDS[name]} in a step (fitted up to {seen[1]:,.0f})")
    if not found:
        return None
    return f"the step time is extrapolated: the replay has {', '.join(found)}; fit a run that reaches so far"
