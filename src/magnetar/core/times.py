"""Times as texts."""

from datetime import UTC, datetime


def iso_time(time_ms: int) -> str:
    """A time as Pulsar's statistics and headers write it: ISO 8601 with an offset. Clients of typed languages refuse a number.

    A number that no calendar has, as clients may give one, stays a number.
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
