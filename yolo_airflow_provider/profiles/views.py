"""The views of the store, by their columns: what people read, and `yolo_reader` reads nothing else.

The migrations make them; a test holds the two together. A column has the type of the table's column of that name.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles import tables

_PROFILE = ("model", "model_task", "classes", "imgsz", "precision", "accelerator_kind", "product", "mig_profile")

_COLUMNS: dict[str, tuple[str, ...]] = {
    "run_history": tuple(column.name for column in tables.measurement.c if column.name != "model_id"),
    "epoch_history": tuple(column.name for column in tables.epoch.c),
    "decision_history": tuple(column.name for column in tables.decision.c),
    "prediction_error": (
        *tables.RUN_KEY,
        *("decided_at", "finished_at", "outcome", "model", "imgsz", "precision", "batch"),
        *("accelerator_kind", "product", "mig_profile", "basis"),
        *("predicted_bytes", "predicted_low_bytes", "predicted_high_bytes", "peak_device_bytes"),
        *("error_percent", "within_interval", "predicted_epoch_seconds"),
        *("predicted_epoch_low_seconds", "predicted_epoch_high_seconds", "epoch_seconds"),
        *("epoch_error_percent", "within_epoch_interval"),
    ),
    "oom_history": (
        *("id", "finished_at", "outcome", *tables.RUN_KEY, "part", "kind"),
        *("model", "model_task", "classes", "imgsz", "batch", "precision"),
        *("accelerator_kind", "product", "mig_profile"),
        *("budget_bytes", "peak_device_bytes", "peak_rss_bytes", "message"),
    ),
    "usage_by_dag": tuple(column.name for column in tables.usage_day.c),
    "resource_card": (
        *("measurement_id", "finished_at", "kind"),
        *("model_type", "model_task", "classes", "input_size", "precision", "batch"),
        *("dataset", "dataset_fingerprint", "accelerator_kind", "product", "mig_profile", "budget_bytes"),
        *("estimated_gpu_memory", "min_gpu_count", "recommended_gpu", "recommended_slice"),
        *("cpu_cores", "dataloader_workers", "shared_memory", "host_memory", "disk_space_required"),
        *("expected_duration_per_epoch", "epoch_seconds_spread", "images_per_second"),
        *("data_wait_percent", "iowait_percent", "throttled_percent", "io_intensive", "compute_bound_by"),
        *("supports_checkpoint_resume", "measurements", "origin", "source"),
    ),
    "model_facts": (
        *(column.name for column in tables.model.c),
        *("activation_bytes_per_image", "flops_per_byte"),
    ),
    "model_spectrum": (
        *(*_PROFILE, "measurements", "parameters", "gflops"),
        *("peak_device_bytes", "peak_bytes_per_image", "flops_per_byte", "io_sensitivity_percent"),
        *("images_per_second", "data_wait_percent", "iowait_percent", "device_busy_percent", "last_at"),
    ),
}

# Of columns that no table has, or that a view counts in whole cores.
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    name: kind
    for kind, names in (
        (sa.String(), ("compute_bound_by", "model_type", "recommended_gpu", "recommended_slice", "source")),
        (
            sa.BigInteger(),
            (
                *("dataloader_workers", "disk_space_required", "estimated_gpu_memory", "host_memory", "input_size"),
                *("io_intensive", "measurement_id", "min_gpu_count", "shared_memory", "supports_checkpoint_resume"),
                *("within_interval", "within_epoch_interval"),
            ),
        ),
        (
            sa.Double(),
            (
                *(
                    "activation_bytes_per_image",
                    "epoch_error_percent",
                    "error_percent",
                    "expected_duration_per_epoch",
                    "flops_per_byte",
                ),
                *("io_sensitivity_percent", "peak_bytes_per_image"),
            ),
        ),
    )
    for name in names
}


def _type(name: str) -> sa.types.TypeEngine[Any]:
    if name in _TYPES:
        return _TYPES[name]
    of_tables = (table.c[name].type for table in tables.metadata.tables.values() if name in table.c)
    return next(of_tables)


VIEWS: dict[str, sa.TableClause] = {
    view: sa.table(view, *(sa.column(name, _type(name)) for name in columns)) for view, columns in _COLUMNS.items()
}
"""Every view, to select from."""
