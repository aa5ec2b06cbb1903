"""`magnetar failover` against two pretended brokers with real fences: the way through, and every way in which it can break."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from magnetar.cli.commands import failover
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.metadata.errors import Refused
from magnetar.replication.failover import NO_TOKEN, Fence, Phase, Token
from tests.unit.cli.conftest import Answer

TOPIC = "persistent://public/default/t"
NOW_MS = 1_700_000_000_000


class FenceBroker:
    """Answers a failover's requests as a broker would; `final` and `merged` say how far it gets by itself.

    Attributes:
        fences: topic or partition -> state.
        lose: step -> "before" or "after": the connection breaks before or after the step took effect, once.
        refuse: step -> a status that is answered without doing anything, once.
        bodies: step -> the body of the last request.
        held: how many polls are answered at once, without anything having happened.
        dead: every connection breaks.
    """

    def __init__(self, cluster: str, topics: list[str]) -> None:
        self.cluster = cluster
        self.fences = {topic: Fence() for topic in topics}
        self.extra: dict[str, Any] = {}
        self.link: dict[str, Any] | None = {
            "lag_messages": 3,
            "settled": "7:0",
            "unsettled": [cluster, 5, 9, 11],
            "paused": False,
            "blocked": None,
            "lease": True,
            "trouble": "",
        }
        self.other = ""
        self.final = True
        self.merged = True
        self.left = self.skipped = 0
        self.runs = [[cluster, 5, 0, 8]]
        self.asked: list[Any] = []
        self.lose: dict[str, str] = {}
        self.refuse: dict[str, int] = {}
        self.dead = False
        self.steps: list[str] = []
        self.bodies: dict[str, Any] = {}
        self.held: int | None = None
        self.before: Callable[[str], None] = lambda _step: None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    def row(self, topic: str) -> dict[str, Any]:
        links = {self.other: self.link} if self.link is not None else {}
        row = {
            "topic": topic,
            "cluster": self.cluster,
            "version": 1,
            "next": str(self.fences[topic].next_token(self.cluster, NOW_MS)),
            "replicated": True,
            "refused": "",
            "consumers": 1,
            "cumulative": 0,
            "first": "7:0",
            "last": "7:9",
            "in_flight": 5,
            "backlog": 9,
            "links": links,
        }
        return self.fences[topic].plain() | row | self.extra

    def answer(self, topic: str, step: str, query: dict[str, list[str]], body: dict[str, Any]) -> Any:
        topics = [one for one in self.fences if one == topic or one.startswith(topic + "-partition-")]
        if not topics:
            return 404, {"reason": f"topic {topic} does not exist"}
        if step in {"merged", "wait"} and self.held is not None:
            self.held -= 1
            if self.held < 0:
                self.merged = self.final = True
                self.fences[topic] = self.fences[topic].drained(self.fences[topic].token, 0, NOW_MS)
                self.fences[topic] = self.fences[topic].written(self.fences[topic].token, Position(7, 3))
        if step == "merged":
            return 200, {"merged": self.merged, "exists": True}
        if step == "wait":
            return 200, self.row(topic)
        if step == "unacknowledged":
            return 200, {"runs": self.runs}
        if step == "acknowledged":
            self.asked.append(body["runs"])
            return 200, {"messages": self.skipped}
        try:
            for one in topics:
                self._take(one, step, body)
        except Refused as refused:
            return refused.status, {"reason": str(refused)}
        return 200, [self.row(one) for one in topics]

    def _take(self, topic: str, step: str, body: dict[str, Any]) -> None:
        fence = self.fences[topic]
        if step == "fence":
            above = Token.parse(body["above"]) if body["above"] else NO_TOKEN
            named = body.get("tokens", {}).get(topic)
            token = Token.parse(named) if named else fence.next_token(self.cluster, NOW_MS, above)
            assert token > above
            fence = fence.fence(token, body["to"], NOW_MS)
            if self.final:
                fence = fence.drained(fence.token, self.left, NOW_MS).written(fence.token, Position(7, 3))
        elif step:
            if step == "unfence":
                fence = fence.unfence(fence.next_token(self.cluster, NOW_MS), NOW_MS)
            else:
                token = Token.parse(body["tokens"][topic])
                fence = {
                    "activate": lambda: fence.activate(token, NOW_MS),
                    "complete": lambda: fence.complete(token, NOW_MS),
                    "put-back": lambda: fence.put_back(token, NOW_MS),
                    "give-up": lambda: fence.give_up(token),
                    "call-off": lambda: fence.call_off(token, NOW_MS),
                }[step]()
        self.fences[topic] = fence

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                parts = urlsplit(self.path)
                names = [unquote(part) for part in parts.path.split("/")]
                topic, step = f"persistent://{'/'.join(names[5:8])}", "".join(names[9:10])
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                broker.bodies[step] = json.loads(data) if data else None
                broker.before(step)
                if broker.dead:
                    return
                broker.steps.append(step)
                loss = broker.lose.pop(step, "")
                if loss == "before":
                    return
                if refused := broker.refuse.pop(step, 0):
                    status, value = refused, {"reason": "the metadata store refused: disk full"}
                else:
                    status, value = broker.answer(topic, step, parse_qs(parts.query), json.loads(data) if data else {})
                if loss == "after":
                    return
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class Two:
    """Clusters a and b."""

    def __init__(self, folder: Path, run: Callable[..., Answer], topics: list[str]) -> None:
        self.a, self.b = FenceBroker("a", topics), FenceBroker("b", topics)
        self.a.other, self.b.other = "b", "a"
        self.config = folder / "clusters.toml"
        self.config.write_text(
            "".join(
                f'[clusters.{one.cluster}]\npulsar = "127.0.0.1:{number}"\nhttp = "{one.address}"\n'
                for number, one in enumerate((self.a, self.b), 1)
            )
        )
        self._run = run

    def with_brokers_that_wait(self) -> None:
        """Give each cluster another broker in front, at whose address no broker listens now."""
        self.config.write_text(
            "".join(
                f'[clusters.{one.cluster}]\nstorage = "bookkeeper"\nstore = "zookeeper://127.0.0.1:1/{one.cluster}"\n'
                f'[clusters.{one.cluster}.brokers.x]\npulsar = "127.0.0.1:{number + 10}"\nhttp = "127.0.0.1:{number}"\n'
                f'[clusters.{one.cluster}.brokers.y]\npulsar = "127.0.0.1:{number + 20}"\nhttp = "{one.address}"\n'
                for number, one in enumerate((self.a, self.b), 1)
            )
        )

    def move(self, source: str = "a", target: str = "b", *words: object) -> Answer:
        return self._run("failover", TOPIC, "s", "--from", source, "--to", target, "-c", self.config, *words)

    def phases(self) -> tuple[str, str]:
        return str(self.a.fences[TOPIC].phase), str(self.b.fences[TOPIC].phase)


@pytest.fixture
def make(tmp_path: Path, run: Callable[..., Answer]) -> Iterator[Callable[..., Two]]:
    made: list[Two] = []

    def two(topics: list[str] | None = None) -> Two:
        made.append(Two(tmp_path, run, topics or [TOPIC]))
        return made[-1]

    yield two
    for one in made:
        for broker in (one.a, one.b):
            broker.server.shutdown()
            broker.server.server_close()


@pytest.fixture
def two(make: Callable[..., Two]) -> Two:
    return make()


def test_there_and_back_again_and_again(two: Two) -> None:
    for source, target in [("a", "b"), ("b", "a")] * 5:
        answer = two.move(source, target)
        assert answer.code == 0, answer.err
        assert "0 messages re-delivered, 0 skipped" in answer.out
        assert two.phases() == (("moved", "active") if target == "b" else ("active", "moved"))
    assert "3 messages are not yet in a" in answer.out and "5 are under way, 1 consumers" in answer.out


def test_json_says_the_same(two: Two) -> None:
    two.a.left, two.b.skipped = 4, 2
    told = two.move("a", "b", "--json").json
    assert told["redelivered"] == 4 and told["skipped"] == 2 and told["messages"] == 3 and told["pause_ms"] >= 0
    assert told["tokens"] == {TOPIC: str(two.a.fences[TOPIC].token)}


def test_a_dry_run_changes_nothing(two: Two) -> None:
    answer = two.move("a", "b", "--dry-run")
    assert answer.code == 0 and two.phases() == ("active", "active")
    assert set(two.a.steps) | set(two.b.steps) == {"", "unacknowledged", "acknowledged"}, (
        "none of these changes anything"
    )
    plan = two.move("a", "b", "--dry-run", "--json").json
    assert (plan["messages"], plan["in_flight"], plan["consumers"], plan["partitions"]) == (3, 5, 1, 1)


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_both_clusters_are_compared(two: Two, mode: str) -> None:
    """Beforehand: what the target has not heard of, also of messages that it has not got. Afterwards in snapshot mode: what comes
    again all the same, beside what was in hand.
    """
    assert two.a.link is not None
    two.a.extra = {"mode": mode}
    two.a.skipped, two.a.left = 6, 4
    lacking = [*two.b.runs, two.a.link["unsettled"]]
    plan = two.move("a", "b", "--dry-run", "--json").json
    assert (plan["acknowledgements"], two.a.asked) == (6, [lacking])
    answer = two.move()
    again, asked = (10, [two.b.runs]) if mode == "snapshot" else (4, [])
    assert (
        "6 acknowledgements are to be sent" in answer.out and f"{again} messages re-delivered, 0 skipped" in answer.out
    )
    assert two.a.asked == [lacking, lacking, *asked] and two.b.asked == [two.a.runs]


@pytest.mark.parametrize(("unsent", "behind", "told"), [(0, 6, 6), (8, 6, 8), (8, None, 8), (0, None, 0)])
def test_a_target_without_the_subscription_lacks_what_is_on_its_way(
    two: Two, unsent: int, behind: int | None, told: int
) -> None:
    """There is nothing to compare; nothing is asked when nothing is on its way."""
    assert two.a.link is not None
    two.b.fences.clear()
    two.a.extra, two.a.skipped = {"unsent": unsent}, behind or 0
    run = two.a.link["unsettled"] if behind is not None else None
    two.a.link["unsettled"] = run
    assert two.move("a", "b", "--dry-run", "--json").json["acknowledgements"] == told
    assert two.a.asked == ([] if run is None else [[run]])


def test_all_partitions_move(make: Callable[..., Two]) -> None:
    two = make([f"{TOPIC}-partition-{number}" for number in range(3)])
    answer = two.move()
    assert answer.code == 0 and "3 partitions" in answer.out
    assert {fence.phase for fence in two.a.fences.values()} == {Phase.MOVED}


def test_a_command_that_was_killed_can_be_repeated_from_anywhere(two: Two) -> None:
    """Wherever the first one stops, a second one finishes it."""
    for source, target, step in [
        ("a", "b", "fence"),
        ("b", "a", "activate"),
        ("a", "b", "complete"),
    ]:
        brokers = {"a": two.a, "b": two.b}
        fence = brokers[source].fences[TOPIC]
        token = fence.next_token(source, NOW_MS, brokers[target].fences[TOPIC].token)
        fence = fence.fence(token, target, NOW_MS)
        fence = fence.drained(token, 0, NOW_MS).written(token, Position(7, 3))
        brokers[source].fences[TOPIC] = fence
        if step in {"activate", "complete"}:
            brokers[target].fences[TOPIC] = brokers[target].fences[TOPIC].activate(token, NOW_MS)
        if step == "complete":
            brokers[source].fences[TOPIC] = fence.complete(token, NOW_MS)
        answer = two.move(source, target)
        assert answer.code == 0, (step, answer.err)
        assert brokers[source].fences[TOPIC].phase is Phase.MOVED
        assert brokers[target].fences[TOPIC].phase is Phase.ACTIVE
        assert brokers[target].fences[TOPIC].token == token


# --------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("failover", TOPIC, "s", "--from", "a", "--to", "a"), "--from and --to are both a"),
        (("failover", TOPIC, "s", "--from", "a", "--to", "x"), "x"),
        (("failover", "ftp://t", "s", "--from", "a", "--to", "b"), "ftp://t"),
        (("failover", TOPIC, "pulsar.dedup", "--from", "a", "--to", "b"), "pulsar.dedup"),
        (("failover", "persistent://public/default/none", "s", "--from", "a", "--to", "b"), "a: topic"),
    ],
)
def test_wrong_input_is_one_line(two: Two, run: Callable[..., Answer], words: tuple[str, ...], says: str) -> None:
    answer = run(*words, "-c", two.config)
    assert answer.code == 1 and says in answer.err
    assert answer.err.count("\n") == 1 and answer.err.startswith("magnetar: ")
    assert two.phases() == ("active", "active")


def test_a_topic_that_is_not_persistent_is_not_taken_for_the_persistent_one(
    two: Two, run: Callable[..., Answer]
) -> None:
    topic = TOPIC.replace("persistent", "non-persistent")
    answer = run("failover", topic, "s", "--from", "a", "--to", "b", "-c", two.config)
    assert answer.code == 1 and "is not persistent" in answer.err and two.phases() == ("active", "active")
    assert two.move().code == 0
    answer = run("subscriptions", "unfence", topic, "s", "--in", "a", "-c", two.config, "--yes")
    assert answer.code == 1 and "is not persistent" in answer.err and two.phases() == ("moved", "active")


def test_a_fence_of_another_cluster_at_the_address_stays(two: Two, run: Callable[..., Answer]) -> None:
    assert two.move().code == 0
    two.a.extra = {"cluster": "c"}
    answer = run("subscriptions", "unfence", TOPIC, "s", "--in", "a", "-c", two.config, "--yes")
    assert (
        answer.code == 1
        and "the http address of cluster a answers as cluster c" in answer.err
        and two.phases() == ("moved", "active")
    )


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_another_cluster_at_the_address_is_not_touched(two: Two, wrong: str) -> None:
    (two.a if wrong == "a" else two.b).extra = {"cluster": "c"}
    answer = two.move()
    assert (
        answer.code == 1 and f"the http address of cluster {wrong} answers as cluster c: check both http" in answer.err
    )
    assert two.phases() == ("active", "active")


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (None, "has no link a -> b"),
        ({"paused": True}, "is paused: magnetar links resume a:b"),
        ({"blocked": "policy"}, "is blocked (policy)"),
        ({"lease": False}, "is not served by a pipeline: magnetar replicate"),
        ({"trouble": "connection refused"}, "is down: connection refused"),
    ],
)
def test_a_link_that_cannot_carry_it_is_told_beforehand(two: Two, link: dict[str, Any] | None, says: str) -> None:
    assert two.a.link is not None
    two.a.link = None if link is None else two.a.link | link
    answer = two.move()
    assert answer.code == 1 and says in answer.err
    assert two.phases() == ("active", "active")


def test_what_cannot_be_moved_is_told_beforehand(two: Two) -> None:
    two.a.extra = {"refused": "it is not replicated"}
    assert "cannot be moved: it is not replicated" in two.move().err
    two.a.extra = {}
    token = Token(5, "a")
    two.a.fences[TOPIC] = Fence().fence(token, "c", 1)
    answer = two.move()
    assert "fencing, to c in a" in answer.err and f"subscriptions unfence {TOPIC} s --in a" in answer.err
    two.a.fences[TOPIC] = Fence()
    two.b.fences[TOPIC] = Fence().fence(token, "c", 1)
    assert "is fencing, to c in b as well" in two.move().err


def test_a_target_that_takes_nothing_in_is_told_beforehand(two: Two) -> None:
    """Of a subscription of that name which is its own; it was found out when all were fenced and had waited."""
    two.b.extra = {"replicated": False}
    answer = two.move()
    assert answer.code == 1 and "is not replicated in b, which ignores its state: magnetar sub" in answer.err
    assert set(two.a.steps) == {""} and two.phases() == ("active", "active")


def test_what_the_user_should_know_is_said(two: Two) -> None:
    two.b.link = None
    answer = two.move()
    assert answer.code == 0 and "there is no link b -> a" in answer.out


def test_cumulative_consumers_are_not_left_hanging(two: Two) -> None:
    """Their clients compare message ids of the two clusters."""
    two.a.extra = {"cumulative": 2}
    answer = two.move()
    assert answer.code == 1 and "2 consumers acknowledge cumulatively" in answer.err and "--force" in answer.err
    assert two.phases() == ("active", "active")
    assert "2 consumers acknowledge cumulatively" in two.move("a", "b", "--dry-run").out
    assert "2 consumers acknowledge cumulatively" in two.move("a", "b", "--force").out
    assert two.phases() == ("moved", "active")
    two.a.extra, two.b.extra = {}, {"cumulative": 2}
    two.a.extra = {"first": "8:0"}  # ids behind all that b has
    assert two.move("b", "a").code == 0


# -------------------------------------------------------------------------------------------------------------- faults


def test_a_target_that_is_down_beforehand(two: Two) -> None:
    two.b.dead = True
    answer = two.move()
    assert answer.code == 1 and "b does not answer" in answer.err
    assert two.phases() == ("active", "active")


def test_a_target_that_never_confirms(two: Two) -> None:
    two.b.merged = False
    answer = two.move("a", "b", "--timeout", 1)
    assert answer.code == 1
    assert "b did not confirm the final state" in answer.err and "put back" in answer.err
    assert "active in a as before" in answer.err
    assert two.phases() == ("active", "active")
    assert two.b.fences[TOPIC].given_up > NO_TOKEN
    two.b.merged = True
    assert two.move().code == 0


def test_a_source_that_never_writes(two: Two) -> None:
    two.a.final = False
    answer = two.move("a", "b", "--timeout", 1)
    assert answer.code == 1 and "the final state was not written in time" in answer.err
    assert two.phases() == ("active", "active")


@pytest.mark.parametrize("where", ["final", "merged"])
def test_a_poll_that_is_not_held_is_not_repeated_at_once(two: Two, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker holds a thousand; others it answers at once."""
    pauses: list[float] = []
    monkeypatch.setattr(failover, "_pause", pauses.append)
    broker = two.a if where == "final" else two.b
    broker.final = broker.merged = False
    broker.held = 3
    answer = two.move()
    assert answer.code == 0, answer.err
    assert len(pauses) == 3


