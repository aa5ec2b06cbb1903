"""A client made of bytes: it sends what no official client would send."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder, encode, encode_with_payload
from tests.support.brokers import BrokerProcess


class Raw:
    """A client made of bytes."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.pulsar_port), timeout=10)
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def send(self, command: pb.BaseCommand, payload: bytes | None = None) -> None:
        """One frame."""
        buffers = [encode(command)] if payload is None else encode_with_payload(command, [payload])
        self.socket.sendall(b"".join(buffers))

    def answer(self) -> pb.BaseCommand | None:
        """The next command that is not a PING; None when the broker closed the connection."""
        while True:
            while self._frames:
                command = self._frames.pop(0).command
                if command.type != 18:
                    return command
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._decoder.feed(data)

    def handshake(self, **fields: object) -> pb.BaseCommand | None:
        """CONNECT."""
        connect_command = pb.CommandConnect(client_version="raw", protocol_version=21, **fields)  # type: ignore[arg-type]
        self.send(pb.BaseCommand(type=2, connect=connect_command))
        return self.answer()


@contextmanager
def raw(broker: BrokerProcess) -> Iterator[Raw]:
    """A raw connection."""
    client = Raw(broker)
    try:
        yield client
    finally:
        client.socket.close()


def open_producer(client: Raw, topic: str, name: str | None = None) -> None:
    """CONNECT and PRODUCER."""
    assert client.handshake().type == 3  # type: ignore[union-attr]
    producer = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name=name)
    client.send(pb.BaseCommand(type=5, producer=producer))
    assert client.answer().type == 17  # type: ignore[union-attr]


def send(client: Raw, sequence: int, payload: bytes, *, marker: bool = False) -> pb.BaseCommand | None:
    """SEND and its answer."""
    command = pb.CommandSend(producer_id=1, sequence_id=sequence, marker=marker)
    client.send(pb.BaseCommand(type=6, send=command), payload)
    return client.answer()


def metadata(**fields: object) -> pb.MessageMetadata:
    """Message metadata."""
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)  # type: ignore[arg-type]
