"""Usual request lines are taken in as columns: the result is that of looking at each line, whatever stands among them."""

import random
from pathlib import Path
from unittest import mock

import polars as pl

from tests.sources.vllm_log.helpers import observe, record, start_up, stats
from tracekit.sources.observation import Observation
from tracekit.sources.vllm_log import block, request_lines

PARAMS = "SamplingParams(n=1, temperature=0.0, stop=[], max_tokens={}, extra_args=None)"
PROMPTS = (
    "'plain'", '"it\'s, params: SamplingParams(max_tokens=1)"', r"'a \'quoted\', prompt_token_ids: [9, 9]'",
    "'Added request fake-1.'", r"'INFO 03-05 10:00:00 [x.py:1] Added request fake-2.'", "None", "'Gr\u00fc\u00dfe \u2028'",
)  # fmt: skip


def lines_of(rng: random.Random, count: int) -> list[str]:
    lines = start_up()
    for number in range(count):
        stamp = f"03-05 10:{number // 60 % 60:02}:{number % 60:02}"
        name = f"cmpl-{number}-0"
        tokens = ", ".join(map(str, rng.choices(range(999), k=rng.randrange(60))))
        params = PARAMS.format(rng.choice([5, 77, "None"]))
        # Damage: the blank before the field was lost to a tab, a carriage return or nothing at all.
        damaged = params.replace(" max_tokens", rng.choice(["\t", "\r", ""]) + "max_tokens")
        prompt = f"prompt: {rng.choice(PROMPTS)}, "
        forms = [
            f"Received request {name}: params: {params}, lora_request: None.",
            f"Received request {name}: {prompt}params: {params}, prompt_token_ids: [{tokens}], lora_request: None.",
            f"Received request {name}: {prompt}params: {params}, prompt_token_ids: None, lora_request: None.",
            f"Received request {name}: {prompt}params: {PARAMS.format(3).replace('[]', '[(9)]')}, lora_request: None.",
            f"Received request {name}: {prompt}params: {damaged}, prompt_token_ids: [{tokens}], lora_request: None.",
            f"Received request {name}: {prompt}par",
        ]
        written = [
            record(rng.choice(forms), stamp),
            record(f"Added request {name}{rng.choice(['', '-0a1b2c3d'])}.", stamp),
        ]
        if rng.random() < 0.3:
            written.append(record(f"Finished request {name}.", stamp))
        if rng.random() < 0.1:
            written.append(record(f"Aborted request(s) {name}.", stamp))
        if rng.random() < 0.1:
            written.append(rng.choice(written))
        if rng.random() < 0.05:
            written[-2:] = ["".join(written[-2:])]
        if rng.random() < 0.05:
            written.append(stats(stamp, running=number % 9))
        lines += [f"{line}\r" if rng.random() < 0.02 else line for line in written]
    return lines


def same(left: Observation, right: Observation) -> None:
    assert left.accounting == right.accounting
    assert left.skipped == right.skipped
    assert left.tables.keys() == right.tables.keys()
    for name, frame in left.tables.items():
        assert frame.equals(right.tables[name]), name


def nothing_usual(_line: pl.Series, text: pl.Series, *_others: object) -> tuple[pl.DataFrame, pl.Series]:
    return request_lines.NO_LINES, pl.repeat(value=False, n=text.len(), dtype=pl.Boolean, eager=True)


def test_the_same_as_line_by_line(tmp_path: Path) -> None:
    for seed in range(25):
        lines = lines_of(random.Random(seed), 150)  # noqa: S311 - a test
        with mock.patch.object(block, "usual_requests", wraps=block.usual_requests) as used:
            quick = observe(tmp_path, lines, hash_key=b"k")
        assert used.call_count == 1
        with mock.patch.object(block, "usual_requests", nothing_usual):
            singly = observe(tmp_path, lines, hash_key=b"k")
        same(quick, singly)
        assert quick.tables["requests"].height > 100


def test_most_lines_are_usual() -> None:
    text = pl.Series(
        [record(f"Received request r-{n}: params: {PARAMS.format(7)}, lora_request: None.") for n in range(200)]
    )
    found, chosen = request_lines.usual_requests(pl.int_range(200, dtype=pl.Int64, eager=True), text, 200)
    assert chosen.sum() == found.height == 200 - 2 * 64 + 1
    assert found["max_tokens"].unique().to_list() == [7]
    assert found["request_id"][0] == "r-64"
