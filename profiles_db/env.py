"""Runs the migrations on the connection that `profiles.migrate.upgrade` hands over, inside its transaction.

From a developer's command line there is none; then `-x url=...` says which database to connect to.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from yolo_airflow_provider.profiles.engine import make_engine
from yolo_airflow_provider.profiles.migrate import VERSION_TABLE
from yolo_airflow_provider.profiles.tables import metadata


def _run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        # Alembic thinks SQLite cannot undo a CREATE TABLE. It can: the engine begins its transactions itself.
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


def _main() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        _run(given)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if not isinstance(url, str):
        raise SystemExit("say which database: alembic -x url=sqlite:////tmp/profiles.db ...")
    with make_engine(url).connect().execution_options(yolo_write=True) as connection, connection.begin():
        _run(connection)


_main()