def test_a_pause_is_made_only_where_an_answer_came_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(failover.threading.Event, "wait", lambda _self, seconds: waited.append(seconds))
    failover._pause(time.monotonic() - failover.POLL_S_MIN)
    assert not waited
    failover._pause(time.monotonic() + 60)
    assert waited == [failover.RECONNECT_S]


def test_a_target_that_dies_in_the_middle(two: Two) -> None:
    def die(step: str) -> None:
        two.b.dead = two.b.dead or step == "merged"

    two.b.before = die
    answer = two.move()
    assert answer.code == 1 and "b does not answer" in answer.err and "active in a as before" in answer.err
    assert two.phases() == ("active", "active")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("cluster", "step"), [("a", "fence"), ("a", "wait"), ("b", "merged"), ("b", "activate"), ("a", "complete")]
)
def test_a_takeover_in_the_middle_is_waited_for(two: Two, cluster: str, step: str, when: str) -> None:
    """A request that was not answered is repeated, whether it took effect or not, while the cluster may have another owner."""
    two.with_brokers_that_wait()
    losing = two.a if cluster == "a" else two.b
    losing.lose = {step: when}
    answer = two.move()
    assert answer.code == 0, answer.err
    assert losing.steps.count(step) >= 2 or step == "wait"
    assert two.phases() == ("moved", "active")


