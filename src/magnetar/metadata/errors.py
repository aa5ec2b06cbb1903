"""Reasons to refuse an administrative request, as HTTP statuses, which Pulsar's admin interface uses.

They are raised while a change is validated, before anything is stored. Each is one line: what is wrong, where, what
would be right.
"""

from typing import ClassVar

from magnetar.core.errors import MagnetarError


class Refused(MagnetarError):
    """An administrative request is refused; `status` is what the REST interface answers."""

    status: ClassVar[int] = 400


class BadRequest(Refused):
    """The request makes no sense together with what is stored (400)."""

    status = 400


class Forbidden(Refused):
    """It names something the tenant, or this cluster, may not use (403)."""

    status = 403


class NotFound(Refused):
    """The cluster, tenant, namespace, topic or subscription does not exist (404)."""

    status = 404


class NotAllowed(Refused):
    """The kind of thing it names cannot do that (405)."""

    status = 405


class NotAcceptable(Refused):
    """A number is outside of what is accepted (406)."""

    status = 406


class Conflict(Refused):
    """It exists already, is not empty, or is being changed by someone else (409)."""

    status = 409


class InFlight(Conflict):
    """It is being changed right now (409), by another request or by synchronisation. The request can be repeated
    soon.
    """


class PreconditionFailed(Refused):
    """A name is not valid, or something must be done first (412)."""

    status = 412


class Unprocessable(Refused):
    """Well-formed, but not a possible change, such as fewer partitions (422)."""

    status = 422
