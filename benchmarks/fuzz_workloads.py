"""Random configs and workloads for the comparison with a live vLLM; a seed and a number name one for ever.

The formats are the recorder's (``docs/conformance.md``). Axes: asynchronous, prefix caching (shared prefixes, equal
prompts, turns that contain the answers before them), tiny pools, priority with ties, aborts, unforeseen stops,
thresholds, reservation, watermark, prefill interval, active limit, block sizes, short models, chunking off, small
budgets, idle gaps, cache resets.
"""

import hashlib
import itertools
import random
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
MAX_STEPS = 400


@dataclass(frozen=True)
class Case:
    """One config with its workload."""

    config: Row
    workload: list[Row]

    @property
    def axes(self) -> list[str]:
        """What this case exercises, by name."""
        config, rows = self.config, self.workload
        gaps = itertools.pairwise(rows)
        exercised = {
            "asynchronous": config["async_scheduling"],
            "prefix caching": config["enable_prefix_caching"],
            "shared prefixes": any("hash_ids" in row for row in rows),
            "spelled prompts and answers": any("prompt_token_ids" in row for row in rows),
            "priority": config["policy"] == "priority",
            "equal arrivals": any("arrival_time" in row for row in rows),
            "aborts": any("abort_step" in row for row in rows),
            "unforeseen stops": any("stop_at" in row for row in rows),
            "threshold": config["long_prefill_token_threshold"] > 0,
            "adaptive threshold": config.get("long_prefill_token_threshold_adaptive", False),
            "reservation": config["scheduler_reserve_full_isl"],
            "watermark": "watermark" in config,
            "prefill interval": "prefill_schedule_interval" in config,
            "active limit": "max_num_active_seqs" in config,
            f"block size {config['block_size']}": True,
            "short model": config["max_model_len"] <= 256,
            "chunking off": not config["enable_chunked_prefill"],
            "budget below 65": config["max_num_batched_tokens"] < 65,
            "idle gaps": any(row["arrival_step"] - before["arrival_step"] > 100 for before, row in gaps),
            "resets": "reset_steps" in config,
            "block ids": config["log_block_ids"],
        }
        return [name for name, is_so in exercised.items() if is_so]


