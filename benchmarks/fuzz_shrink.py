"""Make a case that differs smaller while it keeps differing: fewer requests, shorter ones, a plainer config."""

from collections.abc import Callable, Iterator

from benchmarks.fuzz_workloads import Case, Row

_PLAIN = {
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "watermark": 0.0,
    "prefill_schedule_interval": 1,
    "max_num_active_seqs": None,
    "reset_steps": None,
    "log_block_ids": False,
    "log_prefix_stats": False,
    "enable_prefix_caching": False,
    "async_scheduling": False,
    "policy": "fcfs",
    "scheduler_reserve_full_isl": False,
    "enable_chunked_prefill": True,
}
_EXTRAS = ("abort_step", "stop_at", "arrival_time", "priority", "hash_ids", "hash_block", "prompt_token_ids")


def shrink(case: Case, differs: Callable[[Case], bool], most_tries: int = 250) -> Case:
    """The smallest case found within ``most_tries`` runs; ``differs`` runs one."""
    tries = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(case):
            tries += 1
            if tries > most_tries:
                return case
            if differs(smaller):
                case, shrunk = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    config, rows = case.config, case.workload
    size = max(1, len(rows) // 2)
    while size:
        for start in range(0, len(rows), size):
            rest = rows[:start] + rows[start + size :]
            if rest:
                yield Case(config, rest)
        size //= 2
    for key, plain in _PLAIN.items():
        if config.get(key, plain) != plain:
            others = {name: value for name, value in config.items() if name != key}
            yield Case(others if plain is None else {**others, key: plain}, rows)
    for index, row in enumerate(rows):
        for simpler in _simpler(row):
            yield Case(config, [*rows[:index], simpler, *rows[index + 1 :]])


def _simpler(row: Row) -> Iterator[Row]:
    for key in _EXTRAS:
        if key in row:
            yield {name: value for name, value in row.items() if name != key}
    if row["arrival_step"]:
        yield {**row, "arrival_step": 0}
    if row["output_len"] > 1:
        yield {**row, "output_len": row["output_len"] // 2}
    if row["prompt_len"] > 1 and "prompt_token_ids" not in row:
        yield {**row, "prompt_len": row["prompt_len"] // 2}
