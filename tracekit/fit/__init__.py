"""Calibrate the step time on observed runs: from their steps' durations, else end to end by replaying."""
