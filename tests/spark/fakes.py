"""Clusters in memory that speak the link commands over real sockets, with the rules of geo-replication.md.

One `FakeCluster` is source and destination at once: it has logs, cursors `(C, S, gen)`, watermarks (pushed, persisted),
change counters. It checks what it gets: an entry stored twice, out of order, or of a wrong origin is kept as a violation.
Faults are switches (`down`, `silent`, `fail_appends`, `blocked`, ...). Nothing here is clever; it is the dumb twin of the
broker.
"""

import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD
from magnetar.wire.frames import FrameDecoder, encode_head
from tests.support.patience import PATIENCE

TOKEN = "a secret of the links"


@dataclass
class Entry:
    """One entry of a log, with its identity."""

    position: Position
    origin: str
    incarnation: int
    first_index: int
    count: int
    flags: int
    publish_time: int
    data: bytes
    only_for: tuple[str, ...] = ()


@dataclass
class Cursor:
    """(C, S, gen) of one link and topic, and what the destination said of it."""

    c: Position = NONE
    s: Position = NONE
    gen: int = 1
    blocked: str = ""
    reason: str = ""
    learned: int = 0
    paused: bool = False


@dataclass
class Topic:
    """One topic of one cluster."""

    name: str
    incarnation: int
    partitions: int = 0
    ledger: int = 0
    log: list[Entry] = field(default_factory=list)
    next_index: int = 0
    cursors: dict[str, Cursor] = field(default_factory=dict)
    pushed: dict[str, Position] = field(default_factory=dict)
    persisted: dict[str, Position] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)

    @property
    def last(self) -> Position:
        return self.log[-1].position if self.log else NONE


_payloads: dict[tuple[int, str, int, tuple[tuple[str, object], ...]], bytes] = {}


