"""Who may write into a run's folder: the highest try that started in it.

A node that loses its network keeps its pod running. Airflow starts the next try elsewhere, and when the network is
back two processes have the same folder on the shared volume. The older one must not put its checkpoint over the
later one's.

Every try writes its number and Airflow's id of it into `fence.json` when it starts, and reads it again before each
file that it puts in place. What the fence does not close:

- The time between a check and the rename (or the appended line) after it: microseconds on a local disk. On NFS a
  client may answer a look-up from its cache for as long as its mount's `actimeo` says (3 to 60 s by default), and
  what a node wrote before its network broke may arrive when it is back. A rename that slips through puts a whole,
  older checkpoint in place, never a torn one; the later try's next save replaces it.
- Two tries that start in the same moment: the earlier number may be written last. The later try takes the fence back
  at its next check, which comes before the first file that it writes.
- The end of a training: Ultralytics' final_eval strips last.pt and best.pt in place after its check. A zombie that
  hangs in that moment may tear them under the later try, whose `newest` then takes previous.pt and whose `mend_best`
  replaces best.pt.
- Two processes of one try, which is why a pod that restarts goes on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.files import write_atomically
from yolo_airflow_provider.worker.measure import host

NAME = "fence.json"


@dataclass(frozen=True)
class _Holder:
    try_number: int
    node: str
    attempt: str = ""

    def after(self, other: _Holder) -> bool:
        """A later try: by Airflow's ids where both have one, which also holds for a run that was made again."""
        if self.attempt and other.attempt and self.attempt != other.attempt:
            return self.attempt > other.attempt
        return self.try_number > other.try_number


class Fence:
    """One try's claim to a run's folder.

    Args:
        run_folder: the same for every try.
        try_number: of this one.
        attempt: Airflow's id of it, empty where there is none.
    """

    def __init__(self, run_folder: Path, try_number: int, attempt: str = "") -> None:
        self._path = run_folder / NAME
        self._own = _Holder(try_number, host.node_name(), attempt)
        self.holds = True
        """False once a later try was found to have the folder; that is for good."""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._path.parent

    @property
    def try_number(self) -> int:
        """Of this try."""
        return self._own.try_number

    @property
    def label(self) -> str:
        """Part of the names of this try's own files, which a zombie of another try writes too: `2-1f0c9a3e`.

        A run that was made again under its name counts its tries from 1 once more; Airflow's id tells them apart.
        """
        attempt = self._own.attempt
        return (
            f"{self.try_number}-{hashlib.sha256(attempt.encode()).hexdigest()[:8]}" if attempt else f"{self.try_number}"
        )

    def take(self) -> None:
        """Make the folder this try's.

        Raises:
            JobError: a later try has it (`preempted`).
            OSError: the folder cannot be written.
        """
        self._refuse_later(self._read())
        self._write()

    def check(self) -> None:
        """Make sure, right before something is written, that the folder is still this try's.

        Raises:
            JobError: a later try has taken it (`preempted`).
            OSError: the fence cannot be read.
        """
        holder = self._read()
        self._refuse_later(holder)
        if holder is None or self._own.after(holder):
            self._write()  # an earlier try that started in the same moment wrote last

    def _refuse_later(self, holder: _Holder | None) -> None:
        if holder is None or not holder.after(self._own):
            return
        self.holds = False
        raise JobError(
            FailureClass.PREEMPTED,
            f"try {holder.try_number} on node {holder.node} has taken over this run's folder; this process of try"
            f" {self._own.try_number} writes nothing more",
            hint=f"nothing to do, try {holder.try_number} goes on; {self._path} says whose the folder is",
        )

    def _read(self) -> _Holder | None:
        """Who holds the folder; None where nobody does, or where what is written there says nothing."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return _Holder(int(found["try_number"]), str(found.get("node", "?")), str(found.get("attempt", "")))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(asdict(self._own)))
