"""`drain`: what it names, when it ends, how it ends."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from magnetar.cli.commands import drain
from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ErrorCode
from magnetar.runtime.network.link_client import LinkDown, LinkRefused
from magnetar.wire import pulsar_pb2 as pb
from tests.support.commands import one_line
from tests.unit.cli.conftest import Answer, FakeBroker

Run = Callable[..., Answer]
Pair = tuple[Path, FakeBroker, FakeBroker]
TOPIC = "persistent://public/default/t"


def link(*topics: dict[str, Any]) -> dict[str, Any]:
    return {
        "target": "b", "state": "up", "detail": "", "topics_linked": 2, "topics_waiting": len(topics),
        "messages": sum(topic["messages"] for topic in topics), "entries": sum(topic["entries"] for topic in topics),
        "topics": list(topics),
    }  # fmt: skip


def waits(reason: str = "on its way", messages: int = 3, entries: int = 3) -> dict[str, Any]:
    return {"topic": TOPIC, "messages": messages, "entries": entries, "blocked": "", "reason": reason}


def state(**more: Any) -> dict[str, Any]:
    return {
        "cluster": "a", "uuid": "u", "safe": False, "links": [link()], "producers_connected": 0, "producers": [],
        "writes": 0, "subscriptions_waiting": 0, "subscriptions": [], "only_here_topics": 0, "only_here_messages": 0,
        "unlinked": {},
    } | more  # fmt: skip


@pytest.fixture
def token(pair: Pair) -> None:
    (pair[0].parent / "data").mkdir()
    file = pair[0].parent / "data" / "link.token"
    file.touch(0o600)
    file.write_text("secret\n")


@pytest.mark.usefixtures("token")
def test_what_waits_is_named_with_its_reason(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/drain", state(links=[link(waits("paused: magnetar links resume a:b --topic t"))]))
    said = one_line(run("drain", "a", "--timeout", "0", "-c", path))
    assert "it is not safe to switch a off" in said
    assert f"a:b {TOPIC}: 3 messages not delivered, paused: magnetar links resume a:b" in said


@pytest.mark.usefixtures("token")
def test_producers_and_subscriptions_are_named(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    producer = {"topic": TOPIC, "producer": "p-1", "address": "127.0.0.1:5"}
    subscription = {"topic": TOPIC, "subscription": "s", "reason": "2 acknowledgements are not written yet"}
    found = state(producers=[producer], producers_connected=7, subscriptions=[subscription], subscriptions_waiting=1)
    a.answer("GET /geo/v1/drain", found)
    answer = run("drain", "a", "--timeout", "0", "-c", path, "--json")
    said = one_line(answer)
    assert answer.code == 1 and answer.json["safe"] is False and answer.json["producers"] == [producer]
    assert f"producer p-1 (127.0.0.1:5) is connected to {TOPIC}" in said
    assert "6 more producers are connected" in said
    assert "subscription s of" in said


@pytest.mark.usefixtures("token")
def test_safe_is_not_said_before_the_destination_was_asked(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/drain", state(safe=True))
    answer = run("drain", "a", "--timeout", "0", "-c", path)  # nobody listens at the Pulsar ports of the pair
    assert answer.code == 1
    assert "b cannot be asked what it has" in one_line(answer)


@pytest.mark.usefixtures("token")
def test_it_ends_when_it_is_safe(pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, _ = pair
    monkeypatch.setattr(drain, "unconfirmed", lambda *_: [])
    monkeypatch.setattr(drain, "_listen", lambda *_: None)
    monkeypatch.setattr(drain, "LOOK_S", 0.01)
    monkeypatch.setattr(drain, "PAUSE_S", 0.0)
    answers = iter([state(links=[link(waits())]), state(producers_connected=1)])
    look = drain.look

    def next_look(*arguments: Any) -> dict[str, Any]:
        a.answer("GET /geo/v1/drain", next(answers, state(safe=True, only_here_messages=4, only_here_topics=2)))
        return look(*arguments)

    monkeypatch.setattr(drain, "look", next_look)
    answer = run("drain", "a", "-c", path)
    assert answer.code == 0, answer.err
    assert "waiting: 3 messages not delivered" in answer.out
    assert "note: 4 messages of 2 topics are in a alone" in answer.out
    assert answer.out.endswith("a can be switched off now: its links have delivered everything\n")
    a.answer("GET /geo/v1/drain", state(safe=True))
    assert run("drain", "a", "-c", path, "--json").json["safe"] is True


@pytest.mark.usefixtures("token")
def test_a_timeout_is_one_line(pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, a, _ = pair
    monkeypatch.setattr(drain, "_listen", lambda *_: None)
    a.answer("GET /geo/v1/drain", state(links=[link(waits(messages=0, entries=2))], writes=1))
    answer = run("drain", "a", "--timeout", "0.2", "-c", path)
    assert answer.code == 1
    assert "2 markers of replicated subscriptions not delivered, on its way" in one_line(answer)


def test_without_token_or_cluster_it_says_what_would_be_right(pair: Pair, run: Run) -> None:
    path, _, _ = pair
    assert "set token_file" in one_line(run("drain", "a", "-c", path))
    assert "nowhere" in one_line(run("drain", "nowhere", "-c", path))


@pytest.mark.usefixtures("token")
def test_another_cluster_at_the_address_says_nothing_of_this_one(
    pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, a, _ = pair
    monkeypatch.setattr(drain, "unconfirmed", lambda *_: [])
    a.answer("GET /geo/v1/drain", state(cluster="b", safe=True))
    assert one_line(run("drain", "a", "--timeout", "0", "-c", path)) == f"{a.url} is b, not a: check the configuration"


@pytest.mark.usefixtures("token")
def test_a_dead_cluster_is_no_drained_one(pair: Pair, run: Run) -> None:
    path, a, _ = pair
    a.answer("GET /geo/v1/drain", {"reason": "starting"}, 503)
    assert "starting" in one_line(run("drain", "a", "-c", path))


class FakeLinks:
    """Both ends of the link from a to b, as `LinkClient` asks them.

    Attributes:
        topics_known: what a tells whoever presents the token.
        persisted: topic -> the last entry that b has on disk; others it does not answer about.
        valid: the token that b accepts.
        silent: b does not answer at all.
        asked: (port, token, milliseconds that an answer may take).
    """

    def __init__(self) -> None:
        self.topics_known = ["t", "u"]
        self.persisted: dict[str, int] = {"t": 9, "u": 9}
        self.blocked: dict[str, str] = {}
        self.valid = "secret"
        self.silent = False
        self.asked: list[tuple[str, str, int]] = []
        self.refused: Callable[[], object] = lambda: None

    def connect(
        self, addresses: BrokerAddresses, token: str, *, timeout_ms: int = drain.TIMEOUT_S * 1000
    ) -> "FakeLinks":
        address = str(addresses)
        self.asked.append((address, token, timeout_ms))
        if address.endswith(":2"):
            if self.silent:
                raise LinkDown(f"{address}: no answer within {timeout_ms / 1000:g} s")
            if token != self.valid:
                self.refused()
                raise LinkRefused(ErrorCode.AUTHENTICATION, "the token has ended", address)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self, _to: str) -> pb.CommandGeoTopicsResponse:
        here, none = pb.GeoPosition(ledger=5, entry=9), pb.GeoPosition(ledger=-1, entry=-1)
        told = pb.CommandGeoTopicsResponse(request_id=1, counter=1, uuid="u")
        for name in self.topics_known:
            cursor = pb.GeoCursor(c=here, s=here, gen=1)
            told.topics.add(
                topic=name, incarnation=5, partitions=0, cursor=cursor, last=here, pending_entries=0, pending_bytes=0
            )
        told.topics.add(topic="gone", incarnation=0, partitions=0, cursor=pb.GeoCursor(c=none, s=none, gen=0), last=none,
                        pending_entries=0, pending_bytes=0, removed=True)  # fmt: skip
        return told

    def watermarks(self, _source: str, _uuid: str, queries: list[pb.GeoWatermarkQuery]) -> Any:
        answer = pb.CommandGeoWatermarksResponse(request_id=1, counter=1, uuid="v")
        for query in queries:
            if query.topic in self.persisted:
                place = pb.GeoPosition(ledger=5, entry=self.persisted[query.topic])
                why = self.blocked.get(query.topic)
                answer.topics.add(topic=query.topic, persisted=place, blocked=why and "policy", reason=why)
        return answer


@pytest.fixture
def links(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> FakeLinks:
    links = FakeLinks()
    monkeypatch.setattr("magnetar.runtime.network.link_client.LinkClient", links)
    monkeypatch.setattr(drain, "_listen", lambda *_: None)
    pair[1].answer("GET /geo/v1/drain", state(safe=True))
    return links


@pytest.mark.usefixtures("token")
def test_everything_is_on_disk(pair: Pair, run: Run, links: FakeLinks) -> None:
    answer = run("drain", "a", "--timeout", "0", "-c", pair[0])
    assert answer.code == 0, answer.err
    assert [ms for _, _, ms in links.asked] == [10_000, 10_000], "one look has all the time that it needs"


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize(
    ("known", "persisted", "says"),
    [
        (["t"], {"t": 9}, "a:b: the link token may not replicate 1 of 2 topics, of which b cannot be asked"),
        ([], {}, "a:b: the link token may not replicate 2 of 2 topics"),
        (["t", "u"], {"t": 9}, "a:b u: b does not say what it has"),
        (["t", "u"], {"t": 9, "u": 8}, "a:b u: b has lost data; it will be sent again"),
    ],
)
def test_what_was_not_compared_is_not_safe(
    pair: Pair, run: Run, links: FakeLinks, known: list[str], persisted: dict[str, int], says: str
) -> None:
    """A role that has `replicate` in some namespaces only is told of their topics only."""
    links.topics_known, links.persisted = known, persisted
    answer = run("drain", "a", "--timeout", "0", "-c", pair[0])
    assert answer.code == 1 and says in one_line(answer)


@pytest.mark.usefixtures("token")
def test_a_topic_that_the_destination_does_not_want_is_named_with_its_reason(
    pair: Pair, run: Run, links: FakeLinks
) -> None:
    links.persisted["u"], links.blocked["u"] = 3, "u was deleted in b"
    assert "a:b u: u was deleted in b" in one_line(run("drain", "a", "--timeout", "0", "-c", pair[0]))


@pytest.mark.usefixtures("token")
def test_a_token_that_ends_while_it_waits_is_replaced(
    pair: Pair, run: Run, links: FakeLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "LOOK_S", 0.01)
    monkeypatch.setattr(drain, "PAUSE_S", 0.0)
    links.valid = "another"
    file = pair[0].parent / "data" / "link.token"
    links.refused = lambda: file.write_text("another\n")
    answer = run("drain", "a", "--timeout", "60", "-c", pair[0])
    assert answer.code == 0, answer.err
    assert "the token has ended" in answer.out and [token for _, token, _ in links.asked][-1] == "another"


@pytest.mark.usefixtures("token")
def test_nobody_is_waited_for_longer_than_the_timeout(
    pair: Pair, run: Run, links: FakeLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[float] = []
    client = drain.AdminClient

    def admin(url: str, *, timeout_s: float) -> Any:
        patience.append(timeout_s)
        return client(url, timeout_s=timeout_s)

    monkeypatch.setattr(drain, "AdminClient", admin)
    links.silent = True
    answer = run("drain", "a", "--timeout", "1", "-c", pair[0])
    assert answer.code == 1 and "b cannot be asked what it has" in one_line(answer)
    assert max(patience) <= 1 and max(ms for _, _, ms in links.asked) <= 1_000
    assert min(patience) >= drain.PATIENCE_S


def test_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(drain, "time", SimpleNamespace(monotonic=lambda: now))
    endless, look, some = (drain._TimeLeft(timeout) for timeout in (None, 0, 30))
    assert (endless.over, look.over, some.over) == (False, True, False)
    assert not look.too_late and {one.patience_s for one in (endless, look, some)} == {drain.TIMEOUT_S}
    now = 128.0
    assert some.patience_s == some.seconds == 2
    now = 131.0
    assert some.over and some.too_late and some.patience_s == drain.PATIENCE_S and not look.too_late
