"""How a connection to PostgreSQL behaves: the settings that people may change, their defaults and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yolo_airflow_provider.profiles.errors import StoreError
from yolo_airflow_provider.profiles.outage import PATIENCE_SECONDS

# Where the server is stays in the URL, which messages show. A password in the query is moved out of it.
_ADDRESS = ("host", "port", "service")
_DAY_SECONDS = 86_400
# Milliseconds; each of them ends a session that hangs, whether for a bug here or a table that somebody locked.
_SERVER_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")

ServerTimeout = Annotated[
    float,
    Field(
        ge=0,
        le=_DAY_SECONDS,
        allow_inf_nan=False,
        description=f"a number of seconds, at most {_DAY_SECONDS}, or 0 for what the server has set",
    ),
]


def _whole(least: int, most: int, what: str) -> Any:
    return Field(ge=least, le=most, description=f"a whole number of {what} from {least} to {most}")


class ServerSettings(BaseModel):
    """Settings of a connection to PostgreSQL, all times in seconds.

    They stand in the query of the store's URL or in the extra of the Airflow connection. What is not listed here is a
    parameter of libpq and goes there as it is.

    Attributes:
        retry_seconds: how long a read or a write is tried again during an outage.
        statement_timeout: after which the server ends a statement.
        lock_timeout: after which the server ends a statement that waits for somebody's lock.
        idle_in_transaction_session_timeout: after which the server ends a session that does nothing and holds locks.
        max_overflow: connections beside the first that threads of one process may open at the same time.
        options: server settings as libpq's `-c name=value`; they win over the ones above.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    retry_seconds: Annotated[
        float,
        Field(ge=0, le=_DAY_SECONDS, allow_inf_nan=False, description=f"a number of seconds from 0 to {_DAY_SECONDS}"),
    ] = PATIENCE_SECONDS
    statement_timeout: ServerTimeout = 30.0
    lock_timeout: ServerTimeout = 10.0
    idle_in_transaction_session_timeout: ServerTimeout = 60.0
    max_overflow: Annotated[int, _whole(0, 1000, "connections")] = 9
    options: Annotated[str, Field(description="server settings such as -c search_path=profiles")] = ""
    application_name: Annotated[str, Field(description="a name")] = "yolo-airflow-provider"
    connect_timeout: Annotated[int, _whole(1, 3600, "seconds")] = 10
    keepalives_idle: Annotated[int, _whole(0, 7200, "seconds")] = 30
    keepalives_interval: Annotated[int, _whole(0, 7200, "seconds")] = 10
    keepalives_count: Annotated[int, _whole(0, 100, "probes")] = 3
    tcp_user_timeout: Annotated[int, _whole(0, 3_600_000, "milliseconds")] = 30_000
    sslmode: Annotated[
        Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None,
        Field(description="disable, allow, prefer, require, verify-ca or verify-full"),
    ] = None

    @classmethod
    def read(cls, values: Mapping[str, Any], *, source: str) -> Self:
        """Check what somebody wrote.

        Args:
            values: by name.
            source: where they were written, for the error.

        Raises:
            StoreError: a value is none that the setting takes.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            field = cls.model_fields[name]
            raise StoreError(f"{source}: {name} is {values[name]!r}; give {field.description}") from None

    def connect_arguments(self) -> dict[str, Any]:
        """What the driver is given, beside the address, the user and the password of the URL."""
        ours = {"retry_seconds", "max_overflow", "options", *_SERVER_TIMEOUTS}
        arguments = self.model_dump(exclude=ours, exclude_none=True)
        timeouts = {name: round(getattr(self, name) * 1000) for name in _SERVER_TIMEOUTS}
        # Python's years end at 9999, also where the server's clock is ahead of UTC.
        options = ["-c timezone=UTC"]
        options += [f"-c {name}={milliseconds}" for name, milliseconds in timeouts.items() if milliseconds]
        if self.options:
            options.append(self.options)
        arguments["options"] = " ".join(options)
        # Prepared statements outlive their client in PgBouncer, and a store's statements are too few to gain by them.
        return arguments | {"prepare_threshold": None}


def split(url: sa.URL) -> tuple[sa.URL, ServerSettings]:
    """A PostgreSQL URL as the address that it names and the settings in its query.

    Raises:
        StoreError: a setting has a value that it does not take.
    """
    source = "the URL of the profile store"
    written = {name: value for name, value in url.query.items() if name not in _ADDRESS}
    for name, value in written.items():
        if not isinstance(value, str):
            raise StoreError(f"{source} gives {name} more than once; give it once")
    return url.difference_update_query(written), ServerSettings.read(written, source=source)
