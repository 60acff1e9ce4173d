"""From runs to the report's file: the sides, the postmortem, the page."""

from collections.abc import Sequence
from pathlib import Path

from tracekit.errors import InputError, OutputExistsError, TracekitError
from tracekit.postmortem import Postmortem, postmortem
from tracekit.progress import Progress, no_progress
from tracekit.replay.replay import replay
from tracekit.report import charts
from tracekit.report.image import check_image, image
from tracekit.report.page import page
from tracekit.report.series import series_of, window_of
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
    images: Sequence[tuple[str, str | Path]] = (),
    force: bool = False,
    progress: Progress = no_progress,
) -> Path:
    """Write the page; an observed run alone is put beside its replay. Raises ``TracekitError``.

    ``images``: names of charts (``charts.NAMES``) and the ``.png`` or ``.svg`` files to draw them to.
    """
    if not 1 <= len(runs) <= _MOST_RUNS:
        msg = f"a report is about one run or two, found {len(runs)}"
        raise InputError(msg)
    pictures = [(name, Path(file)) for name, file in images]
    for file in (path, *(file for _, file in pictures)):
        _check_output(file, force=force)
    for name, file in pictures:
        check_image(name, file)
    first = runs[0]
    found = postmortem(first, settings=settings, step_time=step_time, remedies=remedies, progress=progress)
    sides, alone = list(runs), ""
    if len(runs) == 1 and first.kind == "observed" and first.requests.height:
        try:
            sides.append(replay(first, settings=settings, step_time=step_time, steps="all"))
        except TracekitError as error:
            if settings or step_time is not None:
                raise
            alone = f"; no replay beside it: {error}"
    window = window_of(sides)
    series = [series_of(run, label, window) for run, label in zip(sides, _labels(sides), strict=True)]
    drawn = charts.drawn(series, _storms(found))
    contents = [(file, image(drawn, name, file)) for name, file in pictures]
    contents.append((path, page(first.name, _subtitle(first) + alone, drawn, found).encode()))
    for file, content in contents:
        sibling = file.with_name(f".{file.name}.new")
        sibling.write_bytes(content)
        sibling.replace(file)
    return path


def _check_output(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        msg = f"{file} exists; choose another name or give --force"
        raise OutputExistsError(msg)
    if not file.absolute().parent.is_dir():
        msg = f"{file}: no such directory"
        raise InputError(msg)


def _storms(found: Postmortem) -> list[tuple[float, float]]:
    return [
        (finding.start_s, finding.end_s)
        for finding in found.findings
        if finding.kind == "preemption_storm" and finding.start_s is not None and finding.end_s is not None
    ]


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