def test_a_cluster_of_which_no_broker_serves_is_called_off_in_time(two: Two) -> None:
    two.with_brokers_that_wait()

    def die(step: str) -> None:
        two.b.dead = two.b.dead or step == "merged"

    two.b.before = die
    answer = two.move("a", "b", "--timeout", 1)
    assert answer.code == 1 and "b does not answer: cannot reach http://" in answer.err
    assert "active in a as before" in answer.err
    assert two.phases() == ("active", "active")


def test_a_target_whose_activation_is_not_answered_and_that_stays_silent(two: Two) -> None:
    """It took effect: both are active, and that is said."""

    def silent(step: str) -> None:
        two.b.dead = two.b.dead or step == "give-up"

    two.b.before = silent
    two.b.lose = {"activate": "after"}
    answer = two.move()
    assert answer.code == 1 and "active in both clusters and messages may come twice" in answer.err
    assert "put back: active in a" in answer.err
    assert two.phases() == ("active", "active")


def test_an_activation_that_took_effect_is_finished(two: Two) -> None:
    two.b.lose = {"activate": "after"}
    answer = two.move()
    assert answer.code == 1 and "activated in b all the same and is moved" in answer.err
    assert two.phases() == ("moved", "active")


def test_an_activation_that_did_not_take_effect_is_called_off(two: Two) -> None:
    two.b.lose = {"activate": "before"}
    answer = two.move()
    assert answer.code == 1 and "active in a as before" in answer.err
    assert two.phases() == ("active", "active")
    with pytest.raises(MagnetarError):
        two.b.fences[TOPIC].activate(two.b.fences[TOPIC].given_up, NOW_MS)


