"""Reports the progress of the destinations to a source cluster: GEO_COMMIT with everything owed, commits before watermarks."""

from magnetar.pipeline.link_state import Owed, Trouble
from magnetar.pipeline.shared_state import SharedState
from magnetar.pipeline.tasks.link_channel import LinkChannel, call
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb


class CommitSender:
    """Sends the commits of one source cluster.

    Args:
        shared: of the pipeline.
        source: the cluster's name.
    """

    def __init__(self, shared: SharedState, source: str) -> None:
        self._shared = shared
        self._source = source
        self._limits = shared.pipeline.limits

    def _has_news(self) -> bool:
        """Whether there is something to send to a source that can be reached; the lock is held."""
        pipeline_state, source = self._shared.state, self._source
        return pipeline_state.breakers[source].closed and bool(
            pipeline_state.owed(source, self._shared.clock_ms()) or pipeline_state.troubles(source)
        )

    def _wait(self) -> None:
        """Wait until there is something to send; the lock is held."""
        while not (self._shared.stopping or self._has_news()):
            at_ms = self._shared.state.next_grant_ms(self._source)
            self._shared.changed.wait(max(0.001, (at_ms - self._shared.clock_ms()) / 1000) if at_ms else None)

    def run(self) -> None:
        """Until the pipeline stops."""
        source = self._source
        channel: LinkChannel | None = None
        while True:
            with self._shared.changed:
                self._wait()
                if self._shared.stopping:
                    break
                every = {owed.link: owed for owed in self._shared.state.owed(source, self._shared.clock_ms())}
                troubles = dict(self._shared.state.troubles(source))
            try:
                channel = self._shared.connection(source, channel)
                for link in every.keys() | troubles.keys():
                    self._send(channel, every.get(link, Owed(link, [], [], [], [])), troubles.get(link))
            except LinkDown as down:
                if channel is not None:
                    stale, channel = not channel.fresh, None
                    if stale:
                        continue  # an idle connection may have been closed: once more on a new one
                self._shared.failed(source, str(down))
            else:
                channel.fresh = False

    def _send(self, channel: LinkChannel, owed: Owed, trouble: Trouble | None) -> None:
        command = pb.BaseCommand(type=pb.GEO_COMMIT)
        commit = command.geo_commit
        commit.to, commit.pipeline = owed.link.target, self._shared.pipeline.name
        commit.commits.extend(owed.commits)
        commit.learned.extend(owed.learned)
        commit.grants.extend(owed.grants)
        commit.revoked.extend(owed.revoked)
        if trouble is not None:
            commit.trouble, commit.reason, commit.throttled = trouble
        answer = call(channel, command, self._limits.answer_ms / 1000).geo_commit_response
        if answer.HasField("error"):
            raise LinkDown(answer.message)
        with self._shared.changed:
            self._shared.state.commit_answered(owed, answer.ignored, answer.counter, self._shared.clock_ms())
            if trouble is not None:
                self._shared.state.trouble_reported(owed.link, trouble)
            self._shared.changed.notify_all()
