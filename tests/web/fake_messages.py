"""The fake broker's part in looking at messages and properties, and its cases for the table of `test_rest`."""

import asyncio
from typing import TYPE_CHECKING, Any

from magnetar.broker.admin.messages import DonePeek, MessageControl
from magnetar.broker.context import Done
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.metadata.errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from tests.web.fake_control import FakeControl


class FakeMessages(MessageControl):
    """`MessageControl` in memory: the messages of a topic are entries 0, 1, ... of ledger 7, published 1000 ms apart."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake

    def _given(self, done: DonePeek) -> None:
        asyncio.get_running_loop().call_soon(done, self._fake.peeked, None)

    def peek(self, topic: str, subscription: str, number: int, done: DonePeek) -> None:
        self._fake.subscription_of(topic, subscription)
        if number > 1:
            raise NotFound("fewer messages than that")
        self._given(done)

    def examine(self, topic: str, number: int, newest: bool, done: DonePeek) -> None:
        if number > len(self._fake.topic_of(topic).messages):
            raise NotFound("fewer messages than that")
        self._fake.calls.append(("examine", topic, number, newest))
        self._given(done)

    def at(self, topic: str, position: Position, done: DonePeek) -> None:
        if not (position.ledger == 7 and 0 <= position.entry < len(self._fake.topic_of(topic).messages)):
            raise NotFound("no such message")
        self._fake.calls.append(("message_at", topic, position))
        self._given(done)

    def stopped(self, topic: str) -> list[dict[str, Any]]:
        self._fake.topic_of(topic)
        return [{"subscription": "s", "position": "7:1", "reason": "corrupt: entry 7:1 is lost"}]

    def give_up(self, topic: str, position: Position, done: Done) -> None:
        if not (position.ledger == 7 and 0 <= position.entry < len(self._fake.topic_of(topic).messages)):
            raise NotFound("no such message")
        if position.entry != 1:
            raise PreconditionFailed("it can be read")
        self._fake.calls.append(("give_up", topic, position))
        self._fake.soon(done)

    def position_since(self, topic: str, time_ms: int) -> Position:
        return Position(7, min(-(-time_ms // 1000), len(self._fake.topic_of(topic).messages)))

    def bytes_from(self, topic: str, position: Position) -> int:
        messages = self._fake.topic_of(topic).messages
        if position in {EARLIEST, LATEST}:
            position = Position(7, 0 if position == EARLIEST else len(messages))
        return sum(len(message) for message in messages[max(position.entry, 0) :])


FIRST = '{"ledgerId": 7, "entryId": 0}'
BEHIND = '{"ledgerId": 8, "entryId": 0}'
TOO_MANY = '{"a": "' + "x" * 70_000 + '"}'


def message_cases(base: str, missing: str, persistent: bool) -> list[tuple[str, str, str | None, int]]:
    """The same for both domains; most needs stored messages and is 405 in one of them."""
    looked, changed, absent = (200, 204, 404) if persistent else (405, 405, 405)
    subscription = f"{base}/t/subscription/s"
    return [
        ("GET", f"{base}/t/ledger/7/entry/1", None, looked),
        ("GET", f"{base}/t/ledger/7/entry/-1", None, 400 if persistent else 405),
        ("GET", f"{base}/t/ledger/7/entry/2", None, absent),
        ("GET", f"{base}/many/ledger/7/entry/1", None, 405),
        ("GET", f"{base}/a%2Fb/ledger/7/entry/1", None, 412),
        ("GET", f"{base}/t/examinemessage", None, looked),
        ("GET", f"{base}/t/examinemessage?initialPosition=earliest&messagePosition=2", None, looked),
        ("GET", f"{base}/t/examinemessage?initialPosition=middle", None, 400 if persistent else 405),
        ("GET", f"{base}/t/examinemessage?messagePosition=0", None, 400 if persistent else 405),
        ("GET", f"{base}/t/examinemessage?messagePosition=3", None, absent),
        ("GET", f"{base}/many/examinemessage", None, 405),
        ("GET", f"{base}/a%2Fb/examinemessage", None, 412),
        ("GET", f"{base}/t/messageid/1000", None, looked),
        ("GET", f"{base}/t/messageid/yesterday", None, 400 if persistent else 405),
        ("GET", f"{base}/new/messageid/1000", None, absent),
        ("GET", f"{base}/many/messageid/1000", None, 405),
        ("GET", f"{base}/a%2Fb/messageid/1000", None, 412),
        ("PUT", f"{base}/t/backlogSize", FIRST, looked),
        ("PUT", f"{base}/t/backlogSize", None, 400 if persistent else 405),
        ("PUT", f"{base}/new/backlogSize", FIRST, absent),
        ("PUT", f"{base}/many/backlogSize", FIRST, 405),
        ("PUT", f"{base}/a%2Fb/backlogSize", FIRST, 412),
        ("POST", f"{subscription}/expireMessages", FIRST, changed),
        ("POST", f"{subscription}/expireMessages", None, 400 if persistent else 405),
        ("POST", f"{subscription}/expireMessages", "null", 400 if persistent else 405),
        ("POST", f"{base}/t/subscription/missing/expireMessages", FIRST, absent),
        ("POST", f"{base}/many/subscription/s/expireMessages", FIRST, 405),
        ("POST", f"{subscription}/expireMessages", BEHIND, 409 if persistent else 405),
        ("POST", f"{base}/a%2Fb/subscription/s/expireMessages", FIRST, 412),
        ("POST", f"{subscription}/analyzeBacklog", None, looked),
        ("POST", f"{subscription}/analyzeBacklog", FIRST, looked),
        ("POST", f"{subscription}/analyzeBacklog", "null", looked),
        ("POST", f"{base}/t/subscription/missing/analyzeBacklog", None, absent),
        ("POST", f"{base}/many/subscription/s/analyzeBacklog", None, 405),
        ("POST", f"{base}/a%2Fb/subscription/s/analyzeBacklog", None, 412),
        ("POST", f"{base}/t/trim", None, changed),
        ("POST", f"{base}/many/trim", None, changed),
        ("POST", f"{base}/new/trim", None, absent),
        ("POST", f"{base}/a%2Fb/trim", None, 412),
        ("GET", f"{base}/t/internal-info", None, looked),
        ("GET", f"{base}/many/internal-info", None, looked),
        ("GET", f"{base}/new/internal-info", None, absent),
        ("GET", f"{base}/a%2Fb/internal-info", None, 412),
        ("GET", f"{base}/t/properties", None, looked),
        ("GET", f"{base}/many/properties", None, 200),
        ("GET", f"{base}/new/properties", None, absent),
        ("GET", f"{missing}/t/properties", None, 404),
        ("GET", f"{base}/a%2Fb/properties", None, 412),
        ("PUT", f"{base}/t/properties", '{"a": "b"}', changed),
        ("PUT", f"{base}/many/properties", '{"a": "b"}', 204),
        ("PUT", f"{base}/t/properties", '{"a": 1}', 400),
        ("PUT", f"{base}/many/properties", TOO_MANY, 400),
        ("PUT", f"{missing}/t/properties", "{}", 404),
        ("PUT", f"{base}/a%2Fb/properties", "{}", 412),
        ("DELETE", f"{base}/t/properties?key=a", None, changed),
        ("DELETE", f"{base}/many/properties?key=a", None, 204),
        ("DELETE", f"{base}/t/properties", None, 400),
        ("DELETE", f"{missing}/t/properties?key=a", None, 404),
        ("DELETE", f"{base}/a%2Fb/properties?key=a", None, 412),
        ("GET", f"{subscription}/properties", None, looked),
        ("GET", f"{base}/t/subscription/missing/properties", None, absent),
        ("GET", f"{base}/a%2Fb/subscription/s/properties", None, 412),
        ("PUT", f"{subscription}/properties", '{"a": "b"}', changed),
        ("PUT", f"{base}/many/subscription/s/properties", "{}", changed),
        ("PUT", f"{subscription}/properties", '{"a": 1}', 400 if persistent else 405),
        ("PUT", f"{base}/t/subscription/missing/properties", "{}", absent),
        ("PUT", f"{base}/a%2Fb/subscription/s/properties", "{}", 412),
    ]


__all__ = ["FakeMessages", "message_cases"]
