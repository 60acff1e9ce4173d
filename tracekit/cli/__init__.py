"""The command line: bodies of a few lines over the library."""
