from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from yolo_airflow_provider.contract import Identity
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.operators import (
    ExportOperator,
    MigTrainOperator,
    PreprocessOperator,
    ProfileProbeOperator,
    parameters,
)
from yolo_airflow_provider.operators.plan import read_data, run_folder

OPERATORS = [ExportOperator, MigTrainOperator, PreprocessOperator, ProfileProbeOperator]
REQUIRED: dict[type[Any], dict[str, Any]] = {
    ExportOperator: {"weights": "w"},
    MigTrainOperator: {"model": "m", "data": "d", "epochs": 1},
    PreprocessOperator: {"data": "d"},
    ProfileProbeOperator: {"model": "m", "data": "d"},
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_template_field_is_an_assigned_parameter(operator: type[Any]) -> None:
    made = operator(task_id="t", **REQUIRED[operator])
    assert all(hasattr(made, field) for field in operator.template_fields)
    ours = set(operator.template_fields) - set(operator.__mro__[-1].__dict__)
    signature: set[str] = set()
    for cls in operator.__mro__:
        signature |= set(inspect.signature(cls.__init__).parameters)
    assert set(ours) <= signature


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_parameter_may_be_any_template(operator: type[Any]) -> None:
    """The constructor assigns and nothing else: it cannot know yet what a template becomes."""
    own = [f for f in operator.template_fields if f not in PreprocessOperator.__mro__[2].template_fields]
    made = operator(task_id="t", **dict.fromkeys(own, "{{ params.x }}"))
    assert all(getattr(made, field) == "{{ params.x }}" for field in own)


@pytest.mark.parametrize("operator", OPERATORS)
def test_default_args_win_over_our_defaults(operator: type[Any]) -> None:
    made = operator(
        task_id="t",
        default_args={"log_pod_spec_on_failure": True, "startup_timeout_seconds": 7, "workspace": "/else"},
        **REQUIRED[operator],
    )
    assert (made.log_pod_spec_on_failure, made.startup_timeout_seconds, made.workspace) == (True, 7, "/else")


def test_an_unknown_keyword_is_refused_also_when_mapped() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        MigTrainOperator.partial(task_id="t", epochs=1, batchsize=3)


@pytest.mark.parametrize("value", ["16", 16, " 16 "])
def test_a_batch_from_a_template(value: Any) -> None:
    assert parameters.batch_size(value) == 16


@pytest.mark.parametrize("value", [0, -1, "0", "-16", "many", 16.5, True, None, "16.0"])
def test_a_wrong_batch_names_itself(value: Any) -> None:
    with pytest.raises(BadInput, match=r"batch=.*'auto', which lets the planner choose"):
        parameters.batch_size(value)


def test_auto_is_no_number() -> None:
    assert parameters.batch_size("auto") is None
    assert parameters.batch_list(" AUTO ") is None


@pytest.mark.parametrize("value", ["2,8,16", [2, 8, 16], (16, 2, 8), "[2, 8, 16]"])
def test_batches_from_a_template(value: Any) -> None:
    assert parameters.batch_list(value) == [2, 8, 16]


@pytest.mark.parametrize("value", [[], "", [1, 2, 3, 4], "2;8", [0], 7, None])
def test_wrong_batches(value: Any) -> None:
    with pytest.raises(BadInput, match="batches"):
        parameters.batch_list(value)


def test_memory_and_switches() -> None:
    assert parameters.memory("memory_budget", "4Gi") == 4 * 2**30
    assert parameters.memory("memory_budget", None) is parameters.memory("memory_budget", "None") is None
    assert parameters.switch("amp", "False") is False
    with pytest.raises(BadInput, match="memory_budget: memory 'big'"):
        parameters.memory("memory_budget", "big")
    with pytest.raises(BadInput, match="amp='maybe' is neither true nor false"):
        parameters.switch("amp", "maybe")


@pytest.mark.parametrize("data", [None, "", 3, {"path": "x"}, {"data": "x", "dataset": {"name": 1}}])
def test_wrong_data(data: Any) -> None:
    with pytest.raises(BadInput, match="data"):
        read_data(data)


def folder_of(*, dag: str = "d", run: str = "r", task: str = "t", map_index: int = -1, try_number: int = 1) -> str:
    return run_folder("/ws", Identity(dag_id=dag, run_id=run, task_id=task, map_index=map_index, try_number=try_number))


def test_the_run_folder_is_the_same_for_every_try() -> None:
    run = "manual__2026-12-01T10:00:00+00:00"
    assert folder_of(run=run, task="g.train", map_index=3) == f"/ws/d/{run}/g.train/3"
    assert folder_of(try_number=1) == folder_of(try_number=9)


@given(st.text(min_size=1), st.text(min_size=1))
def test_run_folders_stay_below_the_workspace_and_apart(one: str, other: str) -> None:
    path = Path(folder_of(run=one))
    assert path.parts[:3] == ("/", "ws", "d")
    assert len(path.parts) == 6
    assert path.parts[3] not in (".", "..")
    assert len(path.parts[3].encode()) < 255
    if one != other:
        assert folder_of(run=one) != folder_of(run=other)


def test_operators_refuse_before_anything_starts(make_context: Callable[..., dict[str, Any]], dataset: Any) -> None:
    operator = MigTrainOperator(
        task_id="train", model="yolov8n", data=dataset, epochs=3, batch=300, accelerator="cpu", execution="local"
    )
    with pytest.raises(BadInput, match="batch=300 is larger than the data set's 200 training images"):
        operator.execute(make_context("train"))
    assert operator._local_run is None
