"""A raw pipelined producer: measures a broker, not a client library.

    python bench/loadgen.py --url 127.0.0.1:6650 --topic t --messages 300000 --size 1024 --window 1000
    python bench/loadgen.py --url 127.0.0.1:6650 --topic t --messages 5000 --size 1024 --rate 1000

Two modes. Closed loop: never more than `--window` entries without a receipt, as fast as that goes. Open loop (`--rate`, in
messages per second): entries go out by the clock whatever the broker does, so a stall shows as latency instead of as a
lower rate.

Every header, metadata and checksum is made before the clock starts; while it runs, each entry costs two references in a
`sendmsg` and each receipt one comparison with the bytes it ought to begin with (sequence ids in order; anything else is
parsed properly, and an error if out of order). Works against any Pulsar broker. Prints one JSON object; exit code 1 with
one line on stderr when the broker refuses, goes away, or confirms out of order.
"""

import argparse
import json
import os
import resource
import select
import socket
import struct
import sys
import time
import uuid
from array import array
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch
from magnetar.wire.frames import FrameDecoder, encode
from magnetar.wire.varint import varint

BUFFERS_PER_SEND: Final = 512
"""Below the kernel's limit of 1,024 for one sendmsg; 256 entries."""

SEND_BYTES_AHEAD: Final = 1 << 20
"""How much one sendmsg is given at most: more would only be looked at and refused by a full socket."""

RECEIVE_BYTES: Final = 256 * 1024
DUPLICATE: Final = b"\x08\xff\xff\xff\xff"
"""How the message id of a receipt begins that says "I had this already" (ledger -1)."""

STALL_S: Final = 30.0
"""No receipt for this long while some are due: the broker is stuck."""


class Plan(NamedTuple):
    """What will be sent, ready for the socket."""

    heads: list[bytes]
    payload: bytes
    receipts: list[bytes]
    entries: int
    per_entry: int


def send_head(producer_id: int, sequence: int, metadata: bytes, payload: bytes, count: int) -> bytes:
    """Everything of a SEND frame in front of the payload."""
    command = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence)
    if count > 1:
        command += b"\x18" + varint(count)
    command = b"\x08\x06\x32" + varint(len(command)) + command
    body = len(metadata).to_bytes(4, "big") + metadata
    checksum = crc32c(payload, crc32c(body))
    total = 4 + len(command) + 6 + len(body) + len(payload)
    return b"".join((struct.pack(">II", total, len(command)), command, b"\x0e\x01", checksum.to_bytes(4, "big"), body))


def prepare(options: argparse.Namespace, producer: str) -> Plan:
    """Make every byte that will be sent, and the first bytes of every receipt that must come."""
    batch = options.batch
    entries = -(-options.messages // batch)
    message = os.urandom(options.size)
    payload = message if batch == 1 else encode_batch([(pb.SingleMessageMetadata(), message)] * batch)
    if options.key and batch > 1:
        raise MagnetarError("--key goes with --batch 1: all batches share one payload here")
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=0, publish_time=int(time.time() * 1000))
    if batch > 1:
        metadata.num_messages_in_batch = batch
    heads, receipts = [], []
    for number in range(entries):
        sequence = number * batch
        metadata.sequence_id = sequence
        if options.key:
            del metadata.properties[:]
            metadata.properties.add(key=options.key, value=str(uuid.uuid4()))
        heads.append(send_head(1, sequence, metadata.SerializeToString(), payload, batch))
        receipts.append(b"\x08\x01\x10" + varint(sequence) + b"\x1a")
    return Plan(heads, payload, receipts, entries, batch)


def connect(options: argparse.Namespace) -> tuple[socket.socket, str]:
    """Connect, shake hands, open a producer; the socket and the producer's name.

    Raises:
        MagnetarError: refused, or not there.
    """
    host, _, port = options.url.removeprefix("pulsar://").rstrip("/").rpartition(":")
    try:
        link = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
    except ValueError:
        raise MagnetarError(f"--url {options.url}: write host:port") from None
    except OSError as error:
        raise MagnetarError(f"{options.url}: {error.strerror or error}") from None
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    decoder = FrameDecoder()
    hello = pb.CommandConnect(client_version="magnetar-loadgen", protocol_version=19)
    answer = call(link, decoder, pb.BaseCommand(type=2, connect=hello))
    if answer.type != 3:
        raise MagnetarError(f"{options.url}: refused CONNECT: {answer.error.message or answer.type}")
    topic = str(TopicName.parse(options.topic))
    opening = pb.CommandProducer(topic=topic, producer_id=1, request_id=1)
    if options.producer:
        opening.producer_name = options.producer
    answer = call(link, decoder, pb.BaseCommand(type=5, producer=opening))
    if answer.type != 17:
        raise MagnetarError(f"{options.url}: refused the producer: {answer.error.message or answer.type}")
    return link, answer.producer_success.producer_name


