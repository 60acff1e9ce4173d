"""Which changes are worth a replay."""

from tests.replay.traces import trace
from tracekit.config import setting_value
from tracekit.postmortem.remedies import candidates
from tracekit.run import Run


def storm_run(**config: str | int) -> Run:
    return trace([], gpu="H100", model="Llama-3.1-8B", **config)


def names(run: Run) -> dict[str, str | None]:
    return {found.label: found.estimated for found in candidates(run, {"preemption_storm"})}


def test_more_gpus_are_candidates_and_their_effect_is_an_estimate() -> None:
    found = names(storm_run(tensor_parallel_size=2))
    assert "estimates outside of what was measured" in str(found["tensor_parallel_size=4"])
    assert "one batch at a time" in str(found["pipeline_parallel_size=2"])
    assert found["gpu_memory_utilization=0.96"] is None


def test_a_pool_that_was_given_does_not_grow_with_the_memory() -> None:
    run = storm_run()
    run.config["num_gpu_blocks"] = setting_value("num_gpu_blocks", 1024, "given", "--set")
    for found in (names(run), names(storm_run(num_gpu_blocks_override=1024))):
        assert not any("gpu_memory" in name or "parallel" in name for name in found)
        assert any(name.startswith("KV blocks +") for name in found)


def test_without_gpu_and_model_no_memory_is_moved() -> None:
    assert not any("parallel" in name for name in names(trace([])))
