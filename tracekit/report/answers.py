"""What a run can and cannot answer, and which flags of its vLLM version would have recorded more."""

from dataclasses import dataclass

from tracekit.config import parse_version
from tracekit.errors import ConfigError
from tracekit.run import Run


@dataclass(frozen=True)
class Answer:
    """A question, whether the run can answer it, from what or why not."""

    question: str
    known: bool
    why: str


def answers(run: Run) -> list[Answer]:
    """Go through what people ask of a run, in the order in which they ask it."""
    requests, stats = run.requests, run.engine_stats
    has_latency = bool(requests["first_token_ns"].count() or requests["last_token_ns"].count())
    has_counter = bool(stats["num_preemptions"].count())
    return [
        _answer("when requests arrived", requests["arrival_ns"].count() > 0, "requests", "give a client's table or a trace"),
        _answer("latency percentiles", has_latency, "requests", "no token times: give a client's result, or replay"),
        _answer("concurrency over time", bool(stats["num_running_reqs"].count()) or run.has("steps"),
                "steps" if run.has("steps") else "engine_stats", "give the server log or /metrics scrapes, or replay"),
        _answer("preemptions", run.has("preemptions") or has_counter,
                "preemptions" if run.has("preemptions") else "the counter of the scrapes (a number, not which requests)",
                "V1 does not log preemptions: give /metrics scrapes, or replay"),
        _answer("every step", run.has("steps"), "steps", "only a replay, or iteration lines of the log, tell steps"),
        _answer("the KV cache's size", bool({"num_gpu_blocks", "kv_cache_tokens"} & set(run.config)), "config",
                "give the log's start-up lines, or --set num_gpu_blocks=N"),
        _answer("prefix sharing", requests["block_hashes"].count() > 0, "block_hashes",
                "give hash ids (--column block_hashes=...) or token ids; else every prompt counts as unique"),
        _answer("wall-clock times", run.start_unix_ns is not None, "start_unix_ns", "give --timezone, or a source with absolute time"),
    ]  # fmt: skip


def _answer(question: str, known: bool, source: str, missing: str) -> Answer:  # noqa: FBT001
    return Answer(question, known, f"from {source}" if known else missing)


def recording_flags(run: Run) -> list[tuple[str, str]]:
    """Flags of the run's vLLM version that would record more, as typed, and what each adds."""
    try:
        version = parse_version(str(run.config["vllm_version"].value))
    except (KeyError, ConfigError):
        return []
    flags = []
    is_told = all(run.requests[name].count() for name in ("arrival_ns", "max_tokens"))
    if not _on(run, "enable_log_requests") and not is_told:
        flag = "--enable-log-requests" if version >= (0, 10, 1) else "(leave out) --disable-log-requests"
        flags.append((flag, "arrivals and limits of every request"))
    if version >= (0, 10, 2) and not run.requests["num_generated_tokens"].count():
        flags.append(("--enable-log-requests --enable-log-outputs", "when and why every request ended, and its length"))
    if version >= (0, 13, 0) and not run.requests["block_hashes"].count():
        flags.append(("VLLM_LOGGING_LEVEL=DEBUG --enable-log-requests", "prompt token ids, which tell shared prefixes"))
    if version >= (0, 15, 1) and not _on(run, "enable_logging_iteration_details"):
        flags.append(("--enable-logging-iteration-details", "tokens and duration of every step"))
    if not run.engine_stats["num_preemptions"].count():
        flags.append(
            ("curl -s localhost:8000/metrics > NNN_$(date +%s).prom", "every few seconds: preemptions, queue, KV usage")
        )
    return flags


def _on(run: Run, name: str) -> bool:
    return name in run.config and run.config[name].value is True
