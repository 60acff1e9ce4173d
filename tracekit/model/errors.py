"""What the model raises about itself."""


class InvariantError(AssertionError):
    """An invariant of the model is broken: a bug in the model, not in its input."""


def require(number: int, holds: object, what: str) -> None:
    """Raise ``InvariantError`` unless the numbered invariant holds."""
    if not holds:
        msg = f"invariant {number}: {what}"
        raise InvariantError(msg)
