"""What is made of a pod that an earlier try of the same task instance left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.contract import Failure, FailureClass, JobResult
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import MigTrainOperator
from yolo_airflow_provider.operators.adoption import await_gone

MakeContext = Callable[..., dict[str, Any]]


@pytest.fixture
def operator(dataset: dict[str, Any], cluster: None) -> MigTrainOperator:
    made = MigTrainOperator(
        task_id="train", model="yolov8n", data=dataset, epochs=3, imgsz=320, namespace="ml", accelerator="1g.5gb"
    )
    made.__dict__["pod_manager"] = MagicMock()
    made.patch_already_checked = MagicMock()  # type: ignore[method-assign]
    made.process_pod_deletion = MagicMock()  # type: ignore[method-assign]
    return made


def left_behind(operator: MigTrainOperator, context: dict[str, Any], phase: str, **metadata: Any) -> k8s.V1Pod:
    pod = operator.build_pod_request_obj(context)
    pod.status = k8s.V1PodStatus(phase=phase)
    for name, value in metadata.items():
        setattr(pod.metadata, name, value)
    operator.find_pod = MagicMock(return_value=pod)  # type: ignore[method-assign]
    return pod


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_a_pod_that_runs_or_has_succeeded_is_adopted(
    phase: str, operator: MigTrainOperator, make_context: MakeContext
) -> None:
    """It is not planned again, and its finished result is read and not thrown away."""
    pod = left_behind(operator, make_context("train"), phase)
    assert operator._adopted(make_context("train", try_number=2)) is pod


def test_nothing_is_planned_for_a_pod_that_is_adopted(operator: MigTrainOperator, make_context: MakeContext) -> None:
    pod = left_behind(operator, make_context("train"), "Running")
    with (
        patch("airflow.providers.cncf.kubernetes.operators.pod.KubernetesPodOperator.execute") as execute,
        patch.object(operator, "_plan") as plan,
    ):
        operator._answer = {}
        operator.execute(make_context("train", try_number=2))
    execute.assert_called_once()
    plan.assert_not_called()
    assert operator.pod is pod
    assert operator.pod_request_obj is pod


def test_d13_a_pod_that_failed_unseen_is_evidence_for_the_new_plan(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    pod = left_behind(operator, make_context("train"), "Failed")
    failure = Failure(failure_class=FailureClass.GPU_OOM, message="batch 16 ran out of memory")
    answer = JobResult(kind="train", failure=failure).to_message()
    ended = k8s.V1ContainerStateTerminated(exit_code=17, message=answer)
    pod.status.container_statuses = [
        k8s.V1ContainerStatus(
            name="base",
            image="w",
            image_id="",
            ready=False,
            restart_count=0,
            state=k8s.V1ContainerState(terminated=ended),
        )
    ]
    context = make_context("train", try_number=2)
    assert operator._adopted(context) is None
    operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]
    (row,) = [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]
    assert (row.outcome, row.key.try_number) == ("gpu_oom", 1)
    spec, _, _ = operator._plan(context, operator._candidates(None))
    assert getattr(spec.job, "batch", None) == 8


def test_a_pod_that_is_being_deleted_is_waited_for_and_not_adopted(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    """Two pods of one task instance would write into one folder."""
    left_behind(operator, make_context("train"), "Running", deletion_timestamp=datetime.now(UTC))
    with patch("yolo_airflow_provider.operators.adoption.await_gone", return_value=True) as gone:
        assert operator._adopted(make_context("train", try_number=2)) is None
    gone.assert_called_once()
    operator.patch_already_checked.assert_called_once()  # type: ignore[attr-defined]


def test_without_durable_every_try_has_a_pod_of_its_own(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = MigTrainOperator(task_id="train", model="yolov8n", data=dataset, epochs=3, durable=False)
    operator.find_pod = MagicMock()  # type: ignore[method-assign]
    assert operator._adopted(make_context("train", try_number=2)) is None
    operator.find_pod.assert_not_called()


def pod(uid: str = "one") -> k8s.V1Pod:
    return k8s.V1Pod(metadata=k8s.V1ObjectMeta(name="p", namespace="ml", uid=uid, resource_version="5"))


def test_a_pod_that_is_gone_already_is_not_waited_for() -> None:
    client = MagicMock()
    client.read_namespaced_pod.side_effect = ApiException(status=404)
    assert await_gone(client, pod(), 30) is True
    client.list_namespaced_pod.assert_not_called()


def test_another_pod_of_the_same_name_is_not_waited_for() -> None:
    client = MagicMock()
    client.read_namespaced_pod.return_value = pod("two")
    assert await_gone(client, pod(), 30) is True


@pytest.mark.parametrize(("events", "gone"), [(["MODIFIED", "DELETED"], True), (["MODIFIED"], False), ([], False)])
def test_the_deletion_is_awaited_as_an_event(events: list[str], gone: bool) -> None:
    client = MagicMock()
    client.read_namespaced_pod.return_value = pod()
    with patch("kubernetes.watch.Watch.stream", return_value=[{"type": event} for event in events]) as stream:
        assert await_gone(client, pod(), 30) is gone
    assert stream.call_args.kwargs["resource_version"] == "5"
    assert stream.call_args.kwargs["timeout_seconds"] == 30
