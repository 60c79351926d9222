"""A page with the latest decisions of the planner: what was chosen, why, and what then came out."""

from __future__ import annotations

import html
import logging
from typing import Any

# These dependencies are Airflow's own guards (3.3: airflow/api_fastapi/core_api/security.py); without one a plugin's
# routes are open to anybody.
from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.profiles.errors import StoreError

log = logging.getLogger(__name__)

_SHOWN = 200
_COLUMNS = {
    "decided_at": "decided",
    "dag_id": "dag",
    "model": "model",
    "imgsz": "imgsz",
    "batch": "batch",
    "basis": "basis",
    "predicted_bytes": "predicted",
    "peak_device_bytes": "measured",
    "error_percent": "error %",
    "outcome": "outcome",
}

# Without the schema pages, which no dependency guards.
app = FastAPI(title="YOLO profiles", dependencies=[Depends(requires_authenticated())], openapi_url=None)


@app.get("/decisions", response_class=HTMLResponse)
def decisions() -> HTMLResponse:
    """The newest decisions that were followed by a measurement, as a table.

    Raises:
        HTTPException: 503, the store cannot be read. A person waits, so it is tried once.
    """
    try:
        frame = ProfileStoreHook().get_store(patience_seconds=0).frame("prediction_error", limit=_SHOWN)
    except StoreError as error:
        log.warning("The page of decisions cannot be shown: %s", error)
        raise HTTPException(503, "The profile store cannot be read now; the web server's log says why.") from error
    newest = frame.sort_values("decided_at", ascending=False).to_dict("records")
    head = "".join(f"<th>{title}</th>" for title in _COLUMNS.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(name, row[name])}</td>" for name in _COLUMNS) + "</tr>" for row in newest
    )
    page = (
        "<!doctype html><title>YOLO decisions</title><style>body{font:14px sans-serif;margin:1rem}"
        "td,th{padding:.3rem .7rem;text-align:left;border-bottom:1px solid #ddd}</style>"
        f"<h1>Decisions and what came out</h1><table><tr>{head}</tr>{body}</table>"
        + ("" if newest else "<p>No training was planned and measured yet.</p>")
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": "frame-ancestors 'self'"})


def _cell(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN is what pandas makes of NULL
        return ""
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if name == "decided_at":
        return f"{value:%Y-%m-%d %H:%M} UTC"
    if isinstance(value, float):
        return f"{value:.1f}"
    return html.escape(str(value))
