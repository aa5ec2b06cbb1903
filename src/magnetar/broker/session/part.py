"""What the parts of a session have in common: the session, for as long as it has a connection."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session


class SessionPart:
    """A part of what the broker knows of one connection.

    Session and part refer to each other. What is set aside by Python's collector (`runtime.interpreter.garbage`) is not
    looked through for circles, so this one ends with its connection: `leave`.

    Args:
        session: the connection.
    """

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._broker = session.broker

    def disconnected(self) -> None:
        """The connection is gone: so is what it owns here."""

    def leave(self) -> None:
        """Everything of the connection is gone: answers that come late go to nobody's session, which tells them to nobody."""
        self._session = self._broker.nobody
