"""A run in the Chrome trace format, for ui.perfetto.dev: steps, counters, and a track a request with its phases.

Instants are microseconds from the run's start, as the format has them; a fraction keeps the nanoseconds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tracekit.compare.run_sql import sql
from tracekit.errors import InputError, OutputExistsError
from tracekit.report.text import sanitise
from tracekit.run import Run

MOST_EVENTS: Final = 3_000_000
"""More than a browser takes."""
_ENGINES: Final = 1
_REQUESTS: Final = 2
_US: Final = 1000
_STEPS: Final = """
SELECT COALESCE(engine, 0) AS engine, step, start_ns, duration_ns, num_running_reqs, num_waiting_reqs, num_scheduled_reqs,
    num_scheduled_tokens, num_decode_reqs, num_preempted_reqs, num_free_blocks, kv_cache_usage, bound_by
FROM steps
ORDER BY start_ns, engine, step
"""
_SAMPLES: Final = """
SELECT time_ns, num_running_reqs, num_waiting_reqs, kv_cache_usage FROM samples ORDER BY time_ns
"""
_PHASES: Final = """
SELECT p.request_id, p.phase, p.start_ns, p.end_ns
FROM phases AS p
ORDER BY p.start_ns, p.request_id, p.phase
"""
_EVICTIONS: Final = """
SELECT time_ns, COALESCE(engine, 0) AS engine, request_id, needed_by_request_id, num_computed_tokens, num_blocks
FROM preemptions
ORDER BY time_ns, request_id
"""


def write_perfetto(run: Run, path: str | Path, *, force: bool = False) -> int:
    """Write the trace and return its number of events.

    Raises ``OutputExistsError`` for a file that is there, ``InputError`` for a run that knows no step, sample or phase,
    or that has more events than a browser takes.
    """
    target = Path(path)
    if target.exists() and not force:
        msg = f"{target} exists; choose another name or give --force"
        raise OutputExistsError(msg)
    events = list(_events(run))
    if not any(event["ph"] != "M" for event in events):
        msg = f"{run.name}: no steps, samples or request phases to show; replay it first (tracekit replay ... -o RUN)"
        raise InputError(msg)
    if len(events) > MOST_EVENTS:
        msg = f"{run.name}: {len(events):,} events are more than a browser takes; cut it with --from/--until or --last"
        raise InputError(msg)
    sibling = target.with_name(f".{target.name}.new")
    with sibling.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")
    sibling.replace(target)
    return len(events)


def _events(run: Run) -> Iterator[dict[str, Any]]:
    yield _named("process_name", _ENGINES, 0, "engine")
    yield _named("process_name", _REQUESTS, 0, "requests")
    steps = sql({"run": run}, _STEPS)
    yield from _step_events(steps.iter_rows(named=True)) if steps.height else _sample_events(run)
    for row in sql({"run": run}, _EVICTIONS).iter_rows(named=True):
        args = {
            "needed by": sanitise(str(row["needed_by_request_id"])), "computed tokens lost": row["num_computed_tokens"],
            "blocks freed": row["num_blocks"],
        }  # fmt: skip
        yield {
            "name": f"preempted {sanitise(row['request_id'])}", "ph": "i", "s": "p", "pid": _ENGINES,
            "tid": row["engine"] + 1, "ts": row["time_ns"] / _US, "args": args,
        }  # fmt: skip
    yield from _request_events(run)


def _step_events(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    engines: set[int] = set()
    for row in rows:
        engine, at = row["engine"], row["start_ns"] / _US
        if engine not in engines:
            engines.add(engine)
            yield _named("thread_name", _ENGINES, engine + 1, f"steps of engine {engine}")
        decodes_only = row["num_scheduled_tokens"] == row["num_scheduled_reqs"]
        names = ("step", "num_running_reqs", "num_waiting_reqs", "num_scheduled_reqs", "num_scheduled_tokens",
                 "num_preempted_reqs", "num_free_blocks", "bound_by")  # fmt: skip
        yield {
            "name": "decode" if decodes_only else "prefill and decode" if row["num_decode_reqs"] else "prefill", "ph": "X",
            "pid": _ENGINES, "tid": engine + 1, "ts": at, "dur": (row["duration_ns"] or 0) / _US,
            "args": {name: row[name] for name in names if row[name] is not None},
        }  # fmt: skip
        yield from _counters(at, row, f" of engine {engine}" if len(engines) > 1 else "")


def _sample_events(run: Run) -> Iterator[dict[str, Any]]:
    """Without steps the periodic samples give the counters."""
    for row in sql({"run": run}, _SAMPLES).iter_rows(named=True):
        yield from _counters(row["time_ns"] / _US, row, "")


def _counters(at: float, row: dict[str, Any], suffix: str) -> Iterator[dict[str, Any]]:
    if row["num_running_reqs"] is not None:
        args = {"running": row["num_running_reqs"], "waiting": row["num_waiting_reqs"] or 0}
        yield {"name": f"requests{suffix}", "ph": "C", "pid": _ENGINES, "tid": 0, "ts": at, "args": args}
    if row["kv_cache_usage"] is not None:
        args = {"percent": round(100 * row["kv_cache_usage"], 3)}
        yield {"name": f"KV cache usage{suffix}", "ph": "C", "pid": _ENGINES, "tid": 0, "ts": at, "args": args}


def _request_events(run: Run) -> Iterator[dict[str, Any]]:
    tracks: dict[str, int] = {}
    for row in sql({"run": run}, _PHASES).iter_rows(named=True):
        name = row["request_id"]
        if name not in tracks:
            tracks[name] = len(tracks) + 1
            yield _named("thread_name", _REQUESTS, tracks[name], sanitise(name))
        if row["end_ns"] is None:
            continue  # it lasts beyond the record
        yield {
            "name": row["phase"], "ph": "X", "pid": _REQUESTS, "tid": tracks[name], "ts": row["start_ns"] / _US,
            "dur": (row["end_ns"] - row["start_ns"]) / _US, "cat": "request",
        }  # fmt: skip


def _named(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
