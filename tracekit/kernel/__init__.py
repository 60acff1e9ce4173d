"""The model's decisions, compiled: the same scheduler on arrays, for millions of requests (the only room with numba)."""
