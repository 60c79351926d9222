"""PreprocessOperator: check a data set and prepare it for training, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from yolo_airflow_provider.contract import JobResult, JobSpec, PreprocessJob
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.operators import parameters
from yolo_airflow_provider.operators.base import Proposal, YoloPodOperator
from yolo_airflow_provider.operators.forecast import known_architecture
from yolo_airflow_provider.operators.plan import read_data
from yolo_airflow_provider.planner import host

MEMORY_BYTES = 512 * 2**20
"""Requested: it decodes one image at a time and keeps numbers of all labels."""
ANALYSIS_MEMORY_BYTES = 1536 * 2**20
"""Requested where it analyses an architecture: torch and Ultralytics take 0.8 GiB once they are imported."""


class PreprocessOperator(YoloPodOperator):
    """Validates a YOLO data set, repairs what is safe, and prepares a copy in the workspace.

    The source is never written to. Empty and duplicate boxes are dropped; images whose labels the trainer would
    refuse are left out; everything is listed in a report with file and line.

    :param data: path of the data.yaml, as the pod sees it. (templated)
    :param imgsz: side of the square input the set is meant for, pixels. (templated)
    :param task: Ultralytics' task: detect, segment, pose or obb. (templated)
    :param copy_images: copy images into the workspace instead of linking to them. (templated)
    :param model: architecture or weights of your own (.yaml, .pt) that the set is for: it is analysed here, on the CPU,
        so that its first training is planned and not tried. Known names (`yolov8n`) need none. (templated)
    :param trusted_weights: load a .pt as a full pickle. (templated)

    Returns `{"data": path of the prepared data.yaml, "report": path, "dataset": summary, "architecture": analysis or
    None}`; the other operators take it as their `data`.
    """

    template_fields: Sequence[str] = (
        *YoloPodOperator.template_fields,
        "data",
        "imgsz",
        "task",
        "copy_images",
        "model",
        "trusted_weights",
    )

    def __init__(
        self,
        *,
        data: str,
        imgsz: int | str = 640,
        task: str = "detect",
        copy_images: bool | str = False,
        model: str | None = None,
        trusted_weights: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.data = data
        self.imgsz = imgsz
        self.task = task
        self.copy_images = copy_images
        self.model = model
        self.trusted_weights = trusted_weights

    def _propose(self, accelerator: Accelerator) -> Proposal:
        unknown = self.model if self.model and known_architecture(self.model) is None else None
        return Proposal(
            PreprocessJob(
                data=read_data(self.data).path,
                imgsz=parameters.whole_number("imgsz", self.imgsz, least=32),
                task=self.task,
                copy_images=parameters.switch("copy_images", self.copy_images),
                model=unknown,
                trusted_weights=parameters.switch("trusted_weights", self.trusted_weights),
            ),
            host.cpu_task(MEMORY_BYTES if unknown is None else ANALYSIS_MEMORY_BYTES),
        )

    def _returned(self, spec: JobSpec, result: JobResult) -> dict[str, Any]:
        dataset = result.dataset
        if dataset is None:
            return {}
        return {
            "data": str(PurePosixPath(spec.workspace, dataset.data_yaml)),
            "report": str(PurePosixPath(spec.run_folder, dataset.report)),
            "dataset": dataset.model_dump(mode="json"),
            "architecture": result.architecture.model_dump(mode="json") if result.architecture else None,
        }
