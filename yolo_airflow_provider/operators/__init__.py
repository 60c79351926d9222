"""What DAG authors import: the four operators.

Nothing here imports torch, Ultralytics, pandas or SQLAlchemy; a DAG file must parse fast.
"""

from __future__ import annotations

from yolo_airflow_provider.operators.export import ExportOperator
from yolo_airflow_provider.operators.preprocess import PreprocessOperator
from yolo_airflow_provider.operators.probe import ProfileProbeOperator
from yolo_airflow_provider.operators.train import MigTrainOperator

__all__ = ["ExportOperator", "MigTrainOperator", "PreprocessOperator", "ProfileProbeOperator"]
