import gzip
import json
import shlex
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.reading import SHARED, USUAL, needs_shared, read, table, write
from tracekit.errors import InputError
from tracekit.hashing import chain_ids
from tracekit.sources import any_table
from tracekit.sources.observation import ColumnMapping
from tracekit.sources.table_columns import parse_column
from tracekit.sources.table_values import to_count, to_ns


def test_a_column_option_names_target_sources_and_unit() -> None:
    assert parse_column("arrival=send_time_us:us") == ColumnMapping("arrival", ("send_time_us",), "us")
    assert parse_column("num_prompt_tokens=usage.prompt_tokens,n_prompt") == ColumnMapping(
        "num_prompt_tokens", ("usage.prompt_tokens", "n_prompt")
    )
    assert parse_column("block_hashes=hash_ids:16") == ColumnMapping("block_hashes", ("hash_ids",), "16")
    assert parse_column("num_prompt_tokens=a:b") == ColumnMapping("num_prompt_tokens", ("a:b",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arrival", "TARGET=SOURCE"),
        ("arival=t", "did you mean arrival?"),
        ("arrival_ns=t", "did you mean arrival?"),
        ("arrival=t:sec", "s ms us ns iso"),
        ("think=t:iso", "s ms us ns"),
        ("num_prompt_tokens=p:ms", "takes no unit"),
        ("block_hashes=h:none", "whole number"),
        ("arrival=:s", "expected a source column"),
    ],
)
def test_a_bad_column_option_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        parse_column(text)


@settings(deadline=None)
@given(st.integers(0, 9_000_000_000_000_000_000))
def test_decimal_text_becomes_nanoseconds_exactly(value_ns: int) -> None:
    for unit, digits in (("s", 9), ("ms", 6), ("us", 3), ("ns", 0)):
        text = format(Decimal(value_ns).scaleb(-digits), "f")
        assert to_ns(pl.Series([text]), unit).to_list() == [value_ns]


def test_floats_and_dates_keep_what_they_have() -> None:
    assert to_ns(pl.Series([1796090943.25, -0.5, float("nan"), 1e300]), "s").to_list() == [
        1796090943250000000,
        -500000000,
        None,
        None,
    ]
    when = datetime(2026, 6, 1, 12, 0, 0, 250, tzinfo=UTC)
    assert to_ns(pl.Series([when]), "ns").to_list() == [int(when.timestamp()) * 10**9 + 250_000]
    for text in ("2026-06-01 12:00:00.5", "2026-06-01T12:00:00.5Z", "2026-06-01T14:00:00.500+02:00"):
        assert to_ns(pl.Series([text]), "iso").to_list() == [int(when.timestamp()) * 10**9 + 500_000_000]


def test_counts_may_be_written_as_floats() -> None:
    values, absurd = to_count(pl.Series(["21073.0", "5", "5.5", "x", "-1", "9223372036854775807"]))
    assert values.to_list() == [21073, 5, None, None, -1, 2**63 - 1]
    assert absurd.to_list() == [False, False, False, False, True, True]


@pytest.mark.parametrize(
    ("times", "clock", "expected"),
    [
        (("1796090943.2493129", "1796090944"), "unix", [1796090943249312900, 1796090944000000000]),
        (("1796090943249", "1796090944000"), "unix", [1796090943249000000, 1796090944000000000]),
        (("1796090943249312", "1796090944000000"), "unix", [1796090943249312000, 1796090944000000000]),
        (("1796090943249312900", "1796090944000000000"), "unix", [1796090943249312900, 1796090944000000000]),
        (("0.5", "7"), "relative", [500_000_000, 7_000_000_000]),
        (("2026-12-01 03:09:03.2493129", "2026-12-01 03:09:04"), "unix", [1796094543249312900, 1796094544000000000]),
    ],
)
def test_units_are_inferred_and_said(tmp_path: Path, times: tuple[str, str], clock: str, expected: list[int]) -> None:
    path = write(tmp_path / "x", f"t,p,o\n{times[0]},10,5\n{times[1]},11,6\n")
    observation = read(any_table.SOURCE, path, *USUAL)
    assert observation.tables["requests"]["arrival_ns"].to_list() == expected
    assert observation.clock == clock
    assert any("units inferred" in note for note in observation.notes)


