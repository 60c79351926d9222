"""What is made of a pod that an earlier try of the same task instance left."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from tests_support import StateStore

from yolo_airflow_provider.contract import Failure, FailureClass, JobResult
from yolo_airflow_provider.errors import BadInput, Unschedulable
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import MigTrainOperator
from yolo_airflow_provider.operators.leftover import last_seen

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


def ended_with(pod: k8s.V1Pod, failure: Failure, *, exit_code: int) -> None:
    answer = JobResult(kind="train", failure=failure).to_message()
    ended = k8s.V1ContainerStateTerminated(exit_code=exit_code, message=answer)
    status = k8s.V1ContainerStatus(
        name="base", image="w", image_id="", ready=False, restart_count=0, state=k8s.V1ContainerState(terminated=ended)
    )
    pod.status = k8s.V1PodStatus(phase="Failed", container_statuses=[status])


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
    ended_with(pod, Failure(failure_class=FailureClass.GPU_OOM, message="batch 16 ran out of memory"), exit_code=17)
    context = make_context("train", try_number=2)
    assert operator._adopted(context) is None
    operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]
    (row,) = [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]
    assert (row.outcome, row.key.try_number) == ("gpu_oom", 1)
    spec, _, _ = operator._plan(context, operator._candidates(None, pod))
    assert getattr(spec.job, "batch", None) == 8


def test_a_pod_that_is_being_deleted_is_waited_for_and_its_last_words_are_kept(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    """Two pods of one task instance would write into one folder."""
    pod = left_behind(operator, make_context("train"), "Running", deletion_timestamp=datetime.now(UTC))
    last = copy.deepcopy(pod)
    ended_with(last, Failure(failure_class=FailureClass.PREEMPTED, message="asked to stop"), exit_code=75)
    with patch("yolo_airflow_provider.operators.adopting.last_seen", return_value=(last, True)) as gone:
        assert operator._adopted(make_context("train", try_number=2)) is None
    gone.assert_called_once()
    operator.patch_already_checked.assert_called_once()  # type: ignore[attr-defined]
    (row,) = [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]
    assert (row.outcome, row.key.try_number) == ("preempted", 1)


def test_an_end_that_nobody_saw_is_on_record_and_keeps_the_plan(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    """The node took the pod and Airflow's worker alike."""
    operator.batch = 12
    store = StateStore()
    operator.build_pod_request_obj(make_context("train") | {"task_state_store": store})
    operator.find_pod = MagicMock(return_value=None)  # type: ignore[method-assign]
    operator.batch = "auto"
    context = make_context("train", try_number=2) | {"task_state_store": store}
    for _ in range(2):
        assert operator._adopted(context) is None
    (row,) = [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]
    assert (row.outcome, row.batch, row.key.try_number) == ("lost", 12, 1)
    spec, _, _ = operator._plan(context, operator._candidates(None, operator.build_pod_request_obj()))
    assert getattr(spec.job, "batch", None) == 12


def test_the_pod_is_found_by_its_name_in_whatever_namespace(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    pod = left_behind(operator, make_context("train"), "Running")
    operator.find_pod = MagicMock(return_value=None)  # type: ignore[method-assign]
    operator.__dict__["hook"] = MagicMock()
    operator.hook.get_pod.return_value = pod
    store = StateStore(pod_identifier={"name": "train-1", "namespace": "elsewhere"})
    assert operator._adopted(make_context("train", try_number=2) | {"task_state_store": store}) is pod
    operator.hook.get_pod.assert_called_once_with("train-1", "elsewhere")
    pod.metadata.labels["already_checked"] = "True"
    assert operator._adopted(make_context("train", try_number=2) | {"task_state_store": store}) is None


def refuse(operator: MigTrainOperator, status: int, message: str) -> None:
    error = ApiException(status=status, reason="Forbidden")
    error.body = json.dumps({"message": message})
    operator.pod_manager.create_pod.side_effect = error
    operator._get_pod_from_task_state_store = MagicMock(return_value=None)  # type: ignore[method-assign]
    operator.find_pod = MagicMock(return_value=None)  # type: ignore[method-assign]


def test_a_used_up_quota_is_waited_for_without_a_worker_or_a_try(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    store = StateStore()
    context = make_context("train") | {"task_state_store": store}
    pod = operator.build_pod_request_obj(context)
    refuse(operator, 403, 'pods "train" is forbidden: exceeded quota: gpus, requested: nvidia.com/mig-1g.5gb=1')
    with pytest.raises(AirflowRescheduleException):
        operator.get_or_create_pod(pod, context)
    store["yolo_waits_for_quota"]["since"] = 1.0  # long ago
    with pytest.raises(Unschedulable, match="exceeded quota: gpus"):
        operator.get_or_create_pod(pod, context)
    # The next try has a day of its own.
    with pytest.raises(AirflowRescheduleException):
        operator.get_or_create_pod(pod, make_context("train", try_number=2) | {"task_state_store": store})
    (row,) = [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]
    assert row.outcome == "unschedulable"


def test_a_pod_that_the_cluster_refuses_is_told_with_its_words(
    operator: MigTrainOperator, make_context: MakeContext
) -> None:
    context = make_context("train")
    pod = operator.build_pod_request_obj(context)
    refuse(operator, 403, 'violates PodSecurity "restricted:latest"')
    with pytest.raises(
        BadInput, match=r'the cluster refuses the pod of train \(403\): violates PodSecurity "restricted'
    ):
        operator.get_or_create_pod(pod, context)


def test_a_kill_that_comes_before_the_pod_leaves_none(operator: MigTrainOperator, make_context: MakeContext) -> None:
    context = make_context("train")
    pod = operator.build_pod_request_obj(context)
    refuse(operator, 500, "")
    operator.pod_manager.create_pod.side_effect = lambda **_: operator.on_kill() or pod
    with pytest.raises(AirflowException, match="the pod is deleted"):
        operator.get_or_create_pod(pod, context)
    operator.pod_manager.delete_pod.assert_called_once_with(pod)
    with pytest.raises(AirflowException, match="killed before its pod was made"):
        operator.get_or_create_pod(pod, context)


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
    assert last_seen(client, pod(), 30)[1] is True
    client.list_namespaced_pod.assert_not_called()


def test_another_pod_of_the_same_name_is_not_waited_for() -> None:
    client = MagicMock()
    client.read_namespaced_pod.return_value = pod("two")
    assert last_seen(client, pod(), 30)[1] is True


@pytest.mark.parametrize(("events", "gone"), [(["MODIFIED", "DELETED"], True), (["MODIFIED"], False), ([], False)])
def test_the_deletion_is_awaited_as_an_event(events: list[str], gone: bool) -> None:
    client = MagicMock()
    client.read_namespaced_pod.return_value = pod()
    told = [{"type": event, "object": pod(event)} for event in events]
    with patch("kubernetes.watch.Watch.stream", return_value=told) as stream:
        last, seen_gone = last_seen(client, pod(), 30)
    assert seen_gone is gone
    assert last.metadata.uid == (events[-1] if events else "one")
    assert stream.call_args.kwargs["resource_version"] == "5"
    assert stream.call_args.kwargs["timeout_seconds"] == 30
