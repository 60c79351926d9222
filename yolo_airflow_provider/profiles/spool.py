"""Rows that the store could not take, kept as files until it can: nothing measured is lost to an outage.

A spool is a folder of small JSON files, each of them one call of the store. A file is there as a whole or not at all,
and it is deleted only after its rows are committed; the store takes rows that it has without a change, so a file that
is loaded twice, or by two processes at once, is loaded once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from yolo_airflow_provider.profiles.errors import (
    RowError,
    StoreDenied,
    StoreError,
    StoreOutdatedError,
    StoreUnavailable,
    StoreVersionError,
)
from yolo_airflow_provider.profiles.records import DecisionRow, EpochRow, MeasurementRow, ModelRow

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.store import ProfileStore

SPOOL_VERSION = 1
"""Of the files' form. Rows of an older version of this package are read by a newer one; fields have defaults."""

_SUFFIX = ".json"
_REFUSED = ".refused"
# No other file of the spool would fare better, so the rest is left at once. Any other error may be of one file alone.
_STOPS = (StoreUnavailable, StoreDenied, StoreOutdatedError, StoreVersionError)

_End = Literal["loaded", "refused", "left", "gone"]


class SpoolError(StoreError):
    """Rows could be kept in no folder of the spool either; the message says what stood in the way of each."""


class Log(Protocol):
    """What of a logger is used here; a task's log has it, whichever library it is of."""

    def info(self, message: str, /, *values: Any) -> Any:
        """What happened."""

    def warning(self, message: str, /, *values: Any) -> Any:
        """What should be looked at."""

    def error(self, message: str, /, *values: Any) -> Any:
        """What must be looked at."""


class Entry(BaseModel):
    """One call of the store: what `ProfileStore.record` takes, or one decision."""

    # Constants, so that a NaN also survives where the type of a value is not known: in a decision's candidates.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    version: int = SPOOL_VERSION
    measurements: tuple[MeasurementRow, ...] = ()
    epochs: tuple[EpochRow, ...] = ()
    models: tuple[ModelRow, ...] = ()
    decision: DecisionRow | None = None

    def write(self, store: ProfileStore) -> None:
        """Hand it to the store, as one transaction.

        Raises:
            RowError: the store refuses a value; nothing is written.
            StoreError: the store cannot be written to; nothing is written.
        """
        if self.decision is not None:
            store.decide(self.decision)
        else:
            store.record(self.measurements, epochs=self.epochs, models=self.models)

    def to_text(self) -> str:
        """The content of its file: JSON in which NaN, infinities and texts that are no UTF-8 survive."""
        return json.dumps(self.model_dump(mode="json", fallback=_plain, warnings="none"))


@dataclass(frozen=True)
class Loaded:
    """What became of the files that waited.

    Attributes:
        files: those whose rows are in the store now.
        refused: those that cannot be loaded, set aside as `*.refused`.
        left: those that wait on, as far as they were looked at.
        stopped_by: why the rest was not looked at.
    """

    files: int = 0
    refused: int = 0
    left: int = 0
    stopped_by: StoreError | None = None


