"""Which version a store is, and how it becomes the newest: Alembic, imported only when it has work to do.

Opening a store asks for its revision with one SELECT. Importing Alembic for that would cost every task a
tenth of a second or more, so the revisions that this package knows stand here as constants; a test compares
them to the scripts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from yolo_airflow_provider.profiles.errors import StoreError, StoreOutdatedError, StoreVersionError

KNOWN_REVISIONS = ("0001", "0002")
"""Every revision of the store that this package can read or upgrade, oldest first."""
HEAD_REVISION = KNOWN_REVISIONS[-1]
"""The revision that this package writes."""
VERSION_TABLE = "yolo_profiles_version"
"""Alembic's table, under a name of our own: Airflow's metadata database has an `alembic_version`."""

# Any number does for an advisory lock, as long as it is ours alone: the ASCII codes of "yolo".
_LOCK_NUMBER = 0x796F6C6F


def scripts_folder() -> Path:
    """The Alembic scripts: inside the installed package, else beside it in a checkout.

    Raises:
        StoreError: neither is there.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_profiles_db", package.parent / "profiles_db"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError(
        f"the migrations of the profile store are missing from {package / '_profiles_db'}; "
        "reinstall yolo-airflow-provider"
    )


def current_revision(connection: sa.Connection) -> str | None:
    """Revision of the store, None for an empty one.

    Raises:
        StoreError: the database holds tables by our names that this package did not make.
    """
    inspector = sa.inspect(connection)
    if inspector.has_table(VERSION_TABLE):
        version = sa.table(VERSION_TABLE, sa.column("version_num", sa.String()))
        return connection.execute(sa.select(version.c.version_num)).scalar()
    from yolo_airflow_provider.profiles.tables import metadata

    strangers = sorted(set(metadata.tables) & set(inspector.get_table_names()))
    if strangers:
        raise StoreError(
            f"{describe(connection.engine)} has tables named {', '.join(strangers)} but no {VERSION_TABLE}: "
            "it is not a profile store; give the store a database of its own"
        )
    return None


def is_current(engine: sa.Engine) -> bool:
    """Whether the store is at `HEAD_REVISION`.

    Raises:
        StoreVersionError: it is newer than this package.
        StoreError: it is no profile store.
    """
    with engine.connect() as connection:
        return _gate(connection) == HEAD_REVISION


def require_current(engine: sa.Engine) -> None:
    """Refuse a store that is not at `HEAD_REVISION`.

    Raises:
        StoreOutdatedError: it is empty or older.
        StoreVersionError: it is newer than this package.
        StoreError: it is no profile store.
    """
    with engine.connect() as connection:
        revision = _gate(connection)
    if revision != HEAD_REVISION:
        state = "has no tables yet" if revision is None else f"is at revision {revision}"
        raise StoreOutdatedError(
            f"the profile store {describe(engine)} {state}, and this package needs {HEAD_REVISION}; "
            "run `yolo-airflow db upgrade`"
        )


def upgrade(engine: sa.Engine) -> None:
    """Bring the store to `HEAD_REVISION` in one transaction; does nothing when it is there already.

    Callers on SQLite hold a lock of their own (`engine.open_store` does); on PostgreSQL an advisory lock
    makes processes that start together wait for the first.

    Raises:
        StoreVersionError: it is newer than this package; nothing is changed.
        StoreError: it is no profile store.
    """
    with engine.connect().execution_options(yolo_write=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
        if _gate(connection) == HEAD_REVISION:
            return
        with _quiet_alembic():
            _run_scripts(connection)


def _run_scripts(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    # Without an ini file Alembic configures nobody's logging.
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextlib.contextmanager
def _quiet_alembic() -> Iterator[None]:
    """Keep Alembic's progress out of a task's log, without changing a level or a handler of anybody's."""

    def is_warning(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    loggers = [logging.getLogger(f"alembic.runtime.{name}") for name in ("migration", "plugins")]
    for logger in loggers:
        logger.addFilter(is_warning)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_warning)


def describe(engine: sa.Engine) -> str:
    """Where the store is: a file's path, or a URL without its password."""
    url = engine.url
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def _gate(connection: sa.Connection) -> str | None:
    revision = current_revision(connection)
    if revision is not None and revision not in KNOWN_REVISIONS:
        raise StoreVersionError(
            f"the profile store {describe(connection.engine)} is at revision {revision}, written by a newer "
            f"version of yolo-airflow-provider; the newest that this one knows is {HEAD_REVISION}. "
            "Nothing was changed. Upgrade the package (pip install --upgrade yolo-airflow-provider), "
            "or name another store"
        )
    return revision
