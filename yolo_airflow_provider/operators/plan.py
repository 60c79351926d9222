"""What a try is going to run, put together from the task's parameters, what is offered and what is known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from yolo_airflow_provider import contract
from yolo_airflow_provider.contract import (
    ArchitectureFacts,
    DatasetSummary,
    FailureClass,
    Identity,
    JobSpec,
    describe,
    profile_name,
)
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.planner.choice import Choice, Question
from yolo_airflow_provider.planner.evidence import Observation
from yolo_airflow_provider.planner.host import HostObservation

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import DecisionRow, EvidenceRow, ProfileKey, RunKey

_MEMORY_OUTCOMES = {"gpu_oom", "host_oom"}
IN_MEMORY = {"ram", "True"}
"""Ultralytics' values of `cache` that keep images in memory, as the store has them."""


@dataclass(frozen=True)
class DataSource:
    """A data set as a task was given it: a path, or all that preprocessing returned.

    Attributes:
        path: of the data.yaml.
        summary: what preprocessing found, None for a bare path.
        architecture: what it analysed, where it was given a model.
    """

    path: str
    summary: DatasetSummary | None
    architecture: ArchitectureFacts | None = None

    @property
    def images(self) -> int | None:
        """Training images, None where not known."""
        return self.summary.train_images if self.summary else None


def read_data(data: Any) -> DataSource:
    """Read the parameter `data`: a path, or the result of a PreprocessOperator.

    Raises:
        BadInput: neither of them.
    """
    if isinstance(data, str) and data.strip():
        return DataSource(data, None)
    if isinstance(data, Mapping) and isinstance(data.get("data"), str) and "dataset" in data:
        try:
            analysed = data.get("architecture")
            return DataSource(
                data["data"],
                DatasetSummary.model_validate(data["dataset"]),
                None if analysed is None else ArchitectureFacts.model_validate(analysed),
            )
        except ValidationError as error:
            raise BadInput(f"data: the preprocessing result is wrong: {describe(error)}") from error
    raise BadInput(f"data={data!r} is no data set: give the path of a data.yaml, or the output of a PreprocessOperator")


def identity_of(context: Mapping[str, Any]) -> Identity:
    """Whose run it is, from the task's context. Manual and asset-triggered runs have no logical date."""
    ti = context["ti"]
    return Identity(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
        try_number=ti.try_number,
        attempt=str(getattr(ti, "id", None) or ""),
        logical_date=context.get("logical_date"),
    )


def run_folder(workspace: str, identity: Identity) -> str:
    """`<workspace>/<dag>/<run>/<task>/<map index>`, the same for every try."""
    names = (identity.dag_id, identity.run_id, identity.task_id, str(identity.map_index))
    return str(PurePosixPath(workspace, *(_folder_name(name) for name in names)))


def _folder_name(name: str) -> str:
    """A name as one path component; what had to be changed is told apart by a hash of the original."""
    safe = re.sub(r"[^\w.:+=@~-]", "_", name).lstrip(".") or "_"
    if safe == name and len(name.encode()) <= 200:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{safe.encode()[:180].decode(errors='ignore')}-{digest}"


def to_contract(accelerator: Accelerator, *, enforce_budget: bool) -> contract.Accelerator:
    """The accelerator as the pod is told it."""
    return contract.Accelerator(
        kind=accelerator.kind,
        product=accelerator.product,
        mig_profile=accelerator.mig_profile,
        memory_budget_bytes=accelerator.memory_bytes,
        enforce_budget=enforce_budget,
    )


def run_key(identity: Identity) -> RunKey:
    """The store's key of a try."""
    from yolo_airflow_provider.profiles.records import RunKey

    return RunKey(
        dag_id=identity.dag_id,
        run_id=identity.run_id,
        task_id=identity.task_id,
        map_index=identity.map_index,
        try_number=identity.try_number,
    )


def profile_key(model: str, imgsz: int, *, amp: bool, accelerator: Accelerator) -> ProfileKey:
    """What another run must share to be evidence for this one."""
    from yolo_airflow_provider.profiles.records import ProfileKey

    return ProfileKey(
        model=profile_name(model),
        imgsz=imgsz,
        precision=precision(amp, accelerator.kind),
        accelerator_kind=accelerator.kind,
        product=accelerator.product,
    )


def precision(amp: bool, accelerator_kind: str) -> str:
    """Ultralytics trains in mixed precision on GPUs only."""
    return "amp" if amp and accelerator_kind != "cpu" else "fp32"


