"""The fence of one subscription in one cluster: the steps of a planned failover.

A failover from A to B is four steps of the command, each of them durable before it is answered and harmless when repeated:

    A  fence      active  -> fencing      dispatch stops; acknowledgements of messages sent before are awaited
    A  (itself)   fencing -> fenced       all came, or the grace period is over; the final state is written into the topic
    B  activate   any     -> active       once B has merged the final state
    A  complete   fenced  -> moved        A's consumers, and all that come later, are sent to B

    fence      active (token later than any seen)              -> fencing     fencing, fenced, moved to the same target: joins
    drained    fencing                                         -> fenced
    written    fenced                                          -> fenced, with the position of the final state; a later one,
                                                                  when a failover that was cut short is taken up again
    complete   fenced, with that position, same token          -> moved
    put back   fencing, fenced, moved (same or later token)    -> active      the token can activate nothing from now on
    unfence    fencing, fenced, moved                          -> active      by hand; the token is used up as well
    activate   active, moved (later token, not given up)       -> active      a failover back ends a fence in this way
    give up    any, unless the token has activated it          -> the same    the token can activate nothing here from now on
    call off   fencing, fenced (same token)                    -> active      at the source, when `fence` was not answered:
               any other                                       -> the same    the token can begin nothing here from now on

Only a failover makes a fence, and only the steps above end it. The *token* (hybrid time, cluster of the fence) gives the
failovers of one subscription an order, in whichever cluster they start. It identifies a step that comes late, or twice, or from a
command that a later one has overtaken (docs/design/failover.md#token).

States are values: a step returns the next state; the caller stores it and uses it only then. The caller gives the time, `now_ms`.
"""

from enum import StrEnum
from typing import Final, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.core.numbers import whole_number
from magnetar.metadata.errors import BadRequest, Conflict
from magnetar.wire.acksets import TIME_MS_MAX

VERSION: Final = 1


class Phase(StrEnum):
    """The phase of a subscription; only an active one dispatches."""

    ACTIVE = "active"
    FENCING = "fencing"
    FENCED = "fenced"
    MOVED = "moved"


class End(StrEnum):
    """How the last failover ended here; a subscription that took part in none has none."""

    NONE = ""
    PUT_BACK = "put back"
    UNFENCED = "unfenced"
    ACTIVATED = "activated"


