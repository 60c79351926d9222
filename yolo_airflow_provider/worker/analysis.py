"""Analysis of an architecture without a GPU: what the planner has to know of one that was never trained.

`python -m yolo_airflow_provider.worker.analysis MODEL` prints it as one line of JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from yolo_airflow_provider.contract import ArchitectureFacts
from yolo_airflow_provider.worker import models
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fakestep import training_step, validation_step

IMGSZ = 640
_SMALL, _LARGE = 2, 4
"""Batches of the line; peaks are linear in the batch on fake tensors."""
_HALF_BYTES = 2
_DECODER_STRIDES = (8, 16, 32)
"""Levels that RT-DETR's decoder looks at; it does not tell them."""


def analyse(
    model: str, *, task: str | None = None, classes: int | None = None, trusted_weights: bool = False
) -> ArchitectureFacts:
    """Analyse an architecture at 640 pixels.

    Args:
        model: a name such as `yolov8m`, or the path of a .yaml or .pt file.
        task: Ultralytics' task; None reads it from the architecture.
        classes: number of classes; None takes the architecture's own.
        trusted_weights: load a .pt as a full pickle.

    Raises:
        JobError: no such model.
    """
    source = models.resolve(model, trusted_weights=trusted_weights)
    module, found_task = models.build(source, task=task, classes=classes, trusted_weights=trusted_weights)
    facts = models.facts(module, name=source.name, task=found_task, imgsz=IMGSZ)
    pixels = IMGSZ**2
    step = training_step(module, imgsz=IMGSZ, amp=True)
    slope = (step.peak_bytes(_LARGE) - step.peak_bytes(_SMALL)) / (_LARGE - _SMALL)
    fixed = step.peak_bytes(_LARGE) - _LARGE * slope
    in_32_bit = training_step(module, imgsz=IMGSZ, amp=False)
    seen = validation_step(module, imgsz=IMGSZ)
    weights = sum(p.numel() for p in (*module.parameters(), *module.buffers())) * _HALF_BYTES
    by_class = _by_class(source, found_task, facts.classes, facts.parameters, slope, fixed)
    return ArchitectureFacts(
        name=source.name,
        task=found_task,
        classes=facts.classes,
        parameters=facts.parameters,
        parameters_per_class=_rounded(by_class[0]),
        buffer_bytes=sum(b.numel() * b.element_size() for b in module.buffers()),
        stride=facts.stride,
        # Ultralytics finds none for a stem that folds pixels into channels.
        gflops=facts.gflops or round(seen.flops / 1e9, 3),
        gflops_imgsz=IMGSZ,
        fixed_bytes=round(fixed),
        amp_bytes_per_pixel=_rounded(slope / pixels),
        fp32_bytes_per_pixel=_rounded((in_32_bit.peak_bytes(_SMALL) - fixed) / _SMALL / pixels),
        amp_bytes_per_pixel_per_class=_rounded(by_class[1] / pixels),
        validation_bytes_per_pixel=_rounded(max(0, seen.peak_bytes(_SMALL) - weights) / _SMALL / pixels),
        anchors_per_pixel=_rounded(_anchors_per_pixel(module, found_task)),
        step_flops_per_pixel=_rounded(step.flops / pixels),
        step_moved_bytes_per_pixel=_rounded(step.moved_bytes / pixels),
        kernels=step.kernels,
    )


def attempt(model: str, *, task: str, trusted_weights: bool, say: Callable[[str], None]) -> ArchitectureFacts | None:
    """Analyse beside a job, which goes on whatever comes of it: then a later plan knows no more than this one did.

    Args:
        model: as in `analyse`.
        task: Ultralytics' task.
        trusted_weights: load a .pt as a full pickle.
        say: takes the reason where nothing comes of it.

    Raises:
        JobError: no such model.
    """
    try:
        return analyse(model, task=task, trusted_weights=trusted_weights)
    except JobError:
        raise
    except Exception as error:  # whatever operator fake tensors do not know
        say(f"{model} could not be analysed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return None


def _by_class(
    source: models.ModelSource, task: str, classes: int, parameters: int, slope: float, fixed: float
) -> tuple[float, float]:
    """Parameters, and bytes an image, that one more class takes; zero where the head cannot be built again."""
    if source.weights or classes < _SMALL:
        return 0.0, 0.0
    single, _ = models.build(source, task=task, classes=1, trusted_weights=False)
    fewer = sum(parameter.numel() for parameter in single.parameters())
    peak = training_step(single, imgsz=IMGSZ, amp=True).peak_bytes(_SMALL)
    smaller = (peak - fixed * fewer / parameters) / _SMALL
    return max(0.0, (parameters - fewer) / (classes - 1)), max(0.0, (slope - smaller) / (classes - 1))


def _anchors_per_pixel(module: torch.nn.Module, task: str) -> float:
    if task == "classify":
        return 0.0
    layers: Any = module.model
    if type(layers[-1]).__name__ == "RTDETRDecoder":
        return sum(1 / stride**2 for stride in _DECODER_STRIDES)
    strides: Any = module.stride
    return sum(1 / float(stride) ** 2 for stride in strides)


def _rounded(value: float) -> float:
    """Five significant digits: the same file from the same code, whatever the last bits are."""
    return float(f"{value:.5g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the analysis of one model; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m yolo_airflow_provider.worker.analysis", description=__doc__)
    parser.add_argument("model", help="a name such as yolov8m, or the path of a .yaml or .pt file")
    parser.add_argument("--task", help="detect, segment, pose, obb or classify; read from the model by default")
    parser.add_argument("--classes", type=int, help="number of classes; the model's own by default")
    parser.add_argument("--trusted-weights", action="store_true", help="load a .pt as a full pickle")
    options: Mapping[str, Any] = vars(parser.parse_args(arguments))
    try:
        found = analyse(
            options["model"],
            task=options["task"],
            classes=options["classes"],
            trusted_weights=options["trusted_weights"],
        )
    except JobError as error:
        print(error, file=sys.stderr)
        return 1
    print(found.model_dump_json())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