def call(link: socket.socket, decoder: FrameDecoder, command: pb.BaseCommand) -> pb.BaseCommand:
    """One request, one answer (pings in between are answered)."""
    link.sendall(encode(command))
    while True:
        data = link.recv(65536)
        if not data:
            raise MagnetarError("the broker closed the connection")
        for frame in decoder.feed(data):
            if frame.command.type == 18:
                link.sendall(encode(pb.BaseCommand(type=19, pong=pb.CommandPong())))
            elif frame.command.type != 19:
                return frame.command


class Run:
    """One measurement.

    Args:
        link: a connection with an open producer 1.
        plan: what to send.
        window: entries without a receipt, at most.
        gap_s: open loop: seconds from one entry to the next; 0: closed loop.
    """

    def __init__(self, link: socket.socket, plan: Plan, window: int, gap_s: float) -> None:
        self.link = link
        self.plan = plan
        self.window = window
        self.gap_s = gap_s
        self.given = 0  # entries given to the socket, the last one perhaps in part
        self.confirmed = 0
        self.duplicates = 0
        self.sent_at = array("d", bytes(8 * plan.entries))
        self.latency = array("d", bytes(8 * plan.entries))
        self.late_s = array("d")  # open loop: how far this process woke behind the clock
        self._started = 0.0
        self.first = self.last = ""
        self._rest: list[memoryview | bytes] = []
        self._pongs = 0
        self._blocked = False
        self._received = bytearray(RECEIVE_BYTES)
        self._filled = 0
        self._per_send = max(1, min(BUFFERS_PER_SEND // 2, SEND_BYTES_AHEAD // (len(plan.payload) + 100)))

    def go(self) -> float:
        """Send everything, wait for every receipt; the seconds from the first byte to the last receipt.

        Raises:
            MagnetarError: the broker refused, went away, stalled, or confirmed out of order.
        """
        self.link.setblocking(False)
        entries = self.plan.entries
        started = heard = self._started = time.perf_counter()
        while self.confirmed < entries:
            now = time.perf_counter()
            due = self._due(now, started)
            if due > self.given or self._rest or self._pongs:
                self._send(due, now)
            more = bool(self._rest) or self._due(now, started) > self.given
            wait = 0.0 if more and not self._rest else STALL_S
            if self.gap_s and self.given < entries and not self._rest:
                wait = max(0.0, started + self.given * self.gap_s - time.perf_counter())
            readable, _, _ = select.select([self.link], [self.link] if self._rest else [], [], wait)
            if readable:
                self._receive()
                heard = time.perf_counter()
            elif self.given > self.confirmed and time.perf_counter() - heard > STALL_S:
                raise MagnetarError(f"no receipt for {STALL_S:.0f} s; {self.confirmed} of {entries} entries confirmed")
            elif self.given == self.confirmed:
                heard = time.perf_counter()
        return time.perf_counter() - started

    def _due(self, now: float, started: float) -> int:
        """How many entries ought to have been given to the socket by now."""
        if self.gap_s:
            return min(self.plan.entries, int((now - started) / self.gap_s) + 1)
        return min(self.plan.entries, self.confirmed + self.window)

    def _send(self, due: int, now: float) -> None:
        buffers = self._rest
        if not buffers:
            if self._pongs:
                buffers = [encode(pb.BaseCommand(type=19, pong=pb.CommandPong()))] * self._pongs
                self._pongs = 0
            upto = min(due, self.given + self._per_send)
            heads, payload = self.plan.heads, self.plan.payload
            for number in range(self.given, upto):
                buffers += (heads[number], payload)
                self.sent_at[number] = self._since(number, now)
            self.given = upto
            self._blocked = False
        try:
            sent = self.link.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
            self._blocked = True
        except OSError as error:
            raise MagnetarError(f"the connection failed: {error.strerror}") from None
        at = 0
        while at < len(buffers) and sent >= len(buffers[at]):
            sent -= len(buffers[at])
            at += 1
        rest: list[memoryview | bytes] = list(buffers[at:])
        self._blocked = self._blocked or bool(rest)
        if sent:
            rest[0] = memoryview(rest[0])[sent:]
        self._rest = rest

    def _since(self, number: int, now: float) -> float:
        """From when an entry's latency counts.

        Open loop: if the socket took nothing when the entry was due, from then: the broker's stall must not hide behind
        what was not sent. If this process merely woke late, from its waking: that is no matter of the broker's.
        """
        if not self.gap_s:
            return now
        wanted = self._started + number * self.gap_s
        self.late_s.append(now - wanted)
        return wanted if self._blocked else now

    def _receive(self) -> None:
        try:
            count = self.link.recv_into(memoryview(self._received)[self._filled :])
        except OSError as error:
            raise MagnetarError(f"the connection failed: {error.strerror}") from None
        if not count:
            raise MagnetarError(f"the broker closed the connection; {self.confirmed} entries are confirmed")
        now = time.perf_counter()
        end = self._filled + count
        data = bytes(memoryview(self._received)[:end])
        expected, sent_at, latency = self.plan.receipts, self.sent_at, self.latency
        at = 0
        while end - at >= 8:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            # Body of a SEND_RECEIPT of less than 128 bytes: type, field, one byte of size; then what must come next.
            number = self.confirmed
            if (
                number >= self.given
                or data[at + 8 : at + 11] != b"\x08\x07\x3a"
                or not data.startswith(expected[number], at + 12)
                or data.startswith(DUPLICATE, at + 13 + len(expected[number]))
                or number in (0, self.plan.entries - 1)
            ):
                self._other(data[at:stop])
            else:
                self.confirmed = number + 1
            if self.confirmed > number:
                latency[number] = now - sent_at[number]
            at = stop
        self._received[: end - at] = data[at:end]
        self._filled = end - at

    def _other(self, data: bytes) -> None:
        """Anything but the receipt that was expected, byte for byte."""
        (frame,) = FrameDecoder().feed(data)
        command = frame.command
        if command.type == 18:
            self._pongs += 1
        elif command.type == 7:
            receipt = command.send_receipt
            wanted = self.confirmed * self.plan.per_entry
            if receipt.sequence_id != wanted or self.confirmed >= self.given:
                raise MagnetarError(f"receipt out of order: {receipt.sequence_id} came where {wanted} was due")
            place = f"{receipt.message_id.ledgerId}:{receipt.message_id.entryId}"
            if receipt.message_id.ledgerId == 2**64 - 1:
                self.duplicates += 1
            self.first, self.last = self.first or place, place
            self.confirmed += 1
        elif command.type == 8:
            raise MagnetarError(f"entry {command.send_error.sequence_id} was refused: {command.send_error.message}")
        elif command.type == 15:
            raise MagnetarError("the broker closed the producer")
        elif command.type != 19:
            raise MagnetarError(f"the broker sent command type {command.type}: {command.error.message}")


def percentiles(seconds: "array[float]") -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {name: round(ordered[int(last * share)] * 1000, 3) for name, share in points.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Prepare, connect, run; the figures.

    Raises:
        MagnetarError: see `Run.go`.
    """
    began = time.perf_counter()
    link, producer = connect(options)
    plan = prepare(options, producer)
    prepared = time.perf_counter() - began
    run = Run(link, plan, options.window, options.batch / options.rate if options.rate else 0.0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = run.go()
    after = resource.getrusage(resource.RUSAGE_SELF)
    link.close()
    messages = plan.entries * plan.per_entry
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "mode": "open" if options.rate else "closed",
        "messages": messages,
        "entries": plan.entries,
        "seconds": round(seconds, 4),
        "messages_per_s": round(messages / seconds, 1),
        "entries_per_s": round(plan.entries / seconds, 1),
        "mb_per_s": round(messages * options.size / seconds / 1e6, 2),
        "latency_ms": percentiles(run.latency),
        "in_order": True,
        "late_ms": percentiles(run.late_s) if run.late_s else None,
        "duplicates": run.duplicates,
        "first": run.first,
        "last": run.last,
        "prepare_s": round(prepared, 3),
        # Near 1 means that the generator was the limit, not the broker.
        "generator_cpu": round(cpu / seconds, 3),
    }


def positive(text: str) -> int:
    """An argument that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def command_line() -> argparse.ArgumentParser:
    """The options of a run; tests take their defaults from here too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="127.0.0.1:6650", help="host:port of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=positive, default=100_000)
    parser.add_argument("--size", type=positive, default=1024, help="bytes of one message")
    parser.add_argument(
        "--batch", type=positive, default=1, help="messages of one entry; --messages is rounded up to whole entries"
    )
    parser.add_argument("--window", type=positive, default=1000, help="closed loop: entries without a receipt, at most")
    parser.add_argument("--rate", type=float, default=0.0, help="open loop: messages per second")
    parser.add_argument(
        "--key", default="", metavar="PROPERTY", help="give each message a property with a unique value"
    )
    parser.add_argument("--producer", default="", help="producer name; default: the broker's choice")
    return parser


def main() -> int:
    """Parse, measure, print."""
    options = command_line().parse_args()
    try:
        print(json.dumps(measure(options)))
    except MagnetarError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
