"""clusters.toml: what it means, and the one line for everything that can be wrong in it."""

import ast
import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core import config, settings, tables
from magnetar.core.config import Config
from magnetar.core.errors import ConfigError
from magnetar.core.security import BookieSecurity, ZooKeeperSecurityConfig
from magnetar.core.settings import Address, LinkConfig
from magnetar.replication.acked_sets.machine import SET_BYTES_MAX
from magnetar.replication.acked_sets.pacer import MARKERS_PER_S_MAX

PATH = Path("/etc/magnetar/clusters.toml")
ONE = '[clusters.a]\npulsar = "127.0.0.1:6650"\nhttp = "127.0.0.1:8080"\n'
TWO = ONE + '[clusters.b]\npulsar = "127.0.0.1:6651"\nhttp = "127.0.0.1:8081"\n'

STORE = "zookeeper://z:2181/one"
BOOKKEEPER = f"storage = 'bookkeeper'\nstore = '{STORE}'\n"
LEDGERS = ONE + BOOKKEEPER
A_OF_TWO = f"[clusters.west]\n{BOOKKEEPER}[clusters.west.brokers.a]\npulsar = 'h:1'\nhttp = 'h:2'\n"
TWO_BROKERS = f"{A_OF_TWO}[clusters.west.brokers.b]\npulsar = 'h:3'\nhttp = 'h:4'\n"


def parse(text: str) -> Config:
    return config.parse(text, PATH)


def line_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{PATH}: ")
    return line.removeprefix(f"{PATH}: ")


def test_the_whole_file_of_the_contract() -> None:
    found = parse(
        """
        [magnetar]
        data_dir = "data"

        [clusters.us-west]
        pulsar = "127.0.0.1:6650"
        http = "127.0.0.1:8080"
        advertised = "host.example:6650"

        [clusters.us-east]
        pulsar = "127.0.0.1:6651"
        http = "127.0.0.1:8081"

        [clusters.eu-central]
        pulsar = "0.0.0.0:6650"
        http = "0.0.0.0:8080"
        advertised = "eu.example:6650"
        here = false

        [[links]]
        from = "us-west"
        to = "us-east"
        filter = "message_count = 1 and key is not null"

        [namespaces."public/default"]
        clusters = "all"

        [namespaces."shop/orders"]
        clusters = ["us-east", "us-west", "us-east"]
        replication_start = "latest"

        [replication]
        master = "spark://host:7077"
        token_file = "secret/link.token"
        [replication.spark]
        "spark.driver.memory" = "1g"
        "spark.executor.cores" = 2
        "spark.ui.enabled" = false

        [subscriptions]
        mode = "snapshot"
        snapshot_interval_ms = 1000
        snapshot_timeout_s = 30
        max_cached_snapshots = 30
        ack_sync_interval_ms = 100

        [deduplication]
        enabled = false

        [broker]
        fsync = "interval"
        """
    )
    assert found.data_dir == Path("/etc/magnetar/data")
    assert list(found.clusters) == ["us-west", "us-east", "eu-central"]
    assert found.cluster("us-west").service_url == "pulsar://host.example:6650"
    assert found.cluster("us-east").service_url == "pulsar://127.0.0.1:6651"
    assert found.cluster("eu-central").admin_url == "http://eu.example:8080"
    assert [cluster.name for cluster in found.local_clusters()] == ["us-west", "us-east"]
    assert found.links == (
        LinkConfig(source="us-west", target="us-east", filter="message_count = 1 and key is not null"),
    )
    assert found.namespaces["public/default"].clusters == ("us-west", "us-east", "eu-central")
    assert found.namespaces["shop/orders"].clusters == ("us-east", "us-west")
    assert found.namespaces["shop/orders"].replication_start == "latest"
    assert found.replication.master == "spark://host:7077"
    assert found.replication.token_file == Path("/etc/magnetar/secret/link.token")
    assert found.replication.spark == {
        "spark.driver.memory": "1g",
        "spark.executor.cores": "2",
        "spark.ui.enabled": "false",
    }
    assert (found.subscriptions.mode, found.broker.fsync) == ("snapshot", "interval")


