from __future__ import annotations

from typing import Any

import pytest
from gpu_nodes import a100_single, h100_mixed, node, pod
from hypothesis import given, strategies as st

from yolo_airflow_provider.gpus.nodes import (
    Placement,
    Taint,
    read_nodes,
    requests_by_node,
    why_not,
    why_not_now,
)

GPU = "nvidia.com/gpu"
COUNTS = st.integers(0, 8)


def _why_not(item: dict[str, Any], placement: Placement) -> str:
    (read,) = read_nodes([item])
    return why_not(read, placement)


def _affinity(*terms: dict[str, Any]) -> Placement:
    return Placement(node_affinity={"nodeSelectorTerms": list(terms)})


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def _toleration(**fields: Any) -> Placement:
    return Placement(tolerations=(fields,))


def test_a_node_in_plain_numbers() -> None:
    (read,) = read_nodes(
        [h100_mixed("a", cpu="31850m", memory="24390112Ki", taints=("nvidia.com/gpu=present:NoSchedule",))]
    )
    assert (read.name, read.cpu_millicores, read.memory_bytes) == ("a", 31850, 24390112 * 1024)
    assert read.taints == (Taint("nvidia.com/gpu", "present", "NoSchedule"),)
    assert (read.ready, read.cordoned) == (True, False)
    assert read.labels["nvidia.com/mig-1g.10gb.memory"] == "9984"
    # Zeros stay in it, and what is no device does not get into it.
    assert read.extended == {
        GPU: 0,
        "nvidia.com/mig-1g.10gb": 2,
        "nvidia.com/mig-2g.20gb": 1,
        "nvidia.com/mig-3g.40gb": 1,
    }


def test_a_node_without_anything() -> None:
    (read,) = read_nodes([{"metadata": {"name": "new"}}])
    assert (read.labels, read.taints, read.cpu_millicores, read.memory_bytes, read.extended) == ({}, (), 0, 0, {})
    assert not read.ready  # a kubelet that has not reported yet


@pytest.mark.parametrize(
    ("cpu", "memory", "expected"),
    [
        ("2", "1Gi", (2000, 2**30)),
        ("1500m", "128974848", (1500, 128974848)),
        ("0.1", "129e6", (100, 129 * 10**6)),
        ("100u", "123M", (1, 123 * 10**6)),
        ("2k", "128974848000m", (2_000_000, 128974848)),
        (2, "1E", (2000, 10**18)),
        ("2.", "1.5Ki", (2000, 1536)),
    ],
)
def test_quantities_mean_what_the_api_says(cpu: str, memory: str, expected: tuple[int, int]) -> None:
    (read,) = read_nodes([node("a", cpu=cpu, memory=memory)])
    assert (read.cpu_millicores, read.memory_bytes) == expected


@pytest.mark.parametrize("memory", ["", "1 Gi", "1gi", "-1", "lots", "1GiB"])
def test_what_is_no_quantity_is_refused(memory: str) -> None:
    with pytest.raises(ValueError, match=r"memory: .* is not a Kubernetes quantity"):
        read_nodes([node("a", memory=memory)])


def test_pods_hold_what_they_request_from_binding_to_end() -> None:
    pods = [
        pod("a", cpu="500m", memory="1Gi", **{GPU: 1}),
        pod("a", phase="Pending", cpu="2", **{GPU: 2}),  # bound, its image is being pulled
        pod("a", phase="Succeeded", **{GPU: 4}),
        pod("a", phase="Failed", **{GPU: 4}),
        pod(None, phase="Pending", **{GPU: 4}),
        pod("b", **{GPU: 1}),
    ]
    assert requests_by_node(pods) == {"a": {"cpu": 2500, "memory": 2**30, GPU: 3}, "b": {GPU: 1}}


def test_a_missing_request_is_the_limit() -> None:
    resources = {"limits": {GPU: "2", "cpu": "4"}, "requests": {"cpu": "1"}}
    pods = [{"spec": {"nodeName": "a", "containers": [{"name": "base", "resources": resources}]}}]
    assert requests_by_node(pods) == {"a": {GPU: 2, "cpu": 1000}}


@pytest.mark.parametrize(
    ("inits", "expected"),
    [
        ([], 4),
        ([(3, "")], 4),
        ([(6, ""), (5, "")], 6),  # one after the other
        ([(2, "Always")], 6),  # a sidecar runs beside the container
        ([(2, "Always"), (5, "")], 7),  # and beside the init containers after it
        ([(5, ""), (2, "Always")], 6),  # not beside those before it
        ([(2, "Always"), (3, "Always")], 9),
    ],
)
def test_init_containers_and_sidecars(inits: list[tuple[int, str]], expected: int) -> None:
    def container(cpu: int, policy: str = "") -> dict[str, Any]:
        always = {"restartPolicy": policy} if policy else {}
        return {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}, **always}

    spec = {
        "nodeName": "a",
        "containers": [container(3), container(1), {"name": "best-effort"}],
        "initContainers": [container(cpu, policy) for cpu, policy in inits],
        "overhead": {"cpu": "250m"},
    }
    assert requests_by_node([{"spec": spec, "status": {"phase": "Running"}}]) == {"a": {"cpu": expected * 1000 + 250}}


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["Running", "Failed"]), COUNTS)))
def test_requests_are_the_sum_of_the_active_bound_pods(pods: list[tuple[str | None, str, int]]) -> None:
    held = requests_by_node([pod(where, phase, **{GPU: count}) for where, phase, count in pods])
    for name in ("a", "b"):
        expected = sum(count for where, phase, count in pods if where == name and phase == "Running")
        assert held.get(name, {}).get(GPU, 0) == expected
    assert None not in held


