"""What a store's server is, and what we may do there: for the Test button of a connection."""

from __future__ import annotations

import os
from dataclasses import dataclass

import sqlalchemy as sa

from yolo_airflow_provider.profiles import migrate, outage, tables
from yolo_airflow_provider.profiles.store import ProfileStore

_CHANGED = (tables.decision, tables.profile, tables.usage_day)


@dataclass(frozen=True)
class Access:
    """What was found.

    Attributes:
        server: the database's name and version.
        revision: of the store.
        role: who we are there; None on SQLite.
        hindrance: why nothing can be written; None when it can.
    """

    server: str
    revision: str
    role: str | None
    hindrance: str | None

    def __str__(self) -> str:
        who = f'role "{self.role}"' if self.role else "this user"
        may = "may read and write" if self.hindrance is None else f"may only read: {self.hindrance}"
        return f"{self.server}, revision {self.revision}; {who} {may}"


def access_of(store: ProfileStore) -> Access:
    """Ask the database. Writes nothing.

    Raises:
        StoreUnavailable: it could not be reached for as long as the store's patience lasts.
        StoreError: it refuses to say.
    """
    look = _on_sqlite if store.engine.dialect.name == "sqlite" else _on_postgres

    def attempt() -> Access:
        with store.engine.connect() as connection, connection.begin():
            return look(connection)

    return outage.patiently(store.engine, attempt, doing="read", patience_seconds=store.patience_seconds)


def _on_sqlite(connection: sa.Connection) -> Access:
    version = connection.execute(sa.select(sa.func.sqlite_version())).scalar_one()
    file = str(connection.engine.url.database)
    can_write = os.access(file, os.W_OK) and os.access(os.path.dirname(file), os.W_OK)
    hindrance = None if can_write else "the file or its folder cannot be written to"
    return Access(f"SQLite {version}", migrate.HEAD_REVISION, None, hindrance)


def _on_postgres(connection: sa.Connection) -> Access:
    setting = sa.func.current_setting
    version, role, is_standby, is_read_only = connection.execute(
        sa.select(
            setting("server_version"),
            sa.func.current_user(),
            sa.func.pg_is_in_recovery(),
            setting("transaction_read_only") == "on",
        )
    ).one()
    hindrance = None
    if is_standby:
        hindrance = "the server is a standby"
    elif is_read_only:
        hindrance = "its transactions are read-only (default_transaction_read_only)"
    elif missing := _missing_rights(connection):
        hindrance = f"it has no {', no '.join(missing)}; yolo_writer has these rights"
    return Access(f"PostgreSQL {version.split()[0]}", migrate.HEAD_REVISION, role, hindrance)


def _missing_rights(connection: sa.Connection) -> list[str]:
    needed = [("INSERT", table.name) for table in tables.metadata.sorted_tables]
    needed += [("UPDATE", table.name) for table in _CHANGED]
    granted = connection.execute(sa.select(*(sa.func.has_table_privilege(name, right) for right, name in needed))).one()
    return [f"{right} on {name}" for (right, name), has in zip(needed, granted, strict=True) if not has]
