"""Airflow's own seam for a site's pods (`airflow_local_settings.py`), as a site without GPUs or a registry uses it.

KubernetesPodOperator calls the hook when it has built the pod; the operators put their job in after it and keep what
is set already. It makes any DAG, the unmodified example too, run on a small machine: small requests, the interpreter
of this machine mounted into a bare image, and a program around the worker that stands in for a MIG slice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from kubernetes.client import models as k8s

_SETTINGS = json.loads(os.environ["YOLO_CLUSTER_HOOK"])
"""`mounts`: {path in the pod: path on the node}; `environment`: {name: value}; `python`: the interpreter's path."""

_PROGRAM = (Path(__file__).resolve().parent / "slice_program.py").read_text(encoding="utf-8")


def pod_mutation_hook(pod: k8s.V1Pod) -> None:
    """Change a pod in place."""
    container = pod.spec.containers[0]
    if not container.command:
        container.command = [_SETTINGS["python"], "-c", _PROGRAM]
    if "tests.yolo-airflow.io/requests" not in (pod.metadata.annotations or {}):
        # Seven trainings at once have to be admitted by a machine of two cores; limits stay what the operators say.
        resources = container.resources or k8s.V1ResourceRequirements()
        resources.requests = {"cpu": "100m", "memory": "128Mi", **(resources.requests or {})}
        container.resources = resources
    for number, (path, source) in enumerate(_SETTINGS["mounts"].items()):
        volume = k8s.V1Volume(name=f"standin-{number}", host_path=k8s.V1HostPathVolumeSource(path=source))
        pod.spec.volumes = [*(pod.spec.volumes or []), volume]
        mount = k8s.V1VolumeMount(name=volume.name, mount_path=path, read_only=True)
        container.volume_mounts = [*(container.volume_mounts or []), mount]
    for name, value in _SETTINGS["environment"].items():
        container.env = [*(container.env or []), k8s.V1EnvVar(name=name, value=value)]