def make_case(seed: int, number: int, *, storm: bool = False) -> Case:
    """Workload ``number`` of a seed; ``storm`` makes the pool tiny and the answers long, so that most preempt."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secrets here
    config = _config(rng)
    if storm:
        config["max_num_seqs"] = min(
            max(config["max_num_seqs"], rng.choice([4, 8, 16])), config["max_num_batched_tokens"]
        )
        config["num_gpu_blocks"] = int(-(-config["max_model_len"] // config["block_size"]) * rng.uniform(1, 1.6)) + 2
    workload = _workload(rng, config, storm=storm)
    if config["enable_prefix_caching"]:
        _share_prefixes(rng, config, workload)
        if rng.random() < 0.25:
            _echo_answers(rng, config, workload)
        elif config["block_size"] < 4:
            _spell_out(rng, workload)  # blocks so small that two random ones may be equal
    if rng.random() < 0.08:
        last = workload[-1]["arrival_step"] + 60
        config["reset_steps"] = sorted(rng.sample(range(1, last), rng.randint(1, 4)))
        config["reset_running"] = rng.random() < 0.6
    return Case(config, workload)


def _config(rng: random.Random) -> Row:
    block_size = rng.choices([1, 8, 16, 32, 64, 128], [2, 5, 8, 5, 3, 1])[0]
    max_model_len = rng.choice([40, 64, 100, 128, 200, 256, 500, 512, 1024, 2048])
    chunked = rng.random() < 0.82
    max_num_seqs = rng.choice([1, 2, 3, 4, 8, 8, 16, 16, 16, 32, 64])
    budget = max(rng.choice([16, 24, 32, 48, 64, 100, 128, 200, 256, 384, 512, 1024, 2048]), max_num_seqs)
    if not chunked and rng.random() < 0.95:
        budget = max(budget, max_model_len)
    config: Row = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "num_gpu_blocks": _num_blocks(rng, max_model_len, block_size),
        "block_size": block_size,
        "enable_prefix_caching": rng.random() < 0.6,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": 0,
        "policy": "priority" if rng.random() < 0.4 else "fcfs",
        "async_scheduling": rng.random() < 0.5,
        "scheduler_reserve_full_isl": rng.random() < 0.55,
        "log_prefix_stats": rng.random() < 0.5,
        "log_block_ids": rng.random() < 0.4,
        "max_steps": MAX_STEPS,
    }
    if rng.random() < 0.3:
        config["long_prefill_token_threshold"] = min(rng.choice([1, 4, 8, 16, 30, 64, 128]), max_model_len)
        config["long_prefill_token_threshold_adaptive"] = rng.random() < 0.4
    if rng.random() < 0.3:
        config["watermark"] = rng.choice([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5])
    if rng.random() < 0.3:
        config["prefill_schedule_interval"] = rng.choice([2, 2, 3, 4, 6, 10, 25])
    if rng.random() < 0.3:
        config["max_num_active_seqs"] = rng.randint(1, max_num_seqs) + (rng.random() < 0.02)
    return config


def _num_blocks(rng: random.Random, max_model_len: int, block_size: int) -> int:
    """Null block included; mostly a few requests of full length, now and then less than one or plenty."""
    longest = -(-max_model_len // block_size)
    share = rng.choices([rng.uniform(0.4, 1), rng.uniform(1, 1.6), rng.uniform(1.6, 5), 40], [1, 8, 5, 2])[0]
    return max(2, int(longest * share) + 1)


def _length(rng: random.Random, low: int, high: int) -> int:
    """Log-uniform: many short, some long."""
    return max(low, min(high, int(low * (high / low) ** rng.random() + rng.random())))


def _workload(rng: random.Random, config: Row, *, storm: bool) -> list[Row]:
    longest = config["max_model_len"] - 1
    longest_prompt = max(1, int(longest * rng.choice([0.05, 0.1, 0.3, 0.6, 1, 1])))
    longest_answer = rng.choice([1, 4, 20, 60, 150, 150, 300, 300])
    gap, burst = rng.choice([0, 0.5, 0.5, 1, 1, 3, 8, 30]), rng.choice([0, 5, 20])
    idle = rng.choice([0, 0, 0.05, 0.2])
    priorities, ties = rng.choice([1, 2, 5, 100]), rng.random() < 0.3
    aborts, stops = rng.choice([0, 0, 0.1, 0.5]), rng.choice([0, 0, 0.2, 0.8])
    even = rng.choice([0, 0.5, 1])
    if storm:
        longest_prompt, longest_answer = max(1, int(longest * rng.choice([0.05, 0.1, 0.3]))), rng.choice([100, 200])
        gap, even = rng.choice([0, 0.5, 1, 3]), 1
    step, rows = 0, []
    for number in range(rng.choice([3, 6, 10, 16, 24, 24, 40, 60])):
        if number >= burst and gap:
            step += int(rng.expovariate(1 / gap))
        if rng.random() < idle:
            step += rng.randint(10, 120)
        answer = rng.randint(1, longest_answer) if rng.random() < even else _length(rng, 1, longest_answer)
        prompt = _length(rng, 1, longest_prompt)
        if rng.random() < 0.2:  # block-aligned
            prompt = min(longest, -(-prompt // config["block_size"]) * config["block_size"])
        row: Row = {"req_id": f"r{number}", "arrival_step": step, "prompt_len": prompt, "output_len": answer}
        if config["policy"] == "priority":
            row["priority"] = rng.randrange(priorities)
            if ties:
                row["arrival_time"] = step // rng.choice([1, 20])
        if rng.random() < stops:
            row["stop_at"] = rng.randint(1, answer + 1)
        if rng.random() < aborts:
            row["abort_step"] = step + int(rng.expovariate(1 / 25))
        rows.append(row)
    if rng.random() < 0.3:
        rng.shuffle(rows)  # file order is not arrival order
        rows.sort(key=lambda row: row["arrival_step"])
    return rows


def _share_prefixes(rng: random.Random, config: Row, workload: list[Row]) -> None:
    """Let most prompts begin with one of a few paths in a tree of shared blocks of ``hash_block`` tokens."""
    hash_block = rng.choice([config["block_size"], 4, 8, 16, 16, 32, 48])
    roots, depth = rng.choice([1, 2, 4]), rng.choice([1, 2, 4, 8])
    fresh = iter(range(1000, 10**9))
    children: dict[tuple[int, ...], list[int]] = {}
    for row in workload:
        if rng.random() < 0.1:
            continue
        path: tuple[int, ...] = ()
        for level in range(rng.randint(1, depth)):
            names = children.setdefault(path, [next(fresh) for _ in range(roots if not level else 2)])
            path += (rng.choice(names),)
            path += tuple(path[-1] * 1000 + i for i in range(rng.choice([0, 0, 2])))
        tail = rng.choice([0, 0, 1, rng.randint(1, 3 * hash_block)])
        row["prompt_len"] = max(1, min(len(path) * hash_block + tail, config["max_model_len"] - 1))
        row["hash_ids"] = list(path[: -(-row["prompt_len"] // hash_block)])
        row["hash_block"] = hash_block


def _spell_out(rng: random.Random, workload: list[Row]) -> None:
    """Write the prompts' token ids out; shared blocks stay shared."""
    contents: dict[int, list[int]] = {}
    for row in workload:
        tokens: list[int] = []
        for name in row.pop("hash_ids", ()):
            block = contents.setdefault(name, [rng.randrange(3, 31000) for _ in range(row["hash_block"])])
            tokens.extend(block)
        row.pop("hash_block", None)
        tokens = tokens[: row["prompt_len"]]
        row["prompt_token_ids"] = tokens + [rng.randrange(3, 31000) for _ in range(row["prompt_len"] - len(tokens))]


def _echo_answers(rng: random.Random, config: Row, workload: list[Row]) -> None:
    """Turn some requests into later turns: the prompt is an earlier one's, then its answer or a part of it, and more."""
    _spell_out(rng, workload)
    for index in range(1, len(workload)):
        row, parent = workload[index], workload[rng.randrange(index)]
        if rng.random() < 0.4:
            continue
        before = parent["prompt_token_ids"]
        longest = min(parent["output_len"], parent.get("stop_at", 10**9) - 1)  # the stop token itself is not said again
        length = rng.choice([longest, rng.randint(0, longest)])
        answer = [_answer_token(parent["req_id"], len(before) + i) for i in range(length)]
        more = [rng.randrange(3, 31000) for _ in range(rng.choice([0, 1, 8, 20]))]
        tokens = (before + answer + more)[: config["max_model_len"] - 1]
        row["prompt_token_ids"], row["prompt_len"] = tokens, len(tokens)
        delay = rng.choice([0, 5, 30])
        row["arrival_step"] = max(row["arrival_step"], parent["arrival_step"] + delay)
        if "abort_step" in row:
            row["abort_step"] += delay


def _answer_token(request_id: str, position: int) -> int:
    """The token that the recorder lets a request produce there (``wl_tokens.hint``)."""
    digest = hashlib.blake2b(f"{request_id}/{position}".encode(), digest_size=4).digest()
    return 3 + int.from_bytes(digest, "big") % 30000
