"""What a training needs of its device, predicted from the architecture alone: evidence 4 of the design.

A step on fake tensors tells which bytes are alive (`catalogue`). What it cannot see comes on top: copies of the
predictions in the loss, the label assigner, cuDNN's workspace, what the allocator keeps, the context. Each has one
constant here, fitted on publicly reported runs and cross-validated by their source (`python -m benchmarks.memory`,
docs/benchmarks.md); docs/decisions/0006 says why these terms and no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Literal

from yolo_airflow_provider.planner.catalogue import Architecture, for_classes

_GIB = 2**30
_FLOAT_BYTES = 4
DISTRIBUTION_BINS = 64
"""Numbers that a head of this generation predicts for the four sides of a box; they and the classes stand in the loss
in 32 bit."""
ASSIGNER_TENSORS = 12
"""Of the task-aligned assigner in 32 bit, each of batch x most boxes of an image x anchors."""
CROWDED_OVER_MEAN, CROWDED_AT_MOST_OVER_MEAN = 3.0, 19.0
"""Most boxes of an image in a batch over the mean, where only the mean is known: expected, and the most that is planned
for. Calibrated on reported runs with eight boxes an image and more; crowds are uneven."""
CONTEXT_BYTES = int(0.45 * _GIB)
"""What CUDA's context and its libraries hold on the device beside the allocator: 0.3 to 0.7 GiB are reported."""
AFTER_VALIDATION = 1.11
"""Reserved memory of later epochs over the first's: the median of 119 reported runs. It is kept, not needed."""
VALIDATION_BATCHES = 2
"""Ultralytics 8.4 validates with twice the batch (models/yolo/detect/train.py)."""


@dataclass(frozen=True)
class Objects:
    """Boxes an image of a data set.

    Attributes:
        mean: over all images.
        p95: of one image in twenty more than this; None where only the mean is known.
        largest: most in any image.
    """

    mean: float
    p95: float | None = None
    largest: int | None = None

    @property
    def crowded(self) -> float:
        """Most boxes expected in any image of a batch; mosaic makes of four images one, and crops it."""
        return self.mean * CROWDED_OVER_MEAN if self.p95 is None else max(self.p95, self.mean)

    @property
    def crowded_at_most(self) -> float:
        """The most that a plan reckons with."""
        if self.largest is None:
            return self.mean * CROWDED_AT_MOST_OVER_MEAN
        # The most crowded image in the middle of the mosaic, what is seen of its three neighbours around it.
        return max(self.largest + 0.5 * self.mean, self.crowded)


@dataclass(frozen=True)
class Workload:
    """A training as far as memory is concerned, its batch aside.

    Attributes:
        architecture: what is trained.
        imgsz: side of the square input, pixels.
        precision: `amp` or `fp32`.
        optimizer: Ultralytics' name; `auto` is AdamW for short trainings, SGD or MuSGD for long ones.
        classes: of the data set, None for the architecture's own.
        objects: boxes an image, None where nothing is known.
        on_cpu: the memory is the process's, not a device's.
        ranks: processes of the training, each on a card of its own, that share a batch out (DDP).
    """

    architecture: Architecture
    imgsz: int
    precision: Literal["amp", "fp32"]
    optimizer: str = "auto"
    classes: int | None = None
    objects: Objects | None = None
    on_cpu: bool = False
    ranks: int = 1


@dataclass(frozen=True)
class Parts:
    """Bytes of a training step by what they are for; `per_image` parts grow with the batch.

    Attributes:
        fixed: weights, gradients, SGD's momentum, buffers; the averaged copy of the weights is in its constant.
        moments: what the optimizer holds beyond SGD's momentum, and the buckets in which ranks exchange gradients.
        activations: an image.
        loss: an image's predictions in the loss.
        assigner: an image's share of the assigner's tensors, and that at most.
        validation: an image's forward pass in evaluation mode.
    """

    fixed: float
    moments: float
    activations: float
    loss: float
    assigner: float
    assigner_at_most: float
    validation: float


@dataclass(frozen=True)
class Constants:
    """What is multiplied with the parts, and what is added. Ratios have no unit.

    Attributes:
        base_bytes: of every training.
        activations: held over alive.
        fixed: the same of the fixed part.
        loss: copies of the predictions.
        common: natural logarithm of measured over predicted that all models have in common, already shrunk.
        families: the same by family, in place of `common`.
        low: the lower end of the interval over the expected value.
        bound: the upper bound over the expected value; then added: bytes, shares of one image's activations (cuDNN's
            workspace) and of the fixed part (the optimizer's temporaries).
    """

    base_bytes: float
    activations: float
    fixed: float
    loss: float
    common: float = 0.0
    families: Mapping[str, float] = field(default_factory=dict)
    bound: float = 1.035
    bound_bytes: float = 0.115 * _GIB
    bound_images: float = 0.95
    bound_fixed: float = 1.45
    low: float = 0.75


