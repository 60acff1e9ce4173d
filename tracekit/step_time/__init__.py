"""How long a step takes on the recorded GPU, from what the step computes."""
