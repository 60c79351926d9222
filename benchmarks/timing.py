"""How well the time of an epoch is predicted before a run, on reported trainings.

The reported trainings ran on free notebooks mostly, which have two cores: two loader processes are assumed.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import this_machine
from benchmarks.output import report
from yolo_airflow_provider.gpus.accelerator import Accelerator, profile_of_name
from yolo_airflow_provider.gpus.cards import Device, card, device
from yolo_airflow_provider.planner.catalogue import architecture
from yolo_airflow_provider.planner.timing import COLD_FACTOR, EPOCH_SECONDS, Job, cold

WORKERS = 2
LEAST_IMAGES = 200
"""Of fewer an epoch is mostly what comes with every epoch."""


def read(file: Path) -> list[tuple[str, float]]:
    """Card, and natural logarithm of predicted over reported seconds an image, of each row that tells both."""
    found = []
    with file.open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            error = _error(line)
            if error is not None:
                found.append((line["gpu"], error))
    return found


def _error(line: dict[str, str]) -> float | None:
    shape = architecture(line["model"])
    on = _device(line["gpu"])
    batch, imgsz, images = (_number(line[name]) for name in ("batch_gpu", "imgsz", "images"))
    if shape is None or on is None or line["gpus"] != "1" or line["kind"] != "epoch_row" or not batch or not imgsz:
        return None
    if images is not None and images < LEAST_IMAGES:
        return None
    rate = _number(line["its_per_s"]) * batch if line["its_per_s"] else 0.0
    if images and (_number(line["epoch_seconds"]) or 0.0) > 0:
        rate = images / _number(line["epoch_seconds"])
    if not rate:
        return None
    job = Job(
        imgsz=int(imgsz),
        batch=int(batch),
        images=int(images or 10_000),
        precision="fp32" if line["precision"] == "fp32" else "amp",
        workers=WORKERS,
    )
    seconds = cold(shape, on, job).expected_seconds - EPOCH_SECONDS
    return math.log(seconds / job.images * rate)


def _device(gpu: str) -> Device | None:
    """The card, or the slice of it where the name goes on with `MIG 1g.10gb`."""
    name, _, profile = gpu.partition(" MIG ")
    try:
        on = card(name)
    except ValueError:
        return None
    if on is None or not profile:
        return on.whole if on else None
    return device(Accelerator("mig", on.whole.product, profile_of_name(profile)))


def _number(text: str) -> float:
    return float(text) if text else 0.0


def accuracy(errors: Sequence[float]) -> dict[str, Any]:
    """The figures of some rows; factors are as large as they are, whether too long or too short."""
    return {
        "rows": len(errors),
        "median_factor": math.exp(statistics.median(map(abs, errors))),
        "coverage_percent": 100 * sum(abs(error) <= math.log(COLD_FACTOR) for error in errors) / len(errors),
        "bias_factor": math.exp(statistics.median(errors)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=Path, required=True, help="table of reported trainings, CSV")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    found = read(options.points)
    by_card: defaultdict[str, list[float]] = defaultdict(list)
    for name, error in found:
        by_card[name].append(error)
    cards = {name: accuracy(errors) for name, errors in sorted(by_card.items(), key=lambda item: -len(item[1]))}
    every = accuracy([error for _, error in found])
    rows = [["card", "rows", "median factor", "interval covers, %"]]
    rows += [
        [name, str(one["rows"]), f"{one['median_factor']:.2f}", f"{one['coverage_percent']:.0f}"]
        for name, one in [("all", every), *cards.items()]
    ]
    report("timing", this_machine(), figures={**every, "by_card": cards}, rows=rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
