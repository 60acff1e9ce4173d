from typing import Any

import polars as pl
import pytest

from tests.sql.runs import MS, request, run, sample, step
from tracekit.compare.metrics import compare
from tracekit.report.show import show_text
from tracekit.report.text import comparison_text, frame_text, humanised, sanitise, signed_percent, sparkline

OBSERVED = run(requests=[request("a", first=40, last=2500, tokens=5)], engine_stats=[sample(50, 1, kv_cache_usage=0.5)])
SIMULATED = run(
    "simulated",
    requests=[request("a", scheduled=4, first=44, last=2450, tokens=5)],
    steps=[step(0, 4, 2446, 1, finished=1, kv_cache_usage=0.4)],
    preemptions=[],
)


def test_comparison_has_sections_and_fits_the_terminal() -> None:
    text = comparison_text(compare(OBSERVED, SIMULATED), "an incident with a long name", "\x1b[31msim\u202e", 80)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "concurrency at 1 instant", "preemptions", "latency", "throughput",
    ]  # fmt: skip
    assert "\x1b" not in text
    assert "\u202e" not in text
    found = {tuple(line.split()[:2]): line.split() for line in lines}
    assert found["TTFT", "mean"][2:] == ["n", "1", "40.0", "ms", "44.0", "ms", "+10.0%"]
    assert found["E2E", "mean"][2:] == ["n", "1", "2.50", "s", "2.45", "s", "-2.0%"]
    assert found["preemptions", "-"][1:] == ["-", "0", "-"]
    assert "ITL" in text


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("ttft_ms", 12.345, "12.3 ms"), ("ttft_ms", 1234.5, "1.23 s"), ("kv_cache_usage", 0.917, "91.7%"),
        ("num_requests", 12345.0, "12,345"), ("output_tps", 12.34, "12.3"), ("output_tps", None, "-"),
    ],
)  # fmt: skip
def test_value_for_people(metric: str, value: float | None, expected: Any) -> None:
    assert humanised(metric, value) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, "-"), (0.051, "+5.1%"), (-0.2, "-20.0%"), (-0.0001, "0.0%"), (0.0004, "0.0%"), (99.0, "x100")],
)
def test_error_for_people(error: float | None, expected: Any) -> None:
    assert signed_percent(error) == expected


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("plain\ttext\n", "plain\ttext\n"), ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07rest", "rest"),
        ("a\x00b\x08c\rd\x7f", "abcd"), ("\u202eevil\u200b", "evil"), ("\x9b31m", "31m"), ("é日本", "é日本"),
    ],
)  # fmt: skip
def test_control_characters_are_stripped(dirty: str, clean: str) -> None:
    assert sanitise(dirty) == clean


def test_sparkline_scales_to_its_highest_value_and_leaves_gaps() -> None:
    assert sparkline([0, 4, None, 8]) == " ▄ █"
    assert sparkline([0, 4], highest=16) == " ▂"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "


def test_frame_is_aligned_and_cut_to_the_width_with_what_is_missing_said() -> None:
    frame = pl.DataFrame(
        {"name": ["a" * 200, "b\x1b[2J\nc"], "n": [1, 123456], **{f"column_{i}": [i, i] for i in range(20)}}
    )
    text = frame_text(frame, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert "b c" in text
    assert "more columns: " in text
    assert text.splitlines()[-1] == "2 rows"


def test_rows_are_cut_with_their_count() -> None:
    lines = frame_text(pl.DataFrame({"a": range(100)}), max_rows=3).splitlines()
    assert lines == ["a", "-", "0", "1", "2", "... 100 rows, the first 3 shown"]


def test_wide_characters_keep_the_columns_aligned() -> None:
    lines = frame_text(pl.DataFrame({"s": ["日本", "ab"], "n": [1, 2]})).splitlines()
    assert lines[2:4] == ["日本  1", "ab    2"]


def test_empty_frames_show_their_columns() -> None:
    assert frame_text(pl.DataFrame({"a": []})).splitlines()[0] == "a"
    assert frame_text(pl.DataFrame()) == "\n0 rows"


def test_marks_are_explained_where_they_stand() -> None:
    few = [request(str(n), first=40 + n, last=90, tokens=2) for n in range(20)]
    coarse = {"metric": "ttft_ns", "bucket_low": 0.0, "bucket_high": 100.0 * MS, "count": 20}
    chance, guess = run(requests=few), run(distributions=[coarse])
    shown = {name: comparison_text(compare(one, one), "a", "b") for name, one in (("±", chance), ("~", guess))}
    for mark, text in shown.items():
        legend = [line.strip()[0] for line in text.splitlines()[-2:] if line.strip()[:1] in {"±", "~"}]
        assert legend == [mark]


def test_a_name_of_two_lines_is_shown_in_one() -> None:
    named = run(requests=[request("a", first=40, last=90, tokens=2)])
    named.label = "two\nlines"
    assert show_text(named).startswith("two lines: observed run\n")
