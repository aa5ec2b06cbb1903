"""The error classes: each says which side made the mistake, and whether it ends a request or a connection.

Every error that can reach a user is a `MagnetarError` whose text is one line: what is wrong, where, and what would be
right. `ProtocolError` is the peer's fault and ends its connection; `BrokerError` is the answer to one request.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Pulsar's ServerError numbers (PulsarApi.proto)."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    BACKLOG_QUOTA_HOLD = 7
    BACKLOG_QUOTA_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    NOT_ALLOWED = 22
    PRODUCER_FENCED = 25

    @classmethod
    def of(cls, number: int) -> "ErrorCode":
        """The code of a number that a peer sent; UNKNOWN for numbers that this side does not know."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN


class MagnetarError(Exception):
    """Any failure that is explained to a user in one line."""


class ConfigError(MagnetarError):
    """A configuration file or option is wrong; names the file, the key and what would be right."""


class NameNotValid(MagnetarError):
    """A cluster, tenant, namespace, topic, subscription or producer name breaks the grammar of `core.names`."""


class ProtocolError(MagnetarError):
    """The peer broke the protocol; its connection is closed, nothing stored is touched."""


class StorageError(MagnetarError):
    """The disk or the files on it: not writable, in use, of another version, corrupt, full."""


class BrokerError(MagnetarError):
    """One request is refused; the connection stays open.

    Args:
        code: the protocol's error code.
        message: one line for the user.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
