"""What a replay runs with: configuration, rules and step time, each by its ladder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.config import STEP_TIME_SETTINGS, Config, ConfigValue, Scalar, parse_setting, setting_value
from tracekit.config_defaults import Resolved, resolve
from tracekit.errors import ConfigError, InputError
from tracekit.model.rules import Engine, Rules, rules_for, rules_note
from tracekit.pool import settle_pool, windows_of
from tracekit.replay.support import Limit, limits_of
from tracekit.run import Run
from tracekit.step_time.catalogued import gpu_candidates, physical_of_config
from tracekit.step_time.coverage import check_identity
from tracekit.step_time.parameters import GENERIC, StepTime, step_time_from_dict


@dataclass
class Settled:
    """Everything that decides a replay but the arrivals, and what a user should know about how it was found."""

    resolved: Resolved
    rules: Rules
    version: str
    step_time: StepTime
    limits: list[Limit]
    notes: list[str]

    @property
    def hash_block_size(self) -> int | None:
        """Tokens that an entry of ``block_hashes`` stands for; null: the engine's block size."""
        found = self.resolved.config.get("hash_block_size")
        return int(found.value) if found is not None else None


def settle(trace: Run, settings: Sequence[str], step_time: StepTime | None, rules: str | Rules | None) -> Settled:
    """Settle what a replay of this trace runs with; raises ``ConfigError`` when something is missing or refused.

    ``rules``: a version, or rules of one's own over the version that the trace or the settings name.
    """
    config, given, timing = _settle_config(trace, settings, rules if isinstance(rules, str) else None)
    notes: list[str] = []
    pool = settle_pool({name: value for name, value in trace.config.items() if value.origin != "default"}, given)
    if pool is not None:
        config["num_gpu_blocks"] = pool[0]
        config.pop("kv_cache_tokens", None)
        notes += pool[1]

    def windows(known: Config) -> tuple[int | None, ...]:
        found, said = windows_of(known)
        notes.extend(said)
        return found

    resolved = resolve(config, _longest(trace.requests), windows)
    device = _step_time(trace, step_time, timing, resolved.config, notes)
    limits = limits_of(resolved.config)
    version = str(resolved.config["vllm_version"].value)
    engine: Engine = "v0" if resolved.config["engine_generation"].value == "v0" else "v1"
    if (approximated := rules_note(version, engine)) is not None:
        notes.append(approximated)
    notes += resolved.notes + [limit.text for limit in limits]
    chosen = rules if isinstance(rules, Rules) else rules_for(version, engine)
    return Settled(resolved, chosen, version, device, limits, notes)


def _settle_config(
    trace: Run, settings: Sequence[str], rules: str | None
) -> tuple[dict[str, ConfigValue], dict[str, ConfigValue], dict[str, Scalar]]:
    """The trace's configuration under what the user gives, that alone, and the settings of the step time."""
    if not trace.requests.height and not trace.has("requests"):
        msg = (
            f"{trace.name} has no requests to replay: ingest the log together with a client's table or a trace "
            "(tracekit ingest server.log requests.jsonl --column ...)"
        )
        raise InputError(msg)
    # A default is the recorded version's; under other rules it may be another, so it is settled anew.
    config = {name: value for name, value in trace.config.items() if value.origin != "default"}
    given = dict(parse_setting(setting) for setting in settings)
    if rules is not None:
        given["vllm_version"] = setting_value("vllm_version", rules, "given", "--rules")
    if "vllm_version" in given and "engine_generation" not in given:
        # Other rules are another scheduler: what was logged of the recorded one no longer says which.
        config.pop("engine_generation", None)
    config.update(given)
    timing = {name: config.pop(name).value for name in STEP_TIME_SETTINGS if name in config}
    return config, given, timing


def _step_time(
    trace: Run, given: StepTime | None, timing: dict[str, Scalar], config: Config, notes: list[str]
) -> StepTime:
    """Given, else the one stored in the run, else the catalogue's, else the generic one; settings lie over it."""
    base = given or _stored(trace)
    if timing:
        # A fit's coverage says nothing of other numbers.
        merged = {**({**base.to_dict(), "fit": {}} if base else {}), **timing}
        return step_time_from_dict(merged, "given", "--set")
    plain = {name: value.value for name, value in config.items()}
    if base is not None:
        notes += check_identity(base.fit, plain, base.where)
        return base
    return _catalogued(plain, notes) or GENERIC


def _stored(trace: Run) -> StepTime | None:
    stored = trace.info.get("step_time")
    if not isinstance(stored, dict) or stored.get("origin") == "default":
        # What was a default there is settled anew: GPU or model may be known now.
        return None
    return step_time_from_dict(stored, str(stored.get("origin", "logged")), f"{trace.name}: step_time")


def _catalogued(config: Mapping[str, Scalar], notes: list[str]) -> StepTime | None:
    """The catalogue's step time, with notes; null, with a note, where GPU or model is unknown."""
    why = "the step time of the device is not known"
    try:
        found = physical_of_config(config)
        if found is not None:
            described, said = found
            where = f"catalogue: {described['model']} on {described['gpu']}"
            step_time = step_time_from_dict({"form": "physical", **described}, "default", where)
            notes += said
            return step_time
    except ConfigError as error:
        why = str(error)
    if "gpu" not in config and (candidates := gpu_candidates(config)):
        names = ", ".join(gpu.name for gpu in candidates)
        why += f"; the log does not name the GPU, its memory lines fit {names} (--gpu says which)"
    notes.append(
        f"{why}: a generic one is used (10 ms + 40 us/token + 25 us/request), so latencies are no prediction; give "
        "--gpu and --model, --fit on a run with latencies, --step-time FILE, or --set t0_ms=... per_token_us=..."
    )
    return None


def _longest(requests: pl.DataFrame) -> int | None:
    longest = requests.select(
        (pl.col("num_prompt_tokens") + pl.max_horizontal("num_output_tokens", "max_tokens").fill_null(1)).max()
    ).item()
    return int(longest) if longest is not None else None
