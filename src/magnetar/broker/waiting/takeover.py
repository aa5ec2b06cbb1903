"""The state of a cluster as a broker that waits to take over sees it: which broker serves, or why none does."""

from magnetar.broker.waiting.registration import NO_BROKERS, Brokers, Registration
from magnetar.core.errors import BrokerError, ErrorCode


class Takeover:
    """The broker that serves, as a waiting one sees it.

    Args:
        cluster: the name of the cluster.
        own: the record of this broker.

    Attributes:
        brokers: all of them.
    """

    def __init__(self, cluster: str, own: Registration) -> None:
        self.cluster = cluster
        self.own = own
        self.brokers: Brokers = NO_BROKERS

    def seen(self, brokers: Brokers) -> None:
        """The brokers have changed."""
        self.brokers = brokers

    @property
    def serving(self) -> Registration | None:
        """The broker to which clients are sent; None: there is none."""
        serving = self.brokers.serving
        return serving if serving is not None and serving.broker != self.own.broker else None

    @property
    def state(self) -> str:
        """The state of this broker, in one line without a period."""
        name = f"broker {self.own.broker} of cluster {self.cluster}"
        serving = self.brokers.serving
        if serving is None:
            return f"{name} waits to take over; no broker serves yet"
        if serving.broker == self.own.broker:
            return f"{name} takes over: it recovers the log"
        address = serving.pulsar_url()
        return f"{name} waits to take over; broker {serving.broker} serves{f' at {address}' if address else ''}"

    def not_ready(self) -> BrokerError:
        """The refusal of what only the broker that serves can do. Clients try again after it."""
        return BrokerError(ErrorCode.SERVICE_NOT_READY, self.state)

    def urls(self, listener: str) -> tuple[str, str]:
        """The addresses to which a client is sent, without and with TLS ("" for none).

        Args:
            listener: the one that the client asked for; "": the default one.

        Raises:
            BrokerError: SERVICE_NOT_READY: no broker serves, or it has no address. NOT_ALLOWED: it has no such listener.
        """
        serving = self.serving
        if serving is None:
            raise self.not_ready()
        urls = serving.urls(listener)
        if urls is None:
            known = ", ".join(sorted(serving.listeners)) or "none"
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"listener {listener!r:.80} is not one of broker {serving.broker}, which serves ({known})",
            )
        if not any(urls):
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"{self.state}, but its record has no address for clients")
        return urls
