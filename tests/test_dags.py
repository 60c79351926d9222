"""The example DAG: parsed, serialised, and run through Airflow's own machinery."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests_support import ROOT

_SERIALISE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
print(json.dumps({name: DagSerialization.to_dict(dag) for name, dag in sorted(bag.dags.items())}, sort_keys=True))
"""


def serialised() -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", _SERIALISE, str(ROOT / "dags")], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_every_parse_gives_the_same_dag() -> None:
    """Another serialisation would make another DAG version at each parse."""
    first, second = serialised(), serialised()
    assert list(first) == ["yolo_train"]
    assert first == second


def test_the_trigger_form_has_every_parameter(airflow_database: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert not bag.import_errors
    dag = bag.dags["yolo_train"]
    assert {"model", "data", "imgsz", "epochs", "batch", "accelerator", "memory_budget", "format"} <= set(dag.params)
    assert [task.task_id for task in dag.topological_sort()] == ["preprocess", "probe", "train", "export"]
    assert dag.params.get_param("imgsz").schema["multipleOf"] == 32


@pytest.fixture
def run_dag(airflow_database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Run a DAG with `dag.test()` on a store and a workspace of the test's own."""
    monkeypatch.setenv("AIRFLOW__YOLO__EXECUTION", "local")
    monkeypatch.setenv("AIRFLOW__YOLO__WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", f"sqlite:///{tmp_path / 'profiles.db'}")

    def run(dag: Any, **parameters: Any) -> Any:
        import os

        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        DagBundlesManager().sync_bundles_to_db()
        bag = DagBag(dag_folder=os.devnull, collect_dags=False)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        return dag.test(run_conf=parameters)

    return run


@pytest.mark.slow
def test_out_of_memory_is_retried_with_less_and_remembered(run_dag: Callable[..., Any], shapes: Path) -> None:
    from airflow.sdk import DAG

    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
    from yolo_airflow_provider.operators import MigTrainOperator

    with DAG("oom", schedule=None) as dag:
        MigTrainOperator(
            task_id="train",
            model="yolov8n",
            data=str(shapes),
            imgsz=320,
            epochs=1,
            batch=16,
            accelerator="cpu",
            memory_budget="1500Mi",
            retries=3,
            retry_delay=timedelta(0),
        )
    first = run_dag(dag)
    assert str(first.state) == "success"
    store = ProfileStoreHook().get_store()
    rows = [item.row for item in store.measurements("oom", first.run_id)]
    assert [row.outcome for row in rows] == ["host_oom"] * (len(rows) - 1) + ["succeeded"]
    assert len(rows) > 1
    batches = [row.batch for row in rows if row.batch is not None]
    assert batches[0] == 16
    assert batches == sorted(batches, reverse=True)
    assert len(set(batches)) == len(batches)
    assert rows[-1].peak_device_bytes is not None
    assert rows[-1].peak_device_bytes <= 1500 * 2**20

    second = run_dag(dag)
    assert str(second.state) == "success"
    (row,) = [item.row for item in store.measurements("oom", second.run_id)]
    assert row.key.try_number == 1
    # What fit narrows the prediction, so that more may be dared; never what did not fit.
    assert row.batch is not None
    assert batches[-1] <= row.batch < min(batches[:-1])
