"""How well memory is predicted before a run: reported trainings, none of which calibrated its own prediction.

The constants that the package ships were fitted to the sources in `memory_sources.txt` (digests of their names). A row
of another source is predicted with them; for each of those the constants are fitted anew to the rows `need` of the
others. `--write-sources` makes the list of a table's sources, for those who calibrate on another.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import this_machine
from benchmarks.memory_points import Row, read
from benchmarks.output import progress, report
from yolo_airflow_provider.planner.calibration import families, fit
from yolo_airflow_provider.planner.evidence import Observation, sort_evidence
from yolo_airflow_provider.planner.memory import MemoryModel, fit as fit_memory
from yolo_airflow_provider.planner.need import (
    AFTER_VALIDATION,
    CONTEXT_BYTES,
    GPU,
    Constants,
    Need,
    family,
    needed,
    parts,
)

MARGIN_PERCENT = 10.0
LEAST_ROWS = 20
"""Fewer do not bear five constants."""
SOURCES = Path(__file__).with_name("memory_sources.txt")


@dataclass(frozen=True)
class Predicted:
    """A row with its prediction, as read where the row was: after the first validation it is as much larger."""

    row: Row
    need: Need
    scale: float

    @property
    def measured(self) -> float:
        """Bytes printed."""
        return self.row.point.measured_bytes

    @property
    def value(self) -> float:
        """Bytes expected to be printed."""
        return self.need.reserved * self.scale

    @property
    def bound(self) -> float:
        """Bytes that the planner reckons with."""
        return self.need.reserved_high * self.scale

    @property
    def error_percent(self) -> float:
        """Expected over printed, less one."""
        return 100 * (self.value / self.measured - 1)


def calibrated(rows: Sequence[Row]) -> Constants:
    """Constants of these rows. Families are those of the trainer that this package runs."""
    constants = fit([row.point for row in rows])
    return replace(constants, families=families([row.point for row in rows if row.ours], constants))


def predict(row: Row, constants: Constants) -> Predicted:
    """Predict one row."""
    known = constants if row.ours else replace(constants, families={})
    need = needed(row.point.work, row.point.batch, known)
    return Predicted(row, need, AFTER_VALIDATION if row.point.later else 1.0)


def cross_validated(rows: Sequence[Row], calibrated_on: frozenset[str]) -> list[Predicted]:
    """Each row predicted by constants that its source had no part in.

    Args:
        rows: all of them.
        calibrated_on: digests of the sources that the shipped constants were fitted to.
    """
    found = []
    by_source: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    known = [row for row in rows if row.use == "need" and digest(row.source) in calibrated_on]
    for source, asked in by_source.items():
        constants = GPU
        if digest(source) in calibrated_on:
            others = [row for row in known if row.source != source]
            if len(others) >= LEAST_ROWS:
                constants = calibrated(others)
            else:
                progress(f"{source} calibrated what predicts it: only {len(others)} rows of others are in this table")
        found += [predict(row, constants) for row in asked]
    return found


def digest(source: str) -> str:
    """The name of a source, not to be read."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def accuracy(found: Sequence[Predicted]) -> dict[str, Any]:
    """The figures of some rows."""
    if not found:
        return {"rows": 0}
    errors = [abs(one.error_percent) for one in found]
    return {
        "rows": len(found),
        "median_abs_error_percent": statistics.median(errors),
        "p90_abs_error_percent": _quantile(errors, 0.9),
        "bound_coverage_percent": 100 * sum(one.bound >= one.measured for one in found) / len(found),
        "bound_over_value_median": statistics.median(one.bound / one.measured for one in found),
    }


def refused(found: Iterable[Predicted]) -> dict[str, Any]:
    """Of the runs that fitted their card, those that the planner would have refused there.

    A batch that was asked for is refused where even the lower end of the interval does not fit the card; one that the
    planner may choose has to fit with the upper end and the margin.
    """
    told = [one for one in found if one.row.fitted and one.row.card_bytes]
    low = [one for one in told if one.need.low > (one.row.card_bytes or 0)]
    return {
        "rows": len(told),
        "refused_percent": 100 * len(low) / len(told) if told else None,
        "refused": [one.row.id for one in low],
    }


