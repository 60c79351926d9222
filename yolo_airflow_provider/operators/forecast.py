"""What the planner is told of a training that may never have run: its architecture, its data, what was timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import TYPE_CHECKING

from yolo_airflow_provider.contract import ArchitectureFacts, DatasetSummary, profile_name
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cards import device
from yolo_airflow_provider.operators.plan import IN_MEMORY, precision
from yolo_airflow_provider.planner import timing
from yolo_airflow_provider.planner.calibration import Point, learned
from yolo_airflow_provider.planner.catalogue import Architecture, architecture
from yolo_airflow_provider.planner.need import CONTEXT_BYTES, CPU, GPU, Constants, Objects, Workload

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import EvidenceRow, RelativeRow
    from yolo_airflow_provider.profiles.store import ProfileStore


def known_architecture(model: str) -> Architecture | None:
    """The catalogue's row of a model; None for an architecture file, which may hold anything under any name."""
    path = PurePath(model)
    if path.suffix in (".yaml", ".yml") and len(path.parts) > 1:
        return None
    return architecture(path.name)


def architecture_of(model: str, task: str, given: ArchitectureFacts | None, store: ProfileStore) -> Architecture | None:
    """What is known of a model: in the catalogue, found by the preprocessing of this run, or in the store.

    Args:
        model: as the DAG's author wrote it.
        task: Ultralytics' task.
        given: what preprocessing analysed, of whichever model.
        store: asked last.
    """
    known = known_architecture(model)
    if known is not None:
        return known
    name = profile_name(model)
    if given is not None and (given.name, given.task) == (name, task):
        return Architecture(**given.model_dump())
    row = store.analysed_model(name, task)
    if row is None:
        return None
    values = {field.name: getattr(row, field.name) for field in fields(Architecture)}
    return Architecture(**values) if None not in values.values() else None


def workload(
    shape: Architecture | None,
    imgsz: int,
    *,
    amp: bool,
    optimizer: str,
    accelerator: Accelerator,
    dataset: DatasetSummary | None,
) -> Workload | None:
    """The training as far as memory is concerned; None where its architecture is not known."""
    if shape is None:
        return None
    return Workload(
        architecture=shape,
        imgsz=imgsz,
        precision="amp" if precision(amp, accelerator.kind) == "amp" else "fp32",
        optimizer=optimizer,
        classes=dataset.classes if dataset else None,
        objects=_objects(dataset),
        on_cpu=accelerator.kind == "cpu",
    )


def constants_of(relatives: Sequence[RelativeRow], accelerator: Accelerator) -> Constants:
    """The prediction's constants, corrected by how it fared for other trainings on this kind of device.

    A training's peak is of all its epochs, so that what the allocator comes to hold over them is learned too.
    """
    on_cpu = accelerator.kind == "cpu"
    points = []
    for row in relatives:
        known = known_architecture(row.model)
        # Images that were kept in the process's own memory are no part of the prediction.
        if known is None or (on_cpu and row.cache in IN_MEMORY):
            continue
        asked = Workload(
            architecture=known,
            imgsz=row.imgsz,
            precision="amp" if row.precision == "amp" else "fp32",
            optimizer=row.optimizer or "auto",
            classes=row.classes,
            objects=None if row.objects_mean is None else Objects(row.objects_mean, row.objects_p95, row.objects_max),
            on_cpu=on_cpu,
        )
        measured = row.peak_device_bytes - (0 if on_cpu else CONTEXT_BYTES)
        if measured > 0:
            points.append(Point(asked, row.batch, measured))
    return learned(points, CPU if on_cpu else GPU)


def _objects(dataset: DatasetSummary | None) -> Objects | None:
    if dataset is None or dataset.objects_mean is None:
        return None
    return Objects(mean=dataset.objects_mean, p95=dataset.objects_p95, largest=dataset.objects_max)


def epoch_time(
    shape: Architecture | None,
    imgsz: int,
    *,
    amp: bool,
    workers: int,
    cached: bool,
    accelerator: Accelerator,
    dataset: DatasetSummary | None,
    known: Sequence[EvidenceRow],
) -> Callable[[int], timing.EpochTime | None] | None:
    """Seconds of an epoch by batch; None where the number of images is not known."""
    if dataset is None or not dataset.train_images:
        return None
    here = device(accelerator)
    timed = _timed(known, accelerator)

    def expected(batch: int) -> timing.EpochTime | None:
        job = timing.Job(
            imgsz=imgsz,
            batch=batch,
            images=dataset.train_images,
            val_images=dataset.val_images,
            precision="amp" if precision(amp, accelerator.kind) == "amp" else "fp32",
            workers=workers,
            cached=cached,
        )
        # Of a card that is in no data sheet here, only what was measured on it is known.
        cannot_tell = here is None and accelerator.kind != "cpu"
        return timing.expect(timed, None if cannot_tell else shape, here, job)

    return expected


def _timed(known: Sequence[EvidenceRow], accelerator: Accelerator) -> list[timing.Timed]:
    return [
        timing.Timed(
            id=row.id,
            batch=row.batch,
            images_per_second=row.images_per_second,
            epoch_seconds=row.epoch_seconds if row.kind == "train" else None,
            images=row.train_images,
            device=device(
                Accelerator(
                    accelerator.kind, accelerator.product, row.mig_profile or "", memory_bytes=accelerator.memory_bytes
                )
            ),
        )
        for row in known
        if row.batch and row.outcome == "succeeded"
    ]
