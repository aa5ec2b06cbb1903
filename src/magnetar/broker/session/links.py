"""The link commands of one connection (docs/design/links.md#link-commands): passing each to the machine that answers
it.

    GEO_TOPICS 1000, GEO_READ 1002, GEO_COMMIT 1006, GEO_STATUS 1010    the source side
    GEO_SCHEMAS 1014, GEO_FETCH 1018
    GEO_APPEND 1004, GEO_WATERMARKS 1008, GEO_SCHEMAS_BROUGHT 1017       the destination side
    GEO_RESTORE 1012                                                     a wiped cluster

Only connections with the link token, or with a role that may replicate, have a `LinkSession`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from magnetar.broker.connection import Connection
from magnetar.broker.session.link_access import LinkAccess
from magnetar.broker.session.read_chains import ReadChains
from magnetar.broker.session.services import SessionServices
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Send
from magnetar.replication.link.handshakes import name_of
from magnetar.replication.link.reading import Reading, ReadReply
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import request_id_of
from magnetar.wire.frame import Frame
from magnetar.wire.frames import encode, encode_with_payload
from magnetar.wire.positions import position_from_proto


class LinkSession:
    """The link side of a session.

    Args:
        connection: the connection.
        services: the services of sessions.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self._connection = connection
        self._services = services
        self._links = services.links
        self._access = LinkAccess(connection, services)
        self._reads = ReadChains(connection.outbox)

    def handle(self, frame: Frame) -> None:
        """One command.

        Raises:
            ProtocolError: it makes no sense; the connection ends.
        """
        try:
            _HANDLERS[frame.command.type](self, frame)
        except BrokerError as error:
            self._connection.refuse(request_id_of(frame.command), error)

    def disconnected(self) -> None:
        """The connection is gone."""
        self._reads.disconnected()
        self._links.disconnected(self._connection.number)

    def _answer(self, kind: int, **body: Any) -> None:
        self._connection.send(encode(pb.BaseCommand(type=kind, **body)))

    def _topics(self, frame: Frame) -> None:
        request = frame.command.geo_topics
        self._links.source(request.to).poll(
            self._connection.number,
            request,
            lambda response: self._answer(
                pb.GEO_TOPICS_RESPONSE, geo_topics_response=self._access.permitted_topics(response)
            ),
            narrow=self._access.narrow,
        )

    def _read(self, frame: Frame) -> None:
        request = frame.command.geo_read
        name_of(request.topic)

        def reply(response: pb.CommandGeoReadResponse, buffers: Sequence[bytes]) -> None:
            connection = self._connection
            if connection.closed:
                return
            if request.origin:
                response.schema_numbering = self._links.schemas.numbering(request.topic)
            command = pb.BaseCommand(type=pb.GEO_READ_RESPONSE, geo_read_response=response)
            connection.outbox.put(Send(connection.number, encode_with_payload(command, list(buffers))))

        self._reads.read(request, reply, self._begin_read)

    def _begin_read(self, request: pb.CommandGeoRead, reply: ReadReply) -> None:
        if (refused := self._access.refuse_read(request)) is not None:
            reply(refused, ())
            return
        if request.HasField("to") and request.to:
            self._links.source(request.to).read(request, reply)
            return
        topic = self._services.topics.get(request.topic)
        if topic is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {request.topic} does not exist")

        def failed(position: Position, error: str) -> None:
            connection = self._connection
            connection.outbox.put(Note("error", f"{request.topic} {position} cannot be read: {error}"))

        Reading(
            self._connection.outbox,
            topic.log,
            cluster=self._services.context.cluster,
            to="",
            request_id=request.request_id,
            after=position_from_proto(request.after),
            up_to=position_from_proto(request.up_to) if request.HasField("up_to") else None,
            bytes_max=min(request.bytes_max, self._services.context.config.link_read_bytes_max),
            reply=reply,
            failed=failed,
            origin=request.origin,
        ).start()

    def _fetch(self, frame: Frame) -> None:
        request = frame.command.geo_fetch
        connection = self._connection

        def reply(response: pb.CommandGeoFetchResponse, buffers: Sequence[bytes]) -> None:
            if not connection.closed:
                command = pb.BaseCommand(type=pb.GEO_FETCH_RESPONSE, geo_fetch_response=response)
                connection.outbox.put(Send(connection.number, encode_with_payload(command, list(buffers))))

        self._links.source(request.to).fetch(
            connection.number,
            request,
            reply,
            refusal=self._access.refusal,
            narrow=self._access.narrow,
        )

    def _append(self, frame: Frame) -> None:
        request = frame.command.geo_append
        if (refused := self._access.refuse_append(request)) is not None:
            self._answer(pb.GEO_APPEND_RESPONSE, geo_append_response=refused)
            return
        try:
            self._links.destination.append(
                self._connection.number,
                request,
                frame.payload,
                lambda response: self._answer(pb.GEO_APPEND_RESPONSE, geo_append_response=response),
                lambda wanted: self._answer(pb.GEO_SCHEMAS_WANTED, geo_schemas_wanted=wanted),
                whole=self._access.everywhere,
            )
        except ProtocolError as error:
            raise ProtocolError(f"GEO_APPEND for {request.topic[:100]!a}: {error}") from error

    def _restore(self, frame: Frame) -> None:
        request = frame.command.geo_restore
        self._access.check(request.topic)
        try:
            self._links.restores.machine.restore(
                self._connection.number,
                request,
                frame.payload,
                lambda response: self._answer(pb.GEO_RESTORE_RESPONSE, geo_restore_response=response),
                lambda wanted: self._answer(pb.GEO_SCHEMAS_WANTED, geo_schemas_wanted=wanted),
                whole=self._access.everywhere,
            )
        except ProtocolError as error:
            raise ProtocolError(f"GEO_RESTORE for {request.topic[:100]!a}: {error}") from error

    def _schemas(self, frame: Frame) -> None:
        request = frame.command.geo_schemas
        self._access.check(request.topic)
        name_of(request.topic)
        self._answer(pb.GEO_SCHEMAS_RESPONSE, geo_schemas_response=self._links.schemas.answer(request))

    def _brought(self, frame: Frame) -> None:
        """Pass it to a destination's machine, or to a restoring one's: the ticket names it."""
        brought = frame.command.geo_schemas_brought
        for translator in (self._links.destination.schemas, self._links.restores.machine.schemas):
            translator.brought(self._connection.number, brought)

    def _commit(self, frame: Frame) -> None:
        request = frame.command.geo_commit
        topics = (
            *(one.topic for one in request.commits),
            *(one.topic for one in request.learned),
            *(one.topic for one in request.grants),
        )
        for topic in topics:
            self._access.check(topic)
        self._links.commit(
            request,
            lambda response: self._answer(pb.GEO_COMMIT_RESPONSE, geo_commit_response=response),
            connection=self._connection.number,
            whole=self._access.everywhere,
            narrow=self._access.narrow,
        )

    def _watermarks(self, frame: Frame) -> None:
        refused = self._access.take_out_refused(frame.command.geo_watermarks)

        def reply(response: pb.CommandGeoWatermarksResponse) -> None:
            response.topics.extend(refused)
            self._answer(pb.GEO_WATERMARKS_RESPONSE, geo_watermarks_response=response)

        self._links.destination.watermarks(
            frame.command.geo_watermarks, reply, narrow=self._access.narrow, connection=self._connection.number
        )

    def _status(self, frame: Frame) -> None:
        request = frame.command.geo_status
        if request.HasField("to") and request.to:
            response = self._links.source(request.to).status(request.request_id)
        else:
            response = pb.CommandGeoStatusResponse(request_id=request.request_id)
            for source in self._links.sources.values():
                one = source.status(request.request_id)
                response.blocked.extend(one.blocked)
                response.gap += one.gap
        self._answer(pb.GEO_STATUS_RESPONSE, geo_status_response=self._access.permitted_blocks(response))


_HANDLERS: Final[dict[int, Callable[[LinkSession, Frame], None]]] = {
    pb.GEO_TOPICS: LinkSession._topics,
    pb.GEO_READ: LinkSession._read,
    pb.GEO_FETCH: LinkSession._fetch,
    pb.GEO_APPEND: LinkSession._append,
    pb.GEO_COMMIT: LinkSession._commit,
    pb.GEO_WATERMARKS: LinkSession._watermarks,
    pb.GEO_STATUS: LinkSession._status,
    pb.GEO_RESTORE: LinkSession._restore,
    pb.GEO_SCHEMAS: LinkSession._schemas,
    pb.GEO_SCHEMAS_BROUGHT: LinkSession._brought,
}