class Token(NamedTuple):
    """The name of one failover; the later one wins.

    Attributes:
        time_ms: hybrid: the wall clock of the fenced cluster, and more than that of every failover known there.
        cluster: which fenced.
    """

    time_ms: int
    cluster: str

    def __str__(self) -> str:
        return f"{self.time_ms}@{self.cluster}" if self.time_ms else ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            BadRequest: it is none.
        """
        time, separator, cluster = text.partition("@")
        time_ms = whole_number(time)
        if not (separator and cluster and time_ms and time_ms <= TIME_MS_MAX):
            raise BadRequest(f"{text[:60]!a} is not a failover's token: it looks like 1700000000000@us-west")
        return cls(time_ms, cluster)


NO_TOKEN: Final = Token(0, "")


class Fence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state; `Fence()` is that of a subscription that never took part in a failover.

    Attributes:
        phase: see the module.
        token: of the last failover that changed it.
        target: the cluster that it moves or moved to; "" when active.
        since_ms: wall clock of the last change of phase.
        final: position of the final state in the topic here, once it is durable.
        left: messages that had been sent and were not acknowledged when the grace period ended. The final state lacks them, so
            the target delivers them again, unless an acknowledgement still made it there.
        end: how the last failover ended, when active.
        given_up: failovers with this token and earlier ones can no longer activate the subscription here.
    """

    version: int = VERSION
    phase: Phase = Phase.ACTIVE
    token: Token = NO_TOKEN
    target: str = ""
    since_ms: int = 0
    final: Position | None = None
    left: int = 0
    end: End = End.NONE
    given_up: Token = NO_TOKEN

    def __post_init__(self) -> None:
        """Check the rules that always hold."""
        active = self.phase is Phase.ACTIVE
        assert active == (not self.target), f"{self.phase} with target {self.target!r}"
        assert self.final is None or self.phase in {Phase.FENCED, Phase.MOVED}, f"a final state while {self.phase}"
        assert self.phase is not Phase.MOVED or self.final is not None, "moved without a final state"
        assert active or not self.end, f"{self.phase} has no end"

    # ------------------------------------------------------------------------------------------------- at the source

    @property
    def held(self) -> bool:
        """Whether nothing is dispatched."""
        return self.phase is not Phase.ACTIVE

    def next_token(self, cluster: str, now_ms: int, above: Token = NO_TOKEN) -> Token:
        """A token for a failover that begins here now.

        Args:
            cluster: this one.
            now_ms: wall clock.
            above: the latest that the target knows of; its clock may be ahead.
        """
        return Token(1 + max(now_ms - 1, self.token.time_ms, self.given_up.time_ms, above.time_ms), cluster)

    def fence(self, token: Token, target: str, now_ms: int, unfence: str = "magnetar subscriptions unfence") -> "Fence":
        """A failover to `target` begins, or one that began is joined; `unfence` is the command that ends another one.

        Raises:
            Conflict: it is moving elsewhere, or a later failover is known.
        """
        if self.phase is Phase.ACTIVE:
            if token <= max(self.token, self.given_up):
                raise Conflict(f"failover {token} is not later than {max(self.token, self.given_up)}")
            return Fence(phase=Phase.FENCING, token=token, target=target, since_ms=now_ms, given_up=self.given_up)
        if self.target != target:
            raise Conflict(
                f"it {'was moved' if self.phase is Phase.MOVED else 'is being moved'} to {self.target} (failover {self.token}); "
                f"end that first: {unfence}"
            )
        return self

    def drained(self, token: Token, left: int, now_ms: int) -> "Fence":
        """Waiting for acknowledgements is over; nothing happens if the failover is."""
        if self.phase is not Phase.FENCING or token != self.token:
            return self
        return replace(self, phase=Phase.FENCED, left=left, since_ms=now_ms)

    def written(self, token: Token, final: Position, left: int | None = None) -> "Fence":
        """The final state is durable; nothing happens if the failover is over.

        Args:
            token: of the failover.
            final: where it stands.
            left: what is not acknowledged, if that changed since the wait: it was written again.
        """
        if self.phase is not Phase.FENCED or token != self.token or (self.final is not None and final <= self.final):
            return self
        return replace(self, final=final, left=self.left if left is None else left)

    def complete(self, token: Token, now_ms: int) -> "Fence":
        """The target is active.

        Raises:
            Conflict: this failover is over here, or its final state is not written.
        """
        if self.phase is Phase.MOVED and token == self.token:
            return self
        if self.phase is not Phase.FENCED or token != self.token:
            raise Conflict(f"failover {token} is over here: {self}")
        if self.final is None:
            raise Conflict(f"failover {token}: its final state is not written yet")
        return replace(self, phase=Phase.MOVED, since_ms=now_ms)

    def put_back(self, token: Token, now_ms: int) -> "Fence":
        """The failover is called off: as it was before.

        Raises:
            Conflict: a later failover holds the fence.
        """
        if self.phase is Phase.ACTIVE:
            return self if token <= self.given_up else replace(self, given_up=token)
        if token < self.token:
            raise Conflict(f"failover {token} cannot put it back: {self}")
        return self._active(token, End.PUT_BACK, now_ms)

    def call_off(self, token: Token, now_ms: int) -> "Fence":
        """Whether it began, is about to or is still on its way here: this very failover is none, and no other ends by it."""
        if self.phase in {Phase.FENCING, Phase.FENCED} and token == self.token:
            return self._active(token, End.PUT_BACK, now_ms)
        return self if token <= self.given_up else replace(self, given_up=token)

    def unfence(self, token: Token, now_ms: int) -> "Fence":
        """An operator ends the fence, whatever the target does."""
        if self.phase is Phase.ACTIVE:
            return self
        return self._active(max(token, self.token), End.UNFENCED, now_ms)

    def _active(self, token: Token, end: End, now_ms: int) -> "Fence":
        return Fence(token=token, end=end, since_ms=now_ms, given_up=max(self.given_up, token))

    # ------------------------------------------------------------------------------------------------- at the target

    def activate(self, token: Token, now_ms: int) -> "Fence":
        """The source's final state is merged here: the subscription becomes active.

        Raises:
            Conflict: it is itself being moved, or this failover was given up or overtaken.
        """
        if token == self.token and self.end is End.ACTIVATED:
            return self
        if token <= max(self.token, self.given_up):
            raise Conflict(f"failover {token} was given up or overtaken: {self}")
        if self.phase in {Phase.FENCING, Phase.FENCED}:
            raise Conflict(f"failover {token} cannot activate it: {self}")
        return Fence(token=token, end=End.ACTIVATED, since_ms=now_ms, given_up=self.given_up)

    def give_up(self, token: Token) -> "Fence":
        """The failover is called off; late requests to activate must find that out.

        Raises:
            Conflict: it has activated the subscription already.
        """
        if token == self.token and self.end is End.ACTIVATED:
            raise Conflict(f"failover {token} has activated it already")
        return self if token <= self.given_up else replace(self, given_up=token)

    # ------------------------------------------------------------------------------------------------------- storing

    def __str__(self) -> str:
        if self.phase is Phase.ACTIVE:
            return f"active ({self.end} by failover {self.token})" if self.end else "active"
        return f"{self.phase} (to {self.target}, failover {self.token})"

    def encode(self) -> bytes:
        """The bytes that are stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, name: str, data: bytes) -> "Fence":
        """Read what `encode` wrote.

        Raises:
            StorageError: the record of subscription `name` is damaged, or of a newer version.
        """
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, AssertionError) as error:
            raise StorageError(f"the stored fence of subscription {name} is damaged: {error}") from error
        if found.version > VERSION:
            raise StorageError(
                f"the stored fence of subscription {name} has version {found.version}; this broker reads {VERSION}"
            )
        return found

    def plain(self) -> dict[str, object]:
        """Plain values, for answers to the administrator."""
        return {
            "phase": str(self.phase),
            "token": str(self.token),
            "target": self.target,
            "since_ms": self.since_ms,
            "final": str(self.final) if self.final is not None else "",
            "left": self.left,
            "end": str(self.end),
            "given_up": str(self.given_up),
        }
