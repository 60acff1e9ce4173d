"""The scheduler of an engine: V1 or V0, as its rules say."""

from tracekit.config import EngineConfig
from tracekit.model.rules import Rules
from tracekit.model.scheduler import Scheduler
from tracekit.model.scheduler_v0 import SchedulerV0

AnyScheduler = Scheduler | SchedulerV0


def scheduler_for(config: EngineConfig, rules: Rules) -> AnyScheduler:
    """A fresh scheduler; both kinds have the same calls and give the same plans."""
    return SchedulerV0(config, rules) if rules.engine == "v0" else Scheduler(config, rules)
