"""DAGs that several tests run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG
from cluster_settings import ROOT

from yolo_airflow_provider.operators import MigTrainOperator
from yolo_airflow_provider.operators.retry import YOLO_RETRY_POLICY


def training(dag_id: str, *, data: str, **parameters: Any) -> DAG:
    """One training of a small model on a slice, with two retries that do not wait long."""
    defaults: dict[str, Any] = {
        "model": "yolov8n",
        "imgsz": 64,
        "epochs": 1,
        "batch": 4,
        "accelerator": "1g.5gb",
        "amp": False,  # Ultralytics' check of it takes longer than these trainings
        "retries": 2,
        "retry_delay": timedelta(seconds=1),
        "poll_interval": 1,
    }
    with DAG(dag_id, schedule=None) as dag:
        MigTrainOperator(task_id="train", data=data, **(defaults | parameters))
    return dag


def example() -> DAG:
    """The example DAG, read from its file."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(ROOT / "dags" / "yolo_train.py"))
    assert not bag.import_errors
    dag: DAG = bag.dags["yolo_train"]
    return dag


__all__ = ["YOLO_RETRY_POLICY", "example", "training"]
