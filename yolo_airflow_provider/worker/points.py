"""The points of a probe, kept line by line in the run's folder as they are measured.

A container that the kernel kills at batch 16 has measured 2 and 8 and cannot say so any more. The next try reads them
here, and knows batch 16 by a line that says that it was started and none that says how it ended. One such line says
little, as nodes go down too; the second one says that it is the batch. A probe that succeeded is not continued: who
runs it again wants it measured again.

    {"batch": 2, "started": true, "probe": {"model": "yolov8n", ...}, "room": {...}}
    {"batch": 2, "measurement": {...}, "model": {...}, "try": 1, "probe": ..., "room": ...}
    {"batch": 16, "started": true, "probe": ..., "room": ...}
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from yolo_airflow_provider.contract import (
    ContractError,
    FailureClass,
    JobResult,
    JobSpec,
    Measurement,
    ModelFacts,
    ProbeJob,
)
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.files import append_line

# What two probes must share for a point of one to be a point of the other. Batches may change from try to try.
_IDENTITY = ("model", "data", "imgsz", "task", "amp", "optimizer", "steps")
_DEVICE = ("kind", "product", "mig_profile")
_SOFTWARE = ("torch", "ultralytics")

_VANISHED_TRIES = 2
"""Tries that ended without a word at a batch before it is left out: one may have been anything."""


@dataclass(frozen=True)
class Room:
    """The memory that a point is measured in. A batch that did not fit is tried again only in a larger one."""

    budget_bytes: int | None = None
    limit_bytes: int | None = None
    """Of the container; on a GPU another memory than the budget. None: as much as the node has."""

    def is_larger_than(self, other: Room) -> bool:
        """Whether either memory is known to be larger; a container whose limit was taken away has more."""
        pairs = ((self.budget_bytes, other.budget_bytes), (self.limit_bytes, other.limit_bytes))
        larger = any(now is not None and then is not None and now > then for now, then in pairs)
        return larger or (self.limit_bytes is None and other.limit_bytes is not None)


@dataclass
class Earlier:
    """What earlier tries of the same probe left.

    Attributes:
        points: by batch, each with the try that measured it; also those that ran out of memory, as long as there is
            not more of it now.
        unanswered: how many tries in a row ended without a word at a batch, in no less memory than there is now.
        model: the architecture, None where no point was measured.
    """

    points: dict[int, Measurement] = field(default_factory=dict)
    unanswered: Counter[int] = field(default_factory=Counter)
    model: ModelFacts | None = None

    @property
    def vanished(self) -> set[int]:
        """Batches that take the container with them, as far as one can tell."""
        return {batch for batch, tries in self.unanswered.items() if tries >= _VANISHED_TRIES}


class PointLog:
    """Writes the lines of one try.

    Args:
        spec: of the probe.
        job: the probe itself.
        fence: asked before each line.
        limit_bytes: of the container.
    """

    def __init__(self, spec: JobSpec, job: ProbeJob, fence: Fence, *, limit_bytes: int | None) -> None:
        self._path = fence.folder / f"probe-{fence.label}.json"
        self._fence = fence
        self._identity = _identity(spec, job)
        self._room = Room(spec.accelerator.memory_budget_bytes, limit_bytes)

    def earlier(self) -> Earlier:
        """What is on record, by this try number too: a pod that restarted is the same try."""
        found = Earlier()
        for file in self._unfinished():
            for line in _lines(file):
                if line.get("probe") == self._identity:
                    self._take(found, line)
        return found

    def _unfinished(self) -> list[Path]:
        """The files of tries since the last one that succeeded, oldest first.

        By time and not by number: a run that was made again under its name counts from 1 once more.
        """
        folder = self._path.parent
        succeeded = max((_written(file) for file in folder.glob("result-*.json") if _succeeded(file)), default=-1)
        files = sorted((_written(file), file) for file in folder.glob("probe-*.json"))
        return [file for written, file in files if written > succeeded]

    def started(self, batch: int) -> None:
        """Note, before its first step, that a batch is being measured."""
        self._write({"batch": batch, "started": True})

    def measured(self, point: Measurement, model: ModelFacts | None) -> None:
        """Keep a point, also one that ran out of memory."""
        facts = model.model_dump(mode="json") if model else None
        self._write(
            {
                "batch": point.batch,
                "measurement": point.model_dump(mode="json", exclude_none=True),
                "model": facts,
                "try": self._fence.try_number,
            }
        )

    def ended(self, batch: int, why: FailureClass) -> None:
        """Note that a batch ended without a point, for a reason that says nothing of the batch."""
        self._write({"batch": batch, "ended": why})

    def _take(self, found: Earlier, line: dict[str, Any]) -> None:
        try:
            batch = int(line["batch"])
            room = Room(**line["room"])
            point = _point(line) if "measurement" in line else None
            model = ModelFacts.model_validate(line["model"]) if line.get("model") else None
        except (KeyError, TypeError, ValueError, ValidationError):
            return  # of another version of this package; the batch is measured again
        found.points.pop(batch, None)
        if line.get("started") and not self._room.is_larger_than(room):
            found.unanswered[batch] += 1
            return
        found.unanswered.pop(batch, None)
        if point is not None and not (point.failure_class and self._room.is_larger_than(room)):
            found.points[batch] = point
            found.model = model or found.model

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line | {"probe": self._identity, "room": asdict(self._room)})
        self._fence.check()
        append_line(self._path, text)


def _identity(spec: JobSpec, job: ProbeJob) -> dict[str, Any]:
    device = spec.accelerator.model_dump(mode="json", include=set(_DEVICE))
    identity: dict[str, Any] = job.model_dump(mode="json", include=set(_IDENTITY))
    return identity | device | {package: version(package) for package in _SOFTWARE}


def _point(line: dict[str, Any]) -> Measurement:
    return Measurement.model_validate(line["measurement"] | {"try_number": line["try"]})


def _succeeded(result_file: Path) -> bool:
    try:
        result = JobResult.from_json(result_file.read_text(encoding="utf-8"))
    except (OSError, ContractError):
        return False
    return result.kind == "probe" and result.succeeded


def _written(file: Path) -> int:
    """When it was last written, nanoseconds of the volume's own clock; long ago where it is gone."""
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        texts = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for text in texts:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the line that a kill cut off, or an empty one
        if isinstance(line, dict):
            yield line
