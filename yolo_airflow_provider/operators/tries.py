"""What earlier tries of the same task instance left in the store, and what of it the next try keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from yolo_airflow_provider.contract import FailureClass, Identity
from yolo_airflow_provider.gpus.accelerator import Accelerator

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import MeasurementRow
    from yolo_airflow_provider.profiles.store import ProfileStore


_NEVER_RAN = (FailureClass.UNSCHEDULABLE, FailureClass.IMAGE)


@dataclass(frozen=True)
class EarlierTries:
    """Of one task instance.

    Attributes:
        last: the newest of their measurements, None before the first.
        shm_failures: tries that ran out of /dev/shm.
    """

    last: MeasurementRow | None = None
    shm_failures: int = 0

    def kept_batch(self, model: str, imgsz: int, accelerator: Accelerator) -> int | None:
        """The batch to go on with: the last try's, where it failed for a reason that is none of the batch's."""
        last = self._unfinished
        if last is None or (last.model, last.imgsz) != (model, imgsz) or not _is(last, accelerator):
            return None
        return last.batch

    def ran_on(self, accelerator: Accelerator) -> bool:
        """The last try had such an accelerator, and failed for a reason that is none of its size's."""
        last = self._unfinished
        return last is not None and last.outcome not in _NEVER_RAN and _is(last, accelerator)

    @property
    def _unfinished(self) -> MeasurementRow | None:
        """The last try, unless it succeeded or its batch was too large for the memory that the batch is planned for."""
        last = self.last
        if last is None or last.outcome in ("succeeded", FailureClass.GPU_OOM):
            return None
        return None if last.outcome == FailureClass.HOST_OOM and last.accelerator_kind == "cpu" else last


def _is(row: MeasurementRow, accelerator: Accelerator) -> bool:
    ran = (row.accelerator_kind, row.product or "", row.mig_profile or "")
    return ran == (accelerator.kind, accelerator.product, accelerator.mig_profile)


def recorded(store: ProfileStore, identity: Identity) -> list[MeasurementRow]:
    """What all tries of a task instance recorded, oldest first."""
    ours = store.tries(identity.dag_id, identity.run_id, identity.task_id, identity.map_index)
    return [stored.row for stored in ours]


def earlier_tries(store: ProfileStore, identity: Identity) -> EarlierTries:
    """Read what tries before this one recorded."""
    if identity.try_number == 1:
        return EarlierTries()
    rows = [row for row in recorded(store, identity) if row.key.try_number < identity.try_number]
    full = {row.key.try_number for row in rows if row.outcome == FailureClass.SHM}
    return EarlierTries(last=rows[-1] if rows else None, shm_failures=len(full))
