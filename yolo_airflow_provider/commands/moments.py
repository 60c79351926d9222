"""Times as people write them on a command line: `7d`, `12h`, `2026-05-04`, `2026-05-04T12:30+02:00`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(?P<number>\d{1,9})(?P<unit>[smhdw])", re.ASCII)


def parse_moment(text: str, *, now: datetime | None = None) -> datetime:
    """Read a moment in the past: a time span before now, or a date or time in ISO 8601.

    Args:
        text: a whole number with its unit, one of s, m (minutes), h, d and w; or a date or a time, UTC where it has no
            offset.
        now: aware; the clock's, if not given.

    Returns:
        The moment, aware and in UTC.

    Raises:
        ValueError: it is neither; or it is not in the past.
    """
    now = datetime.now(UTC) if now is None else now
    try:
        if ago := _AGO.fullmatch(text.strip()):
            moment = now - timedelta(**{_UNITS[ago["unit"]]: int(ago["number"])})
        else:
            moment = datetime.fromisoformat(text.strip())
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; write a span before now such as 12h, 7d or 2w, or a date such as 2026-05-04"
        ) from None
    if moment >= now:
        raise ValueError(f"{text!r} is not in the past")
    return moment