def groups(found: Sequence[Predicted], key: Callable[[Predicted], str]) -> dict[str, Any]:
    """Accuracy by what the rows have in common, largest group first."""
    grouped: defaultdict[str, list[Predicted]] = defaultdict(list)
    for one in found:
        grouped[key(one)].append(one)
    return {name: accuracy(ones) for name, ones in sorted(grouped.items(), key=lambda item: -len(item[1]))}


def limits(found: Iterable[Predicted]) -> list[dict[str, Any]]:
    """What the planner would have done with each run that ended out of memory."""
    told = []
    for one in found:
        card = one.row.card_bytes
        work, batch = one.row.point.work, one.row.point.batch
        usable = (card or one.measured) * (1 - MARGIN_PERCENT / 100)
        constants = GPU
        fits = [b for b in range(1, batch + 1) if needed(work, b, constants).high <= usable]
        told.append(
            {
                "id": one.row.id,
                "model": one.row.model,
                "imgsz": work.imgsz,
                "batch": batch,
                "card_bytes": card,
                "expected_bytes": one.need.used,
                "high_bytes": one.need.high,
                "planned_batch": max(fits, default=0),
            }
        )
    return told


def fitted_constants(rows: Sequence[Row]) -> dict[str, Any]:
    """What these rows would be shipped with."""
    if len(rows) < LEAST_ROWS:
        return {}
    found = calibrated(rows)
    return {name: getattr(found, name) for name in ("base_bytes", "activations", "fixed", "loss", "families")}


def fake_step(one: Predicted) -> float:
    """What is alive on fake tensors, and nothing else."""
    p = parts(one.row.point.work)
    return p.fixed + one.row.point.batch * p.activations


def by_parameters(one: Predicted) -> float:
    """A rule of thumb in use: memory in proportion to parameters, batch and pixels."""
    work = one.row.point.work
    return work.architecture.parameters * one.row.point.batch * float(work.imgsz) ** 2


def rule(found: Sequence[Predicted], value: Callable[[Predicted], float]) -> dict[str, Any]:
    """The error of another way to predict, with the one factor that suits these rows best."""
    factor = statistics.median(one.measured / value(one) for one in found) if found else 0.0
    errors = [100 * abs(factor * value(one) / one.measured - 1) for one in found]
    if not errors:
        return {"rows": 0}
    return {
        "rows": len(errors),
        "median_abs_error_percent": statistics.median(errors),
        "p90_abs_error_percent": _quantile(errors, 0.9),
    }


def with_measured(found: Sequence[Predicted], known: int) -> dict[str, Any]:
    """Accuracy where so many other runs of the same source, model and size were measured: all ways to choose them."""
    alike: defaultdict[tuple[Any, ...], list[Predicted]] = defaultdict(list)
    for one in found:
        if one.row.use in ("need", "ladder"):
            work = one.row.point.work
            alike[one.row.source, one.row.model, work.imgsz, work.precision, one.row.card].append(one)
    errors, above = [], 0
    for ones in alike.values():
        for asked in ones:
            for seen in itertools.combinations([one for one in ones if one is not asked], known):
                point, work = asked.row.point, asked.row.point.work
                evidence = sort_evidence(_observed(number, one) for number, one in enumerate(seen))
                estimate = fit_memory(evidence, partial(needed, work)).estimate(point.batch)
                if estimate is None:
                    continue
                value = point.first_epoch_bytes
                errors.append(100 * abs((estimate.expected_bytes - CONTEXT_BYTES) / value - 1))
                above += value + CONTEXT_BYTES > estimate.high_bytes
    if not errors:
        return {"pairs": 0}
    return {"pairs": len(errors), "median_abs_error_percent": statistics.median(errors), "above_bound": above}


def _observed(number: int, one: Predicted) -> Observation:
    point = one.row.point
    peak = int(point.first_epoch_bytes) + CONTEXT_BYTES
    return Observation(id=number, batch=point.batch, peak_bytes=peak, full_run=True)


