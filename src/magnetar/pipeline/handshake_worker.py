"""Talks to a destination cluster outside batches: handshakes, the idle comparison, probes of a broken cluster."""

import time

from magnetar.pipeline.link_state import Handshake
from magnetar.pipeline.shared_state import TICK_MS, SharedState
from magnetar.pipeline.tasks.link_channel import LinkChannel, call, wait
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb


class HandshakeWorker:
    """Shakes hands with one destination cluster.

    Args:
        shared: of the pipeline.
        target: the cluster's name.
    """

    def __init__(self, shared: SharedState, target: str) -> None:
        self._shared = shared
        self._target = target
        self._limits = shared.pipeline.limits

    def run(self) -> None:
        """Until the pipeline stops."""
        channel: LinkChannel | None = None
        while not self._shared.stopping:
            with self._shared.trying(self._target) as may_try:
                if may_try:
                    channel = self._shake_hands(channel)
                else:
                    self._shared.await_probe(self._target)

    def _shake_hands(self, channel: LinkChannel | None) -> LinkChannel | None:
        """Send the questions that are due, or wait a while for one; returns the connection to keep."""
        target = self._target
        with self._shared.changed:
            broken = not self._shared.state.breakers[target].closed
            asked = self._shared.state.handshakes(target, self._shared.clock_ms())
            if broken and not asked:
                asked = self._shared.state.probes(target)
            if not asked and not broken:
                self._shared.changed.wait(TICK_MS / 1000)
                return channel
        try:
            channel = self._shared.connection(target, channel)
            if not asked:  # nothing is known of any source yet: reaching the broker has to do as the probe
                self._reach(channel)
            patience = self._limits.progress_ms if broken else self._limits.answer_ms
            for handshake in asked:
                command = watermarks(handshake)
                answer = call(channel, command, patience / 1000).geo_watermarks_response
                self._handshaken(handshake, answer)
                patience = self._limits.answer_ms
            channel.fresh = False
            self._shared.worked(target)
        except LinkDown as down:
            # An idle connection may have been closed meanwhile: that is worth a new one, not an alarm.
            stale = channel is not None and not channel.fresh and not broken
            if channel is not None:
                channel.close()
            if not stale:
                self._shared.failed(target, str(down))
            return None
        return channel

    def _reach(self, channel: LinkChannel) -> None:
        """Wait for CONNECTED."""
        while channel.hello is None:
            left = channel.tried_at + self._limits.progress_ms / 1000 - time.monotonic()
            if left <= 0:
                raise LinkDown(f"{channel.address}: no answer within {self._limits.progress_ms} ms")
            for _, readable, writable in wait([channel], left):
                channel.pump(readable, writable)

    def _handshaken(self, handshake: Handshake, answer: pb.CommandGeoWatermarksResponse) -> None:
        with self._shared.changing() as pipeline_state:
            pipeline_state.handshake_answered(handshake, answer, self._shared.clock_ms())


def watermarks(handshake: Handshake) -> pb.BaseCommand:
    """A GEO_WATERMARKS."""
    command = pb.BaseCommand(type=pb.GEO_WATERMARKS)
    asked = command.geo_watermarks
    asked.source, asked.uuid = handshake.link.source, handshake.uuid
    asked.counter = handshake.counter
    asked.topics.extend(handshake.topics)
    return command
