import polars as pl
import pytest

from tracekit.errors import InputError
from tracekit.sources.clocks import local_to_unix, place_local, place_relative
from tracekit.sources.observation import Observation

S = 1_000_000_000
NOON = 1_796_090_400 * S  # 2026-12-01, UTC


def client(zero: int = NOON, clock: str = "unix") -> Observation:
    """Ten requests that pile up and drain: what was in flight has one shape only."""
    arrivals = [zero + k * k * S for k in range(10)]
    ends = [zero + (100 + 3 * k) * S for k in range(10)]
    requests = pl.DataFrame({"arrival_ns": arrivals, "last_token_ns": ends})
    return Observation("table", "client.jsonl", clock, {"requests": requests})  # type: ignore[arg-type]


def server(offset: int, clock: str = "local") -> Observation:
    """Samples every 5 s of the same load, on a clock that is ``offset`` ahead of UTC and prints whole seconds."""
    own = client()
    times = [NOON + k * 5 * S for k in range(28)]
    arrivals, ends = own.tables["requests"]["arrival_ns"], own.tables["requests"]["last_token_ns"]
    counts = [int((arrivals <= t).sum()) - int((ends <= t).sum()) for t in times]
    stats = pl.DataFrame(
        {"time_ns": [t + offset for t in times], "num_running_reqs": counts, "num_waiting_reqs": [0] * len(times)}
    )
    return Observation("vllm-log", "server.log", clock, {"engine_stats": stats})  # type: ignore[arg-type]


@pytest.mark.parametrize("hours", [0, 1, -8, 5.75, 14])
def test_a_logs_zone_is_found_by_the_load(hours: float) -> None:
    found = place_local(server(round(hours * 3600) * S), [client()])
    assert found is not None
    assert found.offset_ns == -round(hours * 3600) * S
    sign = "-" if hours < 0 else "+"
    assert f"UTC{sign}{int(abs(hours)):02d}:{round(abs(hours) % 1 * 60):02d}" in found.how


def test_a_wrong_year_is_found_too() -> None:
    found = place_local(server(-365 * 86_400 * S), [client()])
    assert found is not None
    assert found.offset_ns == 365 * 86_400 * S
    assert "-365 days" in found.how


@pytest.mark.parametrize("zero_s", [0, 479_748, -55])
def test_a_relative_clock_is_placed_by_the_load(zero_s: int) -> None:
    found = place_relative(client(zero_s * S, "relative"), [server(0, "unix")])
    assert found is not None
    assert abs(found.offset_ns - (NOON - zero_s * S)) <= 2.5 * S
    assert found.error is not None
    assert found.error < 0.1


def test_without_counts_there_is_no_fit() -> None:
    empty = Observation("vllm-log", "server.log", "local", {"events": pl.DataFrame({"time_ns": [NOON]})})
    assert place_relative(client(0, "relative"), [empty]) is None


def test_summer_time_and_the_hour_that_comes_twice() -> None:
    # Europe/Berlin, 2026-10-25: 02:30 happens twice; 01:30 is summer time, 03:30 is not.
    local = [1_792_891_800 * S, 1_792_895_400 * S, 1_792_899_000 * S]
    frame = local_to_unix({"events": pl.DataFrame({"time_ns": local})}, "Europe/Berlin")["events"]
    assert frame["time_ns"].to_list() == [local[0] - 7200 * S, local[1] - 7200 * S, local[2] - 3600 * S]


def test_an_unknown_zone_is_an_error() -> None:
    with pytest.raises(InputError, match="--timezone"):
        local_to_unix({}, "Mars/Olympus")
