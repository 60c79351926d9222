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
                "conn-fields": {
                    "sslmode": {
                        "label": "SSL mode",
                        "description": "Of libpq. With verify-full nobody can pose as the server.",
                        "schema": {
                            "type": ["string", "null"],
                            "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full", None],
                            "default": None,
                        },
                    },
                    "sslrootcert": {
                        "label": "SSL root certificate",
                        "description": "File on the workers with the authority that signed the server's certificate,"
                        " or system.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "sslcert": {
                        "label": "SSL client certificate",
                        "description": "File on the workers, where the server asks for one.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "sslkey": {
                        "label": "SSL client key",
                        "description": "File on the workers with the key of the client certificate.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "target_session_attrs": {
                        "label": "Which of several hosts",
                        "description": "Of libpq. With read-write, the primary is found among hosts given as a,b.",
                        "schema": {
                            "type": ["string", "null"],
                            "enum": ["any", "read-write", "primary", None],
                            "default": None,
                        },
                    },
                    "connect_timeout": {
                        "label": "Connect timeout (s)",
                        "description": "After which an attempt to connect is given up. Empty: 10.",
                        "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 3600},
                    },
                    "statement_timeout": {
                        "label": "Statement timeout (s)",
                        "description": "After which the server ends a statement; 0: the server's own. Empty: 30.",
                        "schema": {"type": ["number", "null"], "minimum": 0, "maximum": 86400},
                    },
                    "retry_seconds": {
                        "label": "Retry for (s)",
                        "description": "How long a task tries again while the database is down; 0: not. Empty: 120.",
                        "schema": {"type": ["number", "null"], "minimum": 0, "maximum": 86400},
                    },
                },
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
                    "spool": {
                        "description": "Folder for measurements that the profile store could not take; a later task"
                        " loads them. Empty: .profile-spool in the workspace, else yolo_profile_spool in AIRFLOW_HOME.",
                        "version_added": "0.3.0",
                        "type": "string",
                        "example": "/var/lib/airflow/yolo_spool",
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