def test_a_source_that_dies_when_it_is_fenced(two: Two) -> None:
    def die(step: str) -> None:
        two.a.dead = two.a.dead or step in {"put-back", "complete"}

    two.a.before = die
    two.b.merged = False
    answer = two.move("a", "b", "--timeout", 1)
    assert answer.code == 1 and "a could not be put back" in answer.err and "still fenced" in answer.err
    assert two.phases() == ("fenced", "active")


def test_a_source_that_is_away_for_a_moment_at_the_end(two: Two) -> None:
    two.a.lose = {"complete": "before"}
    answer = two.move()
    assert answer.code == 0, answer.err
    assert two.phases() == ("moved", "active")


def test_a_source_that_stays_away_at_the_end(two: Two) -> None:
    def die(step: str) -> None:
        two.a.dead = two.a.dead or step == "complete"

    two.a.before = die
    answer = two.move("a", "b", "--timeout", 1)
    assert answer.code == 1 and "active in b" in answer.err and "run the same command again" in answer.err
    two.a.dead, two.a.before = False, lambda _step: None
    assert two.move().code == 0 and two.phases() == ("moved", "active")


def test_a_fence_whose_answer_is_lost_is_taken_back(two: Two) -> None:
    two.a.lose = {"fence": "after"}
    answer = two.move()
    assert answer.code == 1 and "active in a as before" in answer.err
    assert two.phases() == ("active", "active")


