"""Tells a source cluster what is in its destinations: GEO_COMMIT with everything owed, commits before what was learned."""

from magnetar.pipeline.link_channel import LinkChannel, call
from magnetar.pipeline.shared_state import Desk
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb


class Teller:
    """The teller of one source cluster.

    Args:
        desk: of the pipeline.
        source: the cluster's name.
    """

    def __init__(self, desk: Desk, source: str) -> None:
        self._desk = desk
        self._source = source
        self._limits = desk.pipeline.limits

    def _has_news(self) -> bool:
        """Whether a source that can be reached has to be told something; the lock is held."""
        book, source = self._desk.book, self._source
        return book.breakers[source].closed and bool(book.owed(source) or book.troubles(source))

    def run(self) -> None:
        """Until the pipeline stops."""
        source = self._source
        channel: LinkChannel | None = None
        while True:
            with self._desk.changed:
                self._desk.changed.wait_for(lambda: self._desk.stopping or self._has_news())
                if self._desk.stopping:
                    break
                owed = {link: (commits, learned) for link, commits, learned in self._desk.book.owed(source)}
                troubles = dict(self._desk.book.troubles(source))
            try:
                channel = self._desk.connection(source, channel)
                for link in owed.keys() | troubles.keys():
                    commits, learned = owed.get(link, ([], []))
                    trouble = troubles.get(link)
                    command = pb.BaseCommand(type=pb.GEO_COMMIT)
                    commit = command.geo_commit
                    commit.to, commit.pipeline = link.target, self._desk.pipeline.name
                    commit.commits.extend(commits)
                    commit.learned.extend(learned)
                    if trouble is not None:
                        commit.trouble, commit.reason, commit.throttled = trouble
                    answer = call(channel, command, self._limits.answer_ms / 1000).geo_commit_response
                    if answer.HasField("error"):
                        raise LinkDown(answer.message)
                    with self._desk.changed:
                        self._desk.book.told(link, commits, learned, answer.ignored)
                        if trouble is not None:
                            self._desk.book.told_trouble(link, trouble)
                        self._desk.changed.notify_all()
            except LinkDown as down:
                if channel is not None:
                    stale, channel = not channel.fresh, None
                    if stale:
                        continue  # an idle connection may have been closed: once more on a new one
                self._desk.failed(source, str(down))
            else:
                channel.fresh = False
