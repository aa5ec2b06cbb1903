"""A broker that waits to take over, as a deterministic machine: its connections, and the broker to which it sends them.

It has no topics, no log and no store. The driver calls one event at a time; effects go to the outbox
(`runtime.waiting_driver`).
"""

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.security.access import Access
from magnetar.broker.security.credentials import Keys
from magnetar.broker.session.connect_deadlines import ConnectDeadlines
from magnetar.broker.session.frame_limits import frame_limits
from magnetar.broker.statistics.latency import Connections
from magnetar.broker.waiting.look_ups import LookUps, Reach
from magnetar.broker.waiting.registration import Brokers
from magnetar.broker.waiting.session import Relay, WaitingServices, WaitingSession
from magnetar.broker.waiting.takeover import Takeover
from magnetar.core.errors import ProtocolError
from magnetar.core.security import Security
from magnetar.core.settings import BrokerConfig
from magnetar.effects.outbox import Close, Note, Outbox
from magnetar.metadata.resources import Resources
from magnetar.wire.frame import Frame


class WaitingBroker:
    """The sessions of a waiting broker.

    Args:
        outbox: gets the effects; the driver drains it.
        config: the limits.
        security: the tables for authentication and authorization.
        keys: keys for checking credentials.
        link_token: the shared secret of links.
        takeover: which broker serves.
        relay: asks the broker that serves.
        reach: finds out whether that broker accepts connections.

    Attributes:
        access: checks credentials. It knows no permissions, because these are in the log.
        counters: connections since the start.
        limits: of frames.
    """

    def __init__(
        self,
        outbox: Outbox,
        config: BrokerConfig,
        security: Security,
        keys: Keys,
        link_token: bytes,
        takeover: Takeover,
        relay: Relay,
        reach: Reach,
    ) -> None:
        resources = Resources(takeover.cluster)
        self._sessions: dict[int, WaitingSession] = {}
        self._context = BrokerContext(outbox, config, resources, takeover.cluster, uuid="")
        self._link_token = link_token
        self._takeover = takeover
        self._outbox = outbox
        self.access = Access(outbox, security, keys, resources, self._sessions)
        self.counters = Connections()
        self.limits = frame_limits(config, security)
        self._deadlines = ConnectDeadlines(self._context, self.counters, self._client)
        self._look_ups = LookUps(self._context, takeover, reach)
        self._services = WaitingServices(
            self._context, self, self.access, self.counters, takeover, relay, self._look_ups, self.limits
        )

    def seen(self, brokers: Brokers) -> None:
        """The brokers of the cluster have changed."""
        before = self._takeover.brokers.serving
        self._takeover.seen(brokers)
        if brokers.serving != before:
            self._outbox.put(Note("info", self._takeover.state))
            self._look_ups.seen()

    def to_repeat(self, connection: int) -> list[Frame]:
        """The commands with which a broker that serves continues a connection: CONNECT, which has been answered, and the requests
        that have not. None if the client has not been let in, or is just asked for a new token.
        """
        session = self._sessions.get(connection)
        return session.to_repeat() if session is not None else []

    def new_link_token(self, token: bytes) -> None:
        """Links that come from now on present another secret."""
        self._link_token = token

    # ------------------------------------------------------------------------------------------------- driver's events

    def connected(self, connection: int, address: str, certificate: str = "", tls: bool = False) -> None:
        """A client came; `certificate` is the common name of the one that TLS checked."""
        self.counters.made += 1
        client = Connection(
            self._context,
            self.access,
            connection,
            address,
            certificate=certificate,
            tls=tls,
            link_token=self._link_token,
        )
        self._sessions[connection] = WaitingSession(client, self._services)
        self._deadlines.began(connection)

    def frames(self, connection: int, frames: list[Frame]) -> None:
        """A client sent commands."""
        session = self._sessions.get(connection)
        if session is None or session.connection.closed:
            return
        try:
            session.frames(frames)
        except ProtocolError as error:
            self._outbox.put(Close(connection, f"broke the protocol: {error}"))
            self.disconnected(connection)

    def disconnected(self, connection: int) -> None:
        """A client is gone."""
        session = self._sessions.pop(connection, None)
        if session is not None:
            self.counters.ended += 1
            session.disconnected()

    def writable(self, connection: int, writable: bool) -> None:
        """A client's socket takes no more, or takes more again."""
        session = self._sessions.get(connection)
        if session is not None:
            session.set_writable(writable)

    def _client(self, connection: int) -> Connection | None:
        session = self._sessions.get(connection)
        return session.connection if session is not None else None
