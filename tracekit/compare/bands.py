"""How far a percentile may be off by chance: bootstrap bands, drawn with a fixed seed.

The percentile of a resample with replacement is an order statistic of the sample: its rank over n follows a beta
distribution, so a band costs the draws of ranks and not resamples of the data. Requests are taken as independent;
under overload neighbours wait together, and the true band is wider. A band is that of one run's figure: two runs of the
same requests move together, and their error is better known than either figure.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

DRAWS: Final = 2000
SEED: Final = 0
COVERAGE: Final = 0.95
_FEWEST: Final = 10
_WIDE: Final = 0.05
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

Values = np.ndarray[Any, np.dtype[np.float64]]


class Band(NamedTuple):
    """The interval that holds 95 % of the draws."""

    low: float
    high: float


class Bounds(NamedTuple):
    """The bucket in which a figure of a histogram lies; ``high`` null: no upper edge."""

    low: float
    high: float | None

    @property
    def is_wide(self) -> bool:
        """Whether a figure between them says little: further apart than a twentieth of the upper one."""
        return self.high is None or self.high - self.low > _WIDE * self.high


def bounds_of(low: float | None, high: float | None) -> Bounds | None:
    """The bounds as a query gives them; null for an exact figure."""
    return None if low is None else Bounds(low, high)


def band(metric: str, stat: str, values: Mapping[str, Values]) -> Band | None:
    """The band of one percentile of one run; null for what is no percentile of requests, and below ten values.

    ``values``: sorted, by metric. Drawn the same way every time.
    """
    share = _SHARES.get(stat)
    count = len(values.get(metric, ()))
    if share is None or count < _FEWEST:
        return None
    generator = np.random.default_rng([SEED, zlib.crc32(f"{metric}.{stat}".encode())])
    rank = share * (count - 1) + 1
    places = (generator.beta(rank, count + 1 - rank, DRAWS) * count).astype(np.int64)
    drawn = values[metric][np.minimum(places, count - 1)]
    low, high = np.quantile(drawn, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Band(float(low), float(high))
