"""Real bookies with TLS, and bookies that want an authentication."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.network.client import BookKeeper
from magnetar.bookkeeper.network.connection import Security
from magnetar.bookkeeper.network.errors import BookKeeperError
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.certificates import Authority

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[BookKeeperCluster]:
    """A cluster without bookies: each test adds its own kind."""
    cluster = BookKeeperCluster(tmp_path / "cluster", 0)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def failure(cluster: BookKeeperCluster, security: Security | None = None) -> str:
    """The error of a client that writes an entry."""

    async def test() -> str:
        async with asyncio.timeout(200):
            async with await BookKeeper.connect(cluster.hosts, security=security) as client:
                ledger = await client.create(ensemble=1)
                with pytest.raises(BookKeeperError) as raised:
                    await ledger.append(b"entry")
                return str(raised.value)

    return asyncio.run(test())


def test_tls(empty: BookKeeperCluster, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("bookie")
    settings = {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsProvider": "JDK",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(key),
        "tlsCertificatePath": str(certificate),
    }
    empty.add(settings).start()
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")

    async def test() -> None:
        async with asyncio.timeout(200):
            async with await BookKeeper.connect(empty.hosts, security=Security(tls=context)) as client:
                ledger = await client.create(ensemble=1)
                payloads = [bytes([number]) * size for number, size in enumerate((0, 10, 100_000, 1 << 20, 5))]
                await asyncio.gather(*map(ledger.append, payloads))
                await ledger.close()
                reader = await client.open(ledger.id)
                assert [payload async for _, payload, _ in reader.entries()] == payloads

    asyncio.run(test())
    stranger = ssl.create_default_context()
    assert "certificate verify failed" in failure(empty, Security(tls=stranger))


def test_a_bookie_without_tls_is_one_line(empty: BookKeeperCluster) -> None:
    empty.add().start()
    assert "it has no TLS, and this client is to use it" in failure(empty, Security(tls=ssl.create_default_context()))


def test_an_authentication_that_this_client_lacks_is_one_line(empty: BookKeeperCluster, tmp_path: Path) -> None:
    login = tmp_path / "login.conf"
    login.write_text('Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_writer="secret"; };')
    factory = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
    empty.add({"bookieAuthProviderFactoryClass": factory}, {"java.security.auth.login.config": login}).start()
    assert "it wants an authentication, and this client has none" in failure(empty)
