import pytest

from tests.replay.traces import MS, step_time, trace
from tracekit.errors import InputError
from tracekit.explain import explain_request, explain_steps, mermaid
from tracekit.replay.replay import replay
from tracekit.report.story import story_text
from tracekit.run import Run


@pytest.fixture(scope="module")
def simulated() -> Run:
    rows = [
        {"request_id": name, "arrival_ns": at * MS, "num_prompt_tokens": 60, "num_output_tokens": 100}
        for name, at in (("first", 0), ("second", 1), ("third", 2))
    ]
    found = trace(rows, num_gpu_blocks=16, max_model_len=200, max_num_seqs=2, async_scheduling=False)
    return replay(found, step_time=step_time(10))


def test_a_story_tells_waiting_admission_preemption_and_end(simulated: Run) -> None:
    story = explain_request(simulated, "second")
    told = [moment.text for moment in story.moments]
    assert told[0] == "arrives: 60 prompt tokens, up to 100 output"
    assert any(text.startswith(("waited 0.", "admitted with 0 cached")) for text in told)
    preempted = simulated.preemptions.filter(request_id="second")
    assert sum(text.startswith("preempted: ") for text in told) == preempted.height > 0
    lost = int(preempted["num_computed_tokens"][0])
    assert f"{lost:,} computed tokens lost" in "\n".join(told)
    assert sum(text.startswith("admitted") for text in told) == preempted.height + 1
    assert told[-1] == "ends: length, 100 output tokens"
    assert [m.time_ns for m in story.moments] == sorted(m.time_ns for m in story.moments)


def test_a_story_tells_the_binding_limit(simulated: Run) -> None:
    waits = [m.text for m in explain_request(simulated, "third").moments if m.text.startswith("waited")]
    assert "max_num_seqs" in waits[0]


def test_a_step_tells_who_was_scheduled_and_what_stopped_the_next(simulated: Run) -> None:
    told = "\n".join(m.text for m in explain_steps(simulated, 1, 1).moments)
    assert "2 running of 2, 1 waiting" in told
    assert "third (60 tokens) was next: as many requests run as may (max_num_seqs)" in told


def test_every_step_of_the_recording_can_be_told(simulated: Run) -> None:
    steps = simulated.steps
    story = explain_steps(simulated, 0, steps.height - 1)
    assert {m.step for m in story.moments} >= set(steps["step"])
    preempts = [m.step for m in story.moments if m.text.startswith("preempts")]
    assert preempts == simulated.preemptions["step"].to_list()


def test_unknown_requests_and_steps_are_errors(simulated: Run) -> None:
    with pytest.raises(InputError, match="no request of that id"):
        explain_request(simulated, "nobody")
    with pytest.raises(InputError, match="no such step"):
        explain_steps(simulated, 10_000, 10_000)


def test_an_observed_run_says_that_it_was_replayed() -> None:
    found = trace([{"request_id": "only", "arrival_ns": 0, "num_prompt_tokens": 5, "num_output_tokens": 2}])
    assert "was replayed under the rules of 0.33.0" in explain_request(found, "only").notes[0]


def test_mermaid_escapes_what_a_foreign_id_may_hold() -> None:
    name = 'x;end\n<script>alert("1")</script>#'
    found = trace([{"request_id": name, "arrival_ns": 0, "num_prompt_tokens": 5, "num_output_tokens": 2}])
    drawn = mermaid(explain_request(found, name))
    assert drawn.startswith("sequenceDiagram")
    assert "<script>" not in drawn
    assert "client->>queue" in drawn
    assert all(
        ";"
        not in line.replace("#59;", "")
        .replace("#lt;", "")
        .replace("#gt;", "")
        .replace("#quot;", "")
        .replace("#35;", "")
        for line in drawn.splitlines()
    )


def test_text_fits_80_columns(simulated: Run) -> None:
    text = story_text(explain_request(simulated, "second"))
    assert all(len(line) <= 80 for line in text.splitlines())
