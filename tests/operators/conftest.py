"""Operators with a hand-made context, without a scheduler."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, PropertyMock

import pytest
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

from yolo_airflow_provider.gpus.cluster import ClusterOffer, discover
from yolo_airflow_provider.gpus.nodes import read_nodes, requests_by_node
from yolo_airflow_provider.operators.base import YoloPodOperator
from yolo_airflow_provider.operators.discovery import placement_of


@pytest.fixture(autouse=True)
def fresh_store(airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test has a profile store, a spool and a workspace of its own."""
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", f"sqlite:///{tmp_path / 'profiles.db'}")
    monkeypatch.setenv("AIRFLOW__YOLO__SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("AIRFLOW__YOLO__WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("AIRFLOW__YOLO__IMAGE", "worker:1")
    yield
    shutil.rmtree(airflow_home / "workspace", ignore_errors=True)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say what the cluster offers; by default nodes may not be listed."""

    def offer(*nodes: dict[str, Any], pods: Sequence[dict[str, Any]] | None = ()) -> None:
        def read(client: Any, pod: Any, warn: Any, *, with_pods: bool) -> ClusterOffer:
            held = requests_by_node(pods) if pods is not None and with_pods else None
            return discover(read_nodes(nodes), held, placement_of(pod))

        monkeypatch.setattr("yolo_airflow_provider.operators.base.read_cluster", read)

    monkeypatch.setattr("yolo_airflow_provider.operators.base.read_cluster", lambda *_, **__: None)
    monkeypatch.setattr(YoloPodOperator, "client", MagicMock())
    monkeypatch.setattr(KubernetesHook, "is_in_cluster", PropertyMock(return_value=False))
    return offer


@pytest.fixture
def make_context() -> Callable[..., dict[str, Any]]:
    """What Airflow hands to `execute`; a manual run, so there is no logical date in it."""

    def build(task_id: str, *, try_number: int = 1, run_id: str = "manual__1", map_index: int = -1) -> dict[str, Any]:
        pushed: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id="dag",
            task_id=task_id,
            run_id=run_id,
            map_index=map_index,
            try_number=try_number,
            max_tries=2,
            xcom_push=lambda key, value, **_: pushed.update({key: value}),
        )
        return {"ti": ti, "run_id": run_id, "dag": SimpleNamespace()}

    return build


@pytest.fixture
def dataset() -> dict[str, Any]:
    """What a PreprocessOperator returns for a set of 200 images."""
    return {
        "data": "/ws/datasets/cells-1/data.yaml",
        "report": "/ws/report.json",
        "dataset": {
            "name": "cells",
            "fingerprint": "f" * 64,
            "classes": 3,
            "train_images": 200,
            "val_images": 50,
            "size_bytes": 10_000_000,
            "objects_mean": 12.5,
            "objects_max": 40,
            "data_yaml": "datasets/cells-1/data.yaml",
            "report": "report.json",
        },
    }
