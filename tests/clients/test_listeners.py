"""Listeners by name: a client that asks for one is told that one's address."""

from pathlib import Path

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import World


def test_clients_are_told_the_address_of_the_listener_that_they_name(tmp_path: Path) -> None:
    world = World(tmp_path, ["a", "b"])
    # So that it shows where a client went: the listener's address is that of another broker.
    elsewhere = world["b"].url.removeprefix("pulsar://")
    with world.config.open("a") as file:
        file.write(f'\n[clusters.a.advertised_listeners]\noutside = "{elsewhere}"\n')
    world.start()
    try:
        client = pulsar.Client(world["a"].url, listener_name="outside", operation_timeout_seconds=20)
        client.create_producer("named").send(b"x")
        client.close()
        there = connect(world["b"])
        consumer = there.subscribe("named", "s", initial_position=pulsar.InitialPosition.Earliest)
        assert consumer.receive(60_000).data() == b"x"
        there.close()
        path = "/lookup/v2/topic/persistent/public/default/named"
        assert world["a"].rest("GET", f"{path}?listenerName=outside")["brokerUrl"] == world["b"].url
        assert world["a"].rest("GET", path)["brokerUrl"] == world["a"].url
        unknown = pulsar.Client(world["a"].url, listener_name="nowhere", operation_timeout_seconds=20)
        with pytest.raises(pulsar.NotAllowedError):
            unknown.create_producer("named")
        unknown.close()
    finally:
        world.close()
