"""The comparison: each case runs once per distinct rule set and is held against the log of every label."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from tracekit.conform.capacity_rows import compare_capacity, is_capacity_file
from tracekit.conform.drivers import Decider, kernel_cannot, simulate
from tracekit.conform.recordings import Case, Row, find_cases, read_rows
from tracekit.conform.report import CaseResult, ConformReport, Difference
from tracekit.model.rules import Engine, Rules
from tracekit.progress import Progress, no_progress

_OUT_OF_SCOPE: Final = ("num_speculative_tokens",)
_NO_IDENTITY: Final = "new_block_ids"
"""A field of the model's rows only: to the kernel, blocks without shared content have no identity."""


def conform(
    paths: Sequence[Path | str],
    rules: str | None = None,
    *,
    engine: Engine | None = None,
    cases: Sequence[str] | None = None,
    decider: Decider = "model",
    jobs: int = 1,
    progress: Progress = no_progress,
) -> ConformReport:
    """Compare the model (``decider`` "kernel": the compiled scheduler) with recordings, step by step.

    ``rules`` is the vLLM version of a single recording, or restricts a set to the labels with the same rules;
    ``engine`` restricts a set to V0 or V1 (and picks it for a single recording); ``cases`` to some cases; ``jobs`` is
    the number of processes. Cases with speculation, and what the kernel has no part in, are skipped and
    reported. A file of capacity rows is planned anew instead. Raises ``InputError`` for a path that holds no recording.
    """
    if decider == "kernel" and engine is None:
        engine = "v1"
    folders = [Path(path) for path in paths if not is_capacity_file(Path(path))]
    capacity = compare_capacity(Path(path) for path in paths if is_capacity_file(Path(path)))
    found = [case for path in folders for case in find_cases(path, rules, engine)]
    found = [case for case in found if cases is None or case.name in cases]
    skipped = [(case.name, reason) for case in found if (reason := _out_of_scope(case, decider))]
    found = [case for case in found if not _out_of_scope(case, decider)]
    compare_one = partial(_compare, decider=decider)
    results: list[CaseResult] = []
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            for number, compared in enumerate(pool.map(compare_one, found)):
                progress("conform", number + 1, len(found))
                results += compared
    else:
        for number, case in enumerate(found):
            results += compare_one(case)
            progress("conform", number + 1, len(found))
    return ConformReport(tuple(results), tuple(skipped), tuple(capacity))


def _out_of_scope(case: Case, decider: Decider = "model") -> str | None:
    unknown = next((f"{key} is not modelled" for key in _OUT_OF_SCOPE if case.config.get(key)), None)
    if unknown is not None or decider == "model":
        return unknown
    return kernel_cannot(case.config, case.logs[0].rules)


def _compare(case: Case, decider: Decider = "model") -> list[CaseResult]:
    simulated: dict[tuple[Rules, object, bool, object], list[Row]] = {}
    results = []
    for log in case.logs:
        key = (log.rules, log.rules.prefix_stats, log.rules.reset_drops_next_output, log.rules.window)
        if key not in simulated:
            simulated[key] = list(simulate(case.config, case.workload, log.rules, decider))
        recorded = read_rows(log.path)
        if decider == "kernel":
            recorded = [{name: value for name, value in row.items() if name != _NO_IDENTITY} for row in recorded]
        difference = _first_difference(recorded, simulated[key])
        agreeing = len(recorded) if difference is None else min(difference.step, len(recorded))
        results.append(
            CaseResult(
                case.name, log.path.name, log.labels, log.rules, len(recorded), agreeing, log.crashed, difference
            )
        )
    return results


def _first_difference(recorded: list[Row], simulated: list[Row]) -> Difference | None:
    """The first step whose rows differ, or at which one side has ended; None when all agree."""
    for step, row in enumerate(recorded):
        if step >= len(simulated):
            return Difference(step, (), row, None, ())
        other = simulated[step]
        keys = tuple(key for key in row if not _equal(key, row[key], other.get(key)))
        if keys:
            shown = {key: other.get(key) for key in row}
            return Difference(step, keys, row, shown, _concerned(row, other, keys))
    if len(simulated) > len(recorded):
        return Difference(len(recorded), (), None, simulated[len(recorded)], ())
    return None


def _equal(key: str, left: object, right: object) -> bool:
    """Equality that minds the order in which requests were scheduled."""
    if key == "scheduled" and isinstance(left, dict) and isinstance(right, dict):
        return list(left.items()) == list(right.items())
    return left == right


def _concerned(row: Row, other: Row, keys: Sequence[str]) -> tuple[str, ...]:
    """The requests that stand on one side only, or with other numbers."""
    ids: dict[str, None] = {}
    for key in keys:
        left, right = row[key], other.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            ids |= dict.fromkeys(i for i in (*left, *right) if left.get(i) != right.get(i))
        elif isinstance(left, list) and isinstance(right, list):
            ids |= dict.fromkeys(i for i in (*left, *right) if isinstance(i, str) and (i in left) != (i in right))
    return tuple(ids)
