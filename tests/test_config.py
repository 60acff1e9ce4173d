from pathlib import Path

import pytest

from tracekit.config import ConfigValue, Scalar, model_name, parse_setting, parse_version, setting_value
from tracekit.config_defaults import resolve
from tracekit.errors import ConfigError


def known(**values: Scalar) -> dict[str, ConfigValue]:
    return {name: setting_value(name, value, "logged", "server.log:1") for name, value in values.items()}


def test_settings_are_read_as_users_write_them() -> None:
    assert parse_setting("max-num-seqs=64")[1] == ConfigValue(64, "given", "--set")
    assert parse_setting("--enable_prefix_caching=off")[1].value is False
    assert parse_setting("kv_cache_tokens=16,384")[1].value == 16384


def test_numbers_and_words_are_read_as_vllm_reads_them() -> None:
    assert parse_setting("max_model_len=32k")[1].value == 32_000
    assert parse_setting("max_model_len=32K")[1].value == 32_768
    assert parse_setting("max_num_batched_tokens=25.6k")[1].value == 25_600
    assert parse_setting("kv_cache_memory_bytes=2G") == ("available_kv_gib", ConfigValue(2.0, "given", "--set"))
    assert parse_setting("dtype=torch.bfloat16")[1].value == "torch.bfloat16"
    # What a server logged did start, whatever it is called.
    assert setting_value("quantization", "my_own", "logged", "server.log:1").value == "my_own"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq=1", "did you mean max_num_seqs"),
        ("max_num_seqs", "no '='"),
        ("max_num_seqs=many", "whole number"),
        ("max_num_seqs=0", "at least 1"),
        ("watermark=nan", "must be a number"),
        ("watermark=1e9", "at most 1"),
        ("num_gpu_blocks=99999999999", "at most 16,777,216"),
        ("t0_ms=1e300", "at most"),
        ("enable_prefix_caching=maybe", "true or false"),
        ("kv_cache_dtype=bogus", "it takes auto, half"),
        ("quantization=fp88", "did you mean fp8"),
        ("dtype=float64", "did you mean float16"),
        ("max_model_len=auto", "longest request"),
        ("max_model_len=-1", "longest request"),
        ("kv_cache_memory_bytes=lots", "number of bytes"),
    ],
)
def test_bad_settings_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_setting(text)


def test_a_model_path_keeps_no_home() -> None:
    assert model_name("/home/jane/models/Llama-3.1-8B/") == "Llama-3.1-8B"
    assert model_name("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"


def test_a_config_file_given_as_the_model_keeps_its_path(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    for given in (path, tmp_path):
        assert parse_setting(f"model={given}")[1].value == str(given)
    assert setting_value("model", str(path), "logged", "server.log:1").value == "config.json"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.8.5.post1", (0, 8, 5)),
        ("v0.11.2+cu124", (0, 11, 2)),
        ("0.33", (0, 33, 0)),
        ("0.1.dev15917+g0a6396b45", (0, 33, 0)),
    ],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


def test_the_ladder_given_over_logged_over_default() -> None:
    config = known(vllm_version="0.33.0", num_gpu_blocks=1024, kv_cache_tokens=16384, max_model_len=4096)
    resolved = resolve(config | {"num_gpu_blocks": ConfigValue(2048, "given", "--set")})
    assert resolved.engine.num_gpu_blocks == 2048
    assert resolved.config["kv_cache_tokens"].value == 32768
    assert resolved.config["async_scheduling"] == ConfigValue(True, "default", "vLLM 0.33.0")


def test_given_tokens_beat_a_logged_count() -> None:
    config = known(num_gpu_blocks=1024, max_model_len=4096)
    resolved = resolve(config | {"kv_cache_tokens": ConfigValue(8192, "given", "--set")})
    assert resolved.engine.num_gpu_blocks == 512


@pytest.mark.parametrize(
    ("version", "asynchronous", "knows_reservation"),
    [("0.11.2", False, False), ("0.14.0", True, False), ("0.19.0", True, True)],
)
def test_defaults_follow_the_version(version: str, asynchronous: bool, knows_reservation: bool) -> None:  # noqa: FBT001
    config = resolve(known(vllm_version=version, num_gpu_blocks=100, max_model_len=512)).config
    assert config["async_scheduling"].value is asynchronous
    assert ("scheduler_reserve_full_isl" in config) is knows_reservation


def test_max_num_seqs_is_inferred_from_the_budget_that_goes_with_it() -> None:
    resolved = resolve(
        known(vllm_version="0.11.2", num_gpu_blocks=4096, max_model_len=4096, max_num_batched_tokens=8192)
    )
    assert resolved.engine.max_num_seqs == 1024
    assert resolved.config["max_num_seqs"].origin == "inferred"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (known(max_model_len=4096), "number of KV blocks is not known"),
        (known(num_gpu_blocks=10, max_model_len=4096), "vLLM refuses to start"),
        (
            known(num_gpu_blocks=1000, max_model_len=4096, max_num_seqs=512, max_num_batched_tokens=256),
            "at least max_num_seqs",
        ),
        (
            known(
                num_gpu_blocks=1000,
                max_model_len=4096,
                max_num_seqs=64,
                max_num_batched_tokens=256,
                enable_chunked_prefill=False,
            ),
            "without chunked prefill",
        ),
        (known(num_gpu_blocks=1000, max_model_len=4096, scheduling_policy="lifo"), "fcfs or priority"),
    ],
)
def test_what_vllm_refuses_is_refused(config: dict[str, ConfigValue], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(config)


def test_an_unknown_length_is_the_longest_request() -> None:
    resolved = resolve(known(num_gpu_blocks=1000), longest_request=900)
    assert resolved.engine.max_model_len == 901
    assert any("max_model_len" in note for note in resolved.notes)
