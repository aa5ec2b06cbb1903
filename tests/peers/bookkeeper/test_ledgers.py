"""Our client of ledgers next to Java's, with real bookies: each reads what the other has written."""

import asyncio
import ssl

import pytest

from magnetar.bookkeeper.ledgers.metadata import BookieId, DigestType
from magnetar.bookkeeper.network.client import BookKeeper
from magnetar.bookkeeper.network.connection import Connections, Security
from magnetar.bookkeeper.network.errors import LedgerRefused, NoSuchLedger, TooFewBookies
from magnetar.bookkeeper.network.zookeeper import address_of
from magnetar.bookkeeper.protocol.messages import GetBookieInfo
from tests.support.apache_bookkeeper.kit import PASSWORD, BookKeeperCluster, java_content
from tests.support.bookkeeper_ledgers import content, run, written

pytestmark = pytest.mark.timeout(600)

DIGESTS = ",".join(digest.name for digest in DigestType)


def test_we_read_what_java_writes(cluster: BookKeeperCluster) -> None:
    expected = [java_content(number, 500) for number in range(30)]
    by_v2 = cluster.java_writes(DIGESTS, (3, 3, 2), 30, 500, v2=True)
    by_v3 = cluster.java_writes(DIGESTS, (3, 2, 2), 30, 500, v2=False)

    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            for ledger, digest in zip((*by_v2, *by_v3), (*DigestType, *DigestType), strict=True):
                opened = await client.open(ledger, digest=digest, password=PASSWORD)
                assert opened.closed
                assert [payload for _, payload, _ in await opened.read(0, 29)] == expected
                assert [id_ async for id_, _, _ in opened.entries(7, 11)] == [7, 8, 9, 10, 11]
                with pytest.raises(LedgerRefused, match=f"ledger {ledger} has another password"):
                    await client.open(ledger, password=b"wrong")

    run(test)


def test_we_recover_what_java_has_left_open(cluster: BookKeeperCluster) -> None:
    expected = [java_content(number, 500) for number in range(20)]
    ledgers = cluster.java_writes(DIGESTS, (3, 3, 2), 20, 500, close=False)

    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            for ledger in ledgers:
                before = await client.open(ledger)
                assert not before.closed
                # The last entry's own header does not confirm it.
                assert before.last_readable in (18, 19)
                after = await client.recover(ledger)
                assert (after.closed, after.last_readable, after.metadata.length) == (True, 19, 20 * 500)
                assert [payload for _, payload, _ in await after.read(0, 19)] == expected

    run(test)
    assert cluster.java_reads(dict(zip(ledgers, DIGESTS.split(","), strict=True))) == dict.fromkeys(ledgers, expected)


def test_a_reader_follows_a_ledger_until_it_is_closed(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client, await BookKeeper.connect(cluster.hosts) as other:
            ledger = await client.create()
            reader = await other.open(ledger.id)
            seen: list[int] = []
            more = asyncio.Event()

            async def follow() -> None:
                async for id_, payload, _ in reader.follow():
                    assert payload == content(id_, 100)
                    seen.append(id_)
                    more.set()

            following = asyncio.create_task(follow())
            for number in range(50):
                await ledger.append(content(number, 100))
                if number % 10 == 9:
                    # Also of a ledger that is idle: its writer says that the last entry is confirmed.
                    while seen != list(range(number + 1)):
                        more.clear()
                        await more.wait()
            ledger.append(content(50, 100))
            await ledger.close()
            await following
            assert seen == list(range(51))

    run(test)


def test_ledgers_are_deleted(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            ledger = await written(client, [1])
            await ledger.close()
            await client.delete(ledger.id)
            for refused in (client.open, client.recover, client.delete):
                with pytest.raises(NoSuchLedger, match=f"there is no ledger {ledger.id}$"):
                    await refused(ledger.id)

    run(test)


def test_an_ensemble_that_is_too_large_is_one_line(cluster: BookKeeperCluster) -> None:
    async def test() -> None:
        async with await BookKeeper.connect(cluster.hosts) as client:
            with pytest.raises(TooFewBookies, match="^4 bookies take entries: an ensemble of 5 needs as many$"):
                await client.create(ensemble=5)

    run(test)


def test_a_bookie_without_tls_is_one_line(cluster: BookKeeperCluster) -> None:
    bookie = BookieId(cluster.bookies[0].id)

    async def test() -> None:
        connections = Connections(asyncio.get_running_loop(), address_of, security=Security(ssl.create_default_context))
        with pytest.raises(ConnectionError):
            await connections.ask(bookie, GetBookieInfo())
        assert connections.problem([bookie]) == f"bookie {bookie}: it has no TLS, and this client is to use it"
        await connections.close()

    run(test)
