"""The planner as people ask it, the memory estimate, and what a change moves."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.replay.traces import step_time, trace
from tests.test_cli import call
from tests.test_storm import SAMPLE
from tracekit.catalogue.gpus import find_gpu
from tracekit.catalogue.models import all_models, find_model
from tracekit.config import GIB
from tracekit.errors import ConfigError, TracekitError
from tracekit.model.capacity import CapacityError, LayerCache, Server, capacity_rules_for, plan
from tracekit.model.capacity.memory import Band, Setup, estimate, moved
from tracekit.replay.replay import replay
from tracekit.run import load

RUN = SAMPLE / "run"
NEWEST = capacity_rules_for("0.33.0")


def test_two_gib_of_llama_are_a_thousand_blocks() -> None:
    found = tracekit.capacity(model="Llama-3.1-8B", settings={"available_kv_gib": 2, "max_model_len": 4096}).sizing.plan
    assert (found.num_blocks, found.num_tokens, found.concurrency_text) == (1024, 16_384, "4.00")


def test_the_printed_concurrency_follows_from_the_printed_tokens() -> None:
    given = {"kv_cache_tokens": 643_232, "max_model_len": 40_960}
    found = tracekit.capacity(model="Qwen/Qwen3-8B", settings=given).sizing.plan
    assert (found.num_tokens, found.concurrency_text) == (643_232, "15.70")


layers = st.builds(
    LayerCache, st.sampled_from(["full", "sliding"]), st.sampled_from([16, 32]), st.sampled_from([1, 2, 8]),
    st.sampled_from([64, 128]), window=st.sampled_from([128, 1024]),
).map(lambda cache: cache if cache.kind == "sliding" else replace(cache, window=None))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(layers, min_size=1, max_size=12), st.integers(1, 1 << 34), st.integers(1, 40_000),
    st.sampled_from(["0.8.5", "0.9.2", "0.11.2", "0.13.0", "0.20.2", "0.24.0", "0.33.0"]),
)  # fmt: skip
def test_plans_are_sane(caches: list[LayerCache], available: int, length: int, version: str) -> None:
    rules = capacity_rules_for(version)
    server = Server(tuple(enumerate(caches)), (available,), length)
    try:
        found = plan(server, rules)
    except CapacityError as error:
        if error.kind == "needs_more" and error.estimate and rules.need == "groups":
            plan(replace(server, max_model_len=error.estimate), rules)
        return
    assert found.num_blocks * max(found.bytes_per_block) <= available
    assert (found.num_blocks + 1) * max(found.bytes_per_block) > available
    assert sum(len(group.layers) for group in found.groups) == len(caches)
    assert found.concurrency >= 0.99 or rules.need == "layers"
    more = plan(replace(server, available_bytes=(available * 2,)), rules)
    assert more.num_blocks >= found.num_blocks


def test_the_longest_that_is_offered_fits_and_one_more_does_not() -> None:
    server = Server(tuple(enumerate([LayerCache("full", 16, 8, 128)] * 32)), (GIB,), 100_000)
    with pytest.raises(CapacityError) as failed:
        plan(server, NEWEST)
    longest = failed.value.estimate
    assert longest is not None
    plan(replace(server, max_model_len=longest), NEWEST)
    with pytest.raises(CapacityError):
        plan(replace(server, max_model_len=longest + 1), NEWEST)


def setup(**changes: object) -> Setup:
    base = Setup(
        "0.33.0", find_model("Llama-3.1-8B").shape, 16, find_gpu("H100").gpu.total_bytes, 0.92, 1, 1, 8192, 256
    )
    return replace(base, **changes)


def test_a_change_moves_from_what_was_measured() -> None:
    known = Band.exact(50 * GIB)
    more = moved(known, setup(), setup(gpu_memory_utilization=0.94))
    assert more.likely == more.low == more.high
    assert more.likely - known.likely == pytest.approx(0.02 * 79.19 * GIB, rel=1e-6)
    assert moved(known, setup(), setup()) == known
    two = moved(known, setup(), setup(tensor_parallel_size=2))
    assert two.likely > known.likely + 7 * GIB
    assert two.low < two.likely < two.high
    wider = moved(known, setup(), setup(max_num_batched_tokens=32_768))
    assert wider.low < wider.likely < known.likely


@pytest.mark.parametrize("shape", all_models(), ids=lambda shape: shape.name)
def test_every_model_can_be_estimated(shape: object) -> None:
    memory = estimate(setup(shape=shape, tensor_parallel_size=8))
    for band in (memory.weights, memory.activation, memory.non_torch, memory.graphs, memory.available):
        assert band.low <= band.likely <= band.high


def test_a_replay_moves_the_pool_with_the_memory() -> None:
    observed = load(RUN)
    base = replay(observed, settings=["gpu=L4"])
    more = replay(observed, settings=["gpu=L4", "gpu_memory_utilization=0.93"])
    assert base.config["num_gpu_blocks"].value == 1024
    added = 0.01 * 22.05 * GIB / 2_097_152
    assert int(more.config["num_gpu_blocks"].value) - 1024 == pytest.approx(added, abs=1.5)
    assert more.config["num_gpu_blocks"].origin == "inferred"
    assert any("moved from what was logged" in note for note in more.info["notes"])
    assert more.preemptions.height < base.preemptions.height


def test_a_smaller_kv_dtype_doubles_the_blocks_and_other_blocks_keep_the_tokens() -> None:
    observed = load(RUN)
    assert replay(observed, settings=["kv_cache_dtype=fp8"]).config["num_gpu_blocks"].value in {2048, 2049}
    assert replay(observed, settings=["block_size=32"]).config["num_gpu_blocks"].value == 512


def test_a_replay_without_a_log_takes_model_and_gpu() -> None:
    bare = trace([{"arrival_ns": 0, "num_prompt_tokens": 50, "num_output_tokens": 5}])
    bare.config.clear()
    found = replay(bare, step_time=step_time(), settings=["model=Qwen3-8B", "gpu=L40S"])
    assert found.config["num_gpu_blocks"].origin == "inferred"
    assert 5_000 < int(found.config["num_gpu_blocks"].value) < 15_000
    with pytest.raises(ConfigError, match="--model M and --gpu G"):
        replay(bare, step_time=step_time())


def test_the_screen_says_what_vllm_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("capacity", "--from", RUN, "--lengths", "1000:200") == 0
    printed = capsys.readouterr().out
    assert "GPU KV cache size: 16,384 tokens" in printed
    assert "Maximum concurrency for 4,096 tokens per request: 4.00x" in printed
    assert "run at once when the pool fills" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert call("capacity", "--model", "gpt-oss-120b", "--gpu", "H200", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_groups"] == 2
    assert found["num_gpu_blocks_low"] < found["num_gpu_blocks"] < found["num_gpu_blocks_high"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "Qwen3-235B-A22B", "--gpu", "H100"), "raise tensor_parallel_size"),
        (("--model", "Llama-3.1-8B"), "without the GPU"),
        (
            ("--model", "Llama-3.1-8B", "--gpu", "H100", "--set", "tensor_parallel_size=3"),
            "does not divide the model's 32 attention heads",
        ),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--lengths", "9"), "expected IN:OUT"),
        (("--gpu", "H100"), "give --model M and --gpu G, or --from RUN"),
        (("--from", str(RUN), "--set", "gpu_memory_utilization=0.95"), "give the GPU"),
    ],
)
def test_what_cannot_be_sized_is_said(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("capacity", *arguments) == 2
    assert said in capsys.readouterr().err


def test_no_memory_is_summed_up_and_the_smallest_share_named() -> None:
    short = {"gpu_memory_utilization": 0.1, "max_model_len": 4096}
    with pytest.raises(
        ConfigError, match=r"GiB of it weights .* may use 7\.9 GiB .*utilization from about (0\.\d\d)"
    ) as told:
        tracekit.capacity(model="Llama-3.1-8B", gpu="H100", settings=short)
    least = float(str(told.value).partition("from about ")[2][:4])
    tracekit.capacity(
        model="Llama-3.1-8B", gpu="H100", settings={**short, "gpu_memory_utilization": least + 0.02}
    )  # starts
    with pytest.raises(ConfigError, match="does not divide the model's 32 attention heads"):
        tracekit.capacity(model="Llama-3.1-8B", gpu="H100", settings={"tensor_parallel_size": 3})


def test_a_forced_pool_is_no_measure_of_memory() -> None:
    logged = {"num_gpu_blocks": 1024, "max_model_len": 4096, "model": "Llama-3.1-8B", "gpu": "H100"}
    run = trace([], **logged)
    notes = tracekit.capacity(run, settings={"gpu_memory_utilization": 0.95}).sizing.notes
    assert any("was its pool forced" in note for note in notes)
    real = trace([], **{**logged, "num_gpu_blocks": 28_700})
    notes = tracekit.capacity(real, settings={"gpu_memory_utilization": 0.95}).sizing.notes
    assert not any("was its pool forced" in note for note in notes)
    with pytest.raises(ConfigError, match=r"takes about 7\d\.\d GiB beside them \(moved from what was logged"):
        tracekit.capacity(run, settings={"gpu_memory_utilization": 0.5})


def test_lengths_that_vllm_refuses_are_left_out_and_counted() -> None:
    given = {"model": "Llama-3.1-8B", "settings": {"available_kv_gib": 2, "max_model_len": 4096}}
    found = tracekit.capacity(**given, lengths="5000:200,100:30")  # type: ignore[arg-type]
    assert found.expected is not None
    assert (found.expected.num_lengths, found.expected.num_refused) == (1, 1)
    with pytest.raises(ConfigError, match="5,000 tokens leaves no room"):
        tracekit.capacity(**given, lengths="5000:200")  # type: ignore[arg-type]


def test_unrecorded_rules_and_odd_blocks_are_noted() -> None:
    odd = {"block_size": 7, "max_model_len": 4096}
    notes = tracekit.capacity(model="Llama-3.1-8B", gpu="H100", rules="9.9.9", settings=odd).sizing.notes
    assert any("newer than the newest version recorded" in note for note in notes)
    assert any("multiples of 16" in note for note in notes)


def test_more_expected_requests_fit_than_the_worst_case() -> None:
    found = tracekit.capacity(RUN, lengths="100:100,2000:50")
    assert found.expected is not None
    assert found.expected.at_half_output > found.expected.at_full_length > found.sizing.plan.concurrency
    with pytest.raises(TracekitError, match="expected IN:OUT"):
        tracekit.capacity(RUN, lengths="100")
