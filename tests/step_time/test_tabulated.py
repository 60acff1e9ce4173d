"""The tabulated step time: look-ups, files and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import ConfigError
from tracekit.step_time.duration import StepClock, of_context, of_reqs, of_tokens
from tracekit.step_time.parameters import step_time_from_dict

GIVEN: dict[str, Any] = {
    "form": "tabulated", "gpu": "H100-SXM", "model": "Llama-3.1-8B", "source": "somebody 1.0", "padding": [1, 2, 4, 8],
    "tokens_ms": [[1, 5], [8, 12], [16, 20]], "reqs_us": [[1, 0], [5, -400]], "t0_ms": 1.5, "per_seq_us": 10,
    "per_context_token_us": 0.1, "per_attention_pair_us": 0.001, "per_prefill_step_ms": 0.5, "frontend_ms": 3,
}  # fmt: skip


def test_between_counts_lies_a_straight_line_on_padded_tokens() -> None:
    p = step_time_from_dict(GIVEN, "given", "here").parameters
    assert [of_tokens(p, tokens) / 1e6 for tokens in (1, 3, 5, 8, 12, 24)] == [6.5, 9.5, 13.5, 13.5, 17.5, 29.5]
    assert [of_reqs(p, reqs) / 1e3 for reqs in (1, 3, 5, 9)] == [10, -170, -350, -710]
    assert StepClock(p).duration_ns(8, 5, 1000, 36) == 13_500_000 - 350_000 + 100_000 + 36 + 500_000


def test_a_file_brings_back_the_same_numbers() -> None:
    step_time = step_time_from_dict(GIVEN, "given", "here")
    again = step_time_from_dict(step_time.to_dict(), "given", "here")
    assert again == step_time
    assert again.to_dict() == step_time.to_dict()
    assert again.frontend_ns == 3_000_000
    assert step_time.describe() == (
        "Llama-3.1-8B on H100-SXM: tables of somebody 1.0, host 1.5 ms + 10 us/request, frontend 3 ms"
    )


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_step_of_more_tokens_never_takes_less_and_always_takes_time(reqs: int, more: int) -> None:
    p = step_time_from_dict(GIVEN, "given", "here").parameters
    assert of_tokens(p, reqs + more) >= of_tokens(p, reqs)
    assert of_tokens(p, reqs) + of_reqs(p, reqs) > 0
    assert min(of_context(p)) >= 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens_ms": None}, "tokens_ms must be rows"),
        ({"tokens_ms": []}, "tokens_ms must be rows"),
        ({"tokens_ms": [[2, 5], [1, 6]]}, "tokens_ms must be rows of an ascending count"),
        ({"tokens_ms": [[1, 5], [2, 4]]}, "tokens_ms must not fall"),
        ({"tokens_ms": [[1, -5]]}, "tokens_ms must be numbers from 0"),
        ({"reqs_us": [[1, "x"]]}, "reqs_us must be numbers"),
        ({"reqs_us": [[1, 0], [2, -20000]]}, "a step must take time"),
        ({"reqs_us": [[1, 0], [2, -1500]]}, "a step must take time"),
        ({"padding": [4, 2]}, "padding must be ascending"),
        ({"gpu": 5}, "gpu must be a text"),
        ({"per_token_us": 5}, "unknown key 'per_token_us'"),
        ({"per_context_token_us": -1}, "per_context_token_us must be numbers from 0"),
    ],
)
def test_what_is_no_step_time_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        step_time_from_dict({**GIVEN, **change}, "given", "here")
