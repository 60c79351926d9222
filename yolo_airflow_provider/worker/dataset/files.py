"""Linking images, and saying why where a data set cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.dataset.errors import DatasetError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


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
