"""A broker that keeps its metadata in a real ZooKeeper: started again, through a restart of it."""

from pathlib import Path

from tests.clients.conftest import connect
from tests.support.brokers import World
from tests.support.zookeeper import ZooKeeper


def test_a_broker_over_zookeeper(tmp_path: Path) -> None:
    server = ZooKeeper(tmp_path)
    world = World(tmp_path, ["solo"], f'[metadata]\nstore = "zookeeper://{server.hosts}/magnetar"\n').start()
    broker = world["solo"]
    client = connect(broker)
    topic = "persistent://public/default/t"
    try:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"%d" % number)
        consumer.close()
        broker.rest("POST", "/admin/v2/persistent/public/default/t/subscription/s/skip/10")
        broker.rest("POST", "/admin/v2/namespaces/public/default/maxProducersPerTopic", 5)
        client.close()
        broker.stop()
        broker.start()
        assert not (tmp_path / "data" / "solo" / "meta.sqlite").exists()
        assert broker.rest("GET", "/admin/v2/namespaces/public/default/maxProducersPerTopic") == 5
        client = connect(broker)
        consumer = client.subscribe(topic, "s")
        assert [consumer.receive(60_000).data() for _ in range(10)] == [b"%d" % number for number in range(10, 20)]
        server.kill()
        server.start()
        broker.rest("POST", "/admin/v2/namespaces/public/default/maxProducersPerTopic", 6)
        assert broker.rest("GET", "/admin/v2/namespaces/public/default/maxProducersPerTopic") == 6
    finally:
        client.close()
        world.close()
        server.kill()
