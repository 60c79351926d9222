from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_jobs import training
from cluster_kube import MANIFEST, Kube
from cluster_pods import PodWatch
from cluster_runs import run_dag
from cluster_settings import SLICE

HOME = Path(os.environ["AIRFLOW_HOME"])
VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}


def granted() -> set[tuple[str, str]]:
    """(resource, verb) of the published Role; the ClusterRole's with `*` before the resource."""
    found: set[tuple[str, str]] = set()
    for document in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")):
        where = {"Role": "", "ClusterRole": "*/"}.get(document["kind"])
        if where is not None:
            for rule in document["rules"]:
                assert rule["apiGroups"] == [""]
                found |= {(where + resource, verb) for resource in rule["resources"] for verb in rule["verbs"]}
    return found


def verb_of(method: str, url: str, parameters: dict[str, Any]) -> tuple[str, str] | None:
    """(resource, verb) of a request, as the API server's authorizer sees it; None for what is none of ours."""
    path, _, query = url.partition("?")
    match = re.search(r"/api/v1/(namespaces/[^/]+/)?(nodes|pods|events)(?:/([^/]+))?(/log)?$", path)
    if match is None:
        return None
    namespace, resource, name, log = match.groups()
    verb = VERBS.get(method)
    if verb is None:
        watches = str(parameters.get("watch", "")).lower() == "true" or "watch=true" in query.lower()
        verb = "get" if name else "watch" if watches else "list"
    return ("" if namespace else "*/") + resource + (log or ""), verb


@pytest.fixture
def asked(namespace: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """What tasks and triggers ask the API server for, by either client, as the account that the manifest is for."""
    import aiohttp
    import urllib3

    kubeconfig = yaml.safe_load((HOME / "yolo-airflow.kubeconfig").read_text(encoding="utf-8"))
    token = kubeconfig["users"][0]["user"]["token"]
    found: set[tuple[str, str]] = set()
    synchronous, asynchronous = urllib3.PoolManager.request, aiohttp.ClientSession._request

    def note(method: str, url: str, parameters: Any, headers: Any) -> None:
        if any(str(value).endswith(token) for value in (headers or {}).values()):
            asked = verb_of(method.upper(), url, dict(parameters or ()))
            found.update([asked] if asked else [])

    def request(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        note(method, url, kwargs.get("fields"), kwargs.get("headers"))
        return synchronous(self, method, url, *args, **kwargs)

    async def _request(self: Any, method: str, url: Any, *args: Any, **kwargs: Any) -> Any:
        note(method, str(url), kwargs.get("params"), kwargs.get("headers"))
        return await asynchronous(self, method, url, *args, **kwargs)

    monkeypatch.setattr(urllib3.PoolManager, "request", request)
    monkeypatch.setattr(aiohttp.ClientSession, "_request", _request)
    return found


def test_the_manifest_grants_nothing_that_is_not_asked_for() -> None:
    resources = {resource for resource, _ in granted()}
    assert resources == {"pods", "pods/log", "events", "*/nodes", "*/pods"}
    assert not {verb for _, verb in granted()} - {"get", "list", "watch", "create", "delete", "patch"}


@pytest.mark.limit(300)
def test_every_verb_of_the_manifest_is_used_and_no_other(
    airflow: Path, kube: Kube, pods: PodWatch, drawn: Callable[..., str], asked: set[tuple[str, str]]
) -> None:
    data = drawn()
    assert run_dag(training("verbs_sync", data=data)).state == "success"
    # Fails in its pod, so that kept and failed pods are marked; and runs with the trigger.
    failing = training("verbs_deferred", data=f"{data}.none", deferrable=True, retries=0)
    assert run_dag(failing).state == "failed"
    # An earlier try's pod that is being deleted is waited for.
    assert granted() - asked <= {("pods", "watch")}
    assert asked <= granted()


def test_d26_listing_nodes_forbidden_falls_back_to_the_connection_and_says_so(
    airflow: Path, pods: PodWatch, drawn: Callable[..., str], log: Any
) -> None:
    dag = training("narrow", data=drawn(), accelerator="auto", kubernetes_conn_id="kubernetes_narrow", retries=0)
    run = run_dag(dag)
    assert run.state == "success"
    (seen,) = pods.pods("narrow")
    assert seen.limits[SLICE] == "1"
    assert "may not list nodes" in log.text
