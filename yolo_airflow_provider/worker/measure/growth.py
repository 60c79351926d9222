"""How fast a run's memory grows from epoch to epoch, told from the noise between two epochs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations

LEAST_EPOCHS = 8
"""Fewer cannot pass for growth: seven readings that all rise are three standard deviations of chance."""

_LEAST_DEVIATIONS = 3.0
_MOST_POINTS = 100
"""Of a long series, evenly spaced: pairs grow with the square, and a hundred points tell a slope as well."""


def growth_bytes(series: Sequence[int]) -> int | None:
    """Bytes an epoch by which a series of one reading an epoch grows; None under `LEAST_EPOCHS`.

    The first epoch is left out, since it fills caches that are filled once. Of the others it is the median slope of
    all pairs (Theil and Sen), which up to 29 % of odd readings do not move. 0 where they do not rise beyond noise:
    readings that go up and down around one level have a positive median slope in every other run.

    Args:
        series: resident memory at the end of each epoch, in order.
    """
    if len(series) < LEAST_EPOCHS:
        return None
    step = -(-(len(series) - 1) // _MOST_POINTS)
    points = list(enumerate(series))[1::step]
    slopes = [(after - before) / (later - earlier) for (earlier, before), (later, after) in combinations(points, 2)]
    return round(statistics.median(slopes)) if _rises(slopes, len(points)) else 0


def _rises(slopes: Sequence[float], points: int) -> bool:
    """Whether three quarters of all pairs rise, and by three deviations more of them than chance has it.

    The second is the test of Mann and Kendall. It alone takes one step up for growth, the first alone takes few points.
    """
    if statistics.quantiles(slopes, n=4)[0] <= 0:
        return False
    more_up = sum((slope > 0) - (slope < 0) for slope in slopes)
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    return (more_up - 1) / deviation > _LEAST_DEVIATIONS
