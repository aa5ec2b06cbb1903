"""Bookies that are killed, wiped or full while a broker serves from them: what is confirmed stays, and publishing continues."""

import contextlib
import re
import urllib.error
from collections.abc import Callable, Iterator

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.apache_bookkeeper.kit import BookieServer, BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Publisher, ledgers_of, numbers
from tests.support.bookkeeper_ledgers import busiest, contents, ensembles, replicated
from tests.support.brokers import BrokerProcess, eventually
from tests.support.jvm import PeerError
from tests.support.raw_client import Raw, metadata, raw, send

pytestmark = pytest.mark.timeout(400)

FULL = {"diskUsageThreshold": "0.0001", "diskUsageWarnThreshold": "0.0001", "diskCheckInterval": "1000"}
"""A bookie with these settings takes any disk for full."""

CANNOT = "ERROR one/a: the log cannot be written: ledger .*: too few bookies can be reached or chosen"
"""The line when publishing has waited long enough."""

LINES_MAX = 40
"""Of a broker's log about one fault, whatever it lasts."""


Raws = Callable[[BrokerProcess], Raw]


@pytest.fixture
def raws() -> Iterator[Raws]:
    """Makes clients of bytes with a producer each."""
    with contextlib.ExitStack() as stack:

        def made(broker: BrokerProcess) -> Raw:
            client = stack.enter_context(raw(broker))
            client.handshake()
            producer = pb.CommandProducer(topic=f"{TOPIC}-raw", producer_id=1, request_id=1, producer_name="p")
            client.send(pb.BaseCommand(type=pb.PRODUCER, producer=producer))
            answer = client.answer()
            assert answer is not None
            assert answer.type == pb.PRODUCER_SUCCESS
            return client

        yield made


def said(broker: BrokerProcess, before: int, pattern: str, within_s: float = 60) -> str:
    """Wait until the log has a line of this form, and look that it has not more; the line."""
    form = re.compile(pattern.encode())

    def lines() -> list[bytes]:
        return [line for line in broker.log.read_bytes()[before:].splitlines() if form.search(line)]

    eventually(lines, within_s=within_s, what=pattern)
    (line,) = lines()
    return line.decode()


def is_short(broker: BrokerProcess, before: int) -> None:
    """The log has not more lines than people read, whatever the fault lasts."""
    text = broker.log.read_bytes()[before:].decode()
    assert text.count("\n") < LINES_MAX
    assert "Traceback" not in text


def refused(broker: BrokerProcess, client: Raw) -> None:
    """A producer that was there before gets an error after which clients try again, and the broker is not ready."""
    client.socket.settimeout(60)
    answers = send(client, 1, build(metadata(), b"1")), client.answer()
    assert [answer.type if answer is not None else 0 for answer in answers] == [pb.SEND_ERROR, pb.CLOSE_PRODUCER]
    assert answers[0] is not None
    assert answers[0].send_error.error == ErrorCode.PERSISTENCE
    with pytest.raises(urllib.error.HTTPError) as unready:
        broker.rest("GET", "/admin/v2/brokers/ready")
    assert unready.value.code == 503


def test_too_few_bookies_while_a_broker_serves(cluster: BookKeeperCluster, brokers: Brokers, raws: Raws) -> None:
    """Publishing waits, then fails with an error after which clients try again; what is confirmed is there."""
    broker = brokers["a"].start()
    publisher = Publisher(broker.url, pause_s=0.005, patience_s=120)
    publisher.after(50)
    client = raws(broker)
    before = broker.log.stat().st_size
    killed = cluster.bookies[:3]
    for bookie in killed:
        bookie.kill()
    line = said(broker, before, CANNOT)
    assert sum(f"bookie {bookie.id}: " in line for bookie in killed) >= 2
    count = len(publisher.confirmed)
    refused(broker, client)
    assert publisher.failed == []
    assert len(publisher.confirmed) == count
    cluster.heal()
    publisher.after(50)
    publisher.close()
    assert numbers(broker.url) == publisher.confirmed
    is_short(broker, before)


def test_too_few_bookies_for_a_takeover(cluster: BookKeeperCluster, brokers: Brokers) -> None:
    """The serving broker is killed while most bookies are away: the other one waits for them, and says so."""
    brokers["a"].start()
    brokers.wait_in_line("b")
    publisher = Publisher(brokers.url, pause_s=0.005, patience_s=120)
    publisher.after(50)
    before = brokers["b"].log.stat().st_size
    killed = cluster.bookies[:3]
    for bookie in killed:
        bookie.kill()
    # A takeover that begins before ZooKeeper has noticed would ask them for entries.
    eventually(lambda: not any(map(cluster.registered, killed)), within_s=60, what="three bookies are gone")
    brokers["a"].kill()
    said(
        brokers["b"],
        before,
        "1 bookies take entries, and cluster one needs 3: start more, or .*; the broker waits for 30 s",
    )
    count = len(publisher.confirmed)
    cluster.heal()
    brokers["b"].await_ready()
    publisher.after(50)
    publisher.close()
    assert len(publisher.confirmed) > count
    assert numbers(brokers["b"].url) == publisher.confirmed
    is_short(brokers["b"], before)


