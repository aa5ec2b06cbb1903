"""A broker that waits, on real bookies: official clients that know only its address, REST, names, and a takeover in between."""

import http.client
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

from magnetar.wire import pulsar_pb2 as pb
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Publisher, connect, numbers
from tests.support.brokers import BrokerProcess, eventually, free_port
from tests.support.raw_client import raw

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def brokers(brokers: Brokers) -> Brokers:
    """Broker a serves, broker b waits."""
    return brokers.start()


class Row(pulsar.schema.Record):
    """What has a schema."""

    number = pulsar.schema.Integer()


class Answer:
    """An answer by HTTP, of which nothing is followed."""

    def __init__(self, broker: BrokerProcess, method: str, path: str, body: bytes = b"") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=20)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            self.status = response.status
            self.headers = response.headers
            self.body = response.read()
        finally:
            connection.close()

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


def consumed(consumer: pulsar.Consumer, count: int) -> list[int]:
    """The numbers in the next messages, which are acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        found.append(int(message.data()))
    return found


def test_clients_that_know_only_a_waiting_broker(brokers: Brokers) -> None:
    """Each kind of client works with `pulsar://b` while a serves, and goes on with it when b has taken over."""
    client = connect(brokers["b"].url)
    try:
        producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=0)
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        for number in range(10):
            producer.send(b"%d" % number)
        assert consumed(consumer, 10) == list(range(10))
        assert [int(reader.read_next(20_000).data()) for _ in range(10)] == list(range(10))
        assert client.get_topic_partitions(TOPIC) == [TOPIC]
        brokers["a"].rest("PUT", "/admin/v2/persistent/public/default/parts/partitions", 3)
        assert len(client.get_topic_partitions("persistent://public/default/parts")) == 3
        brokers["a"].kill()
        for number in range(10, 20):
            producer.send(b"%d" % number)
        brokers["b"].await_ready()
        missing = set(range(10, 20))
        while missing:  # acknowledgements of the broker's last moment may be lost, so former messages may come again
            missing.discard(consumed(consumer, 1)[0])
        assert [int(reader.read_next(20_000).data()) for _ in range(10)] == list(range(10, 20))
    finally:
        client.close()
    assert numbers(brokers["b"].url) == list(range(20))


def test_patterns_and_schemas_of_clients_that_know_only_a_waiting_broker(brokers: Brokers) -> None:
    """A subscription to a pattern asks for the topics of a namespace, and decoding for the schema of the writer."""
    client = connect(brokers["b"].url)
    try:
        row = pulsar.schema.AvroSchema(Row)
        producer = client.create_producer("persistent://public/default/rows", schema=row)
        consumer = client.subscribe(
            re.compile("persistent://public/default/ro.*"),
            "s",
            schema=row,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        producer.send(Row(number=7))
        assert consumer.receive(20_000).value().number == 7
    finally:
        client.close()


def test_credentials_and_listeners_of_clients_that_know_only_a_waiting_broker(
    cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The broker that serves checks the client itself; who is refused there, is refused at once."""
    secret = b"!" + bytes(range(65, 112))
    (tmp_path / "key").write_bytes(secret)
    (tmp_path / "key").chmod(0o600)

    def user(role: str) -> pulsar.Client:
        token = jwt.encode({"sub": role}, secret, algorithm="HS256")
        return connect(brokers["b"].url, authentication=pulsar.AuthenticationToken(token), listener_name="outside")

    def refusal(broker: str) -> str:
        """What a client with a wrong token gets."""
        client = connect(brokers[broker].url, 3, authentication=pulsar.AuthenticationToken("nonsense"))
        with pytest.raises(pulsar.PulsarException) as refused:
            client.create_producer(TOPIC)
        client.close()
        return type(refused.value).__name__

    brokers = Brokers(
        tmp_path,
        cluster,
        f"/magnetar/{request.node.name}",
        more=(
            f'[authentication]\nmethods = ["token"]\nsecret_key_files = ["{tmp_path}/key"]\n'
            '[authorization]\nsuperusers = ["admin"]\n'
        ),
        of_broker='advertised_listeners = {{ outside = "localhost:{port}" }}\n',
    )
    clients = [user("admin"), user("app")]
    try:
        brokers["a"].start()
        brokers.wait_in_line("b")
        producer = clients[0].create_producer(TOPIC, batching_enabled=False, send_timeout_millis=0)
        producer.send(b"0")
        with pytest.raises(pulsar.AuthorizationError):
            clients[1].create_producer(TOPIC)
        assert refusal("b") == refusal("a")
        brokers["a"].kill()
        producer.send(b"1")
        reader = clients[0].create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(20_000).data() for _ in range(2)] == [b"0", b"1"]
    finally:
        for client in clients:
            client.close()
        brokers.close()


