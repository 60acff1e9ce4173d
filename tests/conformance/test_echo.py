"""Turns whose prompts contain the previous answers, token by token, as the real schedulers decided them."""

from pathlib import Path

from tracekit.conform import conform


def test_turns_that_echo_generated_tokens_agree_step_by_step() -> None:
    report = conform([Path(__file__).parent / "golden-echo"])
    assert report.agrees, report.verdict
    assert set(report.labels) == {"0.33.0", "0.20.2", "0.11.2"}
    assert sum(result.num_steps for result in report.results) >= 2_000
