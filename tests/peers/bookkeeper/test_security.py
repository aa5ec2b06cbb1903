"""A real BookKeeper with TLS, certificates and users everywhere: brokers and Java's tools work on it, strangers get one line."""

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.network.client import BookKeeper
from magnetar.bookkeeper.network.connection import Connections, Security
from magnetar.bookkeeper.network.sasl import SaslLogin
from magnetar.bookkeeper.network.zookeeper import address_of
from magnetar.bookkeeper.network.zookeeper_client import ZooKeeperSecurity, make_client
from magnetar.bookkeeper.protocol.messages import BookieInfo, GetBookieInfo
from magnetar.core import config
from magnetar.core.errors import StorageError
from magnetar.core.tls import client_context
from magnetar.runtime.bookkeeper.connecting import Connecting
from magnetar.runtime.stores.zookeeper import ZooKeeperStore
from tests.support.apache_bookkeeper import kit
from tests.support.apache_bookkeeper.kit import PASSWORD, ROOT, BookKeeperCluster
from tests.support.apache_bookkeeper.protected import PASSWORD as USERS_PASSWORD
from tests.support.apache_bookkeeper.protected import USER, Protected
from tests.support.bookkeeper_brokers import Brokers, Publisher, numbers
from tests.support.certificates import Authority

pytestmark = pytest.mark.timeout(600)

BOOKIES = 3
BOTH = {("x509", "CN=broker"), ("sasl", USER)}
"""Who a node is for that a broker has made."""


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Protected:
    return Protected(tmp_path_factory.mktemp("protected"))


