"""Statistics lines are taken in as columns: the result is that of looking at each line, copies and wrappings included."""

import random
from pathlib import Path
from unittest import mock

import pytest

from tests.sources.vllm_log.helpers import observe, preempted, record, start_up, stats, v0_stats
from tests.sources.vllm_log.test_request_lines import same
from tracekit.sources.vllm_log import block, stats_lines

ACCESS = '(APIServer pid=7) INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK'


def lines_of(rng: random.Random, count: int) -> list[str]:
    engines, copies, is_dense = rng.choice([1, 1, 3]), rng.random() < 0.5, rng.random() < 0.5
    restart = rng.randrange(100)
    lines = start_up() if rng.random() < 0.7 else ["oughput: 3.0 tokens/s, Running: 3 reqs"]
    for number in range(count):
        stamp = f"03-05 {10 + number // 360:02}:{number // 6 % 60:02}:{number % 6 * 10:02}"
        for engine in range(engines):
            line = stats(stamp, running=rng.randrange(2), engine=engine, usage=rng.choice([0.1, 12.3, 99.97]))
            if rng.random() < 0.02:
                line = rng.choice(
                    [line.replace("Engine 000: ", ""), line[:90], line[60:], f"{line[:100]}\n{line[100:]}"]
                )
            written = [line]
            if rng.random() < 0.02:
                written += [v0_stats(stamp), record("Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%", stamp)]
            if rng.random() < 0.02:
                written.append(preempted(stamp, 1 + number // 100 * 50))
            if number == restart:
                written += start_up(stamp)
            if copies and rng.random() < 0.1:
                written += [ACCESS] * rng.choice([0, 3, 62, 63, 64]) + [line]
            lines += written
        lines += [ACCESS] * (0 if is_dense else rng.randrange(80))
    return lines


@pytest.mark.parametrize("seed", range(30))
def test_the_same_as_line_by_line(tmp_path: Path, seed: int) -> None:
    lines = lines_of(random.Random(seed), 300)  # noqa: S311 - a test
    with mock.patch.object(stats_lines, "_MANY", 40):
        quick = observe(tmp_path, lines)
    with mock.patch.object(block, "_USUAL_LINE", r"[^\s\S]"):
        singly = observe(tmp_path, lines)
    same(quick, singly)
    assert quick.tables["engine_stats"].height > 40


def test_most_lines_stay_columns(tmp_path: Path) -> None:
    lines = [stats(f"03-05 10:{n // 6:02}:{n % 6 * 10:02}", running=n) for n in range(300)]
    with mock.patch.object(stats_lines, "usual_row", wraps=stats_lines.usual_row) as single:
        found = observe(tmp_path, [line for each in lines for line in [each, *[ACCESS] * 70]])
    assert found.tables["engine_stats"]["num_running_reqs"].to_list() == list(range(300))
    assert single.call_count <= 20
