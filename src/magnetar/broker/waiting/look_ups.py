"""The look-ups that come to a waiting broker. One that cannot lead to a broker that serves is held, not refused.

A client whose look-up is refused waits before the next one, each time twice as long: after the 4 s of a session it may wait for
3 s more. A look-up that is held is answered as soon as another broker serves. When this broker is the one, its connections
continue, and the machine that serves answers. (docs/design/cluster.md#held)
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.session.refusals import in_look_up
from magnetar.broker.waiting.takeover import Takeover
from magnetar.core.errors import BrokerError
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb

HELD_MS: Final = 5_000
"""How long a look-up is held, at most: longer than a session of ZooKeeper (4 s) and the recovery of a small log. Official clients
wait for 30 s for an answer."""

LOOK_MS: Final = 500
"""Between two looks whether the broker that serves accepts connections again."""


class Reach(Protocol):
    """Finds out whether a broker accepts connections (`runtime.network.reach`)."""

    def reach(self, url: str, reached: Callable[[bool], None]) -> None:
        """Try to connect.

        Args:
            url: `pulsar://host:port` or `pulsar+ssl://host:port`.
            reached: called once, as an event: whether it accepts connections.
        """


@dataclass(eq=False, slots=True)
class _LookUp:
    """One look-up that has no answer yet.

    Attributes:
        connection: of the client.
        command: the look-up, of a valid topic.
        until_ms: when it is refused.
        answered: called with its answer.
    """

    connection: Connection
    command: pb.CommandLookupTopic
    until_ms: int
    answered: Callable[[], None]


class LookUps:
    """All look-ups of a waiting broker.

    Args:
        context: the broker's context.
        takeover: which broker serves.
        reach: finds out whether that broker accepts connections.
    """

    def __init__(self, context: BrokerContext, takeover: Takeover, reach: Reach) -> None:
        self._context = context
        self._takeover = takeover
        self._reach = reach
        self._held: dict[Connection, list[_LookUp]] = {}
        self._timed = False

    def look_up(self, connection: Connection, command: pb.CommandLookupTopic, answered: Callable[[], None]) -> None:
        """Answer a look-up, now or later.

        Args:
            connection: of the client.
            command: the look-up, of a valid topic.
            answered: called when it has been answered, unless the connection has ended before.
        """
        self._try(_LookUp(connection, command, self._context.outbox.now_ms + HELD_MS, answered))

    def seen(self) -> None:
        """Another broker serves, or none."""
        held, self._held = self._held, {}
        for one in chain.from_iterable(held.values()):
            self._try(one)

    def forget(self, connection: Connection) -> None:
        """A client is gone."""
        # Found at once, not among all: when this broker begins to serve, thousands of clients end here in one turn of the loop.
        self._held.pop(connection, None)

    # ------------------------------------------------------------------------------------------------------------ parts

    def _try(self, one: _LookUp) -> None:
        serving = self._takeover.serving
        if serving is None:
            self._hold(one)
            return
        try:
            urls = self._takeover.urls(one.command.advertised_listener_name)
        except BrokerError as error:
            self._refuse(one, error)
            return

        def reached(reachable: bool) -> None:
            if one.connection.closed:
                return
            if self._takeover.serving != serving:
                self._try(one)
            elif reachable:
                one.connection.send(commands.lookup_redirect(one.command.request_id, *urls))
                one.answered()
            else:
                self._hold(one)

        # A broker that was killed is the one that serves until its session ends. A client that is sent there is refused.
        self._reach.reach(serving.pulsar_url(tls=one.connection.tls), reached)

    def _hold(self, one: _LookUp) -> None:
        if self._context.outbox.now_ms >= one.until_ms:
            self._refuse(one, self._takeover.not_ready())
            return
        self._held.setdefault(one.connection, []).append(one)
        if not self._timed:
            self._timed = True
            self._context.timer(self._context.outbox.now_ms + LOOK_MS, self._due)

    def _refuse(self, one: _LookUp, error: BrokerError) -> None:
        one.connection.send(commands.lookup_failed(one.command.request_id, in_look_up(error), error.message))
        one.answered()

    def _due(self, _now_ms: int) -> None:
        self._timed = False
        self.seen()
