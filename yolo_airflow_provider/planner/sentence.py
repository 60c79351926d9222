"""The sentence in which a choice is told, in the log, in the store and on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yolo_airflow_provider.planner.evidence import Evidence
from yolo_airflow_provider.planner.memory import Estimate
from yolo_airflow_provider.planner.timing import EpochTime


@dataclass(frozen=True)
class Told:
    """What a sentence tells.

    Attributes:
        what: is trained, and on what.
        batch: chosen.
        asked: the batch that was asked for, None for "auto".
        why: the batch is this one.
        budget_bytes: of the accelerator.
        margin_percent: of it that is left free.
        memory: predicted.
        time: of an epoch.
        seconds: of an epoch, where `time` is not known.
        epochs: of the training.
    """

    what: str
    batch: int
    asked: int | None
    why: str
    budget_bytes: int | None
    margin_percent: float
    memory: Estimate | None
    time: EpochTime | None
    seconds: float | None
    epochs: int | None


def sentence(told: Told, evidence: Evidence) -> str:
    """One line on a choice: what, how much memory, how long, and on what it stands."""
    budget, memory, time = told.budget_bytes, told.memory, told.time
    room = f" of {gib(budget)} less {told.margin_percent:g} %" if budget else ""
    head = f"{told.what}: batch {told.batch}"
    if told.asked is not None and told.asked != told.batch:
        head += f" instead of {told.asked}, which does not fit"
    elif told.why == "given":
        head += " as asked" if told.asked is not None else " as in the try before"
    if memory is not None:
        between = f"{gib(memory.low_bytes)} to {gib(memory.high_bytes)}"
        head += f", {gib(memory.expected_bytes)} predicted ({between}){room}"
    if time is not None and told.epochs is not None:
        head += f", {duration(time.total(told.epochs))}"
    elif told.seconds is not None:
        head += f", about {told.seconds:.0f} s an epoch"
    return f"{head}; {_grounds(told, evidence)}"


def duration(time: EpochTime) -> str:
    """`about 72 min (58 to 90)`; seconds below three minutes, hours from three hours."""
    units = (("s", 1, 180.0), ("min", 60, 10_800.0), ("h", 3600, math.inf))
    unit, seconds, _ = next(one for one in units if time.expected_seconds < one[2])
    expected, low, high = (value / seconds for value in (time.expected_seconds, time.low_seconds, time.high_seconds))
    digits = 1 if unit == "h" else 0
    return f"about {expected:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"


def _grounds(told: Told, evidence: Evidence) -> str:
    runs, probes = evidence.runs, evidence.probes
    named = []
    if runs:
        newest = runs[0]
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        when = f" of {newest.when}" if newest.when else ""
        named.append(f"the training at batch {newest.batch}{when} (measurement {newest.id}){more}")
    if probes:
        named.append(f"{len(probes)} probe point{'s' if len(probes) > 1 else ''}")
    if evidence.failures:
        failed = evidence.failures[0]
        named.append(f"batch {failed.batch} having run out of memory (measurement {failed.id})")
    if not named and told.memory is not None:
        unsure = ", and not sure to fit" if told.why == "fallback" else ""
        return f"nothing measured yet, predicted from the architecture{unsure}"
    if not named:
        return f"nothing measured yet, so this is {'not checked' if told.why == 'given' else 'a fixed fallback'}"
    if told.why == "fallback":
        return f"nothing known is sure to fit, a fallback after {', '.join(named)}"
    return f"evidence: {', '.join(named)}"


def gib(memory_bytes: int | None) -> str:
    """`3.00 GiB`."""
    return "an unknown budget" if memory_bytes is None else f"{memory_bytes / 2**30:.2f} GiB"
