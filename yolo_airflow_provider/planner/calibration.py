"""Fitting the constants of `need` to measured trainings, and learning from history what they do not know.

Two steps. `fit` finds the constants for many trainings of many models: least absolute relative errors, so that a run
of which something odd is told bends nothing. `shrunk` then corrects groups of relatives (a family, a device) by what
their residuals have in common, each the less the fewer there are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from yolo_airflow_provider.planner.need import (
    AFTER_VALIDATION,
    GPU,
    Constants,
    Workload,
    family,
    needed,
    parts,
)

PRIOR_RUNS = 8.0
"""As many runs weigh as much as knowing nothing of a group: the spread of one run is about 2.8 times that between
groups (cross-validated on reported runs)."""
LARGEST_RESIDUAL = 0.3
"""A residual beyond this (natural logarithm of measured over predicted) counts as this: one odd run moves a group
by no more than 0.3 / 9."""
_TOLERANCE = 0.05
"""Relative errors below this count as their square: no two runs are more alike."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Point:
    """A measured training.

    Attributes:
        work: what ran.
        batch: images a step.
        measured_bytes: reserved by torch's allocator (on `cpu`: of the process).
        later: read after the first validation, when the allocator has come to hold more.
    """

    work: Workload
    batch: int
    measured_bytes: float
    later: bool = False

    @property
    def first_epoch_bytes(self) -> float:
        """What it would have been at the end of the first epoch."""
        return self.measured_bytes / (AFTER_VALIDATION if self.later else 1.0)


def fit(points: Sequence[Point], start: Constants = GPU) -> Constants:
    """Constants with the least absolute relative errors on these points; the families' corrections with them.

    The assigner and the optimizer's moments are not fitted: points are taken less what these are expected to take.

    Args:
        points: of trainings that fit, at least as many as there are constants.
        start: whose bound is kept.
    """
    import numpy as np

    rows, targets = [], []
    for point in points:
        p = parts(point.work)
        rows.append([2.0**30, point.batch * p.activations, p.fixed, point.batch * p.loss])
        known = point.batch * p.assigner + p.moments
        targets.append(max(point.first_epoch_bytes - known, 0.1 * point.first_epoch_bytes))
    relative = np.array(rows) / np.array(targets)[:, None]
    solution = _least_absolute(relative)
    found = replace(
        start,
        base_bytes=float(solution[0]) * 2.0**30,
        activations=float(solution[1]),
        fixed=float(solution[2]),
        loss=float(solution[3]),
        families={},
    )
    return replace(found, families=families(points, found))


def families(points: Iterable[Point], constants: Constants) -> dict[str, float]:
    """What each family has in common beyond the constants."""
    return shrunk(points, lambda point: family(point.work.architecture.name), lambda point: residual(point, constants))


def residual(point: Point, constants: Constants) -> float:
    """Natural logarithm of measured over predicted."""
    return math.log(point.first_epoch_bytes / needed(point.work, point.batch, constants).reserved)


def shrunk(
    points: Iterable[Point], group: Callable[[Point], K], residual_of: Callable[[Point], float]
) -> dict[K, float]:
    """Mean residual of each group, drawn towards zero as far as its runs are few.

    Empirical Bayes for a normal mean with known variances: n / (n + `PRIOR_RUNS`) of the mean (Gelman and others,
    Bayesian Data Analysis, 5.4), on residuals that are cut off at `LARGEST_RESIDUAL`.
    """
    found: defaultdict[K, list[float]] = defaultdict(list)
    for point in points:
        found[group(point)].append(max(-LARGEST_RESIDUAL, min(LARGEST_RESIDUAL, residual_of(point))))
    return {name: sum(values) / (len(values) + PRIOR_RUNS) for name, values in found.items()}


def learned(points: Sequence[Point], constants: Constants) -> Constants:
    """Constants corrected by the history of one kind of device: by what all its runs have in common, then by family.

    Args:
        points: trainings on that kind of device, of any model.
        constants: that predicted them.
    """
    everywhere = shrunk(points, lambda _: "", lambda point: residual(point, constants)).get("", 0.0)
    names: Mapping[str, float] = constants.families
    beyond = shrunk(
        points,
        lambda point: family(point.work.architecture.name),
        lambda point: residual(point, constants) - everywhere,
    )
    known = {*names, *beyond}
    return replace(
        constants,
        families={name: everywhere + names.get(name, constants.common) + beyond.get(name, 0.0) for name in known},
        common=constants.common + everywhere,
    )


def _least_absolute(relative: object) -> Sequence[float]:
    """Solve relative @ x = 1 for non-negative x with the least absolute logarithms, by reweighted least squares."""
    import numpy as np

    matrix = np.asarray(relative, dtype=float)
    kept = list(range(matrix.shape[1]))
    while True:
        used = matrix[:, kept]
        solution = np.linalg.lstsq(used, np.ones(len(used)), rcond=None)[0]
        for _ in range(200):
            value = used @ solution
            error = np.abs(np.log(np.maximum(value, 1e-3)))
            weight = np.sqrt(1.0 / np.maximum(error, _TOLERANCE) / np.maximum(value, 0.2))
            better = np.linalg.lstsq(used * weight[:, None], weight, rcond=None)[0]
            if float(np.max(np.abs(better - solution))) < 1e-6:
                break
            solution = better
        if (solution >= 0).all():
            break
        del kept[int(np.argmin(solution))]
    whole = [0.0] * matrix.shape[1]
    for place, value in zip(kept, solution, strict=True):
        whole[place] = float(value)
    return whole
