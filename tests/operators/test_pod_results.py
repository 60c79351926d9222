"""What is made of a pod that has ended. Pods are plain objects here; real ones are tested on a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from airflow.sdk.exceptions import AirflowException
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from tests_support import StateStore

from yolo_airflow_provider.contract import (
    Environment,
    EpochRecord,
    Failure,
    FailureClass,
    JobResult,
    Measurement,
    ModelFacts,
    TrainSummary,
)
from yolo_airflow_provider.errors import (
    BadInput,
    DiskFull,
    GpuLost,
    GpuOutOfMemory,
    HostOutOfMemory,
    ImageNotStarted,
    Preempted,
    ResultLost,
    RunFailed,
    SharedMemoryTooSmall,
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
        # What the architecture predicts would take a batch of up to 64.
        given = {"accelerator": "1g.5gb", "memory_budget": "4864Mi", "workspace": "/ws", "max_batch": 16}
        arguments: dict[str, Any] = given | changes
        self.operator = MigTrainOperator(
            task_id="train",
            model="yolov8n",
            data=dataset,
            epochs=3,
            imgsz=320,
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
        spec, _, _ = self.replan(make_context("train", try_number=2))
        assert spec.job.kind == "train"
        return spec.job.batch

    def replan(self, context: dict[str, Any]) -> Any:
        spec, candidate, fit = self.operator._plan(context, self.operator._candidates(None, self.pod))
        return spec, candidate, fit.proposal

    @property
    def rows(self) -> list[Any]:
        return [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]


@pytest.fixture
def ended(dataset: dict[str, Any], make_context: MakeContext, cluster: None) -> Ended:
    return Ended(dataset, make_context("train"))


def test_b7_a_result_is_recorded_and_returned_without_any_exporter(ended: Ended) -> None:
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
    assert (decision.batch, decision.basis) == (16, "predicted")


def test_b6_what_a_slice_cannot_tell_is_not_measured_and_never_zero(ended: Ended) -> None:
    ended.end(message=result().to_message())
    (row,) = ended.rows
    assert row.device_busy_percent is None
    frame = ProfileStoreHook().get_store().frame("measurement")
    assert frame["device_busy_percent"].isna().all()


def test_d16_epochs_are_on_record_though_the_end_was_never_told(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None, tmp_path: Path
) -> None:
    ended = Ended(dataset, make_context("train"), workspace=str(tmp_path))
    folder = tmp_path / "dag" / "manual__1" / "train" / "-1"
    folder.mkdir(parents=True)
    lines = [EpochRecord(epoch=n, try_number=1, seconds=2.0).model_dump_json() for n in (1, 2)]
    (folder / "epochs.jsonl").write_text("\n".join(lines) + '\n{"epoch": 3, "try_nu')
    with pytest.raises(ResultLost):
        ended.end(exit_code=0)
    frame = ProfileStoreHook().get_store().frame("epoch")
    assert sorted(frame["epoch"]) == [1, 2]


def test_an_earlier_try_that_comes_late_changes_nothing_of_a_later_one(
    ended: Ended, dataset: dict[str, Any], make_context: MakeContext
) -> None:
    """A zombie of Airflow's own: its worker was cut off, comes back, and records what its pod said."""
    later = Ended(dataset, make_context("train", try_number=2), batch=8)
    answer = result(batch=8).model_copy(update={"try_number": 2})
    later.end(message=answer.to_message())
    before = {row.key.try_number: row for row in ended.rows}
    with pytest.raises(Preempted):
        ended.end(exit_code=75, reason="Error")
    after = {row.key.try_number: row for row in ended.rows}
    assert after[2] == before[2]
    assert (after[1].outcome, after[2].outcome) == ("preempted", "succeeded")


def test_d4_one_block_says_what_happened_and_what_comes_next(ended: Ended, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HostOutOfMemory):
        ended.end(exit_code=137, reason="OOMKilled")
    said = capsys.readouterr().out
    block = said[said.index("The run failed.") :]
    for part in (
        "OOMKilled (exit code 137)",
        "batch 16",
        "1g.5gb",
        "ran         train: yolov8n at 320",
        "memory limit",
    ):
        assert part in block
    assert re.search(r"next try +\(2 of 3, .*batch 16 as in the try before.*host memory 1[0-9.]+ GiB", block)


