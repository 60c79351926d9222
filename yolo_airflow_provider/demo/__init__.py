"""`yolo-airflow demo`: the example DAG, twice, on one machine, without a cluster or a server."""

from __future__ import annotations