def entry_bytes(size: int, *, producer: str = "p", sequence: int = 0, key: str | None = None, **extra: object) -> bytes:
    """A client's entry: magic, checksum, metadata and `size` bytes of payload."""
    data = pb.MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=1_700_000_000_000)
    if key is not None:
        data.partition_key = key
    for name, value in extra.items():
        setattr(data, name, value)
    return metadata.build(data, (f"{producer}:{sequence}:".encode() * (size // 4 + 1))[:size])


class FakeCluster:
    """A cluster; `start` opens its port."""

    ledgers = itertools.count(100)

    def __init__(self, name: str) -> None:
        self.name = name
        self.uuid = f"uuid-{name}-{next(self.ledgers)}"
        self.topics: dict[str, Topic] = {}
        self.lock = threading.Condition()
        self.counter = 1  # of changes, for GEO_TOPICS
        self.destination_counter = 1
        self.violations: list[str] = []
        self.silent = False
        self.block: dict[str, tuple[str, str]] = {}
        self.block_link: tuple[str, str] | None = None
        self.fail_appends = 0
        self.throttle_ms = 0
        self.throttle_rate = 0
        self.lost_polls = 0
        self.hasty = False  # answers appends before they are persisted, as no broker may
        self.appends = 0
        self.reads = 0
        self.reads_follow = True  # False: a broker of the last version
        self._read_ends: dict[tuple[object, int], tuple[Position, bool]] = {}
        self.commits = 0
        self.append_hook: Callable[[pb.CommandGeoAppend], None] | None = None
        self.serving = threading.local()  # `peer`: whose request this thread answers
        self._server: socketserver.ThreadingTCPServer | None = None
        self._connections: set[socket.socket] = set()
        self.port = 0

    # ------------------------------------------------------------------------------------------------------ the network

    def start(self) -> "FakeCluster":
        cluster = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                cluster._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the port and every connection, as a killed broker does."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self.lock:
            for topic in self.topics.values():  # what was not persisted is gone
                topic.pushed = dict(topic.persisted)
            self.destination_counter += 1

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _serve(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        with suppress(OSError):  # it is gone already
            self.serving.peer = connection.getpeername()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = FrameDecoder(64 << 20)
        linked = False
        sending = threading.Lock()
        try:
            while data := connection.recv(1 << 20):
                while self.silent:
                    time.sleep(0.01)
                for command, payload in decoder.feed(data):
                    if command.type == 2:
                        linked = command.connect.auth_data == TOKEN.encode()
                        linked = linked and command.connect.auth_method_name == LINK_AUTH_METHOD
                        answer = pb.BaseCommand(type=3, connected=pb.CommandConnected(server_version="fake"))
                        if linked:
                            answer.connected.geo.CopyFrom(
                                pb.GeoHello(
                                    version=1, cluster=self.name, uuid=self.uuid, reads_follow=self.reads_follow
                                )
                            )
                        self._send(connection, sending, answer)
                    elif not linked:
                        return
                    elif command.type == 1000 and command.geo_topics.wait_ms:
                        args = (connection, sending, command.geo_topics)
                        threading.Thread(target=self._long_poll, args=args, daemon=True).start()
                    else:
                        self._send(connection, sending, *self._answer(command, payload))
        except OSError:
            pass
        finally:
            self._connections.discard(connection)
            connection.close()

    @staticmethod
    def _send(connection: socket.socket, lock: threading.Lock, command: pb.BaseCommand, payload: bytes = b"") -> None:
        with lock:
            connection.sendall(encode_head(command, len(payload)) + payload)

    def _answer(self, command: pb.BaseCommand, payload: bytes) -> tuple[pb.BaseCommand, bytes]:
        if command.type == 1000:
            return self._topics(command.geo_topics), b""
        if command.type == 1002:
            return self._read(command.geo_read)
        if command.type == 1004:
            return self._append(command.geo_append, payload), b""
        if command.type == 1006:
            return self._commit(command.geo_commit), b""
        if command.type == 1008:
            return self._watermarks(command.geo_watermarks), b""
        return pb.BaseCommand(type=14, error=pb.CommandError(request_id=0, error=0, message="unknown command")), b""

    # ------------------------------------------------------------------------------------------------------- the source

    def create(self, name: str, *, links: tuple[str, ...] = (), partitions: int = 0) -> Topic:
        with self.lock:
            topic = self.topics.get(name)
            if topic is None:
                incarnation = next(self.ledgers)
                topic = self.topics[name] = Topic(name, incarnation, partitions, incarnation)
            for remote in links:
                topic.cursors.setdefault(remote, Cursor())
            self._touch(topic)
            return topic

    def _touch(self, topic: Topic) -> None:
        self.counter += 1
        for remote in topic.cursors:
            topic.changed[remote] = self.counter
        self.lock.notify_all()

    def publish(self, name: str, data: bytes, *, count: int = 1, only_for: tuple[str, ...] = ()) -> Position:
        with self.lock:
            topic = self.topics[name]
            flags = int(EntryFlags.RESTRICTED) if only_for else 0
            entry = Entry(
                Position(topic.ledger, topic.log[-1].position.entry + 1 if topic.log else 0), self.name,
                topic.incarnation, topic.next_index, count, flags, time.time_ns() // 1_000_000, data, only_for,
            )  # fmt: skip
            topic.next_index += count
            topic.log.append(entry)
            self._touch(topic)
            return entry.position

    def wants(self, entry: Entry, to: str) -> bool:
        return entry.origin == self.name and (not entry.only_for or to in entry.only_for)

    def _topics(self, asked: pb.CommandGeoTopics) -> pb.BaseCommand:
        answer = pb.BaseCommand(type=1001)
        response = answer.geo_topics_response
        with self.lock:
            response.request_id, response.counter, response.uuid = asked.request_id, self.counter, self.uuid
            response.throttle_bytes_per_second = self.throttle_rate
            for topic in self.topics.values():
                cursor = topic.cursors.get(asked.to)
                if cursor is None or topic.changed.get(asked.to, 0) <= asked.counter:
                    continue
                pending = [entry for entry in topic.log if entry.position > cursor.c]
                state = response.topics.add(
                    topic=topic.name, incarnation=topic.incarnation, partitions=topic.partitions,
                    pending_entries=len(pending), pending_bytes=sum(len(entry.data) for entry in pending),
                    oldest_ms=pending[0].publish_time if pending else 0, paused=cursor.paused, learned=cursor.learned,
                )  # fmt: skip
                state.cursor.CopyFrom(pb.GeoCursor(c=wire(cursor.c), s=wire(cursor.s), gen=cursor.gen))
                state.last.CopyFrom(wire(topic.last))
                if cursor.blocked:
                    state.blocked, state.reason = cursor.blocked, cursor.reason
        return answer

    def _long_poll(self, connection: socket.socket, sending: threading.Lock, asked: pb.CommandGeoTopics) -> None:
        with self.lock:
            self.lock.wait_for(
                lambda: any(topic.changed.get(asked.to, 0) > asked.counter for topic in self.topics.values()),
                asked.wait_ms / 1000,
            )
        try:
            while self.silent:
                time.sleep(0.01)
            if self.lost_polls:
                self.lost_polls -= 1
                return
            self._send(connection, sending, self._topics(asked))
        except OSError:
            pass

    def _read(self, asked: pb.CommandGeoRead) -> tuple[pb.BaseCommand, bytes]:
        answer = pb.BaseCommand(type=1003)
        read = answer.geo_read_response
        read.request_id = asked.request_id
        after, over = Position(asked.after.ledger, asked.after.entry), False
        if asked.follows:
            assert self.reads_follow
            after, over = self._read_ends[self.serving.peer, asked.follows]
        end, size, chosen = after, 0, []
        with self.lock:
            self.reads += 1
            topic = self.topics.get(asked.topic)
            for entry in topic.log if topic and not over else ():
                if entry.position <= after:
                    continue
                if size >= asked.bytes_max:
                    break
                end = entry.position
                if not asked.to or self.wants(entry, asked.to):
                    size += len(entry.data)
                    chosen.append(entry)
            if topic is None:
                read.error, read.message = 11, f"topic {asked.topic} not found"
        read.end.CopyFrom(wire(end))
        self._read_ends[self.serving.peer, asked.request_id] = end, over or topic is None or end == after
        origins: list[str] = []
        for entry in chosen:
            if entry.origin not in origins:
                origins.append(entry.origin)
            read.ledgers.append(entry.position.ledger)
            read.entries.append(entry.position.entry)
            read.first_indexes.append(entry.first_index)
            read.counts.append(entry.count)
            read.flags.append(entry.flags)
            read.publish_times.append(entry.publish_time)
            read.broker_times.append(entry.publish_time)
            read.sizes.append(len(entry.data))
            read.origin_ids.append(origins.index(entry.origin))
            read.incarnations.append(entry.incarnation)
        read.origins.extend(origins)
        return answer, b"".join(entry.data for entry in chosen)

    def _commit(self, asked: pb.CommandGeoCommit) -> pb.BaseCommand:
        answer = pb.BaseCommand(type=1007)
        answer.geo_commit_response.request_id = asked.request_id
        with self.lock:
            self.commits += 1
            for commit in asked.commits:
                topic = self.topics.get(commit.topic)
                cursor = topic.cursors.get(asked.to) if topic else None
                if topic is None or cursor is None:
                    continue
                if commit.incarnation != topic.incarnation or commit.cursor.gen != cursor.gen:
                    answer.geo_commit_response.ignored.append(commit.topic)
                    continue
                c = Position(commit.cursor.c.ledger, commit.cursor.c.entry)
                if c > cursor.c:
                    cursor.c, cursor.s = c, max(cursor.s, Position(commit.cursor.s.ledger, commit.cursor.s.entry))
                if commit.HasField("blocked"):
                    cursor.blocked, cursor.reason = commit.blocked, commit.reason
                self._touch(topic)
            for learn in asked.learned:
                topic = self.topics.get(learn.topic)
                cursor = topic.cursors.get(asked.to) if topic else None
                if topic is None or cursor is None or learn.incarnation != topic.incarnation:
                    continue
                watermark = Position(learn.watermark.ledger, learn.watermark.entry)
                cursor.learned = learn.counter
                if learn.blocked or cursor.blocked:
                    cursor.blocked, cursor.reason = learn.blocked, learn.reason
                if watermark < cursor.s:
                    cursor.c = cursor.s = watermark
                    cursor.gen += 1
                self._touch(topic)
        return answer

    # -------------------------------------------------------------------------------------------------- the destination

    def lose_everything(self) -> None:
        """The disk is gone; the cluster goes on under its uuid."""
        with self.lock:
            for topic in self.topics.values():
                if not topic.cursors:
                    topic.log.clear()
                topic.log = [entry for entry in topic.log if entry.origin == self.name]
                topic.pushed, topic.persisted = {}, {}
            self.destination_counter += 1

    def _watermarks(self, asked: pb.CommandGeoWatermarks) -> pb.BaseCommand:
        answer = pb.BaseCommand(type=1009)
        response = answer.geo_watermarks_response
        response.request_id, response.uuid = asked.request_id, self.uuid
        if self.block_link is not None:
            response.blocked, response.reason = self.block_link
        for query in asked.topics:
            topic = self.create(query.topic, partitions=query.partitions)
            persisted = topic.persisted.get(asked.source, NONE)
            mark = response.topics.add(topic=query.topic, persisted=wire(persisted))
            if query.topic in self.block:
                mark.blocked, mark.reason = self.block[query.topic]
        response.counter = self.destination_counter
        return answer

    def _append(self, asked: pb.CommandGeoAppend, payload: bytes) -> pb.BaseCommand:
        answer = pb.BaseCommand(type=1005)
        response = answer.geo_append_response
        response.request_id = asked.request_id
        if self.append_hook is not None:
            self.append_hook(asked)
        with self.lock:
            self.appends += 1
            response.throttle_ms = self.throttle_ms
            topic = self.topics.get(asked.topic)
            if topic is None or asked.topic in self.block:
                kind, reason = self.block.get(asked.topic, ("policy", "no such topic"))
                response.persisted.CopyFrom(wire(NONE))
                response.blocked, response.reason = kind, reason
                return answer
            persisted = topic.persisted.get(asked.source, NONE)
            pushed = topic.pushed.get(asked.source, NONE)
            if self.fail_appends:
                self.fail_appends -= 1
                response.persisted.CopyFrom(wire(persisted))
                response.retry, response.reason = True, "the disk is full"
                return answer
            p, at = Position(asked.p.ledger, asked.p.entry), 0
            for ledger, entry, first, count, size in zip(
                asked.ledgers, asked.entries, asked.first_indexes, asked.counts, asked.sizes, strict=True
            ):
                position = Position(ledger, entry)
                if position <= pushed:
                    response.duplicates += 1
                elif p <= pushed:
                    data = payload[at : at + size]
                    self._store(topic, asked.source, asked.incarnation, position, first, count, data)
                    pushed = position
                else:
                    response.refused = True
                    break
                p, at = position, at + size
            topic.pushed[asked.source] = topic.persisted[asked.source] = pushed
            response.persisted.CopyFrom(wire(persisted if self.hasty else pushed))
        return answer

    def _store(
        self, topic: Topic, source: str, incarnation: int, position: Position, first: int, count: int, data: bytes
    ) -> None:
        mine = [entry for entry in topic.log[-1:] if entry.origin == source]
        if mine and (mine[0].incarnation, mine[0].first_index) >= (incarnation, first):
            self.violations.append(f"{topic.name}: {source} {first} after {mine[0].first_index}")
        local = Position(topic.ledger, topic.log[-1].position.entry + 1 if topic.log else 0)
        topic.log.append(
            Entry(local, source, incarnation, first, count, int(EntryFlags.REPLICATED), 0,
                  metadata.with_replicated_from(data, source))
        )  # fmt: skip
        self._touch(topic)

    def identities(self, topic: str, origin: str) -> list[int]:
        """The first origin indexes held of one origin, in the order of the log."""
        with self.lock:
            held = self.topics.get(topic)
            return [entry.first_index for entry in held.log if entry.origin == origin] if held else []


def wire(position: Position) -> pb.GeoPosition:
    return pb.GeoPosition(ledger=position.ledger, entry=position.entry)


def eventually(condition: Callable[[], bool], timeout: float = 60.0, what: str = "condition") -> None:
    """Wait for something that happens in other threads and processes; the deadline only ends what hangs."""
    until = time.monotonic() + timeout * PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {timeout * PATIENCE} s: {what}")
        time.sleep(0.01)
