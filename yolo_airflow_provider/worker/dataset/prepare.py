"""Writes the data set that is trained on: into the workspace, whole or not at all, never over another one.

    <workspace>/datasets/<name>-<fingerprint>/
        data.yaml            absolute path, so that it works from every working directory
        images/<split>/...   links to the source, or copies
        labels/<split>/...   the rows that are used
        prepared.json        written last: what this folder is

The folder is built beside its place under a temporary name and renamed. Training writes label caches into it,
never into the source.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import yaml

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.faults import Fault
from yolo_airflow_provider.worker.dataset.files import explained, link
from yolo_airflow_provider.worker.dataset.images import JPEG_END
from yolo_airflow_provider.worker.dataset.scan import Item
from yolo_airflow_provider.worker.dataset.source import Source
from yolo_airflow_provider.worker.files import sync_folder, write_atomically, write_synced

FOLDER = "datasets"
"""The workspace's folder of prepared data sets."""

_MARKER = "prepared.json"
_TEMPORARY = ".tmp-"
_BLOCK_BYTES = 4096
_SLACK_BYTES = 16 * 2**20
_ABANDONED_SECONDS = 24 * 3600.0
_WRITERS = 16


@dataclass(frozen=True)
class Prepared:
    """A prepared data set. `reused` is True when an earlier run wrote it."""

    folder: Path
    reused: bool

    @property
    def data_yaml(self) -> Path:
        """The file to train with."""
        return self.folder / "data.yaml"


