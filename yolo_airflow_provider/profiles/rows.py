"""From the rows of `records` to the columns of `tables` and back, with everything odd caught on the way in.

What a database would take silently and give back wrong (a numpy integer or NaN on SQLite), refuse with a bare
driver error (a NUL in a text on PostgreSQL) or keep only on one of the two (an integer over 64 bits) is
settled here, once: a value is kept as it is, or refused by the name of a constraint.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
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


_MEASURED = tuple(field.name for field in fields(MeasurementRow) if field.name != "key")


def select_measurements() -> sa.Select[Any]:
    """The measurements, as `stored_measurement` reads them."""
    columns = tables.measurement.c
    return sa.select(columns.id, *(columns[name] for name in (*tables.RUN_KEY, *_MEASURED)))


def stored_measurement(row: Sequence[Any]) -> Stored:
    """A measurement as selected by `select_measurements`: by place, which takes half the time that names take."""
    number, values = row[0], row[1 + len(tables.RUN_KEY) :]
    key = RunKey(**dict(zip(tables.RUN_KEY, row[1:], strict=False)))
    return Stored(id=number, row=MeasurementRow(key=key, **dict(zip(_MEASURED, values, strict=True))))


def stored_decision(columns: sa.RowMapping) -> DecisionRow:
    """A decision as read from the table."""
    values = {field.name: columns[field.name] for field in fields(DecisionRow) if field.name != "key"}
    return DecisionRow(key=RunKey(**{name: columns[name] for name in tables.RUN_KEY}), **values)


def _flat(row: MeasurementRow | EpochRow | DecisionRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "key"}
    return asdict(row.key) | values


def _name(key: RunKey) -> str:
    mapped = f"[{key.map_index}]" if key.map_index >= 0 else ""
    dag_id, task_id, run_id = (_cut(str(text), 250) for text in (key.dag_id, key.task_id, key.run_id))
    return f"{dag_id}.{task_id}{mapped} run {run_id} try {key.try_number}"


def _checked(table: sa.Table, values: dict[str, Any], where: str) -> dict[str, Any]:
    checked = {}
    for name, value in values.items():
        column = table.c[name]
        try:
            clean = _clean(column, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RowError(
                f"{where}: {name} is {_short(value)}: {error} (constraint ck_{table.name}_{name})"
            ) from error
        if clean is None and not column.nullable:
            raise RowError(f"{where}: {name} is {_short(value)}, and the store needs a value there")
        checked[name] = clean
    _check_key(table, checked, where)
    return checked


def _check_key(table: sa.Table, values: dict[str, Any], where: str) -> None:
    # Only three ids of 250 characters outside ASCII come near it.
    texts = [values[name] for name in (*tables.RUN_KEY, "part") if isinstance(values.get(name), str)]
    if (size_bytes := sum(len(text.encode()) for text in texts)) > tables.MOST_KEY_BYTES:
        constraint = "uq_measurement_key" if table.name == "measurement" else f"pk_{table.name}"
        raise RowError(
            f"{where}: its key takes {size_bytes} bytes, expected at most {tables.MOST_KEY_BYTES}"
            f" (constraint {constraint})"
        )


def _short(value: object) -> str:
    # No longer value is written out for it: a text of 100 MB has a representation of as many.
    return _cut(repr(value[:80] if isinstance(value, str) else value), 80)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


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
    return value.astimezone(UTC)


def _clean_text(column: sa.Column[Any], value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    allowed = _ALLOWED_TEXTS.get((column.table.name, column.name))
    if allowed and str(value) not in allowed:
        raise ValueError(f"expected one of {', '.join(allowed)}")
    most = tables.most_characters(column.table.name, column.name)
    if most is not None and len(value) > most:
        raise ValueError(f"{len(value)} characters, expected at most {most}")
    return _storable(value)


def _clean_integer(column: sa.Column[Any], value: Any) -> int:
    # index() takes numpy's integers, which sqlite3 would store as blobs, and refuses fractions.
    number = operator.index(value)
    bits = 63 if isinstance(column.type, sa.BigInteger) else 31
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"outside the {bits + 1} bits of the column")
    low, _ = tables.value_limits(column.name)
    if low is not None and number < low:
        raise ValueError(f"expected at least {low:g}")
    return number


def _clean_float(column: sa.Column[Any], value: Any) -> float:
    if isinstance(value, str):
        raise TypeError("expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("expected a finite number, or None for what was not measured")
    low, high = tables.value_limits(column.name)
    for limit, sign in ((low, -1), (high, 1)):
        excess = 0.0 if limit is None else sign * (number - limit)
        if excess > _ROUNDING:
            raise ValueError(f"expected {'at most' if sign > 0 else 'at least'} {limit:g}")
        if excess > 0:
            number = float(cast(float, limit))
    return number


def clean_json(value: object) -> object:
    """A JSON value that both databases keep: NaN and infinities, for which it has no word, become their names.

    Raises:
        TypeError: it holds something JSON has no word for.
        ValueError: it holds a text that PostgreSQL cannot keep.
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
        if math.isnan(number):
            return "NaN"
        return number if math.isfinite(number) else f"{'-' if number < 0 else ''}Infinity"
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def readable(text: str) -> str:
    """A text from outside as both databases keep it: for those who write down what others said.

    A NUL becomes its picture; half a surrogate pair (a log read with surrogateescape) becomes the replacement
    character.
    """
    text = text.replace("\x00", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _storable(text: str) -> str:
    text = str(text)
    if "\x00" in text:
        raise ValueError("a NUL, which PostgreSQL cannot keep")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair, which is no Unicode text") from None
    return text
