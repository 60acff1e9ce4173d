"""What a comparison found, and its one-line verdict."""

from collections.abc import Mapping
from dataclasses import dataclass

from tracekit.conform.capacity_rows import CapacityResult
from tracekit.conform.recordings import Row
from tracekit.model.rules import Rules


@dataclass(frozen=True)
class Difference:
    """The first row of a case in which the model decides otherwise."""

    step: int
    keys: tuple[str, ...]
    """The fields that differ; none when one side has ended."""
    recorded: Row | None
    """None: the recording has ended, the model goes on."""
    simulated: Row | None
    """None: the model has ended, the recording goes on."""
    request_ids: tuple[str, ...]
    """The requests concerned."""


@dataclass(frozen=True)
class CaseResult:
    """One log of one case under one rule set; it stands for all its labels."""

    case: str
    log: str
    labels: tuple[str, ...]
    rules: Rules
    num_steps: int
    num_agreeing: int
    """Steps before the first difference."""
    crashed: bool
    """vLLM itself crashed after the last row."""
    difference: Difference | None

    @property
    def agrees(self) -> bool:
        """Whether all recorded steps agree."""
        return self.difference is None


@dataclass(frozen=True)
class LabelCounts:
    """How much of one label (a version and engine) agrees."""

    num_cases: int = 0
    num_agreeing_cases: int = 0
    num_steps: int = 0
    num_agreeing_steps: int = 0
    num_crashed: int = 0
    """Cases compared up to vLLM's own crash."""


@dataclass(frozen=True)
class ConformReport:
    """What agrees, and what could not be compared."""

    results: tuple[CaseResult, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """(case, reason)."""
    capacity: tuple[CapacityResult, ...] = ()
    """Planned start-ups, by version."""

    @property
    def agrees(self) -> bool:
        """Whether every compared step agrees; where nothing was compared, nothing does."""
        planned = all(result.num_agreeing == result.num_rows for result in self.capacity)
        return bool(self.results or self.capacity) and planned and all(result.agrees for result in self.results)

    @property
    def labels(self) -> Mapping[str, LabelCounts]:
        """The counts of each label, in the order in which they occur."""
        counts: dict[str, LabelCounts] = {}
        for result in self.results:
            for label in result.labels:
                old = counts.get(label, LabelCounts())
                counts[label] = LabelCounts(
                    old.num_cases + 1,
                    old.num_agreeing_cases + result.agrees,
                    old.num_steps + result.num_steps,
                    old.num_agreeing_steps + result.num_agreeing,
                    old.num_crashed + result.crashed,
                )
        return counts

    @property
    def verdict(self) -> str:
        """One line: the numbers of cases, runs and steps that agree."""
        cases = {result.case for result in self.results}
        failed = {result.case for result in self.results if not result.agrees}
        counts = list(self.labels.values())
        runs, good_runs = sum(c.num_cases for c in counts), sum(c.num_agreeing_cases for c in counts)
        steps, good_steps = sum(c.num_steps for c in counts), sum(c.num_agreeing_steps for c in counts)
        crashed = sum(c.num_crashed for c in counts)
        if not (self.results or self.capacity):
            return f"NOTHING COMPARED: {len(self.skipped)} cases not compared"
        parts = []
        if self.results:
            parts.append(
                f"{len(cases) - len(failed)} of {len(cases)} cases, {good_runs:,} of {runs:,} runs, "
                f"{good_steps:,} of {steps:,} steps" + (f" ({crashed} runs up to vLLM's own crash)" if crashed else "")
            )
        if self.capacity:
            agreeing, rows = (sum(getattr(r, name) for r in self.capacity) for name in ("num_agreeing", "num_rows"))
            parts.append(f"{agreeing:,} of {rows:,} capacity rows")
        text = f"{'agree' if self.agrees else 'DIFFER'}: {', '.join(parts)}"
        if self.skipped:
            text += f"; {len(self.skipped)} cases not compared"
        return text
