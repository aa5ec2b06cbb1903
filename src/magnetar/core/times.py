"""Times as texts."""

from datetime import UTC, datetime


def iso_time(time_ms: int) -> str:
    """A time as in Pulsar's statistics and headers: ISO 8601 with an offset. Clients in typed languages refuse a
    number.

    A number outside the calendar's range, which clients may send, stays a number.
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
