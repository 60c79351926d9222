from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.dataset import prepare as prepare_module
from yolo_airflow_provider.worker.dataset.errors import DatasetError


def prepared(dataset: Any, **job: Any) -> Path:
    return (dataset.workspace / dataset.run(**job).data_yaml).parent


def leftovers(dataset: Any) -> list[str]:
    return [path.name for path in (dataset.workspace / "datasets").iterdir() if path.name.startswith(".tmp-")]


def test_what_is_written(dataset: Any) -> None:
    dataset.plain().label("train/b.png", "1.0  0.250 0.25 0.1 0.1\n0 0.5 0.5 0 0\n")
    folder = prepared(dataset)
    content = yaml.safe_load((folder / "data.yaml").read_text())
    assert content == {
        "path": str(folder),
        "train": "images/train",
        "val": "images/val",
        "names": {0: "cell", 1: "plate"},
    }
    assert (folder / "labels" / "train" / "b.txt").read_text() == "1 0.250 0.25 0.1 0.1\n"
    link = folder / "images" / "train" / "b.png"
    assert link.readlink() == dataset.root / "images" / "train" / "b.png"
    assert sorted(path.name for path in (folder / "labels" / "train").iterdir()) == ["a.txt", "b.txt"]
    assert leftovers(dataset) == []


def test_images_that_are_left_out_are_not_there(dataset: Any) -> None:
    dataset.plain().label("train/b.png", "9 0.5 0.5 0.1 0.1")
    folder = prepared(dataset)
    assert [path.name for path in (folder / "images" / "train").iterdir()] == ["a.png"]
    assert [path.name for path in (folder / "labels" / "train").iterdir()] == ["a.txt"]


def test_copies(dataset: Any, hash_of: Callable[[Path], str]) -> None:
    dataset.plain()
    folder = prepared(dataset, copy_images=True)
    image = folder / "images" / "train" / "a.png"
    assert not image.is_symlink()
    assert image.read_bytes() == (dataset.root / "images" / "train" / "a.png").read_bytes()
    # A copy serves another copy, but links and copies are two folders.
    assert prepared(dataset, copy_images=True) == folder
    linked = prepared(dataset)
    assert linked != folder
    assert (linked / "images" / "train" / "a.png").is_symlink()


def test_a_jpeg_that_training_would_rewrite_is_copied_with_its_end(
    dataset: Any, make_picture: Callable[..., bytes]
) -> None:
    raw = make_picture(5, kind="JPEG") + b"\0"
    source = dataset.plain().image("train/j.jpg", raw=raw)
    copy = prepared(dataset) / "images" / "train" / "j.jpg"
    assert not copy.is_symlink()
    assert copy.read_bytes() == raw + b"\xff\xd9"
    assert source.read_bytes() == raw


def test_equal_names_of_several_folders_do_not_collide(dataset: Any) -> None:
    dataset.plain()
    dataset.image("train/one/x.png", "0 0.1 0.1 0.1 0.1")
    dataset.image("train/two/images/x.jpg", None)
    dataset.image("train/three/x.png", "1 0.3 0.3 0.1 0.1")
    (dataset.root / "images/train/two/labels").mkdir()
    (dataset.root / "images/train/two/labels/x.txt").write_text("1 0.2 0.2 0.1 0.1")
    dataset.yaml("train: [images/train, images/train/one]\nval: images/val\nnames: [a, b]")
    folder = prepared(dataset)
    links = list((folder / "images" / "train").iterdir())
    assert len(links) == 2 + 4
    labels = {
        str(link.readlink().relative_to(dataset.root)): (folder / "labels" / "train" / f"{link.stem}.txt").read_text()
        for link in links
    }
    assert labels["images/train/one/x.png"] == "0 0.1 0.1 0.1 0.1\n"
    assert labels["images/train/two/images/x.jpg"] == "1 0.2 0.2 0.1 0.1\n"
    assert labels["images/train/three/x.png"] == "1 0.3 0.3 0.1 0.1\n"


def test_a_second_run_reuses(dataset: Any) -> None:
    folder = prepared(dataset.plain())
    marker = (folder / "prepared.json").stat()
    assert prepared(dataset) == folder
    assert (folder / "prepared.json").stat() == marker
    assert dataset.lines[-1].startswith("reused")


