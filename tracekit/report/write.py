"""From runs to the report's file: the sides, the postmortem, the page."""

from collections.abc import Sequence
from pathlib import Path

from tracekit.errors import InputError, OutputExistsError, TracekitError
from tracekit.postmortem import postmortem
from tracekit.progress import Progress, no_progress
from tracekit.replay.replay import replay
from tracekit.report.page import page
from tracekit.report.series import series_of
from tracekit.run import Run
from tracekit.step_time.parameters import StepTime

_MOST_RUNS = 2


def write_report(
    runs: Sequence[Run],
    path: Path,
    *,
    settings: Sequence[str] = (),
    step_time: StepTime | None = None,
    remedies: bool = True,
    force: bool = False,
    progress: Progress = no_progress,
) -> Path:
    """Write the page; an observed run alone is put beside its replay. Raises ``TracekitError``."""
    if not 1 <= len(runs) <= _MOST_RUNS:
        msg = f"a report is about one run or two, found {len(runs)}"
        raise InputError(msg)
    if path.exists() and not force:
        msg = f"{path} exists; choose another name or give --force"
        raise OutputExistsError(msg)
    first = runs[0]
    found = postmortem(first, settings=settings, step_time=step_time, remedies=remedies, progress=progress)
    sides = list(runs)
    if len(runs) == 1 and first.kind == "observed":
        try:
            sides.append(replay(first, settings=settings, step_time=step_time, steps="all"))
        except TracekitError:
            if settings or step_time is not None:
                raise
    series = [series_of(run, label) for run, label in zip(sides, _labels(sides), strict=True)]
    text = page(first.name, _subtitle(first), series, found)
    sibling = path.with_name(f".{path.name}.new")
    sibling.write_text(text, encoding="utf-8")
    sibling.replace(path)
    return path


def _labels(sides: Sequence[Run]) -> list[str]:
    """Observed and simulated where that tells them apart, else their names."""
    kinds = [run.kind for run in sides]
    if len(set(kinds)) == len(kinds):
        return list(kinds)
    names = [run.name for run in sides]
    return names if len(set(names)) == len(names) else [f"{nth}: {name}" for nth, name in enumerate(names, 1)]


def _subtitle(run: Run) -> str:
    found = [str(run.config[key].value) for key in ("vllm_version", "model", "gpu_name") if key in run.config]
    parts = [f"vLLM {found[0]}", *found[1:]] if "vllm_version" in run.config else found
    return ", ".join([*parts, f"{run.requests.height:,} requests"])