@dataclass(frozen=True)
class _Plan:
    """Everything that the prepared folder will hold."""

    source: Source
    files: Mapping[tuple[str, str], Item]
    """By split and file name."""
    fingerprint: str
    copy_images: bool

    @property
    def needed_bytes(self) -> int:
        """Disk space of labels, links and copies, in whole blocks."""
        blocks = 0
        for item in self.files.values():
            copied = item.image.size_bytes if self.copy_images or _ends_early(item) else 0
            blocks += 1 + max(1, -(-copied // _BLOCK_BYTES)) + sum(map(len, item.rows)) // _BLOCK_BYTES
        return blocks * _BLOCK_BYTES + _SLACK_BYTES

    def data_yaml(self, folder: Path) -> str:
        """The text of data.yaml for a prepared folder at this place."""
        splits = {split: f"images/{split}" for split in self.source.splits if any(s == split for s, _ in self.files)}
        content: dict[str, Any] = {"path": str(folder), **splits, "names": dict(self.source.names)}
        return yaml.safe_dump(content | dict(self.source.settings), sort_keys=False, allow_unicode=True)

    def marker(self) -> dict[str, object]:
        """What has to agree for a folder to be used again."""
        return {
            "fingerprint": self.fingerprint,
            "root": os.fsencode(self.source.root).decode(errors="backslashreplace"),
            "copy_images": self.copy_images,
        }


def prepare(
    source: Source, items: Iterable[Item], fingerprint: str, *, name: str, workspace: Path, copy_images: bool
) -> Prepared:
    """Write the prepared data set, or find that it is there already.

    Args:
        source: where the images are.
        items: the images that are used.
        fingerprint: of those; its first 12 digits become part of the folder's name.
        name: of the data set; the other part.
        workspace: the folder on the shared volume that `datasets/` is in.
        copy_images: copy all images. False: link to the source, and copy only what training would rewrite.

    Raises:
        DatasetError: the workspace cannot be written, or has no room.
    """
    plan = _Plan(source, file_names(items), fingerprint, copy_images)
    datasets = workspace / FOLDER
    with explained(datasets):
        datasets.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(datasets)
        for target in _candidates(datasets / f"{name}-{fingerprint[:12]}"):
            if not target.exists() and _build(plan, target):
                return Prepared(target, reused=False)
            if _usable(plan, target):
                return Prepared(target, reused=True)
    raise AssertionError("there is always another name")


def file_names(items: Iterable[Item]) -> dict[tuple[str, str], Item]:
    """A file name for every image, unique within its split also without the suffix (labels have another one).

    Names stay as they are. Images of several folders that share one get a piece of their path's hash.
    """
    ordered = sorted(items, key=lambda item: (item.split, item.relative))
    shared = Counter((item.split, _stem(item)) for item in ordered)
    taken = {key for key, count in shared.items() if count == 1}
    names: dict[tuple[str, str], Item] = {}
    for item in ordered:
        stem = _stem(item)
        if shared[item.split, stem] > 1:
            digest = hashlib.sha256(os.fsencode(item.relative)).hexdigest()[:8]
            options = (f"{stem}-{digest}" + (f"-{number}" if number else "") for number in range(len(ordered) + 1))
            stem = next(option for option in options if (item.split, option) not in taken)
            taken.add((item.split, stem))
        names[item.split, stem + PurePosixPath(item.relative).suffix] = item
    return names


def _stem(item: Item) -> str:
    return PurePosixPath(item.relative).stem


def _ends_early(item: Item) -> bool:
    return item.image.fault is Fault.JPEG_TRUNCATED


def _candidates(first: Path) -> Iterator[Path]:
    """The folder's name, and others for when that holds something else (links to another place, say)."""
    yield first
    number = 2
    while True:
        yield first.with_name(f"{first.name}-{number}")
        number += 1


def _usable(plan: _Plan, folder: Path) -> bool:
    """Whether a folder is this plan, whole. Its data.yaml is corrected where the workspace has moved."""
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if marker != plan.marker():
        return False
    images = {(split, name) for split, name in plan.files}
    if not images <= _listing(folder / "images") or not _label_names(plan) <= _listing(folder / "labels"):
        return False
    data_yaml = folder / "data.yaml"
    text = plan.data_yaml(folder)
    if not data_yaml.exists() or data_yaml.read_text(encoding="utf-8") != text:
        write_atomically(data_yaml, text)
    return True


def _label_names(plan: _Plan) -> set[tuple[str, str]]:
    return {(split, _label_name(name)) for split, name in plan.files}


def _label_name(image_name: str) -> str:
    return os.path.splitext(image_name)[0] + ".txt"


def _listing(folder: Path) -> set[tuple[str, str]]:
    if not folder.is_dir():
        return set()
    return {(split.name, name) for split in folder.iterdir() if split.is_dir() for name in os.listdir(split)}


def _build(plan: _Plan, target: Path) -> bool:
    """Write the folder beside its place and rename it. False when another process was faster."""
    _refuse_full_disk(plan, target.parent)
    temporary = target.parent / f"{_TEMPORARY}{_process()}-{uuid.uuid4().hex[:8]}"
    try:
        _write(plan, temporary, target)
        try:
            temporary.rename(target)
        except OSError:
            if target.exists():
                return False
            raise
        sync_folder(target.parent)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refuse_full_disk(plan: _Plan, folder: Path) -> None:
    needed, free = plan.needed_bytes, shutil.disk_usage(folder).free
    if needed > free:
        links = "" if not plan.copy_images else ", or set copy_images=False to link to the images"
        raise DatasetError(
            f"the disk of {folder} has no room for the prepared data set: {needed / 2**20:,.0f} MiB needed,"
            f" {free / 2**20:,.0f} MiB free",
            f"free space on that volume, or give it a larger one{links}",
            failure_class=FailureClass.DISK_FULL,
        )


def _write(plan: _Plan, folder: Path, target: Path) -> None:
    for kind in ("images", "labels"):
        for split in {split for split, _ in plan.files}:
            (folder / kind / split).mkdir(parents=True)

    def write(entry: tuple[tuple[str, str], Item]) -> None:
        (split, name), item = entry
        _place_image(item, folder / "images" / split / name, copy=plan.copy_images)
        text = "".join(f"{row}\n" for row in item.rows)
        write_synced(folder / "labels" / split / _label_name(name), text)

    # Waiting for the disk is most of it, and file systems sync many files at a time for the price of one.
    with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
        for _ in pool.map(write, plan.files.items()):
            pass
    write_synced(folder / "data.yaml", plan.data_yaml(target))
    write_synced(folder / _MARKER, json.dumps(plan.marker(), indent=1))
    for current, _, _ in os.walk(folder):
        sync_folder(Path(current))


def _place_image(item: Item, target: Path, *, copy: bool) -> None:
    if not copy and not _ends_early(item):
        link(item.path, target)
        return
    # Not copyfile(): mode and times of a read-only source are not wanted either.
    with _open_source(item.path) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 2**20)
        if _ends_early(item):
            # Training encodes a JPEG without the marker anew. With it, the pixels stay as they are.
            file.write(JPEG_END)
        file.flush()
        os.fsync(file.fileno())


def _open_source(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DatasetError(
            f"{path} could be read when it was checked, but not when it was copied: {error.strerror}",
            "leave the data set as it is while it is prepared",
        ) from error


def _process() -> str:
    """This process as others can check it: host, process namespace and number."""
    namespace = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""
    digits = "".join(filter(str.isdigit, namespace)) or "0"
    return f"{socket.gethostname()[:60]}-{digits}-{os.getpid()}"


def _remove_abandoned(datasets: Path) -> None:
    """Remove what processes left that died while they wrote."""
    ours = f"{_TEMPORARY}{_process().rpartition('-')[0]}-"
    for folder in datasets.glob(f"{_TEMPORARY}*"):
        if folder.name.startswith(ours):
            number = folder.name.removeprefix(ours).partition("-")[0]
            dead = not number.isdigit() or not _alive(int(number))
        else:
            # Another host's process cannot be asked. No preparation is silent for a day.
            dead = _idle_seconds(folder) > _ABANDONED_SECONDS
        if dead:
            shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _idle_seconds(folder: Path) -> float:
    newest = 0.0
    for current in (folder, *folder.glob("*/*")):
        try:
            newest = max(newest, current.lstat().st_mtime)
        except OSError:
            continue
    return time.time() - newest