def test_defaults() -> None:
    found = parse(TWO)
    assert [str(link) for link in found.links] == ["a:b", "b:a"]
    assert found.namespaces["public/default"].clusters == ("a", "b")
    assert found.replication.master == "local[2,4]"
    assert found.replication.token_file == Path("/etc/magnetar/data/link.token")
    assert found.cluster_dir("a") == Path("/etc/magnetar/data/a")
    assert found.broker == settings.BrokerConfig()
    assert (found.broker.fsync, found.broker.message_bytes_max) == ("always", 5 * 1024 * 1024)


def test_no_links_at_all_is_not_the_mesh() -> None:
    assert parse("links = []\n" + TWO).links == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["clusters: none", "[clusters.us-west]"]),
        ("x =", ["not TOML", "Invalid value"]),
        ("[clusters.a]\n[clusters.a]", ["not TOML"]),
        (ONE + "[brokr]", ["brokr: unknown key", "did you mean 'broker'?"]),
        (ONE + "[broker]\nfsnyc = 'always'", ["broker.fsnyc: unknown key", "did you mean 'fsync'?"]),
        (ONE + "[broker]\nfsync = 'sometimes'", ["broker.fsync", '"always", "interval", "never"', "'sometimes'"]),
        (ONE + "[broker]\nconnections_max = 0", ["broker.connections_max", ">= 1", "found 0"]),
        (ONE + "[broker]\nconnections_max = 'many'", ["broker.connections_max", "expected integer", "got string"]),
        (ONE + "[broker]\nauto_create_topics = 1", ["broker.auto_create_topics", "expected boolean"]),
        (ONE + "[broker]\nsegment_bytes = 1000", ["broker.segment_bytes", "message_bytes_max"]),
        (ONE + "[broker]\npending_publish_bytes_max = 9", ["broker.pending_publish_bytes_max", "message_bytes_max"]),
        (ONE + "[deduplication]\nenabled = 'yes'", ["deduplication.enabled", "expected boolean"]),
        (ONE + "[deduplication]\nproducers_max = 0", ["deduplication.producers_max", ">= 1"]),
        (ONE + "[subscriptions]\nmode = 'exakt'", ["subscriptions.mode", '"exact", "snapshot"']),
        (ONE + "[subscriptions]\nset_bytes_max = 0", ["subscriptions.set_bytes_max", ">= 1", "found 0"]),
        (
            ONE + "[subscriptions]\nset_bytes_max = '1M'",
            ["subscriptions.set_bytes_max", "expected integer", "got string"],
        ),
        (ONE + "[subscriptions]\nmarkers_per_s_max = -1", ["subscriptions.markers_per_s_max", ">= 0", "found -1"]),
        (ONE + "[subscriptions]\nmarkers_per_s_max = 1.5", ["subscriptions.markers_per_s_max", "expected integer"]),
        (
            ONE + "[subscriptions]\nmarkers_per_s = 5",
            ["subscriptions.markers_per_s:", "did you mean 'markers_per_s_max'?"],
        ),
        ("clusters = 3", ["clusters", "expected table", "found 3"]),
        ("[clusters]\na = 3", ["clusters.a", "must be a table"]),
        ("[clusters.a]\nhttp = '127.0.0.1:1'", ["clusters.a.pulsar: missing", 'pulsar = "127.0.0.1:6650"']),
        (ONE + "pulser = 1", ["clusters.a.pulser: unknown key", "'pulsar'"]),
        ("[clusters.A]", ["clusters.A", "lower-case"]),
        ('[clusters."a.b"]', ["lower-case"]),
        ('[clusters."a\\nb"]', ["lower-case"]),
        ("[clusters.a]\npulsar = 'x'\nhttp = 'y:1'", ["clusters.a.pulsar", "host:port"]),
        ("[clusters.a]\npulsar = 'x:0'\nhttp = 'y:1'", ["clusters.a.pulsar", "1 to 65535"]),
        ("[clusters.a]\npulsar = 'x:65536'\nhttp = 'y:1'", ["clusters.a.pulsar", "1 to 65535"]),
        ("[clusters.a]\npulsar = '0.0.0.0:5'\nhttp = 'y:1'", ["clusters.a.advertised", "missing"]),
        (ONE + "advertised = '0.0.0.0:5'", ["clusters.a.advertised", "clients cannot connect"]),
        ("[clusters.a]\npulsar = 'h:5'\nhttp = 'h:5'", ["clusters.a.http", "port 5", "clusters.a.pulsar"]),
        (
            ONE + "[clusters.b]\npulsar = 'localhost:8080'\nhttp = '127.0.0.1:9'",
            ["clusters.b.pulsar", "port 8080 is already taken by clusters.a.http"],
        ),
        (
            ONE + "[clusters.b]\npulsar = '[::]:6650'\nhttp = '127.0.0.1:9'\nadvertised = 'h:6650'",
            ["clusters.b.pulsar", "port 6650 is already taken"],
        ),
        (TWO + "[[links]]\nfrom = 'a'\nto = 'bb'", ["links[0].to", "no cluster 'bb'", "did you mean 'b'?"]),
        (TWO + "[[links]]\nfrom = 'x'\nto = 'b'", ["links[0].from", "no cluster 'x'", "there is a, b"]),
        (TWO + "[[links]]\nfrom = 'a'", ["links[0].to: missing"]),
        (TWO + "[[links]]\nfrom = 'a'\nto = 'a'", ["links[0].to", "itself"]),
        (TWO + "[[links]]\nfrom = 'a'\nto = 'b'\n[[links]]\nfrom = 'a'\nto = 'b'", ["links[1]", "second link"]),
        (TWO + "[links]\nfrom = 'a'", ["links", "expected array"]),
        (ONE + "[namespaces.public]", ['namespaces."public"', "tenant/namespace"]),
        (ONE + "[namespaces.'a/b']\nclusters = 'most'", ['namespaces."a/b".clusters']),
        (ONE + "[namespaces.'a/b']\nclusters = ['c']", ['namespaces."a/b".clusters', "no cluster 'c'"]),
        (ONE + "[namespaces.'a/b']\nclusters = []", ['namespaces."a/b".clusters', "empty"]),
        (ONE + "[replication]\nspark = 3", ["replication.spark", "expected table"]),
        (ONE + "[replication.spark]\na = [1]", ["replication.spark"]),
        (ONE + "[replication]\nmaster = ''", ["replication.master", "length >= 1"]),
        (ONE + "[magnetar]\ndata_dir = ''", ["magnetar.data_dir"]),
        (ONE + '[magnetar]\ndata_dir = "a\\u0000b"', ["zero byte"]),
        (ONE + "storage = 'disk'", ["clusters.a.storage", '"bookkeeper", "local"', "found 'disk'"]),
        (
            ONE + "storage = 'bookkeeper'",
            ["clusters.a.store: missing", 'write store = "zookeeper://host:2181/a"'],
        ),
        (ONE + f"store = '{STORE}'", ['clusters.a.store: only with storage = "bookkeeper"', "[metadata] store"]),
        (ONE + "storage = 'bookkeeper'\nstore = 'zookeeper://z/one'", ["clusters.a.store: ", "is not a path", "z/one"]),
        (ONE + "storage = 'bookkeeper'\nstore = 'zookeeper://z:1'", ["clusters.a.store: ", "is not a path"]),
        (ONE + "storage = 'bookkeeper'\nstore = 'z:1/one'", ["clusters.a.store: ", "is not a path"]),
        (ONE + "storage = 'bookkeeper'\nstore = \"zookeeper://z:1/a\\nb\"", ["clusters.a.store: ", "is not a path"]),
        (LEDGERS + "ack_quorum = 4", ["clusters.a.ack_quorum: 4 bookies of an ensemble of 3: write 3 or less"]),
        (LEDGERS + "ensemble = 1", ["clusters.a.ack_quorum: 2 bookies of an ensemble of 1: write 1 or less"]),
        (LEDGERS + "ensemble = 0", ["clusters.a.ensemble", ">= 1", "found 0"]),
        (LEDGERS + "ledgers = 'ledgers'", ["clusters.a.ledgers: 'ledgers'", 'write "/ledgers"']),
        (LEDGERS + "ledgers = '/'", ["clusters.a.ledgers: '/'", 'write "/ledgers"']),
        (LEDGERS + "ledgers = '/a/../b'", ["clusters.a.ledgers: '/a/../b'"]),
        (LEDGERS + "brokers = 'b'", ["clusters.a.brokers: expected table", "found 'b'"]),
        (f"[clusters.a]\n{BOOKKEEPER}brokers = {{}}", ["clusters.a.brokers: none", "[clusters.a.brokers.a]"]),
        (
            LEDGERS + "[clusters.a.brokers.b]\npulsar = 'h:1'\nhttp = 'h:2'",
            ["clusters.a.pulsar: the brokers of this cluster have it", "in [clusters.a.brokers.NAME]"],
        ),
        (
            f"[clusters.a]\nhere = false\n{BOOKKEEPER}[clusters.a.brokers.b]\npulsar = 'h:1'\nhttp = 'h:2'",
            ["clusters.a.here: the brokers of this cluster have it"],
        ),
        (
            TWO_BROKERS.replace(BOOKKEEPER, ""),
            [
                "clusters.west.brokers: 2 brokers cannot use one log in a folder",
                'storage = "bookkeeper" in [clusters.west]',
            ],
        ),
        (TWO_BROKERS.replace("brokers.b", "brokers.''"), ["clusters.west.brokers: ''", "1 to 64 letters"]),
        (TWO_BROKERS.replace("brokers.b", 'brokers."b\\nc"'), ["clusters.west.brokers: 'b\\nc'", "1 to 64 letters"]),
        (TWO_BROKERS.replace("brokers.b", "brokers.'..'"), ["clusters.west.brokers: '..' cannot be the name"]),
        (TWO_BROKERS.replace("brokers.b", 'brokers."b/c"'), ["clusters.west.brokers: 'b/c'", "1 to 64 letters"]),
        (TWO_BROKERS + "pulser = 1", ["clusters.west.brokers.b.pulser: unknown key", "'pulsar'"]),
        (TWO_BROKERS + "storage = 'local'", ["clusters.west.brokers.b.storage: unknown key"]),
        (TWO_BROKERS + "[clusters.west.brokers.c]\npulsar = 'h:5'", ["clusters.west.brokers.c.http: missing"]),
        (TWO_BROKERS.replace("h:3", "h"), ["clusters.west.brokers.b.pulsar: 'h' is not an address"]),
        (
            TWO_BROKERS.replace("h:3", "h:1"),
            ["clusters.west.brokers.b.pulsar: port 1 is already taken by clusters.west.brokers.a.pulsar"],
        ),
        (
            TWO_BROKERS + ONE.replace("127.0.0.1:8080", "h:4"),
            ["clusters.a.http: port 4 is already taken by clusters.west.brokers.b.http"],
        ),
        (
            TWO_BROKERS.replace("h:3", "0.0.0.0:3") + "here = false",
            ["clusters.west.brokers.b.advertised: missing"],
        ),
        (
            TWO_BROKERS + "pulsar_tls = 'h:5'",
            ["clusters.west.brokers.b.pulsar_tls: needs certificate_file and key_file in [tls]"],
        ),
        (
            "[tls]\ncertificate_file = 'c'\nkey_file = 'k'\n[replication]\ntls = true\n"
            + TWO_BROKERS
            + "pulsar_tls = 'h:5'",
            ["replication.tls: cluster west/a has no pulsar_tls"],
        ),
        (
            f"{LEDGERS}[clusters.b]\npulsar = 'h:5'\nhttp = 'h:6'\nstorage = 'bookkeeper'\nstore = 'zookeeper://y:1,z:2181/one/'",
            ["clusters.b.store: /one is already that of clusters.a"],
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, words: list[str]) -> None:
    line = line_of(text)
    for word in words:
        assert word in line


