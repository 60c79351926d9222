"""The memory model of measured configurations: evidence 1 and 2 of the design.

Training memory of a convolutional network is close to linear in the batch: a fixed part (weights, gradients,
optimizer, EMA, runtime) and a part for each image (activations). A probe measures the line; a whole training lies
above it, because allocators come to hold more over the epochs. The model is the line times that ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from yolo_airflow_provider.planner.evidence import Evidence, Observation, largest_by_batch

PROBE_TO_RUN = 1.11
"""A training's peak over a probe's: reserved memory grows over epochs, median 1.11 of 119 published runs
(docs/decisions/0002-memory-from-measurements.md); on `cpu` 1.12 was measured for yolov8n at 320."""

PROBE_SPREAD = 0.20
"""How far above `PROBE_TO_RUN` times the probe's line a training may lie, as a fraction. The 90th percentile of the
same runs is 1.56 over all cards; under a limit caches are given back before anything fails, which leaves 1.33."""

RUN_SPREAD = 0.08
"""Peak of a repeated identical training around the measured one, as a fraction: epochs of one training differ by up
to 12 % on `cpu` through heap fragmentation, repeated trainings by less than 8 %."""

EXTRAPOLATION_SPREAD = 0.04
"""Added a doubling of the batch beyond the largest one measured."""

LEVER = 1.5
"""Largest over smallest batch from which two trainings make a line. Nearer ones differ by less than a repetition
does, and their slope would be noise."""

RETRY_HEADROOM = 1.05
"""What ran out of memory needed more than it had reached; by at least this is assumed."""

Basis = Literal["measured", "line", "scaled"]


@dataclass(frozen=True)
class Estimate:
    """Predicted peak of device memory, with the interval it is expected in."""

    expected_bytes: int
    low_bytes: int
    high_bytes: int
    basis: Basis


@dataclass(frozen=True)
class Line:
    """Memory is `fixed_bytes + batch * bytes_per_image`; both parts are at least zero."""

    fixed_bytes: float
    bytes_per_image: float

    def at(self, batch: int) -> float:
        """Bytes at a batch."""
        return self.fixed_bytes + batch * self.bytes_per_image


@dataclass(frozen=True)
class MemoryModel:
    """What is known of one configuration's memory.

    Attributes:
        line: through measured points, None with fewer than two batches.
        ratio: training over line; 1 where the line is of trainings.
        spread: interval of the ratio, as a fraction.
        measured: largest peak of a training at each batch.
        single: the one measured point, where there is no line.
        largest_batch: of all that was measured, 0 for none.
        failures: what ran out of memory, by batch.
    """

    line: Line | None
    ratio: float
    spread: float
    measured: Mapping[int, int]
    single: tuple[int, int] | None
    largest_batch: int
    failures: tuple[Observation, ...]

    def estimate(self, batch: int) -> Estimate | None:
        """Predicted peak at a batch, None where nothing is known."""
        if batch in self.measured:
            return self._interval(self._between_measured(batch, 0.0), RUN_SPREAD, "measured", batch)
        if self.line is not None:
            value = self._between_measured(batch, self.line.at(batch) * self.ratio)
            return self._interval(value, self.spread + self._beyond(batch), "line", batch)
        if self.single is not None:
            known_batch, peak = self.single
            # The fixed part is unknown, so it is taken as nothing above the known batch and as all below it: both
            # are upper bounds.
            value = peak * max(1.0, batch / known_batch) * self.ratio
            return self._interval(value, self.spread, "scaled", batch)
        return None

    def known_not_to_fit(self, batch: int, budget_bytes: int | None) -> Observation | None:
        """A failure that rules the batch out: as many images or fewer, on as much memory or more."""
        for failure in self.failures:
            as_large = failure.budget_bytes is None or budget_bytes is None or budget_bytes <= failure.budget_bytes
            if batch >= failure.batch and as_large:
                return failure
        return None

    def _between_measured(self, batch: int, value: float) -> float:
        """Hold a value between the trainings measured at smaller and at larger batches: more images, more memory."""
        below = max((peak for known, peak in self.measured.items() if known <= batch), default=0)
        above = min((max(peak, below) for known, peak in self.measured.items() if known > batch), default=math.inf)
        return max(below, min(value, above))

    def _beyond(self, batch: int) -> float:
        return EXTRAPOLATION_SPREAD * max(0.0, math.log2(batch / self.largest_batch)) if self.largest_batch else 0.0

    def _interval(self, value: float, spread: float, basis: Basis, batch: int) -> Estimate:
        # A failure at this batch or a smaller one is a lower bound of what it takes.
        bound = max((_needed(f) for f in self.failures if f.batch <= batch), default=0.0)
        expected = max(value, bound)
        return Estimate(
            expected_bytes=math.ceil(expected),
            low_bytes=math.floor(max(value * (1 - spread), bound)),
            high_bytes=math.ceil(expected * (1 + spread)),
            basis=basis,
        )


def fit(evidence: Evidence) -> MemoryModel:
    """The memory model that the evidence bears.

    The probe's points make the line, and trainings correct its height. Without a probe, trainings make it where
    their batches lie apart. Failures only ever raise an estimate.
    """
    trained = largest_by_batch(evidence.runs)
    probed = largest_by_batch(evidence.probes)
    ratio, spread, single = PROBE_TO_RUN, PROBE_SPREAD, None
    line = None
    if len(probed) > 1:
        line = _least_squares(probed)
        if trained:
            ratio = median(peak / line.at(batch) for batch, peak in trained.items())
            spread = RUN_SPREAD
    elif trained and max(trained) >= LEVER * min(trained):
        line, ratio, spread = _least_squares(trained), 1.0, RUN_SPREAD
    elif trained:
        # The largest peak at the smallest batch bounds what lies above it.
        single, ratio, spread = (min(trained), max(trained.values())), 1.0, RUN_SPREAD
    elif probed:
        single = next(iter(probed.items()))
    if line is not None:
        # What ran out of memory lies above its budget, so the line must too.
        ratio = max([ratio, *(_needed(f) / line.at(f.batch) for f in evidence.failures if line.at(f.batch) > 0)])
    return MemoryModel(
        line=line,
        ratio=ratio,
        spread=spread,
        measured=trained,
        single=single,
        largest_batch=max([*trained, *probed], default=0),
        failures=tuple(sorted(evidence.failures, key=lambda f: f.batch)),
    )


def _needed(failure: Observation) -> float:
    return RETRY_HEADROOM * max(failure.peak_bytes or 0, failure.budget_bytes or 0)


def _least_squares(peaks: Mapping[int, int]) -> Line:
    """Ordinary least squares with a slope and an intercept of at least zero (memory is never negative)."""
    batches, values = list(peaks), list(peaks.values())
    mean_batch, mean_value = sum(batches) / len(batches), sum(values) / len(values)
    variance = sum((batch - mean_batch) ** 2 for batch in batches)
    covariance = sum((batch - mean_batch) * (value - mean_value) for batch, value in zip(batches, values, strict=True))
    slope = max(0.0, covariance / variance) if variance else 0.0
    fixed = mean_value - slope * mean_batch
    if fixed < 0:
        slope = sum(b * v for b, v in zip(batches, values, strict=True)) / sum(b * b for b in batches)
        fixed = 0.0
    return Line(fixed_bytes=fixed, bytes_per_image=slope)
