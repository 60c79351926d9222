"""Writing files so that they are whole or not there, and saying why where they cannot be written."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.dataset.errors import DatasetError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


def write_synced(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Put `text` in the place of `path` in one step; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_synced(temporary, text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(image: Path, target: Path) -> None:
    """Make `target` a symbolic link to `image`.

    Raises:
        DatasetError: the file system has no symbolic links.
    """
    try:
        target.symlink_to(image)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise DatasetError(
            f"the file system of {target.parent} cannot hold symbolic links: {error.strerror}",
            "set copy_images=True, which copies the images into the workspace",
        ) from error


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an OSError of writing below `folder` into a DatasetError that says what to do."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror} ({error.filename})" if error.filename else str(error)
        if error.errno in _FULL:
            raise DatasetError(
                f"the disk of {folder} is full: {what}",
                "free space on that volume, or give it a larger one",
                failure_class=FailureClass.DISK_FULL,
            ) from error
        raise DatasetError(
            f"{folder} cannot be written by user {os.getuid()}: {what}",
            "mount the volume read-write, and let this user (or fsGroup) own the folder",
        ) from error
