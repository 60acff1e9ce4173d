"""Request-steps per second of the model in pure decode, of processor time: ``python benchmarks/model_speed.py [RUNNING ...]``."""

import sys
import time

from tracekit.config import EngineConfig
from tracekit.model.request import Request
from tracekit.model.rules import rules_for
from tracekit.model.scheduler import Scheduler

STEPS = 1000


def measure(num_running: int, *, is_async: bool) -> float:
    """Schedule and update ``num_running`` decodes for 1,000 steps; returns request-steps per second."""
    config = EngineConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=max(8192, 16 * num_running),
        max_model_len=8192,
        num_gpu_blocks=num_running * 80 + 1,
        async_scheduling=is_async,
    )
    scheduler = Scheduler(config, rules_for("0.33.0"))
    for number in range(num_running):
        scheduler.add_request(Request(f"r{number}", 16, 4096, 4096))
    plans = [scheduler.schedule()] if is_async else []
    start = time.process_time()
    for _ in range(STEPS):
        plans.append(scheduler.schedule())
        scheduler.update(plans.pop(0))
    return STEPS * num_running / (time.process_time() - start)


def main() -> None:
    for num_running in [int(argument) for argument in sys.argv[1:]] or [64, 256, 1000]:
        for is_async in (False, True):
            best = max(measure(num_running, is_async=is_async) for _ in range(3))
            kind = "asynchronous" if is_async else "synchronous"
            print(f"{num_running:5d} running, {kind:12s}: {best:9,.0f} request-steps/s")


if __name__ == "__main__":
    main()
