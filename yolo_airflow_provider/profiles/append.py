"""Appending what a run measured, with what is derived from it, in the transaction of the caller.

The statements are put together once a process: SQLAlchemy takes about as long for that as the server for the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles import summaries, tables
from yolo_airflow_provider.profiles.summaries import insert

_INSERTED = {
    tables.model: (tables.MODEL_KEY, ()),
    tables.measurement: ((*tables.RUN_KEY, "part"), ("id",)),
    tables.epoch: ((*tables.RUN_KEY, "epoch"), (*tables.INSTANCE_KEY, "seconds")),
}
"""Of each table its key and what is returned of the rows that were new."""


def rows(
    connection: sa.Connection,
    models: Sequence[dict[str, Any]],
    measurements: Sequence[dict[str, Any]],
    epochs: Sequence[dict[str, Any]],
) -> None:
    """Append rows whose key is not there yet; the others are left as they are.

    Args:
        connection: in a transaction that may write.
        models: columns of `model`; a measurement refers to the one with its name, task and number of classes.
        measurements: columns of `measurement`.
        epochs: columns of `epoch`.
    """
    model_ids = _model_ids(connection, models)
    trained = _append_epochs(connection, epochs)
    statement = _insert(connection.dialect.name, tables.measurement)
    appended = []
    # These in the order given, which is the order of their ids: only a second writer of the same run has the same ones.
    for values in measurements:
        derived = {
            "model_id": model_ids.get((values["model"], values["model_task"], values["classes"])),
            "trained_seconds": _trained_seconds(values, trained),
        }
        found = connection.execute(statement, values | derived).scalar_one_or_none()
        if found is not None:
            appended.append(values | derived | {"id": found})
    summaries.add(connection, appended)


@functools.cache
def _insert(dialect: str, table: sa.Table) -> sa.Executable:
    key, returned = _INSERTED[table]
    statement = insert(dialect, table).on_conflict_do_nothing(index_elements=key)
    return statement.returning(*(table.c[name] for name in returned)) if returned else statement


@functools.cache
def _model_id() -> sa.Select[Any]:
    table = tables.model
    return sa.select(table.c.id).where(*(table.c[name] == sa.bindparam(name) for name in tables.MODEL_KEY))


def _model_ids(connection: sa.Connection, models: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], int | None]:
    """Id of each model by name, task and classes; None where several differ only in their parameters."""
    ids: dict[tuple[str, str, int], int | None] = {}
    # In the order of their keys: two writers of the same models then wait for each other in one direction only.
    for values in sorted(models, key=lambda values: tuple(values[name] for name in tables.MODEL_KEY)):
        key = {name: values[name] for name in tables.MODEL_KEY}
        found = connection.execute(_model_id(), key).scalar_one_or_none()
        # Looked for first: nearly always it is there, and an INSERT that comes to nothing takes a number all the same.
        if found is None:
            connection.execute(_insert(connection.dialect.name, tables.model), values)
            found = connection.execute(_model_id(), key).scalar_one()
        short = (values["name"], values["task"], values["classes"])
        ids[short] = found if ids.get(short, found) == found else None
    return ids


def _append_epochs(connection: sa.Connection, epochs: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Append epochs; returns how long those took that were not there yet, by task instance."""
    trained = {_instance(values): 0.0 for values in epochs}
    if epochs:
        key, _ = _INSERTED[tables.epoch]
        ordered = sorted(epochs, key=lambda values: tuple(values[name] for name in key))
        statement = _insert(connection.dialect.name, tables.epoch)
        for row in connection.execute(statement, ordered).mappings():
            trained[_instance(row)] += row["seconds"]
    return trained


def _trained_seconds(values: Mapping[str, Any], trained: dict[tuple[Any, ...], float]) -> float | None:
    """What a training spent in epochs: those that came with it, also of tries that left nothing else behind.

    They are counted once. Where none came (the workspace is not seen from here), the median epoch times those that the
    try ran itself.
    """
    if values["kind"] != "train":
        return None
    instance = _instance(values)
    if instance in trained:
        spent, trained[instance] = min(trained[instance], tables.LARGEST_NUMBER), 0.0
        return spent
    epochs = (values["epochs_done"] or 0) - (values["resumed_epochs"] or 0)
    if values["epoch_seconds"] is None or epochs <= 0:
        return None
    return float(min(values["epoch_seconds"] * epochs, tables.LARGEST_NUMBER))


def _instance(values: Mapping[str, Any] | sa.RowMapping) -> tuple[Any, ...]:
    return tuple(values[name] for name in tables.INSTANCE_KEY)