def test_a_units_name_in_the_columns_name_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "send_us,p,o\n1500,10,5\n")
    assert table(path, "arrival=send_us", *USUAL[1:])["arrival_ns"].to_list() == [1_500_000]


def test_an_unclear_size_asks_for_the_unit(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,p,o\n50000000000,10,5\n")
    with pytest.raises(InputError, match=r"give it, e\.g\. :ms"):
        table(path, *USUAL)


ROWS = [
    {"t": 0.1234567891, "p": 10, "o": 5, "id": "b", "u": {"x": 1}},
    {"t": 0.05, "p": 11, "o": 6, "id": "a", "u": {"x": None}, "y": 7},
]


def as_csv(sep: str) -> str:
    return f"t{sep}p{sep}o{sep}id\n" + "".join(f"{r['t']}{sep}{r['p']}{sep}{r['o']}{sep}{r['id']}\n" for r in ROWS)


@pytest.mark.parametrize(
    "data",
    [
        as_csv(","),
        as_csv("\t"),
        as_csv(";"),
        "\ufeff" + as_csv(",").replace("\n", "\r\n"),
        "".join(json.dumps(row) + "\n" for row in ROWS),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        gzip.compress(as_csv(",").encode()),
    ],
    ids=["csv", "tsv", "semicolon", "bom-crlf", "jsonl", "json", "pretty", "gzip"],
)
def test_every_kind_of_table_gives_the_same_rows_sorted_by_arrival(tmp_path: Path, data: str | bytes) -> None:
    found = table(write(tmp_path / "x", data), *USUAL, "request_id=id")
    assert found["request_id"].to_list() == ["a", "b"]
    assert found["arrival_ns"].to_list() == [50_000_000, 123_456_789]
    assert found["num_prompt_tokens"].to_list() == [11, 10]


def test_parquet_with_structs_and_dates(tmp_path: Path) -> None:
    times = pl.Series([1_780_000_000_000, 1_790_000_000_000]).cast(pl.Datetime("ms"))
    frame = pl.DataFrame({"t": times, "u": [{"p": 1.0, "o": 2}, {"p": 3.0, "o": None}], "h": [[1], [2]]})
    frame.write_parquet(tmp_path / "x")
    found = read(
        any_table.SOURCE,
        tmp_path / "x",
        "arrival=t",
        "num_prompt_tokens=u.p",
        "num_output_tokens=u.o",
        "block_hashes=h:1",
    )
    assert found.tables["requests"]["num_prompt_tokens"].to_list() == [1, 3]
    assert found.tables["requests"]["num_output_tokens"].to_list() == [2, None]
    assert found.clock == "unix"
    assert any("names no zone" in note for note in found.notes)


def test_the_first_source_that_is_not_null_wins(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "".join(json.dumps(row) + "\n" for row in ROWS))
    assert table(path, *USUAL, "max_tokens=u.x,y")["max_tokens"].to_list() == [7, 1]


def test_blank_and_bad_rows_are_counted_by_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,p,o\n1,10,5\n,,\n2,-3,5\nsoon,4,5\n3,4,5,6\n,4,5\n4,4,many\n\n")
    observation = read(any_table.SOURCE, path, *USUAL)
    assert observation.skipped == {
        "blank row": 2,
        "num_prompt_tokens: negative or absurd": 1,
        "arrival: not a time": 1,
        "no arrival time": 1,
        "num_output_tokens: not a whole number": 1,
    }
    account = observation.accounting
    assert (account.read, account.understood, account.other, account.unreadable) == (8, 1, 2, 5)
    assert sorted(account.unreadable_at) == [3, 4, 5, 6, 7]
    with pytest.raises(InputError, match="row 3: num_prompt_tokens: negative or absurd"):
        table(path, *USUAL, strict=True)


def test_a_cut_last_line_is_unreadable_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "x", '{"t":1,"p":2,"o":3}\n{"t":2,"p":2,"o":3}\n{"t":3,"p"')
    observation = read(any_table.SOURCE, path, *USUAL)
    assert observation.accounting.unreadable_at == [3]
    assert observation.tables["requests"].height == 2


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    frame = pl.DataFrame({"t": ["noon", "dusk"], "p": [1, 2], "o": [1, 2]})
    frame.write_parquet(tmp_path / "x")
    with pytest.raises(InputError, match=r"none of 2 rows can be used \(arrival: not a time"):
        table(tmp_path / "x", *USUAL)