def test_the_block_says_when_no_try_is_left(
    ended: Ended, make_context: MakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    ended.context = make_context("train", try_number=3)
    with pytest.raises(HostOutOfMemory):
        ended.end(exit_code=137, reason="OOMKilled")
    assert re.search(r"next try +none: this was try 3 of 3", capsys.readouterr().out)


def test_c2_a_bus_error_doubles_shared_memory(ended: Ended, make_context: MakeContext) -> None:
    def shared(container: k8s.V1Container, pod: k8s.V1Pod) -> int:
        name = next(m.name for m in container.volume_mounts if m.mount_path == "/dev/shm")
        return int(next(v.empty_dir.size_limit for v in pod.spec.volumes if v.name == name))

    first = shared(ended.pod.spec.containers[0], ended.pod)
    tail = "RuntimeError: DataLoader worker (pid 41) is killed by signal: Bus error."
    with pytest.raises(SharedMemoryTooSmall, match="Bus error"):
        ended.end(exit_code=1, reason="Error", message=tail)
    spec, _, proposal = ended.replan(make_context("train", try_number=2))
    assert proposal.need.shared_bytes == 2 * first
    assert spec.job.batch == 16


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        ("RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp", GpuOutOfMemory),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", GpuOutOfMemory),
        ("Failed to initialize NVML: Unknown Error", GpuLost),
        ("OSError: [Errno 28] No space left on device", DiskFull),
    ],
)
def test_the_tail_of_the_log_stands_in_for_an_answer(tail: str, error: type[YoloError], ended: Ended) -> None:
    with pytest.raises(error, match="ended without an answer") as raised:
        ended.end(exit_code=1, reason="Error", message=f"Traceback\n{tail}\n")
    assert tail in str(raised.value)


@pytest.mark.parametrize("failure_class", [FailureClass.GPU_LOST, FailureClass.PREEMPTED])
def test_b8_a_lost_device_or_an_eviction_keeps_the_plan(
    failure_class: FailureClass, ended: Ended, dataset: dict[str, Any], make_context: MakeContext
) -> None:
    with pytest.raises(YoloError):
        ended.end(
            message=result(failure=Failure(failure_class=failure_class, message="gone")).to_message(), exit_code=1
        )
    # Meanwhile another run shows that much larger batches fit: no reason to change the plan of this one.
    other = Ended(dataset, make_context("train", run_id="other"), batch=48)
    other.end(message=result(batch=48).to_message())
    ended.operator.max_batch = 48
    assert ended.next_batch(make_context) == 16
    fresh, _, _ = ended.replan(make_context("train", run_id="third"))
    assert fresh.job.batch == 48


def test_d13_d18_a_retry_is_a_new_plan_on_a_new_pod(ended: Ended, make_context: MakeContext) -> None:
    failure = Failure(failure_class=FailureClass.GPU_OOM, message="too large", needed_bytes=5 * 2**30)
    with pytest.raises(GpuOutOfMemory):
        ended.end(message=result(failure=failure).to_message(), exit_code=17)
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]
    again = ended.operator.build_pod_request_obj(make_context("train", try_number=2))
    plans = [pod.metadata.annotations["yolo-airflow.io/plan"] for pod in (ended.pod, again)]
    assert plans[0] != plans[1]
    assert again.metadata.name != ended.pod.metadata.name


def test_a_memory_failure_is_typed_and_becomes_evidence(ended: Ended, make_context: MakeContext) -> None:
    failure = Failure(failure_class=FailureClass.GPU_OOM, message="batch 16 ran out of memory", needed_bytes=5 * 2**30)
    with pytest.raises(GpuOutOfMemory, match=r"gpu_oom: batch 16 ran out of memory \(dag.train, try 1\)") as raised:
        ended.end(message=result(failure=failure).to_message(), exit_code=17)
    assert isinstance(raised.value.__cause__, AirflowException)
    assert ended.rows[0].outcome == "gpu_oom"
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]
    assert 4 <= ended.next_batch(make_context) < 16


def test_c8_oomkilled_beside_a_gpu_raises_the_pods_memory_and_keeps_the_batch(
    ended: Ended, make_context: MakeContext
) -> None:
    given = int(ended.pod.spec.containers[0].resources.limits["memory"])
    with pytest.raises(HostOutOfMemory, match=r"OOMKilled \(exit code 137\), memory limit \S+ GiB, batch 16") as raised:
        ended.end(exit_code=137, reason="OOMKilled")
    assert "not the GPU's" in str(raised.value)
    (row,) = ended.rows
    assert (row.outcome, row.batch, row.container_limit_bytes) == ("host_oom", 16, given)
    spec, _, proposal = ended.replan(make_context("train", try_number=2))
    assert spec.job.batch == 16
    assert proposal.need.memory_bytes == int(given * 1.5)