def test_clusters_on_bookkeeper() -> None:
    a = parse(LEDGERS).cluster("a")
    assert (a.storage, a.store, a.ledgers) == ("bookkeeper", STORE, "/ledgers")
    assert (a.ensemble, a.ack_quorum) == (3, 2)
    a = parse(LEDGERS + "ledgers = '/book/keeper'\nensemble = 5\nack_quorum = 5").cluster("a")
    assert (a.ledgers, a.ensemble, a.ack_quorum) == ("/book/keeper", 5, 5)
    # The same path is another one in another ZooKeeper.
    other = "[clusters.b]\npulsar = 'h:5'\nhttp = 'h:6'\nstorage = 'bookkeeper'\nstore = 'zookeeper://y:2181/one'"
    assert parse(LEDGERS + other).cluster("b").store == "zookeeper://y:2181/one"


def test_the_security_of_connections_to_storage() -> None:
    text = LEDGERS + (
        "[clusters.a.bookies]\ntls = true\nca_file = 'ca.pem'\nuser = 'bookkeeper'\npassword_file = '/run/password'\n"
        "[clusters.a.zookeeper]\ntls = true\ncertificate_file = 'c.pem'\nkey_file = 'k.pem'\nverify_hostname = false\n"
    )
    cluster = parse(text).cluster("a")
    assert cluster.bookies == BookieSecurity(
        tls=True, ca_file="/etc/magnetar/ca.pem", user="bookkeeper", password_file="/run/password"
    )
    assert cluster.zookeeper == ZooKeeperSecurityConfig(
        tls=True, certificate_file="/etc/magnetar/c.pem", key_file="/etc/magnetar/k.pem", verify_hostname=False
    )
    assert parse(LEDGERS).cluster("a").bookies == BookieSecurity()
    store = "[metadata]\nstore = 'zookeeper://z:2181/m'\n[metadata.zookeeper]\nuser = 'm'\npassword_file = 'p'\n"
    assert parse(ONE + store).metadata.zookeeper == ZooKeeperSecurityConfig(user="m", password_file="/etc/magnetar/p")


