"""What went wrong in a run: one detector a kind, each a query and the thresholds that make its answer a finding.

A finding holds numbers (``evidence``), sentences (``causes``) and the names of the queries behind them. Thresholds stand
here, in one place, with what they mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tracekit.compare.database import connect
from tracekit.postmortem.asking import Asking
from tracekit.postmortem.storms import storms
from tracekit.run import Run

KINDS: Final = (
    "preemption_storm", "queueing_with_free_kv", "head_of_line_blocking", "prefill_stall", "prefix_cache_collapse",
    "inadmissible_request", "client_cap", "log_silence",
)  # fmt: skip
_FREE_KV: Final = 0.8
"""With less of the pool in use than this, KV blocks are not what requests wait for."""
_QUEUE_SHARE: Final = 0.05
_QUEUE_LEAST_S: Final = 2.0
_HEAD_LEAST_S: Final = 2.0
_STALL_TIMES: Final = 3.0
_STALL_LEAST: Final = 20
_STALL_SHARE: Final = 0.01
_STALL_REQS: Final = 4
_PARTS: Final = 10
_COULD_HIT: Final = 0.03
_WARM_SHARE: Final = 0.3
"""A prefix cache that once held this much of what was asked for again is expected to go on."""
_COLLAPSE: Final = 0.5
_CAP_SHARE: Final = 0.6
_CAP_LEAST: Final = 4
_CAP_ARRIVALS: Final = 50
_CAP_GAP_MS: Final = 200.0


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong, from ``start_s`` to ``end_s`` of the run (null: no instant, or the whole of it).

    ``weight``: how much it matters, in seconds that requests lost, for the order on the screen.
    """

    kind: str
    start_s: float | None
    end_s: float | None
    title: str
    evidence: dict[str, Any]
    causes: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    weight: float = 0.0
    chain: tuple[dict[str, Any], ...] = field(default=(), repr=False)


Detector = Callable[[Asking, Run], Sequence[Finding]]


def find(run: Run) -> tuple[list[Finding], Asking]:
    """Every finding of a run, the weightiest first, and what was asked; raises ``InputError`` for a damaged run."""
    with connect({"run": run}, locked=False) as connection:
        asking = Asking(connection)
        found = [finding for detector in _DETECTORS for finding in detector(asking, run)]
    order = {kind: place for place, kind in enumerate(KINDS)}
    return sorted(found, key=lambda finding: (order[finding.kind], -finding.weight, finding.start_s or 0)), asking


def _storms(asking: Asking, run: Run) -> list[Finding]:
    return [
        Finding(
            "preemption_storm",
            storm.start_ns / 1e9,
            storm.end_ns / 1e9,
            storm.title,
            storm.evidence,
            storm.causes,
            storm.queries,
            storm.weight,
            storm.chain,
        )
        for storm in storms(asking, run)
    ]


def _queueing(asking: Asking, run: Run) -> list[Finding]:
    if not run.table("steps").height:
        return []
    found = []
    for row in asking.rows("queueing_with_free_kv", most_usage=_FREE_KV):
        if row["duration_s"] < _QUEUE_LEAST_S or row["share"] < _QUEUE_SHARE:
            continue
        limit = row["bound_by"]
        value = run.config[limit].value if limit in run.config else None
        named = f"{limit}{f' {value}' if value is not None else ''}"
        title = (
            f"requests waited {row['duration_s']:.1f} s ({row['share']:.0%} of the device's time) for {named} while "
            f"{1 - row['mean_kv_cache_usage']:.0%} of the KV blocks were free"
        )
        found.append(
            Finding(
                "queueing_with_free_kv",
                row["start_ns"] / 1e9,
                row["end_ns"] / 1e9,
                title,
                {key: value for key, value in row.items() if not key.endswith("_ns")},
                (_why_queueing(limit, row),),
                ("queueing_with_free_kv",),
                row["duration_s"] * row["mean_waiting_reqs"],
            )
        )
    return found


