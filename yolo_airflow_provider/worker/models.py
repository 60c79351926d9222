"""From what a user calls a model to an architecture or a weights file that Ultralytics loads."""

from __future__ import annotations

import difflib
import re
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import ultralytics
import yaml

from yolo_airflow_provider.contract import FailureClass, ModelFacts, profile_name
from yolo_airflow_provider.worker.failures import JobError

OWN_ARCHITECTURES = Path(__file__).with_name("architectures")
"""Files in Ultralytics' format of what Ultralytics has not: the YOLOv7 family."""
LEAST_STRIDE = 32
"""Of all YOLO heads; those with a sixth level have 64."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        name: what the store calls it.
        path: what Ultralytics is given: `yolov8n.yaml`, or an absolute path to a .yaml or .pt file.
        weights: True for a .pt file.
    """

    name: str
    path: str
    weights: bool


def resolve(model: str, *, trusted_weights: bool) -> ModelSource:
    """Find a model without loading it; nothing is downloaded.

    Raises:
        JobError: no such name (near ones are suggested), no such file, or a file that is neither an architecture
            nor a checkpoint.
    """
    path = Path(model)
    if path.suffix == ".pt":
        return _weights(path, trusted_weights=trusted_weights)
    if path.suffix in (".yaml", ".yml") and (path.is_absolute() or path.exists()):
        return _architecture(path)
    name = path.stem if path.suffix in (".yaml", ".yml") else model
    if (own := OWN_ARCHITECTURES / f"{name}.yaml").is_file():
        return ModelSource(name=name, path=str(own), weights=False)
    if name in known_architectures():
        return ModelSource(name=name, path=f"{name}.yaml", weights=False)
    near = difflib.get_close_matches(name, known_architectures(), n=4, cutoff=0.5)
    raise _refused(
        f"no model is called {model!r} in Ultralytics {ultralytics.__version__}",
        f"did you mean {', '.join(near)}?" if near else "give a name such as yolov8n, or a path to a .yaml or .pt file",
    )


@cache
def known_architectures() -> tuple[str, ...]:
    """Every architecture that Ultralytics or this package ships, with its scales: `yolov8n`, `yolov7-tiny`, ..."""
    names = {file.stem for file in OWN_ARCHITECTURES.glob("*.yaml")}
    for file in sorted((Path(ultralytics.__file__).parent / "cfg" / "models").rglob("*.yaml")):
        names.add(file.stem)
        scales = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("scales") or {}
        family = re.match(r"(yolo(?:e-)?v?\d+)(.*)", file.stem)
        # Of a file for one scale, such as yolov10b.yaml, the name has it already.
        if family and not (family[2][:1] in scales and family[2][1:2] in ("", "-")):
            names.update(f"{family[1]}{scale}{family[2]}" for scale in scales)
    return tuple(sorted(names))


def build(
    source: ModelSource, *, task: str | None, classes: int | None, trusted_weights: bool
) -> tuple[torch.nn.Module, str]:
    """The module that is trained, untrained where the source is an architecture; and its task.

    Raises:
        JobError: the architecture cannot be built.
    """
    from ultralytics import RTDETR, YOLO
    from ultralytics.nn.tasks import guess_model_task, torch_safe_load, yaml_model_load

    if source.weights:
        checkpoint, _ = torch_safe_load(source.path, safe_only=not trusted_weights)
        module = (checkpoint.get("ema") or checkpoint["model"]).float()
        for parameter in module.parameters():
            parameter.requires_grad = True
        return module, task or guess_model_task(module)
    try:
        layers = yaml_model_load(source.path)
        # YOLO builds any head but RT-DETR's decoder, which has a class of its own and no task in its name.
        family = RTDETR if layers["head"][-1][2] == "RTDETRDecoder" else YOLO
        found = task or ("detect" if family is RTDETR else guess_model_task(layers))
        known = family.task_map.fget(None)  # a property that reads nothing of its object (Ultralytics 8.4)
        return known[found]["model"](layers, ch=3, nc=classes, verbose=False), found
    except (KeyError, IndexError, TypeError, ValueError, AssertionError, RuntimeError, NotImplementedError) as error:
        raise _refused(
            f"the architecture {source.path} cannot be built: {type(error).__name__}: {error}",
            "compare its layers with those that Ultralytics ships",
        ) from error


def facts(module: torch.nn.Module, *, name: str, task: str, imgsz: int) -> ModelFacts:
    """Parameters, FLOPs of a forward pass at `imgsz`, stride and classes of a built model."""
    from ultralytics.utils.torch_utils import get_flops

    # RT-DETR and some heads have no stride attribute; 32 is what the trainer takes for them.
    stride = int(torch.as_tensor(getattr(module, "stride", 32)).max())
    flops: Any = get_flops(module, imgsz)
    return ModelFacts(
        name=name,
        task=task,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        gflops=round(float(flops), 3) if flops else None,
        stride=max(stride, 32),
        classes=int(getattr(module, "nc", 0) or len(getattr(module, "names", {}))),
    )


def check_imgsz(imgsz: int, stride: int) -> None:
    """Refuse a size that the trainer would silently round up: what is measured must be what was asked.

    Raises:
        JobError: `imgsz` is not a multiple of the model's largest stride.
    """
    if imgsz % stride:
        below, above = imgsz // stride * stride, (imgsz // stride + 1) * stride
        raise _refused(
            f"imgsz={imgsz} is not a multiple of the model's stride {stride}",
            f"use {below} or {above}" if below else f"use {above}",
        )


def _weights(path: Path, *, trusted_weights: bool) -> ModelSource:
    if not path.is_file():
        raise _refused(
            f"the weights file {path} does not exist; nothing is downloaded",
            f"mount it into the run, or use model={path.stem!r} to train from scratch",
        )
    # A checkpoint is a zip of a pickle and raw storages since torch 1.6. The check opens no pickle.
    if not zipfile.is_zipfile(path):
        raise _refused(
            f"{path} is not a YOLO checkpoint: it is no torch archive ({path.stat().st_size:,} bytes)",
            "train or export it again with a current Ultralytics",
        )
    try:
        from ultralytics.nn.tasks import torch_safe_load

        checkpoint, _ = torch_safe_load(str(path), safe_only=not trusted_weights)
    except Exception as error:
        raise _refused(
            f"{path} is not a YOLO checkpoint that can be loaded safely: {str(error).splitlines()[0]}",
            "a .pt file is a pickle that may run any code: only known model classes are loaded. If you trust its"
            " origin, set trusted_weights=True",
        ) from error
    if not isinstance(checkpoint, dict) or (checkpoint.get("model") is None and checkpoint.get("ema") is None):
        raise _refused(f"{path} holds no YOLO model", "give a checkpoint that Ultralytics saved (best.pt, last.pt)")
    return ModelSource(name=profile_name(str(path)), path=str(path.absolute()), weights=True)


def _architecture(path: Path) -> ModelSource:
    if not path.is_file():
        raise _refused(f"the model file {path} does not exist", "check the path inside the pod")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _refused(
            f"{path} is not a YAML file: {str(error).splitlines()[0]}", "give an architecture file"
        ) from error
    missing = [key for key in ("backbone", "head") if not isinstance(content, dict) or not content.get(key)]
    if missing:
        raise _refused(
            f"{path} is not a YOLO architecture: no {' and no '.join(missing)}",
            "an architecture lists its layers under backbone: and head:",
        )
    return ModelSource(name=profile_name(str(path)), path=str(path.absolute()), weights=False)


def _refused(message: str, hint: str) -> JobError:
    return JobError(FailureClass.DATA, message, hint=hint, stage="setup")
