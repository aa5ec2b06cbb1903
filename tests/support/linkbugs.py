"""The planted bugs of links: each is one rule left out of the real machines, and must be found by the world.

They are subclasses and patches of the real code, here and only here.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.metadata.topic_records import TopicRecord
from magnetar.replication.link import chain
from magnetar.replication.link.chain import Verdict
from magnetar.replication.link.destination import LinkDestination
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.source import LinkSource
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto
from tests.support.linkworld import TOPIC, World

_judge, _advance = chain.judge, chain.advance


def judge_without_chain(pushed: Position, p: Position, positions: Any) -> Verdict:
    verdict = _judge(pushed, p, positions)
    return Verdict(0, 0, False) if verdict.refused else verdict


def judge_without_watermark(pushed: Position, p: Position, positions: Any) -> Verdict:
    return Verdict(0, 0, False) if p <= pushed else _judge(pushed, p, positions)


def advance_of_any_generation(cursor: LinkCursor, commit: LinkCursor) -> LinkCursor | None:
    moved = _advance(cursor._replace(gen=commit.gen), commit)
    return moved._replace(gen=cursor.gen) if moved is not None else None


class AnswersPushed(LinkDestination):
    """A duplicate is answered although the first copy is still on its way."""

    def append(self, connection: int, request: Any, payload: bytes, reply: Any, ask: Any) -> None:
        topic = self._host.find(request.topic)
        if topic is not None and self.peers.known().get("a", ("",))[0] == request.uuid:
            positions = [Position(*pair) for pair in zip(request.ledgers, request.entries, strict=True)]
            pushed = topic.log.watermark_pushed("a")
            if _judge(pushed, position_from_proto(request.p), positions).first_new is None:
                response = pb.CommandGeoAppendResponse(request_id=request.request_id)
                response.persisted.ledger, response.persisted.entry = pushed
                reply(response)
                return
        super().append(connection, request, payload, reply, ask)


class RefusesPushed(LinkDestination):
    """A refusal answers with what may yet fail."""

    def append(self, connection: int, request: Any, payload: bytes, reply: Any, ask: Any) -> None:
        topic = self._host.find(request.topic)
        pushed = topic.log.watermark_pushed("a") if topic is not None else NONE

        def refused(response: Any) -> None:
            if response.refused:
                response.persisted.ledger, response.persisted.entry = pushed
            reply(response)

        super().append(connection, request, payload, refused, ask)


class RewindsInMemory(LinkSource):
    """A rewind is used at once, and stored some time."""

    def _rewind(self, state: LinkTopic, target: LinkCursor, stored: Any) -> None:
        durable = state.durable
        state.rewound(target)
        state.durable = durable
        self._topics.changed(state)
        stored("")


class Planted(World):
    """A world with a rule left out. Clocks are right: what a slow clock costs is another matter."""


class NoChain(Planted):
    patches: ClassVar[dict[str, Callable[..., Any]]] = {"magnetar.replication.link.chain.judge": judge_without_chain}


class NoDedup(Planted):
    patches: ClassVar[dict[str, Callable[..., Any]]] = {
        "magnetar.replication.link.chain.judge": judge_without_watermark
    }


class PIsCursor(Planted):
    def first_p(self, state: pb.GeoTopicState) -> Position:
        return position_from_proto(state.cursor.c)


class PIsPreviousEntry(Planted):
    def next_p(self, entry: StoredEntry, sent: bool, p: Position) -> Position:
        return entry.position


class AnswerPushed(Planted):
    warm = 1.0
    straggling = 0.9
    ledger_sizes = (1,)
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 0, "quota": 0, "change_filter": 0, "forget_b": 0, "trim_a": 8, "fail_b": 5, "sync_b": 0.2,
        "store_a": 3, "take_commit": 4, "duplicate_task": 4, "lose_task": 0.2, "crash_a": 0.2, "crash_b": 0.2,
    }  # fmt: skip
    destination_class = AnswersPushed


class RefusePushed(Planted):
    """Needs a refusal, a rewind, a deletion and a failed write, in this order, while one append is on its way."""

    warm = 1.0
    straggling = 0.9
    ledger_sizes = (1,)
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 0, "quota": 0, "change_filter": 0, "forget_b": 0.3, "handshake": 0.2, "trim_a": 8, "fail_b": 5,
        "sync_b": 0.1, "store_a": 3, "take_commit": 4, "run_task": 2, "plan": 0.3, "lose_task": 0.2,
        "crash_a": 0.1, "crash_b": 0.1,
        "lose_commit": 0.1, "publish": 0.3, "publish_b": 0.1, "trim_b": 0.1, "sync_a": 0.3,
    }  # fmt: skip

    def __init__(self, rng: random.Random, trace: list[str] | None = None) -> None:
        super().__init__(rng, trace)
        self.commits.clear()  # the handshake's answer was lost

    destination_class = RefusesPushed


class WatermarkFromLogOnly(Planted):
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {"trim_b": 5, "publish_b": 5, "crash_b": 5, "forget_b": 0.2}

    def saved(self, record: TopicRecord) -> TopicRecord:
        return TopicRecord(
            incarnation=record.incarnation, created_ms=0, first_ledger=record.first_ledger, next_index=record.next_index
        )


class ReuseLedgers(Planted):
    reuse_ledgers = True


class NoCursorGen(Planted):
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 0,
        "quota": 0,
        "change_filter": 0,
        "forget_b": 3,
        "handshake": 3,
        "trim_a": 5,
        "lose_task": 0.3,
        "crash_b": 0.3,
        "duplicate_task": 3,
        "lose_commit": 0.1,
        "crash_a": 0.2,
    }
    patches: ClassVar[dict[str, Callable[..., Any]]] = {
        "magnetar.replication.link.chain.advance": advance_of_any_generation
    }


class RewindVolatile(Planted):
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 0,
        "quota": 0,
        "change_filter": 0,
        "forget_b": 3,
        "handshake": 3,
        "trim_a": 5,
        "lose_task": 0.3,
        "crash_b": 0.3,
        "crash_a": 3,
    }
    source_class = RewindsInMemory


class ReadUnsynced(Planted):
    sync_before_read = False


class IndexFromLog(Planted):
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {"trim_a": 5, "crash_a": 5, "recreate_a": 0.2}

    def saved(self, record: TopicRecord) -> TopicRecord:
        return TopicRecord(
            incarnation=record.incarnation, created_ms=0, first_ledger=record.first_ledger, watermarks=record.watermarks
        )


class TrimVolatile(Planted):
    warm = 1.0
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 0,
        "quota": 0,
        "change_filter": 0,
        "forget_b": 3,
        "handshake": 3,
        "trim_a": 5,
        "lose_task": 0.3,
        "crash_b": 0.3,
        "crash_a": 3,
        "store_a": 0.3,
    }

    def keep_after(self) -> Position | None:
        return self.source.topics[TOPIC].cursor.c


class NoHandshake(Planted):
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 0,
        "quota": 0,
        "change_filter": 0,
        "forget_b": 3,
        "handshake": 3,
        "trim_a": 5,
        "lose_task": 0.3,
        "crash_b": 0.3,
    }

    def shakes_hands(self, state: pb.GeoTopicState) -> bool:
        return position_from_proto(state.cursor.c) < position_from_proto(state.last)


class RewindForgets(Planted):
    """What a handshake finds while a rewind is on its way to the store is judged by the cursor before it (seed mixed 5001073)."""

    warm = 1.0
    slow_clocks = True
    boost: ClassVar[dict[str, float]] = {
        "recreate_a": 8,
        "quota": 0,
        "forget_b": 6,
        "handshake": 3,
        "crash_a": 0.2,
        "store_a": 0.1,
        "lose_commit": 0.05,
        "take_commit": 0.7,
    }
    patches: ClassVar[dict[str, Any]] = {
        "magnetar.replication.link.link_topic.LinkTopic.coming": property(lambda self: self.cursor)
    }


BUGS: dict[str, type[World]] = {
    "no_chain": NoChain,
    "no_dedup": NoDedup,
    "p_is_cursor": PIsCursor,
    "p_is_previous_entry": PIsPreviousEntry,
    "answer_pushed": AnswerPushed,
    "refuse_pushed": RefusePushed,
    "w_from_log_only": WatermarkFromLogOnly,
    "reuse_ledgers": ReuseLedgers,
    "no_cursor_gen": NoCursorGen,
    "rewind_volatile": RewindVolatile,
    "read_unsynced": ReadUnsynced,
    "idx_from_log": IndexFromLog,
    "trim_volatile": TrimVolatile,
    "no_handshake": NoHandshake,
    "rewind_forgets": RewindForgets,
}
"""docs/design/links.md says which rule each leaves out; the last one the simulator found."""

KNOWN: dict[str, int] = {
    "no_chain": 8, "no_dedup": 4, "p_is_cursor": 7, "p_is_previous_entry": 22, "answer_pushed": 362,
    "refuse_pushed": 2082, "w_from_log_only": 18, "reuse_ledgers": 18, "no_cursor_gen": 6079, "rewind_volatile": 33,
    "read_unsynced": 189, "idx_from_log": 382, "trim_volatile": 473, "no_handshake": 5776,
    "rewind_forgets": 4817,
}  # fmt: skip
"""A seed that finds each bug in 60 steps, from a search over 0, 1, 2, ... (`python -m tests.support.linkbugs`)."""

STEPS = (30, 60, 120, 250)
BUG_STEPS = 60


@contextmanager
def planted(world: type[World]) -> Iterator[None]:
    """The world's patches, for as long as the block runs."""
    patches: dict[str, Callable[..., Any]] = getattr(world, "patches", {})
    active = [patch(name, function) for name, function in patches.items()]
    for one in active:
        one.start()
    try:
        yield
    finally:
        for one in active:
            one.stop()


def run_world(seed: int, world: type[World] = World, steps: int | None = None) -> tuple[str, list[str]]:
    """Run one world; what it violated ("" if nothing), and its trace."""
    rng = random.Random(f"links-{seed}")
    steps = steps or rng.choice(STEPS)
    trace: list[str] = []
    with planted(world):
        try:
            world(rng, trace).run(steps)
        except AssertionError as violation:
            return str(violation) or "assertion", trace
    return "", trace


def find(name: str, seeds: Iterable[int]) -> tuple[int, str, list[str]] | None:
    """The first of some seeds that finds a planted bug: seed, violation, trace."""
    for seed in seeds:
        why, trace = run_world(seed, BUGS[name], BUG_STEPS)
        if why:
            return seed, why, trace
    return None


if __name__ == "__main__":
    import sys

    for bug in BUGS:
        first = find(bug, range(60_000))
        sys.stdout.write(f"{bug}: seed {first[0]}, {len(first[2])} events\n" if first else f"{bug}: NOT FOUND\n")