def test_somebody_else_unfences_meanwhile(two: Two) -> None:
    def meddle(step: str) -> None:
        if step == "complete":
            fence = two.a.fences[TOPIC]
            two.a.fences[TOPIC] = fence.unfence(fence.next_token("a", NOW_MS), NOW_MS)

    two.a.before = meddle
    answer = two.move()
    assert answer.code == 1 and "may be active in both" in answer.err


PARTS = [f"{TOPIC}-partition-{number}" for number in range(3)]


def fenced(token: Token) -> Fence:
    return Fence().fence(token, "b", NOW_MS).drained(token, 0, NOW_MS).written(token, Position(7, 3))


def test_a_fence_whose_answer_is_lost_is_taken_back_in_all_partitions(make: Callable[..., Two]) -> None:
    """Also when a command that was killed had fenced some of them before."""
    two = make(PARTS)
    two.a.fences[PARTS[0]] = fenced(Token(5, "a"))
    two.a.lose = {"fence": "after"}
    answer = two.move()
    assert answer.code == 1 and "active in a as before" in answer.err
    assert {fence.phase for fence in two.a.fences.values()} == {Phase.ACTIVE}


def test_a_fence_that_comes_when_it_was_called_off_is_none(make: Callable[..., Two]) -> None:
    """It was on its way for longer than the command waits for an answer."""
    two = make(PARTS)
    two.a.lose = {"fence": "before"}
    answer = two.move()
    assert answer.code == 1 and "called off" in answer.err and "active in a as before" in answer.err
    status, refused = two.a.answer(TOPIC, "fence", {}, two.a.bodies["fence"])
    assert status == 409 and "is not later than" in refused["reason"]
    assert {fence.phase for fence in two.a.fences.values()} == {Phase.ACTIVE}
    assert two.move().code == 0


