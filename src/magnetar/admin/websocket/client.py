"""Requests to the broker over a connection inside the process; each answer is given to the task that waits for it."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.runtime.network.in_process import Heard, InsideConnection
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import NO_REQUEST, request_id_of
from magnetar.wire.versions import PROTOCOL_VERSION

CONNECT: Final = 2
CONNECTED: Final = 3
SUCCESS: Final = 13
ERROR: Final = 14
PRODUCER_SUCCESS: Final = 17
PING: Final = 18
PONG: Final = 19
PARTITIONED_METADATA: Final = 21
PARTITIONED_METADATA_RESPONSE: Final = 22
AUTH_CHALLENGE: Final = 36
AUTH_RESPONSE: Final = 37

ANSWER_S: Final = 30.0
"""The timeout of an answer: the operation timeout of clients."""


Opens = Callable[[Heard, Callable[[str], None]], InsideConnection]
"""Makes a connection to the broker that is not open yet (`runtime.network.server.PulsarServer.inside`)."""


class BrokerClient:
    """One connection to the broker.

    Args:
        opens: makes the connection.
        heard: called with commands that are not answers to a request: receipts, messages, ends of producers and
            consumers.

    Attributes:
        ended: set when the broker closed the connection.
        reason: why, "" when it did not say.
    """

    def __init__(self, opens: Opens, heard: Heard) -> None:
        self._connection = opens(self._received, self._closed)
        self._connection.on_free = self._freed
        self._heard = heard
        self._requests = count(1)
        self._waiting: dict[int, asyncio.Future[pb.BaseCommand]] = {}
        self._login: asyncio.Future[pb.BaseCommand] | None = None
        self._credentials: tuple[str, bytes] = ("", b"")
        self._free = asyncio.Event()
        self._free.set()
        self.ended = asyncio.Event()
        self.reason = ""

    async def connect(
        self, address: str, certificate: str, method: str, data: bytes, *, tls: bool, principal: str = ""
    ) -> None:
        """Connect and log in.

        Args:
            address: address of the WebSocket's client, with its port.
            certificate: common name of the client certificate that TLS checked, "" without.
            method, data: of authentication, "" and nothing without.
            tls: whether the client came by TLS.
            principal: the role that a proxy acts for; "": its own.

        Raises:
            BrokerError: the login is refused.
        """
        self._credentials = (method, data)
        self._login = asyncio.get_running_loop().create_future()
        self._connection.open(address, certificate, tls=tls)
        connect = pb.CommandConnect(client_version="Magnetar-WebSocket", protocol_version=PROTOCOL_VERSION)
        if method:
            connect.auth_method_name, connect.auth_data = method, data
        if principal:
            connect.original_principal = principal
        self._connection.tell(pb.BaseCommand(type=CONNECT, connect=connect))
        await _answer(self._login)

    def request_id(self) -> int:
        """The number of a new request."""
        return next(self._requests)

    async def ask(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send a request and wait for its answer.

        Raises:
            BrokerError: it is refused, or the connection ended, or no answer came in time.
        """
        number = request_id_of(command)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if self.ended.is_set():
                raise self._gone()
            self._connection.tell(command)
            return await _answer(future)
        finally:
            self._waiting.pop(number, None)

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; 0: it is not partitioned. It is created if clients may create it.

        Raises:
            BrokerError: as `ask`.
        """
        asked = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=self.request_id())
        answer = await self.ask(pb.BaseCommand(type=PARTITIONED_METADATA, partitionMetadata=asked))
        found = answer.partitionMetadataResponse
        if found.HasField("error"):
            raise BrokerError(ErrorCode.of(found.error), found.message)
        return int(found.partitions)

    def tell(self, command: pb.BaseCommand, payload: bytes = b"") -> None:
        """Send a command that has no answer, or whose answer is heard."""
        self._connection.tell(command, payload)

    def writable(self, writable: bool) -> None:
        """Say whether more messages can be taken."""
        self._connection.writable(writable)

    async def may_send(self) -> None:
        """Wait while the broker asks for a pause."""
        while self._connection.held and not self.ended.is_set():
            self._free.clear()
            await self._free.wait()

    def close(self) -> None:
        """Disconnect; tasks that wait for an answer get an error."""
        self._connection.end()
        self._fail()

    # --------------------------------------------------------------------------------------------------------- inside

    def _freed(self) -> None:
        self._free.set()

    def _closed(self, reason: str) -> None:
        self.reason = reason
        self._fail()

    def _fail(self) -> None:
        self.ended.set()
        self._free.set()
        for future in [*self._waiting.values(), *([self._login] if self._login is not None else [])]:
            if not future.done():
                future.set_exception(self._gone())

    def _gone(self) -> BrokerError:
        return BrokerError(ErrorCode.SERVICE_NOT_READY, self.reason or "the connection to the broker is closed")

    def _received(self, command: pb.BaseCommand, payload: bytes) -> None:
        if command.type == PING:
            self._connection.tell(pb.BaseCommand(type=PONG, pong=pb.CommandPong()))
        elif command.type == AUTH_CHALLENGE:
            self._prove()
        elif command.type == CONNECTED or (command.type == ERROR and command.error.request_id == NO_REQUEST):
            _resolve(self._login, command)
        elif (future := self._waiting.get(request_id_of(command))) is not None:
            _resolve(future, command)
        else:
            self._heard(command, payload)

    def _prove(self) -> None:
        """Credentials expire. A WebSocket cannot send new ones: if these are too old, the connection ends."""
        method, data = self._credentials
        response = pb.CommandAuthResponse(
            client_version="Magnetar-WebSocket",
            protocol_version=PROTOCOL_VERSION,
            response=pb.AuthData(auth_method_name=method, auth_data=data),
        )
        self._connection.tell(pb.BaseCommand(type=AUTH_RESPONSE, authResponse=response))


def _resolve(future: asyncio.Future[pb.BaseCommand] | None, command: pb.BaseCommand) -> None:
    if future is None or future.done():
        return
    if command.type == ERROR:
        future.set_exception(BrokerError(ErrorCode.of(command.error.error), command.error.message))
    else:
        future.set_result(command)


async def _answer(future: asyncio.Future[pb.BaseCommand]) -> pb.BaseCommand:
    try:
        return await asyncio.wait_for(future, ANSWER_S)
    except TimeoutError:
        raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"the broker gave no answer in {ANSWER_S:.0f} s") from None
