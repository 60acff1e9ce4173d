"""vLLM server logs, V0 0.2.7 to V1 0.33, plain or wrapped by docker, kubernetes, journald, Ray or JSON.

What fills which table:

- ``engine_stats``: a row for each periodic statistics line. V0's preemption warnings bound ``num_preemptions`` on the
  rows behind them.
- ``steps``: a row for each iteration line; ``start_ns`` is right to a second (see ``tables.steps``).
- ``requests``: a row for each request that the log names. Arrivals are whole seconds; within one the order of lines is
  kept by a nanosecond each. Ids are vLLM's own without the suffix of 0.33.
- ``events``: start, restart, ready, access (HTTP status), abort, preemption_warning (cumulative count), prompt_too_long
  (tokens), warning, error, traceback, stall, startup_failed, engine_dead. A line without a time has that of the record
  before it. Events of other starts than the run's are kept, their access lines are not.

Lines are *understood* when they are a record of vLLM's or uvicorn's (whether or not a table takes something from it) or
a wrapped part of one, *other* when they are foreign (progress bars, tracebacks, blank lines), *unreadable* when they
start like a shape that fills a table and go on otherwise.

A piece of the file goes through ``lines`` (bytes to lines), ``block`` (compiled expressions settle nearly all lines) and
``reader`` (the few others, one by one); ``observe`` then chooses the start that is the run and makes the tables.
"""

from typing import Final

from tracekit.sources.observation import Source
from tracekit.sources.vllm_log.detect import detects
from tracekit.sources.vllm_log.observe import Survey, read, survey

__all__ = ["SOURCE", "Survey", "survey"]

SOURCE: Final = Source("vllm-log", "the log of a vLLM server or of offline inference", detects, read)