def test_a_pod_without_wishes_goes_anywhere() -> None:
    assert _why_not(h100_mixed("a"), Placement()) == ""
    assert _why_not(a100_single("a", taints=("cheap:PreferNoSchedule",)), Placement()) == ""


def test_a_node_selector_says_which_label_differs() -> None:
    item = node("a", labels={"disk": "ssd"})
    assert _why_not(item, Placement(node_selector={"disk": "ssd"})) == ""
    assert _why_not(item, Placement(node_selector={"disk": "hdd"})) == (
        "has disk=ssd, the pod's node selector asks for hdd"
    )
    assert "has no label zone" in _why_not(item, Placement(node_selector={"disk": "ssd", "zone": "b"}))


@pytest.mark.parametrize(
    ("term", "meets"),
    [
        (_expression("zone", "In", "a", "b"), True),
        (_expression("zone", "In", "c"), False),
        (_expression("rack", "In", "c"), False),
        (_expression("zone", "NotIn", "c"), True),
        (_expression("zone", "NotIn", "a"), False),
        (_expression("rack", "NotIn", "c"), True),  # also where there is no such label
        (_expression("zone", "Exists"), True),
        (_expression("rack", "Exists"), False),
        (_expression("rack", "DoesNotExist"), True),
        (_expression("zone", "DoesNotExist"), False),
        (_expression("cores", "Gt", "9"), True),  # numbers, not text: "64" < "9"
        (_expression("cores", "Gt", "64"), False),
        (_expression("cores", "Lt", "100"), True),
        (_expression("cores", "Lt", "64"), False),
        (_expression("zone", "Gt", "1"), False),
        (_expression("rack", "Lt", "1"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-1"]}]}, False),
        (
            {
                **_expression("zone", "Exists"),
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}],
            },
            False,
        ),
        ({}, False),
    ],
)
def test_required_node_affinity(term: dict[str, Any], meets: bool) -> None:
    item = node("gpu-1", labels={"zone": "a", "cores": "64"})
    assert (_why_not(item, _affinity(term)) == "") is meets


def test_one_affinity_term_is_enough_and_the_reason_has_all() -> None:
    item = node("a", labels={"zone": "a"})
    never, fits = _expression("zone", "In", "b", "c"), _expression("zone", "Exists")
    assert _why_not(item, _affinity(never, fits)) == ""
    assert _why_not(item, _affinity(never, _expression("rack", "Exists"))) == (
        "does not meet the pod's node affinity: zone In (b, c) or rack Exists"
    )


def test_b17_a_taint_that_is_not_tolerated_is_named() -> None:
    item = node("a", taints=("nvidia.com/gpu=present:NoSchedule", "team=vision:NoExecute", "cheap:PreferNoSchedule"))
    assert _why_not(item, Placement()) == (
        "tainted nvidia.com/gpu=present:NoSchedule, team=vision:NoExecute, which the pod does not tolerate"
    )
    assert "team=vision" not in _why_not(item, _toleration(key="team", operator="Exists"))


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "operator": "Equal", "value": "vision"}, True),
        ({"key": "team", "value": "vision"}, True),  # Equal where no operator is given
        ({"key": "team", "value": "vision", "effect": "NoSchedule"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "sound"}, False),
        ({"key": "team"}, False),
        ({"key": "teams", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tolerations(toleration: dict[str, Any], tolerates: bool) -> None:
    item = node("a", taints=("team=vision:NoSchedule",))
    assert (_why_not(item, _toleration(**toleration)) == "") is tolerates


def test_a_pod_that_names_its_node() -> None:
    named = Placement(node_name="a")
    assert _why_not(node("b"), named) == "the pod names node a"
    assert _why_not(node("a", taints=("team=vision:NoSchedule",)), named) == ""  # the scheduler is passed by
    assert "team" in _why_not(node("a", taints=("team=vision:NoExecute",)), named)  # kubelet is not


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ({}, ""),
        ({"cordoned": True, "taints": ("node.kubernetes.io/unschedulable:NoSchedule",)}, "cordoned"),
        ({"ready": False, "taints": ("node.kubernetes.io/unreachable:NoExecute",)}, "not ready"),
        ({"ready": False, "cordoned": True}, "cordoned and not ready"),
        (
            {"taints": ("node.kubernetes.io/disk-pressure:NoSchedule",)},
            "tainted node.kubernetes.io/disk-pressure:NoSchedule",
        ),
        ({"taints": ("team=vision:NoSchedule",)}, ""),
    ],
)
def test_states_are_no_reasons_of_principle(how: dict[str, Any], state: str) -> None:
    (read,) = read_nodes([node("a", **how)])
    assert why_not_now(read, Placement()) == state
    if state:
        assert why_not(read, Placement()) == ""
