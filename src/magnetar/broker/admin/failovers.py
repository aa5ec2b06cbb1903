"""Planned failovers for administration; the rules are those of `broker.admin.controller`.

Topics are single topics or partitions: to move a partitioned topic's subscription, the one of each partition is moved.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.context import Done
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.failover.final_state import Run
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.metadata.errors import BadRequest
from magnetar.replication.failover import NO_TOKEN, Token
from magnetar.wire.acksets import believable

DoneState = Callable[[dict[str, Any] | None, MagnetarError | None], None]

Step = Literal["activate", "complete", "put-back", "give-up", "call-off"]
STEPS: Final[tuple[Step, ...]] = ("activate", "complete", "put-back", "give-up", "call-off")


class FailoverControl:
    """Moves subscriptions between clusters.

    Args:
        fences: of the broker.
        events: how changes enter the broker.
    """

    def __init__(self, fences: Fences, events: AdminEvents) -> None:
        self._fences = fences
        self._events = events

    def _token(self, topic: str, subscription: str, text: str) -> Token:
        """A failover's token from a request.

        Raises:
            BadRequest: it is not a token, or leaves no room for a later one.
        """
        found = Token.parse(text)
        if not believable(found.time_ms + 1, self._fences.latest_token(topic, subscription).time_ms):
            raise BadRequest(f"failover {found} leaves no room for later ones")
        return found

    def held(self) -> list[dict[str, Any]]:
        """Subscriptions that are fenced or moved away, by topic and name (`replication.failover.Fence.plain`)."""
        return self._fences.held()

    def state(self, topic: str, subscription: str) -> dict[str, Any]:
        """A subscription's fence and the facts that a failover needs (`broker.failover.fencing.Fences.describe`).

        Raises:
            NotFound: no such topic or subscription.
            PreconditionFailed: it was deleted here, and states of other clusters are ignored.
        """
        return self._fences.describe(topic, subscription)

    def wait(self, topic: str, subscription: str, since: int, wait_ms: int, done: DoneState) -> None:
        """`state` when its `version` is above `since`, or after `wait_ms`.

        Raises or answers:
            NotFound.
        """
        fences = self._fences
        fences.describe(topic, subscription)

        def answer() -> None:
            try:
                done(fences.describe(topic, subscription), None)
            except MagnetarError as error:
                done(None, error)

        self._events.enter(
            lambda: fences.wait(topic, wait_ms, lambda: fences.changed_since(topic, subscription, since), answer)
        )

    def merged(
        self, topic: str, subscription: str, source: str, position: Position, wait_ms: int, done: DoneState
    ) -> None:
        """Whether all that a source cluster's topic holds up to one of its positions is stored and merged here; answered when
        it is, or after `wait_ms`. Keys: `merged`, `watermark` (of the source here), `exists` (the subscription, here).
        """
        fences = self._fences

        def look() -> dict[str, Any]:
            return fences.merged(topic, subscription, source, position)

        self._events.enter(
            lambda: fences.wait(topic, wait_ms, lambda: bool(look()["merged"]), lambda: done(look(), None))
        )

    def begin(
        self, topic: str, subscription: str, target: str, above: str, grace_ms: int, done: Done, *, named: str = ""
    ) -> None:
        """Fence a subscription here, to move it to `target`; joins a failover to the same target that is under way.

        Args:
            topic, subscription: which.
            target: cluster.
            above: the latest failover that the target knows of, as text; "" for none.
            grace_ms: how long acknowledgements of what was sent are awaited.
            done: see `broker.admin.controller`.
            named: the token that it shall have, later than all that are known (`next` of the state); "" for any.

        Raises or answers:
            NotFound, BadRequest, PreconditionFailed, Conflict.
        """
        latest = self._token(topic, subscription, above) if above else NO_TOKEN
        token = self._token(topic, subscription, named) if named else NO_TOKEN
        self._events.enter(lambda: self._fences.begin(topic, subscription, target, latest, grace_ms, done, token))

    def step(self, step: Step, topic: str, subscription: str, token: str, done: Done) -> None:
        """Take a step of the failover named by `token`: activate and give-up at the target, complete, put-back and call-off at
        the source (`replication.failover`).

        Raises or answers:
            BadRequest: no token. NotFound. Conflict: this failover is over, or not so far.
        """
        fences, named = self._fences, self._token(topic, subscription, token)
        take = {
            "activate": fences.activate,
            "complete": fences.complete,
            "put-back": fences.put_back,
            "give-up": fences.give_up,
            "call-off": fences.call_off,
        }[step]
        self._events.enter(lambda: take(topic, subscription, named, done))

    def unacknowledged(self, topic: str, subscription: str) -> list[Run]:
        """The messages that a subscription has not acknowledged here, by identity; at most
        `broker.failover.final_state.RUNS_MAX` runs, the lowest.

        Raises:
            NotFound.
        """
        return self._fences.unacknowledged(topic, subscription)

    def acknowledged_of(self, topic: str, subscription: str, runs: list[Run]) -> int:
        """The number of these messages that are here and acknowledged.

        Raises:
            NotFound.
        """
        return self._fences.acknowledged_of(topic, subscription, runs)

    def unfence(self, topic: str, subscription: str, done: Done) -> None:
        """End a fence by hand, whatever the other cluster does.

        Raises:
            NotFound.
        """
        self._events.enter(lambda: self._fences.unfence(topic, subscription, done))