def test_failed_requests_keep_their_row_without_latencies(tmp_path: Path) -> None:
    rows = "1,2,3,10,5,200\n2,2.5,3,10,0,429\n3,4,5,10,0,503\n4,5,6,10,7,\n5,6,7,10,7,timeout of upstream\n6,7,8,9,4,length\n"
    path = write(tmp_path / "x", "t,first,last,p,o,status\n" + rows)
    found = table(path, *USUAL, "first_token=first", "last_token=last", "finish_reason=status")
    assert found["finish_reason"].to_list() == [None, "rejected", "error", None, "error", "length"]
    assert found["first_token_ns"].is_null().to_list() == [False, True, True, False, True, False]
    assert found["num_generated_tokens"].to_list() == [5, None, None, 7, None, 4]
    assert found["num_output_tokens"].to_list() == [5, None, None, 7, 7, 4]
    assert found["finished_ns"].to_list() == [3 * 10**9, 3 * 10**9, 5 * 10**9, 6 * 10**9, 7 * 10**9, 8 * 10**9]


def test_a_first_token_at_the_end_is_unknown_unless_it_is_the_only_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,first,last,p,o\n1,3,3,10,5\n2,3,3,10,1\n")
    observation = read(any_table.SOURCE, path, *USUAL, "first_token=first", "last_token=last")
    assert observation.tables["requests"]["first_token_ns"].to_list() == [None, 3 * 10**9]
    assert any("not streamed" in note for note in observation.notes)


def test_mixed_clocks_are_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,first,p,o\n1796090943.2,47.5,10,5\n")
    with pytest.raises(InputError, match=r"arrival \(t\) is Unix time but first_token \(first\)"):
        table(path, *USUAL, "first_token=first")


def test_columns_that_run_backwards_are_refused_a_single_row_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,first,p,o\n10,1,10,5\n11,2,10,5\n12,3,10,5\n")
    with pytest.raises(InputError, match="different clocks or in different units"):
        table(path, *USUAL, "first_token=first")
    path = write(tmp_path / "y", "t,first,p,o\n10,11,10,5\n11,2,10,5\n12,13,10,5\n")
    observation = read(any_table.SOURCE, path, *USUAL, "first_token=first")
    assert observation.tables["requests"]["first_token_ns"].to_list() == [11 * 10**9, None, 13 * 10**9]
    assert any("out of order" in note for note in observation.notes)


def test_ids_become_unique_and_equal_arrivals_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,p,o,id\n2,1,1,a\n1,2,1,a\n1,3,1,\n1,4,1,a#2\n1,5,1,b\n")
    found = table(path, *USUAL, "request_id=id")
    assert found["num_prompt_tokens"].to_list() == [2, 3, 4, 5, 1]
    assert found["request_id"].n_unique() == 5
    assert found.filter(pl.col("source_request_id").is_not_null())["source_request_id"].is_in(["a", "a#2", "b"]).all()


def test_block_hashes_are_chained_at_the_engines_block_size(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x",
        json.dumps({"t": 1, "p": 100, "o": 3, "h": [7, 8]}) + "\n" + json.dumps({"t": 2, "p": 5, "o": 3}) + "\n",
    )
    observation = read(any_table.SOURCE, path, *USUAL, "block_hashes=h:64", block_size=32)
    assert observation.tables["requests"]["block_hashes"].to_list() == [chain_ids([7, 8], 64, 32, 100), None]
    assert observation.hash_block_size == 32
    for config, said in (
        ({}, "16 tokens (assumed"),
        ({"block_size": 32}, "32 tokens (taken"),
        ({"hash_block_size": 64}, "64 tokens (from"),
    ):
        observation = read(any_table.SOURCE, path, *USUAL, "block_hashes=h", **config)
        assert any(said in note for note in observation.notes)


