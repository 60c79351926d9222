"""A namespace, an account, volumes and slices on the cluster of KUBECONFIG, and an Airflow that uses them.

`cluster_settings.py` says what can be set for another cluster.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import cluster_settings as settings
import pytest
from cluster_kube import Kube, namespace_with_rights, node_with_slices, volume, write_kubeconfig
from cluster_pods import PodWatch

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.store import ProfileStore

if not os.environ.get("KUBECONFIG"):
    raise pytest.UsageError(
        "the tests in tests/cluster run on a real Kubernetes: set KUBECONFIG to an administrator's kubeconfig"
        " (make test-cluster KUBECONFIG=...)"
    )

# Taken away from Airflow, which is to use its connection: in deferrable mode cncf-kubernetes 10.25.0 passes the file
# of KUBECONFIG on to its trigger, which then refuses a connection that names another.
KUBECONFIG = os.environ.pop("KUBECONFIG")
HOME = Path(os.environ["AIRFLOW_HOME"])
WORKSPACE = settings.make_workspace()
IMAGES = settings.images_folder()

SECONDS = 240
"""For one test, unless it says otherwise by `@pytest.mark.limit(seconds)`."""


def _connection(name: str, **extra: Any) -> str:
    fields = {
        "kube_config_path": str(HOME / f"{name}.kubeconfig"),
        "in_cluster": False,
        "namespace": settings.NAMESPACE,
    }
    return json.dumps({"conn_type": "kubernetes", "extra": fields | extra})


# Before anything imports Airflow, which reads all of it once.
os.environ.update(
    {
        "YOLO_CLUSTER_HOOK": json.dumps(settings.pod_hook()),
        "AIRFLOW__YOLO__EXECUTION": "kubernetes",
        "AIRFLOW__YOLO__IMAGE": settings.IMAGE,
        "AIRFLOW__YOLO__WORKSPACE": str(WORKSPACE),
        "AIRFLOW__YOLO__WORKSPACE_CLAIM": settings.WORKSPACE_CLAIM,
        "AIRFLOW__YOLO__DATA_CLAIM": settings.DATA_CLAIM,
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": _connection("yolo-airflow"),
        "AIRFLOW_CONN_KUBERNETES_NARROW": _connection(
            "narrow",
            yolo_accelerators=[{"resource": settings.SLICE, "memory": "4864Mi", "product": settings.PRODUCT}],
        ),
    }
)
(HOME / "config").mkdir()
(HOME / "config" / "airflow_local_settings.py").symlink_to(settings.HERE / "standin" / "airflow_local_settings.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds): how long the test may take at most")


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """End a test that hangs, with the line that it hangs in."""
    marker = request.node.get_closest_marker("limit")
    seconds = marker.args[0] if marker else SECONDS

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than its {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def kube() -> Kube:
    return Kube(KUBECONFIG)


@pytest.fixture(scope="session")
def namespace(kube: Kube) -> Iterator[str]:
    name = settings.NAMESPACE
    with (
        namespace_with_rights(kube, name),
        volume(kube, name, settings.WORKSPACE_CLAIM, WORKSPACE),
        volume(kube, name, settings.DATA_CLAIM, IMAGES, read_only=True),
    ):
        write_kubeconfig(kube, "yolo-airflow", name, HOME / "yolo-airflow.kubeconfig")
        write_kubeconfig(kube, "narrow", name, HOME / "narrow.kubeconfig")
        yield name


@pytest.fixture(scope="session")
def node(kube: Kube) -> Iterator[str]:
    """The node, with seven slices."""
    nodes = [item.metadata.name for item in kube.core.list_node().items]
    name = os.environ.get("YOLO_CLUSTER_NODE") or nodes[0]
    with node_with_slices(kube, name):
        yield name


@pytest.fixture(scope="session")
def pods(kube: Kube, namespace: str) -> Iterator[PodWatch]:
    watching = PodWatch(kube.core, namespace)
    watching.start()
    yield watching
    watching.stop()


@pytest.fixture(scope="session")
def workspace() -> Path:
    return WORKSPACE


@pytest.fixture(scope="session")
def drawn(workspace: Path) -> Callable[..., str]:
    """Draw a data set of shapes in the workspace; returns its data.yaml, the same path in a pod and here."""
    from yolo_airflow_provider.demo.shapes import draw_shapes

    def draw(*, train: int = 8, val: int = 4, size: int = 64) -> str:
        return str(draw_shapes(workspace / f"shapes-{train}-{val}-{size}", train=train, val=val, size=size))

    return draw


class Log:
    """What the tasks of the test's own process have logged."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._text = ""

    @property
    def text(self) -> str:
        self._text += "".join(self._capfd.readouterr())
        return self._text


@pytest.fixture
def log(capfd: pytest.CaptureFixture[str]) -> Iterator[Log]:
    log = Log(capfd)
    yield log
    sys.stdout.write(log.text)  # for pytest's report of a failure


@pytest.fixture
def airflow(
    airflow_database: Path, namespace: str, node: str, pods: PodWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Airflow with everything that a task needs, and a profile store of the test's own."""
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", f"sqlite:///{tmp_path / 'profiles.db'}")
    return tmp_path


@pytest.fixture
def store(airflow: Path) -> ProfileStore:
    """The test's own profile store."""
    from yolo_airflow_provider.profiles.engine import open_store

    return open_store(f"sqlite:///{airflow / 'profiles.db'}", upgrade=True)
