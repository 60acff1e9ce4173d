"""Block hashes of the token ids that request lines print.

A log may print hundreds of millions of tokens: the ids are found in all prompts at once, only the hash itself is made
block by block, and a chain is kept as bytes, which take a fifth of the room of a list and which no collector walks.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.sources.block_hashes import to_lists

_DIGEST_BYTES: Final = 8
_COMMA: Final = ", "


@dataclass(frozen=True)
class Hashing:
    """Blocks of so many tokens are hashed with a key, so that the text cannot be guessed back."""

    block_size: int = 16
    key: bytes = b""

    def chains(self, texts: Sequence[str]) -> tuple[list[bytes], list[int]]:
        """See ``chain_printed_tokens``."""
        return chain_printed_tokens(texts, self.block_size, self.key)


def chain_printed_tokens(texts: Sequence[str], block_size: int, key: bytes) -> tuple[list[bytes], list[int]]:
    """For texts like ``1, 2, 3`` the chains of ``hashing.chain_tokens`` (digests, big-endian), and how many ids each has."""
    row, commas = _as_row(texts)
    if not _is_as_printed(row, commas):
        texts = [text.replace(" ", "").replace(",", ", ") for text in texts]
        row, commas = _as_row(texts)
    # A text without ids is not in the row.
    ends = np.cumsum([len(text) + len(_COMMA) if text else 0 for text in texts], dtype=np.int64)
    firsts = [0, *np.searchsorted(commas, ends).tolist()]
    copy = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=key).copy
    chains = []
    for first, last in pairwise(firsts):
        digests: list[bytes] = []
        parent = b""
        start, *stops = commas[first : last + 1 : block_size].tolist()
        for stop in stops:
            digest = copy()
            digest.update(parent + row[start:stop])
            parent = digest.digest()
            digests.append(parent)
            start = stop
        chains.append(b"".join(digests))
    return chains, [last - first for first, last in pairwise(firsts)]


def _as_row(texts: Sequence[str]) -> tuple[bytes, np.ndarray]:
    """All texts as one, a comma before each and behind the last, and where its commas are."""
    row = _COMMA.join(["", *filter(None, texts), ""]).encode()
    return row, np.flatnonzero(np.frombuffer(row, np.uint8) == ord(","))


def _is_as_printed(row: bytes, commas: np.ndarray) -> bool:
    """Whether one blank stands behind every comma and nowhere else."""
    data = np.frombuffer(row, np.uint8)
    return bool((data[commas + 1] == ord(" ")).all()) and np.count_nonzero(data == ord(" ")) == len(commas)


def hash_lists(digests: Sequence[bytes | None]) -> pl.Series:
    """Chains of digests as lists of numbers, null where there is none."""
    flat = array("Q")
    flat.frombytes(b"".join(chain for chain in digests if chain is not None))
    if sys.byteorder == "little":
        flat.byteswap()
    rows = [row for row, chain in enumerate(digests) if chain is not None]
    sizes = [len(chain) // _DIGEST_BYTES for chain in digests if chain is not None]
    numbers = pa.Array.from_buffers(pa.uint64(), len(flat), [None, pa.py_buffer(flat)])
    return to_lists(pl.Series(pl.from_arrow(numbers)), sizes, rows, len(digests))
