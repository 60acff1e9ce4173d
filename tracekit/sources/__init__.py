"""Sources: one module a foreign format, each from raw material to an Observation."""
