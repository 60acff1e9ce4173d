"""Small traces for replay tests."""

from typing import Any

import polars as pl

from tracekit.config import Scalar, setting_value
from tracekit.run import Run
from tracekit.schema.parquet import conform
from tracekit.schema.tables import REQUESTS
from tracekit.step_time.parameters import StepTime, step_time_from_dict

MS = 1_000_000


def trace(rows: list[dict[str, Any]], **config: Scalar) -> Run:
    """A run of these requests; ids are made when absent, and the engine is small unless the config says otherwise."""
    frame = (
        pl.DataFrame(
            [{"request_id": f"r{i}", **row} for i, row in enumerate(rows)],
            schema_overrides={"block_hashes": pl.List(pl.UInt64)} if any("block_hashes" in r for r in rows) else None,
            infer_schema_length=None,
        )
        if rows
        else pl.DataFrame({"request_id": []}, schema={"request_id": pl.String})
    )
    values: dict[str, Scalar] = {
        "vllm_version": "0.33.0",
        "num_gpu_blocks": 1025,
        "max_model_len": 4096,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        **config,
    }
    known = {name: setting_value(name, value, "logged", "server.log:1") for name, value in values.items()}
    return Run("observed", {"requests": conform(REQUESTS, frame, "test")}, known)


def step_time(t0_ms: float = 10, per_token_us: float = 0, per_seq_us: float = 0, frontend_ms: float = 0) -> StepTime:
    """An affine step time."""
    found = {"t0_ms": t0_ms, "per_token_us": per_token_us, "per_seq_us": per_seq_us, "frontend_ms": frontend_ms}
    return step_time_from_dict(found, "given", "test")
