"""From what a worker answered to the rows of the profile store."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from yolo_airflow_provider.contract import (
    DatasetSummary,
    EpochRecord,
    JobResult,
    JobSpec,
    Measurement,
    ModelFacts,
    ProbeJob,
    TrainJob,
    profile_name,
)
from yolo_airflow_provider.operators.forecast import known_architecture
from yolo_airflow_provider.operators.plan import precision, run_key
from yolo_airflow_provider.planner.catalogue import for_classes
from yolo_airflow_provider.profiles.records import EpochRow, MeasurementRow, ModelRow, RunKey

_SAME_PARAMETERS = 0.01
"""By this much the count of another head of the same architecture is off."""


def measurement_rows(
    spec: JobSpec, result: JobResult, dataset: DatasetSummary | None, *, container_limit_bytes: int | None = None
) -> list[MeasurementRow]:
    """One row a measurement; one row also for a run that measured nothing, so that every end is on record.

    Args:
        spec: the job as its pod was given it.
        result: what came of it.
        dataset: what is known of the data set where the result does not tell.
        container_limit_bytes: memory limit of the container, None where there was none.
    """
    # A finished run that is reported again keeps the try that measured it.
    identity = spec.identity.model_copy(update={"try_number": result.try_number})
    common = _common(spec, result, result.dataset or dataset) | {
        "key": run_key(identity),
        "container_limit_bytes": container_limit_bytes,
    }
    outcome = result.failure.failure_class.value if result.failure else "succeeded"
    rows = [_row(measurement, common) for measurement in result.measurements]
    if not any(row.key == common["key"] for row in rows):
        # A part of its own: were it `train`, it would stand in the way of the training's row, should a later try
        # find the finished result in the run's folder and report it under this try.
        rows.append(MeasurementRow(part="end", outcome=outcome, **(common | _unmeasured(spec, result))))
    return [_storable(row) for row in rows]


def _storable(row: MeasurementRow) -> MeasurementRow:
    """The row as far as the store takes it: a run is not lost for a byte in its log or a metric that is no number."""
    from yolo_airflow_provider.profiles.rows import readable

    changes: dict[str, Any] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, str):
            changes[field.name] = readable(value)
        elif isinstance(value, float) and not math.isfinite(value):
            changes[field.name] = None
    return replace(row, **changes)


def model_rows(spec: JobSpec, result: JobResult) -> list[ModelRow]:
    """The architecture as the run found it."""
    facts, analysed = result.model, result.architecture
    rows = [] if analysed is None else [ModelRow(**analysed.model_dump())]
    if facts is not None and not any(
        (facts.classes, facts.parameters) == (row.classes, row.parameters) for row in rows
    ):
        given = {name: getattr(facts, name) for name in ("name", "task", "classes", "parameters", "stride", "gflops")}
        rows.append(ModelRow(**(_in_catalogue(spec, facts) | given), gflops_imgsz=spec.job.imgsz))
    return rows


def _in_catalogue(spec: JobSpec, facts: ModelFacts) -> dict[str, Any]:
    """What the package knows of the architecture with this many classes; nothing where the file holds another one."""
    known = known_architecture(getattr(spec.job, "model", ""))
    if known is None:
        return {}
    same = for_classes(known, facts.classes)
    if abs(same.parameters - facts.parameters) > _SAME_PARAMETERS * facts.parameters:
        return {}
    return {name: value for name, value in asdict(same).items() if name != "gflops_imgsz"}


def epoch_rows(spec: JobSpec) -> list[EpochRow]:
    """The epochs that the run's folder lists, of every try; none where the folder cannot be seen from here.

    Rows of earlier tries are in the store already and stay as they are.
    """
    try:
        lines = (Path(spec.run_folder) / "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            record = EpochRecord.model_validate_json(line)
        except ValidationError:
            continue  # the line that a kill cut off
        key = run_key(spec.identity.model_copy(update={"try_number": record.try_number}))
        rows.append(_epoch(key, record))
    return rows


def _epoch(key: RunKey, record: EpochRecord) -> EpochRow:
    return EpochRow(
        key=key,
        epoch=record.epoch,
        seconds=record.seconds,
        images_per_second=record.images_per_second,
        peak_device_bytes=record.peak_device_bytes,
        validation_peak_bytes=record.validation_peak_bytes,
        data_wait_percent=record.data_wait_percent,
        iowait_percent=record.iowait_percent,
        losses=record.losses,
        metrics=record.metrics,
    )


def _row(measurement: Measurement, common: dict[str, Any]) -> MeasurementRow:
    measured = measurement.model_dump(exclude={"failure_class", "try_number"})
    if measurement.try_number is not None:
        # Measured by an earlier try, whose row may be there already; under this one it would be a second measurement.
        measured["key"] = replace(common["key"], try_number=measurement.try_number)
    failure = measurement.failure_class
    return MeasurementRow(outcome=failure.value if failure else "succeeded", **(common | measured))


def _unmeasured(spec: JobSpec, result: JobResult) -> dict[str, Any]:
    """What is known of a run that measured nothing, from its job: enough for an out-of-memory to be evidence."""
    job = spec.job
    if not isinstance(job, TrainJob | ProbeJob):
        return {}
    return {
        # Which of its batches a probe did not survive is not known; the largest then does not fit either.
        "batch": job.batch if isinstance(job, TrainJob) else max(job.batches),
        "precision": precision(job.amp, spec.accelerator.kind),
        "optimizer": job.optimizer,
        "workers": 0 if spec.accelerator.kind == "cpu" else job.workers,
        "peak_device_bytes": result.failure.needed_bytes if result.failure else None,
    }


def _common(spec: JobSpec, result: JobResult, dataset: DatasetSummary | None) -> dict[str, Any]:
    job, given, seen, facts, train = (
        spec.job,
        spec.accelerator,
        result.environment,
        result.model,
        result.train,
    )
    model = job.model if isinstance(job, TrainJob | ProbeJob) else None
    return {
        "kind": job.kind,
        "finished_at": datetime.now(UTC),
        "logical_date": spec.identity.logical_date,
        "message": result.failure.message if result.failure else None,
        "model": facts.name if facts else (profile_name(model) if model else None),
        "model_task": getattr(job, "task", None),
        "classes": facts.classes if facts else (dataset.classes if dataset else None),
        "imgsz": job.imgsz,
        "epochs": getattr(job, "epochs", None),
        "epochs_done": train.epochs_done if train else None,
        "resumed_epochs": train.resumed_epochs if train else None,
        "dataset": dataset.name if dataset else None,
        "dataset_fingerprint": dataset.fingerprint if dataset else None,
        "train_images": dataset.train_images if dataset else None,
        "dataset_bytes": dataset.size_bytes if dataset else None,
        "objects_mean": dataset.objects_mean if dataset else None,
        "objects_p95": dataset.objects_p95 if dataset else None,
        "objects_max": dataset.objects_max if dataset else None,
        "cache": str(job.cache) if job.kind == "train" and job.cache else None,
        "torch_version": seen.torch if seen else None,
        "ultralytics_version": seen.ultralytics if seen else None,
        "accelerator_kind": given.kind,
        "product": given.product,
        "device_name": seen.product if seen else None,
        "mig_profile": given.mig_profile,
        "budget_bytes": given.memory_budget_bytes,
        "multiprocessors": seen.multiprocessors if seen else None,
        "cpu_cores": seen.cpu_cores if seen else None,
        "node": seen.node if seen else None,
        "map50": train.metrics.get("mAP50") if train else None,
        "map50_95": train.metrics.get("mAP50-95") if train else None,
    }
