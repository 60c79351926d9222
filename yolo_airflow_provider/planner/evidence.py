"""What the planner knows: observations of earlier runs that resemble the one it plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """One measured run or probe point of the same model, input size, precision and kind of device.

    Attributes:
        id: of the measurement in the store; a decision names it as evidence.
        batch: images a step.
        peak_bytes: device memory at its peak; for a run that ran out of memory what it had reached, if known.
        out_of_memory: it did not fit `budget_bytes`.
        full_run: a training; False for a probe point of a few steps.
        budget_bytes: what it was given.
        epoch_seconds: of one epoch, None for probe points.
        images: training images of an epoch.
        images_per_second: while training.
        when: for people, e.g. `2026-12-01 13:07`.
    """

    id: int
    batch: int
    peak_bytes: int | None
    out_of_memory: bool = False
    full_run: bool = False
    budget_bytes: int | None = None
    epoch_seconds: float | None = None
    images: int | None = None
    images_per_second: float | None = None
    when: str = ""


@dataclass(frozen=True)
class Evidence:
    """The observations, sorted by what they can tell."""

    runs: tuple[Observation, ...]
    """Trainings that fit."""
    probes: tuple[Observation, ...]
    """Probe points that fit."""
    failures: tuple[Observation, ...]
    """What ran out of memory, training or probe."""

    @property
    def ids(self) -> list[int]:
        """All measurements in it, ascending."""
        return sorted(observation.id for observation in (*self.runs, *self.probes, *self.failures))


def sort_evidence(observations: Iterable[Observation]) -> Evidence:
    """Keep what tells something about memory."""
    usable = list(observations)
    fitted = [o for o in usable if not o.out_of_memory and o.peak_bytes]
    return Evidence(
        runs=tuple(o for o in fitted if o.full_run),
        probes=tuple(o for o in fitted if not o.full_run),
        failures=tuple(o for o in usable if o.out_of_memory),
    )


def largest_by_batch(observations: Sequence[Observation]) -> dict[int, int]:
    """The largest peak seen at each batch: too little is worse than too much."""
    peaks: dict[int, int] = {}
    for observation in observations:
        if observation.peak_bytes:
            peaks[observation.batch] = max(peaks.get(observation.batch, 0), observation.peak_bytes)
    return peaks
