"""Checks and prepares YOLO data sets: `preprocess` is the job, the modules below it one step each.

source (as its owner wrote it) -> scan (images, labels) -> fingerprint -> prepare (for training) -> report.
"""

from __future__ import annotations

from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.run import preprocess

__all__ = ["DatasetError", "preprocess"]