GPU = Constants(
    base_bytes=0.084 * _GIB,
    activations=1.093,
    fixed=1.588,
    loss=7.43,
    common=0.0,
    families={
        "rtdetr": 0.019,
        "yolo11": -0.002,
        "yolo26": -0.013,
        "yolov10": -0.001,
        "yolov5": 0.011,
        "yolov8": 0.007,
        "yolov9": 0.028,
    },
)
"""Fitted on 121 reported trainings (`python -m benchmarks.memory`, "constants")."""
CPU = Constants(
    base_bytes=0.81 * _GIB,
    activations=1.38,
    fixed=1.93,
    loss=1.0,
    bound=1.08,
    bound_bytes=0.15 * _GIB,
    bound_images=0.5,
    bound_fixed=1.0,
    # A container's limit does not count the libraries' pages, which a process's peak does.
    low=0.6,
)
"""Fitted on trainings of six models at 256 to 320 pixels; `python -m benchmarks.first_sight` tries them on others.
torch 2.14 with its CUDA build, oneDNN's scratch memory and the heap's fragmentation are in them."""


@dataclass(frozen=True)
class Need:
    """Predicted bytes of device memory; `low` to `high` is the interval of `used`.

    Attributes:
        allocated: alive in tensors at the peak (`torch.cuda.max_memory_allocated`).
        reserved: held by torch's allocator, what Ultralytics prints as GPU_mem in the first epoch.
        used: of the device, context included; on `cpu` the process's peak.
        reserved_high: upper bound of `reserved`.
        phase: where the peak is.
    """

    allocated: int
    reserved: int
    used: int
    low: int
    high: int
    reserved_high: int
    phase: Literal["training", "validation"]


@lru_cache(maxsize=256)
def parts(work: Workload) -> Parts:
    """The parts of one training step. Monotone in pixels, classes and parameters."""
    made = for_classes(work.architecture, work.classes)
    pixels = work.imgsz**2
    per_pixel = made.amp_bytes_per_pixel if work.precision == "amp" else made.fp32_bytes_per_pixel
    anchors = made.anchors_per_pixel * pixels
    boxes = work.objects or Objects(mean=0.0)
    # DDP copies gradients into buckets of their own (torch.nn.parallel, gradient_as_bucket_view=False, which is what
    # Ultralytics 8.4 leaves it at).
    copies = extra_copies(work.optimizer) + (1.0 if work.ranks > 1 else 0.0)
    return Parts(
        fixed=made.fixed_bytes,
        moments=_FLOAT_BYTES * made.parameters * copies,
        activations=per_pixel * pixels,
        loss=anchors * (DISTRIBUTION_BINS + made.classes) * _FLOAT_BYTES,
        assigner=anchors * boxes.crowded * ASSIGNER_TENSORS * _FLOAT_BYTES,
        assigner_at_most=anchors * boxes.crowded_at_most * ASSIGNER_TENSORS * _FLOAT_BYTES,
        validation=made.validation_bytes_per_pixel * pixels,
    )


def extra_copies(optimizer: str) -> float:
    """Copies of the weights that an optimizer holds beyond the one moment of SGD."""
    return 1.0 if "adam" in optimizer.lower() else 0.0


def needed(work: Workload, batch: int, constants: Constants | None = None) -> Need:
    """Predict the memory of a training; of several ranks that of the first, which also validates and averages.

    Args:
        work: what is trained on what.
        batch: images a step, of all ranks together.
        constants: other than those shipped.
    """
    c = constants or (CPU if work.on_cpu else GPU)
    p = parts(work)
    batch = math.ceil(batch / work.ranks)
    known = math.exp(c.families.get(family(work.architecture.name), c.common))
    held = c.base_bytes + c.fixed * p.fixed + p.moments
    training = held + batch * (c.activations * p.activations + c.loss * p.loss)
    validating = held + VALIDATION_BATCHES * batch * c.activations * p.validation
    training = training * known + batch * p.assigner
    reserved = max(training, validating * known)
    an_image = max(p.activations + c.loss * p.loss + p.assigner, VALIDATION_BATCHES * p.validation)
    alive = p.fixed + p.moments + batch * an_image
    room = c.bound_bytes + c.bound_images * p.activations + c.bound_fixed * p.fixed
    high = c.bound * reserved + room + batch * (p.assigner_at_most - p.assigner)
    context = 0 if work.on_cpu else CONTEXT_BYTES
    return Need(
        allocated=math.ceil(min(alive, reserved)),
        reserved=math.ceil(reserved),
        used=math.ceil(reserved + context),
        low=math.floor(c.low * reserved + context),
        high=math.ceil(high + context),
        reserved_high=math.ceil(high),
        phase="training" if training >= validating * known else "validation",
    )


@cache
def family(name: str) -> str:
    """The generation that an architecture is of, for what its relatives have in common: `yolov8n-seg` is `yolov8`."""
    stem = name.lower().split("-")[0]
    digits = next((place for place, letter in enumerate(stem) if letter.isdigit()), None)
    if digits is None:
        return stem
    end = digits
    while end < len(stem) and stem[end].isdigit():
        end += 1
    return stem[:end]
