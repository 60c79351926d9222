"""The profile store: what was measured, what was decided, and the database that keeps it.

Imports nothing by itself, so that a DAG file or the Airflow UI can reach `records` without SQLAlchemy.
Start at `engine.open_store`; the rows are plain dataclasses in `records`.
"""

from __future__ import annotations
