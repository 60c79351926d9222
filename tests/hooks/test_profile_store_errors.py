from __future__ import annotations

import datetime
import ipaddress
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from postgres_server import Databases, PostgresServer
from psycopg import sql

from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.profiles import migrate
from yolo_airflow_provider.profiles.engine import make_engine, open_store
from yolo_airflow_provider.profiles.errors import StoreDenied, StoreError, StoreOutdatedError, StoreUnavailable
from yolo_airflow_provider.profiles.records import DecisionRow, RunKey
from yolo_airflow_provider.profiles.store import ProfileStore

PASSWORD = "hunter2 /@:%p"


@pytest.fixture(autouse=True)
def no_password_is_told(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "hunter2" not in caplog.text


@pytest.fixture
def database(postgres: Databases, migrated_database: str) -> Iterator[sa.URL]:
    """A store's database with its group roles, as its owner sees it."""
    url = postgres.create_database(template=migrated_database)
    engine = make_engine(url)
    migrate.create_roles(engine)
    engine.dispose()
    yield url
    postgres.drop_database(str(url.database))


@pytest.fixture
def user(postgres: Databases, database: sa.URL) -> Iterator[str]:
    """A login with a password and no rights. Made after the database, so that it is dropped before it."""
    name = f"yolo_test_{uuid.uuid4().hex[:12]}"
    postgres.create_user(name, PASSWORD)
    yield name
    postgres.drop_user(name)


def grant(server: Databases, group: str, user: str) -> None:
    server.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(user)))


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, postgres: Databases) -> Callable[..., ProfileStoreHook]:
    """A hook of a connection to the tests' server, with something changed."""

    def define(database: sa.URL, user: str, password: str = PASSWORD, **changes: Any) -> ProfileStoreHook:
        url = postgres.url(str(database.database), user=user, password=password)
        extra = changes.pop("extra", {})
        parts = {"conn_type": "yolo_profiles", "host": url.host, "port": url.port, "schema": url.database}
        connection = parts | {"login": user, "password": password, "extra": json.dumps(extra)} | changes
        monkeypatch.setenv("AIRFLOW_CONN_ERRORS", json.dumps(connection))
        return ProfileStoreHook("errors")

    return define


def refused(hook: ProfileStoreHook, kind: type[StoreError]) -> str:
    """What the hook says; the Test button says the same."""
    with pytest.raises(StoreError) as caught:
        hook.get_store(patience_seconds=0)
    assert type(caught.value) is kind
    assert hook.test_connection() == (False, str(caught.value))
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


def test_a_wrong_password(hook, database: sa.URL, user: str):
    said = refused(hook(database, user, "hunter2 wrong"), StoreDenied)
    assert f'password authentication failed for user "{user}"; check login and password of role "{user}"' in said
    assert f"{user}:***@" in said


def test_an_unknown_login(hook, database: sa.URL):
    assert 'check login and password of role "nobody_here"' in refused(hook(database, "nobody_here"), StoreDenied)


def test_a_database_that_is_missing(hook, database: sa.URL, user: str):
    said = refused(hook(database, user, schema="nowhere"), StoreError)
    assert 'database "nowhere" does not exist; make it with `CREATE DATABASE "nowhere"`' in said
    assert "yolo-airflow db upgrade" in said


def test_a_server_that_is_not_there(hook, database: sa.URL, user: str):
    said = refused(hook(database, user, host="127.0.0.1", port=1), StoreUnavailable)
    assert "127.0.0.1" in said
    assert said.endswith("Connection refused")


def test_a_migration_that_is_missing(hook, postgres: Databases, user: str):
    said = refused(hook(postgres.create_database(), user), StoreOutdatedError)
    assert "has no tables yet" in said
    assert "yolo-airflow db upgrade" in said


def test_a_login_without_rights(hook, database: sa.URL, user: str):
    said = refused(hook(database, user), StoreDenied)
    assert "permission denied for table yolo_profiles_version" in said
    assert f'GRANT yolo_writer TO "{user}"' in said


def test_a_setting_that_libpq_refuses(hook, database: sa.URL, user: str):
    said = refused(hook(database, user, extra={"options": "-c banana=1"}), StoreError)
    assert 'unrecognized configuration parameter "banana"; correct it in the connection' in said


def test_a_writer_may_write(hook, database: sa.URL, user: str, postgres: Databases):
    grant(postgres, "yolo_writer", user)
    writer = hook(database, user)
    ok, said = writer.test_connection()
    assert ok
    server = said.partition(": ")[2]
    assert server.startswith("PostgreSQL 1")
    assert server.endswith(f'revision {migrate.HEAD_REVISION}; role "{user}" may read and write')
    writer.get_store().decide(_decision())
    assert len(writer.get_store().decisions("dag", "run")) == 1


