"""The package as others meet it: the wheel, Airflow's discovery, what an import costs, which part imports which."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests_support import ROOT

from yolo_airflow_provider.get_provider_info import get_provider_info


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment that holds the wheel and nothing else of ours.

    Its dependencies come from this environment by path, so that the test needs no network; path entries do not
    process .pth files, so the editable installation of the checkout stays outside.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    purelib = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    # `--python` and not `--prefix`, which would uninstall the checkout from this environment.
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True, capture_output=True)
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def run_installed(installed: Path, tmp_path: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    ended = subprocess.run(
        [str(installed / "python"), *command],
        cwd=tmp_path,
        env=environment | {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_holds_what_the_package_needs_and_no_more(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"yolo_airflow_provider", wheel.name.split("-py3")[0] + ".dist-info"}
    assert "yolo_airflow_provider/_profiles_db/env.py" in names
    assert any(name.startswith("yolo_airflow_provider/_profiles_db/versions/0001") for name in names)
    assert "yolo_airflow_provider/_dags/yolo_train.py" in names
    assert "yolo_airflow_provider/py.typed" in names
    metadata = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in metadata
    base = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert {re.split("[^a-z-]", line.split(": ")[1])[0] for line in base} == {
        "apache-airflow",
        "apache-airflow-providers-cncf-kubernetes",
        "sqlalchemy",
        "alembic",
        "pydantic",
        "pandas",
        "pyyaml",
        "tabulate",
        "tenacity",
    }


@pytest.mark.slow
def test_the_installed_wheel_works_with_airflow(installed: Path, tmp_path: Path) -> None:
    where = run_installed(
        installed, tmp_path, "-c", "import yolo_airflow_provider; print(yolo_airflow_provider.__file__)"
    )
    assert str(installed.parent) in where
    assert run_installed(installed, tmp_path, "-m", "airflow", "version").strip().startswith("3.")
    listed = json.loads(run_installed(installed, tmp_path, "-m", "airflow", "providers", "list", "-o", "json"))
    (ours,) = [provider for provider in listed if provider["package_name"] == "yolo-airflow-provider"]
    assert ours["version"] == importlib.import_module("yolo_airflow_provider").__version__
    plugins = run_installed(installed, tmp_path, "-m", "airflow", "plugins", "-o", "json")
    assert "yolo_profiles" in plugins


@pytest.mark.slow
def test_the_installed_wheel_makes_a_store_anywhere(installed: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'profiles.db'}"
    ended = run_installed(installed, tmp_path, str(installed / "yolo-airflow"), "db", "upgrade", "--url", url)
    assert "up to date" in ended
    program = "from yolo_airflow_provider.demo.run import dags_folder; print(dags_folder())"
    assert (Path(run_installed(installed, tmp_path, "-c", program).strip()) / "yolo_train.py").is_file()

    cli = str(installed / "yolo-airflow")
    assert "nothing differs" in run_installed(installed, tmp_path, cli, "db", "check", "--url", url)
    assert run_installed(installed, tmp_path, cli, "profiles", "history", "--json", "--url", url).strip() == "[]"
    run_installed(installed, tmp_path, cli, "db", "downgrade", "0002", "--yes", "--url", url)
    run_installed(installed, tmp_path, cli, "db", "upgrade", "--url", url)


def test_a_store_of_a_newer_version_is_refused_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    from yolo_airflow_provider.cli import main
    from yolo_airflow_provider.profiles.migrate import VERSION_TABLE

    path = tmp_path / "profiles.db"
    assert main(["db", "upgrade", "--url", f"sqlite:///{path}"]) == 0
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 - a constant of ours
    before = path.read_bytes()
    assert main(["db", "upgrade", "--url", f"sqlite:///{path}"]) == 1
    said = capsys.readouterr().err
    assert "9999" in said
    assert str(path) in said
    assert path.read_bytes() == before


def test_the_package_itself_imports_nothing() -> None:
    """Airflow imports it while its own configuration is loading; any import of Airflow would break every command."""
    program = (
        "import sys, yolo_airflow_provider, yolo_airflow_provider.get_provider_info; print('\\n'.join(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = ended.stdout.split()
    assert "airflow" not in loaded
    assert [name for name in loaded if name.startswith("yolo")] == [
        "yolo_airflow_provider",
        "yolo_airflow_provider.get_provider_info",
    ]


def test_public_names_load_on_first_use() -> None:
    import yolo_airflow_provider as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        package.Nothing  # noqa: B018


def test_the_operators_import_nothing_heavy() -> None:
    """Beyond what KubernetesPodOperator pulls in by itself."""
    program = (
        "import json, sys\n"
        "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator\n"
        "before = set(sys.modules)\n"
        "import yolo_airflow_provider.operators\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    added = {name.split(".")[0] for name in json.loads(ended.stdout.splitlines()[-1])}
    heavy = {"torch", "torchvision", "ultralytics", "pandas", "numpy", "pynvml", "sqlalchemy", "alembic", "cv2", "PIL"}
    assert not added & heavy
    ours = {name for name in json.loads(ended.stdout.splitlines()[-1]) if name.startswith("yolo_airflow_provider")}
    assert not any(name.startswith("yolo_airflow_provider.worker") for name in ours)


_ONLY_THE_WORKER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"airflow", "sqlalchemy", "alembic", "pandas", "kubernetes"}:
            raise ImportError(f"a pod has no {name}")
sys.meta_path.insert(0, Blocked())
import importlib, pkgutil, tempfile, pathlib
from yolo_airflow_provider.worker import offline
offline.prepare(pathlib.Path(tempfile.mkdtemp()))
import yolo_airflow_provider.worker as worker
found = pkgutil.walk_packages(worker.__path__, "yolo_airflow_provider.worker.")
names = [module.name for module in found if "__main__" not in module.name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.slow
def test_the_worker_imports_without_airflow() -> None:
    ended = subprocess.run([sys.executable, "-c", _ONLY_THE_WORKER], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.splitlines()[-1]) > 15


def test_the_parts_import_only_what_the_design_allows() -> None:
    ended = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout


def test_provider_info_follows_airflows_schema() -> None:
    import airflow

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def _dotted_names(info: dict[str, Any]) -> list[str]:
    hooks = [entry["hook-class-name"] for entry in info["connection-types"]]
    modules = [m for kind in ("operators", "hooks") for entry in info[kind] for m in entry["python-modules"]]
    return [*hooks, *modules, "yolo_airflow_provider.ui.plugin.YoloProfilesPlugin"]


@pytest.mark.parametrize("name", _dotted_names(get_provider_info()))
def test_what_the_provider_names_exists(name: str) -> None:
    if name.rpartition(".")[2][0].isupper():
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)
    else:
        importlib.import_module(name)


def test_the_connection_type_is_the_hooks_own() -> None:
    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook

    (declared,) = get_provider_info()["connection-types"]
    assert declared["connection-type"] == ProfileStoreHook.conn_type
    assert declared["hook-name"] == ProfileStoreHook.hook_name