def written(cluster: BookKeeperCluster, brokers: Brokers) -> int:
    """The ledger that the messages go to."""
    return busiest(cluster, ledgers_of(cluster, brokers.store).values())


def test_a_wiped_bookie_that_comes_back(cluster: BookKeeperCluster, brokers: Brokers) -> None:
    """With its cookie in ZooKeeper it refuses to start. Without, it is an empty bookie under its former name: new entries
    are replicated to it in full, former ones are read from the others, and a takeover finds everything."""
    broker = brokers["a"].start()
    brokers.wait_in_line("b")
    publisher = Publisher(brokers.url, pause_s=0.005, patience_s=120)
    publisher.after(100)
    ledger = written(cluster, brokers)
    wiped, other, _ = [cluster.bookie(id_) for id_ in sorted(ensembles(cluster, [ledger])[ledger][-1])]
    before = broker.log.stat().st_size
    wiped.kill()
    wiped.wipe()
    with pytest.raises(PeerError, match=f"{wiped.name} ended while it started"):
        wiped.start()
    reason = "There are directories without a cookie, and this is neither a new environment, nor"
    assert (wiped.folder / "logs" / "peer.log").read_text().count(f"ERROR LegacyCookieValidation [main] {reason}") == 1
    publisher.after(50)
    cluster.wipe(wiped)
    cluster.heal()
    # Its name stands last in the list of those to choose: now there is no other choice.
    other.kill()
    eventually(lambda: wiped.id in ensembles(cluster, [ledger])[ledger][-1], what="new entries go to the wiped bookie")
    publisher.after(50)
    eventually(lambda: replicated(cluster, ledger), what="new entries are on all bookies")
    cluster.heal()
    brokers["a"].kill()
    brokers["b"].await_ready()
    publisher.after(50)
    publisher.close()
    assert numbers(brokers["b"].url) == publisher.confirmed
    text = broker.log.read_bytes()[before:].decode()
    assert text.count("\n") < LINES_MAX
    assert wiped.id in text


def fill(bookies: list[BookieServer]) -> None:
    """Start bookies again that take their disks for full; wait until they take no entries."""
    for bookie in bookies:
        bookie.kill()
        bookie.settings |= FULL
        bookie.start(wait=False)
    for bookie in bookies:
        eventually(bookie.takes_none, within_s=120, what=f"{bookie.name} is full")


def empty(cluster: BookKeeperCluster, bookies: list[BookieServer]) -> None:
    """Start them again with room on their disks."""
    for bookie in bookies:
        bookie.kill()
        for key in FULL:
            bookie.settings.pop(key, None)
    cluster.heal()


def test_a_full_bookie(cluster: BookKeeperCluster, brokers: Brokers) -> None:
    """Writing continues on the others, and what it has is read from it when they are away."""
    broker = brokers["a"].start()
    publisher = Publisher(broker.url, pause_s=0.005, patience_s=120)
    publisher.after(100)
    ledger = written(cluster, brokers)
    # All of these entries are on all of its bookies.
    count = eventually(lambda: replicated(cluster, ledger), what="all have everything")
    full, *others = [cluster.bookie(id_) for id_ in sorted(ensembles(cluster, [ledger])[ledger][-1])]
    try:
        fill([full])
        publisher.after(50)
        assert full.id not in ensembles(cluster, [ledger])[ledger][-1]
        publisher.close()
        assert numbers(broker.url) == publisher.confirmed
        assert broker.stop() == 0
        expected = contents(cluster, ledger)
        for bookie in others:
            bookie.kill()
        assert contents(cluster, ledger, count) == expected[:count]
    finally:
        empty(cluster, [full])


def test_all_bookies_are_full(cluster: BookKeeperCluster, brokers: Brokers, raws: Raws) -> None:
    """Publishing waits, then fails with an error after which clients try again. It continues when there is room."""
    broker = brokers["a"].start()
    publisher = Publisher(broker.url, pause_s=0.005, patience_s=120)
    publisher.after(50)
    client = raws(broker)
    before = broker.log.stat().st_size
    try:
        fill(cluster.bookies)
        line = said(broker, before, CANNOT)
        assert (
            sum(f"bookie {bookie.id}: it is read-only, as with a full disk" in line for bookie in cluster.bookies) >= 2
        )
        count = len(publisher.confirmed)
        refused(broker, client)
        assert publisher.failed == []
        assert len(publisher.confirmed) == count
    finally:
        empty(cluster, cluster.bookies)
    publisher.after(50)
    publisher.close()
    assert numbers(broker.url) == publisher.confirmed
    is_short(broker, before)
