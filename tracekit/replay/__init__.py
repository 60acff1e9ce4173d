"""Replay: the recorded arrivals through the scheduler model on a modelled clock."""
