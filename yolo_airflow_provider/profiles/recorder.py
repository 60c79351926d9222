"""Writing to the profile store so that an outage costs a run nothing: what it does not take goes into the spool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from yolo_airflow_provider.profiles.errors import RowError, StoreError, StoreUnavailable
from yolo_airflow_provider.profiles.spool import Entry, Log, Spool, SpoolError, one_line

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import DecisionRow, EpochRow, MeasurementRow, ModelRow
    from yolo_airflow_provider.profiles.store import ProfileStore


class Recorder:
    """The store as a task uses it: it reads before it spends anything, and records when everything is spent.

    Before either, what earlier tasks left in the spool is loaded. While planning an outage is an error: nothing is lost
    by another try. A run that has ended is not to fail for it.

    Args:
        open_store: opens the store, or returns it where it is open; raises StoreError.
        spool: takes what the store does not.
        log: of the task.
    """

    def __init__(self, open_store: Callable[[], ProfileStore], spool: Spool, log: Log) -> None:
        self._open_store = open_store
        self._spool = spool
        self._log = log
        self._opened: ProfileStore | None = None

    def store(self) -> ProfileStore:
        """The store, with all that waited in the spool in it.

        Raises:
            StoreUnavailable: it could not be reached for as long as its patience lasts.
            StoreError: it cannot be opened.
        """
        store = self._opened = self._open_store()
        loaded = self._spool.load_into(store)
        if loaded.files:
            self._log.info("What waited in the spool is in the profile store now (files: %d).", loaded.files)
        if isinstance(loaded.stopped_by, StoreUnavailable):
            raise loaded.stopped_by  # the patience is used up; whatever comes next would only wait again
        return store

    def record(
        self,
        measurements: Sequence[MeasurementRow],
        epochs: Sequence[EpochRow] = (),
        models: Sequence[ModelRow] = (),
    ) -> Path | None:
        """Append what a run measured, to the store or else to the spool, which a later task loads.

        Whatever the store's error: the run is over, and failing its task would only run it again. So too for a value
        that the store refuses: its rows are set aside as `*.refused`, and the log says what is wrong with them.

        Returns:
            The file in the spool, None where the rows are in the store.

        Raises:
            SpoolError: neither took the rows.
        """
        entry = Entry(measurements=tuple(measurements), epochs=tuple(epochs), models=tuple(models))
        if not (entry.measurements or entry.epochs or entry.models):
            return None
        try:
            entry.write(self.store())
        except RowError as error:
            return self._refuse(entry, error)
        except StoreError as error:
            return self._keep(entry, error)
        except BaseException as error:
            # The task is being ended while it waits for the database, or something is wrong with this package.
            try:
                self._keep(entry, error)
            except SpoolError as lost:
                self._log.error("%s", lost)
            raise
        return None

    def decide(self, row: DecisionRow) -> Path | None:
        """Write a decision; it goes into the spool where the database went away since it was read.

        Nothing is spent yet, so any other trouble is an error: a store that takes no decision takes no result.

        Returns:
            The file in the spool, None where the decision is in the store.

        Raises:
            SpoolError: neither took the decision.
            StoreError: the store cannot be written to, and not for an outage.
        """
        entry = Entry(decision=row)
        try:
            entry.write(self._opened or self.store())
        except RowError as error:
            return self._refuse(entry, error)
        except StoreUnavailable as error:
            return self._keep(entry, error)
        return None

    def release(self) -> None:
        """Hold no connection to the database while a run goes on for hours; the next call connects again."""
        if self._opened is not None:
            self._opened.release()

    def _keep(self, entry: Entry, error: BaseException) -> Path:
        path = self._put(entry, error)
        self._log.warning(
            "Not in the profile store yet, but kept in %s until a later task loads it: %s", path, one_line(error)
        )
        return path

    def _refuse(self, entry: Entry, error: RowError) -> Path:
        path = self._put(entry, error, refused=True)
        self._log.error(
            "The profile store refuses this, and the next plans will not know it; it is kept in %s: %s",
            path,
            one_line(error),
        )
        return path

    def _put(self, entry: Entry, error: BaseException, *, refused: bool = False) -> Path:
        try:
            return self._spool.put(entry, refused=refused)
        except SpoolError as lost:
            raise SpoolError(
                f"{one_line(error)}; and {lost}; what the worker answered is in the run's folder, and another try of "
                "the task reports it again"
            ) from error