def test_lists_of_gaps(tmp_path: Path) -> None:
    path = write(tmp_path / "x", '{"t":1,"p":1,"o":3,"g":[0.01,0.0200000001]}\n{"t":2,"p":1,"o":3,"g":null}\n')
    assert table(path, *USUAL, "itl=g")["itl_ns"].to_list() == [[10_000_000, 20_000_000], None]


def test_a_canonical_table_needs_no_mapping(tmp_path: Path) -> None:
    hashes = [[2**63 + 5, 7], None]
    pl.DataFrame(
        {"arrival_ns": [5, 3], "num_prompt_tokens": [40, 5], "num_output_tokens": [4, 5], "block_hashes": hashes},
        schema_overrides={"block_hashes": pl.List(pl.UInt64)},
    ).write_parquet(tmp_path / "x")
    assert table(tmp_path / "x")["block_hashes"].to_list() == hashes[::-1]
    path = write(tmp_path / "y", "arrival_s,num_prompt_tokens,num_output_tokens\n1.5,10,5\n")
    assert table(path)["arrival_ns"].to_list() == [1_500_000_000]
    path = write(tmp_path / "z", "when,num_prompt_tokens,num_output_tokens\n1.5,10,5\n")
    assert table(path, "arrival=when")["num_prompt_tokens"].to_list() == [10]


def test_without_a_mapping_the_error_proposes_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "id,timestamp,Request tokens,Response tokens\n1,1,10,5\n")
    with pytest.raises(InputError) as caught:
        table(path)
    assert "columns: id, timestamp, Request tokens, Response tokens" in str(caught.value)
    assert "--column arrival=timestamp" in str(caught.value)
    assert "--column 'num_prompt_tokens=Request tokens'" in str(caught.value)


def test_a_missing_column_offers_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "time,p,o\n1,10,5\n")
    with pytest.raises(InputError, match=r"no column 'tme' for arrival; did you mean time\?"):
        table(path, "arrival=tme", *USUAL[1:])


def test_stray_quotes_and_odd_bytes_lose_no_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x",
        b't,p,o,note\n1,10,5,5" disk\n2,11,5,\xff\xfe\n3,12,5,"a, b\nc"\n4,13,5,"never closed\n5,14,5,x\n',
    )
    observation = read(any_table.SOURCE, path, *USUAL)
    assert observation.accounting.read >= 5
    assert {10, 11, 14} <= set(observation.tables["requests"]["num_prompt_tokens"].to_list())


def test_pieces_of_a_big_file_join_at_row_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.sources.table_csv._PIECE_BYTES", 64)
    monkeypatch.setattr("tracekit.sources.table_read._PIECE_BYTES", 64)
    rows = [(i, i + 1, 'say "hi"\nthere' if i % 3 == 0 else "x") for i in range(200)]
    csv_text = "t,note,p,o\n" + "".join('{},"{}",{},1\n'.format(t, note.replace('"', '""'), p) for t, p, note in rows)
    found = table(write(tmp_path / "x", csv_text), *USUAL)
    assert found["num_prompt_tokens"].to_list() == [p for _, p, _ in rows]
    lines = "".join(json.dumps({"t": t, "p": p, "o": 1, "note": note}) + "\n" for t, p, note in rows)
    assert table(write(tmp_path / "y", lines), *USUAL).equals(found)


def test_half_a_surrogate_pair_in_an_id_is_no_crash(tmp_path: Path) -> None:
    path = write(tmp_path / "x", '{"t":1,"p":1,"o":3,"id":"a\\ud800"}\n')
    assert table(path, *USUAL, "request_id=id").height == 1


def test_a_table_without_rows_is_empty(tmp_path: Path) -> None:
    assert table(write(tmp_path / "x", "t,p,o\n"), *USUAL).height == 0


def test_the_text_of_a_file_is_not_in_its_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "t,p,o\nmy secret prompt,1,2\n")
    with pytest.raises(InputError) as caught:
        table(path, *USUAL)
    assert "secret" not in str(caught.value)


