"""Chained block hashes from what traces have: opaque ids of blocks, or token ids.

A hash names a block *and everything before it*, so equal hashes mean equal prefixes, which is what vLLM's prefix
cache compares (``hash_block_tokens`` chains the parent's hash the same way).
"""

import hashlib
from collections.abc import Iterable, Sequence

_MASK = (1 << 64) - 1


def mix(parent: int, value: int) -> int:
    """Chain a 64-bit value to a 64-bit parent hash (the finaliser of splitmix64, public domain)."""
    z = (parent * 0x9E3779B97F4A7C15 + value + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _part(chained: int, number: int) -> int:
    """The hash of a part of the block that ``chained`` ends; apart from the chain, where ids may be small numbers."""
    return mix(chained ^ _MASK, number)


def opaque_id(value: object) -> int:
    """A 64-bit number for a block id as a trace writes it: an integer as it is, anything else by its digest."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _MASK
    return int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8).digest(), "big")


def chain_ids(ids: Iterable[object], tokens_per_id: int, block_size: int, num_tokens: int) -> list[int]:
    """Block hashes of the full blocks of ``block_size`` tokens of a prompt described by ids.

    ``ids``: one per ``tokens_per_id`` tokens, the last may be partial. One of the two sizes must divide the other.
    Only blocks that lie fully inside both the prompt and the ids are hashed.
    """
    chained: list[int] = []
    parent = 0
    if tokens_per_id >= block_size:
        blocks_per_id = tokens_per_id // block_size
        for value in ids:
            parent = mix(parent, opaque_id(value))
            chained.extend(_part(parent, j) for j in range(1, blocks_per_id))
            # The last part of an id ends where the id ends, so it carries the id's own hash.
            chained.append(parent)
    else:
        ids_per_block = block_size // tokens_per_id
        for position, value in enumerate(ids, start=1):
            parent = mix(parent, opaque_id(value))
            if position % ids_per_block == 0:
                chained.append(parent)
    return chained[: num_tokens // block_size]


def sizes_fit(tokens_per_id: int, block_size: int) -> bool:
    """Whether ids of this size can be turned into blocks of that size."""
    return tokens_per_id % block_size == 0 or block_size % tokens_per_id == 0


def chain_tokens(token_ids: Sequence[int], block_size: int, key: bytes) -> list[int]:
    """Block hashes of a prompt given as token ids, keyed so that the text cannot be guessed back from them."""
    chained: list[int] = []
    parent = b""
    for end in range(block_size, len(token_ids) + 1, block_size):
        block = b"".join(b", %d" % token for token in token_ids[end - block_size : end])
        parent = hashlib.blake2b(parent + block, digest_size=8, key=key).digest()
        chained.append(int.from_bytes(parent, "big"))
    return chained


def resize_chain(hashes: Sequence[int], hash_block_size: int, block_size: int) -> list[int]:
    """The same chain at another block size; blocks that the stored size cannot tell are left out (see sizes_fit)."""
    if hash_block_size == block_size:
        return list(hashes)
    if block_size % hash_block_size == 0:
        stride = block_size // hash_block_size
        return list(hashes[stride - 1 :: stride])
    parts = hash_block_size // block_size
    resized: list[int] = []
    for value in hashes:
        resized.extend(_part(value, j) for j in range(1, parts))
        resized.append(value)
    return resized
