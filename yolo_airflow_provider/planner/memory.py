"""The memory model of a configuration: what was measured of it first, what its architecture predicts where nothing was.

Training memory of a convolutional network is close to linear in the batch: a fixed part (weights, gradients,
optimizer, EMA, runtime) and a part for each image (activations). A probe measures the line; a whole training lies
above it, because allocators come to hold more over the epochs. The model is the line times that ratio. One measured
batch makes no line; the predicted one then has its shape and the measurement its height.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from yolo_airflow_provider.planner.evidence import Evidence, Observation, largest_by_batch
from yolo_airflow_provider.planner.need import Need

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

SHAPE_SPREAD = 0.03
"""Added a doubling between the one batch measured and the one asked for: by so much the predicted line is wrong about
the share of the fixed part."""

LEVER = 1.5
"""Largest over smallest batch from which two trainings make a line. Nearer ones differ by less than a repetition
does, and their slope would be noise."""

RETRY_HEADROOM = 1.05
"""What ran out of memory needed more than it had reached; by at least this is assumed."""

Basis = Literal["measured", "line", "scaled", "predicted"]
Prior = Callable[[int], Need]
"""What the architecture predicts for a batch."""


@dataclass(frozen=True)
class Estimate:
    """Predicted peak of device memory, with the interval it is expected in."""

    expected_bytes: int
    low_bytes: int
    high_bytes: int
    basis: Basis
    reserved_bytes: int | None = None
    """Of it what torch's allocator holds; None on `cpu`, and where the device's use was measured instead."""


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
        prior: what the architecture predicts; None where it is not known.
    """

    line: Line | None
    ratio: float
    spread: float
    measured: Mapping[int, int]
    single: tuple[int, int] | None
    largest_batch: int
    failures: tuple[Observation, ...]
    prior: Prior | None = None

    def estimate(self, batch: int) -> Estimate | None:
        """Predicted peak at a batch, None where nothing is known."""
        if batch in self.measured:
            return self._interval(self._between_measured(batch, 0.0), RUN_SPREAD, "measured", batch)
        if self.line is not None:
            value = self._between_measured(batch, self.line.at(batch) * self.ratio)
            return self._interval(value, self.spread + self._beyond(batch), "line", batch)
        if self.single is not None:
            known_batch, peak = self.single
            if self.prior is not None:
                shape = self.prior(batch).used / self.prior(known_batch).used
                spread = self.spread + SHAPE_SPREAD * abs(math.log2(batch / known_batch))
                return self._interval(peak * shape * self.ratio, spread, "scaled", batch)
            # The fixed part is unknown, so it is taken as nothing above the known batch and as all below it: both
            # are upper bounds.
            value = peak * max(1.0, batch / known_batch) * self.ratio
            return self._interval(value, self.spread, "scaled", batch)
        return self._predicted(batch) if self.prior is not None else None

    def _predicted(self, batch: int) -> Estimate:
        need = self.prior(batch)  # type: ignore[misc]  # asked for only where there is one
        bound = self._failed_at_most(batch)
        expected = max(need.used * self.ratio, bound)
        return Estimate(
            expected_bytes=math.ceil(expected),
            low_bytes=math.floor(max(need.low * self.ratio, bound)),
            high_bytes=math.ceil(expected * need.high / need.used),
            basis="predicted",
            reserved_bytes=None if need.used == need.reserved else math.ceil(need.reserved * self.ratio),
        )

    def _failed_at_most(self, batch: int) -> float:
        """A failure at this batch or a smaller one is a lower bound of what it takes."""
        return max((_needed(f) for f in self.failures if f.batch <= batch), default=0.0)

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
        bound = self._failed_at_most(batch)
        expected = max(value, bound)
        return Estimate(
            expected_bytes=math.ceil(expected),
            low_bytes=math.floor(max(value * (1 - spread), bound)),
            high_bytes=math.ceil(expected * (1 + spread)),
            basis=basis,
        )


def fit(evidence: Evidence, prior: Prior | None = None) -> MemoryModel:
    """The memory model that the evidence bears.

    The probe's points make the line, and trainings correct its height. Without a probe, trainings make it where
    their batches lie apart. Failures only ever raise an estimate.

    Args:
        evidence: of this configuration.
        prior: what the architecture predicts, for what the evidence does not tell.
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
    # What ran out of memory lies above its budget, so the line, or what the architecture predicts, must too.
    if line is not None:
        ratio = max([ratio, *(_needed(f) / line.at(f.batch) for f in evidence.failures if line.at(f.batch) > 0)])
    elif prior is not None and single is None:
        ratio = max([1.0, *(_needed(f) / prior(f.batch).used for f in evidence.failures)])
    return MemoryModel(
        line=line,
        ratio=ratio,
        spread=spread,
        measured=trained,
        single=single,
        largest_batch=max([*trained, *probed], default=0),
        failures=tuple(sorted(evidence.failures, key=lambda f: f.batch)),
        prior=prior,
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
