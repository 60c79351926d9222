"""What the operators make of what the cluster offers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock

import pytest
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.contract import JobSpec
from yolo_airflow_provider.errors import BadInput, Unschedulable
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import ExportOperator, MigTrainOperator
from yolo_airflow_provider.operators.discovery import placement_of, read_cluster
from yolo_airflow_provider.profiles.records import MeasurementRow, RunKey

MakeContext = Callable[..., dict[str, Any]]
Cluster = Callable[..., None]

PRODUCT = "NVIDIA-A100-SXM4-40GB"


def node(name: str = "gpu-1", *, cordoned: bool = False, cpu: str = "32", **slices: int) -> dict[str, Any]:
    """A node under strategy mixed, with the labels that GPU feature discovery gives it."""
    memory = {"1g.5gb": "4864", "2g.10gb": "9856", "3g.20gb": "20096"}
    profiles = {profile.replace("_", "."): count for profile, count in slices.items()}
    labels = {
        "nvidia.com/gpu.product": PRODUCT,
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig.config.state": "success",
    }
    for profile in profiles:
        labels[f"nvidia.com/mig-{profile}.memory"] = memory[profile]
        labels[f"nvidia.com/mig-{profile}.product"] = f"{PRODUCT}-MIG-{profile}"
    devices = {f"nvidia.com/mig-{profile}": str(count) for profile, count in profiles.items()}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "256Gi", "pods": "110", **devices},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def holding(resource: str, count: int, on: str = "gpu-1") -> dict[str, Any]:
    resources = {"requests": {resource: str(count)}, "limits": {resource: str(count)}}
    return {
        "metadata": {"name": "other"},
        "spec": {"nodeName": on, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running"},
    }


def ended_try(outcome: str, *, run_id: str = "manual__1", **changes: Any) -> MeasurementRow:
    return MeasurementRow(
        key=RunKey(dag_id="dag", run_id=run_id, task_id="train", map_index=-1, try_number=1),
        part="end",
        kind="train",
        outcome=outcome,
        finished_at=datetime(2026, 12, 1, tzinfo=UTC),
        model="yolov8n",
        imgsz=320,
        precision="amp",
        accelerator_kind="mig",
        product=PRODUCT,
        **changes,
    )


def train(dataset: dict[str, Any], **changes: Any) -> MigTrainOperator:
    arguments = {"task_id": "train", "model": "yolov8n", "data": dataset, "epochs": 3, "imgsz": 320, "namespace": "ml"}
    # What the architecture predicts would take up to 64.
    arguments["max_batch"] = 16
    return MigTrainOperator(**{**arguments, **changes})


def build(operator: Any, context: dict[str, Any]) -> tuple[k8s.V1Pod, JobSpec]:
    pod = operator.build_pod_request_obj(context)
    variable = next(v for v in pod.spec.containers[0].env if v.name == "YOLO_JOB")
    return pod, JobSpec.from_json(variable.value)


def test_memory_and_product_come_from_the_nodes_labels(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 7}))
    pod, spec = build(train(dataset, accelerator="1g.5gb"), make_context("train"))
    assert spec.accelerator.memory_budget_bytes == 4864 * 2**20
    assert spec.accelerator.product == PRODUCT
    assert pod.spec.node_selector == {"nvidia.com/gpu.product": PRODUCT}


def test_auto_takes_the_smallest_that_is_free(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    mixed = node(**{"1g_5gb": 2, "3g_20gb": 1})
    cluster(mixed)
    _, spec = build(train(dataset, accelerator="auto"), make_context("train"))
    assert spec.accelerator.mig_profile == "1g.5gb"
    cluster(mixed, pods=[holding("nvidia.com/mig-1g.5gb", 2)])
    _, spec = build(train(dataset, accelerator="auto"), make_context("train", run_id="second"))
    assert spec.accelerator.mig_profile == "3g.20gb"


def test_auto_leaves_a_slice_in_which_nothing_fits(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 2, "3g_20gb": 1}))
    failed = ended_try("gpu_oom", batch=1, budget_bytes=4864 * 2**20, run_id="earlier")
    ProfileStoreHook().get_store().record([failed])
    _, spec = build(train(dataset, accelerator="auto"), make_context("train"))
    assert spec.accelerator.mig_profile == "3g.20gb"


def test_b17_a_name_that_no_node_offers_fails_at_once_with_what_is(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"2g_10gb": 3}))
    with pytest.raises(Unschedulable, match=r"offers .*1g\.5gb") as raised:
        train(dataset, accelerator="1g.5gb").build_pod_request_obj(make_context("train"))
    assert "nvidia.com/mig-2g.10gb" in str(raised.value)
    (row,) = [item.row for item in ProfileStoreHook().get_store().measurements("dag", "manual__1")]
    assert row.outcome == "unschedulable"


def test_a_request_larger_than_any_node_fails_at_once(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(cpu="4", **{"1g_5gb": 7}))
    with pytest.raises(Unschedulable, match=r"(?i)cpu"):
        train(dataset, accelerator="1g.5gb", workers=8).build_pod_request_obj(make_context("train"))
    build(train(dataset, accelerator="1g.5gb", workers=2), make_context("train"))


def test_cpu_tasks_are_checked_as_well(dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster) -> None:
    cluster(node())
    asked = k8s.V1ResourceRequirements(requests={"memory": "4Ti"})
    operator = ExportOperator(
        task_id="export", weights="/ws/best.pt", data=dataset, namespace="ml", container_resources=asked
    )
    with pytest.raises(Unschedulable, match="memory"):
        operator.build_pod_request_obj(make_context("export"))


def test_nodes_that_come_on_demand_are_waited_for_on_request(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"2g_10gb": 3}))
    pod, _ = build(train(dataset, accelerator="1g.5gb", preflight=False), make_context("train"))
    assert pod.spec.containers[0].resources.limits["nvidia.com/mig-1g.5gb"] == "1"


@pytest.mark.parametrize("state", ["busy", "cordoned"])
def test_what_is_offered_but_not_now_is_waited_for_and_said(
    state: str,
    dataset: dict[str, Any],
    make_context: MakeContext,
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    offered = node(cordoned=state == "cordoned", **{"1g_5gb": 7})
    cluster(offered, pods=[holding("nvidia.com/mig-1g.5gb", 7)] if state == "busy" else [])
    build(train(dataset, accelerator="1g.5gb"), make_context("train"))
    said = capsys.readouterr().out
    assert "The pod will wait for a slice, up to 86400 s" in said
    assert ("in use" if state == "busy" else "cordoned") in said


def test_the_operators_own_selectors_narrow_what_is_offered(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 7}))
    with pytest.raises(Unschedulable, match="zone"):
        build(train(dataset, accelerator="1g.5gb", node_selector={"zone": "b"}), make_context("train"))


def test_auto_without_any_gpu_says_what_there_is(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node())
    with pytest.raises(Unschedulable, match="offers no GPU"):
        build(train(dataset, accelerator="auto"), make_context("train"))


def test_the_slice_of_a_try_that_was_preempted_is_asked_for_again(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 2, "3g_20gb": 1}))
    ended = ended_try("preempted", batch=12, mig_profile="3g.20gb", budget_bytes=20096 * 2**20)
    ProfileStoreHook().get_store().record([ended])
    _, spec = build(train(dataset, accelerator="auto"), make_context("train", try_number=2))
    assert (spec.accelerator.mig_profile, getattr(spec.job, "batch", None)) == ("3g.20gb", 12)


class Api:
    """The two LIST calls; a forbidden one answers 403."""

    def __init__(self, *, nodes: list[Any] | None, pods: list[Any] | None) -> None:
        self.list_node = self._call(nodes)
        self.list_pod_for_all_namespaces = self._call(pods)

    @staticmethod
    def _call(items: list[Any] | None) -> MagicMock:
        if items is None:
            return MagicMock(side_effect=ApiException(status=403))
        return MagicMock(return_value=MagicMock(data=json.dumps({"items": items, "metadata": {}}).encode()))


POD = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base")]))


def test_where_nodes_may_not_be_listed_it_is_said() -> None:
    said: list[str] = []
    assert read_cluster(Api(nodes=None, pods=[]), POD, said.append, with_pods=True) is None  # type: ignore[arg-type]
    assert "may not list nodes" in said[0]


def test_where_pods_may_not_be_listed_what_is_free_is_unknown() -> None:
    said: list[str] = []
    api = Api(nodes=[node(**{"1g_5gb": 7})], pods=None)
    offer = read_cluster(api, POD, said.append, with_pods=True)  # type: ignore[arg-type]
    assert offer is not None
    assert [(o.total, o.free) for o in offer.offers] == [(7, None)]
    assert "not known how many slices are free" in said[0]


def test_b9_what_is_offered_is_read_anew_for_each_try() -> None:
    api = Api(nodes=[node()], pods=[])
    assert read_cluster(api, POD, str, with_pods=True) is not None  # type: ignore[arg-type]
    api.list_node.return_value.data = json.dumps({"items": [node(**{"1g_5gb": 7})]}).encode()
    offer = read_cluster(api, POD, str, with_pods=True)  # type: ignore[arg-type]
    assert offer is not None
    assert [o.accelerator.mig_profile for o in offer.offers] == ["1g.5gb"]


def test_a_large_cluster_is_read_page_by_page() -> None:
    api = Api(nodes=[], pods=[])
    pages = [
        {"items": [node("one", **{"1g_5gb": 7})], "metadata": {"continue": "next"}},
        {"items": [node("two", **{"1g_5gb": 7})], "metadata": {}},
    ]
    api.list_node.side_effect = [MagicMock(data=json.dumps(page).encode()) for page in pages]
    offer = read_cluster(api, POD, str, with_pods=False)  # type: ignore[arg-type]
    assert offer is not None
    assert offer.offers[0].total == 14
    assert api.list_node.call_args.kwargs["_continue"] == "next"
    api.list_pod_for_all_namespaces.assert_not_called()  # a CPU task has no use for it


def test_a_resource_name_means_the_resource_also_where_it_is_a_slice(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    single = node()
    single["metadata"]["labels"] |= {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": f"{PRODUCT}-MIG-1g.5gb",
        "nvidia.com/gpu.memory": "4864",
    }
    single["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    cluster(single)
    for asked in ("nvidia.com/gpu", "1g.5gb"):
        pod, spec = build(train(dataset, accelerator=asked), make_context("train", run_id=asked))
        assert (spec.accelerator.kind, spec.accelerator.mig_profile) == ("mig", "1g.5gb")
        assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "1"
        assert pod.spec.node_selector == {"nvidia.com/gpu.product": f"{PRODUCT}-MIG-1g.5gb"}


def test_auto_passes_by_a_slice_whose_nodes_are_too_small(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node("small", cpu="4", **{"1g_5gb": 7}), node("large", **{"2g_10gb": 3}))
    _, spec = build(train(dataset, accelerator="auto", workers=8), make_context("train"))
    assert spec.accelerator.mig_profile == "2g.10gb"


def test_a_slice_that_was_never_got_is_not_clung_to(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 2, "3g_20gb": 1}))
    ProfileStoreHook().get_store().record([ended_try("unschedulable", batch=12, mig_profile="3g.20gb")])
    _, spec = build(train(dataset, accelerator="auto"), make_context("train", try_number=2))
    assert spec.accelerator.mig_profile == "1g.5gb"


def test_a_batch_is_not_kept_on_another_accelerator(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 2}))
    ProfileStoreHook().get_store().record([ended_try("code", batch=64, mig_profile="7g.40gb")])
    _, spec = build(train(dataset, accelerator="1g.5gb"), make_context("train", try_number=2))
    assert getattr(spec.job, "batch", None) == 16


def test_where_nodes_may_not_be_listed_names_are_matched_as_elsewhere(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [
        {"resource": "nvidia.com/mig-3g.39gb", "memory": "40000Mi"},
        {"resource": "nvidia.com/mig-1g.10gb", "memory": "9984Mi"},
    ]
    connection = {"conn_type": "kubernetes", "extra": {"yolo_accelerators": listed}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
    _, spec = build(train(dataset, accelerator="3g.40gb"), make_context("train"))
    assert (spec.accelerator.mig_profile, spec.accelerator.memory_budget_bytes) == ("3g.39gb", 40000 * 2**20)
    _, spec = build(train(dataset, accelerator="auto"), make_context("train", run_id="auto"))
    assert spec.accelerator.mig_profile == "1g.10gb"


def test_a_sidecar_counts_into_what_a_node_must_hold(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(cpu="4", **{"1g_5gb": 7}))
    sidecar = k8s.V1Container(name="proxy", resources=k8s.V1ResourceRequirements(requests={"cpu": "3"}))
    whole = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", image="w"), sidecar]))
    build(train(dataset, accelerator="1g.5gb", workers=2), make_context("train"))
    with pytest.raises(Unschedulable, match="6 CPUs asked"):
        build(train(dataset, accelerator="1g.5gb", workers=2, full_pod_spec=whole), make_context("train"))


def test_another_error_of_the_api_is_not_taken_for_a_missing_right() -> None:
    api = Api(nodes=[], pods=[])
    api.list_node.side_effect = ApiException(status=500)
    with pytest.raises(ApiException):
        read_cluster(api, POD, str, with_pods=True)  # type: ignore[arg-type]


def test_the_placement_is_the_finished_pods() -> None:
    terms = k8s.V1NodeSelectorTerm(
        match_expressions=[k8s.V1NodeSelectorRequirement(key="zone", operator="In", values=["a"])]
    )
    affinity = k8s.V1Affinity(
        node_affinity=k8s.V1NodeAffinity(
            required_during_scheduling_ignored_during_execution=k8s.V1NodeSelector(node_selector_terms=[terms])
        )
    )
    spec = k8s.V1PodSpec(
        containers=[], affinity=affinity, node_selector={"a": "b"}, tolerations=[k8s.V1Toleration(key="t")]
    )
    placement = placement_of(k8s.V1Pod(spec=spec))
    assert placement.node_selector == {"a": "b"}
    assert placement.tolerations == ({"key": "t"},)
    assert placement.node_affinity == {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    }


def test_a_wrong_name_is_told_from_one_that_is_not_offered(
    dataset: dict[str, Any], make_context: MakeContext, cluster: Cluster
) -> None:
    cluster(node(**{"1g_5gb": 7}))
    with pytest.raises(BadInput, match="is not known"):
        build(train(dataset, accelerator="nvidia.com/a100"), make_context("train"))