def test_nodes_are_for_their_user_alone_unless_there_is_none() -> None:
    user = {"user": "m", "password_file": "p"}
    for creator_only, keys in (
        (False, {}),
        (True, user),
        (False, user | {"access": "anyone"}),
        (True, {"access": "creator"}),
    ):
        assert ZooKeeperSecurityConfig(**keys).creator_only is creator_only


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("bookies]\ntls = true\nkey_file = 'k'", "bookies: certificate_file and key_file belong together: write both"),
        ("bookies]\nuser = 'u'", "bookies: user and password_file belong together: write both"),
        ("zookeeper]\npassword_file = 'p'", "zookeeper: user and password_file belong together: write both"),
        ("bookies]\nca_file = 'c'", "bookies.ca_file: only with TLS: write tls = true, too"),
        ("zookeeper]\nverify_hostname = false", "zookeeper.verify_hostname: only with TLS: write tls = true, too"),
        ("bookies]\npassword = 'p'", "bookies.password: unknown key: did you mean 'password_file'?"),
        ("zookeeper]\naccess = 'creator'", 'zookeeper.access: "creator" needs a user, or a certificate'),
        ("zookeeper]\naccess = 'me'", 'zookeeper.access: expected one of "anyone", "auto", "creator" (found \'me\')'),
        (
            "zookeeper]\nuser = 'a:b'\npassword_file = 'p'\nauthentication = 'digest'",
            "zookeeper.user: 'a:b': a colon cannot be in the name of a user with \"digest\"",
        ),
        (
            "zookeeper]\nuser = \"a\\nb\"\npassword_file = 'p'",
            "zookeeper.user: 'a\\nb' has characters that cannot be printed",
        ),
    ],
)
def test_wrong_security_of_connections_to_storage_is_one_line(table: str, line: str) -> None:
    assert line_of(f"{LEDGERS}[clusters.a.{table}\n").startswith(f"clusters.a.{line}")


