"""Chat completions, which stay in the API server for longer: a template makes a prompt of their messages.

Their ids say what they are (``chatcmpl-``). They are replayed as if sent that much later, and get their own arrival
back afterwards; a request that a client's bound held back gets one that lies so much before its sending.
"""

from typing import Final

import polars as pl

CHAT_ID: Final = "chatcmpl-"
"""How vLLM begins the id of a chat completion, as OpenAI does."""


def is_chat(column: str = "request_id") -> pl.Expr:
    """Whether a request went to the chat endpoint, as far as its id tells."""
    return pl.col(column).str.starts_with(CHAT_ID)


def held_in_frontend(requests: pl.DataFrame, chat_ns: int) -> pl.DataFrame:
    """The requests with chat completions sent ``chat_ns`` later."""
    return _moved(requests, chat_ns, "arrival_ns", "think_ns")


def as_sent(requests: pl.DataFrame, chat_ns: int) -> pl.DataFrame:
    """The replayed requests with the arrivals that they had before ``held_in_frontend``, in their order."""
    moved = _moved(requests, -chat_ns, "arrival_ns")
    return moved.sort("arrival_ns", "request_id", nulls_last=True) if chat_ns else moved


def _moved(requests: pl.DataFrame, by_ns: int, *columns: str) -> pl.DataFrame:
    more = pl.when(is_chat()).then(by_ns).otherwise(0)
    return requests.with_columns(pl.col(name) + more for name in columns) if by_ns else requests
