"""What links move of one topic from and to one other cluster: counters, and their rates."""

from magnetar.core.meter import Meter


class LinkFlow:
    """Both directions between a topic here and the same in another cluster.

    Args:
        began_ms: since when the counters are zero.

    Attributes:
        messages_in, bytes_in: entries of that cluster that are in the log here, since the topic was loaded.
        messages_out, bytes_out: what its destination confirmed of this topic's; what was sent again counts again.
        inbound: the connection over which entries came last; None before the first.
    """

    __slots__ = ("bytes_in", "bytes_out", "inbound", "messages_in", "messages_out", "meter")

    def __init__(self, began_ms: int) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0
        self.inbound: int | None = None
        self.meter = Meter(4, began_ms)

    def came(self, messages: int, size: int, connection: int) -> None:
        """Entries are in the log."""
        self.messages_in += messages
        self.bytes_in += size
        self.inbound = connection

    def went(self, messages: int, size: int) -> None:
        """Entries are in the other cluster's."""
        self.messages_out += messages
        self.bytes_out += size

    def update(self, now_ms: int) -> None:
        """Work out what moved per second since the last call."""
        self.meter.update(now_ms, (self.messages_in, self.bytes_in, self.messages_out, self.bytes_out))


NO_FLOW = LinkFlow(0)
"""Of a link that moved nothing; not to be written to."""
