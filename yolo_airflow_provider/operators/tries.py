"""What earlier tries of the same task instance left in the store, and what of it the next try keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from yolo_airflow_provider.contract import FailureClass, Identity

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import MeasurementRow
    from yolo_airflow_provider.profiles.store import ProfileStore



@dataclass(frozen=True)
class EarlierTries:
    """Of one task instance.

    Attributes:
        last: the newest of their measurements, None before the first.
        shm_failures: tries that ran out of /dev/shm.
    """

    last: MeasurementRow | None = None
    shm_failures: int = 0

    def kept_batch(self, model: str, imgsz: int) -> int | None:
        """The batch to go on with: the last try's, where it failed for a reason that is none of the batch's."""
        last = self._unfinished
        return last.batch if last is not None and (last.model, last.imgsz) == (model, imgsz) else None

    def ran_on(self, product: str, mig_profile: str) -> bool:
        """The last try failed on such an accelerator for a reason that is none of its size's."""
        last = self._unfinished
        return last is not None and (last.product or "", last.mig_profile or "") == (product, mig_profile)

    @property
    def _unfinished(self) -> MeasurementRow | None:
        """The last try, unless it succeeded or its batch was too large for the memory that the batch is planned for."""
        last = self.last
        if last is None or last.outcome in ("succeeded", FailureClass.GPU_OOM):
            return None
        return None if last.outcome == FailureClass.HOST_OOM and last.accelerator_kind == "cpu" else last


def earlier_tries(store: ProfileStore, identity: Identity) -> EarlierTries:
    """Read what tries before this one recorded."""
    if identity.try_number == 1:
        return EarlierTries()
    rows = [
        stored.row
        for stored in store.measurements(identity.dag_id, identity.run_id)
        if (stored.row.key.task_id, stored.row.key.map_index) == (identity.task_id, identity.map_index)
        and stored.row.key.try_number < identity.try_number
    ]
    full = {row.key.try_number for row in rows if row.outcome == FailureClass.SHM}
    return EarlierTries(last=rows[-1] if rows else None, shm_failures=len(full))
