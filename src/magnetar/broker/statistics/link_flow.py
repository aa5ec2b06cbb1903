"""Traffic of links for one topic from and to one other cluster: counters, and their rates."""

from magnetar.core.meter import Meter


class LinkFlow:
    """Both directions between a topic here and the same topic in another cluster.

    Args:
        began_ms: when the counters were zero.

    Attributes:
        messages_in, bytes_in: entries of that cluster that are in the log here, since the topic was loaded.
        messages_out, bytes_out: entries of this topic that the destination confirmed; entries sent again count again.
        inbound: the connection of the last received entries; None before the first.
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
"""The counters of a link without traffic; not to be written to."""
