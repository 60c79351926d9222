"""ExportOperator: export weights, on the CPU, and compare the artefact with the model on real images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from yolo_airflow_provider.contract import ExportJob, JobResult, JobSpec
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.operators import parameters
from yolo_airflow_provider.operators.base import Proposal, YoloPodOperator
from yolo_airflow_provider.operators.plan import read_data
from yolo_airflow_provider.planner import host

MEMORY_BYTES = 2 * 2**30
"""Requested: torch, the model, and the artefact's runtime beside it."""


class ExportOperator(YoloPodOperator):
    """Exports weights, reloads the artefact and compares its raw outputs with the model's.

    :param weights: path of a .pt, or the output of a MigTrainOperator. (templated)
    :param format: Ultralytics' name: onnx, torchscript, openvino, ... (templated)
    :param data: data set whose validation images are compared on; default the training's. (templated)
    :param imgsz: default the training's, or 640. (templated)
    :param images: how many images to compare on. (templated)
    :param tolerance: largest difference allowed, as a fraction of the largest output. (templated)
    :param half: export in 16 bit. (templated)
    :param trusted_weights: load a .pt as a full pickle; see ModelOperator. (templated)

    Returns `{"artefact": path, "format": ..., "sha256": ..., "size_bytes": ..., "largest_difference": ...}`.
    """

    template_fields: Sequence[str] = (
        *YoloPodOperator.template_fields,
        "weights",
        "format",
        "data",
        "imgsz",
        "images",
        "tolerance",
        "half",
        "trusted_weights",
    )

    def __init__(
        self,
        *,
        weights: Any,
        format: str = "onnx",
        data: Any = None,
        imgsz: int | str | None = None,
        images: int | str = 8,
        tolerance: float | str = 1e-3,
        half: bool | str = False,
        trusted_weights: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.weights = weights
        self.format = format
        self.data = data
        self.imgsz = imgsz
        self.images = images
        self.tolerance = tolerance
        self.half = half
        self.trusted_weights = trusted_weights

    def _propose(self, accelerator: Accelerator) -> Proposal:
        training = self.weights if isinstance(self.weights, Mapping) else {}
        weights = training.get("weights") if training else self.weights
        if not isinstance(weights, str) or not weights:
            raise BadInput(
                f"weights={self.weights!r} is neither the path of a .pt nor the output of a MigTrainOperator"
            )
        data = read_data(self.data).path if self.data else training.get("data")
        if data is None:
            raise BadInput("no data set to compare the artefact on: pass data= as to the training")
        return Proposal(
            ExportJob(
                weights=weights,
                format=self.format,
                data=data,
                imgsz=parameters.whole_number("imgsz", self.imgsz or training.get("imgsz") or 640, least=32),
                images=parameters.whole_number("images", self.images, least=1),
                tolerance=_fraction(self.tolerance),
                half=parameters.switch("half", self.half),
                trusted_weights=parameters.switch("trusted_weights", self.trusted_weights),
            ),
            host.cpu_task(MEMORY_BYTES),
        )

    def _returned(self, spec: JobSpec, result: JobResult) -> dict[str, Any]:
        export = result.export
        if export is None:
            return {}
        return {
            "artefact": str(PurePosixPath(spec.run_folder, export.artefact)),
            "format": export.format,
            "sha256": export.sha256,
            "size_bytes": export.size_bytes,
            "largest_difference": export.largest_difference,
        }


def _fraction(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"tolerance={value!r} is not a number") from None
