"""Opening a profile store: the engine's settings, and the tables made or upgraded on first use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles import migrate, outage
from yolo_airflow_provider.profiles.errors import StoreError
from yolo_airflow_provider.profiles.store import ProfileStore

BUSY_TIMEOUT_SECONDS = 30
"""How long a writer waits for the one before it on SQLite."""
LOCK_TIMEOUT_SECONDS = 120
"""How long a process waits for another that is upgrading the same file."""
RECYCLE_SECONDS = 240
"""Age at which a connection to PostgreSQL is not used again: many a firewall forgets one that was idle for 350 s."""
POOL_TIMEOUT_SECONDS = 30
"""How long a thread waits for a connection while the other threads of the process use all that it may open."""


def open_store(url: str | sa.URL, *, upgrade: bool = True, patience_seconds: float | None = None) -> ProfileStore:
    """Open the store at a database URL.

    A SQLite file and its folder are made when they are missing. When the store is at the newest revision,
    opening it costs one SELECT.

    Args:
        url: `sqlite:////absolute/file.db` or `postgresql+psycopg://...`. The query of the latter takes what
            `settings.ServerSettings` lists and libpq's parameters.
        upgrade: make or upgrade the tables; False refuses a store that needs it and leaves it as it is.
        patience_seconds: how long opening, and each read and write later, is tried again during an outage; 0 means one
            attempt, None what the URL says (`retry_seconds`), else `outage.PATIENCE_SECONDS`.

    Raises:
        StoreVersionError: the store was written by a newer version of this package.
        StoreOutdatedError: it needs an upgrade and `upgrade` is False.
        StoreUnavailable: the database cannot be reached, and could not for as long as the patience lasted.
        StoreDenied: it does not let this role in.
        StoreError: the URL is none, there is no such database, or it is no profile store.
    """
    engine = make_engine(url)
    is_sqlite = engine.dialect.name == "sqlite"
    if patience_seconds is None:
        patience_seconds = engine.get_execution_options().get("yolo_retry_seconds", outage.PATIENCE_SECONDS)

    def attempt() -> None:
        if is_sqlite:
            _open_sqlite(engine, upgrade=upgrade)
        elif not upgrade:
            migrate.require_current(engine)
        elif not migrate.is_current(engine):
            migrate.upgrade(engine)

    doing = "upgrade" if upgrade and not is_sqlite else "open"
    try:
        outage.patiently(engine, attempt, doing=doing, patience_seconds=patience_seconds)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, OSError):
            raise StoreError(f"cannot make the profile store {migrate.describe(engine)}: {error}") from error
        raise
    return ProfileStore(engine, patience_seconds=patience_seconds)


def make_engine(url: str | sa.URL) -> sa.Engine:
    """An engine with this store's settings; connects to nothing.

    On PostgreSQL the reads and writes that follow each other share a connection, as making one costs more than most of
    them. On SQLite connections are not pooled: opening a file costs next to nothing.

    Raises:
        StoreError: the URL cannot be read, or names a database that is neither SQLite in a file nor
            PostgreSQL.
    """
    parsed = parse_url(url)
    backend = parsed.get_backend_name()
    if backend in ("postgres", "postgresql"):
        return _postgres_engine(parsed)
    if backend != "sqlite":
        raise StoreError(f"the profile store runs on sqlite or postgresql, not on {backend!r}; change its URL")
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise StoreError(
            f"the profile store needs a file of its own, not {parsed.database or ':memory:'!r}; "
            "write sqlite:////absolute/file.db"
        )
    engine = sa.create_engine(parsed, poolclass=sa.NullPool, hide_parameters=True)
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def parse_url(url: str | sa.URL, *, source: str = "URL of the profile store") -> sa.URL:
    """Read a database URL.

    Args:
        url: the text, or a URL, which is returned as it is.
        source: where the text was written, for the error.

    Raises:
        StoreError: it is no URL.
    """
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # The text is not repeated, and neither is the cause: it may hold a password.
        raise StoreError(
            f"the {source} cannot be read as a URL; it looks like sqlite:////absolute/file.db or "
            "postgresql+psycopg://user:password@host/database"
        ) from None


def _postgres_engine(url: sa.URL) -> sa.Engine:
    # The driver is always written out: SQLAlchemy 2.0 and 2.1 differ in what a bare "postgresql" means.
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername != "postgresql+psycopg":
        raise StoreError(f"the profile store needs the driver psycopg (3), not {url.drivername!r}; change its URL")
    # pydantic is imported only where there are settings to check.
    from yolo_airflow_provider.profiles.settings import split

    address, server = split(url)
    try:
        engine = sa.create_engine(
            address,
            connect_args=server.connect_arguments(),
            pool_size=1,
            max_overflow=server.max_overflow,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            pool_recycle=RECYCLE_SECONDS,
            # Costs a query, and no column here is one.
            use_native_hstore=False,
            hide_parameters=True,
            execution_options={
                "yolo_retry_seconds": server.retry_seconds,
                "yolo_statement_timeout_seconds": server.statement_timeout,
            },
        )
    except ModuleNotFoundError as error:
        raise StoreError(
            f"the profile store is on PostgreSQL, and {error.name} is not installed; "
            "pip install 'yolo-airflow-provider[postgres]'"
        ) from error
    sa.event.listen(engine, "connect", _remember_process)
    sa.event.listen(engine, "checkout", _refuse_of_other_process)
    return engine


def _remember_process(connection: Any, record: sa.pool.ConnectionPoolEntry) -> None:
    record.info["process"] = os.getpid()


def _refuse_of_other_process(
    connection: Any, record: sa.pool.ConnectionPoolEntry, proxy: sa.pool.PoolProxiedConnection
) -> None:
    # A forked process has a copy of the pool, but the server at the other end of the socket is its parent's.
    if record.info["process"] != os.getpid():
        record.dbapi_connection = proxy.dbapi_connection = None  # type: ignore[misc]
        raise sa.exc.DisconnectionError("the connection is another process's")


def _open_sqlite(engine: sa.Engine, *, upgrade: bool) -> None:
    file = Path(str(engine.url.database))
    if not upgrade:
        if not file.exists():
            raise StoreError(f"there is no profile store at {file}; it is made on its first use")
        migrate.require_current(engine)
        return
    # Connecting would make an empty file, so the file is looked for first.
    if file.exists() and migrate.is_current(engine):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_name(f"{file.name}.lock")):
        if not migrate.is_current(engine):
            _turn_on_wal(engine)
            migrate.upgrade(engine)


def _turn_on_wal(engine: sa.Engine) -> None:
    # WAL lets readers go on while one writes. The file remembers it, so it is set once, under the lock: two
    # connections that switch at the same time get "database is locked" without waiting.
    statement = "PRAGMA journal_mode = WAL"
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(statement)
    except sqlite3.Error as error:
        raise sa.exc.OperationalError(statement, None, error) from error
    finally:
        connection.close()


def _set_up_sqlite(connection: Any, record: object) -> None:
    # None: the driver begins no transaction of its own accord; _begin_sqlite does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
    cursor.execute("PRAGMA foreign_keys = ON")
    # Enough with WAL: a power cut may cost the last rows, never the file.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes the write lock at once: a transaction that reads first and then wants to write fails with
    # "database is locked", timeout or not, when another has written in between.
    is_write = connection.get_execution_options().get("yolo_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes. The kernel drops it with the process; the empty file stays."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"another process has held {path} for {LOCK_TIMEOUT_SECONDS} s while it upgrades the "
                        "profile store; see whether it hangs"
                    ) from None
                time.sleep(0.05)
        yield
