"""From the rows of `records` to the columns of `tables` and back, with everything odd caught on the way in.

What a database would take silently and give back wrong (a numpy integer on SQLite), refuse with a bare
driver error (a NUL in a text on PostgreSQL) or keep only on one of the two (an integer over 64 bits) is
settled here, once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa

from yolo_airflow_provider.profiles import tables
from yolo_airflow_provider.profiles.errors import RowError
from yolo_airflow_provider.profiles.records import (
    DecisionRow,
    EpochRow,
    MeasurementRow,
    ModelRow,
    RunKey,
    Stored,
)

# A share computed as 100 * a / b can come out as 100.00000000000001; a measurement is not lost for that.
_ROUNDING = 1e-6
_ALLOWED_TEXTS = {
    ("measurement", "kind"): tables.KINDS,
    ("measurement", "outcome"): tables.OUTCOMES,
    ("decision", "basis"): tables.BASES,
}


def model_values(row: ModelRow) -> dict[str, Any]:
    """Columns of a model.

    Raises:
        RowError: a field has a value that the store cannot hold.
    """
    return _checked(tables.model, asdict(row), f"model {row.name!r}")


def measurement_values(row: MeasurementRow) -> dict[str, Any]:
    """Columns of a measurement, `model_id` aside.

    Raises:
        RowError: a field has a value that the store cannot hold.
    """
    values = _checked(tables.measurement, _flat(row), f"measurement {row.part!r} of {_name(row.key)}")
    # One spelling of "no product" (a CPU has none), or the rows of one profile would be told apart by it.
    values["product"] = values["product"] or None
    return values


def epoch_values(row: EpochRow) -> dict[str, Any]:
    """Columns of an epoch.

    Raises:
        RowError: a field has a value that the store cannot hold.
    """
    return _checked(tables.epoch, _flat(row), f"epoch {row.epoch} of {_name(row.key)}")


def decision_values(row: DecisionRow) -> dict[str, Any]:
    """Columns of a decision.

    Raises:
        RowError: a field has a value that the store cannot hold.
    """
    return _checked(tables.decision, _flat(row), f"decision for {_name(row.key)}")


def stored_measurement(columns: sa.RowMapping) -> Stored:
    """A measurement as read from the table."""
    return Stored(id=columns["id"], row=MeasurementRow(**_nested(columns, MeasurementRow)))


def stored_decision(columns: sa.RowMapping) -> DecisionRow:
    """A decision as read from the table."""
    return DecisionRow(**_nested(columns, DecisionRow))


def _flat(row: MeasurementRow | EpochRow | DecisionRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "key"}
    return asdict(row.key) | values


def _nested(columns: sa.RowMapping, kind: type[MeasurementRow] | type[DecisionRow]) -> dict[str, Any]:
    values = {field.name: columns[field.name] for field in fields(kind) if field.name != "key"}
    return values | {"key": RunKey(**{name: columns[name] for name in tables.RUN_KEY})}


def _name(key: RunKey) -> str:
    mapped = f"[{key.map_index}]" if key.map_index >= 0 else ""
    return f"{key.dag_id}.{key.task_id}{mapped} run {key.run_id} try {key.try_number}"


def _checked(table: sa.Table, values: dict[str, Any], where: str) -> dict[str, Any]:
    checked = {}
    for name, value in values.items():
        column = table.c[name]
        try:
            clean = _clean(column, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RowError(f"{where}: {name} is {_short(value)}: {error}") from error
        if clean is None and not column.nullable:
            raise RowError(f"{where}: {name} is {_short(value)}, and the store needs a value there")
        checked[name] = clean
    return checked


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _clean(column: sa.Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, sa.JSON):
        return clean_json(value)
    if isinstance(column.type, sa.String):
        return _clean_text(column, value)
    if isinstance(column.type, sa.Integer):
        return _clean_integer(column, value)
    if isinstance(column.type, sa.Double):
        return _clean_float(column, value)
    if not isinstance(value, datetime):
        raise TypeError("expected a datetime")
    if value.utcoffset() is None:
        raise ValueError("a naive time; give it a time zone, datetime.now(UTC) for instance")
    return value


def _clean_text(column: sa.Column[Any], value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    allowed = _ALLOWED_TEXTS.get((column.table.name, column.name))
    if allowed and str(value) not in allowed:
        raise ValueError(f"expected one of {', '.join(allowed)}")
    return _storable(value)


def _clean_integer(column: sa.Column[Any], value: Any) -> int:
    # index() takes numpy's integers, which sqlite3 would store as blobs, and refuses fractions.
    number = operator.index(value)
    bits = 63 if isinstance(column.type, sa.BigInteger) else 31
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"outside the {bits + 1} bits of the column")
    low, _ = tables.value_limits(column.table.name, column.name)
    if low is not None and number < low:
        raise ValueError(f"expected at least {low:g}")
    return number


def _clean_float(column: sa.Column[Any], value: Any) -> float | None:
    if isinstance(value, str):
        raise TypeError("expected a number")
    number = float(value)
    if not math.isfinite(number):
        return None
    low, high = tables.value_limits(column.table.name, column.name)
    for limit, sign in ((low, -1), (high, 1)):
        excess = 0.0 if limit is None else sign * (number - limit)
        if excess > _ROUNDING:
            raise ValueError(f"expected {'at most' if sign > 0 else 'at least'} {limit:g}")
        if excess > 0:
            number = float(cast(float, limit))
    return number


def clean_json(value: object) -> object:
    """A JSON value that both databases keep: NaN and infinities become null, texts are made storable.

    Raises:
        TypeError: it holds something JSON has no word for.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, Mapping):
        return {_storable(str(name)): clean_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_json(item) for item in value]
    if hasattr(value, "__index__"):
        return operator.index(value)
    if hasattr(value, "__float__"):
        number = float(value)
        return number if math.isfinite(number) else None
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _storable(text: str) -> str:
    # PostgreSQL has no NUL in texts, and half a surrogate pair (a log read with surrogateescape) is no UTF-8.
    text = str(text).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
