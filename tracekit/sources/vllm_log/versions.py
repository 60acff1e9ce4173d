"""Which vLLM version printed a line, from the place in its source that the line names.

A hint, used only when no line states the version: forks and builds between releases differ.
"""

from typing import Final

_STATS: Final = {
    "llm_engine.py:706": ("0.2.7", "0.3.0"),
    "metrics.py:341": ("0.4.3",),
    "metrics.py:351": ("0.5.5",),
    "metrics.py:349": ("0.6.3.post1",),
    "metrics.py:467": ("0.6.6.post1",),
    "metrics.py:455": ("0.7.3",),
    "metrics.py:486": ("0.8.5.post1",),
    "metrics.py:417": ("0.9.2",),
    "metrics.py:398": ("0.10.2",),
    "loggers.py:78": ("0.7.3",),
    "loggers.py:87": ("0.8.3",),
    "loggers.py:111": ("0.8.5.post1",),
    "loggers.py:118": ("0.9.2",),
    "loggers.py:122": ("0.10.0",),
    "loggers.py:123": ("0.10.1", "0.10.1.1", "0.10.2"),
    "loggers.py:127": ("0.11.0",),
    "loggers.py:208": ("0.11.1rc3",),
    "loggers.py:236": ("0.11.2", "0.12.0"),
    "loggers.py:248": ("0.13.0",),
    "loggers.py:257": ("0.14.0", "0.15.1"),
    "loggers.py:259": ("0.17.0", "0.17.1", "0.18.1", "0.19.0"),
    "loggers.py:271": ("0.20.2", "0.22.0", "0.22.1"),
    "loggers.py:273": ("0.25.1",),
    "loggers.py:310": ("0.26.1rc1", "0.29.0"),
    "loggers.py:335": ("0.33.0",),
    "loggers.py:340": ("0.33.0",),
}
_KV_SIZE: Final = {
    "kv_cache_utils.py:578": ("0.8.3",),
    "kv_cache_utils.py:634": ("0.8.5", "0.8.5.post1"),
    "kv_cache_utils.py:716": ("0.9.2",),
    "kv_cache_utils.py:833": ("0.10.0",),
    "kv_cache_utils.py:849": ("0.10.1.1",),
    "kv_cache_utils.py:1013": ("0.10.1.1",),
    "kv_cache_utils.py:864": ("0.10.2",),
    "kv_cache_utils.py:1087": ("0.11.0",),
    "kv_cache_utils.py:1229": ("0.11.1rc3", "0.11.2"),
    "kv_cache_utils.py:1286": ("0.12.0",),
    "kv_cache_utils.py:1291": ("0.13.0",),
    "kv_cache_utils.py:1307": ("0.15.1", "0.16.0"),
    "kv_cache_utils.py:1314": ("0.17.0", "0.17.1"),
    "kv_cache_utils.py:1316": ("0.18.1",),
    "kv_cache_utils.py:1319": ("0.19.0",),
    "kv_cache_utils.py:1708": ("0.20.2",),
    "kv_cache_utils.py:1733": ("0.22.0", "0.22.1"),
    "kv_cache_utils.py:2146": ("0.25.1",),
    "kv_cache_utils.py:2235": ("0.26.1rc1",),
    "kv_cache_utils.py:2032": ("0.29.0",),
    "kv_cache_utils.py:1147": ("0.33.0",),
}


def guess_version(stats_place: str | None, kv_place: str | None) -> tuple[str, str] | None:
    """The newest version that prints these lines from these places, and the place that tells; None if none is known."""
    by_stats = _STATS.get(_name(stats_place), ())
    by_kv = _KV_SIZE.get(_name(kv_place), ())
    both = [version for version in by_stats if version in by_kv]
    for versions, place in ((both, stats_place), (by_kv, kv_place), (by_stats, stats_place)):
        if versions and place:
            return versions[-1], place
    return None


def _name(place: str | None) -> str:
    return place.rpartition("/")[2] if place else ""
