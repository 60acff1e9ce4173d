"""The periodic samples of a simulated engine, booked by the rules by which the replayed version prints them.

Running, waiting and KV usage are the snapshot after the last step before the sample; throughputs are averages over
the interval. V1 books the whole prompt at the first token, from 0.17 without its cached tokens
(``LoggingStatLogger``, ``vllm/v1/metrics/loggers.py``).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from tracekit.model.prefix_stats import PrefixCacheStats
from tracekit.model.request import Request
from tracekit.model.scheduler import Scheduler
from tracekit.model.schedulers import AnyScheduler
from tracekit.replay.record import Recording

INTERVAL_NS: Final = 10_000_000_000

_RECENT_REQUESTS: Final = 1000


class RecentHits:
    """The printed prefix hit rate: tokens hit over tokens queried by the last 1,000 requests (``CachingMetrics``)."""

    def __init__(self) -> None:
        self._seen = (0, 0, 0)
        self._recent: deque[tuple[int, int, int]] = deque()
        self._totals = (0, 0, 0)

    def observe(self, stats: PrefixCacheStats) -> None:
        """Book what was counted since the last step."""
        now = (stats.requests, stats.queries, stats.hits)
        new = (now[0] - self._seen[0], now[1] - self._seen[1], now[2] - self._seen[2])
        self._seen = now
        if not new[0]:
            return
        self._recent.append(new)
        requests, queries, hits = (total + part for total, part in zip(self._totals, new, strict=True))
        while len(self._recent) > 1 and requests > _RECENT_REQUESTS:
            old = self._recent.popleft()
            requests, queries, hits = requests - old[0], queries - old[1], hits - old[2]
        self._totals = (requests, queries, hits)

    @property
    def rate(self) -> float | None:
        """The share, null before the first query."""
        return self._totals[2] / self._totals[1] if self._totals[1] else None


class Sampler:
    """Emits one ``engine_stats`` row for each instant that the clock passes.

    ``sample_at``: the instants of an observed run, in order; without any, every 10 s. As vLLM does, a sample is left
    out when nothing was computed in its interval and in the one before.
    """

    def __init__(self, engine: int, recording: Recording, sample_at: Sequence[int], *, without_cached: bool) -> None:
        self._engine = engine
        self._without_cached = without_cached
        self._recording = recording
        self._sample_at = sample_at
        self._position = 0
        self._last_ns = sample_at[0] - INTERVAL_NS if sample_at else 0
        self._state = (0, 0, 0.0)
        self._hits = RecentHits()
        self._num_swapped: int | None = None
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_preemptions = 0
        self._was_idle = True

    def book_prompt(self, request: Request) -> None:
        """Book a prompt whose first token has come out."""
        cached = request.num_cached_tokens if self._without_cached else 0
        self._num_prompt_tokens += request.num_prompt_tokens - (cached or 0)

    def book_tokens(self, count: int) -> None:
        """Book output tokens."""
        self._num_generated_tokens += count

    def book_preemptions(self, count: int) -> None:
        """Book preemptions; the samples carry their cumulative number."""
        self._num_preemptions += count

    def after_step(self, scheduler: AnyScheduler) -> None:
        """Take the snapshot that the next samples show."""
        self._state = (len(scheduler.running), len(scheduler.waiting), scheduler.kv_cache.usage)
        if isinstance(scheduler, Scheduler):
            self._hits.observe(scheduler.prefix_cache)
        else:
            self._num_swapped = len(scheduler.swapped)

    def advance(self, now_ns: int) -> None:
        """Emit the samples that lie before ``now_ns``."""
        if not self._sample_at and self._was_idle and not self._num_prompt_tokens and not self._num_generated_tokens:
            # Nothing would be printed over a long silence: step over it at once.
            self._last_ns += max(0, (now_ns - self._last_ns - 1) // INTERVAL_NS) * INTERVAL_NS
        while (at_ns := self._next_ns()) is not None and at_ns < now_ns:
            self._emit(at_ns)

    def finish(self, now_ns: int) -> None:
        """Emit what is left up to the end of the engine's work, and the observed instants after it."""
        self.advance(max(now_ns, self._sample_at[-1] + 1) if self._sample_at else now_ns)

    def _next_ns(self) -> int | None:
        if not self._sample_at:
            return self._last_ns + INTERVAL_NS
        return self._sample_at[self._position] if self._position < len(self._sample_at) else None

    def _emit(self, at_ns: int) -> None:
        seconds = (at_ns - self._last_ns) / 1e9
        is_idle = not self._num_prompt_tokens and not self._num_generated_tokens
        if seconds > 0 and not (is_idle and self._was_idle):
            running, waiting, usage = self._state
            self._recording.engine_stats.append(
                {
                    "time_ns": at_ns,
                    "engine": self._engine,
                    "prompt_tps": self._num_prompt_tokens / seconds,
                    "generation_tps": self._num_generated_tokens / seconds,
                    "num_running_reqs": running,
                    "num_waiting_reqs": waiting,
                    "num_swapped_reqs": self._num_swapped,
                    "kv_cache_usage": usage,
                    "prefix_hit_rate": self._hits.rate,
                    "num_preemptions": self._num_preemptions,
                    "source": "replay",
                }
            )
        self._was_idle = is_idle
        self._num_prompt_tokens = self._num_generated_tokens = 0
        self._last_ns = at_ns
        self._position += 1
