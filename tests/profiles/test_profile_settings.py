from __future__ import annotations

import pytest
import sqlalchemy as sa

from yolo_airflow_provider.profiles import migrate
from yolo_airflow_provider.profiles.engine import make_engine
from yolo_airflow_provider.profiles.errors import StoreError
from yolo_airflow_provider.profiles.settings import split

URL = "postgresql://yolo@db.example/profiles"


def options_of(url: str) -> str | None:
    options: str | None = split(sa.make_url(url))[1].connect_arguments().get("options")
    return options


def test_every_session_has_timeouts():
    assert options_of(URL) == (
        "-c timezone=UTC -c statement_timeout=30000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000"
    )


def test_zero_leaves_a_timeout_to_the_server():
    zero = f"{URL}?statement_timeout=0&lock_timeout=0&idle_in_transaction_session_timeout=0"
    assert options_of(zero) == "-c timezone=UTC"
    assert options_of(f"{zero}&options=-c search_path=yolo") == "-c timezone=UTC -c search_path=yolo"


def test_options_that_somebody_wrote_come_last_and_win():
    options = options_of(f"{URL}?statement_timeout=1.5&options=-c%20lock_timeout%3D7")
    assert options is not None
    assert options.startswith("-c timezone=UTC -c statement_timeout=1500 ")
    assert options.endswith(" -c lock_timeout=7")


def test_what_is_not_ours_goes_to_libpq():
    address, settings = split(sa.make_url(f"{URL}?sslmode=verify-full&sslrootcert=/a.pem&channel_binding=require"))
    assert str(address) == URL
    arguments = settings.connect_arguments()
    assert (arguments["sslmode"], arguments["sslrootcert"], arguments["channel_binding"]) == (
        "verify-full",
        "/a.pem",
        "require",
    )
    assert arguments["connect_timeout"] == 10
    assert not {"retry_seconds", "max_overflow", "statement_timeout"} & set(arguments)


def test_the_hosts_stay_in_the_url():
    address, _ = split(sa.make_url("postgresql://yolo@/profiles?host=a:5432&host=b:5432&target_session_attrs=primary"))
    assert address.query == {"host": ("a:5432", "b:5432")}


def test_a_secret_in_the_query_is_not_shown():
    engine = make_engine(f"{URL}?password=hunter2&sslpassword=hunter3")
    assert "hunter" not in migrate.describe(engine) + repr(engine)
    arguments = split(sa.make_url(f"{URL}?password=hunter2"))[1].connect_arguments()
    assert arguments["password"] == "hunter2"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("statement_timeout=soon", "URL of the profile store: statement_timeout is 'soon'; give a number of seconds"),
        ("retry_seconds=inf", "retry_seconds is 'inf'; give a number of seconds"),
        ("max_overflow=-1", "max_overflow is '-1'; give a whole number of connections from 0 to"),
        ("sslmode=on", "sslmode is 'on'; give disable"),
        ("sslmode=require&sslmode=disable", "gives sslmode more than once"),
    ],
)
def test_a_value_that_is_none_is_named(query: str, said: str):
    with pytest.raises(StoreError, match=said):
        make_engine(f"{URL}?{query}")


def test_another_driver_is_refused():
    with pytest.raises(StoreError, match="needs the driver psycopg"):
        make_engine("postgresql+psycopg2://yolo@db.example/profiles")
