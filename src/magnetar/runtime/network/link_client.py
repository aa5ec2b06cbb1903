"""A blocking client for link peers: the command line, `verify`, tools, tests.

One socket, one thread, no event loop. Requests have ids, so answers to pipelined appends may come while
another request waits: they are kept for `poll`. A client belongs to one thread at a time.

Two kinds of failure, and what to do about each:

- `LinkDown`: the peer is gone, silent, or sends invalid frames. The connection is closed; back off and connect again. Requests in
  flight may or may not have been carried out; the chain rule makes it harmless to send them again.
- `LinkRefused`: the peer answered this one request with an error. The connection stays open (except after a refused CONNECT);
  the same request will be refused again until something was changed.

The pipeline's tasks wait for several clusters at once and have a non-blocking shell of their own (`pipeline.tasks.link_channel`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ErrorCode, MagnetarError
from magnetar.core.ids import NONE, Position
from magnetar.runtime.network.link_connection import LinkConnection, LinkDown, LinkRefused
from magnetar.runtime.security import tls
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

__all__ = ["Appended", "Entries", "LinkClient", "LinkDown", "LinkRefused", "geo_position"]

WINDOW_REQUESTS: Final = 64
"""Backpressure: appends in flight. Enough for a disk's sync to be amortised; more only waits at the other end."""

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Backpressure: bytes of appends in flight, which this process keeps in memory until they are sent."""

TIMEOUT_MS: Final = 10_000
"""How long an answer may take. A sync of a disk in trouble takes seconds; a peer that is silent for longer is down."""

READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one GEO_READ asks for by default: large enough that the round trip does not count."""


class Entries(NamedTuple):
    """The answer to a read: columns about the entries, and their bytes one after the other (`response.sizes`)."""

    response: pb.CommandGeoReadResponse
    payload: bytes


class Appended(NamedTuple):
    """The answer to one append; `refusal` is set, and `response` empty, if it was answered by an error."""

    request_id: int
    response: pb.CommandGeoAppendResponse
    refusal: LinkRefused | None = None


def geo_position(position: Position) -> pb.GeoPosition:
    """A position as link commands carry it."""
    return pb.GeoPosition(ledger=position.ledger, entry=position.entry)


