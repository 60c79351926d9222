from __future__ import annotations

from pathlib import Path

import pytest
from cluster_jobs import example
from cluster_kube import Kube
from cluster_pods import PodWatch, SeenPod
from cluster_runs import run_dag
from cluster_settings import PRODUCT, SLICE
from cluster_standard import violations

from yolo_airflow_provider.profiles.store import ProfileStore

STANDIN = "standin-"


def as_planned(kube: Kube, seen: SeenPod) -> dict[str, object]:
    """The pod's manifest as the operators made it: without what the stand-in for an image mounts."""
    plain: dict[str, dict[str, list[dict[str, str]]]] = kube.api.sanitize_for_serialization(seen.first)
    plain["spec"]["volumes"] = [v for v in plain["spec"]["volumes"] if not v["name"].startswith(STANDIN)]
    return plain  # type: ignore[return-value]


@pytest.mark.limit(300)
@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_the_example_dag_runs_each_task_in_its_own_pod(
    airflow: Path, kube: Kube, pods: PodWatch, store: ProfileStore, deferrable: bool
) -> None:
    dag = example()
    for task in dag.tasks:
        task.deferrable = deferrable
        task.poll_interval = 1
    accelerator = "1g.5gb" if deferrable else "auto"
    parameters = {"data": "/data/bccd/data.yaml", "imgsz": 64, "epochs": 1, "accelerator": accelerator}
    run = run_dag(dag, run_conf=parameters)
    assert run.state == "success"

    seen = pods.pods("yolo_train", run_id=run.run_id)
    assert [one.task for one in seen] == ["preprocess", "probe", "train", "export"]
    assert len({one.pod.metadata.uid for one in seen}) == 4
    assert [one.limits.get(SLICE) for one in seen] == [None, "1", "1", None]
    assert [one.requests.get(SLICE) for one in seen] == [None, "1", "1", None]
    for one in seen:
        container, spec = one.first.spec.containers[0], one.first.spec
        variables = {variable.name: variable.value for variable in container.env}
        on_gpu = one.task in ("probe", "train")
        assert variables.get("NVIDIA_VISIBLE_DEVICES") == (None if on_gpu else "void")
        assert (spec.node_selector or {}).get("nvidia.com/gpu.product") == (PRODUCT if on_gpu else None)
        assert spec.automount_service_account_token is False
        assert len(spec.containers) == 1
        assert violations(as_planned(kube, one)) == []
        assert any(m.mount_path == "/data" and m.read_only for m in container.volume_mounts)

    rows = [item.row for item in store.measurements("yolo_train", run.run_id)]
    assert [row.kind for row in rows] == ["preprocess", "probe", "probe", "probe", "train", "export"]
    assert all(row.outcome == "succeeded" for row in rows)
    trained = rows[-2]
    assert (trained.accelerator_kind, trained.mig_profile) == ("mig", "1g.5gb")
    assert trained.budget_bytes == 4864 * 2**20
    (decision,) = store.decisions("yolo_train", run.run_id)
    assert len(decision.evidence) == 3  # the probe's points
    assert decision.batch == trained.batch

    answers = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}
    assert Path(answers["train"]["weights"]).is_file()
    assert Path(answers["export"]["artefact"]).is_file()
    pods.wait_for(lambda: all(one.gone for one in seen), "the run's pods to be deleted", 60)
