"""What is made of a pod that has ended. Pods are plain objects here; real ones are tested on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock, PropertyMock, patch

import pytest
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.sdk.exceptions import AirflowException
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.contract import (
    Environment,
    Failure,
    FailureClass,
    JobResult,
    Measurement,
    ModelFacts,
    TrainSummary,
)
from yolo_airflow_provider.errors import (
    BadInput,
    GpuOutOfMemory,
    HostOutOfMemory,
    ImageNotStarted,
    Preempted,
    ResultLost,
    RunFailed,
    Unschedulable,
    YoloError,
)
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import MigTrainOperator

MakeContext = Callable[..., dict[str, Any]]

FACTS = ModelFacts(name="yolov8n", task="detect", parameters=3_011_433, stride=32, classes=3)


def result(*, failure: Failure | None = None, batch: int = 16) -> JobResult:
    measured = Measurement(
        part="train",
        failure_class=failure.failure_class if failure else None,
        batch=batch,
        precision="amp",
        optimizer="AdamW",
        workers=8,
        peak_device_bytes=4 * 2**30,
        epoch_seconds=12.5,
    )
    summary = TrainSummary(
        epochs=3,
        epochs_done=3,
        resumed_epochs=0,
        best_weights="train/weights/best.pt",
        last_weights="train/weights/last.pt",
        metrics={"mAP50": 0.61},
        training_seconds=40,
    )
    train = None if failure else summary
    seen = Environment(kind="mig", product="NVIDIA A100-SXM4-40GB MIG 1g.5gb", memory_bytes=4864 * 2**20)
    return JobResult(
        kind="train", failure=failure, model=FACTS, environment=seen, measurements=(measured,), train=train
    )


class Ended:
    """An operator whose pod has ended as described."""

    def __init__(self, dataset: dict[str, Any], context: dict[str, Any], **changes: Any) -> None:
        arguments: dict[str, Any] = {"accelerator": "1g.5gb", "memory_budget": "4864Mi"} | changes
        self.operator = MigTrainOperator(
            task_id="train",
            model="yolov8n",
            data=dataset,
            epochs=3,
            imgsz=320,
            workspace="/ws",
            namespace="ml",
            **arguments,
        )
        self.context = context
        self.pod = self.operator.build_pod_request_obj(context)
        self.manager = MagicMock()
        self.operator.__dict__["pod_manager"] = self.manager
        self.operator.__dict__["client"] = MagicMock()
        self.operator.process_pod_deletion = MagicMock()  # type: ignore[method-assign]
        self.operator.log_events_on_failure = False

    def end(
        self,
        *,
        message: str | None = None,
        exit_code: int = 0,
        reason: str | None = None,
        pod_reason: str | None = None,
        started: bool = True,
    ) -> None:
        """Run cleanup on the pod, as KubernetesPodOperator does in both modes."""
        terminated = k8s.V1ContainerStateTerminated(exit_code=exit_code, reason=reason, message=message)
        status = k8s.V1ContainerStatus(
            name="base",
            image="w:1",
            image_id="",
            ready=False,
            restart_count=0,
            state=k8s.V1ContainerState(terminated=terminated),
        )
        phase = "Succeeded" if exit_code == 0 and started else "Failed"
        self.pod.status = k8s.V1PodStatus(
            phase=phase, reason=pod_reason, container_statuses=[status] if started else None
        )
        self.manager.read_pod.return_value = self.pod
        with patch.object(self.operator, "is_istio_enabled", return_value=False):
            self.operator.cleanup(pod=self.pod, remote_pod=self.pod, context=self.context)

    def never_start(self, status: k8s.V1PodStatus) -> None:
        """Run cleanup on a pod that Airflow gave up waiting for."""
        self.pod.status = status
        self.manager.read_pod.return_value = self.pod
        with patch.object(self.operator, "is_istio_enabled", return_value=False):
            self.operator.cleanup(pod=self.pod, remote_pod=self.pod, context=self.context)

    def next_batch(self, make_context: MakeContext) -> int:
        """What the next try would run."""
        spec, _ = self.operator._plan(make_context("train", try_number=2), local=False)
        assert spec.job.kind == "train"
        return spec.job.batch

    @property
    def rows(self) -> list[Any]:
        return [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]


@pytest.fixture
def no_cluster() -> Iterator[None]:
    with patch.object(KubernetesHook, "is_in_cluster", new_callable=PropertyMock, return_value=False):
        yield


@pytest.fixture
def ended(dataset: dict[str, Any], make_context: MakeContext, no_cluster: None) -> Ended:
    return Ended(dataset, make_context("train"))


def test_a_result_is_recorded_and_returned(ended: Ended) -> None:
    ended.end(message=result().to_message())
    answer = ended.operator._finish()
    assert answer["weights"] == "/ws/dag/manual__1/train/-1/train/weights/best.pt"
    assert answer["metrics"] == {"mAP50": 0.61}
    assert ended.operator.do_xcom_push is True
    (row,) = ended.rows
    assert (row.outcome, row.peak_device_bytes, row.map50) == ("succeeded", 4 * 2**30, 0.61)
    assert (row.accelerator_kind, row.mig_profile, row.budget_bytes) == ("mig", "1g.5gb", 4864 * 2**20)
    assert (row.dataset, row.train_images, row.objects_max) == ("cells", 200, 40)
    (decision,) = ProfileStoreHook().get_store().decisions("dag", "manual__1")
    assert (decision.batch, decision.basis) == (16, "fallback")


def test_a_memory_failure_is_typed_and_becomes_evidence(ended: Ended, make_context: MakeContext) -> None:
    failure = Failure(failure_class=FailureClass.GPU_OOM, message="batch 16 ran out of memory", needed_bytes=5 * 2**30)
    with pytest.raises(GpuOutOfMemory, match=r"gpu_oom: batch 16 ran out of memory \(dag.train, try 1\)") as raised:
        ended.end(message=result(failure=failure).to_message(), exit_code=17)
    assert isinstance(raised.value.__cause__, AirflowException)
    assert ended.rows[0].outcome == "gpu_oom"
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]
    assert ended.next_batch(make_context) == 8


def test_oomkilled_beside_a_gpu_says_nothing_about_the_gpu(ended: Ended, make_context: MakeContext) -> None:
    with pytest.raises(HostOutOfMemory, match=r"OOMKilled \(exit code 137\) at its memory limit \(dag") as raised:
        ended.end(exit_code=137, reason="OOMKilled")
    assert "not the GPU's memory" in str(raised.value)
    (row,) = ended.rows
    assert (row.outcome, row.batch) == ("host_oom", 16)
    assert ended.next_batch(make_context) == 16


def test_oomkilled_on_cpu_is_evidence_for_the_next_try(
    dataset: dict[str, Any], make_context: MakeContext, no_cluster: None
) -> None:
    ended = Ended(dataset, make_context("train"), accelerator="cpu", memory_budget="2Gi")
    with pytest.raises(HostOutOfMemory, match=r"at its memory limit of 2,147,483,648 bytes"):
        ended.end(exit_code=137, reason="OOMKilled")
    assert ended.next_batch(make_context) == 8


@pytest.mark.parametrize(("code", "error"), [(17, GpuOutOfMemory), (75, Preempted), (1, ResultLost)])
def test_an_exit_code_stands_in_for_an_answer(code: int, error: type[YoloError], ended: Ended) -> None:
    with pytest.raises(error, match=f"ended without an answer: .*exit_code {code}"):
        ended.end(exit_code=code, reason="Error")


def test_no_node_is_unschedulable_with_the_schedulers_words(ended: Ended) -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/mig-1g.5gb."
    condition = k8s.V1PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message=said)
    with pytest.raises(Unschedulable, match=r"Insufficient nvidia\.com/mig-1g\.5gb"):
        ended.never_start(k8s.V1PodStatus(phase="Pending", conditions=[condition]))
    assert ended.rows[0].outcome == "unschedulable"


def test_an_image_that_is_not_pulled_is_named(ended: Ended) -> None:
    waiting = k8s.V1ContainerStateWaiting(reason="ImagePullBackOff", message="manifest unknown")
    status = k8s.V1ContainerStatus(
        name="base", image="w", image_id="", ready=False, restart_count=0, state=k8s.V1ContainerState(waiting=waiting)
    )
    with pytest.raises(ImageNotStarted, match="image worker:1 did not start: ImagePullBackOff: manifest unknown"):
        ended.never_start(k8s.V1PodStatus(phase="Pending", container_statuses=[status]))


def test_a_store_that_fails_leaves_no_pod_behind(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    from yolo_airflow_provider.profiles.errors import StoreError
    from yolo_airflow_provider.profiles.store import ProfileStore

    monkeypatch.setattr(ProfileStore, "record", MagicMock(side_effect=StoreError("the disk is gone")))
    with pytest.raises(StoreError, match="the disk is gone"):
        ended.end(message=result().to_message())
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]


def test_a_run_that_broke_off_is_no_evidence(ended: Ended, make_context: MakeContext) -> None:
    """Its peak was not reached yet: it would teach that more fits than does."""
    failure = Failure(failure_class=FailureClass.PREEMPTED, message="asked to stop")
    with pytest.raises(Preempted):
        ended.end(message=result(failure=failure).to_message(), exit_code=75)
    _, (_, proposal) = ended.operator._plan(make_context("train", try_number=2), local=False)
    assert proposal.choice is not None
    assert proposal.choice[1].evidence == ()


def test_an_evicted_pod_without_statuses_is_preempted(ended: Ended) -> None:
    with pytest.raises(Preempted, match="Evicted"):
        ended.end(started=False, exit_code=1, pod_reason="Evicted")
    assert ended.rows[0].outcome == "preempted"


def test_success_without_an_answer_is_no_success(ended: Ended) -> None:
    with pytest.raises(ResultLost, match="ended without an answer"):
        ended.end(exit_code=0)
    with pytest.raises(ResultLost, match="its result was not read"):
        ended.operator._finish()


def test_a_cut_off_answer_is_no_success(ended: Ended) -> None:
    with pytest.raises(ResultLost):
        ended.end(message=result().to_message()[:-9])


def test_bad_input_is_not_retried(ended: Ended) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    failure = Failure(failure_class=FailureClass.DATA, message="no model is called 'yolo8n'", hint="yolov8n?")
    with pytest.raises(AirflowFailException, match="no model is called") as raised:
        ended.end(message=result(failure=failure).to_message(), exit_code=1)
    assert isinstance(raised.value, BadInput)
    assert "yolov8n?" in str(raised.value)


def test_a_pod_that_is_already_collected_is_judged_by_its_snapshot(ended: Ended) -> None:
    ended.manager.read_pod.side_effect = ApiException(status=404)
    failure = Failure(failure_class=FailureClass.CODE, message="KeyError: 'x'")
    with pytest.raises(RunFailed):
        ended.end(message=result(failure=failure).to_message(), exit_code=1)


def test_a_killed_task_records_nothing(ended: Ended) -> None:
    ended.operator._killed = True
    ended.end(message=result().to_message())
    assert ended.rows == []


def test_the_row_says_what_the_pod_ran_not_what_was_planned_since(ended: Ended, make_context: MakeContext) -> None:
    """A retry may adopt an older pod; its try number and batch are on the pod."""
    ended.context = make_context("train", try_number=2)
    ended.operator.batch = 4
    ended.end(message=result(batch=16).to_message())
    (row,) = ended.rows
    assert (row.key.try_number, row.batch) == (1, 16)


def test_a_result_that_is_recorded_twice_is_one_row(ended: Ended) -> None:
    ended.end(message=result().to_message())
    ended.end(message=result().to_message())
    assert len(ended.rows) == 1


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_every_class_of_failure_is_an_exception_of_its_own(failure_class: FailureClass) -> None:
    from yolo_airflow_provider.errors import error_of

    error = error_of(Failure(failure_class=failure_class, message="m", hint="h"), where="w")
    assert isinstance(error, YoloError)
    assert error.failure_class is failure_class
    assert str(error) == f"{failure_class}: m (w)\nh"


def test_the_retry_policy_waits_less_where_a_retry_is_a_new_plan() -> None:
    from yolo_airflow_provider import YOLO_RETRY_POLICY

    def decided(error: YoloError) -> tuple[str, float | None]:
        decision = YOLO_RETRY_POLICY.evaluate(error, 1, 3)
        return decision.action.value, decision.retry_delay.total_seconds() if decision.retry_delay else None

    assert decided(GpuOutOfMemory("m")) == decided(HostOutOfMemory("m")) == ("retry", 5)
    assert decided(Preempted("m")) == ("retry", 30)
    assert decided(RunFailed("m")) == ("default", None)
