"""Hears from a destination cluster that what it refused may be let in now; asks only while something is refused."""

from typing import Final

from magnetar.pipeline.handshakes import watermarks
from magnetar.pipeline.link_channel import LinkChannel, call
from magnetar.pipeline.shared_state import TICK_MS, Desk
from magnetar.runtime.network.link_connection import LinkDown

WAIT_MS: Final = 2_000
"""How long an answer is held: no longer than a stopping pipeline may wait for this thread."""

SILENT_MS: Final = 10_000
"""Pause before a destination is asked again that could not be reached, or is too old to answer."""


class Listener:
    """The listener of one destination cluster.

    Args:
        desk: of the pipeline.
        target: the cluster's name.
    """

    def __init__(self, desk: Desk, target: str) -> None:
        self._desk = desk
        self._target = target
        self._news = 0

    def run(self) -> None:
        """Until the pipeline stops."""
        channel: LinkChannel | None = None
        while not self._desk.stopping:
            with self._desk.changed:
                asked = self._desk.book.listens(self._target)
                if not asked:
                    self._news = 0
                    self._desk.changed.wait(TICK_MS / 1000)
                    continue
            try:
                channel = self._desk.connection(self._target, channel)
                command = watermarks(asked[0])
                command.geo_watermarks.wait_ms, command.geo_watermarks.news = WAIT_MS, self._news
                patience_ms = WAIT_MS + self._desk.pipeline.limits.answer_ms
                answer = call(channel, command, patience_ms / 1000).geo_watermarks_response
            except LinkDown:  # the greeter says so
                if channel is not None:
                    channel.close()
                channel = None
                self._desk.pause(SILENT_MS)
                continue
            if not answer.HasField("news"):
                self._desk.pause(SILENT_MS)
            elif answer.news != self._news:
                self._news = answer.news
                with self._desk.changing() as book:
                    book.refusals_changed(self._target)
        if channel is not None:
            channel.close()
