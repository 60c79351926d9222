"""A Postgres of the tests' own in a temporary folder, or one that somebody gave, with databases made on demand.

Imports no pytest: benchmarks start a server of their own with it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
import sqlalchemy as sa
from psycopg import sql

SUPERUSER = "postgres"
PATIENCE_SECONDS = 60
"""How long the server may take to start, which includes a recovery, or to end."""
SETTINGS: dict[str, str | int] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 120,
    # Elsewhere a killed server would leave its shared memory behind in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    # Far from UTC, so that nothing is right because the server happens to be there.
    "timezone": "Asia/Kathmandu",
}
"""What every server starts with; see `PostgresServer`."""

# Ports from 32,768 up are those of outgoing connections on Linux: one of them could be taken while the server is
# stopped, and a client that tries it again and again would at some time be connected to itself.
_PORTS = range(20_000, 32_000)

# Lives on when the tests are killed, however they are: its input ends with them. Shared memory of System V is the
# kernel's, and a server that was killed and not started again has left it; its number is in the lock file.
_GUARD = """
cat > /dev/null
cd "$2"
"$1/pg_ctl" stop --silent --mode immediate --pgdata data
[ -f data/postmaster.pid ] && ipcrm -m "$(sed -n 7p data/postmaster.pid | awk '{print $2}')"
rm -rf "$2"
"""


class PostgresMissingError(RuntimeError):
    """No server is installed here; the message says what to install."""


class Databases:
    """Databases on a server, made on demand and dropped at the end.

    Args:
        admin_url: a database of the server with a superuser, or a user who may create databases and roles.
    """

    def __init__(self, admin_url: sa.URL):
        self.admin_url = admin_url
        self._databases: set[str] = set()
        self._users: set[str] = set()

    def url(self, database: str, *, user: str | None = None, password: str | None = None) -> sa.URL:
        """URL of a database, by default as the user who made it."""
        url = self.admin_url.set(database=database)
        if user is None:
            return url
        return sa.URL.create(url.drivername, user, password, url.host, url.port, database, url.query)

    def create_database(
        self, name: str | None = None, template: str | None = None, *, owner: str | None = None
    ) -> sa.URL:
        """Make a database, empty or as a copy.

        Args:
            name: its name; a new one when it is not given.
            template: the database that is copied; nobody may be connected to it.
            owner: whose it is; by default the user's of `admin_url`.
        """
        name = name or f"yolo_test_{uuid.uuid4().hex[:12]}"
        command = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template:
            command += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        if owner:
            command += sql.SQL(" OWNER {}").format(sql.Identifier(owner))
        self.execute(command)
        self._databases.add(name)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end all connections to it; one that is not there is no error."""
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._databases.discard(name)

    def create_user(self, name: str, password: str) -> None:
        """Make a user who may log in and nothing else. It is the whole server's: choose a name of the test's own."""
        command = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password))
        self.execute(command)
        self._users.add(name)

    def drop_user(self, name: str) -> None:
        """Drop a user, who owns nothing any more: drop its databases first."""
        self.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))
        self._users.discard(name)

    def execute(self, command: sql.SQL | sql.Composed, database: str | None = None) -> None:
        """Run one command as the user of `admin_url`, outside of a transaction.

        Args:
            command: the command.
            database: where; by default in the database of `admin_url`.
        """
        url = self.url(database) if database else self.admin_url
        parameters = url.translate_connect_args(username="user", database="dbname") | dict(url.query)
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(command)

    def close(self) -> None:
        """Drop what was made."""
        for name in sorted(self._databases):
            self.drop_database(name)
        for name in sorted(self._users):
            self.drop_user(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GivenServer(Databases):
    """A server that somebody else runs: it can be used, not stopped. Tests that stop one start their own."""

    def start(self) -> None:
        """Nothing to do: it runs."""


class PostgresServer(Databases):
    """A server of our own, run by an unprivileged account and gone at the end, whatever that is.

    It listens on 127.0.0.1, where passwords are checked (SCRAM), and on a socket in its folder, where they are not;
    only we and root can open the folder. The port and the folder stay the same over restarts.

    Args:
        settings: server settings that replace or add to `SETTINGS`.
        parent: where its folder is made. Not TMPDIR: the account may not get there, and a socket's path has to be
            shorter than 108 bytes.

    Raises:
        PostgresMissingError: no server is installed.
        subprocess.CalledProcessError: `initdb` failed; its output is printed.
    """

    def __init__(self, settings: Mapping[str, str | int] | None = None, *, parent: str = "/tmp"):
        self.binaries = find_binaries()
        self.port = _free_port()
        self.password = secrets.token_hex(8)
        """The superuser's, for connections over TCP."""
        self.folder = Path(tempfile.mkdtemp(prefix="yolo-postgres-", dir=parent))
        self._settings = SETTINGS | dict(settings or {})
        self._account = _unprivileged_account()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self.binaries), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as_account(),
        )
        socket_query = {"host": str(self.folder), "port": str(self.port)}
        super().__init__(
            sa.URL.create("postgresql+psycopg", SUPERUSER, database="postgres", query=socket_query),
        )
        try:
            self._initialise()
        except BaseException:
            self.close()
            raise

    def url(self, database: str, *, user: str | None = None, password: str | None = None) -> sa.URL:
        """URL of a database: with a password over TCP, where it is checked, without one over the socket.

        Args:
            database: its name; it need not exist.
            user: the superuser when not given.
            password: the user's; the superuser's is `password`.
        """
        user = user or SUPERUSER
        if password is not None:
            return sa.URL.create("postgresql+psycopg", user, password, "127.0.0.1", self.port, database)
        return self.admin_url.set(username=user, database=database)

    @property
    def log(self) -> str:
        """What the server has logged, over all its starts."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def is_running(self) -> bool:
        """Whether the server's main process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it takes connections; nothing happens when it runs.

        Raises:
            RuntimeError: it ended, or was not ready in time; the message has its log.
        """
        if self.is_running:
            return
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", "data", "-k", self.folder, "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_account(),
            )
        _wait_until(lambda: self._is_ready() or not self.is_running)
        if not self._is_ready():
            self.kill()
            raise RuntimeError(f"{self.binaries / 'postgres'} did not start; its log:\n{self.log}")

    def stop(self) -> None:
        """Stop the server in order: open transactions are rolled back, connections ended."""
        if self._process is None or not self.is_running:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End all of the server's processes at once with SIGKILL, as a node that dies does."""
        if self._process is None or not self.is_running:
            return
        server = psutil.Process(self._process.pid)
        # Stopped, it starts no further processes while they are listed. It is the last to go: the others tell their
        # clients when it is missing, and a node that dies tells nobody.
        server.suspend()
        backends = server.children(recursive=True)
        for process in (*backends, server):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        _wait_until(lambda: not any(map(_is_alive, backends)))

    def close(self) -> None:
        """Stop the server and remove its folder."""
        try:
            self.stop()
        finally:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(2 * PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def _initialise(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self.password)
        if self._account is not None:
            for path in (self.folder, password_file):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        command = [self.binaries / "initdb", "-D", "data", "--username", SUPERUSER, "--pwfile", "password"]
        encoding = ["--encoding", "UTF8", "--locale", "C.UTF-8"]
        access = ["--auth-local", "trust", "--auth-host", "scram-sha-256"]
        done = subprocess.run(
            [*command, *encoding, *access, "--no-sync"], capture_output=True, text=True, **self._as_account()
        )
        if done.returncode:
            print(done.stdout, done.stderr)
        done.check_returncode()

    def _is_ready(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(host=str(self.folder), port=self.port, user=SUPERUSER, dbname="postgres").close()
            return True
        return False

    def _as_account(self) -> dict[str, Any]:
        """How each of the server's programs is run: by the account, in the folder, deaf to Ctrl-C."""
        # PGPORT and the like are the caller's and would be taken for ours.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        options: dict[str, Any] = {"cwd": self.folder, "env": environment, "start_new_session": True}
        if self._account is not None:
            options |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return options


def find_binaries() -> Path:
    """Folder of the server's programs, the newest version's where there are several.

    Raises:
        PostgresMissingError: there is none.
    """
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    if shutil.which("pg_config"):
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=True)
        candidates.append(Path(said.stdout.strip()))
    found = shutil.which("postgres")
    if found:
        candidates.append(Path(found).resolve().parent)
    for folder in candidates:
        if all((folder / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise PostgresMissingError(
        "no Postgres server is installed: apt-get install postgresql (brew install postgresql), "
        "or set TEST_POSTGRES_URL to a superuser's URL of a server"
    )


def _version(folder: Path) -> int:
    found = re.match(r"\d+", folder.parent.name)
    return int(found[0]) if found else 0


def _unprivileged_account() -> pwd.struct_passwd | None:
    """Who runs the server: it refuses to be root's. None means we ourselves."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _free_port() -> int:
    # A generator of its own: whoever seeds the shared one must not make two servers choose alike.
    for port in random.SystemRandom().sample(_PORTS, 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"50 ports between {_PORTS.start} and {_PORTS.stop} are all taken on 127.0.0.1")


def _is_alive(process: psutil.Process) -> bool:
    try:
        # A dead orphan stays listed until the first process of a container collects it, if it ever does.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until(is_done: Callable[[], bool]) -> None:
    """Ask until the answer is yes, or until the patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.02)