def test_a_fence_whose_request_is_lost_may_still_come(two: Two) -> None:
    two.a.lose = {"fence": "before"}
    two.a.refuse = {"call-off": 500}
    answer = two.move()
    assert answer.code == 1 and "a is not fenced so far, but may still be" in answer.err
    two.a.refuse = {"fence": 412}
    answer = two.move()
    assert answer.code == 1 and "disk full; nothing was changed" in answer.err


def test_a_failover_elsewhere_that_came_first_is_left_alone(two: Two) -> None:
    """It fenced the subscription between this one's look and its fence."""
    token = Token(NOW_MS, "a")

    def meddle(step: str) -> None:
        if step == "fence":
            two.a.fences[TOPIC] = Fence().fence(token, "c", NOW_MS)

    two.a.before = meddle
    answer = two.move()
    assert answer.code == 1 and "is being moved to c" in answer.err and "nothing was changed" in answer.err
    assert two.a.fences[TOPIC] == Fence().fence(token, "c", NOW_MS)


def test_a_target_that_cannot_give_up_may_be_active(two: Two) -> None:
    two.b.lose = {"activate": "after"}
    two.b.refuse = {"give-up": 500}
    answer = two.move()
    assert answer.code == 1 and "may have become active before it refused to give up" in answer.err
    assert "active in both clusters and messages may come twice" in answer.err and "as before" not in answer.err
    assert two.phases() == ("active", "active")


