"""A pool on one screen: where the memory goes, what vLLM will print, and what that means."""

from typing import Any

from tracekit.capacity import Capacity, Expected
from tracekit.config import GIB
from tracekit.model.capacity.memory import Band, Memory
from tracekit.model.capacity.plan import CapacityPlan
from tracekit.pool import Sizing

_WIDTH = 80
_BAR = 32


def capacity_text(found: Capacity, *, verbose: bool = True) -> str:
    """At most 80 columns."""
    sizing = found.sizing
    lines = [_title(sizing), ""]
    if sizing.memory is not None:
        lines += [*_memory_lines(sizing, sizing.memory), ""]
    lines += _pool_lines(found)
    if found.expected is not None:
        lines += ["", *_expected_lines(found.expected)]
    if verbose and sizing.notes:
        lines += ["", *(line for note in sizing.notes for line in _wrapped(f"note: {note}"))]
    return "\n".join(lines)


def _title(sizing: Sizing) -> str:
    engine = sizing.engine
    model = engine.model.shape.name if engine.model else "unknown model"
    where = f" on {engine.gpu.name}" if engine.gpu else ""
    ranks = engine.values.get("tensor_parallel_size")
    tensor = f", tensor_parallel_size {ranks}" if ranks not in {None, 1} else ""
    return f"{model}{where}{tensor}, vLLM {engine.version}"


def _memory_lines(sizing: Sizing, memory: Memory) -> list[str]:
    gpu = sizing.engine.gpu
    total = gpu.total_bytes if gpu else memory.requested
    rows = [("weights", memory.weights), ("activation peak", memory.activation), ("outside of torch", memory.non_torch)]
    if memory.graphs_count:
        rows.append(("CUDA graphs", memory.graphs))
    measured = sizing.how != "estimated from GPU, model and flags"
    if measured:
        # What was measured leaves one number for everything that is not KV cache.
        used = Band.exact(memory.requested) - sizing.available
        rows = [("all but KV cache", used)]
    rows.append(("KV cache", sizing.available))
    unused = total - memory.requested
    lines = [f"memory of one rank, {total / GIB:.2f} GiB ({_said(sizing.how)})"]
    rows.append(("left to others", Band.exact(unused)))
    lines += [f"  {name:17}{_gib(band)}  {_bar(band.likely, total)}".rstrip() for name, band in rows]
    if not measured:
        lines.append("  likely, and the band in which it is expected (a device must say the rest)")
    return lines


def _said(how: str) -> str:
    return how if len(how) < 44 else how[:41] + "..."  # noqa: PLR2004 - the rest of the line


def _gib(band: Band) -> str:
    is_point = band.high - band.low < GIB // 50
    between = "" if is_point else f"{max(0, band.low) / GIB:.1f} to {max(0, band.high) / GIB:.1f}"
    return f"{band.likely / GIB:>8.2f} GiB  {between:14}"


def _bar(value: int, total: int) -> str:
    share = max(0.0, min(1.0, value / total)) if total else 0.0
    return "#" * round(share * _BAR) if share else ""


def _pool_lines(found: Capacity) -> list[str]:
    sizing, plan = found.sizing, found.sizing.plan
    low, high = sizing.low, sizing.high
    lines = [
        *_wrapped(f"KV cache ({sizing.how})"),
        f"  blocks            {plan.num_blocks:>12,}{_between(low, high, 'num_blocks')}",
        f"  block             {sizing.built.block_size:>12,} tokens, {max(plan.bytes_per_block):,} bytes"
        + (f", {len(plan.groups)} groups of layers" if len(plan.groups) > 1 else ""),
        f"  tokens            {plan.num_tokens:>12,}{_between(low, high, 'num_tokens')}",
        f"  longest request   {found.longest:>12,} tokens fit (max_model_len {plan.max_model_len:,})",
        "",
        "vLLM prints",
        f"  GPU KV cache size: {plan.num_tokens:,} tokens",
        f"  Maximum concurrency for {plan.max_model_len:,} tokens per request: {plan.concurrency_text}x",
    ]
    lines += _wrapped(
        f"the worst case: so many requests fit if every one of them is {plan.max_model_len:,} tokens long; it limits "
        "nothing (max_num_seqs does, and the blocks that requests really hold)",
        "  ",
    )
    return lines


def _between(low: CapacityPlan | None, high: CapacityPlan | None, name: str) -> str:
    if high is None or (low is not None and getattr(low, name) == getattr(high, name)):
        return ""
    least = f"{getattr(low, name):,}" if low is not None else "none: it may not start"
    return f"  ({least} to {getattr(high, name):,})"


def _expected_lines(expected: Expected) -> list[str]:
    of = "these lengths" if expected.num_lengths == 1 else f"{expected.num_lengths:,} lengths"
    return [
        f"for requests of {of}",
        f"  {expected.at_half_output:>12,.1f} run at once when the pool fills ({expected.mean_blocks:,.0f} blocks each, half-way",
        "               through their output; longer outputs count for longer)",
        f"  {expected.at_full_length:>12,.1f} if all were at their end",
        *[f"  {expected.num_refused:>12,} left out: their prompts fill max_model_len, so vLLM refuses them"]
        * (expected.num_refused > 0),
    ]


def _wrapped(text: str, indent: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent or "  ")


def capacity_json(found: Capacity) -> dict[str, Any]:
    """The same for programs: bytes, blocks, tokens."""
    sizing, plan = found.sizing, found.sizing.plan
    memory = sizing.memory
    return {
        "model": sizing.engine.model.shape.name if sizing.engine.model else None,
        "gpu": sizing.engine.gpu.name if sizing.engine.gpu else None,
        "vllm_version": sizing.engine.version,
        "origin": sizing.origin,
        "how": sizing.how,
        "memory": None if memory is None else {
            "requested_bytes": memory.requested, "weights_bytes": _band(memory.weights),
            "activation_bytes": _band(memory.activation), "non_torch_bytes": _band(memory.non_torch),
            "cuda_graphs_bytes": _band(memory.graphs), "cuda_graphs_count": memory.graphs_count,
        },
        "available_bytes": _band(sizing.available),
        "num_gpu_blocks": plan.num_blocks,
        "num_gpu_blocks_low": sizing.low.num_blocks if sizing.low else None,
        "num_gpu_blocks_high": sizing.high.num_blocks if sizing.high else None,
        "block_size": sizing.built.block_size,
        "bytes_per_block": list(plan.bytes_per_block),
        "num_groups": len(plan.groups),
        "kv_cache_tokens": plan.num_tokens,
        "max_model_len": plan.max_model_len,
        "maximum_concurrency": plan.concurrency_text,
        "longest_request_tokens": found.longest,
        "expected_concurrency": None if found.expected is None else {
            "at_half_output": found.expected.at_half_output, "at_full_length": found.expected.at_full_length,
            "num_refused_lengths": found.expected.num_refused,
            "mean_blocks": found.expected.mean_blocks,
        },
        "notes": sizing.notes,
    }  # fmt: skip


def _band(band: Band) -> dict[str, int]:
    return {"likely": band.likely, "low": band.low, "high": band.high}