def test_oomkilled_on_cpu_is_evidence_for_the_next_try(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    ended = Ended(dataset, make_context("train"), accelerator="cpu", memory_budget="2Gi")
    with pytest.raises(HostOutOfMemory, match=r"memory limit 2.00 GiB, batch \d+"):
        ended.end(exit_code=137, reason="OOMKilled")
    (row,) = ended.rows
    assert row.batch is not None
    assert 4 <= ended.next_batch(make_context) < row.batch


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


def test_a_store_and_a_spool_that_fail_leave_no_pod_behind(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    from yolo_airflow_provider.profiles.errors import StoreError
    from yolo_airflow_provider.profiles.spool import Spool, SpoolError
    from yolo_airflow_provider.profiles.store import ProfileStore

    monkeypatch.setattr(ProfileStore, "record", MagicMock(side_effect=StoreError("the disk is gone")))
    monkeypatch.setattr(Spool, "put", MagicMock(side_effect=SpoolError("the other is full")))
    with pytest.raises(SpoolError, match="the disk is gone; and the other is full"):
        ended.end(message=result().to_message())
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]


def test_a_run_that_broke_off_is_no_evidence(ended: Ended, make_context: MakeContext) -> None:
    """Its peak was not reached yet: it would teach that more fits than does."""
    failure = Failure(failure_class=FailureClass.PREEMPTED, message="asked to stop")
    with pytest.raises(Preempted):
        ended.end(message=result(failure=failure).to_message(), exit_code=75)
    _, _, proposal = ended.replan(make_context("train", try_number=2))
    assert proposal.choice is not None
    assert proposal.choice[1].evidence == ()


@pytest.mark.parametrize("reason", ["Preempting", "NodeLost", "Terminated", "DeadlineExceeded"])
def test_a_pod_that_was_taken_away_is_preempted(reason: str, ended: Ended) -> None:
    with pytest.raises(Preempted, match=f"taken away: {reason}"):
        ended.end(started=False, exit_code=1, pod_reason=reason)


def test_a_pod_that_its_node_refused_is_unschedulable(ended: Ended) -> None:
    """The scheduler bound it, and the device was given away in that moment."""
    with pytest.raises(Unschedulable, match="refused pod"):
        ended.end(started=False, exit_code=1, pod_reason="UnexpectedAdmissionError")


def test_an_image_that_takes_too_long_is_told_from_a_slice_that_does(ended: Ended) -> None:
    scheduled = k8s.V1PodCondition(type="PodScheduled", status="True")
    waiting = k8s.V1ContainerStateWaiting(reason="ContainerCreating", message="pulling")
    status = k8s.V1ContainerStatus(
        name="base", image="w", image_id="", ready=False, restart_count=0, state=k8s.V1ContainerState(waiting=waiting)
    )
    with pytest.raises(ImageNotStarted, match=r"not started on node .* in time: ContainerCreating"):
        ended.never_start(k8s.V1PodStatus(phase="Pending", conditions=[scheduled], container_statuses=[status]))


def test_an_evicted_pod_without_statuses_is_preempted(ended: Ended) -> None:
    with pytest.raises(Preempted, match="Evicted"):
        ended.end(started=False, exit_code=1, pod_reason="Evicted")
    assert ended.rows[0].outcome == "preempted"


def test_d8_d9_success_without_an_answer_is_no_success(ended: Ended) -> None:
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


def test_d7_a_pod_that_is_already_collected_is_judged_by_its_snapshot(ended: Ended) -> None:
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


@pytest.mark.parametrize("event", ["success", "failed"])
def test_d8_a_pod_that_is_gone_at_reentry_fails_and_is_on_record(
    event: str, dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    """KubernetesPodOperator 10.25.0 makes a success without a result of it."""
    context = make_context("train") | {"task_state_store": StateStore()}
    ended = Ended(dataset, context)
    ended.operator.__dict__["hook"] = MagicMock()
    ended.operator.hook.get_pod.side_effect = ApiException(status=404)
    with pytest.raises(ResultLost, match="the next try finds a finished run"):
        ended.operator.trigger_reentry(context, {"status": event, "name": "p", "namespace": "ml", "message": ""})
    (row,) = ended.rows
    assert (row.outcome, row.batch, row.key.try_number) == ("lost", 16, 1)


def test_a_snapshot_from_before_the_start_is_no_evidence(ended: Ended) -> None:
    """It says that no node took the pod, hours after one did."""
    waiting = k8s.V1PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message="0/1 nodes")
    ended.manager.read_pod.side_effect = ApiException(status=404)
    with pytest.raises(ResultLost, match="the pod is gone"):
        ended.never_start(k8s.V1PodStatus(phase="Pending", conditions=[waiting]))
    assert ended.rows[0].outcome == "lost"


@pytest.mark.parametrize("action", ["keep_pod", "delete_succeeded_pod"])
def test_a_kept_pod_is_one_that_has_ended(
    action: str, dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    """One that Airflow gave up would hold its slice and run beside the next try's."""
    ended = Ended(dataset, make_context("train"), on_finish_action=action)
    with pytest.raises(ResultLost):
        ended.never_start(k8s.V1PodStatus(phase="Running"))
    ended.manager.delete_pod.assert_called_once()
    again = Ended(dataset, make_context("train", run_id="second"), on_finish_action=action)
    again.end(message=result().to_message())
    again.manager.delete_pod.assert_not_called()


def test_a_run_that_succeeded_does_not_fail_with_its_log(ended: Ended) -> None:
    def stumble(context: Any) -> None:
        ended.end(message=result().to_message())
        raise ApiException(status=400, reason="log is gone")

    with (
        patch("airflow.providers.cncf.kubernetes.operators.pod.KubernetesPodOperator.execute", side_effect=stumble),
        patch.object(ended.operator, "_adopted", return_value=ended.pod),
    ):
        assert ended.operator.execute(ended.context)["metrics"] == {"mAP50": 0.61}


def test_an_answer_outlives_a_sidecar_that_failed(ended: Ended) -> None:
    ended.end(message=result().to_message(), exit_code=1)
    assert ended.operator._finish()["metrics"] == {"mAP50": 0.61}


def test_an_api_server_that_fails_leaves_no_pod_behind(ended: Ended) -> None:
    ended.manager.read_pod.side_effect = ApiException(status=500)
    ended.operator.is_istio_enabled = MagicMock(return_value=False)  # type: ignore[method-assign]
    ended.pod.status = k8s.V1PodStatus(phase="Running")
    with pytest.raises(ApiException):
        ended.operator.cleanup(pod=ended.pod, remote_pod=ended.pod, context=ended.context)
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]


def test_a_probe_that_was_killed_beside_a_gpu_teaches_the_pods_memory(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    from yolo_airflow_provider.operators import ProfileProbeOperator

    operator = ProfileProbeOperator(
        task_id="probe", model="yolov8n", data=dataset, imgsz=320, accelerator="1g.5gb", namespace="ml"
    )
    ended = Ended(dataset, make_context("train"))
    ended.operator, ended.pod = operator, operator.build_pod_request_obj(make_context("probe"))  # type: ignore[assignment]
    operator.__dict__["pod_manager"] = ended.manager
    operator.process_pod_deletion = MagicMock()  # type: ignore[method-assign]
    operator.log_events_on_failure = False
    given = int(ended.pod.spec.containers[0].resources.limits["memory"])
    with pytest.raises(HostOutOfMemory):
        ended.end(exit_code=137, reason="OOMKilled")
    _, _, proposal = ended.replan(make_context("probe", try_number=2))
    assert proposal.need.memory_bytes == int(1.5 * given)


def test_a_pod_that_somebody_deleted_is_preempted_though_its_end_was_not_told(ended: Ended) -> None:
    """Kubelet 1.20: phase Failed, and a container that is said to be still created."""
    ended.pod.metadata.deletion_timestamp = datetime.now(UTC)
    waiting = k8s.V1ContainerState(waiting=k8s.V1ContainerStateWaiting(reason="ContainerCreating"))
    status = k8s.V1ContainerStatus(name="base", image="w", image_id="", ready=False, restart_count=0, state=waiting)
    with pytest.raises(Preempted, match="taken away: deleted"):
        ended.never_start(k8s.V1PodStatus(phase="Failed", container_statuses=[status]))
