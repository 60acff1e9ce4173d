"""Small logs written for these tests, and the way to read them."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracekit.sources.observation import Material, Observation, Options
from tracekit.sources.vllm_log import SOURCE

V1_STATS = (
    "Engine {engine:03d}: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: 9.5 tokens/s, "
    "Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage}%, Prefix cache hit rate: 1.5%"
)


def record(
    message: str, stamp: str = "03-05 10:00:00", place: str = "[x.py:1]", level: str = "INFO", before: str = ""
) -> str:
    return f"{before}{level} {stamp} {place} {message}"


def stats(
    stamp: str = "03-05 10:00:10", running: int = 3, waiting: int = 1, engine: int = 0, usage: float = 12.5
) -> str:
    message = V1_STATS.format(engine=engine, prompt=100.0, running=running, waiting=waiting, usage=usage)
    return record(message, stamp, "[loggers.py:335]", before="(APIServer pid=7) ")


def v0_stats(stamp: str, running: int = 3) -> str:
    message = (
        f"Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: {running} reqs, "
        "Swapped: 1 reqs, Pending: 2 reqs, GPU KV cache usage: 50.0%, CPU KV cache usage: 0.5%."
    )
    return record(message, stamp, "metrics.py:467]")


def preempted(stamp: str, count: int) -> str:
    message = (
        f"Sequence group cmpl-{count}-0 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV "
        f"cache space. total_num_cumulative_preemption={count}"
    )
    return record(message, stamp, "scheduler.py:1555]", "WARNING")


def start_up(stamp: str = "03-05 09:59:00", version: str = "0.33.0", **arguments: Any) -> list[str]:
    """What a server prints when it starts, up to being ready."""
    given = {"model": "org/Small-1B", "max_model_len": 4096} | arguments
    return [
        record(f"vLLM API server version {version}", stamp, "[api_server.py:5]", before="(APIServer pid=7) "),
        record(f"non-default args: {given!r}", stamp, "[utils.py:6]", before="(APIServer pid=7) "),
        record("Chunked prefill is enabled with max_num_batched_tokens=2048.", stamp, before="(APIServer pid=7) "),
        record(
            f"Initializing a V1 LLM engine (v{version}) with config: model='org/Small-1B', dtype=torch.bfloat16, "
            "max_seq_len=4096, tensor_parallel_size=1, quantization=None, enable_prefix_caching=True",
            stamp,
            before="(EngineCore pid=9) ",
        ),
        record(
            "GPU KV cache size: 16,384 tokens, Maximum concurrency for 4,096 tokens per request: 4.00x",
            stamp,
            "[kv_cache_utils.py:1147]",
            before="(EngineCore pid=9) ",
        ),
        "INFO:     Application startup complete.",
    ]


def observe(
    tmp_path: Path, lines: Iterable[str] | bytes, *, written: str = "2026-03-06T00:00:00", **options: Any
) -> Observation:
    """Read lines as a log that was last written at that time (UTC)."""
    path = tmp_path / "server.log"
    path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
    moment = datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp()
    os.utime(path, (moment, moment))
    observation = SOURCE.read(material(path), Options(**options))
    account = observation.accounting
    assert account.read == account.understood + account.other + account.unreadable
    return observation


def material(path: Path) -> Material:
    return Material(path, (path,), path.read_bytes()[: 1 << 16])


def at(text: str) -> int:
    """Nanoseconds of a moment read as UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9
