"""What a server's pool holds: its size, the longest request that fits, and how many requests of expected lengths."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracekit.config import Config
from tracekit.engine_setup import server_of
from tracekit.errors import ConfigError
from tracekit.model.capacity import CapacityPlan, CapacityRules, Server
from tracekit.model.capacity.plan import demand_of, longest_that_fits
from tracekit.model.rules import rules_note
from tracekit.pool import Sizing, size_engine

_BLOCK_STEP = 16


@dataclass(frozen=True)
class Lengths:
    """Tokens in and out of one request, and how often such a request comes (any unit)."""

    num_prompt_tokens: int
    num_output_tokens: int
    weight: float = 1.0


@dataclass(frozen=True)
class Expected:
    """Requests running at once when the pool is full.

    ``at_half_output``: a running request is on average half-way through its output, and longer requests run for longer,
    so they count by their output; this is the concurrency to expect before the pool makes requests wait.
    ``at_full_length``: when all have reached their end at once. ``num_refused``: lengths left out, as a prompt that
    fills ``max_model_len`` is refused.
    """

    at_half_output: float
    at_full_length: float
    mean_blocks: float
    num_lengths: int
    num_refused: int = 0


@dataclass(frozen=True)
class Capacity:
    """A sized pool; ``longest``: tokens of the longest request that it holds, up to the model's own limit."""

    sizing: Sizing
    longest: int
    expected: Expected | None


def capacity_of(wanted: Config, logged: Config | None, lengths: Iterable[Lengths] | None) -> Capacity:
    """Size an engine's pool; arguments and errors as of ``pool.size_engine`` and ``expected_concurrency``."""
    sizing = size_engine(wanted, logged)
    server = server_of(sizing.engine, sizing.built, sizing.available.likely)
    demand = demand_of(server, sizing.rules)

    def blocks(length: int) -> int:
        return sum(group.blocks_needed(length, demand) for group in sizing.plan.groups)

    usable = sizing.plan.num_blocks - (sizing.rules.engine == "v1")
    limit = sizing.engine.model.shape.max_model_len if sizing.engine.model else 0
    longest = longest_that_fits(blocks, usable, max(limit, sizing.plan.max_model_len))
    sizing.notes.extend(_notes(sizing))
    expected = None if lengths is None else expected_concurrency(sizing.plan, server, sizing.rules, lengths)
    return Capacity(sizing, longest, expected)


def _notes(sizing: Sizing) -> list[str]:
    """What is approximated, or would not run."""
    engine = sizing.engine
    rules = rules_note(engine.version, sizing.rules.engine)
    size = engine.values.get("block_size")
    odd = size is not None and int(str(size)) % _BLOCK_STEP != 0
    kernels = f"block_size {size}: most of vLLM's attention kernels take multiples of {_BLOCK_STEP} only"
    return [note for note in (rules, kernels if odd else None) if note is not None]


def parse_lengths(text: str) -> list[Lengths]:
    """``1000:200,8000:500`` as lengths; raises ``ConfigError``."""
    found = []
    for part in text.split(","):
        prompt, _, output = part.strip().partition(":")
        if not (prompt.isdigit() and output.isdigit() and int(prompt) and int(output)):
            msg = f"--lengths: expected IN:OUT in tokens, such as 1000:200, found {part.strip()[:40]!r}"
            raise ConfigError(msg)
        found.append(Lengths(int(prompt), int(output)))
    return found


def expected_concurrency(
    plan: CapacityPlan, server: Server, rules: CapacityRules, lengths: Iterable[Lengths]
) -> Expected:
    """How many requests of these lengths run at once when their blocks fill the pool.

    Blocks are those that vLLM holds: the prompt and the output so far, in whole blocks of every group. Raises
    ``ConfigError`` for no lengths.
    """
    known: Sequence[Lengths] = [one for one in lengths if one.num_prompt_tokens and one.num_output_tokens]
    if not known:
        msg = "no request with a known prompt and output length"
        raise ConfigError(msg)
    admitted = [one for one in known if one.num_prompt_tokens < plan.max_model_len]
    if not admitted:
        shortest = min(one.num_prompt_tokens for one in known)
        msg = (
            f"a prompt of {shortest:,} tokens leaves no room for output in max_model_len {plan.max_model_len:,}: "
            "vLLM refuses it"
        )
        raise ConfigError(msg)
    demand = demand_of(server, rules)
    usable = plan.num_blocks - (rules.engine == "v1")

    def blocks(length: int) -> int:
        return sum(group.blocks_needed(min(length, plan.max_model_len), demand) for group in plan.groups)

    shares = [one.weight * one.num_output_tokens for one in admitted]
    half = sum(
        share * blocks(one.num_prompt_tokens + one.num_output_tokens // 2)
        for share, one in zip(shares, admitted, strict=True)
    )
    full = sum(
        share * blocks(one.num_prompt_tokens + one.num_output_tokens)
        for share, one in zip(shares, admitted, strict=True)
    )
    total = sum(shares)
    return Expected(
        usable * total / half, usable * total / full, half / total, len(admitted), len(known) - len(admitted)
    )
