"""Profile stores on both databases, for tests in any folder.

A test that asks for `store` or `store_url` runs once on SQLite and once on Postgres. One that is about Postgres alone
says `@pytest.mark.parametrize("store", ["postgres"], indirect=True)`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from postgres_server import GivenServer, PostgresServer

    from yolo_airflow_provider.profiles.store import ProfileStore

BACKENDS = ("sqlite", "postgres")
SESSION_SETTINGS = {
    # Speed, and nothing is lost by it when processes are killed: what they wrote is the kernel's already. Only a
    # machine that loses power would lose it. Commits are still written before they are told.
    "fsync": "off",
    # Plans of queries are asserted; they must not depend on when statistics were last taken.
    "autovacuum": "off",
    # Of what is in memory no more than needed.
    "max_wal_size": "64MB",
}
ROOM_BYTES = 2**30
"""Free memory that a file system in it has to have for the session's server to be there."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | GivenServer]:
    """The session's Postgres: one of its own, or the one that TEST_POSTGRES_URL names."""
    given = os.environ.get("TEST_POSTGRES_URL")
    with _given_server(given) if given else _new_server(SESSION_SETTINGS, _fast_folder()) as server:
        yield server


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Start servers of the test's own, to be stopped, killed or set up at will; they are gone at its end."""
    started: list[PostgresServer] = []

    def start(**settings: str | int) -> PostgresServer:
        started.append(_new_server(settings))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def migrated_database(postgres: PostgresServer | GivenServer) -> str:
    """Name of a database with the newest tables and no rows, to be copied and never connected to."""
    from yolo_airflow_provider.profiles.engine import open_store

    url = postgres.create_database()
    open_store(url).engine.dispose()
    assert url.database is not None
    return url.database


@pytest.fixture(params=BACKENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL, password included, of a place where no store is yet; on SQLite not even the folder."""
    yield from _fresh_url(request, tmp_path, migrated=False)


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProfileStore]:
    """A store of the test's own, without rows."""
    from yolo_airflow_provider.profiles.engine import open_store

    for url in _fresh_url(request, tmp_path, migrated=True):
        store = open_store(url)
        yield store
        store.engine.dispose()


def _fresh_url(request: pytest.FixtureRequest, folder: Path, *, migrated: bool) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'home' / 'profiles.db'}"
        return
    server = request.getfixturevalue("postgres")
    # A test that failed may have left it stopped.
    server.start()
    template = request.getfixturevalue("migrated_database") if migrated else None
    url = server.create_database(template=template)
    yield url.render_as_string(hide_password=False)
    server.start()
    server.drop_database(url.database)


def _given_server(url: str) -> GivenServer:
    import sqlalchemy as sa
    from postgres_server import GivenServer

    return GivenServer(sa.make_url(url).set(drivername="postgresql+psycopg"))


def _fast_folder() -> str:
    # A database is 300 files, for which a disc may need a quarter of a second, in each test.
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > ROOM_BYTES else "/tmp"


def _new_server(settings: Mapping[str, str | int], parent: str = "/tmp") -> PostgresServer:
    from postgres_server import PostgresMissingError, PostgresServer

    try:
        return PostgresServer(settings, parent=parent)
    except PostgresMissingError as error:
        _give_up(str(error))


def _give_up(reason: str) -> NoReturn:
    # A check before a merge that leaves out half of the store's tests would pass for a check.
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; with CI set the tests on Postgres have to run")
    pytest.skip(reason)
