"""What `yolo-airflow db` and `yolo-airflow profiles` do.

Each module has `add_parser` and functions that run a command. Nothing of Airflow, SQLAlchemy or pandas is imported
while the arguments are read.
"""

from __future__ import annotations
