"""A light replicator between real brokers, for tests that need links but not Spark: it speaks the pipeline's protocol.

One thread for each link: long-polls the source, reads what is for the target, appends it there, commits. Whatever breaks is
begun again; the chain rule of the brokers makes that harmless.
"""

import contextlib
import threading
from pathlib import Path

from magnetar.core.ids import NONE, Position
from magnetar.runtime.network.link_client import LinkClient, LinkDown, LinkRefused, geo_position
from magnetar.wire import pulsar_pb2 as pb
from tests.support.brokers import World

LEASE_MS = 5_000
POLL_MS = 300
"""Of the long poll: how long a replicator takes to notice that it shall stop."""


class Replicator:
    """Carries one link, from the moment it is made until `close`.

    Args:
        world: the brokers, with their link token.
        source, target: clusters.
    """

    def __init__(self, world: World, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.carried = 0
        self.errors: list[str] = []
        self._world = world
        self._stop = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._run, name=f"{source}->{target}", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Carry nothing more, but keep the lease."""
        self._open.clear()

    def resume(self) -> None:
        """Go on."""
        self._open.set()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._open.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _connect(self, cluster: str) -> LinkClient:
        (token,) = Path(self._world.folder).rglob("link.token")
        port = self._world[cluster].pulsar_port
        return LinkClient.connect(f"127.0.0.1:{port}", token.read_bytes().strip(), timeout_ms=3_000)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with contextlib.ExitStack() as stack:
                    source = stack.enter_context(self._connect(self.source))
                    target = stack.enter_context(self._connect(self.target))
                    _Round(self, source, target).run()
            except (LinkDown, LinkRefused, OSError, ValueError) as error:
                self.errors.append(str(error))
                self._stop.wait(0.05)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def open(self) -> bool:
        return self._open.is_set()


class _Round:
    """One pair of connections."""

    def __init__(self, replicator: Replicator, source: LinkClient, target: LinkClient) -> None:
        self.replicator, self.source, self.target = replicator, source, target
        self.known: dict[str, pb.GeoTopicState] = {}
        self.greeted: dict[str, int] = {}
        self.counter = self.boot = 0
        target.answer_schemas(lambda wanted: source.schemas(wanted.topic, wanted.schema_numbering, wanted.versions))
        self.pipeline = f"replicator-{replicator.source}-{replicator.target}"

    def run(self) -> None:
        replicator = self.replicator
        while not replicator.stopping:
            self._poll()
            if not replicator.open:
                continue
            for state in list(self.known.values()):
                if self.greeted.get(state.topic) != state.incarnation and not self._greet(state):
                    continue
                if state.pending_entries and not state.paused:
                    self._carry(state)

    def _poll(self) -> None:
        busy = self.replicator.open and any(
            state.pending_entries or self.greeted.get(state.topic) != state.incarnation for state in self.known.values()
        )
        answer = self.source.topics(
            self.replicator.target,
            self.counter,
            boot=self.boot,
            wait_ms=20 if busy else POLL_MS,
            pipeline=self.pipeline,
            lease_ms=LEASE_MS,
        )
        self.counter, self.boot = answer.counter, answer.boot
        for state in answer.topics:
            if state.removed:
                self.known.pop(state.topic, None)
            else:
                self.known[state.topic] = state

    def _greet(self, state: pb.GeoTopicState) -> bool:
        """The handshake of a topic: what does the target hold?"""
        query = pb.GeoWatermarkQuery(
            topic=state.topic,
            incarnation=state.incarnation,
            partitions=state.partitions,
            last=state.last,
            start=state.cursor.c,
        )
        query.retained.extend(state.retained)
        answer = self.target.watermarks(self.replicator.source, self.source.hello.uuid, [query])
        if answer.blocked:
            return False
        (told,) = answer.topics
        learned = pb.GeoLearnTopic(
            topic=state.topic,
            incarnation=state.incarnation,
            watermark=told.persisted,
            counter=answer.counter,
            blocked=told.blocked,
            reason=told.reason,
            gen=state.cursor.gen,
            foreign=told.foreign,
            there=told.incarnation,
        )
        self.source.commit(self.replicator.target, [], [learned], pipeline=self.pipeline)
        if told.blocked:
            return False
        self.greeted[state.topic] = state.incarnation
        self.counter = 0  # a rewind changes the cursor: ask for all of it
        return False

    def _blocked(
        self, state: pb.GeoTopicState, columns: pb.CommandGeoReadResponse, answer: pb.CommandGeoAppendResponse
    ) -> None:
        """An entry cannot be stored there: settle what came before it, and say why."""
        persisted = Position(answer.persisted.ledger, answer.persisted.entry)
        cursor = pb.GeoCursor(c=state.cursor.c, s=state.cursor.s, gen=state.cursor.gen)
        if persisted in map(Position, columns.ledgers, columns.entries):
            cursor.c.CopyFrom(answer.persisted)
            cursor.s.CopyFrom(answer.persisted)
        done = pb.GeoCommitTopic(
            topic=state.topic,
            incarnation=state.incarnation,
            cursor=cursor,
            blocked=answer.blocked,
            reason=answer.reason,
        )
        if answer.HasField("position"):
            done.position.CopyFrom(answer.position)
        if answer.HasField("conflict"):
            done.conflict.CopyFrom(answer.conflict)
        self.source.commit(self.replicator.target, [done], pipeline=self.pipeline)
        state.cursor.CopyFrom(cursor)
        self.counter = 0

    def _carry(self, state: pb.GeoTopicState) -> None:
        after = Position(state.cursor.c.ledger, state.cursor.c.entry)
        sent = Position(state.cursor.s.ledger, state.cursor.s.entry)
        entries = self.source.read(state.topic, after, to=self.replicator.target)
        columns = entries.response
        end = Position(columns.end.ledger, columns.end.entry)
        if end == NONE or end <= after:
            return
        if columns.ledgers:
            append = pb.CommandGeoAppend(
                request_id=0,
                topic=state.topic,
                source=self.replicator.source,
                uuid=self.source.hello.uuid,
                incarnation=state.incarnation,
                gen=state.cursor.gen,
                p=geo_position(sent),
                ledgers=columns.ledgers,
                entries=columns.entries,
                first_indexes=columns.first_indexes,
                counts=columns.counts,
                sizes=columns.sizes,
                schema_numbering=columns.schema_numbering,
            )
            self.target.append_async(append, [entries.payload])
            answers = []
            while not answers:
                answers = self.target.poll(3_000)
            response = answers[0].response
            if response.blocked:
                self._blocked(state, columns, response)
                return
            if answers[0].refusal or response.refused or response.retry:
                self.greeted.pop(state.topic, None)
                return
            sent = Position(columns.ledgers[-1], columns.entries[-1])
            self.replicator.carried += len(columns.ledgers)
        cursor = pb.GeoCursor(c=geo_position(end), s=geo_position(sent), gen=state.cursor.gen)
        done = pb.GeoCommitTopic(topic=state.topic, incarnation=state.incarnation, cursor=cursor)
        self.source.commit(self.replicator.target, [done], pipeline=self.pipeline)
        state.cursor.CopyFrom(cursor)
        if end >= Position(state.last.ledger, state.last.entry):
            state.pending_entries = 0
