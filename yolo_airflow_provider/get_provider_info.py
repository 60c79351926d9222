"""The provider's metadata. A plain dict without imports: Airflow asks for it while it starts."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """What Airflow's provider manager reads (provider_info.schema.json of Airflow 3.3)."""
    return {
        "package-name": "yolo-airflow-provider",
        "name": "YOLO on MIG",
        "description": "Measures YOLO trainings on GPUs and MIG slices and chooses the batch of later ones from it.",
        "integrations": [
            {
                "integration-name": "YOLO on MIG",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "YOLO on MIG",
                "python-modules": [
                    "yolo_airflow_provider.operators.preprocess",
                    "yolo_airflow_provider.operators.probe",
                    "yolo_airflow_provider.operators.train",
                    "yolo_airflow_provider.operators.export",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "YOLO on MIG",
                "python-modules": ["yolo_airflow_provider.hooks.profile_store"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "yolo_profiles",
                "hook-class-name": "yolo_airflow_provider.hooks.profile_store.ProfileStoreHook",
                "hook-name": "YOLO profile store",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra"],
                    "relabeling": {"schema": "Database"},
                    "placeholders": {"host": "profiles-db", "port": "5432", "schema": "yolo_profiles"},
                },
            }
        ],
        "config": {
            "yolo": {
                "description": "Defaults of the YOLO operators.",
                "options": {
                    "execution": {
                        "description": "Where tasks run: `kubernetes` in a pod each, `local` as a child process.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "local",
                        "default": "kubernetes",
                    },
                    "workspace": {
                        "description": "Folder on the shared volume that holds runs and prepared data sets.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/workspace",
                        "default": "/workspace",
                    },
                    "image": {
                        "description": "Worker image of tasks that run in pods.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "yolo-airflow-worker:0.1.0",
                        "default": None,
                    },
                    "workspace_claim": {
                        "description": "PersistentVolumeClaim that pods mount at the workspace.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "yolo-workspace",
                        "default": None,
                    },
                    "data_claim": {
                        "description": "PersistentVolumeClaim with data sets that pods mount read-only at /data.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "yolo-data",
                        "default": None,
                    },
                    "profile_store": {
                        "description": "SQLAlchemy URL of the store where no connection yolo_profiles_default exists."
                        " Empty: SQLite in AIRFLOW_HOME.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "sqlite:////var/lib/airflow/yolo_profiles.db",
                        "default": None,
                        "sensitive": True,
                    },
                },
            }
        },
    }