def test_a_connection_of_type_postgres_works_as_well(hook, database: sa.URL, user: str, postgres: Databases):
    grant(postgres, "yolo_writer", user)
    assert hook(database, user, conn_type="postgres").test_connection()[0]


def test_a_reader_is_told_that_it_only_reads(hook, database: sa.URL, user: str, postgres: Databases):
    grant(postgres, "yolo_reader", user)
    reader = hook(database, user)
    ok, said = reader.test_connection()
    assert ok
    assert f'role "{user}" may only read: it has no INSERT on ' in said
    assert said.endswith("yolo_writer has these rights")
    store = reader.get_store(patience_seconds=0)
    assert len(store.frame("run_history")) == 0
    with pytest.raises(StoreDenied, match=f'permission denied for table decision; run `GRANT yolo_writer TO "{user}"`'):
        store.decide(_decision())


def test_a_login_whose_transactions_are_read_only(hook, database: sa.URL, user: str, postgres: Databases):
    grant(postgres, "yolo_writer", user)
    statement = sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on")
    postgres.execute(statement.format(sql.Identifier(user)))
    limited = hook(database, user)
    ok, said = limited.test_connection()
    assert ok
    assert "may only read: its transactions are read-only (default_transaction_read_only)" in said
    with pytest.raises(StoreDenied, match=f'the transactions of role "{user}" are read-only by setting'):
        limited.get_store().decide(_decision())


def test_a_statement_that_takes_too_long(hook, database: sa.URL, user: str, postgres: Databases):
    grant(postgres, "yolo_writer", user)
    store: ProfileStore = hook(database, user, extra={"statement_timeout": 0.05}).get_store()
    with pytest.raises(StoreError, match=r"statement timeout; the connection's statement_timeout is 0\.05 s"):
        store.transaction(lambda connection: connection.execute(sa.text("SELECT pg_sleep(60)")))


@pytest.mark.parametrize("sslmode", ["require", "verify-full"])
def test_tls_at_a_server_without_it(hook, database: sa.URL, user: str, sslmode: str, postgres: Databases):
    if not isinstance(postgres, PostgresServer):
        pytest.skip("a server that was given may have TLS")
    said = refused(hook(database, user, extra={"sslmode": sslmode}), StoreError)
    assert "server does not support SSL, but SSL was required; sslmode asks for TLS" in said


def test_certificates_are_checked(hook, start_postgres: Callable[..., PostgresServer], tmp_path: Path):
    server = start_postgres()
    authority, key = _certificate("authority")
    _turn_on_tls(server, authority, key)
    database = server.create_database()
    open_store(database).release()
    (tmp_path / "right.pem").write_bytes(authority)
    (tmp_path / "wrong.pem").write_bytes(_certificate("stranger")[0])

    def connection(host: str, root: str) -> ProfileStoreHook:
        extra = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / root)}
        return hook(database, "postgres", server.password, host=host, port=server.port, extra=extra)

    ok, said = connection("127.0.0.1", "right.pem").test_connection()
    assert ok, said
    said = refused(connection("127.0.0.1", "wrong.pem"), StoreError)
    assert "certificate verify failed" in said
    assert "see sslmode, sslrootcert" in said
    assert "root certificate file" in refused(connection("127.0.0.1", "missing.pem"), StoreError)
    said = refused(connection("localhost", "right.pem"), StoreError)
    assert 'does not match host name "localhost"' in said
    assert "the host has to be a name in that certificate" in said


def _certificate(name: str) -> tuple[bytes, bytes]:
    """A certificate for 127.0.0.1 that is its own authority, and its key, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private


def _turn_on_tls(server: PostgresServer, certificate: bytes, key: bytes) -> None:
    data = server.folder / "data"
    for name, content in (("server.crt", certificate), ("server.key", key)):
        (data / name).write_bytes(content)
        (data / name).chmod(0o600)
        os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
    server.execute(sql.SQL("ALTER SYSTEM SET ssl = on"))
    server.stop()
    server.start()


def _decision() -> DecisionRow:
    return DecisionRow(
        key=RunKey(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1),
        decided_at=datetime.datetime(2026, 5, 4, 12, tzinfo=datetime.UTC),
        model="yolo11n",
        imgsz=640,
        precision="amp",
        accelerator_kind="cpu",
        product="",
        mig_profile="",
        budget_bytes=2**30,
        batch=4,
        basis="given",
        sentence="batch 4",
        margin_percent=10.0,
    )
