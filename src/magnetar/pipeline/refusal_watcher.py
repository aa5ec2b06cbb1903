"""Asks a destination cluster, while it refuses topics, whether it may accept them now (a long poll)."""

from typing import Final

from magnetar.pipeline.handshake_worker import watermarks
from magnetar.pipeline.shared_state import TICK_MS, SharedState
from magnetar.pipeline.tasks.link_channel import LinkChannel, call
from magnetar.runtime.network.link_connection import LinkDown

WAIT_MS: Final = 2_000
"""How long an answer is held: no longer than a stopping pipeline may wait for this thread."""

SILENT_MS: Final = 10_000
"""Pause before a destination is asked again that could not be reached, or is too old to answer."""


class RefusalWatcher:
    """Watches the refusals of one destination cluster.

    Args:
        shared: of the pipeline.
        target: the cluster's name.
    """

    def __init__(self, shared: SharedState, target: str) -> None:
        self._shared = shared
        self._target = target
        self._news = 0

    def run(self) -> None:
        """Until the pipeline stops."""
        channel: LinkChannel | None = None
        while not self._shared.stopping:
            with self._shared.changed:
                asked = self._shared.state.listens(self._target)
                if not asked:
                    self._news = 0
                    self._shared.changed.wait(TICK_MS / 1000)
                    continue
            try:
                channel = self._shared.connection(self._target, channel)
                command = watermarks(asked[0])
                command.geo_watermarks.wait_ms, command.geo_watermarks.news = WAIT_MS, self._news
                patience_ms = WAIT_MS + self._shared.pipeline.limits.answer_ms
                answer = call(channel, command, patience_ms / 1000).geo_watermarks_response
            except LinkDown:  # the handshake worker reports it
                if channel is not None:
                    channel.close()
                channel = None
                self._shared.pause(SILENT_MS)
                continue
            if not answer.HasField("news"):
                self._shared.pause(SILENT_MS)
            elif answer.news != self._news:
                self._news = answer.news
                with self._shared.changing() as pipeline_state:
                    pipeline_state.refusals_changed(self._target)
        if channel is not None:
            channel.close()
