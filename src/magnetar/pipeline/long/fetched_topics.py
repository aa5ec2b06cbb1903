"""The progress of the topics that one long batch sends: the position that is sent next, and what its source may count as settled.

Progress of a topic under one grant:

    p   the position sent before the next entry; it begins at S, which the source gives with a reader's first entries
    c   every entry up to here is settled: sent and persisted, or examined and left out

When the destination refuses a topic, blocks it or cannot be reached, the topic is given back: further entries of it under this
grant are dropped, and the pipeline decides about the next grant (`pipeline.long.grants`).

No connection, and no clock of its own: the simulator's pipeline uses it as well.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from magnetar.core.ids import NONE, Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.tasks.append_request import AppendRequest
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto

_ENDED: Final = {m.REFUSED: m.REFUSED, m.BLOCKED: m.BLOCKED}
"""Troubles that are reported to a source by name; every other one is `retry`."""

PROMPT_BYTES: Final = 64 << 10
"""Confirmed bytes that a source learns of soon: its window has to be larger than what it has not learnt of."""


@dataclass(slots=True)
class LinkProgress:
    """One link: totals since the batch began, and its topics.

    Attributes:
        clock_ms: the wall clock.
        topics: by name, each under the grant that came last.
        dirty: those of which the source has to learn something.
        prompt: whether it has to learn it soon: an entry is timed, a topic is given back, or `PROMPT_BYTES` are confirmed.
    """

    route: m.Route
    totals: pb.GeoFetchTotals
    clock_ms: Callable[[], int]
    topics: dict[str, "FetchedTopic"] = field(default_factory=dict)
    dirty: dict[str, "FetchedTopic"] = field(default_factory=dict)
    prompt: bool = False
    _confirmed_bytes: int = 0

    def confirmed(self, size: int) -> None:
        """The destination has persisted this many bytes more."""
        self._confirmed_bytes += size
        if self._confirmed_bytes >= PROMPT_BYTES:
            self.prompt = True

    def topic(
        self, name: str, incarnation: int, grant: int, gen: int, numbering: int, p: Position | None, uuid: str
    ) -> "tuple[FetchedTopic, bool]":
        """The topic that fetched entries are of, and whether it is a new one because its grant is new.

        Args:
            name, incarnation, grant, gen, uuid: as the source answered.
            numbering: that the versions of the entries' schemas belong to.
            p: the position sent before the entries; None: the entry before them in this task.
        """
        topic = self.topics.get(name)
        if begins := topic is None or topic.grant != grant:
            if uuid != self.route.uuid:
                self.route = replace(self.route, uuid=uuid)
            begin = p if p is not None else NONE
            topic = self.topics[name] = FetchedTopic(
                self, self.route, name, incarnation, grant, gen, numbering, begin, begin
            )
            if p is None:
                topic.fail(m.RETRY, "entries came without the position before them")
        elif p is not None:
            topic.sent, topic.s = p, max(topic.s, p)  # another reader began again, or others have settled something
        if topic.schema_numbering != numbering:
            topic.fail(m.RETRY, f"the schemas of {name} began again")
        return topic, begins

    def ignored(self, commit: pb.GeoCommitTopic) -> None:
        """The source ignored a commit: if its grant is the last one that came, the topic is given back."""
        found = self.topics.get(commit.topic)
        if found is not None and found.grant == commit.grant:
            found.fail(m.RETRY, "the source has another cursor")

    def take_commits(self) -> dict[str, pb.GeoCommitTopic]:
        """The commits for the source, by topic; they are not dirty from now on."""
        dirty, self.dirty = self.dirty, {}
        self.prompt, self._confirmed_bytes = False, 0
        return {name: topic.commit() for name, topic in dirty.items()}


@dataclass(slots=True)
class FetchedTopic:
    """One topic under one grant: a `Progress` (`pipeline.tasks.append_request`)."""

    link: LinkProgress
    route: m.Route
    topic: str
    incarnation: int
    grant: int
    gen: int
    schema_numbering: int
    sent: Position
    s: Position
    c: Position = NONE
    looked: deque[tuple[Position, Position]] = field(default_factory=deque)
    """(end, last position sent at or before it) of ranges that were examined and are not settled."""
    timed: Position | None = None
    """The source measures how long the link takes up to here."""
    trouble: str = ""
    kind: str = ""
    reason: str = ""
    at: m.Pair | None = None
    conflict: m.Packed = b""

    def left(self) -> None:
        """One append less is under way: C says enough of that."""

    def throttled(self, throttle_ms: int) -> None:
        """The destination asks for a pause, which the sender makes."""

    def confirmed(self, append: AppendRequest, duplicates: int) -> None:
        """The destination has persisted all of an append."""
        totals = self.link.totals
        totals.messages += append.messages
        totals.bytes += len(append.data)
        totals.duplicates += duplicates
        self.link.confirmed(len(append.data))
        totals.lag_ms = min(max(0, self.link.clock_ms() - append.oldest_publish_ms), 0xFFFFFFFF)
        self.s = max(self.s, append.last)
        self.settle()

    def append(
        self, ledgers: list[int], entries: list[int], indexes: list[int], counts: list[int], sizes: list[int],
        published: int, data: memoryview,
    ) -> AppendRequest:  # fmt: skip
        """The next entries, to be sent; `published`: the oldest publish time, ms."""
        last = Position(ledgers[-1], entries[-1])
        append = AppendRequest(
            self, self.sent, last, ledgers, entries, indexes, counts, sizes, data, sum(counts), published
        )
        self.sent = last
        return append

    def looked_to(self, end: Position, *, timed: bool) -> None:
        """All entries up to a position were examined; `timed`: as the source answered."""
        if not self.trouble:
            if timed and self.timed is None:
                self.timed = end
            self.looked.append((end, min(self.sent, end)))
            self.settle()

    def settle(self) -> None:
        """Move C over the ranges that were examined and whose sent entries are all persisted."""
        c = max(self.c, self.s)  # S at the start is at or below C there
        while self.looked and self.looked[0][1] <= self.s:
            c = max(c, self.looked.popleft()[0])
        if c > self.c:
            self.c = c
            self.link.dirty[self.topic] = self
            if self.timed is not None and c >= self.timed:
                self.timed, self.link.prompt = None, True

    def fail(
        self, trouble: str, reason: str, kind: str = "", at: m.Pair | None = None, conflict: m.Packed = b""
    ) -> None:
        """Give the topic back; only the first trouble is reported, as later ones follow from it."""
        if self.trouble:
            return
        self.trouble, self.reason, self.kind, self.at, self.conflict = trouble, reason, kind, at, conflict
        self.link.dirty[self.topic] = self
        self.link.prompt = True
        if trouble == m.TARGET_DOWN and self.link.totals.down != reason:
            self.link.totals.down = reason
            self.link.totals.downs += 1

    def commit(self) -> pb.GeoCommitTopic:
        """The commit for the source."""
        commit = pb.GeoCommitTopic(
            topic=self.topic,
            incarnation=self.incarnation,
            cursor=pb.GeoCursor(c=position_to_proto(self.c), s=position_to_proto(self.s), gen=self.gen),
            grant=self.grant,
        )
        if self.trouble:
            commit.ended, commit.ended_reason = _ENDED.get(self.trouble, m.RETRY), self.reason
        if self.trouble == m.BLOCKED:
            commit.blocked, commit.reason = self.kind, self.reason
            if self.at is not None:
                commit.position.ledger, commit.position.entry = self.at
            if self.conflict:
                commit.conflict.MergeFromString(self.conflict)
        return commit
