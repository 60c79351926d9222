"""What an error of the database means: an outage that passes, a right that is missing, or something to repair.

PostgreSQL tells by a code (SQLSTATE) once a session is there. Before that, psycopg knows only the server's text, so a
few texts that waiting does not cure are known here in English; any other failure to connect is taken for an outage.
SQLite has result codes.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

import sqlalchemy as sa

from yolo_airflow_provider.profiles import migrate
from yolo_airflow_provider.profiles.errors import StoreDenied, StoreError, StoreUnavailable


@dataclass(frozen=True)
class _Meaning:
    """What kind of trouble it is and what to do, with {role}, {database} and {timeout} to be filled in."""

    kind: type[StoreError]
    advice: str = ""


_OUTAGE = _Meaning(StoreUnavailable)
_PASSWORD = _Meaning(StoreDenied, "check login and password of role {role}, and that it may log in")
_NO_ENTRY = _Meaning(
    StoreDenied, "pg_hba.conf of the server does not let role {role} in from here, or only with another sslmode"
)
_NO_DATABASE = _Meaning(
    StoreError, 'make it with `CREATE DATABASE "{database}"` on that server, then run `yolo-airflow db upgrade`'
)
_NO_CONNECT = _Meaning(StoreDenied, 'run `GRANT CONNECT ON DATABASE "{database}" TO {role}`')
_NO_TABLE = _Meaning(StoreError, "run `yolo-airflow db upgrade`")
_ROLES = "`yolo-airflow db roles` makes that role and gives it its rights"
_NO_RIGHT = {
    "write to": _Meaning(StoreDenied, f"run `GRANT yolo_writer TO {{role}}`; {_ROLES}"),
    "upgrade": _Meaning(StoreDenied, "upgrade as the role that owns the tables, or that may make them in the database"),
}
_NO_RIGHT_TO_READ = _Meaning(
    StoreDenied, f"run `GRANT yolo_writer TO {{role}}`, or of yolo_reader where the views are enough; {_ROLES}"
)
_READ_ONLY = _Meaning(
    StoreDenied,
    "the server is no standby, so the transactions of role {role} are read-only by setting: see "
    "default_transaction_read_only of the role, the database and the server; some hosted servers set it when their "
    "storage is full",
)
_STANDBY = _Meaning(
    StoreUnavailable,
    "the server is a standby: either a failover is not over yet, or the address is that of a read replica; name the "
    "primary, or all hosts and target_session_attrs=read-write",
)
_TIMEOUT = _Meaning(
    StoreError,
    "the connection's statement_timeout is {timeout}; where the statement needs longer, raise it (seconds; 0 leaves it "
    "to the server)",
)
_NO_TLS = _Meaning(
    StoreError, "sslmode asks for TLS; turn TLS on at the server, or set sslmode to disable where the network is safe"
)
_CERTIFICATE = _Meaning(
    StoreError,
    "see sslmode, sslrootcert (the file of the authority that signed the server's certificate), sslcert and sslkey; "
    "with verify-full the host has to be a name in that certificate",
)
_PARAMETER = _Meaning(StoreError, "correct it in the connection's extra, or in the query of the URL")
_POOLER = _Meaning(
    StoreError,
    "a pooler such as PgBouncer does not pass the timeouts on: add `options` to its ignore_startup_parameters, or set "
    "statement_timeout, lock_timeout and idle_in_transaction_session_timeout to 0",
)

# Of class 08 (connection), 53 (resources) and 57P (the server goes down or comes up) all pass. Also here: sessions that
# the server ended for their idleness, serialization failures, deadlocks, and locks that were not got in time.
_OUTAGE_STATES = re.compile("08...|53[0-3]..|57P0[1235]|25P03|4000[13]|40P01|55P03")
_STATES = {
    "28000": _PASSWORD,
    "28P01": _PASSWORD,
    "3D000": _NO_DATABASE,
    "42P01": _NO_TABLE,
    "42703": _NO_TABLE,
    "57014": _TIMEOUT,
}
_INSUFFICIENT_PRIVILEGE = "42501"
_READ_ONLY_TRANSACTION = "25006"

# The first that matches. Connecting to several addresses reports them all, so a text may stand anywhere.
_TEXTS: tuple[tuple[re.Pattern[str], _Meaning], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (r"no pg_hba\.conf entry|pg_hba\.conf rejects", _NO_ENTRY),
        (r"authentication failed|no password supplied|is not permitted to log in|no such user", _PASSWORD),
        (r"role \".*\" does not exist|user \".*\" does not exist", _PASSWORD),
        (r"database \".*\" does not exist|no such database", _NO_DATABASE),
        (r"permission denied for database", _NO_CONNECT),
        (r"does not support SSL", _NO_TLS),
        # A connection that breaks is an "SSL error" too, so these are only what a handshake complains about.
        (r"certificate|private key file|SSL error: (tlsv|sslv3|unsupported|wrong version|no protocols)", _CERTIFICATE),
        (r"unsupported startup parameter", _POOLER),
        (r"unrecognized configuration parameter|invalid value for parameter", _PARAMETER),
        (r"invalid \S+ value|invalid (integer )?value|invalid port number|invalid connection option", _PARAMETER),
    )
)


def explain(error: sa.exc.DBAPIError | sa.exc.TimeoutError, engine: sa.Engine, doing: str) -> StoreError:
    """The store's error for the driver's.

    Asks the server when it refuses a write: a standby during a failover answers as a read-only role does.

    Args:
        error: what SQLAlchemy raised.
        engine: of the database.
        doing: what failed, as a verb: "read", "write to", "open", "upgrade".

    Returns:
        A `StoreUnavailable` for an outage, a `StoreDenied` for a right that is missing, else a plain `StoreError`.
    """
    if isinstance(error, sa.exc.TimeoutError):
        said = f"all connections of this process were in use for {engine.pool.timeout():g} s"  # type: ignore[attr-defined]
        meaning = _Meaning(StoreUnavailable, "raise max_overflow of the connection, or use fewer threads")
    elif isinstance(error.orig, sqlite3.Error):
        said, meaning = str(error.orig), _meaning_on_sqlite(error.orig)
    else:
        said, meaning = _said(error.orig), _meaning_on_postgres(error, engine, doing)
    url = engine.url
    timeout = engine.get_execution_options().get("yolo_statement_timeout_seconds")
    advice = meaning.advice.format(
        role=f'"{url.username}"' if url.username else "of this connection",
        database=url.database or url.username,
        timeout="not set" if not timeout else f"{timeout:g} s",
    )
    return meaning.kind(
        f"cannot {doing} the profile store {migrate.describe(engine)}: {said}{'; ' if advice else ''}{advice}"
    )


def _said(error: BaseException | None) -> str:
    """The server's main line where there is one; the others quote SQL and values. libpq's hints begin with a tab."""
    main = getattr(getattr(error, "diag", None), "message_primary", None) or error
    return " ".join(" ".join(line for line in str(main).splitlines() if not line.startswith("\t")).split())


def _meaning_on_sqlite(error: sqlite3.Error) -> _Meaning:
    # Errors that Python's module finds by itself have no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _Meaning(StoreUnavailable, "another process holds the file's lock")
    if code == sqlite3.SQLITE_FULL:
        return _Meaning(StoreUnavailable, "make room on the disk")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return _Meaning(StoreDenied, "this user needs to write to the file and its folder")
    if re.search("no such (table|column)|has no column", str(error)):
        return _NO_TABLE
    return _Meaning(StoreError)


def _meaning_on_postgres(error: sa.exc.DBAPIError, engine: sa.Engine, doing: str) -> _Meaning:
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return _meaning_of_text(error)
    if state == _READ_ONLY_TRANSACTION:
        return _meaning_of_read_only(engine)
    if state == _INSUFFICIENT_PRIVILEGE:
        return _NO_RIGHT.get(doing, _NO_RIGHT_TO_READ)
    if _OUTAGE_STATES.fullmatch(state):
        return _OUTAGE
    return _STATES.get(state, _Meaning(StoreError))


def _meaning_of_text(error: sa.exc.DBAPIError) -> _Meaning:
    said = str(error.orig)
    for pattern, meaning in _TEXTS:
        if pattern.search(said):
            return meaning
    if error.connection_invalidated or isinstance(error, sa.exc.OperationalError):
        return _OUTAGE
    return _Meaning(StoreError)


def _meaning_of_read_only(engine: sa.Engine) -> _Meaning:
    try:
        with engine.connect() as connection:
            is_standby = connection.execute(sa.select(sa.func.pg_is_in_recovery())).scalar()
    except (sa.exc.DBAPIError, sa.exc.TimeoutError):
        return _OUTAGE
    if not is_standby:
        return _READ_ONLY
    # The next attempt connects anew: the name may lead to the primary by now.
    engine.dispose()
    return _STANDBY
