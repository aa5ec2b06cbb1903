"""Fetches schemas: a destination asks for them in the middle of an append; the source is asked, and its answer is passed on.

No schema is remembered here: only the two brokers know the meaning of a version. The append waits at the destination for the
answer, so a silent source must not delay it for long. After a while the destination gets a reason instead of schemas, answers
`retry`, and the range is tried again later.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.pipeline.tasks.link_channel import LinkChannel, keep_channel, open_channel
from magnetar.pipeline.tasks.task_read import Connect
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

PATIENCE_SHARE: Final = 0.8
"""Share of the silence after which a destination is given up: a source must be given up before its destination is."""

Reply = Callable[[pb.CommandGeoSchemasBrought], None]


@dataclass(slots=True)
class SchemaRequest:
    """The question of a destination, and the function for the reply."""

    wanted: pb.CommandGeoSchemasWanted
    reply: Reply
    until: float


class SchemaFetcher:
    """Asks sources for schemas, for one task.

    Args:
        token: of the links.
        connect: opens or takes a kept connection to an address.
        clock: seconds, monotonic.
    """

    def __init__(
        self, token: str, *, connect: Connect = open_channel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token, self._connect, self._clock = token, connect, clock
        self._channels: dict[str, LinkChannel] = {}
        self._asked: dict[tuple[str, int], SchemaRequest] = {}

    def ask(self, address: str, wanted: pb.CommandGeoSchemasWanted, patience_ms: int, reply: Reply) -> None:
        """Pass a destination's request on to a source; `reply` is called once, whatever happens."""
        until = self._clock() + patience_ms / 1000 * PATIENCE_SHARE
        request = SchemaRequest(wanted, reply, until)
        try:
            channel = self._channels.get(address) or self._connect(address, self._token)
        except LinkDown as down:
            self._answer(request, str(down))
            return
        self._channels[address] = channel
        command = pb.BaseCommand(type=pb.GEO_SCHEMAS)
        command.geo_schemas.topic = wanted.topic
        command.geo_schemas.schema_numbering = wanted.schema_numbering
        command.geo_schemas.versions.extend(wanted.versions)
        self._asked[address, channel.request(command)] = request

    @staticmethod
    def _answer(request: SchemaRequest, reason: str) -> None:
        request.reply(pb.CommandGeoSchemasBrought(ticket=request.wanted.ticket, reason=reason))

    @property
    def channels(self) -> dict[LinkChannel, str]:
        """Connections on which an answer is awaited, with their addresses."""
        return {self._channels[address]: address for address, _ in self._asked}

    @property
    def patience_s(self) -> float:
        """How long to wait for the answer that is due next."""
        return max(0.0, min((request.until for request in self._asked.values()), default=0.0) - self._clock())

    def pump(self, address: str, readable: bool, writable: bool) -> None:
        """Send and receive on one of `channels`."""
        channel = self._channels[address]
        try:
            events = channel.pump(readable, writable)
        except LinkDown as down:
            self._lost(address, str(down))
            return
        for event in events:
            if event.command.type == pb.ERROR:
                self._lost(address, event.command.error.message)
                return
            request = self._asked.pop((address, event.request_id), None) if isinstance(event, Response) else None
            if request is not None:
                response, ticket = event.command.geo_schemas_response, request.wanted.ticket
                request.reply(
                    pb.CommandGeoSchemasBrought(ticket=ticket, found=response.found, missing=response.missing)
                )

    def give_up_silent(self) -> None:
        """Answer for sources that took too long."""
        now = self._clock()
        for address in {address for (address, _), request in self._asked.items() if request.until <= now}:
            self._lost(address, "the source did not reply the schemas in time")

    def _lost(self, address: str, reason: str) -> None:
        self._channels.pop(address).close()
        for key in [key for key in self._asked if key[0] == address]:
            self._answer(self._asked.pop(key), reason)

    def close(self) -> None:
        """The task is over: keep idle connections for the next one."""
        for address, channel in self._channels.items():
            if not any(asked == address for asked, _ in self._asked):
                keep_channel(channel, self._token)
            else:
                channel.close()
        self._channels.clear()
        self._asked.clear()
