from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from yolo_airflow_provider.contract import Accelerator, DatasetSummary, Identity, JobSpec, PreprocessJob
from yolo_airflow_provider.worker.dataset import preprocess


def picture(seed: int, size: tuple[int, int] = (32, 24), kind: str = "PNG") -> bytes:
    """A tiny image whose pixels depend on the seed."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tree_hash(folder: Path) -> str:
    """One hash over every name, link target, content, mode and modification time below a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        total.update(repr((path.relative_to(folder), status.st_mode, status.st_mtime_ns)).encode() + content)
    return total.hexdigest()


@dataclass
class Builder:
    """A data set under construction, and runs of the job on it."""

    root: Path
    workspace: Path
    lines: list[str] = field(default_factory=list)
    _seed: int = 0

    def image(self, name: str, labels: str | bytes | None = "0 0.5 0.5 0.2 0.2\n", raw: bytes | None = None) -> Path:
        """Write `images/<name>` and its label file; None: no label file."""
        self._seed += 1
        path = self.root / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(self._seed) if raw is None else raw)
        if labels is not None:
            self.label(name, labels)
        return path

    def label(self, name: str, labels: str | bytes) -> Path:
        path = (self.root / "labels" / name).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(labels.encode() if isinstance(labels, str) else labels)
        return path

    def yaml(self, text: str = "train: images/train\nval: images/val\nnames: [cell, plate]\n") -> Path:
        path = self.root / "data.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def plain(self) -> Builder:
        """Two train images and a val image, nothing wrong with them."""
        self.image("train/a.png")
        self.image("train/b.png", "1 0.25 0.25 0.1 0.1\n0 0.5 0.5 0.5 0.5\n")
        self.image("val/c.png")
        self.yaml()
        return self

    @property
    def run_folder(self) -> Path:
        return self.workspace / "dag" / "run" / "task" / "-1"

    def run(self, **job_fields: object) -> DatasetSummary:
        job = PreprocessJob.model_validate({"data": str(self.root / "data.yaml"), "imgsz": 64, **job_fields})
        spec = JobSpec(
            job=job,
            identity=Identity(dag_id="dag", run_id="run", task_id="task"),
            accelerator=Accelerator(kind="cpu"),
            workspace=str(self.workspace),
            run_folder=str(self.run_folder),
            result_path=os.devnull,
        )
        return preprocess(spec, job, self.lines.append)


@pytest.fixture
def dataset(tmp_path: Path) -> Builder:
    root = tmp_path / "cells"
    root.mkdir()
    return Builder(root, tmp_path / "workspace")


@pytest.fixture
def make_picture() -> Callable[..., bytes]:
    return picture


@pytest.fixture
def hash_of() -> Callable[[Path], str]:
    return tree_hash
