"""Recordings of real vLLM schedulers against the model: the same workload step by step, every field of every step."""

from tracekit.conform.compare import conform
from tracekit.conform.drivers import simulate
from tracekit.conform.report import CaseResult, ConformReport, Difference

__all__ = ["CaseResult", "ConformReport", "Difference", "conform", "simulate"]
