"""A story as text of at most 80 columns."""

import textwrap

from tracekit.explain import Story

_WIDTH = 80


def story_text(story: Story) -> str:
    """One line a moment: seconds from the run's start, the step, and what happened."""
    lines = [story.title, ""]
    shown: tuple[int, int | None] | None = None
    for moment in story.moments:
        at = (moment.time_ns, moment.step)
        step = f"step {moment.step:,}" if moment.step is not None else ""
        head = f"{moment.time_ns / 1e9:>11,.3f} s  {step:<12}" if at != shown else " " * 27
        shown = at
        lines += textwrap.wrap(
            moment.text, _WIDTH, initial_indent=f"{head} ", subsequent_indent=" " * 28, break_on_hyphens=False
        ) or [head]
    return "\n".join(lines)