def test_partitions_that_moved_and_those_that_did_not_are_both_told(make: Callable[..., Two]) -> None:
    two = make(PARTS)
    two.b.lose = {"activate": "after"}
    answer = two.move()
    assert answer.code == 1 and f"{PARTS[0]} was activated in b all the same and is moved" in answer.err
    assert "what is left of it is put back: active in a as before" in answer.err
    assert [str(two.a.fences[part].phase) for part in PARTS] == ["moved", "active", "active"]
    assert two.move().code == 0
    assert {fence.phase for fence in two.a.fences.values()} == {Phase.MOVED}


def test_a_target_that_fell_silent_keeps_no_partition_waiting_again(make: Callable[..., Two]) -> None:
    """Each would be unserved for as long as one request is waited for."""
    two = make(PARTS)
    asked: list[str] = []

    def silent(step: str) -> None:
        asked.append(step)
        two.b.dead = two.b.dead or step == "activate"

    two.b.before = silent
    answer = two.move()
    assert answer.code == 1 and "may have become active before it fell silent" in answer.err
    assert (asked.count("activate"), asked.count("give-up")) == (1, 1)
    assert {fence.phase for fence in two.a.fences.values()} == {Phase.ACTIVE}


def test_a_source_that_cannot_store_the_end_is_asked_again(two: Two) -> None:
    two.a.refuse = {"complete": 500}
    answer = two.move()
    assert answer.code == 0, answer.err
    assert two.phases() == ("moved", "active")


def test_a_source_that_refuses_the_end_says_where_the_subscription_is(two: Two) -> None:
    two.a.refuse = {"complete": 404}
    answer = two.move()
    assert answer.code == 1 and "is active in b, but a refuses to send its consumers there" in answer.err
    assert two.phases() == ("fenced", "active")


