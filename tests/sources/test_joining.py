import polars as pl

from tracekit.sources.joining import join_requests, looks_closed_loop
from tracekit.sources.observation import Observation


def observed(format_name: str, file: str, **columns: list[object]) -> Observation:
    return Observation(format_name, file, "unix", {"requests": pl.DataFrame(columns)})


def test_a_log_fills_what_the_client_does_not_know() -> None:
    client = observed("table", "c.jsonl", request_id=["cmpl-1", "cmpl-2"], arrival_ns=[5, 6], max_tokens=[None, 9])
    log = observed("vllm-log", "s.log", request_id=["cmpl-1-0", "cmpl-3-0"], arrival_ns=[7, 8], max_tokens=[77, 78])
    joined, lost = join_requests([log, client])
    assert joined is not None
    assert joined["request_id"].to_list() == ["cmpl-1", "cmpl-2"]
    assert joined["arrival_ns"].to_list() == [5, 6]
    assert joined["max_tokens"].to_list() == [77, 9]
    assert [entry["count"] for entry in lost] == [1]


def test_without_a_client_the_logs_requests_count() -> None:
    joined, lost = join_requests([observed("vllm-log", "s.log", request_id=["b", "a"], arrival_ns=[8, 7])])
    assert joined is not None
    assert joined["request_id"].to_list() == ["a", "b"]
    assert lost == []


def test_ids_of_two_clients_stay_apart() -> None:
    one = observed("table", "1.csv", request_id=["x"], arrival_ns=[1])
    two = observed("table", "2.csv", request_id=["x"], arrival_ns=[2])
    joined, _ = join_requests([one, two])
    assert joined is not None
    assert joined["request_id"].n_unique() == 2
    assert joined["source_request_id"].to_list() == [None, "x"]


def test_no_requests_is_none() -> None:
    assert join_requests([Observation("metrics", "m", "unix")]) == (None, [])


def test_a_client_that_keeps_four_in_flight_is_recognised() -> None:
    arrivals, ends, free = [], [], [0, 0, 0, 0]
    for k in range(40):
        slot = min(range(4), key=lambda s: free[s])
        arrivals.append(free[slot] + 1)
        free[slot] += 100 + (k * 37) % 50
        ends.append(free[slot])
    assert looks_closed_loop(pl.DataFrame({"arrival_ns": arrivals, "last_token_ns": ends})) == 4


def test_an_open_loop_is_not() -> None:
    arrivals = [k * 1000 + (k * 7919) % 900 for k in range(200)]
    ends = [a + 300 + (k * 104729) % 5000 for k, a in enumerate(arrivals)]
    assert looks_closed_loop(pl.DataFrame({"arrival_ns": arrivals, "last_token_ns": ends})) is None
