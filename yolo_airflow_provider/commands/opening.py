"""Which store a command is about, and opening it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from yolo_airflow_provider.commands.arguments import URL_VARIABLE
from yolo_airflow_provider.commands.errors import CommandError

if TYPE_CHECKING:
    import sqlalchemy as sa

    from yolo_airflow_provider.profiles.errors import StoreDenied
    from yolo_airflow_provider.profiles.store import ProfileStore

PATIENCE_SECONDS = 5.0
"""A person waits at the other end: an outage is told, not sat out."""
INSUFFICIENT_PRIVILEGE = "42501"
"""PostgreSQL's code for a right that is missing."""


def store_url(given: str | None) -> sa.URL:
    """Where the store is: as given, by the environment, or as the tasks know it.

    Raises:
        StoreError: what was given is no URL, or the connection is incomplete.
        CommandError: Airflow's connection cannot be read.
    """
    from yolo_airflow_provider.profiles.engine import parse_url

    if given:
        return parse_url(given, source="option --url")
    if named := os.environ.get(URL_VARIABLE):
        return parse_url(named, source=f"environment variable {URL_VARIABLE}")
    from airflow.sdk.exceptions import AirflowException

    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook

    try:
        return ProfileStoreHook().get_url()
    except AirflowException as error:
        raise CommandError(
            f"the connection {ProfileStoreHook.default_conn_name} cannot be read: {error}; give the store by --url or "
            f"{URL_VARIABLE}"
        ) from error


def open_existing(given: str | None) -> ProfileStore:
    """The store as it is; none is made or upgraded.

    Raises:
        StoreError: there is none, it needs an upgrade, or it cannot be reached.
        CommandError: Airflow's connection cannot be read.
    """
    from yolo_airflow_provider.profiles.engine import open_store

    return open_store(store_url(given), upgrade=False, patience_seconds=PATIENCE_SECONDS)


def as_owner(engine: sa.Engine, error: StoreDenied, doing: str) -> Exception:
    """What to say when the database does not allow what only the owner of its tables may.

    Args:
        engine: of the store.
        error: what it said; returned as it is where the right is not what is missing, but a password, say.
        doing: what was tried, as a verb.
    """
    from yolo_airflow_provider.profiles.migrate import describe

    if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
        return error
    return CommandError(
        f"cannot {doing} {describe(engine)}: role {engine.url.username!r} may not; this takes the role that owns the "
        "tables, which yolo_writer and yolo_reader do not"
    )
