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
from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles.errors import StoreDenied, StoreError, StoreOutdatedError, StoreVersionError

KNOWN_REVISIONS = ("0001", "0002", "0003", "0004", "0005")
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
    makes processes that start together wait for the first. Where the roles of `create_roles` are, they get their
    rights on what is new.

    Raises:
        StoreVersionError: it is newer than this package; nothing is changed.
        StoreError: it is no profile store.
    """
    with _changing(engine) as connection:
        if _gate(connection) != HEAD_REVISION:
            with _quiet_alembic():
                _run_scripts(connection)
            if _has_roles(connection):
                _run_roles(connection)


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Take the store back to an older revision in one transaction. What only newer ones hold is lost,
    and rights on views that are made anew: `create_roles` gives them again after the next upgrade.

    Args:
        engine: of the store.
        revision: one of `KNOWN_REVISIONS`, not newer than the store's.

    Raises:
        StoreError: there is no such revision, or the store is older; nothing is changed.
        StoreVersionError: the store is newer than this package.
    """
    if revision not in KNOWN_REVISIONS:
        raise StoreError(f"there is no revision {revision!r}; expected one of {', '.join(KNOWN_REVISIONS)}")
    with _changing(engine) as connection:
        current = _gate(connection)
        if current is None or current < revision:
            state = "has no tables" if current is None else f"is at revision {current}"
            raise StoreError(f"the profile store {describe(engine)} {state}, which is below {revision}")
        with _quiet_alembic():
            _run_scripts(connection, down_to=revision)


def check(engine: sa.Engine) -> list[str]:
    """How the database differs from what this package expects, a line each; none when they agree.

    Alembic's autogenerate compares tables, columns, types, indexes and keys; the named constraints and the views, at
    which it does not look, are compared here.

    Raises:
        StoreOutdatedError: the store is empty or older.
        StoreVersionError: it is newer than this package.
        StoreError: it is no profile store.
    """
    require_current(engine)
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from yolo_airflow_provider.profiles.tables import metadata
    from yolo_airflow_provider.profiles.views import VIEWS

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        inspector = sa.inspect(connection)
        found = [_difference(entry) for entry in compare_metadata(context, metadata)]
        present = set(inspector.get_table_names())
        for name, table in metadata.tables.items():
            if name in present:
                expected = {str(c.name) for c in table.constraints if isinstance(c, sa.CheckConstraint)}
                there = {str(entry["name"]) for entry in inspector.get_check_constraints(name)}
                found += [f"missing constraint {constraint} of {name}" for constraint in sorted(expected - there)]
                found += [f"unknown constraint {constraint} of {name}" for constraint in sorted(there - expected)]
        present = set(inspector.get_view_names())
        for name, view in VIEWS.items():
            columns = {str(column["name"]) for column in inspector.get_columns(name)} if name in present else set()
            if columns != (expected := {column.name for column in view.c}):
                found.append(
                    f"view {name} lacks {', '.join(sorted(expected - columns)) or 'nothing'}"
                    f" and has beyond it {', '.join(sorted(columns - expected)) or 'nothing'}"
                )
    return found


def create_roles(engine: sa.Engine) -> None:
    """Create the group roles `yolo_writer` and `yolo_reader` where they are missing, and give them their rights.

    Raises:
        StoreError: the store is on SQLite, where a file's permissions are all there is.
        StoreOutdatedError: the store is empty or older.
        StoreDenied: this role does not own the tables.
    """
    if engine.dialect.name != "postgresql":
        raise StoreError(f"{describe(engine)} is a SQLite file, which has no roles; its file permissions decide")
    require_current(engine)
    with _changing(engine) as connection:
        owns = sa.text("SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('measurement')")
        if not connection.execute(owns).scalar_one():
            # The server only warns of a right that somebody gives who has none to give.
            raise StoreDenied(
                f"cannot make the roles of the profile store {describe(engine)}: its tables are another role's, and"
                " this takes the role that owns the tables"
            )
        _run_roles(connection)


def _difference(entry: Any) -> str:
    """One entry of Alembic's comparison; changes of a column come as a list of them."""
    if isinstance(entry, list):
        return "; ".join(_difference(one) for one in entry)
    words = {"add": "missing", "remove": "unknown", "modify": "different"}
    what, _, kind = str(entry[0]).partition("_")
    named = next((item for item in reversed(entry) if getattr(item, "name", None)), entry[-1])
    if what == "modify":
        return f"different {kind} of {entry[2]}.{entry[3]}: {entry[-2]!r} in the database, expected {entry[-1]!r}"
    table = getattr(getattr(named, "table", None), "name", None) or (entry[2] if len(entry) > 3 else None)
    return f"{words.get(what, what)} {kind} {named.name}{f' of {table}' if table else ''}"


def _has_roles(connection: sa.Connection) -> bool:
    if connection.dialect.name != "postgresql":
        return False
    roles = sa.table("pg_roles", sa.column("rolname"))
    named = sa.select(sa.func.count()).select_from(roles).where(roles.c.rolname.in_(["yolo_writer", "yolo_reader"]))
    return connection.execute(named).scalar_one() == 2


def _run_roles(connection: sa.Connection) -> None:
    # Without parameters, so that a percent sign is one.
    script = (scripts_folder() / "roles.sql").read_text(encoding="utf-8")
    connection.execution_options(no_parameters=True).exec_driver_sql(script)


@contextlib.contextmanager
def _changing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction that changes tables; on PostgreSQL one after the other, whoever else is at it."""
    with engine.connect().execution_options(yolo_write=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # Filling a summary from a long history takes longer than a task's statements may.
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
            connection.execute(sa.text("SET LOCAL lock_timeout = 0"))
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
        yield connection


def _run_scripts(connection: sa.Connection, *, down_to: str | None = None) -> None:
    from alembic import command
    from alembic.config import Config

    # Without an ini file Alembic configures nobody's logging.
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    if down_to is None:
        command.upgrade(config, "head")
    else:
        command.downgrade(config, down_to)


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
