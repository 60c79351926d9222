"""Parameters as they come out of templates: strings become numbers, or an error that names the parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import parse_memory


def whole_number(name: str, value: Any, *, least: int) -> int:
    """An integer of at least `least`.

    Raises:
        BadInput: anything else, `True` and `16.5` included.
    """
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        number = int(value)
    if number is None or number < least:
        raise BadInput(f"{name}={value!r} is not a whole number of at least {least}")
    return number


def batch_size(value: Any) -> int | None:
    """A batch, None for "auto".

    Raises:
        BadInput: zero, negative (Ultralytics' own -1 too) or no number.
    """
    if isinstance(value, str) and value.strip().lower() == "auto":
        return None
    try:
        return whole_number("batch", value, least=1)
    except BadInput as error:
        raise BadInput(f"{error}, and not 'auto', which lets the planner choose") from None


def batch_list(value: Any) -> list[int] | None:
    """Batches to probe, None for "auto"; a template may give `2,8,16`.

    Raises:
        BadInput: no list of one to three positive numbers.
    """
    if isinstance(value, str):
        if value.strip().lower() == "auto":
            return None
        value = [part for part in value.strip(" []()").split(",") if part.strip()]
    if not isinstance(value, Sequence) or not 1 <= len(value) <= 3:
        raise BadInput(f"batches={value!r} is not a list of one to three batch sizes, nor 'auto'")
    return sorted({whole_number("batches", part.strip() if isinstance(part, str) else part, least=1) for part in value})


def switch(name: str, value: Any) -> bool:
    """A truth value; templates give it as text.

    Raises:
        BadInput: neither true nor false.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise BadInput(f"{name}={value!r} is neither true nor false")


def memory(name: str, value: Any) -> int | None:
    """Bytes of a quantity such as `4Gi`; None and an empty template for "not given".

    Raises:
        BadInput: no positive quantity.
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    try:
        return parse_memory(value)
    except ValueError as error:
        raise BadInput(f"{name}: {error}") from None