def test_a_connection_to_a_waiting_broker_continues_when_that_serves(brokers: Brokers) -> None:
    """The look-up that it held is answered over it, and a producer opened."""
    with raw(brokers["b"]) as asking, raw(brokers["b"]) as idle:
        for one in (asking, idle):
            connected = one.handshake()
            assert connected is not None
            assert connected.type == pb.CONNECTED
        brokers["a"].kill()
        for request in (1, 2):
            asking.send(pb.BaseCommand(type=pb.LOOKUP, lookupTopic={"topic": TOPIC, "request_id": request}))
        for request in (1, 2):
            answer = asking.answer()
            assert answer is not None, "the broker closed the connection"
            found = answer.lookupTopicResponse
            assert (found.request_id, found.response) == (request, 1), "Connect"
            assert found.brokerServiceUrl == brokers["b"].url
        for number, one in enumerate((asking, idle)):
            producer = {"topic": TOPIC, "producer_id": number, "request_id": 3}
            one.send(pb.BaseCommand(type=pb.PRODUCER, producer=producer))
            opened = one.answer()
            assert opened is not None
            assert opened.type == pb.PRODUCER_SUCCESS


def test_clients_that_know_both(brokers: Brokers) -> None:
    publisher = Publisher(brokers.url)
    publisher.after(50)
    brokers["a"].kill()
    publisher.after(50)
    brokers["b"].await_ready()
    # The former one comes back, and waits: whatever address a client tries, it finds the broker that serves.
    brokers.wait_in_line("a")
    publisher.after(50)
    for _ in range(4):
        assert len(numbers(brokers.url)) >= 150
    assert len(numbers(brokers["a"].url)) >= 150
    publisher.close()


def test_rest_of_a_waiting_broker(brokers: Brokers) -> None:
    a, b = brokers["a"], brokers["b"]
    asked = "/admin/v2/persistent/public/default/a%2Fb/stats?x=1&y=%2F"
    answer = Answer(b, "GET", asked)
    assert (answer.status, answer.headers["Location"]) == (307, f"{a.web}{asked}")
    assert answer.json == {"reason": f"broker a serves, at {a.web}"}
    put = Answer(b, "PUT", "/admin/v2/persistent/public/default/made", b"")
    assert (put.status, put.headers["Location"]) == (307, f"{a.web}/admin/v2/persistent/public/default/made")
    # What a program that follows gets is the answer of the broker that serves.
    with urllib.request.urlopen(f"{b.web}/lookup/v2/topic/persistent/public/default/t", timeout=20) as found:
        assert json.load(found)["brokerUrl"] == a.url
    addresses = [f"127.0.0.1:{a.http_port}", f"127.0.0.1:{b.http_port}"]
    eventually(lambda: a.rest("GET", "/admin/v2/brokers/one") == addresses, what="the serving broker sees both")
    for path in ("/admin/v2/brokers", "/admin/v2/brokers/one"):
        assert Answer(b, "GET", path).json == addresses
    leader = {"brokerId": addresses[0], "serviceUrl": a.web}
    for one in (a, b):
        assert one.rest("GET", "/admin/v2/brokers/leaderBroker") == leader
        assert one.rest("GET", "/admin/v2/brokers/one/leaderBroker") == leader
    assert a.rest("GET", f"/admin/v2/brokers/one/{addresses[1]}/ownedNamespaces") == {}
    assert Answer(b, "GET", "/admin/v2/brokers/health").body == b"ok"
    state = f"broker b of cluster one waits to take over; broker a serves at {a.url}"
    for path in ("/admin/v2/brokers/ready", "/status.html"):
        unready = Answer(b, "GET", path)
        assert (unready.status, unready.headers["Retry-After"], unready.json) == (503, "2", {"reason": state})
    for one, ready in ((a, 1), (b, 0)):
        page = Answer(one, "GET", "/metrics").body.decode()
        assert 'magnetar_cluster_broker_serving{cluster="one",broker="a"} 1\n' in page
        assert 'magnetar_cluster_broker_serving{cluster="one",broker="b"} 0\n' in page
        assert f'magnetar_broker_ready{{cluster="one"}} {ready}' in page


def test_a_second_broker_of_one_name(brokers: Brokers, tmp_path: Path) -> None:
    """It ends with one line, and the first one goes on. One that was killed can start again at once."""
    other = tmp_path / "other"
    other.mkdir()
    text = brokers["b"].config.read_text()
    used = [brokers["b"].pulsar_port, brokers["b"].http_port]
    ports = [free_port(), free_port()]
    for before, after in zip(used, ports, strict=True):
        text = text.replace(f":{before}", f":{after}")
    (other / "clusters.toml").write_text(text)
    second = BrokerProcess(other / "clusters.toml", "one/b", *ports)
    second.launch()
    assert second.process is not None
    assert second.process.wait(60) == 1
    said = second.log.read_text()
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    assert f"another broker with the name b runs at {brokers['b'].url}; give each broker" in line
    assert Answer(brokers["b"], "GET", "/admin/v2/brokers/health").status == 200
    brokers["b"].kill()
    brokers["b"].log.unlink()
    brokers.wait_in_line("b")


def test_a_port_in_use_is_reported_at_the_start(brokers: Brokers, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "clusters.toml").write_text(brokers["b"].config.read_text())
    second = BrokerProcess(other / "clusters.toml", "one/b", brokers["b"].pulsar_port, brokers["b"].http_port)
    second.launch()
    assert second.process is not None
    assert second.process.wait(60) == 1
    assert f"cannot listen on 127.0.0.1:{brokers['b'].pulsar_port} (pulsar)" in second.log.read_text()