STORM = (
    "arrival=t_send", "first_token=t_first", "last_token=t_end", "num_prompt_tokens=usage.prompt_tokens",
    "num_output_tokens=usage.completion_tokens", "block_hashes=hash_ids:16", "session_id=session", "request_id=id",
    "finish_reason=status",
)  # fmt: skip


@needs_shared
def test_every_request_of_a_recorded_storm_is_there() -> None:
    path = SHARED / "engine-runs/0.33.0/storm_a/client.jsonl"
    observation = read(any_table.SOURCE, path, *STORM)
    found = observation.tables["requests"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert found.height == len(rows) == 1168
    assert observation.clock == "unix"
    assert found["request_id"].to_list() == [row["id"] for row in sorted(rows, key=lambda row: row["t_send"])]
    assert found["num_generated_tokens"].sum() == sum(row["usage"]["completion_tokens"] for row in rows)
    assert found.filter(pl.col("first_token_ns") < pl.col("arrival_ns")).height == 0


@needs_shared
def test_a_real_gpu_run_is_read_on_the_engines_clock_and_refused_on_two() -> None:
    path = SHARED / "traces/llmservingsim-rtxpro6000-llama8b/requests.jsonl"
    lengths = ("num_prompt_tokens=input_toks", "num_output_tokens=output_toks")
    instants = ("queued=queued_ts", "scheduled=scheduled_ts", "first_token=first_token_ts", "last_token=last_token_ts")
    found = table(path, "arrival=queued_ts", *instants, *lengths, strict=True)
    assert found.height == 300
    assert found["first_token_ns"].null_count() == 0
    with pytest.raises(InputError, match="another clock"):
        table(path, "arrival=arrival_time", *instants, *lengths)


def test_damaged_parquet_is_a_clear_error(tmp_path: Path) -> None:
    frame = pl.DataFrame({"t": [1.0, 2.0], "p": [1, 2], "o": [1, 2], "id": ["ääää", "öööö"]})
    frame.write_parquet(tmp_path / "x", compression="uncompressed", use_pyarrow=False)
    whole = (tmp_path / "x").read_bytes()
    for data in (whole[:-20], whole.replace("ä".encode(), b"\xff\xff"), whole[:4] + bytes(len(whole) - 8) + whole[-4:]):
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            table(write(tmp_path / "y", data), *USUAL, "request_id=id")


def test_a_bare_cr_is_no_line_end(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b't,p,o,note\n1,10,5,a\rb\n2,11,5,"q" r\n3,12,5,x\n')
    assert table(path, *USUAL)["num_prompt_tokens"].to_list() == [10, 11, 12]
    with pytest.raises(InputError, match="bare CR"):
        table(write(tmp_path / "y", b"t,p,o\r1,10,5\r"), *USUAL)


def test_rows_with_many_fields_too_many_are_unreadable(tmp_path: Path) -> None:
    observation = read(
        any_table.SOURCE, write(tmp_path / "x", "t,p,o\n1,2,3,4,5,6\n1,2,3\n1,2,3,4\n1,2,3\n1,2,3\n"), *USUAL
    )
    assert observation.accounting.unreadable_at == [1, 3]


def test_a_gateways_log_is_read_by_the_command_that_its_error_proposes(tmp_path: Path) -> None:
    row = {
        "id": "chatcmpl-1", "startTime": 1790000000.25, "completionStartTime": 1790000000.5, "endTime": 1790000002.0,
        "prompt_tokens": 7, "completion_tokens": 3, "status": "success", "messages": "secret",
    }  # fmt: skip
    path = write(tmp_path / "spend.jsonl", json.dumps(row) + "\n")
    with pytest.raises(InputError) as refused:
        table(path)
    proposed = shlex.split(str(refused.value).partition("perhaps: ")[2])
    found = table(path, *(word for word in proposed if word != "--column")).row(0, named=True)
    assert found["first_token_ns"] - found["arrival_ns"] == 250_000_000
    assert found["last_token_ns"] - found["arrival_ns"] == 1_750_000_000
    assert (found["num_prompt_tokens"], found["num_output_tokens"], found["finish_reason"]) == (7, 3, None)
