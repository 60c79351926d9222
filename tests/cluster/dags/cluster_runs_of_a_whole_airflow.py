"""DAGs of the tests that need a whole Airflow. Data sets are where the test's session has drawn them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from yolo_airflow_provider.operators import MigTrainOperator, PreprocessOperator

WORKSPACE = os.environ["AIRFLOW__YOLO__WORKSPACE"]
TINY = f"{WORKSPACE}/shapes-8-4-32/data.yaml"
LONG = f"{WORKSPACE}/shapes-64-4-160/data.yaml"

COMMON: dict[str, Any] = {
    "model": "yolov8n",
    "accelerator": "1g.5gb",
    "amp": False,  # Ultralytics' check of it takes longer than these trainings
    "retries": 1,
    "retry_delay": timedelta(seconds=1),
    "poll_interval": 1,
}
SLOW = COMMON | {"data": LONG, "imgsz": 160, "batch": 4}

for deferrable in (False, True):
    suffix = "_deferred" if deferrable else ""
    for name in ("worker_killed", "triggerer_killed", "marked_failed", "cleared"):
        with DAG(name + suffix, schedule=None):
            # Long enough for Airflow to find out what died.
            epochs = 8 if name.endswith("killed") else 4
            MigTrainOperator(task_id="train", deferrable=deferrable, epochs=epochs, **SLOW)

with DAG("fifty", schedule=None):
    MigTrainOperator.partial(
        task_id="train",
        data=TINY,
        imgsz=32,
        epochs=1,
        batch=4,
        deferrable=True,
        poll_interval=5,
        log_events_on_startup=False,  # fifty pods that wait have much to say
        **{name: value for name, value in COMMON.items() if name not in ("model", "poll_interval")},
    ).expand(model=["yolov8n", "yolo11n"] * 25)

# As long as an id may be, with everything that a label may not hold.
LONG_ID = "Team.Vision-" + "Abteilung_Überwachung." * 9
with DAG(LONG_ID, schedule=None):
    PreprocessOperator(task_id="Prüfung.DER_Daten", data=TINY, imgsz=32)
