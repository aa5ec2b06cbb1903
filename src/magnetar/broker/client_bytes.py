"""Limits on the memory that clients use in a broker for their producers and consumers: metadata, names, ranges of
hashes.

All of it is in memory as long as they are open, and `stats` of a topic shows it. The first `FREE_BYTES` of each handle
(a producer or a consumer) do not count: a client that needs no more is always accepted.

    limit                                       of
    ------------------------------------------  ---------------------------
    client_metadata_bytes_max                   one producer or consumer
    client_metadata_bytes_per_connection_max    one connection's
    client_metadata_bytes_per_topic_max         one topic's
    client_metadata_bytes_total_max             the broker's
"""

from collections import Counter
from collections.abc import Callable, Container
from typing import Final, NamedTuple, TypeVar

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.settings import BrokerConfig
from magnetar.wire import pulsar_pb2 as pb

FREE_BYTES: Final = 512
"""The bytes of each handle that do not count. A handle itself costs some 2 kB."""

RANGE_BYTES: Final = 128
"""The memory of one range of hashes of a sticky consumer."""

OPENING_BYTES_MAX: Final = 4 * 1024 * 1024
"""The most bytes, for one connection, of commands that open something and wait for the store or for a schema: above it
the socket is not read.
"""


class Held(NamedTuple):
    """The memory of one handle.

    Attributes:
        connection: its connection.
        topic: its topic.
        bytes: the bytes that count.
    """

    connection: int = 0
    topic: str = ""
    bytes: int = 0


NOTHING_HELD: Final = Held()


def size_of(command: pb.CommandProducer | pb.CommandSubscribe) -> int:
    """Bytes of what is kept of a command that opens a handle."""
    size = sum(len(pair.key) + len(pair.value) for pair in command.metadata)
    if isinstance(command, pb.CommandProducer):
        return size + len(command.producer_name)
    ranges = len(command.keySharedMeta.hashRanges) if command.HasField("keySharedMeta") else 0
    return size + len(command.consumer_name) + RANGE_BYTES * ranges


class ClientBytes:
    """The sums of one broker.

    Args:
        config: the limits.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.total = 0
        self.connections: Counter[int] = Counter()
        self.topics: Counter[str] = Counter()

    def held(self, connection: int, topic: str, command: pb.CommandProducer | pb.CommandSubscribe) -> Held:
        """The memory of a handle, if it is allowed; it counts from when it is put into a `Handles`.

        Raises:
            BrokerError: NotAllowedError: a limit would be broken.
        """
        config, size = self._config, size_of(command)
        if size > config.client_metadata_bytes_max:
            raise _over(size, "one producer or consumer", config.client_metadata_bytes_max, "client_metadata_bytes_max")
        counted = size - FREE_BYTES
        if counted <= 0:
            return NOTHING_HELD
        for sum_, what, limit, name in (
            (
                self.connections[connection],
                "one connection",
                config.client_metadata_bytes_per_connection_max,
                "per_connection",
            ),
            (self.topics[topic], "one topic", config.client_metadata_bytes_per_topic_max, "per_topic"),
            (self.total, "this broker", config.client_metadata_bytes_total_max, "total"),
        ):
            if sum_ + counted > limit:
                raise _over(
                    sum_ + counted, f"all producers and consumers of {what}", limit, f"client_metadata_bytes_{name}_max"
                )
        return Held(connection, topic, counted)

    def add(self, held: Held) -> None:
        """A handle is open."""
        if held.bytes:
            self.total += held.bytes
            self.connections[held.connection] += held.bytes
            self.topics[held.topic] += held.bytes

    def remove(self, held: Held) -> None:
        """It is gone."""
        if held.bytes:
            self.total -= held.bytes
            for sums, key in ((self.connections, held.connection), (self.topics, held.topic)):
                left = sums[key] - held.bytes  # type: ignore[index]
                if left:
                    sums[key] = left  # type: ignore[index]
                else:
                    del sums[key]

    def validate(self, connections: Container[int]) -> None:
        """Check what must hold after every event.

        Args:
            connections: that there are.
        """
        assert self.total == self.connections.total() == self.topics.total(), "sums of what clients hold differ"
        assert all(number in connections for number in self.connections), "a connection that is gone holds something"


def _over(size: int, what: str, limit: int, name: str) -> BrokerError:
    return BrokerError(
        ErrorCode.NOT_ALLOWED, f"metadata, names and ranges of {what} have {size} bytes, over {limit} ({name})"
    )


Value = TypeVar("Value")


class Handles(dict[int, Value]):
    """The open handles of one kind of one connection, by the client's id, counted.

    Args:
        sums: the sums in which they count.
        held: gives the memory of one of them.
    """

    def __init__(self, sums: ClientBytes, held: Callable[[Value], Held]) -> None:
        super().__init__()
        self._sums = sums
        self._held = held

    def __setitem__(self, number: int, value: Value) -> None:
        """Put one in, in place of another of its id."""
        before = self.get(number)
        if before is not None:
            self._sums.remove(self._held(before))
        super().__setitem__(number, value)
        self._sums.add(self._held(value))

    def __delitem__(self, number: int) -> None:
        """Take one out."""
        self._sums.remove(self._held(self[number]))
        super().__delitem__(number)

    def pop(self, number: int, default: Value | None = None) -> Value | None:  # type: ignore[override]
        """Take one out, if it is there."""
        if number not in self:
            return default
        value = self[number]
        del self[number]
        return value

    def clear(self) -> None:
        """Take all out."""
        for value in self.values():
            self._sums.remove(self._held(value))
        super().clear()


class Opening(dict[int, Value]):
    """Commands that open handles and are not finished, by the client's id; too many bytes of them stop reading the
    socket.

    Args:
        size: gives the size of one of them in bytes.
        hold: stops reading the socket, or resumes it.
    """

    def __init__(self, size: Callable[[Value], int], hold: Callable[[bool], None]) -> None:
        super().__init__()
        self._size = size
        self._hold = hold
        self.bytes = 0

    def __setitem__(self, number: int, value: Value) -> None:
        """One is under way."""
        before = self.get(number)
        self._changed(self._size(value) - (0 if before is None else self._size(before)))
        super().__setitem__(number, value)

    def __delitem__(self, number: int) -> None:
        """One is over."""
        value = self[number]
        super().__delitem__(number)
        self._changed(-self._size(value))

    def pop(self, number: int, default: Value | None = None) -> Value | None:  # type: ignore[override]
        """One is over, if it was under way."""
        if number not in self:
            return default
        value = self[number]
        del self[number]
        return value

    def clear(self) -> None:
        """All are over."""
        super().clear()
        self._changed(-self.bytes)

    def _changed(self, size: int) -> None:
        before, self.bytes = self.bytes, self.bytes + size
        if before <= OPENING_BYTES_MAX < self.bytes:
            self._hold(True)
        elif self.bytes <= OPENING_BYTES_MAX < before:
            self._hold(False)
