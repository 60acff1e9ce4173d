"""Excerpts of real logs with the facts a correct reader gets out; skipped where ``../shared`` is not there."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tracekit.sources.observation import Material, Observation, Options
from tracekit.sources.vllm_log import SOURCE, Survey, stats_lines, survey
from tracekit.sources.vllm_log.lifecycle import parse_received
from tracekit.sources.vllm_log.records import split_records

EXCERPTS = Path(__file__).parents[3] / "../shared/data/logs/excerpts"
CASES = sorted(path.stem for path in EXCERPTS.glob("*.json")) if EXCERPTS.is_dir() else []


@pytest.mark.skipif(not CASES, reason="needs ../shared")
@pytest.mark.parametrize("case", CASES)
def test_facts_of_an_excerpt_are_found(case: str) -> None:
    path = EXCERPTS / f"{case}.log"
    material = Material(path, (path,), path.read_bytes()[: 1 << 16])
    assert SOURCE.detects(material)
    observation = SOURCE.read(material, Options())
    with mock.patch.object(stats_lines, "_may_repeat", return_value=True):
        # Statistics lines stay objects, which hold more than the columns of a table.
        found = survey(material, Options())
    expected = json.loads(path.with_suffix(".json").read_text())["expect"]
    expected.pop("note", None)
    actual = _facts(found, observation, path)
    assert _named(actual, expected) == expected
    account = observation.accounting
    assert account.read == account.understood + account.other + account.unreadable


def _named(actual: Any, expected: Any) -> Any:
    """The part of what was found that the expectation names."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {name: _named(actual.get(name), value) for name, value in expected.items()}
    return actual


def _facts(found: Survey, observation: Observation, path: Path) -> dict[str, Any]:
    facts = _physical(found) | _sizes(found) | _stats(found, observation) | _requests(found, path)
    for name in (
        "vllm_version",
        "max_model_len",
        "tensor_parallel_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_tokens",
    ):
        value = observation.config.get(name)
        facts[name] = value.value if value else None
    events = observation.tables.get("events")
    kinds = [] if events is None else list(zip(events["kind"], events["value"], strict=True))
    # Access lines of a start that failed do not occur.
    facts["n_access_200"] = sum(kind == "access" and value == 200 for kind, value in kinds)
    facts["n_access_non200"] = sum(kind == "access" and value != 200 for kind, value in kinds)
    facts["n_traceback"] = sum(kind == "traceback" for kind, _ in kinds)
    facts["preemption_cumulative"] = [int(value) for kind, value in kinds if kind == "preemption_warning"]
    facts["n_preemption_warnings"] = len(facts["preemption_cumulative"])
    facts["n_spec_lines"] = found.reader.counts.get("spec_decoding", 0)
    facts["n_kv_transfer_lines"] = found.reader.counts.get("kv_transfer", 0)
    steps = observation.tables.get("steps")
    facts["n_iteration_lines"] = (steps.height if steps is not None else 0) + observation.skipped.get(
        "dummy iterations", 0
    )
    return facts


def _physical(found: Survey) -> dict[str, Any]:
    physical = found.reader.physical
    return {
        "has_ansi": physical.has_ansi,
        "n_crlf": physical.num_crlf,
        "n_bare_cr": physical.num_bare_cr,
        "n_lf": physical.num_lf,
        "bytes": physical.num_bytes,
    }


def _sizes(found: Survey) -> dict[str, Any]:
    printed = found.reader.printed
    concurrency = [{"tokens": tokens, "x": x} for tokens, x in printed.max_concurrency]
    return {
        "kv_cache_tokens_lines": printed.kv_cache_tokens,
        "max_concurrency_lines": concurrency,
        "max_concurrency": min(concurrency, key=lambda c: c["x"]) if concurrency else None,
        "available_kv_gib_lines": printed.available_kv_gib,
        "model_load": list(printed.model_load[0]) if printed.model_load else None,
        "num_gpu_blocks_engine": printed.num_gpu_blocks,
        "gpu_blocks": printed.v0_blocks[-1][0] if printed.v0_blocks else None,
        "cpu_blocks": printed.v0_blocks[-1][1] if printed.v0_blocks else None,
        "block_override_lines": [list(pair) for pair in printed.block_overrides],
    }


def _stats(found: Survey, observation: Observation) -> dict[str, Any]:
    rows = observation.tables.get("engine_stats")
    lines = found.reader.stats.recent
    facts: dict[str, Any] = {"n_stats_lines": rows.height if rows is not None else 0}
    if rows is None:
        return facts
    facts["first_stats"], facts["last_stats"] = _line(lines[0]), _line(lines[-1])
    facts["max_running"] = rows["num_running_reqs"].max()
    facts["max_waiting"] = rows["num_waiting_reqs"].max()
    facts["max_kv_usage_pct"] = round(rows["kv_cache_usage"].max() * 100, 4)
    facts["n_stats_waiting_gt0"] = int((rows["num_waiting_reqs"] > 0).sum())
    facts["engines"] = sorted({line.stats.label for line in lines})
    facts["n_stats_truncated"] = len(found.reader.truncated)
    for cut in found.reader.truncated:
        stats = cut.stats
        facts["truncated_stats"] = {
            "t": cut.stamp,
            "gen_tps": stats.generation_tps,
            "running": stats.running,
            "waiting": stats.waiting,
        }
    hours = {_zone_hours(line.stamp, time) for line, time in zip(lines, rows["time_ns"], strict=True) if line.stamp}
    facts["outer_minus_inner_hours"] = hours.pop() if len(hours) == 1 else None
    return facts


def _zone_hours(stamp: str, instant_ns: int) -> int:
    instant = datetime.fromtimestamp(instant_ns // 10**9, tz=UTC)
    inner = datetime.strptime(f"{instant.year}-{stamp}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return round((instant - inner).total_seconds() / 3600)


def _line(row: Any) -> dict[str, Any]:
    stats = row.stats
    values = {
        "prompt_tps": stats.prompt_tps,
        "gen_tps": stats.generation_tps,
        "running": stats.running,
        "waiting": stats.waiting,
        "swapped": stats.swapped,
        "kv_usage_pct": _percent(stats.kv_usage),
        "cpu_kv_usage_pct": _percent(stats.cpu_kv_usage),
        "prefix_hit_pct": _percent(row.prefix_hit_rate),
        "external_hit_pct": _percent(stats.external_hit_rate),
        "mm_hit_pct": _percent(stats.mm_hit_rate),
        "deferred": stats.deferred,
    }
    named = {"engine": stats.label} if stats.label else {}
    return {"t": row.stamp} | named | {name: value for name, value in values.items() if value is not None}


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 4)


def _requests(found: Survey, path: Path) -> dict[str, Any]:
    requests = []
    for line in path.read_text(errors="replace").splitlines():
        for record in split_records(line):
            received = parse_received(record.message)
            if received and received.prompt_span:
                low, high = received.prompt_span
                text = re.split(r"\\n|\s", record.message[low + 1 : high - 1])[0]
                requests.append(
                    {
                        "id": received.request_id,
                        "n": received.num_choices,
                        "max_tokens": received.max_tokens,
                        "temperature": received.temperature,
                        "prompt_starts": text,
                    }
                )
    return {
        "n_received": found.reader.requests.num_received,
        "n_added": found.reader.requests.num_added,
        "requests": requests,
    }