def test_security_of_connections_that_there_are_not_is_one_line() -> None:
    assert line_of(f"{ONE}[clusters.a.bookies]\ntls = true\n") == 'clusters.a.bookies: only with storage = "bookkeeper"'
    assert line_of(f"{ONE}[metadata.zookeeper]\ntls = true\n").startswith("metadata.zookeeper: only with store = ")


def test_a_cluster_of_several_brokers() -> None:
    found = parse(
        TWO_BROKERS
        + "https = 'h:7'\nadvertised = 'outside:3'\nhere = false\nadvertised_listeners = {near = 'n:9'}\n"
        + "[clusters.west.brokers.'rack-2.c']\npulsar = '[::1]:5'\nhttp = '[::1]:6'"
    )
    west = found.cluster("west")
    assert [broker.name for broker in west.brokers] == ["a", "b", "rack-2.c"]
    assert west.titles() == ["west/a", "west/b", "west/rack-2.c"]
    assert [broker.name for broker in west.local_brokers()] == ["a", "rack-2.c"]
    assert west.service_url == "pulsar://h:1,outside:3,[::1]:5"
    assert (west.web_url, west.web_url_tls) == ("http://h:2,h:4,[::1]:6", "https://h:7")
    assert west.admin_urls == ("http://h:2", "https://h:7", "http://[::1]:6")
    assert west.broker("b").listener_urls() == {"near": ("pulsar://n:9", "")}
    assert found.link_addresses("west").order() == ("h:1", "outside:3", "[::1]:5")
    assert found.named_broker("west/b") == (west, west.broker("b"))


