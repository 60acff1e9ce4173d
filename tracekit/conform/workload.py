"""Recorded workloads as requests of the model: token contents become chained block hashes, tokens are not kept.

A workload row: ``req_id, arrival_step, prompt_len, output_len``, optional ``hash_ids`` + ``hash_block`` (equal id at
equal position = equal tokens), ``prompt_token_ids``, ``priority``, ``arrival_time``, ``max_tokens``, ``stop_at`` (an
unforeseeable stop comes as output number ``stop_at``), ``abort_step``.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence

from tracekit.config import EngineConfig
from tracekit.conform.recordings import Row
from tracekit.model.request import Request


def engine_config(config: Row) -> EngineConfig:
    """The configuration of a recorded case; what it does not name had the recorder's default."""
    names = set(EngineConfig.__dataclass_fields__)
    known = {name: value for name, value in config.items() if name in names}
    known.setdefault("enable_prefix_caching", False)
    known.setdefault("scheduler_reserve_full_isl", True)
    known["async_scheduling"] = bool(config.get("async_scheduling") or config.get("async_output_proc"))
    known["kv_cache_windows"] = tuple(group.get("window") for group in config.get("kv_groups", ()))
    return EngineConfig(**known, scheduling_policy=config.get("policy", "fcfs"))


def arrivals(workload: Sequence[Row], block_size: int) -> list[tuple[int, Request]]:
    """(arrival step, request) in order of arrival; rows of one step keep the order of the file."""
    rows = sorted(workload, key=lambda row: int(row.get("arrival_step", 0)))
    hashes = block_hashes(workload, block_size)
    return [
        (int(row.get("arrival_step", 0)), _request(row, hashes[row["req_id"]], order)) for order, row in enumerate(rows)
    ]


def aborts(workload: Sequence[Row]) -> list[tuple[int, str]]:
    """(step, request id) in order."""
    found = [(int(row["abort_step"]), str(row["req_id"])) for row in workload if "abort_step" in row]
    return sorted(found, key=lambda abort: abort[0])


def block_hashes(workload: Sequence[Row], block_size: int) -> dict[str, list[int]]:
    """Chained content hashes of each request's blocks: equal numbers, equal tokens up to the block's end.

    ``hash_ids`` name ``hash_block`` tokens each, which need not be ``block_size``. With ``prompt_token_ids`` anywhere
    all tokens are spelled out, generated ones included, since a prompt may contain another request's output.
    """
    chain: dict[tuple[int | None, tuple[int, ...]], int] = {}
    spelled = any(row.get("prompt_token_ids") for row in workload)
    hashes: dict[str, list[int]] = {}
    for row in workload:
        parent: int | None = None
        hashes[row["req_id"]] = []
        for content in _token_contents(row, block_size) if spelled else _id_contents(row, block_size):
            parent = chain.setdefault((parent, content), len(chain))
            hashes[row["req_id"]].append(parent)
    return hashes


def _request(row: Row, hashes: Sequence[int], order: int) -> Request:
    """The request of a row; ``order`` is its position in arrival order, which breaks ties of priority."""
    max_tokens = int(row["max_tokens"] if "max_tokens" in row else row["output_len"])
    stop_at: int | None = row.get("stop_at")
    prompt = row.get("prompt_token_ids")
    return Request(
        request_id=str(row["req_id"]),
        num_prompt_tokens=len(prompt) if prompt else int(row["prompt_len"]),
        max_tokens=max_tokens,
        num_output_tokens=min(stop_at or max_tokens, max_tokens),
        block_hashes=hashes,
        priority=int(row.get("priority", 0)),
        arrival_order=float(row.get("arrival_time", order)),
    )


def _id_contents(row: Row, block_size: int) -> Iterator[tuple[int, ...]]:
    ids = row.get("hash_ids") or ()
    hash_block = int(row.get("hash_block", 16))
    covered = min(len(ids) * hash_block, int(row["prompt_len"]))
    for end in range(block_size, covered + 1, block_size):
        yield tuple(ids[(end - block_size) // hash_block : -(-end // hash_block)])


def _token_contents(row: Row, block_size: int) -> Iterator[tuple[int, ...]]:
    tokens = list(row.get("prompt_token_ids") or _prompt_tokens(row))
    num_tokens = len(tokens) + int(row["output_len"])
    tokens += [_generated_token(row["req_id"], position) for position in range(len(tokens), num_tokens)]
    for end in range(block_size, num_tokens + 1, block_size):
        yield tuple(tokens[end - block_size : end])


def _generated_token(request_id: str, position: int) -> int:
    """The recorder's output token at a position."""
    digest = hashlib.blake2b(f"{request_id}/{position}".encode(), digest_size=4).digest()
    return 3 + int.from_bytes(digest, "big") % 30000


def _prompt_tokens(row: Row) -> list[int]:
    """The recorder's prompt tokens of a row."""
    num_tokens = int(row["prompt_len"])
    tokens: list[int] = []
    for hash_id in row.get("hash_ids") or ():
        tokens += _drawn_tokens(hash_id * 1000003 + 7, int(row.get("hash_block", 16)))
    if len(tokens) < num_tokens:
        seed = hashlib.blake2b(row["req_id"].encode(), digest_size=8).digest()
        tokens += _drawn_tokens(int.from_bytes(seed, "big"), num_tokens - len(tokens))
    return tokens[:num_tokens]


def _drawn_tokens(seed: int, count: int) -> list[int]:
    source = random.Random(seed)  # noqa: S311 - reproduces the recorder's tokens, no secret
    return [source.randrange(3, 31000) for _ in range(count)]
