"""What the demo shows at its end: the resource card, the decisions and what changed, accuracy and artefacts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import DecisionRow, MeasurementRow
    from yolo_airflow_provider.profiles.store import ProfileStore

_LINE = "-" * 78
_CARD = {
    "model_type": "model",
    "input_size": "input size",
    "precision": "precision",
    "accelerator_kind": "accelerator",
    "batch": "batch",
    "estimated_gpu_memory": "memory",
    "cpu_cores": "cpu cores",
    "dataloader_workers": "loader workers",
    "host_memory": "host memory",
    "disk_space_required": "data set on disk",
    "expected_duration_per_epoch": "epoch",
    "images_per_second": "images/s",
    "data_wait_percent": "waited for data",
    "iowait_percent": "iowait",
    "compute_bound_by": "bound by",
    "source": "source",
}


def print_report(dag_id: str, run_ids: Sequence[str], *, home: Path, seconds: float) -> None:
    """Print everything; reads the store of the demo only."""
    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook

    store = ProfileStoreHook().get_store()
    print(f"\n{_LINE}\nResource card\n{_LINE}")
    for name, value in _card(store, dag_id, run_ids):
        print(f"  {name:<18} {value}")
    print(f"\n{_LINE}\nDecisions\n{_LINE}")
    earlier: DecisionRow | None = None
    for number, run_id in enumerate(run_ids, start=1):
        for decision in store.decisions(dag_id, run_id):
            trained = _training(store, dag_id, run_id)
            print(f"  run {number}: {decision.sentence}")
            print(f"         {_outcome(decision, trained)}")
            if earlier is not None:
                print(f"         {what_changed(earlier, decision)}")
            earlier = decision
    print(f"\n{_LINE}\nWhere things are\n{_LINE}")
    workspace = home / "workspace"
    for artefact in sorted(workspace.rglob("export/model.*.sha256")):
        print(f"  artefact   {artefact.with_suffix('')}")
    for report in sorted(workspace.rglob("preprocess/-1/report.json")):
        print(f"  data check {report}")
    print(f"  store      {home / 'yolo_profiles.db'} (SQLite; its view prediction_error compares)")
    print(f"  total      {seconds / 60:.1f} min")


def what_changed(earlier: DecisionRow, later: DecisionRow) -> str:
    """One line on two decisions of the same training."""
    if later.batch == earlier.batch:
        return f"changed: nothing, batch {later.batch} again ({earlier.basis}, now {later.basis})"
    width = [_width(decision) for decision in (earlier, later)]
    return (
        f"changed: batch {earlier.batch} -> {later.batch}, because the prediction stands on more:"
        f" {earlier.basis} {width[0]} -> {later.basis} {width[1]}"
    )


def _width(decision: DecisionRow) -> str:
    if not decision.predicted_bytes or not decision.predicted_high_bytes:
        return "without a prediction"
    return f"+{100 * (decision.predicted_high_bytes / decision.predicted_bytes - 1):.0f} %"


def _outcome(decision: DecisionRow, trained: MeasurementRow | None) -> str:
    if trained is None or not trained.peak_device_bytes:
        return "not measured"
    off = ""
    if decision.predicted_bytes:
        off = f", predicted {100 * (decision.predicted_bytes / trained.peak_device_bytes - 1):+.1f} %"
    accuracy = f", mAP50 {trained.map50:.3f}" if trained.map50 is not None else ""
    epoch = f", {trained.epoch_seconds or 0:.1f} s an epoch"
    return f"came out: {trained.peak_device_bytes / 2**30:.2f} GiB{off}{epoch}{accuracy}"


def _training(store: ProfileStore, dag_id: str, run_id: str) -> MeasurementRow | None:
    trained = [item.row for item in store.measurements(dag_id, run_id) if item.row.kind == "train"]
    return trained[-1] if trained else None


def _card(store: ProfileStore, dag_id: str, run_ids: Sequence[str]) -> list[tuple[str, str]]:
    """The card of the configuration that the last run trained."""
    frame = store.frame("resource_card")
    last = [item.id for run_id in run_ids for item in store.measurements(dag_id, run_id) if item.row.kind == "train"]
    rows = frame[frame["measurement_id"].isin(last)].sort_values("measurement_id").to_dict("records")
    return [(title, _value(name, rows[-1][name])) for name, title in _CARD.items()] if rows else []


def _value(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN is what pandas makes of NULL
        return "not measured"
    if name in ("estimated_gpu_memory", "host_memory", "disk_space_required"):
        return f"{value / 2**30:.2f} GiB"
    if name == "expected_duration_per_epoch":
        return f"{value:.1f} s"
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
