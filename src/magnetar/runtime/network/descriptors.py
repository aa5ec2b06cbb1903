"""The limit of open files and sockets of this process."""

import contextlib
from typing import Final

BESIDE: Final = 100
"""Descriptors of a broker that are not connections: its log, its store, its listeners, the event loop."""


def raise_file_limit() -> int | None:
    """Raise the limit to the highest that the administrator allows: processes begin with a limit, often 1,024, that is for
    programs that use select(2), and a broker needs a descriptor for each connection.

    Returns:
        The limit as it is now; None where there is none, or it is unknown.
    """
    try:
        import resource
    except ImportError:  # a platform without such limits
        return None
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ValueError, OSError):  # a sandbox that hides it
        return None
    # A kernel may have a ceiling of its own below the limit that it reports (macOS): then it stays as it is.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def too_few(limit: int | None, connections: int) -> str:
    """Warning about a limit that a broker will reach before its own ceilings of connections; "" if it is high enough.

    Args:
        limit: as `raise_file_limit` returns it.
        connections: `connections_max` and `http_connections_max` together.
    """
    if limit is None or limit >= connections + BESIDE:
        return ""
    return (
        f"at most {limit} files may be open (ulimit -Hn), but connections_max and http_connections_max allow {connections}, and "
        f"{BESIDE} more are needed: raise the limit (systemd: LimitNOFILE), or lower them; until then clients may be left waiting"
    )


def fitting(limit: int | None, connections: int, *others: int) -> tuple[int, ...]:
    """How many connections of each kind there may be: as configured, or less, in proportion, where too few files may be open.

    Connections of one kind must not take the descriptors of another, nor those of the log.

    Args:
        limit: as `raise_file_limit` returns it.
        connections: `connections_max`.
        others: ceilings of other kinds, as `http_connections_max`.

    Returns:
        The ceilings, in the order of the arguments; each is at least 1.
    """
    total = connections + sum(others)
    if limit is None or limit >= total + BESIDE:
        return connections, *others
    left = max(limit - BESIDE, 1 + len(others))
    shares = [max(1, left * ceiling // total) for ceiling in others]
    return max(1, left - sum(shares)), *shares
