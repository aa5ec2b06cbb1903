"""Sends entries to several destination brokers at once, and handles their answers.

Each destination has a window: a limit of bytes that were sent and not answered. It follows the destination's pace and distance
(`pipeline.tasks.pace`). The sender does not wait for one destination while another can take bytes. A destination without progress
for half a second is given up, and the appends on their way to it fail. The data is sent as slices of the Arrow buffers. No
behaviour of a broker makes this module raise an exception.

An append counts when the destination has answered that it is *persisted*. An append that is refused, blocked or unanswered ends
its topic: later entries are not sent, because the destination would have to refuse them.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.pipeline import messages as m
from magnetar.pipeline.tasks.append_request import AppendRequest
from magnetar.pipeline.tasks.channel_poll import ChannelPoll, Pollable
from magnetar.pipeline.tasks.link_channel import LinkChannel, keep_channel, new_channel
from magnetar.pipeline.tasks.pace import Mark
from magnetar.pipeline.tasks.schema_fetcher import SchemaFetcher
from magnetar.pipeline.tasks.task_read import Connect
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Push, Response

APPEND_BYTES_MAX: Final = 1 << 20
"""One GEO_APPEND: below the brokers' frame limit, large enough that its fixed cost vanishes."""

APPEND_ENTRIES_MAX: Final = 4096

WINDOW_BYTES_MIN: Final = 8 << 20
"""The window of a destination that is near, or that is not known yet, unless its ceiling is lower: a disk that syncs for tens of
milliseconds should not stop a link in between."""