def test_the_other_partitions_are_finished_when_one_is_not(make: Callable[..., Two]) -> None:
    two = make(PARTS)

    def meddle(step: str) -> None:
        if step == "complete":
            fence = two.a.fences[PARTS[0]]
            two.a.fences[PARTS[0]] = fence.unfence(fence.next_token("a", NOW_MS), NOW_MS)

    two.a.before = meddle
    answer = two.move()
    assert answer.code == 1 and "may be active in both" in answer.err
    assert [str(two.a.fences[part].phase) for part in PARTS] == ["active", "moved", "moved"]


def interrupt(broker: FenceBroker, *steps: str, number: int = signal.SIGINT) -> None:
    """Ctrl-C while some steps are asked for, which do not get there."""
    broker.lose = dict.fromkeys(steps, "before")
    broker.before = lambda step: os.kill(os.getpid(), number) if step in steps else None


@pytest.mark.parametrize("step", ["merged", "activate"])
def test_ctrl_c_puts_back(two: Two, step: str) -> None:
    interrupt(two.b, step)
    answer = two.move()
    assert answer.code == 1 and "magnetar: interrupted; put back" in answer.err
    assert two.phases() == ("active", "active")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_goes_is_as_ctrl_c(two: Two, number: int) -> None:
    """Told once by the system and once by the shell."""
    before = signal.getsignal(number)
    # What comes if nothing is done about it would end the tests.
    signal.signal(number, lambda *_: None)
    try:
        interrupt(two.b, "merged", "give-up", number=number)
        answer = two.move()
    finally:
        signal.signal(number, before)
    assert answer.code == 1 and "magnetar: interrupted; put back" in answer.err
    assert two.phases() == ("active", "active")


def test_ctrl_c_at_the_end_says_where_the_subscription_is(two: Two) -> None:
    interrupt(two.a, "complete")
    answer = two.move()
    assert (
        answer.code == 1
        and "interrupted: " in answer.err
        and "is active in b, but not all partitions in a redirect" in answer.err
    )
    assert two.phases() == ("fenced", "active")


def test_ctrl_c_twice_says_that_it_is_not_put_back(two: Two) -> None:
    interrupt(two.b, "merged", "give-up")
    answer = two.move()
    assert answer.code == 1 and "interrupted again before everything was put back" in answer.err
    assert two.phases() == ("fenced", "active")


def test_it_is_finished_also_when_nobody_reads_what_it_says(two: Two, tmp_path: Path) -> None:
    """As with `| head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["failover", TOPIC, "s", "--from", "a", "--to", "b", "-c", str(two.config)]
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *words], stdout=writing, cwd=tmp_path, check=False, timeout=60
    )
    os.close(writing)
    assert (done.returncode, two.phases()) == (0, ("moved", "active"))


def test_an_answer_that_makes_no_sense_does_not_leave_it_fenced(two: Two) -> None:
    two.b.runs = None  # type: ignore[assignment]
    answer = two.move("a", "b", "--json")
    assert answer.code == 1 and "unexpected TypeError" in answer.err
    two.b.runs, two.a.runs = [], None  # type: ignore[assignment]
    answer = two.move("a", "b", "--json")
    assert answer.code == 1 and "unexpected TypeError" in answer.err and "active in a as before" in answer.err
    assert two.phases() == ("active", "active")


# ------------------------------------------------------------------------------------------------------------- unfence


def test_unfence(two: Two, run: Callable[..., Answer]) -> None:
    words = ("subscriptions", "unfence", TOPIC, "s", "--in", "a", "-c", two.config)
    answer = run(*words, "--yes")
    assert answer.code == 1 and "is not fenced in a" in answer.err
    assert two.move().code == 0
    answer = run(*words)
    assert answer.code == 1 and "If b serves it too, messages are delivered twice" in answer.err
    answer = run(*words, "--yes")
    assert answer.code == 0 and two.phases() == ("active", "active")
    assert two.move("b", "a").code == 0
