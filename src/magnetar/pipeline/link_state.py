"""The records of `PipelineState` about links, topics and destinations, with the small rules that concern one of them."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.core.rates import TokenBucket
from magnetar.pipeline.planner import RANGE_BYTES_MIN
from magnetar.wire import pulsar_pb2 as pb

LONG_AGO_MS: Final = -(1 << 40)
"""A time before any clock: a step that was never done is due."""

PACE_BYTES_MIN: Final = RANGE_BYTES_MIN
"""Bytes that a throttling destination still gets in one batch."""

ALL: Final = "all"
"""The query of a pipeline that runs only one."""


NOWHERE: Final = LinkCursor(NONE, NONE, 0)


class Link(NamedTuple):
    """One direction between two clusters, numbered within this process."""

    number: int
    source: str
    target: str
    filter: str = ""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


class Handshake(NamedTuple):
    """One GEO_WATERMARKS to be sent; `topics` may be empty (compare the counters only).

    Attributes:
        link, uuid, counter: the link, its source's uuid, and the known change counter.
        topics: the question about each topic.
        gens: of each topic the generation that the answer is about: a source may rewind while the answer is on its way.
    """

    link: Link
    uuid: str
    counter: int
    topics: tuple[pb.GeoWatermarkQuery, ...]
    gens: tuple[int, ...] = ()


class Owed(NamedTuple):
    """The content of a GEO_COMMIT: everything that a source has to learn about one link.

    Attributes:
        commits, learned: progress, and the watermarks of the destination's handshakes.
        grants, revoked: which topics its fetch session may hand out from now on, and which no longer.
    """

    link: Link
    commits: list[pb.GeoCommitTopic]
    learned: list[pb.GeoLearnTopic]
    grants: list[pb.GeoGrant]
    revoked: list[str]


class Trouble(NamedTuple):
    """The trouble of a whole link, for its source to show; kind "": none."""

    kind: str
    reason: str
    throttled: bool


@dataclass(slots=True)
class TopicState:
    """One topic of one link."""

    topic: str
    incarnation: int
    partitions: int = 0
    cursor: LinkCursor = NOWHERE
    last: Position = NONE
    pending_entries: int = 0
    pending_bytes: int = 0
    oldest_ms: int = 0
    gap: int = 0
    retained: tuple[pb.GeoMark, ...] = ()
    blocked: str = ""
    reason: str = ""
    paused: bool = False
    failures: int = 0
    retry_at_ms: int = 0
    awaited_gen: int = 0
    planned_ms: int = 0
    planned: bool = False

    @property
    def pending(self) -> bool:
        """Whether there are entries after the cursor."""
        return self.cursor.c < self.last


class Throttle:
    """A link's limit in bytes per second, paid afterwards: a batch may overdraw it, and the next ones wait.

    Paying afterwards is what lets an entry pass that is larger than a second's allowance.
    """

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Change the limit; 0 is none. A new limit starts with one second's allowance."""
        if rate != (self._bucket.tokens if self._bucket is not None else 0):
            self._bucket = TokenBucket(rate, 1000, now_ms) if rate else None

    def allowance(self, now_ms: int) -> int | None:
        """Bytes that may be planned now: None without a limit, 0 while in debt."""
        return None if self._bucket is None else max(0, self._bucket.room(now_ms))

    def spend(self, size: int) -> None:
        """Bytes went over the link: count them."""
        if self._bucket is not None:
            self._bucket.take(size)

    def ready_at_ms(self, now_ms: int) -> int:
        """When there is an allowance again."""
        return now_ms if self._bucket is None else now_ms + self._bucket.wait_ms(now_ms)


@dataclass(slots=True)
class LinkState:
    """One link, its topics, and the reports that are owed to its source."""

    link: Link
    uuid: str = ""
    lease: bool = True
    lease_holder: str = ""
    paused: bool = False
    throttle: Throttle = field(default_factory=Throttle)
    blocked: str = ""
    reason: str = ""
    failures: int = 0
    retry_at_ms: int = 0
    counter: int = 0
    target_uuid: str = ""
    checked_ms: int = LONG_AGO_MS
    checks: int = 0
    reported: bool = False
    doubtful: bool = False
    topics: dict[str, TopicState] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    unready: set[str] = field(default_factory=set)
    troubled: set[str] = field(default_factory=set)
    owed: dict[str, pb.GeoCommitTopic] = field(default_factory=dict)
    learned: dict[str, pb.GeoLearnTopic] = field(default_factory=dict)
    in_flight: dict[str, set[str]] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    last_lag_ms: int = 0
    totals: pb.GeoFetchTotals | None = None
    boot: int = 0
    reported_trouble: Trouble | None = None

    @property
    def flying(self) -> bool:
        """Whether a batch carries ranges of this link."""
        return any(self.in_flight.values())

    def figures(self, now_ms: int) -> dict[str, int | str | bool]:
        """This link in figures: totals since the start, and the backlog by the sources' last reports."""
        topics = [self.topics[name] for name in self.pending]
        oldest = min((topic.oldest_ms for topic in topics if topic.oldest_ms), default=0)
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "duplicates": self.duplicates,
            "latency_ms": self.last_lag_ms,
            "lag_entries": sum(topic.pending_entries for topic in topics),
            "lag_bytes": sum(topic.pending_bytes for topic in topics),
            "lag_ms": max(0, now_ms - oldest) if oldest else 0,
            "topics": len(self.topics),
            "unready": len(self.unready),
            "blocked": len(self.troubled),
            "gap": sum(topic.gap for topic in self.topics.values()),
            "paused": self.paused,
            "lease": self.lease,
        }


@dataclass(slots=True)
class Destination:
    """The pace at which a destination cluster accepts batches.

    Attributes:
        batch_bytes_max: of the largest batches: a pace of that size is no bound.
        quiet_until_ms: nothing is sent before.
        pace_bytes: bytes that it gets in one batch; 0: no bound.
    """

    batch_bytes_max: int
    quiet_until_ms: int = 0
    pace_bytes: int = 0

    def throttled(self, now_ms: int, pause_ms: int, batch_bytes: int) -> None:
        """It asked for a pause: the next batches are half as large."""
        self.quiet_until_ms = max(self.quiet_until_ms, now_ms + pause_ms)
        self.pace_bytes = max(PACE_BYTES_MIN, (self.pace_bytes or batch_bytes) // 2)

    def accepted(self) -> None:
        """A batch went through without complaint: the next may be a quarter larger."""
        if self.pace_bytes:
            self.pace_bytes = 0 if self.pace_bytes >= self.batch_bytes_max else self.pace_bytes * 5 // 4
