"""The tables of a run, declared once, and the only door to Parquet."""
