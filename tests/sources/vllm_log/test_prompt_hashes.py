"""Chains of printed token ids are those of ``hashing.chain_tokens``, however many prompts stand in a log."""

import random

import pytest

from tracekit.hashing import chain_tokens
from tracekit.sources.vllm_log.prompt_hashes import chain_printed_tokens

KEY = b"key"


@pytest.mark.parametrize("between", [", ", ",", " ,  "])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_same_as_token_by_token(between: str, block_size: int) -> None:
    rng = random.Random(block_size)  # noqa: S311 - a test
    prompts = [rng.choices(range(100_000), k=rng.choice([0, 0, 1, 15, 16, 17, 48, 200])) for _ in range(80)]
    chains, sizes = chain_printed_tokens([between.join(map(str, p)) for p in prompts], block_size, KEY)
    assert sizes == [len(prompt) for prompt in prompts]
    for prompt, chain in zip(prompts, chains, strict=True):
        numbers = [int.from_bytes(chain[at : at + 8], "big") for at in range(0, len(chain), 8)]
        assert numbers == chain_tokens(prompt, block_size, KEY)


def test_nothing_printed() -> None:
    assert chain_printed_tokens([], 16, KEY) == ([], [])
    assert chain_printed_tokens([""], 16, KEY) == ([b""], [0])
