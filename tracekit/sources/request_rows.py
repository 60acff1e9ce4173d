"""What every source of requests owes its rows: unique names, an order, and no latency that was not observed."""

import re
from typing import Final

import polars as pl

from tracekit.errors import InputError
from tracekit.schema.tables import FINISH_REASONS
from tracekit.sources.observation import Observation

FAILED: Final = ("error", "rejected")
_MEASURED: Final = ("first_token_ns", "last_token_ns", "itl_ns", "num_generated_tokens")
_ORDER: Final = ("arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns")
_CLIENT_ORDER: Final = ("client_send_ns", "client_first_token_ns", "client_last_token_ns")
_WORDS: Final = {
    **{word: word for word in FINISH_REASONS},
    **dict.fromkeys(
        ("ok", "success", "succeeded", "completed", "complete", "done", "finished", "finish", "none", "no", "0"), None
    ),
    **dict.fromkeys(("eos", "end_turn", "stop_sequence", "tool_calls", "function_call", "repetition"), "stop"),
    "max_tokens": "length",
    **dict.fromkeys(("aborted", "cancelled", "canceled", "disconnected"), "abort"),
}
_CLIENT_CLOSED: Final = 499


def finish_reason(value: str, source: str) -> str | None:
    """What a status, an error text or a finish reason says: a canonical reason, or null for a request that went well.

    HTTP 4xx is ``rejected`` (499: the client went away), 5xx and any unknown text ``error``; ``true`` depends on the
    column's name.
    """
    word = value.strip().lower()
    if word in {"true", "false"}:
        names_a_failure = re.search(r"err|fail", source.lower()) is not None
        return "error" if (word == "true") == names_a_failure else None
    if word in _WORDS:
        return _WORDS[word]
    if re.fullmatch(r"[1-5]\d\d(\.0+)?", word):
        status = int(float(word))
        if status == _CLIENT_CLOSED:
            return "abort"
        return None if status < 400 else "rejected" if status < 500 else "error"  # noqa: PLR2004 - HTTP's classes
    return "error" if word else None


def finish(frame: pl.DataFrame, observation: Observation) -> pl.DataFrame:
    """Apply the rules of a requests table to rows in source order; what they change is said in the observation's notes.

    Failed rows keep their place but get no latencies; latencies out of order are left out; ``num_generated_tokens``
    and ``finished_ns`` follow from what was observed; ids become unique; rows are sorted by arrival, then source order.
    """
    present = set(frame.columns)
    frame = _without_latencies_of_failed(frame, present)
    frame = _ttft_of_non_streaming(frame, present, observation)
    frame = _in_order(frame, _ORDER, observation)
    frame = _in_order(frame, _CLIENT_ORDER, observation)
    frame = _derived(frame)
    frame = unique_ids(frame)
    if "arrival_ns" in frame.columns and not frame["arrival_ns"].is_sorted(nulls_last=True):
        frame = frame.sort("arrival_ns", nulls_last=True, maintain_order=True)
    return frame


def _without_latencies_of_failed(frame: pl.DataFrame, present: set[str]) -> pl.DataFrame:
    if "finish_reason" not in present:
        return frame
    failed = pl.col("finish_reason").is_in(FAILED).fill_null(value=False)
    if not frame.select(failed.any()).item():
        return frame
    changes = [pl.when(~failed).then(name).alias(name) for name in _MEASURED if name in present]
    if "last_token_ns" in present:
        own = pl.col("finished_ns") if "finished_ns" in present else pl.lit(None, dtype=pl.Int64)
        changes.append(pl.coalesce(own, pl.when(failed).then("last_token_ns")).alias("finished_ns"))
    if "num_output_tokens" in present:
        # A failed request's 0 tokens are what it got, not what it would have produced.
        gave_none = failed & (pl.col("num_output_tokens") == 0)
        changes.append(pl.when(~gave_none.fill_null(value=False)).then("num_output_tokens").alias("num_output_tokens"))
    return frame.with_columns(changes)


