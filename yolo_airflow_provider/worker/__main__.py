"""`python -m yolo_airflow_provider.worker`: read the job from `YOLO_JOB`, do it, answer, end."""

from __future__ import annotations

from yolo_airflow_provider.worker.job import main

if __name__ == "__main__":
    raise SystemExit(main())
