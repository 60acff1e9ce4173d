from tracekit.hashing import *  # noqa
