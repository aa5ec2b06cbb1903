"""Errors of kazoo, the client of ZooKeeper, that mean that a request was not carried out, or that this is not known."""

from typing import Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

UNANSWERED: Final = (KazooException, KazooTimeoutError)