@pytest.fixture(scope="module")
def secured(protected: Protected, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    folder = tmp_path_factory.mktemp("secured")
    with kit.running(folder / "cluster", BOOKIES, protection=protected.protection()) as cluster:
        yield cluster


def for_bookies(given: ZooKeeperSecurity) -> Security:
    """The same TLS and the same user for connections to bookies."""
    user = given.sasl
    return Security(given.tls, None if user is None else lambda: SaslLogin(*user))


def test_ledgers_of_both_are_read_by_both(protected: Protected, secured: BookKeeperCluster) -> None:
    """Nodes below the root have the root's access list: it lets Java's tools and the bookies use them."""
    payloads = [bytes([number]) * size for number, size in enumerate((0, 10, 100_000, 1 << 20, 5))]
    (javas,) = secured.java_writes("CRC32C", (3, 3, 2), 5, 100)

    async def test() -> int:
        async with asyncio.timeout(200):
            async with await BookKeeper.connect(
                secured.zookeeper.secure_hosts,
                security=for_bookies(protected.security()),
                zookeeper_security=protected.security(),
            ) as client:
                ledger = await client.create(password=PASSWORD)
                await asyncio.gather(*map(ledger.append, payloads))
                await ledger.close()
                reader = await client.open(javas)
                found = [payload async for _, payload, _ in reader.entries()]
                assert found == [kit.java_content(number, 100) for number in range(5)]
                return ledger.id

    ours = asyncio.run(test())
    assert secured.java_reads({ours: "CRC32C"})[ours] == payloads
    with secured.client() as client:
        # 862 is at 00/0000/L0862.
        nodes = [f"{ROOT}/00/0000/L{ledger:04}" for ledger in (ours, javas)]
        assert [access(client, node) for node in (ROOT, *nodes)] == [{("sasl", USER)}] * 3


def access(client: KazooClient, node: str) -> set[tuple[str, str]]:
    """Who may use a node."""
    acls, _ = client.get_acls(node)
    assert all(acl.acl_list == ["ALL"] for acl in acls)
    return {(acl.id.scheme, acl.id.id) for acl in acls}


def test_a_broker_takes_over_on_a_protected_cluster(
    protected: Protected, secured: BookKeeperCluster, tmp_path: Path
) -> None:
    brokers = Brokers(
        tmp_path, secured, "/magnetar/secured", more=protected.tables(), hosts=secured.zookeeper.secure_hosts
    )
    try:
        brokers["a"].start()
        brokers.wait_in_line("b")
        publisher = Publisher(brokers.url)
        publisher.after(50)
        brokers["a"].kill()
        publisher.after(50)
        publisher.close()
        stored = numbers(brokers["b"].url)
        assert stored == list(range(len(stored)))
        assert len(stored) >= len(publisher.confirmed)
        with secured.client() as client:
            for node in ("", "/brokers/b", "/shards/0/chain", "/shards/0/owner"):
                assert access(client, f"/magnetar/secured{node}") == BOTH
        assert all(USERS_PASSWORD not in broker.log.read_text() for broker in brokers.brokers.values())
    finally:
        brokers.close()


def test_metadata_alone_in_a_protected_zookeeper(protected: Protected, secured: BookKeeperCluster) -> None:
    """A cluster with a disk may have its metadata there (`[metadata.zookeeper]`)."""
    security = ZooKeeperSecurity(protected.security().tls, (USER, USERS_PASSWORD), creator_only=True)
    store = ZooKeeperStore(secured.zookeeper.secure_hosts, "/metadata/one", security)
    store.apply({"a/b": b"value"})
    assert store.load() == {"a/b": (b"value", 1)}
    store.close()
    with secured.client() as client:
        assert access(client, "/metadata/one/version") == BOTH
        assert access(client, "/metadata/one/commits/00000000000000000001") == BOTH


def test_users_and_passwords_of_access_lists(protected: Protected, secured: BookKeeperCluster) -> None:
    """`digest` is no login: another password is another user, to whom the nodes are closed."""

    def client_of(password: str) -> KazooClient:
        # ZooKeeper of this cluster wants SASL, too.
        security = ZooKeeperSecurity(
            protected.security().tls, (USER, USERS_PASSWORD), ("magnetar", password), creator_only=True
        )
        made = make_client(secured.zookeeper.secure_hosts, kit.SESSION_S, kit.QUIET, security)
        made.start(60)
        return made

    one = client_of("one")
    one.create("/digest")
    ids = {acl.id.scheme for acl in one.get_acls("/digest")[0]}
    assert ids == {"x509", "sasl", "digest"}
    one.set_acls("/digest", [acl for acl in one.get_acls("/digest")[0] if acl.id.scheme == "digest"])
    one.set("/digest", b"x")
    other = client_of("two")
    with pytest.raises(NoAuthError):
        other.set("/digest", b"y")
    for client in (one, other):
        client.stop()
        client.close()


# ------------------------------------------------------------------------------------------------------- who is refused


class Strangers:
    """Clients that lack something."""

    def __init__(self, protected: Protected, folder: Path) -> None:
        self.protected = protected
        (folder / "other").mkdir()
        self.foreign = Authority(folder / "other")

    def security(self, what: str) -> ZooKeeperSecurity:
        """That of a client which has everything but this."""
        protected = self.protected
        authority = self.foreign if what == "another authority" else protected.authority
        own = () if what == "no certificate" else (str(protected.client_certificate), str(protected.client_key))
        context = client_context(str(authority.file), *own)
        user = None if what == "no user" else (USER, "wrong" if what == "another password" else USERS_PASSWORD)
        return ZooKeeperSecurity(None if what == "no tls" else lambda: context, user)


@pytest.fixture
def strangers(protected: Protected, tmp_path: Path) -> Strangers:
    return Strangers(protected, tmp_path)


@pytest.mark.parametrize(
    ("what", "start_s", "words"),
    [
        # All of this time passes, since a client tries again when TLS has failed. Java is slow at its first TLS.
        ("no tls", 2, "does not answer within .*: it wants TLS"),
        ("another authority", 2, "does not answer within .*: its certificate is not trusted: "),
        (
            "no certificate",
            2,
            "does not answer within .*: it ends TLS \\(.*\\): it may want a certificate of the client",
        ),
        # These end when the server has said so.
        ("no user", 60, "ZooKeeper wants a user: write user and password_file in "),
        (
            "another password",
            60,
            "ZooKeeper refuses the user 'bookkeeper' or the password: look at user and password_file in ",
        ),
    ],
)
def test_what_zookeeper_refuses_is_one_line(
    strangers: Strangers, secured: BookKeeperCluster, what: str, start_s: float, words: str
) -> None:
    security = strangers.security(what)
    text = (
        f'[clusters.one]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nstorage = "bookkeeper"\n'
        f'store = "zookeeper://{secured.zookeeper.secure_hosts}/refused"\n'
        '[clusters.one.zookeeper]\nuser = "bookkeeper"\npassword_file = "p"\n'
    )
    cluster = config.parse(text, Path("/x/clusters.toml")).cluster("one")
    client = make_client(secured.zookeeper.secure_hosts, kit.SESSION_S, logging.getLogger("magnetar.kazoo"), security)
    try:
        with pytest.raises(StorageError) as caught:
            Connecting(client, cluster, security, start_s=start_s, patience_s=1).connect()
    finally:
        client.stop()
        client.close()
    line = str(caught.value)
    assert "\n" not in line
    assert re.search(words, line), line
    assert "wrong" not in line


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no tls", ""),
        ("another authority", "its certificate is not trusted: "),
        ("no certificate", "it ends TLS \\(.*\\): it may want a certificate of the client"),
        ("no user", "it wants an authentication, and this client has none"),
        (
            "another password",
            "it refuses the user or the password: it does not answer the authentication sasl within 5 s",
        ),
    ],
)
def test_what_a_bookie_refuses_is_one_line(
    strangers: Strangers, secured: BookKeeperCluster, what: str, words: str
) -> None:
    security = for_bookies(strangers.security(what))
    bookie = BookieId(secured.bookies[0].id)

    async def test() -> str:
        async with asyncio.timeout(100):
            connections = Connections(asyncio.get_running_loop(), address_of, security=security)
            try:
                assert isinstance(await connections.ask(bookie, GetBookieInfo()), BookieInfo)
            except ConnectionError:
                return connections.problem([bookie])
            finally:
                await connections.close()
            return ""

    line = asyncio.run(test())
    assert "\n" not in line
    assert re.search(words, line), line
    assert bool(line) is bool(words)
