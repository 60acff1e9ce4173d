"""``python -m tracekit`` is the command line."""

from tracekit.cli.main import main

if __name__ == "__main__":
    main()
