"""The profile store goes away: before a run the task fails and has spent nothing, after it nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from kubernetes.client import models as k8s
from test_pod_results import Ended, result
from tests_support import StateStore

from yolo_airflow_provider.contract import EpochRecord, Failure, FailureClass
from yolo_airflow_provider.errors import BadInput, GpuOutOfMemory
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import MigTrainOperator, PreprocessOperator
from yolo_airflow_provider.operators.plan import identity_of
from yolo_airflow_provider.operators.recording import spool_folders
from yolo_airflow_provider.operators.tries import recorded
from yolo_airflow_provider.profiles.errors import StoreOutdatedError, StoreUnavailable
from yolo_airflow_provider.profiles.store import ProfileStore

MakeContext = Callable[..., dict[str, Any]]

AWAY = StoreUnavailable("no database for 120 s: connection refused")
OUT_OF_MEMORY = Failure(failure_class=FailureClass.GPU_OOM, message="batch 16 ran out of memory", needed_bytes=2**33)


@pytest.fixture
def ended(dataset: dict[str, Any], make_context: MakeContext, cluster: None) -> Ended:
    return Ended(dataset, make_context("train"))


def waiting(folder: Path, pattern: str = "*.json") -> list[Path]:
    return sorted((folder / "spool").rglob(pattern))


def away() -> Any:
    """The store cannot be opened."""
    return patch.object(ProfileStoreHook, "get_store", side_effect=AWAY)


def in_another_process(ended: Ended) -> Ended:
    """As after a deferral: nothing is open any more."""
    for name in ("_recorder", "_profile_hook"):
        ended.operator.__dict__.pop(name)
    return ended


def broken(method: str, error: Exception = AWAY) -> Any:
    """The store is open, and the database goes away when it is asked for this."""
    return patch.object(ProfileStore, method, side_effect=error)


@pytest.mark.parametrize("outage", [away(), broken("record")])
def test_a_run_that_succeeded_succeeds_without_the_store(
    outage: Any, ended: Ended, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with outage:
        in_another_process(ended).end(message=result().to_message())
        assert ended.operator._finish()["metrics"] == {"mAP50": 0.61}
    ended.operator.process_pod_deletion.assert_called_once()  # type: ignore[attr-defined]
    assert ended.rows == []
    (file,) = waiting(tmp_path)
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line and "profile store" in line]
    assert len(said) == 1
    assert str(file) in said[0]
    assert "connection refused" in said[0]


def test_the_next_task_loads_what_waits_before_it_plans(
    ended: Ended, dataset: dict[str, Any], make_context: MakeContext, tmp_path: Path
) -> None:
    with away():
        in_another_process(ended).end(message=result(batch=48).to_message())
    other = Ended(dataset, make_context("train", run_id="other"), max_batch=48)
    assert json.loads(other.pod.spec.containers[0].env[0].value)["job"]["batch"] == 48
    (row,) = ended.rows
    assert (row.batch, row.map50) == (48, 0.61)
    assert waiting(tmp_path) == []


def test_a_failure_keeps_its_class_and_the_next_try_plans_with_it(
    ended: Ended, make_context: MakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    with broken("record"), broken("evidence") as read, pytest.raises(GpuOutOfMemory, match="batch 16 ran out"):
        ended.end(message=result(failure=OUT_OF_MEMORY).to_message(), exit_code=17)
    read.assert_not_called()  # a look ahead would wait for the database once more, while the pod holds its slice
    assert "(2 of 3, if the task's retry policy agrees) plans again when the profile store" in capsys.readouterr().out
    assert 4 <= ended.next_batch(make_context) < 16


def test_epochs_wait_with_their_measurement(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None, tmp_path: Path
) -> None:
    ended = Ended(dataset, make_context("train"), workspace=str(tmp_path))
    folder = tmp_path / "dag" / "manual__1" / "train" / "-1"
    folder.mkdir(parents=True)
    lines = [EpochRecord(epoch=n, try_number=1, seconds=2.0).model_dump_json() for n in (1, 2, 3)]
    (folder / "epochs.jsonl").write_text("\n".join(lines))
    with away():
        in_another_process(ended).end(message=result().to_message())
    in_another_process(ended).operator._store()
    assert sorted(ProfileStoreHook().get_store().frame("epoch")["epoch"]) == [1, 2, 3]


def test_after_a_deferral_a_fresh_process_that_cannot_open_the_store_keeps_the_rows(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None, tmp_path: Path
) -> None:
    context = make_context("train") | {"task_state_store": StateStore()}
    ended = Ended(dataset, context, deferrable=True)
    fresh = in_another_process(Ended(dataset, context, deferrable=True))
    terminated = k8s.V1ContainerStateTerminated(exit_code=0, message=result().to_message())
    status = k8s.V1ContainerStatus(
        name="base",
        image="w:1",
        image_id="",
        ready=False,
        restart_count=0,
        state=k8s.V1ContainerState(terminated=terminated),
    )
    ended.pod.status = k8s.V1PodStatus(phase="Succeeded", container_statuses=[status])
    fresh.operator.__dict__["hook"] = MagicMock()
    fresh.operator.hook.get_pod.return_value = ended.pod
    fresh.manager.read_pod.return_value = ended.pod
    event = {"status": "success", "name": "p", "namespace": "ml", "message": ""}
    with away(), patch.object(fresh.operator, "is_istio_enabled", return_value=False):
        answer = fresh.operator.trigger_reentry(context, event)
    assert answer["metrics"] == {"mAP50": 0.61}
    assert len(waiting(tmp_path)) == 1


def test_a_plan_fails_before_anything_is_spent(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = MigTrainOperator(
        task_id="train", model="yolov8n", data=dataset, epochs=1, accelerator="cpu", execution="local"
    )
    with patch("yolo_airflow_provider.operators.base.LocalRun") as run, away(), pytest.raises(StoreUnavailable):
        operator.execute(make_context("train"))
    run.assert_not_called()


def test_no_pod_is_made_for_a_plan_that_could_not_be_read(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    operator = MigTrainOperator(
        task_id="train", model="yolov8n", data=dataset, epochs=1, accelerator="1g.5gb", namespace="ml"
    )
    operator.find_pod = MagicMock(return_value=None)  # type: ignore[method-assign]
    operator.__dict__["pod_manager"] = manager = MagicMock()
    with broken("evidence"), pytest.raises(StoreUnavailable):
        operator.execute(make_context("train"))
    manager.create_pod.assert_not_called()


def test_a_decision_waits_where_the_database_goes_away_after_it_was_read(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None, tmp_path: Path
) -> None:
    with broken("decide"):
        ended = Ended(dataset, make_context("train"))
    assert ended.pod.spec.containers[0].resources.limits["nvidia.com/mig-1g.5gb"] == "1"
    assert len(waiting(tmp_path)) == 1
    ended.end(message=result().to_message())
    assert waiting(tmp_path) == []
    (decision,) = ProfileStoreHook().get_store().decisions("dag", "manual__1")
    assert decision.batch == 16


def test_another_version_is_bad_input_while_planning_and_kept_when_it_came_during_the_run(
    ended: Ended, make_context: MakeContext, tmp_path: Path
) -> None:
    outdated = StoreOutdatedError("the store is at revision 0002; run yolo-airflow db upgrade")
    with patch.object(ProfileStoreHook, "get_store", side_effect=outdated):
        in_another_process(ended).end(message=result().to_message())
        assert len(waiting(tmp_path)) == 1
        with pytest.raises(BadInput, match="db upgrade"):
            ended.replan(make_context("train", run_id="other"))


def test_a_value_that_the_store_refuses_fails_no_run_and_is_kept(
    ended: Ended, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(result().to_message())
    answer["measurements"][0]["iowait_percent"] = 250.0
    ended.end(message=json.dumps(answer))
    assert ended.operator._finish()["metrics"] == {"mAP50": 0.61}
    assert (ended.rows, waiting(tmp_path)) == ([], [])
    (file,) = waiting(tmp_path, "*.refused")
    assert '"iowait_percent": 250.0' in file.read_text()
    said = capsys.readouterr().out
    assert "iowait_percent is 250.0: expected at most 100" in said
    assert str(file) in said


def test_an_unseen_end_is_not_guessed_while_the_store_is_away(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None, tmp_path: Path
) -> None:
    """It may be on record as something better than `lost`."""
    operator = MigTrainOperator(
        task_id="train", model="yolov8n", data=dataset, epochs=1, accelerator="1g.5gb", namespace="ml"
    )
    state = StateStore()
    operator.build_pod_request_obj(make_context("train") | {"task_state_store": state})
    operator.find_pod = MagicMock(return_value=None)  # type: ignore[method-assign]
    with broken("tries"), pytest.raises(StoreUnavailable):
        operator._adopted(make_context("train", try_number=2) | {"task_state_store": state})
    assert waiting(tmp_path) == []
    assert ProfileStoreHook().get_store().measurements("dag", "manual__1") == []


def test_no_connection_is_held_while_the_pod_runs_and_after_it(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    used: list[str] = []

    def note(name: str) -> Any:
        method = getattr(ProfileStore, name)

        def call(*arguments: Any, **named: Any) -> Any:
            used.append(name)
            return method(*arguments, **named)

        return patch.object(ProfileStore, name, call)

    with note("evidence"), note("decide"), note("record"), note("release"):
        ended = Ended(dataset, make_context("train"))
        assert used[-2:] == ["decide", "release"]
        used.clear()
        with pytest.raises(GpuOutOfMemory):
            ended.end(message=result(failure=OUT_OF_MEMORY).to_message(), exit_code=17)
        assert used == ["record", "evidence", "release"]


def test_tries_of_another_map_index_are_not_ours(
    dataset: dict[str, Any], make_context: MakeContext, cluster: None
) -> None:
    for index in (0, 1):
        with pytest.raises(GpuOutOfMemory):
            Ended(dataset, make_context("train", map_index=index)).end(
                message=result(failure=OUT_OF_MEMORY).to_message(), exit_code=17
            )
    ours = recorded(ProfileStoreHook().get_store(), identity_of(make_context("train", map_index=1)))
    assert [row.key.map_index for row in ours] == [1]


def test_a_local_run_outlives_the_store(make_context: MakeContext, shapes: Path, tmp_path: Path) -> None:
    operator = PreprocessOperator(task_id="preprocess", data=str(shapes), imgsz="96", execution="local")
    with broken("record"):
        answer = operator.execute(make_context("preprocess"))
    assert answer["dataset"]["train_images"] == 16
    assert len(waiting(tmp_path)) == 1
    operator._store()
    (stored,) = ProfileStoreHook().get_store().measurements("dag", "manual__1")
    assert (stored.row.kind, stored.row.outcome) == ("preprocess", "succeeded")


def test_the_spool_is_beside_the_runs_or_where_the_option_says(
    tmp_path: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spool_folders("/ws") == [tmp_path / "spool", airflow_home / "yolo_profile_spool"]
    monkeypatch.delenv("AIRFLOW__YOLO__SPOOL")
    assert spool_folders("/ws") == [Path("/ws/.profile-spool"), airflow_home / "yolo_profile_spool"]
