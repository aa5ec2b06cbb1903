"""The format's client against scripted brokers: which one of a cluster it speaks to."""

from collections.abc import Callable, Iterator

import pytest

from magnetar.core import addresses as limits
from magnetar.spark.client import Client
from magnetar.spark.connection import Access, Connection, Down
from magnetar.wire import commands
from magnetar.wire.frame import Frame
from tests.support.peer import Peer, Script

pytestmark = pytest.mark.timeout(30)

REFUSED = "127.0.0.1:1"


def serves(frame: Frame, peer: Peer) -> None:
    peer.send(commands.connected(21, 5 << 20))


def silent(frame: Frame, peer: Peer) -> None:
    pass


@pytest.fixture
def start() -> Iterator[Callable[[Script], Peer]]:
    """Start a broker; it ends with the test."""
    peers: list[Peer] = []

    def one(script: Script) -> Peer:
        peers.append(Peer(script))
        return peers[-1]

    yield one
    for peer in peers:
        peer.close()


def test_a_broker_that_does_not_answer_connect_is_down(start):
    url = f"pulsar://{start(silent).address}"
    with pytest.raises(Down, match=r"no answer within 0\.1 s"):
        Connection(url, Access(url), patience_s=0.1)


def test_it_remembers_the_broker_that_answered(start, monkeypatch):
    monkeypatch.setattr(limits, "SILENT_S", 0.05)
    paused, serving = start(silent), start(serves)
    client = Client(Access(f"pulsar://{REFUSED},{paused.address},{serving.address}"))
    for _ in range(2):
        assert client.connection().url == f"pulsar://{serving.address}"
        client.close()
    assert (len(paused.frames), len(serving.frames)) == (1, 2)


def test_a_broker_that_was_too_slow_is_tried_again(start, monkeypatch):
    monkeypatch.setattr(limits, "SILENT_S", 0.05)
    seen: list[Frame] = []

    def second_time(frame: Frame, peer: Peer) -> None:
        seen.append(frame)
        if len(seen) > 1:
            serves(frame, peer)

    slow = start(second_time)
    client = Client(Access(f"pulsar://{slow.address},{REFUSED}"))
    assert client.connection().url == f"pulsar://{slow.address}"
    client.close()


def test_every_address_is_named(start):
    with pytest.raises(Down, match="127.0.0.1:1: Connection refused; pulsar://127.0.0.1:2: Connection refused"):
        Client(Access(f"pulsar://{REFUSED},127.0.0.1:2")).connection()
