"""Errors as answers: the status of an error, and the JSON shape that all of them share, `{"reason": "..."}`."""

from typing import Any, Final

import msgspec
from aiohttp import web

from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError, NameNotValid
from magnetar.metadata.errors import Refused

REASON_CHARACTERS_MAX: Final = 500
"""A ceiling: a reason is one line for a person."""

STATUS_OF_CODE: Final = {
    ErrorCode.AUTHENTICATION: 401,
    ErrorCode.AUTHORIZATION: 403,
    ErrorCode.CONSUMER_BUSY: 412,
    ErrorCode.SERVICE_NOT_READY: 503,
    ErrorCode.BACKLOG_QUOTA_HOLD: 412,
    ErrorCode.BACKLOG_QUOTA_EXCEPTION: 412,
    ErrorCode.TOPIC_NOT_FOUND: 404,
    ErrorCode.SUBSCRIPTION_NOT_FOUND: 404,
    ErrorCode.CONSUMER_NOT_FOUND: 404,
    ErrorCode.TOO_MANY_REQUESTS: 429,
    ErrorCode.TOPIC_TERMINATED: 412,
    ErrorCode.PRODUCER_BUSY: 412,
    ErrorCode.INVALID_TOPIC_NAME: 412,
    ErrorCode.INCOMPATIBLE_SCHEMA: 409,
    ErrorCode.NOT_ALLOWED: 405,
    ErrorCode.PRODUCER_FENCED: 412,
}
"""HTTP statuses of the protocol's errors; every other code is 500: the broker failed at something that is possible."""


class LateError(MagnetarError):
    """A change was not durable in time; it may still become durable (504)."""


class TooLargeError(MagnetarError):
    """The request's body is over the limit (413)."""


class EncodingError(MagnetarError):
    """The request's body is compressed in a way that is not read here (415)."""


class SlowError(MagnetarError):
    """The request's body did not come in time (408)."""


def status_of(error: MagnetarError) -> int:
    """The HTTP status of an error."""
    match error:
        case Refused():
            return error.status
        case NameNotValid():
            return 412
        case BrokerError():
            return STATUS_OF_CODE.get(error.code, 500)
        case LateError():
            return 504
        case TooLargeError():
            return 413
        case SlowError():
            return 408
        case EncodingError():
            return 415
        case _:
            return 500


def one_line(text: str) -> str:
    """A reason fit for one line on a terminal: no control characters, no line ends, not endless."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    shown = " ".join(shown.split())
    return shown if len(shown) <= REASON_CHARACTERS_MAX else shown[: REASON_CHARACTERS_MAX - 3] + "..."


def json_reply(value: Any, status: int = 200) -> web.Response:
    """An answer in JSON."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def refusal(status: int, reason: str) -> web.Response:
    """An error as an answer."""
    return json_reply({"reason": one_line(reason)}, status)
