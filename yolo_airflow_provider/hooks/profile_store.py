"""The Airflow connection of the profile store, and the embedded store for when there is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    import sqlalchemy as sa
    from airflow.sdk import Connection

    from yolo_airflow_provider.profiles.store import ProfileStore

# What of the connection's extra goes into the URL: settings of ours and parameters of libpq. Anything else stays out.
_FROM_EXTRA = (
    "application_name",
    "connect_timeout",
    "idle_in_transaction_session_timeout",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "lock_timeout",
    "max_overflow",
    "options",
    "retry_seconds",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement_timeout",
    "target_session_attrs",
    "tcp_user_timeout",
)


class ProfileStoreHook(BaseHook):
    """Opens the profile store that an Airflow connection names.

    A connection of type `yolo_profiles` or `postgres` is a PostgreSQL database, reached by psycopg 3. Its extra
    may hold libpq's SSL parameters, `connect_timeout` and the like, and the settings that
    `profiles.settings.ServerSettings` describes: `statement_timeout`, `retry_seconds`, ... (seconds). A connection
    of type `sqlite` is a file, by its absolute path as the host. When the default connection is not defined, the
    store is the one that `[yolo] profile_store` in Airflow's configuration names by URL, else the file
    `yolo_profiles.db` in AIRFLOW_HOME.

    A SQLite store is made and upgraded on its first use; a PostgreSQL store by `yolo-airflow db upgrade`,
    as the tasks' user of it may not be allowed to.

    Args:
        profile_store_conn_id: id of the connection.
    """

    conn_name_attr = "profile_store_conn_id"
    default_conn_name = "yolo_profiles_default"
    conn_type = "yolo_profiles"
    hook_name = "YOLO profile store"

    def __init__(self, profile_store_conn_id: str = default_conn_name, **kwargs: Any):
        super().__init__(**kwargs)
        self.profile_store_conn_id = profile_store_conn_id
        self._store: ProfileStore | None = None

    def get_store(self, patience_seconds: float | None = None) -> ProfileStore:
        """The store, opened on the first call.

        Args:
            patience_seconds: how long opening it, and each read and write later, is tried again during an outage of
                the database; 0 means one attempt, None what the connection says (`retry_seconds`), else 120. Of the
                first call, which opens it.

        Raises:
            StoreUnavailable: the database could not be reached for that long.
            StoreDenied: it does not let the connection's login in.
            StoreError: the connection is incomplete, or the store cannot be opened.
            StoreVersionError: a newer version of this package wrote the store.
            StoreOutdatedError: the store is on PostgreSQL and was not upgraded.
            AirflowNotFoundException: a connection other than the default one was named and is not defined.
        """
        if self._store is None:
            from yolo_airflow_provider.profiles.engine import open_store

            url = self.get_url()
            self._store = open_store(url, upgrade=_is_sqlite(url), patience_seconds=patience_seconds)
        return self._store

    def get_conn(self) -> ProfileStore:
        """The same as `get_store`, under the name that Airflow's hooks share."""
        return self.get_store()

    def get_url(self) -> sa.URL:
        """Where the store is. Printing the URL hides its password.

        Raises:
            StoreError: the connection or the configuration option does not say which database.
            AirflowNotFoundException: a connection other than the default one was named and is not defined.
        """
        from airflow.sdk.exceptions import AirflowNotFoundException

        try:
            connection = self.get_connection(self.profile_store_conn_id)
        except AirflowNotFoundException:
            # A name that someone chose is meant: falling back would write this task's facts where nobody
            # looks.
            if self.profile_store_conn_id != self.default_conn_name:
                raise
            return _embedded_url()
        return _connection_url(connection)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the store can be opened, and a sentence for the connection form; one attempt."""
        from airflow.sdk.exceptions import AirflowException

        from yolo_airflow_provider.profiles.access import access_of
        from yolo_airflow_provider.profiles.engine import open_store
        from yolo_airflow_provider.profiles.errors import StoreError

        try:
            url = self.get_url()
            store = open_store(url, upgrade=_is_sqlite(url), patience_seconds=0)
            return True, f"profile store {url.database}: {access_of(store)}"
        except (AirflowException, StoreError) as error:
            return False, str(error)


def _is_sqlite(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _embedded_url() -> sa.URL:
    import sqlalchemy as sa
    from airflow.sdk.configuration import conf

    from yolo_airflow_provider.profiles.engine import parse_url
    from yolo_airflow_provider.profiles.errors import StoreError

    configured = conf.get("yolo", "profile_store", fallback=None)
    if configured:
        url = parse_url(configured, source="option [yolo] profile_store")
        if _is_sqlite(url) and not Path(url.database or "").is_absolute():
            raise StoreError(
                f"the option [yolo] profile_store names the file {url.database!r}; give its absolute path "
                "(sqlite:////folder/file.db), the same file for every process"
            )
        return url
    home = os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    return sa.URL.create("sqlite", database=str(Path(home).expanduser().absolute() / "yolo_profiles.db"))


def _connection_url(connection: Connection) -> sa.URL:
    import sqlalchemy as sa

    from yolo_airflow_provider.profiles.errors import StoreError

    name = f"connection {connection.conn_id!r}"
    if connection.conn_type == "sqlite":
        # sqlite:////folder/file.db in an environment variable arrives with the path as the schema.
        path = Path(connection.host or connection.schema or "").expanduser()
        if not path.is_absolute():
            raise StoreError(
                f"{name}: host is {str(path)!r}; give the absolute path of the SQLite file, "
                "the same file for every process"
            )
        return sa.URL.create("sqlite", database=str(path))
    if connection.conn_type not in (ProfileStoreHook.conn_type, "postgres"):
        raise StoreError(
            f"{name} is of type {connection.conn_type!r}; a profile store is a connection of type "
            f"{ProfileStoreHook.conn_type}, postgres or sqlite"
        )
    for field, value in (("host", connection.host), ("database (schema)", connection.schema)):
        if not value:
            raise StoreError(f"{name}: the field {field} is empty; fill it in")
    return sa.URL.create(
        "postgresql+psycopg",
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host,
        port=connection.port,
        database=connection.schema,
        query=_query(connection),
    )


def _query(connection: Connection) -> dict[str, str]:
    from yolo_airflow_provider.profiles.errors import StoreError
    from yolo_airflow_provider.profiles.settings import ServerSettings

    source = f"connection {connection.conn_id!r}"
    extra = connection.extra_dejson
    if not isinstance(extra, dict):
        raise StoreError(f"{source}: extra is no JSON object; write one, or leave it empty")
    given = {name: extra[name] for name in _FROM_EXTRA if extra.get(name) not in (None, "")}
    ServerSettings.read(given, source=source)
    return {name: str(value) for name, value in given.items()}
