"""A namespace of its own on the cluster of KUBECONFIG, and the environment of tasks that run pods in it.

What makes and removes it is the harness of the tests on a cluster, tests/cluster, whose `cluster_settings.py` says
what can be set for other clusters. No slices: the tasks run on the CPU, and the node is left as it is.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.output import progress
from benchmarks.processes import clean_environment

ROOT = Path(__file__).resolve().parents[1]
_ACCOUNT = "yolo-airflow"
_GONE_SECONDS = 120

HOOK_VARIABLE = "YOLO_CLUSTER_HOOK"
"""What tests/cluster/standin/airflow_local_settings.py does to each pod that KubernetesPodOperator builds."""
NO_HOOK = json.dumps({"python": "python", "mounts": {}, "environment": {}})
"""Leaves a pod that has a command as it is, but for requests that it lacks."""


@contextmanager
def cluster_for_tasks(kubeconfig: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """The workspace's folder, the same path here and in pods, and the tasks' environment.

    At the end nothing is left: the namespace is waited for until it is gone.
    """
    if (harness := str(ROOT / "tests" / "cluster")) not in sys.path:
        sys.path.insert(0, harness)
    import cluster_settings as settings
    from cluster_kube import Kube, namespace_with_rights, volume, write_kubeconfig
    from cluster_runs import wait_until

    kube, name = Kube(kubeconfig), settings.NAMESPACE
    with tempfile.TemporaryDirectory(prefix="bench-pods-") as folder:
        home = Path(folder)
        workspace = settings.make_workspace()
        try:
            with namespace_with_rights(kube, name), volume(kube, name, settings.WORKSPACE_CLAIM, workspace):
                write_kubeconfig(kube, _ACCOUNT, name, home / "kubeconfig")
                (home / "config").mkdir()
                local_settings = Path("standin", "airflow_local_settings.py")
                (home / "config" / local_settings.name).symlink_to(settings.HERE / local_settings)
                yield (
                    workspace,
                    clean_environment(os.environ)
                    | {
                        "AIRFLOW_HOME": str(home),
                        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                        "AIRFLOW__YOLO__EXECUTION": "kubernetes",
                        "AIRFLOW__YOLO__IMAGE": settings.IMAGE,
                        "AIRFLOW__YOLO__WORKSPACE": str(workspace),
                        "AIRFLOW__YOLO__WORKSPACE_CLAIM": settings.WORKSPACE_CLAIM,
                        "AIRFLOW__YOLO__PROFILE_STORE": f"sqlite:///{home / 'profiles.db'}",
                        "AIRFLOW_CONN_KUBERNETES_DEFAULT": _connection(home / "kubeconfig", name),
                        HOOK_VARIABLE: json.dumps(settings.pod_hook()),
                    },
                )
        finally:
            progress(f"removing namespace {name}")
            wait_until(lambda: _is_gone(kube, name), f"namespace {name} to be gone", _GONE_SECONDS, every=1)


def _is_gone(kube: Any, namespace: str) -> bool:
    selector = f"metadata.name={namespace}"
    volumes = kube.core.list_persistent_volume().items
    return not kube.core.list_namespace(field_selector=selector).items and not any(
        item.spec.claim_ref and item.spec.claim_ref.namespace == namespace for item in volumes
    )


def _connection(kubeconfig: Path, namespace: str) -> str:
    extra = {"kube_config_path": str(kubeconfig), "in_cluster": False, "namespace": namespace}
    return json.dumps({"conn_type": "kubernetes", "extra": extra})