def test_a_cluster_that_names_no_brokers_has_one_that_is_called_a() -> None:
    found = parse(ONE)
    cluster = found.cluster("a")
    assert found.named_broker("a") == found.named_broker("a/a") == (cluster, cluster.broker(settings.ONLY_BROKER))
    assert (cluster.title(cluster.broker("")), cluster.admin_urls) == ("a", ("http://127.0.0.1:8080",))
    assert cluster.service_url == "pulsar://127.0.0.1:6650"
    named = parse(ONE.replace("[clusters.a]", "[clusters.a.brokers.a]"))
    assert named.clusters == found.clusters


def test_a_broker_is_named_with_its_cluster() -> None:
    found = parse(TWO_BROKERS + ONE)
    for name, words in (
        ("west", "cluster west has 2 brokers: name one of them: west/a, west/b"),
        ("west/", "'west/' names no broker: write one of west/a, west/b"),
        ("west/c", "cluster west has no broker 'c': there is a, b"),
        ("west/a/b", "cluster west has no broker 'a/b': there is a, b"),
        ("a/b", "cluster a has no broker 'b': there is a"),
        ("wets/a", "no cluster 'wets': did you mean 'west'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            found.named_broker(name)
        assert str(caught.value) == f"{PATH}: {words}"


def test_too_many_brokers() -> None:
    def brokers(count: int) -> str:
        return f"[clusters.a]\n{BOOKKEEPER}" + "".join(
            f"[clusters.a.brokers.b{n}]\npulsar='h:{2 * n + 1}'\nhttp='h:{2 * n + 2}'\n" for n in range(count)
        )

    assert len(parse(brokers(config.BROKERS_MAX)).cluster("a").brokers) == config.BROKERS_MAX
    assert "clusters.a.brokers: 17 of them; at most 16" in line_of(brokers(config.BROKERS_MAX + 1))


@given(st.lists(st.integers(1, 3), max_size=20), st.integers(1, 16))
def test_every_broker_is_found_by_its_title(others: list[int], count: int) -> None:
    """And no two of a cluster have the same one."""
    text = f"[clusters.a]\n{BOOKKEEPER}"
    for number in range(count):
        extra = others[number] if number < len(others) else 0
        text += f"[clusters.a.brokers.b{number}]\npulsar = 'h{extra}:{2 * number + 1}'\nhttp = 'h{extra}:{2 * number + 2}'\n"
    found = parse(text)
    cluster = found.cluster("a")
    titles = cluster.titles()
    assert len(set(titles)) == count
    assert tuple(found.named_broker(title)[1] for title in titles) == cluster.brokers
    assert cluster.service_url == "pulsar://" + str(found.link_addresses("a"))


def test_too_many_clusters() -> None:
    text = "".join(f"[clusters.c{n}]\npulsar='h:{2 * n + 1}'\nhttp='h:{2 * n + 2}'\n" for n in range(65))
    assert "at most 64" in line_of(text)


def test_ports_of_different_machines_may_be_the_same() -> None:
    found = parse(
        "[clusters.a]\npulsar='one:6650'\nhttp='one:8080'\nhere=false\n"
        "[clusters.b]\npulsar='two:6650'\nhttp='two:8080'\nhere=false\n"
        "[clusters.c]\npulsar='0.0.0.0:6650'\nhttp='0.0.0.0:8080'\nadvertised='three:6650'\n"
        "[clusters.d]\npulsar='0.0.0.0:6650'\nhttp='0.0.0.0:8080'\nadvertised='four:6650'\nhere=false\n"
        "[clusters.e]\npulsar='0.0.0.0:6650'\nhttp='0.0.0.0:8080'\nadvertised='five:6650'\nhere=false\n"
    )
    assert len(found.clusters) == 5


def test_two_clusters_of_another_machine_cannot_have_one_port() -> None:
    text = "".join(
        f"[clusters.{name}]\npulsar='0.0.0.0:{port}'\nhttp='0.0.0.0:8080'\nadvertised='four:{port}'\nhere=false\n"
        for name, port in (("a", 6650), ("b", 6651))
    )
    assert "clusters.b.http: port 8080 is already taken by clusters.a.http" in line_of(text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        config.load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        config.load(tmp_path)
    path = tmp_path / "clusters.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="byte 0 is not UTF-8"):
        config.load(path)
    path.write_bytes(b"#" * (config.FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        config.load(path)
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply|not TOML"):
        config.load(path)
    path.write_text(ONE + "[broker]\nsegment_bytes = " + "9" * 5000)
    with pytest.raises(
        ConfigError, match=r"clusters\.toml: not TOML that can be read: a number has thousands of digits"
    ):
        config.load(path)
    for key in ("broker.segment_bytes", "replication.spark", "magnetar"):
        path.write_text(f"{key} = 0x{'f' * 5000}\n" + ONE)
        with pytest.raises(ConfigError, match=rf"clusters\.toml: {key}: .*found a number with thousands of digits"):
            config.load(path)
    path.write_text('magnetar.data_dir = "~nobody-of-this-name/x"\n' + ONE)
    with pytest.raises(
        ConfigError, match=r"path '~nobody-of-this-name/x': no user of this machine has that home directory"
    ):
        config.load(path)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_files_of_other_editors(tmp_path: Path, mark: bytes, ends: str) -> None:
    path = tmp_path / "clusters.toml"
    path.write_bytes(mark + ONE.replace("\n", ends).encode())
    assert config.load(path).clusters == config.parse(ONE, path).clusters


def test_a_relative_path_is_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clusters.toml").write_text(ONE)
    monkeypatch.chdir(tmp_path)
    found = config.load(Path("clusters.toml"))
    assert found.path == tmp_path / "clusters.toml"
    assert found.data_dir == tmp_path / "data"


def test_built_in(tmp_path: Path) -> None:
    found = config.builtin(tmp_path / "d")
    assert list(found.clusters) == ["us-west", "us-east", "eu-central"]
    assert len(found.links) == 6
    assert found.data_dir == tmp_path / "d"
    assert found.replication.token_file == tmp_path / "d" / "link.token"
    assert "built-in" in found.source


def test_one_alone(tmp_path: Path) -> None:
    found = config.single("solo", tmp_path, 1111, 2222)
    assert found.links == ()
    assert found.cluster("solo").broker("").pulsar == Address("127.0.0.1", 1111)
    with pytest.raises(ConfigError, match="already taken"):
        config.single("solo", tmp_path, 1111, 1111)


def test_unknown_names_are_explained() -> None:
    found = parse(TWO)
    with pytest.raises(ConfigError, match="no cluster 'c': there is a, b"):
        found.cluster("c")
    with pytest.raises(ConfigError, match="no link 'a:c': did you mean"):
        found.link("a:c")


@pytest.mark.parametrize("text", ["h:1", "127.0.0.1:65535", "[::1]:80", "host.example:6650"])
def test_addresses(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":1",
        "h:",
        "h",
        "::1:80",
        "h:1x",
        "h:٣",
        "h h:1",
        "h/x:1",
        "h:-1",
        "[]:1",
        "a..b:1",
        "x" * 64 + ":1",
        "ü.\ud800:1",
    ],
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_explained_in_one_line(text: str) -> None:
    for whole in (text, ONE + text):
        try:
            parse(whole)
        except ConfigError as error:
            assert "\n" not in str(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    ["magnetar", "clusters", "links", "namespaces", "replication", "subscriptions", "deduplication", "broker", "x"]
)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_tables_are_read_or_explained_in_one_line(tables: dict[str, object]) -> None:
    whole = {"clusters": {"a": {"pulsar": "h:1", "http": "h:2"}}} | tables
    try:
        config._build(whole, PATH)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_every_key_of_a_broker_is_read_somewhere() -> None:
    package = Path(inspect.getfile(config)).parents[1]
    read = {
        node.attr
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for struct in (settings.BrokerConfig, settings.ReplicationLimits):
        assert [key for key in tables.keys(struct) if key not in read] == []


def test_limits_of_the_pipeline() -> None:
    found = parse(TWO + "[replication.limits]\nwindow_bytes = 1000\nprogress_ms = 3_000\n").replication.limits
    assert (found.window_bytes, found.progress_ms, found.lease_ms) == (1000, 3000, 10_000)
    assert parse(TWO).replication.limits == settings.ReplicationLimits()
    assert "replication.limits" in line_of(TWO + "[replication.limits]\nwindow_byte = 1\n")
    assert "lease_ms" in line_of(TWO + "[replication.limits]\nlease_ms = 60_001\n")


def test_limits_of_replicated_subscriptions() -> None:
    found = parse(ONE + "[subscriptions]\nset_bytes_max = 1000\nmarkers_per_s_max = 0\n").subscriptions
    assert (found.set_bytes_max, found.markers_per_s_max, found.ack_sync_interval_ms) == (1000, 0, 100)
    unset = parse(ONE).subscriptions
    # The machine's own defaults are those of whoever makes one without a file.
    assert (unset.set_bytes_max, unset.markers_per_s_max) == (SET_BYTES_MAX, MARKERS_PER_S_MAX)


def test_every_limit_has_its_reason() -> None:
    for struct in (
        settings.BrokerConfig,
        settings.ReplicationLimits,
        settings.SubscriptionsConfig,
        settings.DeduplicationConfig,
        BookieSecurity,
        ZooKeeperSecurityConfig,
    ):
        body = ast.parse(inspect.getsource(struct)).body[0]
        assert isinstance(body, ast.ClassDef)
        fields = [node for node in body.body if isinstance(node, ast.AnnAssign)]
        texts = [node for node in body.body[1:] if isinstance(node, ast.Expr)]
        if struct is not settings.SubscriptionsConfig:
            assert len(texts) == len(fields)
