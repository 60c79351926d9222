"""Two things measured in turns (A B B A ..), and what to make of the numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def turns(names: tuple[str, str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, name) of each run. Every second round is turned around, so that a drift favours neither."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            yield number, name


def measure_in_turns(
    names: tuple[str, str], rounds: int, run: Callable[[str], _T], done: Callable[[int, str, _T], None]
) -> tuple[list[_T], list[_T]]:
    """Run both in turns; the n-th elements of the lists were neighbours in time.

    Args:
        names: of the two sides.
        rounds: runs a side.
        run: runs a side by its name and returns what was measured.
        done: told about each run: its round, its side, what was measured.
    """
    found: dict[str, list[_T]] = {name: [] for name in names}
    for number, name in turns(names, rounds):
        found[name].append(run(name))
        done(number, name, found[name][-1])
    return found[names[0]], found[names[1]]


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Each side's median first."""
    return statistics.median(ours) / statistics.median(theirs)


def ratios_of_pairs(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Each run by its neighbour in time; both saw the same machine.

    Raises:
        ValueError: a run has no neighbour.
    """
    return [one / other for one, other in zip(ours, theirs, strict=True)]
