"""What the commands share: messages on stderr, the result on stdout, progress on a terminal."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from tracekit.progress import Progress, no_progress
from tracekit.report.text import sanitise

_REDRAW_S = 0.1


def say(message: str) -> None:
    """Print a message for people to stderr, without control characters."""
    click.echo(sanitise(message), err=True)


def print_json(result: object) -> None:
    """Print a result for programs to stdout; not-a-number becomes null."""
    click.echo(json.dumps(_plain(result), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def progress_bar(*, quiet: bool) -> Progress:
    """A progress callback that draws on stderr when that is a terminal, at most ten times a second."""
    if quiet or not sys.stderr.isatty():
        return no_progress
    drawn_at = 0.0

    def draw(what: str, done: int, total: int) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        finished = total > 0 and done >= total
        if now - drawn_at < _REDRAW_S and not finished:
            return
        drawn_at = now
        share = f"{done / total:4.0%} {'#' * int(30 * done / total):30}" if total else ""
        sys.stderr.write(f"\r{what} {share} {done:,}{f' of {total:,}' if total else ''}  ")
        if finished:
            sys.stderr.write("\r\033[K")
        sys.stderr.flush()

    return draw


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``-v`` and ``--quiet``, which every command has."""
    command = click.option("-v", "--verbose", is_flag=True, help="Say more on stderr.")(command)
    return click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors on stderr.")(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--json``: the result alone on stdout, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def window_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--from``, ``--until`` and ``--last``, which every command that takes a run has."""
    command = click.option("--last", metavar="SPAN", help="Only the last 30m, 90s, 2h ... of the run.")(command)
    command = click.option("--until", metavar="TIME", help="Only up to this wall-clock time or offset.")(command)
    return click.option("--from", "since", metavar="TIME", help="Only from this wall-clock time or offset (90s).")(
        command
    )


def said_once(notes: list[str], *, quiet: bool) -> None:
    """Print a run's notes, each once."""
    if not quiet:
        for note in dict.fromkeys(notes):
            say(f"note: {note}")
