from tests.replay.traces import MS, step_time, trace
from tracekit.replay.replay import replay
from tracekit.report.difference import difference_text
from tracekit.rule_difference import rule_difference
from tracekit.run import Run


def chunked_trace() -> Run:
    rows = [
        {"arrival_ns": k * 20 * MS, "num_prompt_tokens": 300 + 37 * (k % 5), "num_output_tokens": 60} for k in range(12)
    ]
    return trace(rows, num_gpu_blocks=60, max_model_len=800, max_num_seqs=8, max_num_batched_tokens=128)


def test_the_rule_that_parts_two_versions_is_named() -> None:
    left, right = (replay(chunked_trace(), rules=version, step_time=step_time(10)) for version in ("0.18.1", "0.20.2"))
    found = rule_difference(left, right)
    assert found is not None
    assert found.first_step is not None
    assert found.responsible == "full_prompt_gate"
    assert found.left.num_preemptions > found.right.num_preemptions
    text = difference_text(found)
    assert "responsible: full_prompt_gate" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_versions_of_one_class_decide_the_same() -> None:
    left, right = (replay(chunked_trace(), rules=version, step_time=step_time(10)) for version in ("0.19.0", "0.20.2"))
    found = rule_difference(left, right)
    assert found is not None
    assert found.first_step is None
    assert found.responsible is None
    assert "every decision is the same" in difference_text(found)


def test_runs_of_one_version_or_of_other_requests_are_no_pair() -> None:
    one = replay(chunked_trace(), step_time=step_time(10))
    assert rule_difference(one, replay(chunked_trace(), step_time=step_time(10))) is None
    other = trace([{"arrival_ns": 0, "num_prompt_tokens": 5, "num_output_tokens": 2}])
    assert rule_difference(one, replay(other, rules="0.11.2", step_time=step_time(10))) is None
    assert rule_difference(chunked_trace(), one) is None
