"""Reports the progress of a long batch to one source: GEO_COMMIT from the task itself, without a detour over the driver."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from magnetar.pipeline.long.grants import TOPICS_MAX
from magnetar.pipeline.tasks.link_channel import LinkChannel, keep_channel
from magnetar.pipeline.tasks.task_read import Connect
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

PAUSE_S: Final = 0.2
"""Pause before a source that could not be reached is tried again."""


@dataclass(slots=True)
class _Link:
    """The commits that one link's source has not acknowledged: the latest of each topic."""

    target: str
    owed: dict[str, pb.GeoCommitTopic]
    totals: pb.GeoFetchTotals


class CommitChannel:
    """The commits to one source broker. Those that it has not answered are sent again.

    Args:
        address: of the source.
        token: of the links.
        progress_ms: an answer that takes longer makes a new connection.
        connect: opens or takes a kept connection to an address.
    """

    def __init__(self, address: str, token: str, progress_ms: int, connect: Connect) -> None:
        self._address, self._token, self._progress_ms, self._connect = address, token, progress_ms, connect
        self.channel: LinkChannel | None = None
        self._links: dict[int, _Link] = {}
        self._sent: dict[int, tuple[int, dict[str, pb.GeoCommitTopic], float]] = {}
        self._ignored: list[tuple[int, pb.GeoCommitTopic]] = []
        self._again_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether the source has still to answer."""
        return bool(self._sent) or any(link.owed for link in self._links.values())

    def put(self, link: int, target: str, commits: dict[str, pb.GeoCommitTopic], totals: pb.GeoFetchTotals) -> None:
        """Send the new commits of a link, now or when the source can be reached.

        Args:
            link, target: of the link.
            commits: by topic; later ones of a topic replace earlier ones.
            totals: of the link, the same object each time; what is sent are its values at the moment of sending.
        """
        found = self._links.setdefault(link, _Link(target, {}, totals))
        found.owed.update(commits)
        self._send()

    def ignored(self) -> Iterator[tuple[int, pb.GeoCommitTopic]]:
        """Commits, with their links, that the source ignored: the grant is over, or its cursor is another one."""
        ignored, self._ignored = self._ignored, []
        return iter(ignored)

    def _send(self) -> None:
        now = time.monotonic()
        if self.channel is None:
            if now < self._again_at:
                return
            try:
                self.channel = self._connect(self._address, self._token)
            except LinkDown:
                self._again_at = now + PAUSE_S
                return
        for number, link in self._links.items():
            while link.owed:
                some = dict(islice(link.owed.items(), TOPICS_MAX))
                command = pb.BaseCommand(type=pb.GEO_COMMIT)
                command.geo_commit.to = link.target
                command.geo_commit.commits.extend(some.values())
                command.geo_commit.totals.CopyFrom(link.totals)
                until = now + self._progress_ms / 1000
                self._sent[self.channel.request(command)] = (number, some, until)
                for topic in some:
                    del link.owed[topic]
        self.pump(False, True)

    def pump(self, readable: bool, writable: bool) -> None:
        """Continue with the connection: send and receive."""
        if self.channel is None:
            return
        try:
            events = self.channel.pump(readable, writable)
        except LinkDown:
            self._lost()
            return
        for event in events:
            if event.command.type == pb.ERROR:
                self._lost()
                return
            if isinstance(event, Response) and event.request_id in self._sent:
                number, commits, _ = self._sent.pop(event.request_id)
                self._ignored += ((number, commits[name]) for name in event.command.geo_commit_response.ignored)

    def go_on(self) -> None:
        """Do the work that is due by the clock: give up a silent source, and send again."""
        if any(until < time.monotonic() for _, _, until in self._sent.values()):
            self._lost()
        if any(link.owed for link in self._links.values()):
            self._send()

    def _lost(self) -> None:
        """Owe again the commits that were not answered, unless there are later ones."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._again_at = time.monotonic() + PAUSE_S
        for number, commits, _ in reversed(self._sent.values()):  # an earlier one must not replace a later one
            link = self._links[number]
            link.owed = commits | link.owed
        self._sent.clear()

    def close(self) -> None:
        """Keep the connection for the next task."""
        if self.channel is not None:
            keep_channel(self.channel, self._token)
