"""Asks a source cluster for news: GEO_TOPICS of all its links on one connection, long polls."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.pipeline.breaker import BreakerState
from magnetar.pipeline.link_state import Link
from magnetar.pipeline.shared_state import TICK_MS, SharedState
from magnetar.pipeline.tasks.link_channel import LinkChannel, wait
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

POLL_MS: Final = 10_000
"""A long poll's length; also how late a counter that was missed is noticed."""

POLL_PAUSE_MS: Final = 25
"""Pause between two polls of one link: a busy topic changes all the time, a batch every 160 ms."""


@dataclass(slots=True)
class Poll:
    """The question for news of one link. It is always either sent and not answered, or due at a time.

    Attributes:
        link: the link.
        counter: the source's counter of changes, as the last answer had it; 0: the source reports all topics.
        boot: the source's start, as the last answer had it; 0: not known yet.
        patience_ms: how long the source may wait for news before it answers. The first question has 0: it is the probe of the
            circuit breaker, and is answered at once.
        due: when it is sent, by `time.monotonic`; counts while it is not sent.
        until: when an answer is overdue, likewise; counts while it is sent.
        request: number of the request; 0: it is not sent.
    """

    link: Link
    counter: int = 0
    boot: int = 0
    patience_ms: int = 0
    due: float = 0.0
    until: float = 0.0
    request: int = 0


class Poller:
    """The poller of one source cluster.

    Args:
        shared: of the pipeline.
        source: the cluster's name.
    """

    def __init__(self, shared: SharedState, source: str) -> None:
        self._shared = shared
        self._source = source
        self._limits = shared.pipeline.limits

    def run(self) -> None:
        """Until the pipeline stops."""
        source = self._source
        links = [link for link in self._shared.pipeline.links if link.source == source]
        while not self._shared.stopping:
            with self._shared.trying(source) as may_try:
                if may_try:
                    self._connected(links)
                else:
                    self._shared.await_probe(source)

    def _connected(self, links: Sequence[Link]) -> None:
        """Poll all links on a new connection, for as long as it is of use."""
        source = self._source
        try:
            channel = self._shared.connection(source)
            try:
                self._poll_links(links, channel)
            finally:
                channel.close()
        except LinkDown as down:
            with self._shared.changed:
                self._shared.state.source_lost(source)
            self._shared.failed(source, str(down))

    def _poll_links(self, links: Sequence[Link], channel: LinkChannel) -> None:
        """Poll all links of a source on one connection until it fails, what it presented changes, or the pipeline stops."""
        source = self._source
        polls = {link.number: Poll(link) for link in links}
        asked: dict[int, Poll] = {}
        while not self._shared.stopping and channel.presented == self._shared.presented:
            now = time.monotonic()
            for poll in polls.values():
                if not poll.request and poll.due <= now:
                    poll.request = channel.request(self._topics(poll))
                    asked[poll.request] = poll
                    poll.until = now + (poll.patience_ms + self._limits.answer_ms) / 1000
            waits = [poll.due - now for poll in polls.values() if not poll.request]
            ready = wait([channel], max(0.0, min([TICK_MS / 1000, *waits])))
            _, readable, writable = ready[0] if ready else (channel, False, False)
            for event in channel.pump(readable, writable):
                if event.command.type == pb.ERROR:
                    raise LinkDown(f"{source}: {event.command.error.message}")
                answered = asked.pop(event.request_id, None) if isinstance(event, Response) else None
                if answered is not None:
                    self._topics_answered(answered, event.command.geo_topics_response)
            for poll in list(asked.values()):
                if poll.until < time.monotonic():
                    self._overdue(poll)
                    del asked[poll.request]
                    poll.request = 0
            self._ask_everything(polls)
            if not self._trusted():
                raise LinkDown(self._shared.state.breakers[source].reason)

    def _overdue(self, poll: Poll) -> None:
        """A long poll without answer is asked again at once; only silence to *that* means that the source is down."""
        if not poll.patience_ms:
            raise LinkDown(f"{self._source}: no answer to GEO_TOPICS")
        poll.patience_ms, poll.due = 0, 0.0

    def _topics(self, poll: Poll) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.GEO_TOPICS)
        topics = command.geo_topics
        topics.to, topics.counter, topics.boot = poll.link.target, poll.counter, poll.boot
        topics.wait_ms, topics.pipeline = poll.patience_ms, self._shared.pipeline.name
        topics.lease_ms = self._limits.lease_ms
        return command

    def _topics_answered(self, poll: Poll, response: pb.CommandGeoTopicsResponse) -> None:
        everything = not poll.counter or response.boot != poll.boot
        with self._shared.changing() as pipeline_state:
            pipeline_state.source_reported(poll.link.number, response, self._shared.clock_ms(), everything=everything)
        poll.request, poll.due = 0, time.monotonic() + POLL_PAUSE_MS / 1000
        poll.counter, poll.boot, poll.patience_ms = response.counter, response.boot, POLL_MS
        self._shared.worked(self._source)

    def _ask_everything(self, polls: dict[int, Poll]) -> None:
        """Forget the counters of links whose commits were ignored: what we know of them is void."""
        with self._shared.changed:
            for number, poll in polls.items():
                if self._shared.state.links[number].doubtful:
                    self._shared.state.links[number].doubtful = False
                    poll.counter = 0

    def _trusted(self) -> bool:
        """False when a task could not reach the source although we are connected: then connect again, as the probe.

        Half-open is trusted: until its first answer, this connection is the probe.
        """
        with self._shared.changed:
            return self._shared.state.breakers[self._source].state is not BreakerState.OPEN
