"""The fake broker's part in looking at messages and properties, and its cases for the table of `test_rest`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from magnetar.broker.admin.messages import DonePeek
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.policies.namespace import check_properties
from magnetar.storage.entries import StoredEntry

Done = Callable[[MagnetarError | None], None]


class FakeMessages:
    """`MessageControl` in memory: the messages of a topic are entries 0, 1, ... of ledger 7, published 1000 ms apart."""

    calls: list[tuple[Any, ...]]
    peeked: StoredEntry

    def _soon(self, done: Done, act: Callable[[], None] = lambda: None) -> None:
        raise NotImplementedError

    def _topic(self, topic: str) -> Any:
        raise NotImplementedError

    def _subscription(self, topic: str, subscription: str) -> dict[str, Any]:
        raise NotImplementedError

    def _given(self, done: DonePeek) -> None:
        asyncio.get_running_loop().call_soon(done, self.peeked, None)

    def peek(self, topic: str, subscription: str, number: int, done: DonePeek) -> None:
        self._subscription(topic, subscription)
        if number > 1:
            raise NotFound("fewer messages than that")
        self._given(done)

    def examine(self, topic: str, number: int, newest: bool, done: DonePeek) -> None:
        if number > len(self._topic(topic).messages):
            raise NotFound("fewer messages than that")
        self.calls.append(("examine", topic, number, newest))
        self._given(done)

    def message_at(self, topic: str, position: Position, done: DonePeek) -> None:
        if not (position.ledger == 7 and 0 <= position.entry < len(self._topic(topic).messages)):
            raise NotFound("no such message")
        self.calls.append(("message_at", topic, position))
        self._given(done)

    def stopped(self, topic: str) -> list[dict[str, Any]]:
        self._topic(topic)
        return [{"subscription": "s", "position": "7:1", "reason": "corrupt: entry 7:1 is lost"}]

    def give_up(self, topic: str, position: Position, done: Done) -> None:
        if not (position.ledger == 7 and 0 <= position.entry < len(self._topic(topic).messages)):
            raise NotFound("no such message")
        if position.entry != 1:
            raise PreconditionFailed("it can be read")
        self.calls.append(("give_up", topic, position))
        self._soon(done)

    def position_since(self, topic: str, time_ms: int) -> Position:
        return Position(7, min(-(-time_ms // 1000), len(self._topic(topic).messages)))

    def bytes_from(self, topic: str, position: Position) -> int:
        messages = self._topic(topic).messages
        if position in {EARLIEST, LATEST}:
            position = Position(7, 0 if position == EARLIEST else len(messages))
        return sum(len(message) for message in messages[max(position.entry, 0) :])

    def expire_to(self, topic: str, subscription: str, position: Position, exclusive: bool, done: Done) -> None:
        self._subscription(topic, subscription)
        if position > Position(7, len(self._topic(topic).messages) - 1):
            raise Conflict("behind the last message")
        self.calls.append(("expire_to", topic, subscription, position, exclusive))
        self._soon(done)

    def analyzed_backlog(self, topic: str, subscription: str, position: Position | None) -> dict[str, Any]:
        self._subscription(topic, subscription)
        self.calls.append(("analyzed_backlog", topic, subscription, position))
        return {"entries": len(self._topic(topic).messages), "aborted": False}

    def trim(self, topic: str, done: Done) -> None:
        self._topic(topic)
        self.calls.append(("trim", topic))
        self._soon(done)

    def ledger_info(self, topic: str) -> dict[str, Any]:
        return {"ledgers": [{"ledgerId": 7, "entries": len(self._topic(topic).messages)}], "cursors": {}}

    def topic_properties(self, topic: str) -> dict[str, str]:
        return dict(self._topic(topic).properties)

    def change_topic_properties(self, topic: str, puts: Mapping[str, str], delete: str | None, done: Done) -> None:
        found = self._topic(topic)
        kept = {key: value for key, value in found.properties.items() if key != delete}
        wanted = check_properties(kept | dict(puts))
        self._soon(done, lambda: setattr(found, "properties", wanted))

    def subscription_properties(self, topic: str, subscription: str) -> dict[str, str]:
        return dict(self._subscription(topic, subscription).get("properties", {}))

    def set_subscription_properties(
        self, topic: str, subscription: str, properties: Mapping[str, str], done: Done
    ) -> None:
        found = self._subscription(topic, subscription)
        self._soon(done, lambda: found.__setitem__("properties", dict(properties)))


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
