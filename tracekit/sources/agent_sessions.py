"""Agentic coding sessions: one JSON object a conversation, its requests with local block ids, sub-agents nested.

Ids of blocks mean something within their conversation only, so they are told apart by it. A turn follows the one before
it once that has ended and its think time is over; a sub-agent's conversation has its own turns and its own ids.
"""

from typing import Any, Final

from tracekit.hashing import chain_ids, mix, opaque_id
from tracekit.sources.block_hashes import stored_block_size
from tracekit.sources.json_rows import RequestRows, count, documents, inner, name_of, nanoseconds
from tracekit.sources.observation import Material, Observation, Options, Source

_DEFAULT_BLOCK: Final = 64
_KEYS: Final = (b'"hash_id_scope"', b'"requests"', b'"block_size"')


def detects(material: Material) -> bool:
    """A JSON object that starts with a conversation's block size, scope and requests."""
    head = material.head.lstrip(b"\xef\xbb\xbf \r\n\t")
    return head.startswith(b"{") and all(key in head[:4096] for key in _KEYS) and b'"t"' in head


def read(material: Material, options: Options) -> Observation:
    """Read every turn of every conversation; instants count from each conversation's start, which is unknown.

    Several conversations therefore all begin at 0; replay with ``--closed-loop`` to let turns follow each other.
    """
    rows = RequestRows.of(material, options, "agent-sessions", "relative")
    sessions = number = 0
    for path in material.files:
        for line, document in documents(path):
            if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
                rows.refuse(line, "no conversation with requests")
                continue
            sessions += 1
            number = _conversation(
                document, rows, options, number, name_of(document.get("id")) or f"session-{sessions}"
            )
    if sessions > 1:
        rows.observation.notes.append(
            f"{material.name}: {sessions} conversations, each from its own start, all begin at 0"
        )
    rows.observation.notes.append(
        f"{material.name}: later turns wait for the turn before; replay with --closed-loop to let them follow it"
    )
    options.progress(material.name, 1, 1)
    return rows.done()


def _conversation(document: dict[str, Any], rows: RequestRows, options: Options, number: int, name: str) -> int:
    size = count(document.get("block_size")) or _DEFAULT_BLOCK
    stored = stored_block_size(size, options.config)
    rows.observation.hash_block_size = stored
    # A scope of "global" says that equal ids are equal blocks in all conversations.
    scope = 0 if document.get("hash_id_scope") == "global" else opaque_id(name)
    pending: list[tuple[str, int, list[Any]]] = [(name, 0, document["requests"])]
    while pending:
        session, start, turns = pending.pop(0)
        own = mix(scope, opaque_id(session)) if scope and session != name else scope
        parent: str | None = None
        for turn in turns:
            number += 1
            begun = nanoseconds(inner(turn, "t"), "s")
            nested = inner(turn, "requests")
            if isinstance(nested, list):
                rows.other("sub-agent (its own requests are read)")
                pending.append(
                    (f"{session}/{name_of(inner(turn, 'agent_id')) or number}", start + (begun or 0), nested)
                )
                continue
            row = _row(turn, session, number, None if begun is None else start + begun)
            ids = inner(turn, "hash_ids")
            if isinstance(ids, list) and row["num_prompt_tokens"] is not None:
                named = [mix(own, opaque_id(value)) for value in ids] if own else ids
                row["block_hashes"] = chain_ids(named, size, stored, row["num_prompt_tokens"])
            if parent is not None:
                row["parent_request_id"] = parent
                row["think_ns"] = nanoseconds(inner(turn, "think_time"), "s") or 0
            before = len(rows.rows)
            rows.add(number, row)
            parent = row["request_id"] if len(rows.rows) > before else parent
    return number


def _row(turn: object, session: str, number: int, arrived: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "request_id": f"{session}:{number}",
        "session_id": session,
        "arrival_ns": arrived,
        "num_prompt_tokens": count(inner(turn, "in")),
        "num_output_tokens": count(inner(turn, "out")),
    }
    to_first, lasted = nanoseconds(inner(turn, "ttft"), "s"), nanoseconds(inner(turn, "api_time"), "s")
    if arrived is not None and lasted is not None:
        row["finished_ns"] = arrived + lasted
        if to_first is not None and to_first <= lasted:
            row["first_token_ns"], row["last_token_ns"] = arrived + to_first, arrived + lasted
    return row


SOURCE: Final = Source(
    "agent-sessions", "agentic coding sessions (JSON with requests, block_size, hash_id_scope)", detects, read
)
