"""Errors of kazoo, the client of ZooKeeper, that mean that a request was not carried out, or that this is not known."""

from typing import Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

UNANSWERED: Final = (KazooException, KazooTimeoutError)


def reason(error: Exception) -> str:
    """One line. Most of kazoo's errors have no text but their name."""
    return str(error) or type(error).__name__
