"""Reports of links about themselves, as plain values for administration and metrics."""

from typing import Any, NotRequired, TypedDict


class LinkTopicState(TypedDict):
    """One topic of one link, as its source sees it. Positions are texts `ledger:entry`."""

    topic: str
    c: str
    """Everything at or below is settled."""
    s: str
    """The last position that was sent."""
    gen: int
    lag_messages: int
    lag_bytes: int
    lag_ms: int
    """Age of the oldest message not settled; 0 when there is none."""
    paused: bool
    blocked: str
    """`schema`, `partitions`, `identity`, `policy`, `size`, `corrupt`, `terminated`, or "" when it is not blocked."""
    blocked_detail: NotRequired[str]
    """One line: the obstacle and the command to run."""
    blocked_since_ms: NotRequired[int]
    blocked_at: NotRequired[str]
    """The message id `ledger:entry` here, if one message is in the way."""
    schema_conflict: NotRequired[dict[str, Any]]
    """`source` and `target` (`cluster`, `version` there, `type`, `digest`), `strategy`, `cause`; when blocked by a schema."""
    orphan: bool
    """The link or the policy is gone, the cursor still holds data."""
    gap_messages: NotRequired[int]
    """Messages that retention deleted before they could be sent."""


class LinkState(TypedDict):
    """One outgoing link of this cluster."""

    source: str
    target: str
    state: str
    """`up`, `down` (target unreachable), `paused`, `blocked` (identity), `idle` (no pipeline holds the lease)."""
    since_ms: int
    """The time at which `state` began."""
    detail: str
    """One line for the operator; "" when all is well."""
    paused: bool
    throttle_bytes_per_s: int | None
    throttled: bool
    """The destination asks for less at the moment."""
    messages_sent: int
    """Total since the broker's start, as `bytes_sent`."""
    bytes_sent: int
    skipped_messages: int
    """Skipped messages of its topics, as `gap_messages`; survives a restart."""
    gap_messages: int
    skipped_messages_total: int
    """Skipped messages since the broker's start, also of topics that are gone, as `gap_messages_total`."""
    gap_messages_total: int
    lag_messages: int
    lag_bytes: int
    lag_ms: int
    topics: list[LinkTopicState]


class SkipPreview(TypedDict):
    """The messages that a skip would lose in one topic of a link."""

    topic: str
    through: str
    """The last position that would be skipped; pass it to `link_skip` to skip exactly this."""
    messages: int
    entries: int
    bytes: int