def _why_queueing(limit: str, row: dict[str, Any]) -> str:
    if limit in {"max_num_seqs", "max_num_active_seqs"}:
        return f"{row['mean_running_reqs']:.0f} requests ran, all that {limit} allows; {row['mean_waiting_reqs']:.0f} waited"
    if limit == "token_budget":
        return "prefills used up max_num_batched_tokens step after step; more of them arrived than one step computes"
    if limit == "full_prompt_reservation":
        return "the head's whole prompt had to fit the free blocks before its first chunk (scheduler_reserve_full_isl)"
    return f"the limit was {limit}"


def _head_of_line(asking: Asking, run: Run) -> list[Finding]:
    if not run.table("steps").height:
        return []
    block_size = run.config["block_size"].value if "block_size" in run.config else 16
    found = []
    for row in asking.rows("head_of_line_blocking", block_size=int(block_size), least_s=_HEAD_LEAST_S):
        if row["num_prompt_tokens"] is None or row["num_prompt_tokens"] < 3 * (row["median_prompt_tokens"] or 1):
            continue
        title = (
            f"{row['request_id']} ({row['num_prompt_tokens']:,} prompt tokens, the median is "
            f"{row['median_prompt_tokens']:,.0f}) kept {row['mean_waiting_reqs']:.0f} requests waiting for {row['duration_s']:.1f} s"
        )
        cause = (
            f"{row['mean_free_blocks']:,.0f} blocks were free, enough for those behind it, not for the head; vLLM admits in "
            "order and looks no further"
        )
        evidence = {key: value for key, value in row.items() if not key.endswith("_ns")}
        found.append(
            Finding(
                "head_of_line_blocking",
                row["start_ns"] / 1e9,
                row["end_ns"] / 1e9,
                title,
                evidence,
                (cause,),
                ("head_of_line_blocking",),
                row["duration_s"] * row["mean_waiting_reqs"],
            )
        )
    return found


def _stalls(asking: Asking, run: Run) -> list[Finding]:
    row = asking.row("prefill_stalls", times=_STALL_TIMES) if run.table("steps").height else None
    if row is None or row["num_stalls"] < _STALL_LEAST or (row["share"] or 0) < _STALL_SHARE:
        return []
    if row["mean_stalled_reqs"] < _STALL_REQS:
        return []
    title = (
        f"{row['num_stalls']:,} steps ({row['share']:.1%} of those with decodes) took {_STALL_TIMES:.0f} times the usual "
        f"{row['usual_ms']:.1f} ms or more: {row['mean_stalled_reqs']:.0f} decodes waited for a prefill each time"
    )
    cause = (
        f"the longest took {row['worst_ms']:.0f} ms (step {row['worst_step']}) for {row['worst_prefill_tokens']:,} prefill "
        "tokens in one step: decodes get their next token when the whole step ends"
    )
    return [
        Finding(
            "prefill_stall",
            row["start_ns"] / 1e9,
            row["end_ns"] / 1e9,
            title,
            {key: value for key, value in row.items() if not key.endswith("_ns")},
            (cause,),
            ("prefill_stalls",),
            row["total_stall_s"] * row["mean_stalled_reqs"],
        )
    ]


def _collapse(asking: Asking, run: Run) -> list[Finding]:  # noqa: ARG001 - a detector's arguments
    best = 0.0
    for row in asking.rows("prefix_hits", parts=_PARTS):
        could, did = row["repeated_share"] or 0.0, row["cached_share"] or 0.0
        # Content that nobody had sent before cannot hit: only what could have hit is counted.
        if could < _COULD_HIT:
            continue
        share = min(did / could, 1.0)
        if best >= _WARM_SHARE and share < _COLLAPSE * best:
            lost = (could - did) * row["num_prompt_tokens"]
            title = (
                f"of the prompt tokens that had been computed before, the prefix cache still held {best:.0%}, then "
                f"{share:.0%}: {lost:,.0f} tokens were computed again in a tenth of the run"
            )
            evidence = {
                "hit_share_before": best, "hit_share": share, "cached_share": did, "repeated_share": could,
                "num_missed_tokens": int(lost),
            }  # fmt: skip
            cause = "cached blocks are handed out before their content is asked for again: others need the pool"
            start, end = row["start_ns"] / 1e9, row["end_ns"] / 1e9
            return [
                Finding("prefix_cache_collapse", start, end, title, evidence, (cause,), ("prefix_hits",), lost / 1e3)
            ]
        best = max(best, share)
    return []


