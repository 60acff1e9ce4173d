"""Generate ``schemas/*.json`` and the data dictionary from the declared tables: ``python -m tracekit.schema``."""

import sys

from tracekit.schema.documents import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