def observations(known: Sequence[EvidenceRow], *, cached: int = 0) -> list[Observation]:
    """Measurements as the planner reads them; those that say nothing about the planned run are left out.

    On `cpu` images that are kept in memory are in the memory that is planned. They come on top of what a run without
    them took, and of what it did not fit into, so each measurement is read as if it had kept as many.

    Args:
        known: of the same profile.
        cached: bytes of images that the planned run keeps in memory.
    """
    return [
        Observation(
            id=row.id,
            batch=row.batch,
            peak_bytes=_with(row.peak_device_bytes, more),
            out_of_memory=row.outcome in _MEMORY_OUTCOMES,
            full_run=row.kind == "train",
            budget_bytes=_with(row.budget_bytes, more),
            epoch_seconds=row.epoch_seconds if row.kind == "train" else None,
            images=row.train_images,
            images_per_second=row.images_per_second,
            when=row.finished_at.strftime("%Y-%m-%d %H:%M"),
        )
        for row in known
        if row.batch is not None and _tells(row) and (more := _more_cached(row, cached)) is not None
    ]


def _more_cached(row: EvidenceRow, cached: int) -> int | None:
    """Bytes of images that the planned run keeps beyond the measured one; None where that is not known."""
    if row.accelerator_kind != "cpu":
        return 0
    if row.cache not in IN_MEMORY:
        return cached
    return cached - cached_bytes(row.train_images, row.imgsz) if row.train_images else None


def _with(memory_bytes: int | None, more: int) -> int | None:
    return None if memory_bytes is None else max(memory_bytes + more, 1)


def host_observations(known: Sequence[EvidenceRow]) -> list[HostObservation]:
    """Measurements as far as they tell what a run takes of its node; on `cpu` that is the planned memory itself."""
    return [
        HostObservation(
            id=row.id,
            container_bytes=row.peak_container_bytes,
            process_bytes=row.peak_rss_bytes,
            workers=row.workers or 0,
            cached_bytes=cached_bytes(row.train_images, row.imgsz) if row.cache in IN_MEMORY else 0,
            limit_bytes=row.container_limit_bytes,
            out_of_memory=row.outcome == FailureClass.HOST_OOM,
        )
        for row in known
        if row.accelerator_kind != "cpu" and row.outcome in ("succeeded", FailureClass.HOST_OOM)
    ]


def cached_bytes(images: int | None, imgsz: int | None) -> int:
    """What Ultralytics' cache of decoded images takes at most: three bytes a pixel."""
    return (images or 0) * (imgsz or 0) ** 2 * 3


def _tells(row: EvidenceRow) -> bool:
    # What a GPU pod's host memory did not hold says nothing about the device, and a run that broke off for another
    # reason had not come to its peak.
    return row.outcome in ("succeeded", "gpu_oom") or (row.outcome == "host_oom" and row.accelerator_kind == "cpu")


def decision_row(
    question: Question, choice: Choice, spec: JobSpec, *, amp: bool, objective: str | None = None
) -> DecisionRow:
    """The choice as the store keeps it."""
    from yolo_airflow_provider.profiles.records import DecisionRow

    accelerator, memory = question.accelerator, choice.memory
    return DecisionRow(
        key=run_key(spec.identity),
        decided_at=datetime.now(UTC),
        model=question.model,
        imgsz=question.imgsz,
        precision=precision(amp, accelerator.kind),
        accelerator_kind=accelerator.kind,
        product=accelerator.product,
        mig_profile=accelerator.mig_profile,
        budget_bytes=accelerator.memory_bytes,
        batch=choice.batch,
        basis=choice.why,
        sentence=choice.sentence,
        margin_percent=question.margin_percent,
        predicted_bytes=memory.expected_bytes if memory else None,
        predicted_low_bytes=memory.low_bytes if memory else None,
        predicted_high_bytes=memory.high_bytes if memory else None,
        predicted_reserved_bytes=memory.reserved_bytes if memory else None,
        predicted_epoch_seconds=choice.epoch_seconds,
        predicted_epoch_low_seconds=choice.time.low_seconds if choice.time else None,
        predicted_epoch_high_seconds=choice.time.high_seconds if choice.time else None,
        objective=objective,
        candidates=[asdict(candidate) for candidate in choice.candidates],
        evidence=list(choice.evidence),
    )