def _inadmissible(asking: Asking, run: Run) -> list[Finding]:  # noqa: ARG001 - a detector's arguments
    prefix = "refused by vLLM: "
    refused = [s for s in run.info.get("skipped") or () if str(s["what"]).startswith(prefix)]
    found = []
    for entry in refused:
        reason = str(entry["what"]).removeprefix(prefix)
        title = f"{entry['count']:,} requests can never be admitted: {reason}"
        rows = run.requests.filter(finish_reason="rejected")
        longest = rows["num_prompt_tokens"].max() if rows.height else None
        evidence = {"num_requests": entry["count"], "reason": reason, "longest_prompt_tokens": longest}
        cause = (
            "its prompt and output need more blocks than the whole pool has: it would be preempted for ever"
            if "KV cache" in reason
            else "its prompt leaves no room for a token within max_model_len"
        )
        found.append(Finding("inadmissible_request", None, None, title, evidence, (cause,), (), float(entry["count"])))
    return found


def _client_cap(asking: Asking, run: Run) -> list[Finding]:
    row = asking.row("client_cap")
    if row is None or row["num_in_flight"] is None:
        return []
    is_flat = row["share"] >= _CAP_SHARE and row["num_in_flight"] >= _CAP_LEAST and row["num_arrivals"] >= _CAP_ARRIVALS
    if not is_flat or row["median_gap_ms"] is None or row["median_gap_ms"] > _CAP_GAP_MS:
        return []
    limit = run.config["max_num_seqs"].value if "max_num_seqs" in run.config else None
    if limit is not None and int(limit) <= row["num_in_flight"]:
        return []
    title = (
        f"the client keeps {row['num_in_flight']} requests in flight: {row['share']:.0%} of the arrivals follow an end by "
        f"{row['median_gap_ms']:.0f} ms"
    )
    cause = (
        "the server had room for more"
        + (f" (max_num_seqs {limit})" if limit is not None else "")
        + "; throughput and queueing measured so are the client's, replay with --closed-loop or --max-concurrency"
    )
    evidence = {key: value for key, value in row.items() if not key.endswith("_ns")}
    return [
        Finding(
            "client_cap", row["start_ns"] / 1e9, row["end_ns"] / 1e9, title, evidence, (cause,), ("client_cap",), 1.0
        )
    ]


def _silence(asking: Asking, run: Run) -> list[Finding]:
    if run.kind != "observed" or not run.table("engine_stats").height:
        return []
    found = []
    for row in asking.rows("log_silence"):
        if not row["num_in_flight"]:
            continue
        title = (
            f"the log is silent for {row['silent_s']:.0f} s (usually {row['usual_s']:.0f} s) with {row['num_in_flight']} "
            "requests in flight"
        )
        cause = (
            "the engine core printed nothing: a step that did not end, a stop of the process, or lines that were lost"
        )
        evidence = {key: value for key, value in row.items() if not key.endswith("_ns")}
        start, end = row["start_ns"] / 1e9, row["end_ns"] / 1e9
        found.append(Finding("log_silence", start, end, title, evidence, (cause,), ("log_silence",), row["silent_s"]))
    return found


_DETECTORS: Final[tuple[Detector, ...]] = (
    _storms, _queueing, _head_of_line, _stalls, _collapse, _inadmissible, _client_cap, _silence
)  # fmt: skip
