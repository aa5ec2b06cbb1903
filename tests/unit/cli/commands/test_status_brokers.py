"""`magnetar status` of a cluster of several brokers: which one serves, which ones wait, which ones are down."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.admin import client as requests
from magnetar.cli.commands import status as status_command
from tests.support.broker_status import status
from tests.unit.cli.conftest import Answer, FakeBroker

Run = Callable[..., Answer]

READY = "GET /admin/v2/brokers/ready"
LEADER = "GET /admin/v2/brokers/leaderBroker"
STATUS = "GET /geo/v1/status"

HEAD = '[clusters.west]\nstorage = "bookkeeper"\nstore = "zookeeper://z:2181/west"\n'


@pytest.fixture
def three(make_broker: Callable[[], FakeBroker], tmp_path: Path) -> dict[str, FakeBroker]:
    """The brokers of one cluster, and a clusters.toml."""
    brokers = {name: make_broker() for name in "abc"}
    text = HEAD
    for number, (name, broker) in enumerate(brokers.items(), 1):
        address = broker.url.removeprefix("http://")
        text += f'[clusters.west.brokers.{name}]\npulsar = "127.0.0.1:{number}"\nhttp = "{address}"\n'
    (tmp_path / "clusters.toml").write_text(text)
    return brokers


def waits(broker: FakeBroker, serving: FakeBroker) -> None:
    """As a broker that waits answers."""
    broker.answer(READY, {"reason": "broker x of cluster west waits to take over"}, 503)
    broker.answer(LEADER, {"brokerId": "x", "serviceUrl": serving.url})
    broker.answer(STATUS, {"reason": "another one serves"}, 503)


def serves(broker: FakeBroker) -> None:
    broker.answer(READY, "ok")
    broker.answer(STATUS, status())


def test_one_serves(three: dict[str, FakeBroker], run: Run) -> None:
    waits(three["a"], three["b"])
    serves(three["b"])
    three["c"].answer(READY, {"reason": "token expired"}, 401)
    found = run("status", "--json").json["west"]
    assert found["broker"]["topics"] == 3
    assert [(row["broker"], row["state"], row["detail"]) for row in found["brokers"]] == [
        ("a", "waits", "broker x of cluster west waits to take over"),
        ("b", "serves", ""),
        ("c", "down", "token expired"),
    ]
    assert found["brokers"][0]["service"] == "pulsar://127.0.0.1:1"
    shown = [line.split()[:3] for line in run("status").out.splitlines()]
    assert ["west", "a", "waits"] in shown
    assert ["west", "b", "serves"] in shown
    assert ["west", "c", "down"] in shown


def test_the_owner_of_the_log_that_does_not_serve_does_not_wait(three: dict[str, FakeBroker], run: Run) -> None:
    for broker in three.values():
        waits(broker, three["c"])
    answer = run("status", "--json")
    assert "no cluster answers" in answer.err
    assert [row["state"] for row in answer.json["west"]["brokers"]] == ["waits", "waits", "not ready"]


def test_brokers_are_asked_while_their_cluster_does_not_answer_yet(
    three: dict[str, FakeBroker], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is down costs the timeout once."""
    monkeypatch.setattr(status_command, "TIMEOUT_S", 60.0)
    asked = threading.Event()
    in_time: list[bool] = []

    def ready() -> str:
        asked.set()
        return "ok"

    def late() -> Any:
        in_time.append(asked.wait(30))
        return status()

    three["a"].answer(STATUS, late)
    three["b"].answer(READY, ready)
    run("status", "--json")
    assert in_time == [True]


def test_a_command_waits_while_a_broker_takes_over(
    three: dict[str, FakeBroker], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "TAKEOVER_LOOK_S", 0.01)
    for broker in three.values():
        broker.answer("GET /admin/v2/tenants", {"reason": "no broker serves cluster west now"}, 503)

    def serves_next() -> Any:
        three["c"].answer("GET /admin/v2/tenants", [])
        return {"reason": "broker c takes over"}

    three["c"].answer("GET /admin/v2/tenants", serves_next, 503)
    answer = run("tenants", "list")
    assert answer.code == 0, answer.err
    assert answer.err.startswith("magnetar: west: no broker serves: ")
    assert answer.err.count("\n") == 1
    assert len(three["a"].requests) == 2


def test_a_broker_that_does_not_answer(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(
        HEAD
        + "".join(
            f'[clusters.west.brokers.{name}]\npulsar = "127.0.0.1:{port}"\nhttp = "127.0.0.1:{port + 1}"\n'
            for name, port in (("a", 1), ("b", 3))
        )
    )
    rows = run("status", "--json").json["west"]["brokers"]
    assert [row["state"] for row in rows] == ["down", "down"]
    assert rows[1]["detail"] == "cannot reach http://127.0.0.1:4: connection refused"


def test_a_cluster_of_one_broker_has_no_rows(fake: FakeBroker, run: Run, tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(
        f'[clusters.solo]\npulsar = "127.0.0.1:1"\nhttp = "{fake.url.removeprefix("http://")}"\n'
    )
    fake.answer(STATUS, status())
    assert "brokers" not in run("status", "--json").json["solo"]
    assert [what for what, _ in fake.requests if "brokers" in what] == []
