"""Results of ``vllm bench serve --save-result --save-detailed``: one JSON object a run, columnar lists in seconds."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import polars as pl
import pyarrow as pa

from tracekit.config import ConfigValue, setting_value
from tracekit.errors import InputError
from tracekit.sources.files import left_out_note, open_bytes, read_head
from tracekit.sources.observation import Accounting, Material, Observation, Options, Source
from tracekit.sources.request_rows import finish
from tracekit.sources.table_values import to_ns

_KEYS: Final = (b'"completed"', b'"request_throughput"', b'"total_input')
_LISTS: Final = ("input_lens", "output_lens")
_MAX_BYTES: Final = 2 << 30
_FILES_LOOKED_AT: Final = 20
_MOST_TOKENS: Final = 1e9
_MOST_SECONDS: Final = 5e9
_HINT: Final = "run the benchmark with --save-result --save-detailed"


def detects(material: Material) -> bool:
    """A JSON object that starts with a benchmark's totals, in the first file or one of the next few."""
    return _is_result(material.head) or any(_is_result(read_head(path)) for path in material.files[1:_FILES_LOOKED_AT])


def _is_result(start: bytes) -> bool:
    head = start.lstrip(b"\xef\xbb\xbf \r\n\t")
    return head.startswith(b"{") and all(key in head for key in _KEYS)


def read(material: Material, options: Options) -> Observation:
    """Read what the client measured of each request; instants are the client's ``perf_counter``.

    Failed requests (an error text, or no output) keep their place without latencies. Raises ``InputError`` for a result
    without details, with lists of different lengths, or without ``start_times`` unless all requests were sent at once.
    """
    observation = Observation("bench-serve", material.name, "relative", accounting=Accounting("requests"))
    observation.notes.extend(left_out_note(material))
    results = list(_results(material, observation))
    if not results:
        msg = f"{material.path}: expected a JSON object of vllm bench serve, found none"
        raise InputError(msg)
    frames = []
    for number, (where, result) in enumerate(results, start=1):
        prefix = "bench" if len(results) == 1 else f"bench-{number}"
        frames.append(_requests(result, observation, where, prefix, strict=options.strict))
    if len(results) > 1:
        observation.notes.append(
            f"{observation.file}: it holds {len(results)} results, one after the other on the client's clock; give one file "
            "for a single load"
        )
    observation.tables["requests"] = finish(pl.concat(frames, how="diagonal"), observation)
    options.progress(material.name, 1, 1)
    return observation


def _requests(
    result: Mapping[str, Any], observation: Observation, where: str, prefix: str, *, strict: bool
) -> pl.DataFrame:
    lists = _lists_of(result, where)
    count = len(lists["input_lens"])
    starts = _starts(result, lists, observation, where)
    columns: dict[str, pl.Series] = {
        "request_id": pl.Series([f"{prefix}-{index}" for index in range(count)], dtype=pl.String),
        "arrival_ns": starts,
        "num_prompt_tokens": _counts(lists["input_lens"]),
        "num_output_tokens": _counts(lists["output_lens"]),
        "finish_reason": _reasons(lists, count),
    }
    if "ttfts" in lists:
        columns["first_token_ns"] = starts + _seconds(lists["ttfts"])
    if "ttfts" in lists and "itls" in lists:
        columns["itl_ns"], total = _gaps(lists["itls"])
        columns["last_token_ns"] = columns["first_token_ns"] + total
    frame = pl.DataFrame([series.alias(name) for name, series in columns.items()])
    frame = _usable(frame, observation, where, strict=strict)
    _check_totals(result, frame, observation)
    observation.config = _config(result, observation)
    return frame


