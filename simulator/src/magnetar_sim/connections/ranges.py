"""What one task of a planned batch carries: a range of one topic, and the attempts to send it.

A task sends its range in pieces. It may die, be slow, run twice, or go on when no part waits for it any more, with what it
read then. Nothing here is needed for safety: that is what is tested.
"""

import random
from dataclasses import dataclass, field
from typing import Final, Protocol

from magnetar.core.ids import NONE, Position
from magnetar.pipeline import messages as m
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar_sim.connections.link_filter import LinkFilter
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.connections.workers import Workers
from magnetar_sim.context import WorldContext

WINDOW: Final = 3
"""Pieces under way of one task."""

PIECES: Final = (1, 1, 2, 4)
"""How many entries a piece has."""

READ_BYTES: Final = (1, 200, 600, 1 << 20)
"""How much of a topic is read at a time: one entry at least."""

SLOW_MS: Final = 100
"""What waits longer in a task counts as delayed."""

DIED: Final = "died"
"""The trouble of a task that died. The others are those of `magnetar.pipeline.messages`."""


def second_attempt_ms(rng: random.Random) -> int:
    """How long after the first attempt a second one begins, of which the pipeline does not know."""
    return int(rng.random() * rng.choice((100, 3_000, 60_000)))


@dataclass(slots=True, eq=False)
class Range:
    """What one task has to carry.

    Attributes:
        topic, incarnation, uuid, gen: of what life of which topic.
        c, s: the cursor that it goes on from; not confirmed yet when it was planned behind another range.
        before: that range, until it is confirmed.
        done: an attempt carried all of it, and every entry is confirmed.
        frames: what is sent, in pieces: what each comes after, and its entries.
        end: everything at or below is settled when all is confirmed.
        read, response, data: what the source answered.
    """

    topic: str
    incarnation: int
    uuid: str
    gen: int
    c: Position
    s: Position
    frames: list[tuple[Position, list[int]]] = field(default_factory=list)
    end: Position = NONE
    read: bool = False
    response: pb.CommandGeoReadResponse = field(default_factory=pb.CommandGeoReadResponse)
    data: list[bytes] = field(default_factory=list)
    before: "Range | None" = None
    done: bool = False

    @property
    def founded(self) -> bool:
        """Whether all in front of it is confirmed. The chain shows that of whatever is sent; nothing shows it of a range of
        which nothing is, and its commit would settle what the destination may never have got.
        """
        return bool(self.frames) or self.before is None or self.before.done

    @property
    def sent_last(self) -> Position:
        """S when all of it is confirmed."""
        return self.position(self.frames[-1][1][-1]) if self.frames else self.s

    def position(self, number: int) -> Position:
        """Of an entry that was read."""
        return Position(self.response.ledgers[number], self.response.entries[number])

    def other_incarnation(self, response: pb.CommandGeoReadResponse) -> bool:
        """The topic was created again since the plan, perhaps by a slow clock (as `pipeline.tasks.task_read` sees it)."""
        return bool(set(response.incarnations) - {self.incarnation})

    def first_p(self, p: Position) -> Position:
        """What the first entry of a piece comes after (a seam for planted bugs)."""
        return p

    def next_p(self, position: Position, p: Position, *, sent: bool) -> Position:
        """What the next entry comes after: the last that was sent, not the last that was read."""
        return position if sent else p


class RangeHost(Protocol):
    """What a task needs of its link.

    Attributes:
        source: of the link.
    """

    context: WorldContext
    rng: random.Random
    workers: Workers
    filter: LinkFilter
    source: str

    @property
    def task_dies(self) -> float:
        """How often a task dies at a step."""

    def pause_ms(self) -> int:
        """How long a task takes for nothing."""

    def refused(self, work: Range, watermark: Position, /) -> None:
        """A destination refused a piece, and named its watermark."""

    def ended(self, task: "Task", trouble: str, reason: str) -> None:
        """A task is over; `trouble`: "" if it carried all of its range."""

    def commit(self, work: Range, c: Position, s: Position) -> None:
        """What a task confirmed, after it is over."""