class Spool:
    """The files of one store, in one folder or more.

    Args:
        roots: folders for spools, the preferred one first. A root is made when it is missing, what is above it is not:
            a workspace that is not mounted here is not to be made on the local disk.
        log: for what is set aside.
        store: whose rows they are, the Airflow connection's id for instance. Each has a folder of its own below a
            root, so that rows never get into another store than the one that they were written for.
    """

    def __init__(self, roots: Sequence[Path], log: Log, *, store: str = "default") -> None:
        # With the dots quoted too, no name leads out of the root.
        self._folders = [root / quote(store, safe="").replace(".", "%2E") for root in roots]
        self._log = log

    def __str__(self) -> str:
        return ", ".join(str(folder) for folder in self._folders)

    def put(self, entry: Entry, *, refused: bool = False) -> Path:
        """Keep an entry; it is on the disk when this returns.

        Args:
            entry: the rows.
            refused: the store refused them, so nobody is to try again.

        Returns:
            Its file, in the first folder that takes it.

        Raises:
            SpoolError: no folder takes it.
        """
        # Names sort by time, and no two are the same.
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex}{_SUFFIX}{_REFUSED if refused else ''}"
        text = entry.to_text()
        failures: list[OSError] = []
        for folder in self._folders:
            try:
                for made in (folder.parent, folder):
                    made.mkdir(mode=0o700, exist_ok=True)
                return _write(folder / name, text)
            except OSError as error:
                failures.append(error)
        said = "; ".join(f"{folder}: {error.strerror}" for folder, error in zip(self._folders, failures, strict=True))
        raise SpoolError(f"cannot keep rows in the spool ({said or 'it has no folder'})") from (
            failures[-1] if failures else None
        )

    def waiting(self) -> list[Path]:
        """Files that are to be loaded, oldest first."""
        return [Path(path) for _, path in sorted((os.path.basename(path), path) for path in self._listed())]

    def load_into(self, store: ProfileStore) -> Loaded:
        """Write what waits to the store, the oldest first, each file as one transaction.

        Costs one listing of each folder when nothing waits. What the store refuses, or what cannot be read as an entry,
        is renamed to `*.refused` with a line in the log that says why. An outage ends it quietly and the rest waits on.
        """
        became: Counter[_End] = Counter()
        stopped_by = None
        try:
            # What another process has in hand comes last, and is mostly gone by then: the tasks that an outage stopped
            # share the work. Whatever hangs with a file holds up nobody, as that is loaded all the same.
            in_hand = []
            for path in self.waiting():
                with _claimed(path) as is_ours:
                    if is_ours:
                        became[self._load(path, store)] += 1
                    else:
                        in_hand.append(path)
            for path in in_hand:
                became[self._load(path, store)] += 1
        except _STOPS as error:
            stopped_by = error
            became["left"] += 1
        return Loaded(became["loaded"], became["refused"], became["left"], stopped_by)

    def _load(self, path: Path, store: ProfileStore) -> _End:
        """Write one file's rows to the store, and see to the file.

        Raises:
            StoreError: one of `_STOPS`.
        """
        try:
            entry = self._read(path)
        except OSError as error:
            self._log.warning("%s cannot be read and waits on: %s", path, error.strerror)
            return "left"
        except ValueError as error:
            return self._set_aside(path, error)
        if entry is None:
            return "gone"
        try:
            entry.write(store)
        except RowError as error:
            return self._set_aside(path, error)
        except _STOPS:
            raise
        except StoreError as error:
            self._log.warning("%s is not loaded into the profile store and waits on: %s", path, one_line(error))
            return "left"
        self._delete(path)
        return "loaded"

    def _listed(self) -> Iterator[str]:
        for folder in self._folders:
            try:
                with os.scandir(folder) as found:
                    yield from (
                        item.path
                        for item in found
                        if item.name.endswith(_SUFFIX) and item.is_file(follow_symlinks=False)
                    )
            except FileNotFoundError:
                continue
            except OSError as error:
                self._log.warning("the spool %s cannot be looked into: %s", folder, error.strerror)

    def _read(self, path: Path) -> Entry | None:
        """The entry of a file; None where another process has loaded it meanwhile, or a newer version must.

        Raises:
            ValueError: it holds no entry.
            OSError: it cannot be read now.
        """
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        version = raw.get("version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version > SPOOL_VERSION:
            self._log.warning("%s waits for a newer version of this package, which wrote it", path)
            return None
        try:
            return Entry.model_validate(raw)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            raise ValueError(
                "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'entry'}: {fault['msg']}" for fault in faults[:3])
            ) from error

    def _set_aside(self, path: Path, why: Exception) -> _End:
        aside = path.with_name(path.name + _REFUSED)
        try:
            path.rename(aside)
        except FileNotFoundError:
            return "gone"  # another process has, and said so
        except OSError as error:
            self._log.error("%s is refused (%s) and cannot be set aside: %s", path, one_line(why), error.strerror)
            return "refused"
        self._log.error("rows in %s are not in the profile store, which refuses them: %s", aside, one_line(why))
        return "refused"

    def _delete(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._log.warning("%s is loaded and cannot be deleted: %s", path, error.strerror)


def one_line(error: BaseException) -> str:
    """What an error says, on one line; a database's own words are on several."""
    return " ".join(str(error).split()) or type(error).__name__


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's own, anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether this process has a file to itself meanwhile. The kernel drops the claim with the process."""
    try:
        file = path.open("rb")
    except OSError:
        yield True  # gone, or not to be read: whoever loads it will see
        return
    with file:
        is_ours = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError:
            pass  # a file system without locks; twice the work is no harm
        yield is_ours


def _write(path: Path, text: str) -> Path:
    """Write a file for its owner's eyes, in one step, and wait until it is on the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return path


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no such thing for a folder; the file itself is on the disk.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
