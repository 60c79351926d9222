"""Files that are whole or not there: temporary sibling, fsync, rename."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.failures import JobError


def write_synced(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def append_line(path: Path, line: str) -> None:
    """Add a line and wait until it is on the disk.

    A kill may have left half a line; without its end this one would be lost with it.
    """
    with path.open("a+b") as file:
        torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        file.write(("\n" if torn else "").encode() + f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; a reader sees the old file or the new one.

    Raises:
        OSError: the folder is not writable or the disk is full; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_synced(temporary, text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until the content of `path` is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> Path:
    """Create a folder that can be written to.

    Raises:
        JobError: it cannot be created or written; names the folder and the user.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise JobError(
            FailureClass.DISK_FULL if full else FailureClass.DATA,
            f"the workspace folder {path} cannot be written by user {os.getuid()}: {error.strerror}",
            hint="free space on the workspace volume"
            if full
            else "mount the workspace volume read-write for this user",
            stage="setup",
        ) from error
    return path
