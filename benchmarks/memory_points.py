"""Reported trainings from a table of points: which of them the planner can be asked about, and what was measured."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from yolo_airflow_provider.planner.calibration import Point
from yolo_airflow_provider.planner.catalogue import architecture
from yolo_airflow_provider.planner.need import Objects, Workload

COUNTS_FROM_ZERO = ("yolov5", "yolov7", "yolov9")
"""Trainers whose first epoch is 0; Ultralytics' is 1."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        id: of the row.
        source: where it was reported; rows of one resemble each other.
        use: what the row is good for.
        framework: the trainer that printed it.
        model: as it was reported.
        point: what ran, and the bytes that were printed.
        card: its name, empty where it is not told.
        card_bytes: its memory, None where it is not told.
        fitted: the run did not end out of memory.
    """

    id: str
    source: str
    use: str
    framework: str
    model: str
    point: Point
    card: str
    card_bytes: int | None
    fitted: bool

    @property
    def ours(self) -> bool:
        """Whether the trainer is the one that this package runs."""
        return self.framework == "ultralytics"


def read(file: Path) -> tuple[list[Row], list[str]]:
    """All rows that name an architecture of the catalogue, a batch and an amount of memory; and the other rows' ids."""
    rows, left_out = [], []
    with file.open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            row = _row(line)
            if row is None:
                left_out.append(line["id"])
            else:
                rows.append(row)
    return rows, left_out


def _row(line: dict[str, str]) -> Row | None:
    known = architecture(line["model"])
    batch, imgsz = _number(line["batch_gpu"]), _number(line["imgsz"])
    measured = _number(line["memory_bytes"])
    if known is None or not batch or not imgsz or not measured:
        return None
    epoch = line["epoch"].split("/")[0]
    classes = _number(line["nc"])
    work = Workload(
        architecture=known,
        # What the trainer makes of a size that is no multiple of the stride.
        imgsz=-(-int(imgsz) // known.stride) * known.stride,
        precision="fp32" if line["precision"] == "fp32" else "amp",
        optimizer=line["optimizer"] or "auto",
        classes=int(classes) if classes else None,
        objects=_objects(line, int(batch)),
    )
    later = line["framework"] in COUNTS_FROM_ZERO and epoch not in ("", "0")
    card_bytes = _number(line["gpu_total_bytes"])
    return Row(
        id=line["id"],
        source=line["source"],
        use=line["use"],
        framework=line["framework"],
        model=line["model"],
        point=Point(work, int(batch), measured, later=later),
        card=line["gpu"],
        card_bytes=int(card_bytes) if card_bytes else None,
        fitted=line["outcome"] == "ok",
    )


def _objects(line: dict[str, str], batch: int) -> Objects | None:
    """Boxes an image of the last step, which holds what is left of the images when they are no multiple of the batch.

    The anchor-based trainers have no assigner whose tensors grow with boxes times anchors.
    """
    instances, images = _number(line["instances"]), _number(line["images"])
    if instances is None or line["framework"] != "ultralytics":
        return None
    return Objects(mean=instances / ((int(images) % batch if images else 0) or batch))


def _number(text: str) -> float | None:
    return float(text) if text else None
