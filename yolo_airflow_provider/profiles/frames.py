"""Tables and views of the store as pandas frames, each column with one type whatever is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa

from yolo_airflow_provider.profiles import tables, views

if TYPE_CHECKING:
    import pandas as pd

# What is read: each table or view with the columns that put its newest rows first.
_ORDER: dict[str, tuple[str, ...]] = {
    "model": ("id",),
    "measurement": ("id",),
    "epoch": (*tables.RUN_KEY, "epoch"),
    "decision": ("decided_at",),
    "profile": ("newest_at", "newest_id"),
    "usage_day": ("day",),
    "run_history": ("finished_at", "id"),
    "epoch_history": (*tables.RUN_KEY, "epoch"),
    "decision_history": ("decided_at",),
    "prediction_error": ("decided_at",),
    "oom_history": ("finished_at", "id"),
    "usage_by_dag": ("day",),
    "resource_card": ("finished_at", "measurement_id"),
    "model_spectrum": ("last_at",),
    "model_facts": ("id",),
}
NAMES = tuple(_ORDER)
"""Tables and views that `ProfileStore.frame` takes."""

_TIME_COLUMNS = ("finished_at", "decided_at", "newest_at", "last_at", "day")
_DTYPES = {sa.String: "string", sa.Integer: "Int64", sa.BigInteger: "Int64", sa.Double: "Float64"}


def select(
    name: str,
    *,
    limit: int | None = None,
    where: Mapping[str, object] | None = None,
    since: datetime | None = None,
) -> sa.Select[Any]:
    """The rows of a table or view, newest first.

    Args:
        name: one of `NAMES`.
        limit: most rows; None for all of them.
        where: values that columns must have; None for a column that has none.
        since: only rows of this time or later.

    Raises:
        ValueError: there is no such table, view or column, or it has no time.
    """
    order = _ORDER.get(name)
    if order is None:
        raise ValueError(f"there is no table or view {name!r}; expected one of {', '.join(NAMES)}")
    columns = dict(_source(name).c)
    # pandas would make texts of JSON values, in Python's spelling.
    chosen = [sa.cast(c, sa.Text()).label(key) if isinstance(c.type, sa.JSON) else c for key, c in columns.items()]
    statement = sa.select(*chosen)
    for key, value in (where or {}).items():
        if key not in columns:
            raise ValueError(f"{name} has no column {key!r}; expected one of {', '.join(columns)}")
        statement = statement.where(columns[key].is_(None) if value is None else columns[key] == value)
    if since is not None:
        newest = columns[order[0]]
        if order[0] not in _TIME_COLUMNS:
            raise ValueError(f"{name} is not ordered by a time, so that there is no `since` for it")
        statement = statement.where(newest >= (since.date() if order[0] == "day" else since))
    return statement.order_by(*(columns[key].desc() for key in order)).limit(limit)


def read(connection: sa.Connection, name: str, statement: sa.Select[Any]) -> pd.DataFrame:
    """What `select` selects from a table or view, as a frame."""
    import pandas as pd

    # Not pd.read_sql: it hides the driver's errors, by which an outage is told from a missing right.
    result = connection.execute(statement)
    frame = pd.DataFrame(result.all(), columns=list(result.keys()), dtype=object)
    # A column without a single value says nothing about its type.
    for key, column in _source(name).c.items():
        if isinstance(column.type, sa.JSON):
            frame[key] = pd.Series([json.loads(text) for text in frame[key]], dtype=object)
        elif isinstance(column.type, (tables.UtcDateTime, sa.Date)):
            frame[key] = pd.to_datetime(frame[key], utc=True).dt.as_unit("us")
        else:
            frame[key] = frame[key].astype(cast(Any, _DTYPES[type(column.type)]))
    return frame


def _source(name: str) -> sa.Table | sa.TableClause:
    table = tables.metadata.tables.get(name)
    return views.VIEWS[name] if table is None else table