def _ttft_of_non_streaming(frame: pl.DataFrame, present: set[str], observation: Observation) -> pl.DataFrame:
    end = next((name for name in ("last_token_ns", "finished_ns") if name in present), None)
    if "first_token_ns" not in present or end is None:
        return frame
    several = pl.col("num_output_tokens").fill_null(2) > 1
    unknown = (pl.col("first_token_ns") == pl.col(end)).fill_null(value=False) & several
    count = int(frame.select(unknown.sum()).item() or 0)
    if not count:
        return frame
    observation.notes.append(
        f"{observation.file}: in {count} rows the first token equals the end: not streamed, so their time to first token is unknown"
    )
    return frame.with_columns(pl.when(~unknown).then("first_token_ns").alias("first_token_ns"))


def _in_order(frame: pl.DataFrame, names: tuple[str, ...], observation: Observation) -> pl.DataFrame:
    present = [name for name in names if name in frame.columns]
    if len(present) < 2:  # noqa: PLR2004 - an order needs two
        return frame
    # A null says nothing: each instant must not lie before the latest known one before it.
    wrong = pl.lit(value=False)
    latest = pl.col(present[0])
    for name in present[1:]:
        wrong |= (pl.col(name) < latest).fill_null(value=False)
        latest = pl.max_horizontal(latest, name)
    count = int(frame.select(wrong.sum()).item() or 0)
    if not count:
        return frame
    both = int(
        frame.select(
            pl.all_horizontal(
                pl.col(present[0]).is_not_null(), pl.any_horizontal(pl.col(present[1:]).is_not_null())
            ).sum()
        ).item()
    )
    if both >= 2 and count * 2 > both:  # noqa: PLR2004 - one row may be an accident
        msg = (
            f"{observation.file}: in {count} of {both} rows {' <= '.join(present)} does not hold; "
            "the columns are probably on different clocks or in different units"
        )
        raise InputError(msg)
    observation.notes.append(f"{observation.file}: {count} rows have instants out of order; only their arrival is kept")
    cleared = [
        name for name in ("finished_ns", "itl_ns", "num_generated_tokens", *present[1:]) if name in frame.columns
    ]
    return frame.with_columns(pl.when(~wrong).then(name).alias(name) for name in cleared)


def _derived(frame: pl.DataFrame) -> pl.DataFrame:
    present = set(frame.columns)
    seen = [
        pl.col(name).is_not_null() for name in ("first_token_ns", "last_token_ns", "finished_ns") if name in present
    ]
    if seen and "num_generated_tokens" not in present and "num_output_tokens" in present:
        reason = pl.col("finish_reason") if "finish_reason" in present else pl.lit(None, dtype=pl.String)
        whole = reason.is_in(("stop", "length")) | reason.is_null()
        frame = frame.with_columns(
            num_generated_tokens=pl.when(pl.any_horizontal(seen) & whole).then("num_output_tokens")
        )
    if "last_token_ns" in present:
        own = [pl.col("finished_ns")] if "finished_ns" in frame.columns else []
        frame = frame.with_columns(finished_ns=pl.coalesce(*own, "last_token_ns"))
    return frame


def unique_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Make ``request_id`` present and unique: a missing one is ``row-N``, a repeated one gets ``#2``, ``#3``...

    The id that had to change is kept in ``source_request_id``.
    """
    if "request_id" not in frame.columns:
        return frame.with_columns(request_id="row-" + pl.int_range(1, pl.len() + 1).cast(pl.String))
    if not frame["request_id"].null_count() and frame["request_id"].n_unique() == frame.height:
        return frame
    made = frame.with_columns(
        pl.coalesce("request_id", "row-" + pl.int_range(1, pl.len() + 1).cast(pl.String)).alias("#id")
    ).with_columns((pl.int_range(pl.len()).over("#id") + 1).alias("#n"))
    made = made.with_columns(
        pl.when(pl.col("#n") > 1).then(pl.format("{}#{}", "#id", "#n")).otherwise("#id").alias("#id")
    )
    if made["#id"].n_unique() < frame.height:
        # An id of the source looks like one made here: the row's number settles it.
        made = made.with_columns(pl.format("{}@{}", "#id", pl.int_range(1, pl.len() + 1)).alias("#id"))
    changed = pl.col("#id") != pl.col("request_id")
    kept = [pl.col("source_request_id")] if "source_request_id" in frame.columns else []
    return made.with_columns(
        source_request_id=pl.coalesce(*kept, pl.when(changed).then("request_id")), request_id=pl.col("#id")
    ).drop("#id", "#n")
