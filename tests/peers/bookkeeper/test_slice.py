"""What `make test` tries with real bookies, a real ZooKeeper and official clients: our ledgers next to Java's, and two takeovers.

All of it takes about a minute, on bookies that are started once. The other files of this folder are for `make peers`.
"""

import asyncio

import pulsar
import pytest

from magnetar.bookkeeper.ledgers.metadata import DigestType, LedgerState
from magnetar.bookkeeper.network.client import BookKeeper
from magnetar.bookkeeper.network.errors import LedgerFenced
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Publisher, connect, numbers
from tests.support.bookkeeper_ledgers import SIZES, content, run, written
from tests.support.brokers import eventually

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_another_broker_takes_over_under_load(brokers: Brokers, how: str) -> None:
    """Every confirmed number is stored once, in order; a consumer goes on where it was."""
    brokers.start()
    publisher = Publisher(brokers.url)
    publisher.after(100)
    client = connect(brokers.url)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(50):
        message = consumer.receive(20_000)
        assert int(message.data()) == number
        consumer.acknowledge(message)

    def acknowledged() -> str:
        cursors = brokers["a"].rest("GET", "/admin/v2/persistent/public/default/moved/internalStats")["cursors"]
        return str(cursors["s"]["markDeletePosition"])

    eventually(lambda: acknowledged().endswith(":49"), what="fifty acknowledgements have come")
    brokers.end("a", how)
    publisher.after(100)
    brokers["b"].await_ready()
    publisher.close()
    stored = numbers(brokers["b"].url)
    assert stored == list(range(len(stored)))
    assert len(stored) >= len(publisher.confirmed)
    missing = set(range(50, len(stored)))
    while missing:
        # What was sent before and not acknowledged comes again.
        number = int(consumer.receive(20_000).data())
        missing.discard(number)
        # A broker that is killed may forget the acknowledgements of its last moment.
        assert number >= 50 or how == "killed"
    client.close()


def test_java_reads_what_we_write(cluster: BookKeeperCluster) -> None:
    ledgers: dict[int, str] = {}

    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            for digest in DigestType:
                for quorum in (3, 2):
                    ledger = await written(client, SIZES, digest=digest, write_quorum=quorum, ack_quorum=2)
                    closed = await ledger.close()
                    assert (closed.state, closed.last_entry, closed.length) == (
                        LedgerState.CLOSED,
                        len(SIZES) - 1,
                        sum(SIZES),
                    )
                    ledgers[ledger.id] = digest.name

    run(test)
    expected = [content(number, size) for number, size in enumerate(SIZES)]
    assert cluster.java_reads(ledgers) == dict.fromkeys(ledgers, expected)
    first = str(next(iter(ledgers)))
    shown = cluster.shell("ledgermetadata", "-ledgerid", first)
    assert f"lastEntryId={len(SIZES) - 1}" in shown
    assert f"length={sum(SIZES)}" in shown
    assert f"Lid={first}, Eid={len(SIZES) - 1}," in cluster.shell("readledger", "-ledgerid", first)


def test_java_recovers_what_we_have_left_open(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            ledgers = {}
            for digest in DigestType:
                ledger = await written(client, SIZES, digest=digest)
                ledgers[ledger.id] = (ledger, digest.name)
            names = {id_: name for id_, (_, name) in ledgers.items()}
            found = await asyncio.to_thread(lambda: cluster.java_reads(names, recover=True))
            expected = [content(number, size) for number, size in enumerate(SIZES)]
            assert found == dict.fromkeys(ledgers, expected)
            for ledger, _ in ledgers.values():
                with pytest.raises(LedgerFenced):
                    await ledger.append(b"after the recovery")
                with pytest.raises(LedgerFenced):
                    await ledger.close()

    run(test)