class Task:
    """One attempt to carry a range.

    Args:
        link: whose.
        work: the range; shared by all attempts once it is read.
        zombie: no part waits for this attempt.

    Attributes:
        over: it ended.
        blocked: why the destination blocked the topic; "" if it did not.
    """

    def __init__(self, link: "RangeHost", work: Range, *, zombie: bool = False) -> None:
        self._link, self.work, self.zombie = link, work, zombie
        self._at = 0
        self._flying: list[Position] = []
        self._confirmed: Position | None = None
        self.over = False
        self.blocked = ""
        self._peer: Peer | None = None

    def start(self) -> None:
        """Begin to send."""
        link = self._link
        if self.over:
            return
        if self.zombie and self.work.frames:
            link.context.count("range sent twice")
        if self.work.frames:
            self._peer = link.workers.lend(lambda: self._end(m.TARGET_DOWN, "connection lost"))
            if not self._peer.open:
                self._end(m.TARGET_DOWN, "destination down")
                return
        self._step()

    def _step(self) -> None:
        if self.over:
            return
        link = self._link
        if link.rng.random() < link.task_dies:
            link.context.count("task died")
            self._end(DIED)
            return
        while self._at < len(self.work.frames) and len(self._flying) < WINDOW and not self.over:
            self._send()
        if self._at == len(self.work.frames) and not self._flying:
            self._end("")

    def _send(self) -> None:
        assert self._peer is not None
        work, response = self.work, self.work.response
        p, numbers = work.frames[self._at]
        self._at += 1
        last = work.position(numbers[-1])
        self._flying.append(last)

        def fill(request_id: int) -> pb.CommandGeoAppend:
            return pb.CommandGeoAppend(
                request_id=request_id, topic=work.topic, source=self._link.source, uuid=work.uuid,
                incarnation=work.incarnation, gen=work.gen, p=position_to_proto(p),
                ledgers=[response.ledgers[n] for n in numbers], entries=[response.entries[n] for n in numbers],
                first_indexes=[response.first_indexes[n] for n in numbers],
                counts=[response.counts[n] for n in numbers], sizes=[len(work.data[n]) for n in numbers],
                schema_numbering=response.schema_numbering,
            )  # fmt: skip

        self._peer.ask(
            pb.GEO_APPEND,
            "geo_append",
            fill,
            lambda frame: self._answered(last, frame),
            b"".join(work.data[n] for n in numbers),
        )

    def _answered(self, last: Position, frame: Frame) -> None:
        if self.over:
            return
        answer = frame.command.geo_append_response
        persisted = position_from_proto(answer.persisted)
        if frame.command.type != pb.GEO_APPEND_RESPONSE or answer.blocked or answer.retry:
            self.blocked = answer.blocked
            self._end(m.BLOCKED if answer.blocked else m.RETRY, f"{answer.blocked or 'retry'} {answer.reason}")
        elif answer.refused:
            self._end(m.REFUSED)
            self._link.refused(self.work, persisted)
        elif persisted < last:
            self._end(m.RETRY, "not stored")
        else:
            self._flying.remove(last)
            self._confirmed = last
            self._link.context.clock.after(self._link.pause_ms(), self._step)

    def _end(self, trouble: str, reason: str = "") -> None:
        """It ends; what was confirmed without a hole before it is committed."""
        if self.over:
            return
        self.over = True
        if self._peer is not None:
            self._link.workers.give_back(self._peer, used_up=bool(trouble))
        work = self.work
        whole = not trouble and self._at == len(work.frames) and not self._flying
        c = work.end if whole else self._confirmed
        s = work.sent_last if whole else self._confirmed
        if whole and not work.founded:
            whole, c = False, None
            trouble, reason = m.RETRY, "nothing to send, and what is in front of it is not confirmed"
        if whole:
            work.done, work.before = True, None
        self._link.ended(self, trouble, reason)
        if trouble != DIED and c is not None and s is not None and (whole or not self._flying or c < min(self._flying)):
            self._link.commit(work, c, s)


def fill(work: Range, response: pb.CommandGeoReadResponse, payload: bytes) -> None:
    """Take what the source answered."""
    work.response, work.end, work.read = response, position_from_proto(response.end), True
    at = 0
    for size in response.sizes:
        work.data.append(payload[at : at + size])
        at += size


def chain(work: Range, host: RangeHost) -> None:
    """Filter, chain, and cut into pieces: within a piece each entry comes after the one before it."""
    p, room = work.s, 0
    for number, data in enumerate(work.data):
        marker = work.response.flags[number] & EntryFlags.MARKER
        sent = marker or host.filter.passes(data)
        if sent:
            if not room:
                work.frames.append((work.first_p(p), []))
                room = host.rng.choice(PIECES)
            work.frames[-1][1].append(number)
            room -= 1
        before = p
        p = work.next_p(work.position(number), p, sent=bool(sent))
        if not sent and p != before:
            room = 0
