"""From batches of foreign rows to the rows that can be used, every other one counted by its reason."""

from collections import Counter
from collections.abc import Iterator

import polars as pl

from tracekit.errors import InputError
from tracekit.sources.observation import Observation
from tracekit.sources.table_read import ROW
from tracekit.sources.table_rows import BLANK, REASON, Converter

_KEPT_NUMBERS = 10


def good_rows(
    batched: Iterator[pl.DataFrame], converter: Converter, observation: Observation, *, strict: bool
) -> Iterator[pl.DataFrame]:
    """Canonical columns of the rows that can be used; the others are counted in the observation by reason.

    Raises ``InputError`` under ``strict`` for the first row that is refused.
    """
    account = observation.accounting
    for batch in batched:
        frame = converter.convert(batch)
        refused = frame.filter(pl.col(REASON).is_not_null()).select(ROW, REASON)
        for reason, count in Counter(refused[REASON].to_list()).items():
            observation.skipped[reason] = observation.skipped.get(reason, 0) + count
        is_blank = refused[REASON] == BLANK
        account.other += int(is_blank.sum())
        bad = refused.filter(~is_blank)
        if strict and bad.height:
            number, reason = bad.row(0)
            msg = f"{converter.where}: row {number}: {reason}; --strict refuses it"
            raise InputError(msg)
        for number in bad[ROW].head(_KEPT_NUMBERS).to_list():
            account.add_unreadable(number)
        account.unreadable += max(bad.height - _KEPT_NUMBERS, 0)
        account.understood += frame.height - refused.height
        account.unreadable_at.sort()
        yield frame.filter(pl.col(REASON).is_null()).drop(ROW, REASON)


def refuse_nothing_usable(observation: Observation, where: str) -> None:
    """Raise ``InputError`` when there were rows and every one was refused: the reading is wrong, not the rows."""
    account = observation.accounting
    if account.unreadable and not account.understood:
        reasons = "; ".join(reason for reason in observation.skipped if reason != BLANK) or "no row can be parsed"
        msg = (
            f"{where}: none of {account.read} rows can be used ({reasons}); check the --column options and their units"
        )
        raise InputError(msg)
