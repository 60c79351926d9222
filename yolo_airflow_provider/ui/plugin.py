"""Entry point `airflow.plugins`: adds the page of planner decisions to Airflow's UI.

Scheduler, workers and dag processor import this module too, so it must stay cheap: the page itself is loaded where
a web server asks for it.
"""

from __future__ import annotations

import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin

_PREFIX = "/yolo-profiles"


def _apps() -> list[dict[str, Any]]:
    # FastAPI is Airflow's web server's; a worker has no use for it.
    if not any(name in sys.argv for name in ("api-server", "standalone")):
        return []
    from yolo_airflow_provider.ui.decisions import app

    return [{"app": app, "url_prefix": _PREFIX, "name": "YOLO profiles"}]


class YoloProfilesPlugin(AirflowPlugin):
    """Registers the provider's page under Browse."""

    name = "yolo_profiles"
    fastapi_apps = _apps()
    external_views = [  # noqa: RUF012 - AirflowPlugin declares it as an instance attribute
        {
            "name": "YOLO decisions",
            "href": "yolo-profiles/decisions",
            "destination": "nav",
            "category": "browse",
            "url_route": "yolo-decisions",
        }
    ]
