"""Usual access lines are settled by one look: the result is that of looking at each line, whatever stands among them."""

import random
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

from tests.sources.vllm_log.helpers import observe, record, start_up, stats
from tests.sources.vllm_log.test_request_lines import same
from tracekit.sources.vllm_log import block

PARTS = (
    "(APIServer pid=7) ", "INFO:     ", "INFO: ", "WARNING:  ", "10.0.0.1:5", "[::1]:80", "localhost", " - ", '"POST /v1 HTTP/1.1"',
    '"GET /a b HTTP/1.1"', '"GET /\' HTTP/1.0"', " 200", " 200 OK", " 503", "\r", "\x1b[32m", "INFO 03-05 10:00:07 [x.py:1] ",
    record("Added request a-1."), '{"log": "x"}', "Gr\u00fc\u00dfe", "Started server process [1]",
)  # fmt: skip
USUAL = '(APIServer pid=7) INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK'


def lines_of(rng: random.Random, count: int) -> list[str]:
    lines = start_up()
    for number in range(count):
        damaged = list(rng.choice([USUAL, USUAL.replace("200", "400"), USUAL.replace("(APIServer pid=7) ", "")]))
        place = rng.randrange(len(damaged))
        damaged[place : place + rng.randrange(3)] = rng.choice([*PARTS, ""])
        lines += rng.choices([USUAL, "".join(damaged), "".join(rng.choices(PARTS, k=rng.randrange(6)))], [5, 2, 2])
        if number % 20 == 0:
            lines.append(stats(f"03-05 10:{number // 60:02}:{number % 60:02}"))
    return lines


def none_usual(text: pl.Series) -> pl.Series:
    return pl.repeat(value=False, n=text.len(), dtype=pl.Boolean, eager=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_as_line_by_line(tmp_path: Path, seed: int) -> None:
    lines = lines_of(random.Random(seed), 400)  # noqa: S311 - a test
    with mock.patch.object(block, "usual_access", wraps=block.usual_access) as used:
        quick = observe(tmp_path, lines)
    assert used.call_count == 1
    with mock.patch.object(block, "usual_access", none_usual):
        singly = observe(tmp_path, lines)
    same(quick, singly)
    assert quick.tables["events"].filter(kind="access").height > 100