class LinkClient:
    """An authenticated connection to a broker, for link commands. Made by `connect`.

    Attributes:
        address: of the broker.
        hello: who the broker is: cluster name and uuid.
        message_bytes_max: the largest entry that it accepts.
    """

    def __init__(
        self, address: str, connection: LinkConnection, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self.hello = connection.hello
        self.message_bytes_max = connection.message_bytes_max
        self._connection = connection
        self._clock = clock
        self._appends: dict[int, int] = {}  # bytes of each append in flight
        self._append_bytes = 0
        self._appended: list[Appended] = []

    @classmethod
    def connect(
        cls,
        addresses: BrokerAddresses | str,
        token: bytes | str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Connect to the broker of a cluster that serves, and present the link token.

        Args:
            addresses: of the cluster's brokers: `host:port`, or `pulsar+ssl://host:port` (see
                `runtime.security.tls.target_of`); a text is `BrokerAddresses.parse`d.
            token: what links present: their shared secret, or a token (JWT) where there is authentication.
            timeout_ms: for connecting, and for each later answer. A silent broker is given up earlier if there is another one to
                try (`AddressRound.patience_s`).
            clock: seconds, monotonic.

        Raises:
            ConfigError: an address is not one.
            LinkDown: no broker is there, or no answer came in time; names every address that was tried.
            LinkRefused: the token is wrong, or the broker does not speak link commands of this version.
        """
        tries = (BrokerAddresses.parse(addresses) if isinstance(addresses, str) else addresses).round()
        presented = token.encode() if isinstance(token, str) else token
        refused: LinkRefused | None = None
        while True:
            timeout_s, began = timeout_ms / 1000, clock()
            patience_s = tries.patience_s(timeout_s)
            try:
                link = _connected(tries.address, presented, timeout_s, clock, patience_s)
            except (LinkDown, LinkRefused) as error:
                if isinstance(error, LinkRefused) and error.code is not ErrorCode.SERVICE_NOT_READY:
                    refused = error
                if not tries.failed(str(error), silent=clock() - began >= patience_s):
                    raise refused or LinkDown(tries.reason) from None
            else:
                tries.answered()
                return cls(tls.shown(tries.address), link, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; requests in flight are forgotten here."""
        self._connection.close()

    @property
    def in_flight(self) -> int:
        """Appends without an answer yet."""
        return len(self._appends)

    # ------------------------------------------------------------------------------------------------------- requests

    def topics(
        self,
        to: str,
        counter: int = 0,
        *,
        boot: int = 0,
        wait_ms: int = 0,
        pipeline: str = "",
        lease_ms: int = 0,
    ) -> pb.CommandGeoTopicsResponse:
        """The topics of the link to cluster `to` whose state changed after `counter` (0: all of them).

        Args:
            to: the destination's name.
            counter, boot: of the last answer.
            wait_ms: how long the broker may wait for a change (a long poll).
            pipeline, lease_ms: who asks, and for how long it wants the link's advisory lease; "" asks for none.

        Raises:
            LinkDown, LinkRefused: see above; as every request.
        """
        command = pb.BaseCommand(type=pb.GEO_TOPICS)
        ask = command.geo_topics
        ask.to, ask.counter, ask.boot, ask.wait_ms = to, counter, boot, wait_ms
        if pipeline:
            ask.pipeline, ask.lease_ms = pipeline, lease_ms
        return self._ask(command, extra_ms=wait_ms).command.geo_topics_response

    def read(
        self,
        topic: str,
        after: Position = NONE,
        *,
        to: str | None = None,
        up_to: Position | None = None,
        bytes_max: int = READ_BYTES,
        origin: str | None = None,
    ) -> Entries:
        """Entries after a position, at least one if there is one.

        Args:
            topic: fully qualified; a partition by its own name.
            after: exclusive.
            to: only what the link to this cluster carries; None: every entry, of whatever kind.
            up_to: inclusive; None: the newest readable.
            bytes_max: of the payload; one entry may be larger.
            origin: instead of `to`: only messages that this cluster published, with where they stood there.

        Raises:
            LinkDown, LinkRefused: see above.
        """
        command = pb.BaseCommand(type=pb.GEO_READ)
        ask = command.geo_read
        ask.topic, ask.bytes_max = topic, bytes_max
        ask.after.CopyFrom(geo_position(after))
        if to is not None:
            ask.to = to
        if origin is not None:
            ask.origin = origin
        if up_to is not None:
            ask.up_to.CopyFrom(geo_position(up_to))
        answer = self._ask(command)
        response = answer.command.geo_read_response
        if response.HasField("error"):
            raise LinkRefused(response.error, response.message, self.address)
        if sum(response.sizes) != len(answer.payload):
            raise self._connection.die(f"{len(answer.payload)} bytes came for entries of {sum(response.sizes)} bytes")
        return Entries(response, answer.payload.tobytes())

    def commit(
        self,
        to: str,
        commits: Iterable[pb.GeoCommitTopic] = (),
        learned: Iterable[pb.GeoLearnTopic] = (),
        *,
        pipeline: str = "",
    ) -> pb.CommandGeoCommitResponse:
        """Report to the source how far the link to `to` got, and what its destination is known to hold.

        Raises:
            LinkDown, LinkRefused: see above.
        """
        command = pb.BaseCommand(type=pb.GEO_COMMIT)
        tell = command.geo_commit
        tell.to = to
        tell.commits.extend(commits)
        tell.learned.extend(learned)
        if pipeline:
            tell.pipeline = pipeline
        response = self._ask(command).command.geo_commit_response
        if response.HasField("error"):
            raise LinkRefused(response.error, response.message, self.address)
        return response

    def watermarks(
        self, source: str, uuid: str, queries: Iterable[pb.GeoWatermarkQuery] = (), *, counter: int = 0
    ) -> pb.CommandGeoWatermarksResponse:
        """The positions that the destination durably holds of a source cluster (name and uuid), by topic.

        Raises:
            LinkDown, LinkRefused: see above.
        """
        command = pb.BaseCommand(type=pb.GEO_WATERMARKS)
        ask = command.geo_watermarks
        ask.source, ask.uuid, ask.counter = source, uuid, counter
        ask.topics.extend(queries)
        return self._ask(command).command.geo_watermarks_response

    def restore(
        self, request: pb.CommandGeoRestore, buffers: Sequence[bytes | memoryview] = ()
    ) -> pb.CommandGeoRestoreResponse:
        """Give a wiped cluster messages of its earlier data folder (all but `request_id` is set); waits for its disk.

        Raises:
            LinkDown, LinkRefused: see above.
        """
        command = pb.BaseCommand(type=pb.GEO_RESTORE, geo_restore=request)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        request_id = self._connection.request(command, views)
        return self._connection.wait_for(request_id).command.geo_restore_response

    def schemas(self, topic: str, numbering: int, versions: Iterable[int]) -> pb.CommandGeoSchemasResponse:
        """Schemas of a topic by the versions that its entries carry (GEO_SCHEMAS), deleted ones included.

        Args:
            topic: full name.
            numbering: as in the answer to GEO_READ that the entries came with.
            versions: their numbers.

        Raises:
            LinkDown, LinkRefused: see above.
        """
        command = pb.BaseCommand(type=pb.GEO_SCHEMAS)
        ask = command.geo_schemas
        ask.topic, ask.schema_numbering = topic, numbering
        ask.versions.extend(versions)
        return self._ask(command).command.geo_schemas_response

    def answer_schemas(self, ask: Callable[[pb.CommandGeoSchemasWanted], pb.CommandGeoSchemasResponse]) -> None:
        """From now on answer the broker's GEO_SCHEMAS_WANTED, which it sends when an append has schemas that it does not know.

        Args:
            ask: asks the source (`schemas`); may raise LinkDown or LinkRefused.
        """

        def brought(wanted: pb.CommandGeoSchemasWanted) -> pb.CommandGeoSchemasBrought:
            try:
                found = ask(wanted)
            except (LinkDown, LinkRefused) as error:
                return pb.CommandGeoSchemasBrought(ticket=wanted.ticket, reason=str(error))
            return pb.CommandGeoSchemasBrought(ticket=wanted.ticket, found=found.found, missing=found.missing)

        self._connection.answer_schemas(brought)

    def status(self, to: str | None = None) -> pb.CommandGeoStatusResponse:
        """The blocked topics and the reasons: of the link to `to`, or of all links.

        Raises:
            LinkDown, LinkRefused: see above.
        """
        command = pb.BaseCommand(type=pb.GEO_STATUS)
        if to is not None:
            command.geo_status.to = to
        return self._ask(command).command.geo_status_response

    # -------------------------------------------------------------------------------------------------------- appends

    def append_async(self, append: pb.CommandGeoAppend, buffers: Sequence[bytes | memoryview]) -> int:
        """Send entries; their answer comes by `poll`. Waits while the window is full.

        Args:
            append: all but `request_id`, which is set here.
            buffers: the entries' bytes, cut as you like; not copied, so leave them alone until the answer came.

        Returns:
            The request id.

        Raises:
            ValueError: `buffers` have not as many bytes as `append.sizes` say, or the columns differ in length.
            LinkDown: see above.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        size = sum(map(len, views))
        columns = {len(append.sizes), len(append.ledgers), len(append.entries), len(append.first_indexes)}
        if size != sum(append.sizes) or columns != {len(append.counts)}:
            raise ValueError(f"{size} bytes in buffers, {sum(append.sizes)} in columns of lengths {sorted(columns)}")
        self._collect()
        while len(self._appends) >= WINDOW_REQUESTS or (self._appends and self._append_bytes + size > WINDOW_BYTES):
            self._connection.turn(self._connection.deadline())
            self._collect()
        request_id = self._connection.request(pb.BaseCommand(type=pb.GEO_APPEND, geo_append=append), views)
        self._appends[request_id] = size
        self._append_bytes += size
        return request_id

    def poll(self, timeout_ms: int = 0) -> list[Appended]:
        """Answers to appends, in the order in which they came; also answers the broker's pings.

        Args:
            timeout_ms: how long to wait for the first; 0: take what is there. Returns at once if nothing is in flight.

        Raises:
            LinkDown: see above.
        """
        connection = self._connection
        until = self._clock() + timeout_ms / 1000
        if not self._collect():
            connection.turn(self._clock())
            while not self._collect() and self._appends and self._clock() < until:
                connection.turn(min(until, connection.deadline()))
        answers, self._appended = self._appended, []
        return answers

    def _collect(self) -> bool:
        """Take the answers to appends out of the connection; whether there are any for `poll`."""
        responses = self._connection.responses
        for request_id in [key for key in responses if key in self._appends]:
            response = responses.pop(request_id)
            self._append_bytes -= self._appends.pop(request_id)
            refusal = None
            if response.error is not None:
                refusal = LinkRefused(response.error.error, response.error.message, self.address)
            self._appended.append(Appended(request_id, response.command.geo_append_response, refusal))
        return bool(self._appended)

    def _ask(self, command: pb.BaseCommand, *, extra_ms: int = 0) -> Response:
        """Send a request, wait for its response."""
        return self._connection.wait_for(self._connection.request(command, extra_s=extra_ms / 1000))


def _connected(
    address: str, token: bytes, timeout_s: float, clock: Callable[[], float], patience_s: float
) -> LinkConnection:
    """A connection to one broker that has accepted the token; `patience_s` bounds each step until then."""
    try:
        connection = tls.connect(address, patience_s)
    except OSError as error:
        raise LinkDown(f"{tls.shown(address)}: {error.strerror or error}") from None
    link = LinkConnection(connection, tls.shown(address), timeout_s, clock)
    try:
        link.handshake(token, patience_s)
    except MagnetarError:
        link.close()
        raise
    return link
