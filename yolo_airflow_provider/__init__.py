"""Airflow operators that measure YOLO trainings and choose the batch of later ones from what they measured.

Airflow imports this package while its own configuration is still loading, so nothing is imported here: the
public names below load on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "ExportOperator": "yolo_airflow_provider.operators.export",
    "MigTrainOperator": "yolo_airflow_provider.operators.train",
    "PreprocessOperator": "yolo_airflow_provider.operators.preprocess",
    "ProfileProbeOperator": "yolo_airflow_provider.operators.probe",
    "ProfileStoreHook": "yolo_airflow_provider.hooks.profile_store",
    "YOLO_RETRY_POLICY": "yolo_airflow_provider.operators.retry",
}

__all__ = [*_PUBLIC_NAMES, "__version__"]

if TYPE_CHECKING:
    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook as ProfileStoreHook
    from yolo_airflow_provider.operators.export import ExportOperator as ExportOperator
    from yolo_airflow_provider.operators.preprocess import PreprocessOperator as PreprocessOperator
    from yolo_airflow_provider.operators.probe import ProfileProbeOperator as ProfileProbeOperator
    from yolo_airflow_provider.operators.retry import YOLO_RETRY_POLICY as YOLO_RETRY_POLICY
    from yolo_airflow_provider.operators.train import MigTrainOperator as MigTrainOperator


def __getattr__(name: str) -> object:
    if name in _PUBLIC_NAMES:
        import importlib

        return getattr(importlib.import_module(_PUBLIC_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
