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


def test_ids_join_whichever_of_both_names_the_client_noted() -> None:
    names: list[object] = ["abc", "cmpl-d-1", "chatcmpl-e", "f-0"]
    client = observed("table", "c.jsonl", request_id=names, arrival_ns=[1, 2, 3, 4])
    logged: list[object] = ["cmpl-abc-0", "cmpl-d-0", "chatcmpl-e", "cmpl-f-0-0"]
    log = observed("vllm-log", "s.log", request_id=logged, arrival_ns=[1, 2, 3, 4], max_tokens=[10, 11, 12, 13])
    joined, lost = join_requests([client, log])
    assert joined is not None
    assert joined["max_tokens"].to_list() == [10, None, 12, 13]
    assert [entry["count"] for entry in lost] == [1]


def test_client_and_server_latencies_are_kept_apart() -> None:
    client = observed(
        "table",
        "c",
        request_id=["abc", "x"],
        arrival_ns=[100, 110],
        first_token_ns=[160, 170],
        last_token_ns=[190, 200],
    )
    server = observed(
        "otlp", "s", request_id=["chatcmpl-abc", "y"], arrival_ns=[120, 130], first_token_ns=[150, 155],
        num_prompt_tokens=[7, 8],
    )  # fmt: skip
    joined, lost = join_requests([client, server])
    assert joined is not None
    assert lost == []
    columns = ["request_id", "arrival_ns", "first_token_ns", "last_token_ns", "client_send_ns", "client_first_token_ns"]
    assert joined.select(columns).rows() == [
        ("x", 110, 170, 200, None, None),
        ("abc", 120, 150, None, 100, 160),
        ("y", 130, 155, None, None, None),
    ]
    assert joined["client_last_token_ns"].to_list() == [None, 190, None]
    assert joined["num_prompt_tokens"].to_list() == [None, 7, 8]


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
