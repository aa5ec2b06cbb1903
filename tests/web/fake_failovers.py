"""The fake broker's part in planned failovers, over the real state machine, and its cases for the table of `test_rest`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar.broker.admin.failovers import FailoverControl, Step
from magnetar.broker.context import Done
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.metadata.errors import BadRequest, NotFound
from magnetar.replication.failover import NO_TOKEN, Fence, Token

if TYPE_CHECKING:
    from tests.web.fake_control import FakeControl

NOW_MS = 1_700_000_000_000


class FakeFailovers(FailoverControl):
    """`FailoverControl` in memory; `fences` says what each subscription has been through."""

    def __init__(self, fake: "FakeControl") -> None:
        self._fake = fake
        self.fences: dict[str, Fence] = {
            # a subscription of every topic, by its name
            "moving": Fence().fence(Token(9, "us-west"), "us-east", NOW_MS).drained(Token(9, "us-west"), 0, NOW_MS),
            "here": Fence().activate(Token(9, "us-east"), NOW_MS),
        }
        self.fences["written"] = self.fences["moving"].written(Token(9, "us-west"), Position(7, 1))

    def _change(self, subscription: str, step: Callable[[Fence], Fence], done: Done) -> None:
        try:
            self.fences[subscription] = step(self.fences.get(subscription, Fence()))
        except MagnetarError as error:
            done(error)
        else:
            self._fake.soon(done)

    def _check(self, topic: str, subscription: str) -> None:
        if topic not in self._fake.existing or subscription == "no":
            raise NotFound(f"subscription {subscription} of {topic} does not exist in us-west")

    def held(self) -> list[dict[str, Any]]:
        return []

    def state(self, topic: str, subscription: str) -> dict[str, Any]:
        self._check(topic, subscription)
        fence = self.fences.get(subscription, Fence())
        return fence.plain() | {
            "topic": topic,
            "subscription": subscription,
            "next": str(fence.next_token("us-west", NOW_MS)),
        }

    def wait(self, topic: str, subscription: str, since: int, wait_ms: int, done: Any) -> None:
        done(self.state(topic, subscription), None)

    def merged(self, topic: str, subscription: str, source: str, position: Position, wait_ms: int, done: Any) -> None:
        done({"topic": topic, "merged": True, "watermark": str(position), "exists": True}, None)

    def begin(
        self, topic: str, subscription: str, target: str, above: str, grace_ms: int, done: Done, *, named: str = ""
    ) -> None:
        self._check(topic, subscription)
        if target == "us-west":
            raise BadRequest("it is there already")
        latest = Token.parse(above) if above else NO_TOKEN
        token = Token.parse(named) if named else None
        self._change(
            subscription,
            lambda fence: fence.fence(token or fence.next_token("us-west", NOW_MS, latest), target, NOW_MS),
            done,
        )

    def step(self, step: Step, topic: str, subscription: str, token: str, done: Done) -> None:
        self._check(topic, subscription)
        named = Token.parse(token)
        steps: dict[Step, Callable[[Fence], Fence]] = {
            "activate": lambda fence: fence.activate(named, NOW_MS),
            "complete": lambda fence: fence.complete(named, NOW_MS),
            "put-back": lambda fence: fence.put_back(named, NOW_MS),
            "give-up": lambda fence: fence.give_up(named),
            "call-off": lambda fence: fence.call_off(named, NOW_MS),
        }
        self._change(subscription, steps[step], done)

    def unacknowledged(self, topic: str, subscription: str) -> list[tuple[str, int, int, int]]:
        self._check(topic, subscription)
        return [("us-west", 5, 0, 9)]

    def acknowledged_of(self, topic: str, subscription: str, runs: list[tuple[str, int, int, int]]) -> int:
        self._check(topic, subscription)
        return 0

    def unfence(self, topic: str, subscription: str, done: Done) -> None:
        self._check(topic, subscription)
        self._change(subscription, lambda fence: fence.unfence(fence.next_token("us-west", NOW_MS), NOW_MS), done)


FO = "/geo/v1/failover/persistent/public/default"
T = "persistent://public/default/t"


def _tokens(text: str) -> str:
    return f'{{"tokens": {{"{T}": "{text}"}}}}'


def _step_cases(
    step: Step, good: tuple[str, str], over: tuple[str, str] | None
) -> list[tuple[str, str, str | None, int]]:
    cases = [
        ("POST", f"{FO}/t/{good[0]}/{step}", _tokens(good[1]), 200),
        ("POST", f"{FO}/t/{good[0]}/{step}", _tokens("nonsense"), 400),
        ("POST", f"{FO}/t/{good[0]}/{step}", '{"tokens": {}}', 400),
        ("POST", f"{FO}/many/{good[0]}/{step}", _tokens(good[1]), 400),
        ("POST", f"{FO}/t/no/{step}", _tokens(good[1]), 404),
        ("POST", f"{FO}/missing/s/{step}", _tokens(good[1]), 404),
        ("POST", f"{FO}/t/pulsar.dedup/{step}", _tokens(good[1]), 412),
    ]
    return cases if over is None else [*cases, ("POST", f"{FO}/t/{over[0]}/{step}", _tokens(over[1]), 409)]


CASES: list[tuple[str, str, str | None, int]] = [
    ("GET", f"{FO}/t/s", None, 200),
    ("GET", f"{FO}/many/s", None, 200),
    ("GET", f"{FO}/missing/s", None, 404),
    ("GET", f"{FO}/t/no", None, 404),
    ("GET", f"{FO}/t/pulsar.dedup", None, 412),
    ("GET", f"{FO}/t/s/wait?since=0&wait_ms=10", None, 200),
    ("GET", f"{FO}/t/s/wait?since=long", None, 400),
    ("GET", f"{FO}/many/s/wait", None, 400),
    ("GET", f"{FO}/missing/s/wait", None, 404),
    ("GET", f"{FO}/t/pulsar.dedup/wait", None, 412),
    ("GET", f"{FO}/t/s/merged?source=us-east&position=7:3&wait_ms=5", None, 200),
    ("GET", f"{FO}/t/s/merged?source=us-east&position=somewhere", None, 400),
    ("GET", f"{FO}/t/s/merged?source=Upper.Case&position=7:3", None, 412),
    ("POST", f"{FO}/t/s/fence", '{"to": "us-east"}', 200),
    ("POST", f"{FO}/many/s/fence", '{"to": "us-east", "above": "5@us-east", "grace_ms": 10}', 200),
    ("POST", f"{FO}/t/moving/fence", '{"to": "us-east"}', 200),
    ("POST", f"{FO}/t/s/fence", '{"to": "us-west"}', 400),
    ("POST", f"{FO}/t/s/fence", "{}", 400),
    ("POST", f"{FO}/t/s/fence", f'{{"to": "us-east", "tokens": {{"{T}": "1800000000000@us-west"}}}}', 200),
    ("POST", f"{FO}/t/s/fence", f'{{"to": "us-east", "tokens": {{"{T}": "nonsense"}}}}', 400),
    ("POST", f"{FO}/t/s/fence", '{"to": "us-east", "tokens": ["5@us-west"]}', 400),
    ("POST", f"{FO}/t/here/fence", f'{{"to": "us-east", "tokens": {{"{T}": "5@us-west"}}}}', 409),
    ("POST", f"{FO}/missing/s/fence", '{"to": "us-east"}', 404),
    ("POST", f"{FO}/t/moving/fence", '{"to": "spare"}', 409),
    ("POST", f"{FO}/t/s/fence", '{"to": "Upper.Case"}', 412),
    *_step_cases("activate", ("s", "5@us-east"), ("here", "5@us-east")),
    *_step_cases("complete", ("written", "9@us-west"), ("moving", "9@us-west")),
    *_step_cases("put-back", ("moving", "9@us-west"), ("moving", "5@us-west")),
    *_step_cases("give-up", ("s", "5@us-east"), ("here", "9@us-east")),
    *_step_cases("call-off", ("moving", "9@us-west"), None),
    ("GET", f"{FO}/t/s/unacknowledged", None, 200),
    ("GET", f"{FO}/many/s/unacknowledged", None, 400),
    ("GET", f"{FO}/t/no/unacknowledged", None, 404),
    ("GET", f"{FO}/t/pulsar.dedup/unacknowledged", None, 412),
    ("POST", f"{FO}/t/s/acknowledged", '{"runs": [["us-west", 5, 0, 9]]}', 200),
    ("POST", f"{FO}/t/s/acknowledged", '{"runs": [["us-west", 5, 9, 0]]}', 400),
    ("POST", f"{FO}/t/no/acknowledged", '{"runs": []}', 404),
    ("POST", f"{FO}/t/pulsar.dedup/acknowledged", '{"runs": []}', 412),
    ("POST", f"{FO}/t/moving/unfence", None, 200),
    ("POST", f"{FO}/t/s/unfence", None, 200),
    ("POST", f"{FO}/missing/s/unfence", None, 404),
    ("POST", f"{FO}/t/pulsar.dedup/unfence", None, 412),
]