@dataclass(slots=True)
class DestinationChannel:
    """The connection to one destination, and its queue; its limits are those of the route that opened it."""

    route: m.Route
    channel: LinkChannel | None = None
    queue: deque[AppendRequest] = field(default_factory=deque)
    under_way: dict[int, tuple[AppendRequest, Mark]] = field(default_factory=dict)
    queued_bytes: int = 0
    under_way_bytes: int = 0
    down: str = ""
    silent_s: float = 0.0
    quiet_until: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether bytes wait to be sent, or answers are awaited."""
        return not self.down and bool(self.queue or self.under_way)

    @property
    def full(self) -> bool:
        """Whether too many bytes wait for it."""
        return self.busy and self.queued_bytes > self.route.buffer_bytes_max


class AppendSender:
    """Sends appends for one task.

    Args:
        token: of the links.
        connect: opens or takes a kept connection to an address.
        progress_ms: a destination without a byte for this time is given up; None: as its route says.
        heeds_throttles: whether the sender makes the pauses that destinations ask for; else the caller does.
    """

    def __init__(
        self, token: str, connect: Connect, progress_ms: int | None = None, *, heeds_throttles: bool = False
    ) -> None:
        self._token, self._connect, self._progress_ms = token, connect, progress_ms
        self._heeds_throttles = heeds_throttles
        self._destinations: dict[str, DestinationChannel] = {}
        self._schema_fetcher = SchemaFetcher(token, connect=connect)
        self._poll: ChannelPoll[Pollable] = ChannelPoll()

    @property
    def busy(self) -> bool:
        """Whether any destination has bytes to be sent or answers to give."""
        return any(destination.busy for destination in self._destinations.values())

    @property
    def full(self) -> bool:
        """Whether far too many bytes wait for some destination."""
        return any(destination.full for destination in self._destinations.values())

    @property
    def patience_s(self) -> float:
        """How long the least patient of the busy destinations may be silent."""
        busy = [destination for destination in self._destinations.values() if destination.busy]
        return min(self._patience_ms(destination) for destination in busy) / 1000

    def _patience_ms(self, destination: DestinationChannel) -> int:
        return destination.route.progress_ms if self._progress_ms is None else self._progress_ms

    def down(self, route: m.Route) -> str:
        """Why a destination was given up; "" when it was not. Opens the connection to a new destination."""
        return self._destination(route).down

    def opened(self, route: m.Route) -> bool:
        """Whether the connection to a destination is open, or there is none to wait for."""
        found = self._destinations.get(route.target_address)
        return found is None or found.channel is None or found.channel.hello is not None

    def revive(self, route: m.Route) -> None:
        """Try a destination again that was given up."""
        found = self._destinations.get(route.target_address)
        if found is not None and found.down:
            del self._destinations[route.target_address]

    def put(self, append: AppendRequest) -> None:
        """Queue an append for its destination, which is not down."""
        destination = self._destination(append.progress.route)
        destination.queue.append(append)
        destination.queued_bytes += len(append.data)

    def close(self) -> None:
        """The task is over: keep idle connections for the next one."""
        for destination in self._destinations.values():
            if destination.channel is not None and destination.channel.hello is not None:
                keep_channel(destination.channel, self._token)
            elif destination.channel is not None:
                destination.channel.close()  # it waits for a destination that does not answer
        self._schema_fetcher.close()
        self._poll.close()

    def _destination(self, route: m.Route) -> DestinationChannel:
        destination = self._destinations.get(route.target_address)
        if destination is None:
            destination = self._destinations[route.target_address] = DestinationChannel(route)
            try:
                destination.channel = self._connect(route.target_address, self._token)
            except LinkDown as down:
                self._give_up(destination, str(down))
        return destination

    def pump(self, timeout: float, others: Mapping[Pollable, Callable[[bool, bool], None]] | None = None) -> None:
        """Send and receive as much as possible; wait at most `timeout` seconds for any destination; give up the silent ones.

        Args:
            timeout: seconds.
            others: further connections to wait for, and the call for each, with (readable, writable), when it is ready.
        """
        began = time.monotonic()
        # Those without work too: to leave them out and take them in again costs two system calls for each append.
        destinations = {
            destination.channel: destination
            for destination in self._destinations.values()
            if destination.channel is not None
        }
        for channel, destination in destinations.items():
            timeout = min(timeout, self._fill_window(destination, began))
            if channel.connected and channel.wants_write:
                self._go_on(channel, False, True, destinations, {})  # a wait for room would be three system calls more
                if destination.channel is not channel:
                    timeout = 0.0  # the connection ended: there may be nothing left to wait for
        sources = self._schema_fetcher.channels
        timeout = min(timeout, self._schema_fetcher.patience_s) if sources else timeout
        others = others or {}
        for pollable, readable, writable in self._poll.wait([*destinations, *sources, *others], timeout):
            if pollable in others:
                others[pollable](readable, writable)
            elif isinstance(pollable, LinkChannel):
                self._go_on(pollable, readable, writable, destinations, sources)
        if sources:
            self._schema_fetcher.give_up_silent()
        waited = time.monotonic() - began
        for channel, destination in destinations.items():
            destination.silent_s = 0.0 if channel.progress_at >= began else destination.silent_s + waited
            if not destination.under_way:
                destination.silent_s = 0.0  # it was asked nothing
            if destination.busy and destination.silent_s * 1000 >= self._patience_ms(destination):
                self._give_up(destination, f"no progress within {self._patience_ms(destination)} ms")

    def _go_on(
        self,
        channel: LinkChannel,
        readable: bool,
        writable: bool,
        destinations: Mapping[LinkChannel, DestinationChannel],
        sources: Mapping[LinkChannel, str],
    ) -> None:
        if channel in sources:
            self._schema_fetcher.pump(sources[channel], readable, writable)
            return
        destination = destinations[channel]
        try:
            for event in channel.pump(readable, writable):
                self._answered(destination, channel, event)
        except LinkDown as down:
            if not destination.busy:
                self._forget(destination)
            elif not self._reconnect(destination):
                self._give_up(destination, str(down))

    def _fill_window(self, destination: DestinationChannel, now: float) -> float:
        """Send as much as the window allows; returns how long to wait at most before it is called again."""
        channel = destination.channel
        assert channel is not None
        if destination.quiet_until > now:
            return destination.quiet_until - now
        if not destination.queue:
            return float("inf")
        most = destination.route.window_bytes
        window = channel.pace.window(channel.round_trip_s, now, WINDOW_BYTES_MIN, most)
        while destination.queue and (destination.under_way_bytes < window or not destination.under_way):
            append = destination.queue.popleft()
            destination.queued_bytes -= len(append.data)
            if append.progress.trouble:
                append.progress.left()
                continue
            destination.under_way_bytes += len(append.data)
            self._send(destination, channel, append, now)
        return float("inf")

    @staticmethod
    def _send(destination: DestinationChannel, channel: LinkChannel, append: AppendRequest, now: float) -> None:
        number = channel.request(append.command(), [append.data])
        destination.under_way[number] = append, channel.pace.asked(now)

    def _answered(self, destination: DestinationChannel, channel: LinkChannel, event: Response | Push) -> None:
        command = event.command
        if command.type == pb.ERROR:
            self._give_up(destination, command.error.message)
            return
        if command.type == pb.GEO_SCHEMAS_WANTED:
            self._wanted(destination, command.geo_schemas_wanted)
            return
        answer = command.geo_append_response
        sent = destination.under_way.pop(event.request_id, None) if isinstance(event, Response) else None
        if sent is None:
            return
        append, mark = sent
        channel.pace.answered(mark, len(append.data), time.monotonic())
        destination.under_way_bytes -= len(append.data)
        progress = append.progress
        progress.left()
        if answer.throttle_ms:
            progress.throttled(answer.throttle_ms)
            if self._heeds_throttles:
                destination.quiet_until = time.monotonic() + answer.throttle_ms / 1000
        append.answered(answer)

    def _wanted(self, destination: DestinationChannel, wanted: pb.CommandGeoSchemasWanted) -> None:
        """The destination does not know the schemas of an append: it waits until the source has supplied them."""
        channel = destination.channel
        routes = (append.progress.route for append, _ in destination.under_way.values())
        address = next((route.source_address for route in routes if route.source == wanted.source), "")
        if not address:
            return  # nothing of it is under way now

        def reply(brought: pb.CommandGeoSchemasBrought) -> None:
            if (
                destination.channel is channel and channel is not None
            ):  # else the append is given up, and so is its question
                channel.send(pb.BaseCommand(type=pb.GEO_SCHEMAS_BROUGHT, geo_schemas_brought=brought))

        self._schema_fetcher.ask(address, wanted, self._patience_ms(destination), reply)

    def _reconnect(self, destination: DestinationChannel) -> bool:
        """Reconnect once when a kept connection fails: it may have died between two tasks, unseen.

        Sending again is harmless: entries that had arrived are answered as stored.
        """
        if destination.channel is None or destination.channel.fresh or destination.channel.frames_received:
            return False
        destination.channel.close()
        try:
            channel = destination.channel = new_channel(destination.route.target_address, self._token)
        except LinkDown:
            return False
        appends, destination.under_way = list(destination.under_way.values()), {}
        for append, _ in appends:
            self._send(destination, channel, append, time.monotonic())
        return True

    def _forget(self, destination: DestinationChannel) -> None:
        """An idle connection has ended, which says nothing about its destination: the next append opens another one."""
        if destination.channel is not None:
            destination.channel.close()
            destination.channel = None
        del self._destinations[destination.route.target_address]

    def _give_up(self, destination: DestinationChannel, reason: str) -> None:
        destination.down = f"{destination.route.target}: {reason}"
        for append in [*(append for append, _ in destination.under_way.values()), *destination.queue]:
            append.progress.fail(m.TARGET_DOWN, destination.down)
        destination.queue.clear()
        destination.under_way.clear()
        destination.queued_bytes = destination.under_way_bytes = 0
        if destination.channel is not None:
            destination.channel.close()
            destination.channel = None
