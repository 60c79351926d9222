"""Entry point `airflow.plugins`: adds the page of planner decisions to Airflow's UI.

Scheduler, workers and dag processor import this module too, so the page and FastAPI are loaded by its first request.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

_PREFIX = "/yolo-profiles"


async def page(scope: Any, receive: Any, send: Any) -> None:
    """The page's ASGI application; Airflow 3.3 mounts any callable of this form."""
    from yolo_airflow_provider.ui.decisions import app

    await app(scope, receive, send)


class YoloProfilesPlugin(AirflowPlugin):
    """Registers the provider's page under Browse."""

    name = "yolo_profiles"
    fastapi_apps = [{"app": page, "url_prefix": _PREFIX, "name": "YOLO profiles"}]  # noqa: RUF012 - Airflow's own form
    external_views = [  # noqa: RUF012 - Airflow's own form
        {
            "name": "YOLO decisions",
            # Relative, so that it holds behind a path prefix too.
            "href": f"{_PREFIX.lstrip('/')}/decisions",
            "destination": "nav",
            "category": "browse",
            "url_route": "yolo-decisions",
        }
    ]