def _results(material: Material, observation: Observation) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The results of a file (several with ``--append-result``) or of a directory as a sweep writes it."""
    for path in material.files:
        where = str(path if len(material.files) > 1 else material.path)
        with open_bytes(path) as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            msg = f"{where}: expected results of less than {_MAX_BYTES} bytes"
            raise InputError(msg)
        whole = _object(data)
        lines = [data] if whole is not None else [line for line in data.split(b"\n") if line.strip()]
        for number, line in enumerate(lines, start=1):
            result = whole if whole is not None else _object(line)
            place = where if len(lines) == 1 else f"{where}:{number}"
            if (isinstance(result, dict) and "input_lens" in result) or len(material.files) == 1:
                if not isinstance(result, dict):
                    msg = f"{place}: expected one JSON object; it is damaged or ends early"
                    raise InputError(msg)
                # Outputs are not needed and must not live on.
                result.pop("generated_texts", None)
                yield place, result
            else:
                # A sweep's summary, and what else lies beside the results.
                observation.skipped["file without single requests"] = (
                    observation.skipped.get("file without single requests", 0) + 1
                )
                break


def _object(data: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _lists_of(result: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    names = (*_LISTS, "ttfts", "itls", "start_times", "errors")
    lists = {name: result[name] for name in names if isinstance(result.get(name), list)}
    missing = [name for name in _LISTS if name not in lists]
    if missing:
        msg = f"{where}: a result without {', '.join(missing)} says nothing of single requests; {_HINT}"
        raise InputError(msg)
    count = len(lists["input_lens"])
    for name, values in list(lists.items()):
        if not values and count:
            del lists[name]
        elif len(values) != count:
            msg = f"{where}: {name} has {len(values)} entries, input_lens {count}; the file is damaged"
            raise InputError(msg)
    if "output_lens" not in lists:
        msg = f"{where}: output_lens is empty, input_lens has {count} entries; the file is damaged"
        raise InputError(msg)
    return lists


def _starts(
    result: Mapping[str, Any], lists: Mapping[str, list[Any]], observation: Observation, where: str
) -> pl.Series:
    """When each request was sent; older versions do not say, which only an all-at-once load survives."""
    limit = result.get("max_concurrency")
    if isinstance(limit, int):
        observation.notes.append(
            f"{observation.file}: the client kept at most {limit} requests in flight; replay with --max-concurrency {limit} to let "
            "arrivals follow completions"
        )
    if "start_times" in lists:
        return _seconds(lists["start_times"])
    count = len(lists["input_lens"])
    if limit is None and str(result.get("request_rate", "inf")) == "inf":
        if count:
            observation.notes.append(
                f"{observation.file}: it has no start_times; the client sent everything at once, so all arrive at 0"
            )
        return pl.Series([0], dtype=pl.Int64).new_from_index(0, count)
    msg = f"{where}: no start_times (an older vLLM), so when each request was sent is unknown; {_HINT} of a newer one, or give the server's log"
    raise InputError(msg)


def _seconds(values: list[Any]) -> pl.Series:
    numbers = [
        float(value) if isinstance(value, int | float) and abs(value) < _MOST_SECONDS else None for value in values
    ]
    return to_ns(pl.Series(numbers, dtype=pl.Float64), "s")


def _counts(values: list[Any]) -> pl.Series:
    whole = [
        int(value) if isinstance(value, int | float) and 0 <= value < _MOST_TOKENS and value == int(value) else None
        for value in values
    ]
    return pl.Series(whole, dtype=pl.Int64)


def _reasons(lists: Mapping[str, list[Any]], count: int) -> pl.Series:
    errors = lists.get("errors", [None] * count)
    failed = [bool(error) or output == 0 for error, output in zip(errors, lists["output_lens"], strict=True)]
    return pl.Series(["error" if each else None for each in failed], dtype=pl.String)


def _gaps(itls: list[Any]) -> tuple[pl.Series, pl.Series]:
    """The gaps between tokens as lists of ns, and their sum; a request without a list has neither."""
    lists = [gaps if isinstance(gaps, list) else None for gaps in itls]
    flat = _seconds(list(chain.from_iterable(gaps or () for gaps in lists)))
    offsets = [0]
    for gaps in lists:
        offsets.append(offsets[-1] + len(gaps or ()))
    mask = pa.array([gaps is None for gaps in lists], type=pa.bool_())
    arrow = pa.LargeListArray.from_arrays(pa.array(offsets, type=pa.int64()), flat.to_arrow(), mask=mask)
    series = pl.Series(pl.from_arrow(arrow), dtype=pl.List(pl.Int64))
    return series, series.list.sum()


def _usable(frame: pl.DataFrame, observation: Observation, where: str, *, strict: bool) -> pl.DataFrame:
    account = observation.accounting
    before = account.read
    account.read += frame.height
    failed = pl.col("finish_reason").is_not_null()
    lacks_length = pl.any_horizontal(pl.col("num_prompt_tokens", "num_output_tokens").is_null())
    lacks = pl.col("arrival_ns").is_null() | (~failed & lacks_length)
    bad = frame.select(lacks.arg_true())[:, 0].to_list()
    if bad:
        reason = "a start time or length that is no number"
        if strict:
            msg = f"{where}: request {bad[0] + 1}: {reason}; --strict refuses it"
            raise InputError(msg)
        observation.skipped[reason] = observation.skipped.get(reason, 0) + len(bad)
        for index in bad:
            account.add_unreadable(before + index + 1)
    account.understood += frame.height - len(bad)
    return frame.filter(~lacks) if bad else frame


def _check_totals(result: Mapping[str, Any], frame: pl.DataFrame, observation: Observation) -> None:
    failed = frame.height - frame["finish_reason"].null_count()
    for name, found in (("completed", frame.height - failed), ("failed", failed)):
        said = result.get(name)
        if isinstance(said, int) and said != found:
            observation.notes.append(f"{observation.file}: it says {said} {name}, its lists hold {found}")
    if failed:
        observation.notes.append(
            f"{observation.file}: {failed} requests failed; they keep their arrival and have no latencies"
        )


def _config(result: Mapping[str, Any], observation: Observation) -> dict[str, ConfigValue]:
    model = result.get("model_id")
    if not isinstance(model, str) or not model:
        return {}
    # What the client asked for: a server's log knows better.
    return {"model": setting_value("model", model, "inferred", observation.file)}


SOURCE: Final = Source("bench-serve", "result of vllm bench serve --save-result --save-detailed (JSON)", detects, read)
