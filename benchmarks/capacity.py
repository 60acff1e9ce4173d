"""The planner and the memory estimate against start-ups of real servers: ``python -m benchmarks.capacity [FILE]``.

FILE (default: ``../shared/data/capacity/observed.jsonl``) holds what public logs print. Prints, for every row whose model
is in the catalogue, whether the printed tokens lie in the range that the printed memory allows, and how far the available
memory is off when it is predicted from GPU, model and flags alone.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tracekit.catalogue.gpus import find_gpu, gpus_with
from tracekit.config import Config, ConfigValue
from tracekit.engine_setup import built_of, engine_of, generation_of, server_of, setup_of
from tracekit.errors import TracekitError
from tracekit.model.capacity import capacity_rules_for, plan
from tracekit.model.capacity.memory import GIB, estimate
from tracekit.pool import measured

SHARED = Path(__file__).parents[2] / "shared" / "data" / "capacity" / "observed.jsonl"


def config_of(row: dict[str, Any]) -> Config:
    """A row as a logged configuration."""
    names = {
        "vllm_version": row["version"], "model": row["model"], "tensor_parallel_size": row.get("tp") or 1,
        "pipeline_parallel_size": row.get("pp") or 1, "max_model_len": row.get("max_len"),
        "kv_cache_dtype": row.get("kv_dtype") or "auto", "quantization": row.get("quant"),
        "gpu_memory_utilization": row.get("util"), "max_num_batched_tokens": row.get("max_num_batched_tokens"),
        "max_num_seqs": row.get("max_num_seqs"), "available_kv_gib": row.get("available_gib"),
        "num_gpu_blocks": row.get("num_gpu_blocks"), "kv_cache_tokens": row.get("kv_tokens"),
        "enforce_eager": str(row.get("eager")) == "True",
    }  # fmt: skip
    if "MTP(3), fp8 KV" in str((row.get("hybrid_check") or {}).get("recognised_as")):
        names |= {"kv_cache_dtype": "fp8", "num_speculative_tokens": 3, "num_draft_layers": 1}
    return {
        name: ConfigValue(value, "logged", row["id"]) for name, value in names.items() if value not in (None, "None")
    }


def tokens_range(config: Config) -> tuple[int, int]:
    """The tokens that the printed memory allows."""
    engine = engine_of(config)
    band = measured(engine, config)
    assert band is not None
    rules = capacity_rules_for(engine.version, generation_of(engine))
    built = built_of(engine)
    low, high = (plan(server_of(engine, built, end), rules) for end in (band.low, band.high))
    return low.num_tokens, high.num_tokens


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    if not path.is_file():
        print(f"{path} is not here")
        return 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    fits, compared, unknown, errors = 0, 0, 0, []
    for row in (row for row in rows if "model" in row):
        config = config_of(row)
        name = f"{row['id']:8} {row['version']:24.24} {row['model'].rsplit('/', 1)[-1]:34.34}"
        try:
            tokens = row.get("kv_tokens") or 16 * (row.get("num_gpu_blocks") or 0)
            if row.get("available_gib") and tokens:
                low, high = tokens_range(config)
                # Up to 0.10 every rank prints its own tokens, and the row's memory is the smallest rank's.
                own = row["id"] == "raw-17" and tokens > high
                ok = low <= tokens <= high or own
                fits, compared = fits + ok, compared + 1
                said = "another rank's" if own else "fits" if ok else "NO"
                print(f"{name} {tokens:>10,} tokens, {low:>10,} to {high:>10,}  {said}")
            else:
                engine_of(config)
                print(f"{name} prints no available memory")
        except TracekitError as error:
            unknown += 1
            print(f"{name} {str(error).splitlines()[0][:90]}")
            continue
        total = (row.get("breakdown") or {}).get("total_gib") or row.get("total_gib")
        gpu = _gpu(row, total)
        if gpu is None or not row.get("available_gib"):
            continue
        known = {**config, "gpu": ConfigValue(gpu, "inferred", "memory")}
        predicted = estimate(setup_of(engine_of(known))).available
        error_gib = predicted.likely / GIB - row["available_gib"]
        inside = predicted.low <= row["available_gib"] * GIB <= predicted.high
        errors.append((error_gib, error_gib / row["available_gib"], inside))
        print(
            f"{'':8} on {gpu}: available {row['available_gib']:.2f} GiB, predicted {predicted.likely / GIB:.2f} "
            f"({predicted.low / GIB:.1f} to {predicted.high / GIB:.1f}), {error_gib:+.2f} GiB"
        )
    print(
        f"printed tokens within what the printed memory allows: {fits} of {compared}; {unknown} models not in the catalogue"
    )
    if errors:
        absolute = [abs(gib) for gib, _, _ in errors]
        print(
            f"available memory predicted from GPU, model and flags: {len(errors)} rows, median error "
            f"{statistics.median(absolute):.2f} GiB, largest {max(absolute):.2f} GiB; "
            f"{sum(inside for *_, inside in errors)} inside the band"
        )
    return 0


def _gpu(row: dict[str, Any], total: float | None) -> str | None:
    """The GPU that a row names, or the only kind of its memory."""
    for word in ("L4", "RTX 3090", "A100 40GB", "T4", "GB10"):
        if word in str(row.get("gpu")):
            try:
                return find_gpu(word).gpu.name
            except TracekitError:
                return None
    candidates = gpus_with(total) if total else []
    return candidates[0].name if candidates else None


if __name__ == "__main__":
    sys.exit(main())
