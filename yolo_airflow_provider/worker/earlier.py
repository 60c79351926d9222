"""What an earlier try left in the run's folder. Imports no torch: a finished run is re-reported in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from yolo_airflow_provider.contract import ContractError, JobResult, JobSpec, TrainJob

# What makes a training another one; batch, workers and cache may change from try to try.
_IDENTITY = ("model", "data", "imgsz", "epochs", "seed", "optimizer", "amp", "task", "overrides")
_MARKER = "training.json"


def identity(job: TrainJob) -> dict[str, Any]:
    """What two trainings must share for one to go on where the other stopped."""
    fields: dict[str, Any] = json.loads(job.model_dump_json(include=set(_IDENTITY)))
    return fields


def read_identity(run_folder: Path) -> dict[str, Any] | None:
    """The training that the folder holds, None where there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads((run_folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def changes(earlier: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """What another training differs in, for its log: `epochs 100 -> 300`; empty where nothing does."""
    if earlier is None:
        return "nothing says which"
    return ", ".join(
        f"{key} {earlier.get(key)!r} -> {now[key]!r}" for key in sorted(now) if earlier.get(key) != now[key]
    )


def marker(run_folder: Path) -> Path:
    """Where the folder's training is noted."""
    return run_folder / _MARKER


def set_aside(run_folder: Path, training_folder: Path) -> Path:
    """Move another training out of the way, with its results and epochs; returns where it is kept.

    The results go first: were they left when the folder is gone, they would pass for the next training's.
    """
    for file in (*run_folder.glob("result-*.json"), run_folder / "epochs.jsonl"):
        if file.exists():
            file.replace(training_folder / file.name)
    number = 1
    while (aside := run_folder / f"{training_folder.name}-before-{number}").exists():
        number += 1
    training_folder.rename(aside)
    return aside


def finished(spec: JobSpec, job: TrainJob) -> JobResult | None:
    """The result of an earlier try that finished this training, None where there is none.

    It keeps its own try number, so that its measurement is recorded once and under the try that made it.
    """
    folder = Path(spec.run_folder)
    if not job.resume or read_identity(folder) != identity(job):
        return None
    for file in sorted(folder.glob("result-*.json"), key=_try_number, reverse=True):
        try:
            result = JobResult.from_json(file.read_text(encoding="utf-8"))
        except (OSError, ContractError):
            continue
        if result.succeeded and result.train and (folder / result.train.best_weights).is_file():
            note = f"try {result.try_number} finished this training; its result is reported again, nothing is trained"
            return result.model_copy(update={"notes": (note,)})
    return None


def _try_number(result_file: Path) -> int:
    """Of `result-10.json`, which as text would come before `result-9.json`."""
    number = result_file.stem.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
