"""Larger random replays than hypothesis draws, from a seed: hundreds of requests, long outputs, deep queues.

``python -m tests.kernel.random_cases FIRST COUNT`` compares so many with the model and says how many were equal.
"""

import random
import sys
from collections import Counter
from functools import cache
from typing import Any

from tests.kernel.test_equality import assert_equal_to_model
from tests.kernel.workloads import MS, VERSIONS, Case
from tracekit.config import EngineConfig
from tracekit.replay.clients import ArrivalMode
from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.catalogued import physical_from_dict
from tracekit.step_time.duration import StepParameters
from tracekit.step_time.parameters import StepTime


def random_case(seed: int) -> Case:
    """A storm: more requests than the pool can hold, most of them decoding for long."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    block_size = rng.choice((1, 4, 8, 16, 16))
    length = rng.choice((40, 120, 400))
    chunked = rng.random() < 0.75
    budget = rng.choice((16, 64, 256)) if chunked else max(length, 256)
    priority = rng.random() < 0.25
    config = EngineConfig(
        max_num_seqs=rng.choice((4, 16, min(budget, 64))),
        max_num_batched_tokens=budget,
        max_model_len=length,
        num_gpu_blocks=-(-length // block_size) + rng.choice((1, 5, 20, 100, 400)),
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.6,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice((0, 0, 0, 8, 32)),
        long_prefill_token_threshold_adaptive=rng.random() < 0.3,
        scheduling_policy="priority" if priority else "fcfs",
        async_scheduling=rng.random() < 0.6,
        scheduler_reserve_full_isl=rng.random() < 0.5,
        watermark=rng.choice((0.0, 0.0, 0.05)),
        prefill_schedule_interval=rng.choice((1, 1, 1, 4)),
        max_num_active_seqs=rng.choice((None, None, 8)),
    )
    rows = [
        _row(rng, number, config, span_ms=rng.choice((0, 100, 3000))) for number in range(rng.choice((20, 80, 200)))
    ]
    parameters: StepParameters = AffineParameters(
        rng.choice((5e6, 333.3)), rng.choice((0.0, 40e3)), 25e3, rng.choice((0.0, 1.7))
    )
    if seed % 3 == 0:
        parameters = physical()
    mode = ArrivalMode(closed_loop=rng.random() < 0.3, max_concurrency=rng.choice((None, None, None, 6, 40)))
    version = rng.choice(VERSIONS)
    return Case(tuple(rows), config, version, StepTime(parameters, rng.choice((0, 4 * MS)), "given", "test"), mode)


@cache
def physical() -> StepParameters:
    """The laws of an H100 serving a mixture of experts."""
    return physical_from_dict({"gpu": "H100", "model": "Qwen3-30B-A3B", "max_num_seqs": 16}, "test")


def _row(rng: random.Random, number: int, config: EngineConfig, span_ms: int) -> dict[str, Any]:
    longest = config.max_model_len - 2
    prompt = min(longest, rng.choice((rng.randint(1, 20), rng.randint(1, longest))))
    limit = rng.choice((rng.randint(1, 10), rng.randint(1, longest)))
    output = limit if rng.random() < 0.6 else rng.randint(1, limit)
    row: dict[str, Any] = {
        "request_id": f"r{rng.randint(0, 9)}-{number}",
        "arrival_ns": rng.randint(0, span_ms) * MS + (number if rng.random() < 0.8 else 0),
        "num_prompt_tokens": prompt,
        "num_output_tokens": output,
        "max_tokens": limit,
        "priority": rng.choice((0, 0, 1, 2)),
    }
    if rng.random() < 0.7:
        stem, own = rng.randint(0, 3) * 10_000, rng.randint(0, 12)
        count = prompt // config.block_size + rng.choice((0, 0, 0, 3))
        row["block_hashes"] = [stem + i if i < own else stem + number * 997 + 500 + i for i in range(count)]
    if rng.random() < 0.06:
        row |= {"finish_reason": "abort", "finished_ns": row["arrival_ns"] + rng.randint(0, 2000) * MS}
    if number and rng.random() < 0.1:
        row["parent_request_id"] = f"r{rng.randint(0, 9)}-{rng.randint(0, number - 1)}"
        row["think_ns"] = rng.choice((None, 5 * MS))
    return row


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            assert_equal_to_model(random_case(seed), lockstep=seed % 5 != 0)
            seen["equal"] += 1
        except AssertionError as error:
            seen["different"] += 1
            print(f"seed {seed}: {error}"[:600], flush=True)  # noqa: T201
    print(dict(seen))  # noqa: T201


if __name__ == "__main__":
    main()
