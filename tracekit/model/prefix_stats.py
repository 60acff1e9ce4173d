"""Prefix-cache queries and hits as the version of the rules counts them (what the log's hit rate is made of)."""

from dataclasses import dataclass

from tracekit.model.request import Request
from tracekit.model.rules import PrefixStatsRules


class PrefixCacheStats:
    """Mirrors ``PrefixCacheStats`` (``vllm/v1/metrics/stats.py``, 0.33.0), summed since the start.

    Numbers are tokens, full blocks up to 0.8. Counts of preempted requests are apart from 0.11.1, else zero.
    """

    def __init__(self, rules: PrefixStatsRules, block_size: int) -> None:
        self._rules = rules
        self._block_size = block_size
        self.requests = 0
        self.queries = 0
        self.hits = 0
        self.preempted_requests = 0
        self.preempted_queries = 0
        self.preempted_hits = 0

    def looked_up(self, request: Request, num_hit_tokens: int) -> None:
        """A request was looked up at the head of the queue (``get_computed_blocks``)."""
        if self._rules.counts == "lookups":
            self._record(request, num_hit_tokens)

    def admitted(self, request: Request, num_hit_tokens: int) -> None:
        """A request was admitted (``record_prefix_cache_stats``, from 0.27.0)."""
        if self._rules.counts == "admissions":
            self._record(request, num_hit_tokens)

    def snapshot(self) -> tuple[int, int, int, int, int, int]:
        """The six counts: requests, queries, hits, and the same of preempted requests."""
        return (
            self.requests,
            self.queries,
            self.hits,
            self.preempted_requests,
            self.preempted_queries,
            self.preempted_hits,
        )

    def _record(self, request: Request, num_hit_tokens: int) -> None:
        queries, hits = request.num_tokens, num_hit_tokens
        if self._rules.unit == "blocks":
            queries, hits = (request.num_tokens - 1) // self._block_size, num_hit_tokens // self._block_size
        if self._rules.preempted_apart and request.num_preemptions:
            self.preempted_requests += 1
            self.preempted_queries += queries
            self.preempted_hits += hits
        else:
            self.requests += 1
            self.queries += queries
            self.hits += hits


@dataclass(frozen=True)
class BlockQueries:
    """V0's counts (``CacheMetricData``, ``vllm/core/block/common.py``, 0.6.6): blocks asked for and found so far.

    V0's printed rate covers the whole run, not the last requests, so none are counted.
    """

    queries: int
    hits: int
    requests: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