def ladders(found: Sequence[Predicted]) -> list[dict[str, Any]]:
    """For each table of AutoBatch: the batch chosen for its card with the table's rows as evidence, and how full it is.

    What the table shows to fit is its own line, carried on to the card's memory.
    """
    tables: defaultdict[tuple[Any, ...], list[Predicted]] = defaultdict(list)
    for one in found:
        work = one.row.point.work
        tables[one.row.source, one.row.model, work.imgsz, one.row.card].append(one)
    told = []
    for (source, model, imgsz, card), ones in tables.items():
        usable = min((one.row.card_bytes for one in ones if one.row.card_bytes), default=0)
        if len(ones) < 3 or not usable:
            continue
        work = ones[0].row.point.work
        evidence = sort_evidence(_observed(number, one) for number, one in enumerate(ones))
        line = fit_memory(evidence, partial(needed, work))
        room = usable * (1 - MARGIN_PERCENT / 100)
        fits = [batch for batch in range(1, 1024) if _at_most(line, batch) <= room]
        largest = max((batch for batch in range(1, 1024) if _expected(line, batch) <= usable), default=0)
        batch = max(fits, default=0)
        told.append(
            {
                "source": digest(source),
                "model": model,
                "imgsz": imgsz,
                "card": card,
                "batch": batch,
                "largest": largest,
                "fill_percent": 100 * _expected(line, batch) / room if batch else 0.0,
            }
        )
    return told


def _expected(line: MemoryModel, batch: int) -> float:
    estimate = line.estimate(batch)
    return math.inf if estimate is None else float(estimate.expected_bytes)


def _at_most(line: MemoryModel, batch: int) -> float:
    estimate = line.estimate(batch)
    return math.inf if estimate is None else float(estimate.high_bytes)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def figures(rows: Sequence[Row], left_out: Sequence[str]) -> dict[str, Any]:
    """Everything."""
    progress(f"{len(rows)} rows; {len(left_out)} of other architectures or without a batch are left out")
    found = cross_validated(rows, frozenset(SOURCES.read_text(encoding="utf-8").split()))
    by_use = {use: [one for one in found if one.row.use == use] for use in ("need", "crowded", "ladder", "limit")}
    return {
        "need": accuracy(by_use["need"]),
        "crowded": accuracy(by_use["crowded"]),
        "fitted": refused(found),
        "one_point": with_measured(found, 1),
        "two_points": with_measured(found, 2),
        "ladder": ladders(by_use["ladder"]),
        "fake_step_alone": rule(by_use["need"], fake_step),
        "parameters_alone": rule(by_use["need"], by_parameters),
        "by_family": groups(by_use["need"], lambda one: family(one.row.point.work.architecture.name)),
        "by_card": groups(by_use["need"], lambda one: one.row.card),
        "by_precision": groups(by_use["need"], lambda one: one.row.point.work.precision),
        "limit": limits(by_use["limit"]),
        "constants": fitted_constants([row for row in rows if row.use == "need"]),
        "context_bytes": CONTEXT_BYTES,
        "worst": [
            {
                "id": one.row.id,
                "error_percent": round(one.error_percent, 1),
                "bound": round(one.bound / one.measured, 2),
            }
            for one in sorted(by_use["need"], key=lambda one: -abs(one.error_percent))[:16]
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=Path, required=True, help="table of reported trainings, CSV")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--write-sources", action="store_true", help="take the table's sources for the calibration's")
    options = parser.parse_args(arguments)
    rows, left_out = read(options.points)
    if options.write_sources:
        names = sorted({digest(row.source) for row in rows})
        SOURCES.write_text("\n".join([*names, ""]), encoding="utf-8")
    found = figures(rows, left_out)
    table = [["rows", "number", "median error, %", "90th percentile, %", "bound covers, %", "bound over value"]]
    table += [
        [
            name,
            str(one["rows"]),
            *(f"{one[key]:.1f}" for key in list(one)[1:4]),
            f"{one['bound_over_value_median']:.2f}",
        ]
        for name, one in [("need", found["need"]), ("crowded", found["crowded"]), *found["by_family"].items()]
        if one["rows"]
    ]
    report(
        "memory",
        this_machine(),
        figures=found,
        rows=table,
        closing=[
            f"of {found['fitted']['rows']} runs that fitted, {found['fitted']['refused_percent'] or 0:.1f} % refused"
        ],
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
