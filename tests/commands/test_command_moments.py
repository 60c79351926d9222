from __future__ import annotations

from datetime import UTC, datetime

import pytest

from yolo_airflow_provider.cli import main
from yolo_airflow_provider.commands.moments import parse_moment

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", "2026-05-04T11:58:30+00:00"),
        ("30m", "2026-05-04T11:30:00+00:00"),
        ("12h", "2026-05-04T00:00:00+00:00"),
        ("7d", "2026-04-27T12:00:00+00:00"),
        (" 2w ", "2026-04-20T12:00:00+00:00"),
        ("2026-05-04", "2026-05-04T00:00:00+00:00"),
        ("2026-05-04T11:00", "2026-05-04T11:00:00+00:00"),
        ("2026-05-04T12:30+02:00", "2026-05-04T10:30:00+00:00"),
    ],
)
def test_spans_and_dates_are_moments_in_utc(text: str, moment: str) -> None:
    parsed = parse_moment(text, now=NOW)
    assert parsed.isoformat() == moment


@pytest.mark.parametrize(
    "text", ["", "7", "d", "7 d", "-7d", "1.5h", "7y", "yesterday", "2026-13-01", "999999999w", "\u0667d"]
)
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is no time; write a span"):
        parse_moment(text, now=NOW)


@pytest.mark.parametrize("text", ["0d", "2026-05-05", "2026-05-04T12:00"])
def test_only_the_past_is_a_moment(text: str) -> None:
    with pytest.raises(ValueError, match="not in the past"):
        parse_moment(text, now=NOW)


def test_a_wrong_span_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profiles", "history", "--since", "tomorrow"])
    assert ended.value.code == 2
    assert "--since: 'tomorrow' is no time" in capsys.readouterr().err