def test_a_change_makes_another_folder(dataset: Any) -> None:
    folder = prepared(dataset.plain())
    dataset.label("train/a.png", "0 0.5 0.5 0.2 0.3")
    assert prepared(dataset) != folder
    assert folder.exists()


@pytest.mark.parametrize("damage", ["images/train/a.png", "labels/val/c.txt", "labels", "prepared.json"])
def test_a_damaged_folder_is_neither_used_nor_touched(dataset: Any, damage: str) -> None:
    folder = prepared(dataset.plain())
    path = folder / damage
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    second = prepared(dataset)
    assert second.name == f"{folder.name}-2"
    assert not path.exists()
    assert prepared(dataset) == second


def test_a_moved_source_is_linked_anew(dataset: Any) -> None:
    folder = prepared(dataset.plain())
    fingerprint = dataset.run().fingerprint
    moved = dataset.root.parent / "moved" / dataset.root.name
    shutil.move(dataset.root, moved)
    dataset.root = moved
    second = prepared(dataset)
    assert second.name == f"{folder.name}-2"
    assert (second / "images" / "train" / "a.png").exists()
    assert dataset.run().fingerprint == fingerprint


def test_a_moved_workspace_gets_its_path_corrected(dataset: Any) -> None:
    prepared(dataset.plain())
    moved = dataset.workspace.with_name("moved-workspace")
    dataset.workspace.rename(moved)
    dataset.workspace = moved
    folder = prepared(dataset)
    assert dataset.lines[-1].startswith("reused")
    assert yaml.safe_load((folder / "data.yaml").read_text())["path"] == str(folder)


def test_a_full_disk_is_seen_before_anything_is_written(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(DatasetError, match=r"16 MiB needed, 1 MiB free") as caught:
        dataset.plain().run()
    assert caught.value.failure_class is FailureClass.DISK_FULL
    assert leftovers(dataset) == []


@pytest.mark.parametrize(
    ("number", "failure_class", "words"),
    [
        (errno.ENOSPC, FailureClass.DISK_FULL, "is full"),
        (errno.EDQUOT, FailureClass.DISK_FULL, "is full"),
        (errno.EROFS, FailureClass.DATA, f"cannot be written by user {os.getuid()}"),
    ],
)
def test_a_write_that_fails_leaves_nothing(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, number: int, failure_class: FailureClass, words: str
) -> None:
    real = prepare_module.write_synced

    def write(path: Path, text: str) -> None:
        if path.name == "b.txt":
            raise OSError(number, os.strerror(number), str(path))
        real(path, text)

    monkeypatch.setattr(prepare_module, "write_synced", write)
    with pytest.raises(DatasetError, match=words) as caught:
        dataset.plain().run()
    assert caught.value.failure_class is failure_class
    assert str(dataset.workspace) in caught.value.message
    assert leftovers(dataset) == []
    monkeypatch.undo()
    dataset.run()


def test_a_file_system_without_links(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(DatasetError, match="symbolic links") as caught:
        dataset.plain().run()
    assert "copy_images=True" in caught.value.hint
    dataset.run(copy_images=True)


def test_a_workspace_that_is_no_folder(dataset: Any) -> None:
    dataset.workspace.write_text("a file")
    with pytest.raises(DatasetError, match=rf"{dataset.workspace}.* cannot be written by user {os.getuid()}"):
        dataset.plain().run()


def test_what_a_dead_process_left_is_removed_and_a_living_ones_kept(dataset: Any) -> None:
    datasets = dataset.workspace / "datasets"
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    prefix = f".tmp-{prepare_module._process().rpartition('-')[0]}"
    dead = datasets / f"{prefix}-{int(child.stdout)}-abc"
    alive = datasets / f"{prefix}-{os.getppid()}-abc"
    elsewhere = datasets / ".tmp-otherhost-1-1-abc"
    old = datasets / ".tmp-otherhost-1-2-abc"
    for folder in (dead, alive, elsewhere, old):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    dataset.plain().run()
    assert not dead.exists()
    assert alive.exists()
    assert elsewhere.exists()
    assert not old.exists()


def test_two_at_a_time_agree(dataset: Any) -> None:
    dataset.plain()
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: prepared(dataset), range(8)))
    assert len(folders) == 1
    assert leftovers(dataset) == []
