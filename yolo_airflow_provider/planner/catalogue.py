"""What is known of each architecture before it ever ran: one row each, shipped with the package.

Made on fake tensors by `python -m yolo_airflow_provider.worker.catalogue`; a plan needs no torch.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files

_NUMBERS = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Architecture:
    """An architecture with the number of classes that its figures hold for.

    Attributes:
        name: e.g. `yolov8m-seg`.
        task: Ultralytics' task.
        classes: of the analysed head.
        parameters: all of them, as Ultralytics' summary counts.
        parameters_per_class: that one more class takes.
        buffer_bytes: statistics of batch normalisation and the like.
        stride: the largest; input sizes are multiples of it.
        gflops: of the forward pass of one image of `gflops_imgsz`, as Ultralytics' summary says.
        gflops_imgsz: pixels a side.
        fixed_bytes: alive in a training step whatever the batch: weights, gradients, SGD's momentum, buffers.
        amp_bytes_per_pixel: alive at the peak of a step in mixed precision, an image and pixel.
        fp32_bytes_per_pixel: the same in 32 bit.
        amp_bytes_per_pixel_per_class: that one more class takes.
        validation_bytes_per_pixel: of a forward pass in evaluation mode in 16 bit.
        anchors_per_pixel: predictions of a head of three levels and their like; 0 for classification.
        step_flops_per_pixel: forward and backward, an image and pixel.
        step_moved_bytes_per_pixel: read and written by the operators of a step in mixed precision.
        kernels: operators of a step.
    """

    name: str
    task: str
    classes: int
    parameters: int
    parameters_per_class: float
    buffer_bytes: int
    stride: int
    gflops: float
    gflops_imgsz: int
    fixed_bytes: int
    amp_bytes_per_pixel: float
    fp32_bytes_per_pixel: float
    amp_bytes_per_pixel_per_class: float
    validation_bytes_per_pixel: float
    anchors_per_pixel: float
    step_flops_per_pixel: float
    step_moved_bytes_per_pixel: float
    kernels: int


@cache
def architectures() -> Mapping[str, Architecture]:
    """All rows by name."""
    kinds = [(field.name, _NUMBERS[str(field.type)]) for field in fields(Architecture)]
    with files(__package__).joinpath("catalogue.csv").open(encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        return {row["name"]: Architecture(**{name: kind(row[name]) for name, kind in kinds}) for row in rows}


def architecture(name: str) -> Architecture | None:
    """The row of a model as people write it; None where it is not in the catalogue.

    `yolov8m`, `yolov8m.yaml` and `yolov8m.pt` are one, and so are the names by which the YOLOv5 repository and its
    pretrained files go: `yolov5su` is `yolov5s`, `yolov5x6` is `yolov5x-p6`.
    """
    known = architectures()
    stem = re.sub(r"\.(?:pt|ya?ml)$", "", name.strip().lower())
    older = re.sub(r"^(yolov5[nsmlx])6u?$", r"\1-p6", stem)
    return next((known[one] for one in (stem, older, stem.removesuffix("u")) if one in known), None)


def for_classes(made: Architecture, classes: int | None) -> Architecture:
    """The architecture with a head for so many classes; as it is for None."""
    if classes is None or classes == made.classes:
        return made
    more = classes - made.classes
    parameters = max(1, round(made.parameters + more * made.parameters_per_class))
    more_bytes = more * made.amp_bytes_per_pixel_per_class
    in_32_bit = made.fp32_bytes_per_pixel / made.amp_bytes_per_pixel
    return replace(
        made,
        classes=classes,
        parameters=parameters,
        # Other parameters of the head change it by as many weights, gradients and moments.
        fixed_bytes=round(made.fixed_bytes * parameters / made.parameters),
        amp_bytes_per_pixel=max(0.0, made.amp_bytes_per_pixel + more_bytes),
        fp32_bytes_per_pixel=max(0.0, made.fp32_bytes_per_pixel + more_bytes * in_32_bit),
    )
