"""What differs from cluster to cluster, and where this session keeps its things. Imports nothing of Airflow's.

By default the pods run a bare Debian image with this machine's interpreter, packages and checkout mounted into it,
which works where the node is this machine. On any other cluster set

    YOLO_CLUSTER_IMAGE      a worker image that the cluster can pull; nothing but data is mounted into it
    YOLO_CLUSTER_WORKSPACE  a folder that this machine and the node have at the same path (a network share, say)
    YOLO_CLUSTER_NODE       the node that is given MIG slices for the session; default: the only one there is
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import sysconfig
import tempfile
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

STANDIN_IMAGE = "onekube.local/base:1"
IMAGE = os.environ.get("YOLO_CLUSTER_IMAGE", STANDIN_IMAGE)

NAMESPACE = f"yolo-airflow-test-{uuid.uuid4().hex[:6]}"
"""A fresh one each session, so that a session that was killed is in nobody's way."""

WORKSPACE_CLAIM = "workspace"
DATA_CLAIM = "data"
DATA_PATH = "/data"

SLICE = "nvidia.com/mig-1g.5gb"
SLICES = 7
PRODUCT = "NVIDIA-A100-SXM4-40GB"


def make_workspace() -> Path:
    """The shared volume's folder, writable by whichever user a pod runs as; removed when the session ends."""
    given = os.environ.get("YOLO_CLUSTER_WORKSPACE")
    own = Path(given) / NAMESPACE if given else Path(tempfile.mkdtemp(prefix="yolo-airflow-cluster-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    folder = own / "workspace"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    return folder


def images_folder() -> Path:
    """The folder with the blood cell images."""
    folder = os.environ.get("YOLO_TEST_DATA")
    if not folder or not (Path(folder) / "bccd" / "data.yaml").is_file():
        raise RuntimeError(
            "the tests on a cluster need the blood cell images: set YOLO_TEST_DATA to the folder with bccd/data.yaml"
        )
    return Path(folder)


def pod_hook() -> dict[str, Any]:
    """What `airflow_local_settings.py` does to pods: with the bare image, mount what a worker image would hold."""
    if IMAGE != STANDIN_IMAGE:
        return {"python": "python", "mounts": {}, "environment": {}}
    paths = sysconfig.get_paths()
    libraries = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    return {
        "python": f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}",
        # Elsewhere than here: a pod's user cannot pass through folders that are closed to others, /root say.
        "mounts": {
            "/opt/python": sys.base_prefix,
            "/opt/packages": paths["purelib"],
            "/opt/provider": str(ROOT),
            "/opt/libraries": libraries,
        },
        "environment": {
            "PYTHONPATH": "/opt/provider:/opt/packages",
            "LD_LIBRARY_PATH": "/opt/libraries",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    }
