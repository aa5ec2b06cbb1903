"""GEO_READs that follow each other: the next one begins where the answer of the one before it ended.

A reader that is far away cannot wait for one answer before it asks for the next entries: it would move one answer in each round
trip. It does not know where an answer will end, either. So it names the request that the new one follows, and the broker begins
with it as soon as that one is answered. The answers go out in the order of the requests, and no entry is read twice.

A chain ends with an answer that says why there is no more (an error, a block), or that came no further. The requests that follow
such an answer get answers without entries.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar.core.errors import BrokerError
from magnetar.effects.outbox import Outbox, Timer
from magnetar.replication.link.reading import ReadReply
from magnetar.wire import pulsar_pb2 as pb

WAITING_MAX: Final = 256
"""Requests of one connection that wait for others. A reader has 32 MiB under way: 8 requests, or 128 for small topics."""

ANSWERED_MAX: Final = 256
"""Answers of one connection whose ends are remembered: a request that follows one of them may be on its way."""

Begin = Callable[[pb.CommandGeoRead, ReadReply], None]


class _Answered(NamedTuple):
    """Where an answer ended; `over`: its chain ends there."""

    end: pb.GeoPosition
    over: bool


class _Asked(NamedTuple):
    request: pb.CommandGeoRead
    reply: ReadReply
    begin: Begin


class ReadChains:
    """The reads of one connection.

    Args:
        outbox: the broker's.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._unanswered: set[int] = set()
        self._answered: dict[int, _Answered] = {}
        self._waiting: dict[int, _Asked] = {}
        """By the request that each follows."""

    def read(self, request: pb.CommandGeoRead, reply: ReadReply, begin: Begin) -> None:
        """GEO_READ.

        Args:
            request: what is asked.
            reply: is called once, now or later.
            begin: begins with a request, and calls back with its answer. Raises BrokerError when the request is refused. It is
                given with each request and not kept: it belongs to the session that has this object, so a reference to it would
                close a circle (`runtime.interpreter.garbage`).

        Raises:
            BrokerError: the request is refused; `reply` is not called.
        """
        asked, former = _Asked(request, reply, begin), request.follows
        if not former:
            self._start(asked)
        elif former in self._answered:
            self._follow(asked, self._answered[former])
        elif former not in self._unanswered:
            self._end(asked, "the request that it follows is not known")
        elif former in self._waiting or len(self._waiting) >= WAITING_MAX:
            self._end(asked, "too many requests follow each other")
        else:
            self._unanswered.add(request.request_id)
            self._waiting[former] = asked

    def disconnected(self) -> None:
        """The connection is gone: its requests no longer wait."""
        self._waiting.clear()

    def _start(self, asked: _Asked) -> None:
        number = asked.request.request_id
        after = (asked.request.after.ledger, asked.request.after.entry)

        def answered(response: pb.CommandGeoReadResponse, buffers: Sequence[bytes]) -> None:
            moved = (response.end.ledger, response.end.entry) > after
            over = bool(response.blocked) or response.HasField("error") or not moved
            asked.reply(response, buffers)
            self._note(number, _Answered(response.end, over))

        self._unanswered.add(number)
        try:
            asked.begin(asked.request, answered)
        except BrokerError:
            self._note(number, _Answered(asked.request.after, True))
            raise

    def _note(self, number: int, answered: _Answered) -> None:
        """An answer was given: the request that follows it begins, in a turn of its own."""
        self._unanswered.discard(number)
        if len(self._answered) >= ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]
        self._answered[number] = answered
        if number in self._waiting:
            self._outbox.put(Timer(self._outbox.now_ms, lambda _now_ms: self._go_on(number, answered)))

    def _go_on(self, number: int, answered: _Answered) -> None:
        asked = self._waiting.pop(number, None)
        if asked is None:
            return
        try:
            self._follow(asked, answered)
        except BrokerError as error:
            # Not ERROR, which would end the reader's connection: the topic went away, and its other reads did not.
            self._end(asked, error.message, int(error.code))

    def _follow(self, asked: _Asked, former: _Answered) -> None:
        asked.request.after.CopyFrom(former.end)
        if former.over:
            self._end(asked)
        else:
            self._start(asked)

    def _end(self, asked: _Asked, message: str = "", error: int | None = None) -> None:
        """Answer without entries; the chain ends."""
        number, after = asked.request.request_id, asked.request.after
        response = pb.CommandGeoReadResponse(request_id=number, end=after, error=error)
        if message:
            response.message = message
        asked.reply(response, ())
        self._note(number, _Answered(after, True))
