"""How fast a run's memory grows from epoch to epoch, told from the noise between two epochs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

LEAST_EPOCHS = 3
_MOST_POINTS = 100
"""Of a long series, evenly spaced: pairs grow with the square, and a hundred points tell a slope as well."""


def growth_bytes(series: Sequence[int]) -> int | None:
    """Bytes an epoch by which a series of one reading an epoch grows; None under three epochs.

    The first epoch is left out, since it fills caches that are filled once. Of the others it is the median slope of
    all pairs (Theil and Sen), which up to 29 % of odd readings do not move. Memory that shrinks does not grow: 0.

    Args:
        series: resident memory at the end of each epoch, in order.
    """
    if len(series) < LEAST_EPOCHS:
        return None
    step = -(-(len(series) - 1) // _MOST_POINTS)
    points = list(enumerate(series))[1::step]
    if len(points) < 2:
        return None
    slopes = [(after - before) / (later - earlier) for (earlier, before), (later, after) in combinations(points, 2)]
    return max(round(statistics.median(slopes)), 0)
