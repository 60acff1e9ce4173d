"""Runs side by side in SQL: the only door to DuckDB, named queries, and the comparison of two runs."""
