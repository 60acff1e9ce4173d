"""What tracekit raises: one base error, a few children. The command line catches the base once and exits 2."""


class TracekitError(Exception):
    """The base of every error that tracekit raises on purpose; the message says where, what and what to do."""


class InputError(TracekitError):
    """A source, trace or run cannot be read as what it claims to be."""


class ConfigError(TracekitError):
    """A setting is unknown, impossible, missing, or one that vLLM itself would refuse."""


class OutputExistsError(TracekitError):
    """The output exists already and may not be replaced."""
