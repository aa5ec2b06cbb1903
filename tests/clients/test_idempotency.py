"""Idempotency keys with the official client: one message a key, whoever sends it, through kills and switching."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually, path_of
from tests.support.receiving import everything
from tests.support.replicator import Replicator

KEY = "request"
POLICY = {"property": KEY, "windowSeconds": 3600}


def switch(broker: BrokerProcess, topic: str, **policy: Any) -> None:
    """Give a topic keys, and wait until it has them."""
    broker.rest("POST", f"/geo/v1/persistent/public/default/{topic}/idempotency", {**POLICY, **policy})
    eventually(lambda: figures(broker, topic)["status"] == "Enabled", what="idempotency keys")


def figures(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    return dict(broker.rest("GET", path_of(topic) + "/stats")["idempotency"] or {"status": "off"})


def part_number(one: pulsar.MessageId) -> tuple[int, int]:
    return one.ledger_id(), one.entry_id()


def test_a_key_is_stored_once_whoever_sends_it(own_broker: BrokerProcess) -> None:
    own_broker.rest("PUT", path_of("once"))
    switch(own_broker, "once")
    client = connect(own_broker)
    one, other = (client.create_producer("once", batching_enabled=False) for _ in range(2))
    first = one.send(b"1", properties={KEY: "a"})
    assert part_number(other.send(b"again", properties={KEY: "a"})) == part_number(first)
    assert part_number(one.send(b"again", properties={KEY: "a"})) == part_number(first)
    other.send(b"2", properties={KEY: "b"})
    one.send(b"no key", properties={"x": "a"})
    one.send(b"no key")
    assert everything(client, "once") == [b"1", b"2", b"no key", b"no key"]
    found = figures(own_broker, "once")
    assert (found["keys"], found["duplicates"], found["property"]) == (2, 2, KEY)
    client.close()


def test_batches_lose_what_was_stored(own_broker: BrokerProcess) -> None:
    own_broker.rest("PUT", path_of("batches"))
    switch(own_broker, "batches")
    client = connect(own_broker)
    told: list[pulsar.Result] = []
    for compression in (pulsar.CompressionType.NONE, pulsar.CompressionType.ZLib):
        producer = client.create_producer(
            "batches",
            batching_enabled=True,
            batching_max_publish_delay_ms=2000,
            batching_max_messages=100,
            compression_type=compression,
        )
        for keys in ("abc", "bxaycd", "abcd"):
            for key in keys:
                producer.send_async(
                    key.encode(), lambda result, _id: told.append(result), properties={KEY: f"{compression}-{key}"}
                )
            producer.flush()
        producer.close()
    eventually(lambda: len(told) == 26, what="answers")
    assert set(told) == {pulsar.Result.Ok}
    assert b"".join(everything(client, "batches")) == b"abcxyd" * 2
    client.close()


def test_switched_on_and_off_at_run_time(own_broker: BrokerProcess) -> None:
    """What was published before counts: there is no window in which a key passes twice."""
    client = connect(own_broker)
    producer = client.create_producer("later", batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n, properties={KEY: str(n)})
    switch(own_broker, "later")
    producer.send(b"again", properties={KEY: "4"})
    # Another property is another set of keys; without one, everything is stored.
    switch(own_broker, "later", property="other")
    producer.send(b"10", properties={KEY: "4"})
    own_broker.rest("POST", "/geo/v1/namespaces/public/default/idempotency", POLICY)
    own_broker.rest("DELETE", "/geo/v1/persistent/public/default/later/idempotency")
    eventually(lambda: figures(own_broker, "later").get("property") == KEY, what="the namespace's keys")
    eventually(lambda: figures(own_broker, "later")["status"] == "Enabled", what="the namespace's keys")
    producer.send(b"again", properties={KEY: "4"})
    own_broker.rest("POST", "/geo/v1/persistent/public/default/later/idempotency", {"enabled": False})
    producer.send(b"11", properties={KEY: "4"})
    assert everything(client, "later") == [b"%d" % n for n in range(12)]
    assert figures(own_broker, "later") == {"status": "off"}
    client.close()


def test_too_many_keys_and_a_window_that_ends(own_broker: BrokerProcess) -> None:
    own_broker.rest("PUT", path_of("few"))
    switch(own_broker, "few", keysMax=3)
    client = connect(own_broker)
    producer = client.create_producer("few", batching_enabled=False)
    for key in "abcd":
        producer.send(key.encode(), properties={KEY: key})
    producer.send(b"again", properties={KEY: "b"})
    producer.send(b"forgotten", properties={KEY: "a"})
    assert everything(client, "few") == [b"a", b"b", b"c", b"d", b"forgotten"]
    assert figures(own_broker, "few")["evicted"] == 2
    switch(own_broker, "few", windowSeconds=1)
    producer.send(b"new", properties={KEY: "n"})
    eventually(
        lambda: (
            producer.send(b"new", properties={KEY: "n"}).entry_id() > 0 and everything(client, "few").count(b"new") == 2
        ),
        what="the end of the window",
    )
    client.close()


def test_ten_kills_with_two_producers_and_one_outbox(own_broker: BrokerProcess) -> None:
    """Two producers send the same requests in random order through SIGKILLs: every request is stored once."""
    own_broker.rest("PUT", path_of("kills"))
    switch(own_broker, "kills")
    client = connect(own_broker)
    producers = [
        client.create_producer("kills", send_timeout_millis=0, block_if_queue_full=True, batching_enabled=batching)
        for batching in (True, False)
    ]
    rng, number = random.Random(4), 0
    answers: list[pulsar.Result] = []
    for _ in range(5):
        fresh = list(range(number, number + rng.randint(100, 400)))
        number += len(fresh)
        for producer in producers:
            for n in rng.sample(fresh, len(fresh)):
                producer.send_async(b"%d" % n, lambda result, _id: answers.append(result), properties={KEY: str(n)})
        own_broker.kill()
        own_broker.start()
    for producer in producers:
        producer.flush()
    assert sorted(map(int, everything(client, "kills"))) == list(range(number))
    eventually(lambda: len(answers) == 2 * number, what="an answer to each")
    assert set(answers) == {pulsar.Result.Ok}
    client.close()


def test_stored_keys_outlive_a_kill(own_broker: BrokerProcess) -> None:
    """After 20,000 entries the keys are stored: a start loads them, and reads of the log only what came after."""
    own_broker.rest("PUT", path_of("stored"))
    switch(own_broker, "stored")
    client = connect(own_broker)
    producer = client.create_producer(
        "stored", batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000, send_timeout_millis=0
    )
    for n in range(20_500):
        producer.send_async(b"", None, properties={KEY: str(n)})
    producer.flush()
    eventually(lambda: figures(own_broker, "stored")["storedUpTo"] != "-1:-1", what="stored keys")
    before = figures(own_broker, "stored")
    own_broker.kill()
    own_broker.start()
    first = producer.send(b"", properties={KEY: "0"})
    last = producer.send(b"", properties={KEY: "20499"})
    after = figures(own_broker, "stored")
    assert first.entry_id() == 0
    assert last.entry_id() > first.entry_id() or last.ledger_id() > first.ledger_id()
    assert [(one["keys"], one["storedUpTo"]) for one in (before, after)] == [(20_500, before["storedUpTo"])] * 2
    assert after["duplicates"] == 2
    # Switched off, nothing is left of them; switched on, the log is read anew, and may be stored before anybody looks.
    own_broker.rest("DELETE", "/geo/v1/persistent/public/default/stored/idempotency")
    producer.send(b"", properties={KEY: "0"})
    switch(own_broker, "stored")
    assert figures(own_broker, "stored")["storedUpTo"] != before["storedUpTo"]
    client.close()


def test_large_messages_in_chunks(own_broker: BrokerProcess) -> None:
    own_broker.rest("PUT", path_of("chunks"))
    switch(own_broker, "chunks")
    client = connect(own_broker)
    consumer = client.subscribe("chunks", "s")
    producer = client.create_producer("chunks", batching_enabled=False, chunking_enabled=True)
    large = [bytes([65 + n]) * 6_000_000 for n in range(2)]
    for n in (0, 0, 1, 0):
        producer.send(large[n], properties={KEY: str(n)})
    got = []
    for _ in large:
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        got.append(message.data())
    assert got == large
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()


def test_with_numbers_too(own_broker: BrokerProcess) -> None:
    """Both kinds of deduplication: neither stands in the way of the other."""
    own_broker.rest("PUT", path_of("both"))
    own_broker.rest("POST", path_of("both") + "/deduplicationEnabled", True)
    switch(own_broker, "both")
    client = connect(own_broker)
    producer = client.create_producer("both", producer_name="p", batching_enabled=False)
    first = producer.send(b"1", sequence_id=1, properties={KEY: "a"})
    assert part_number(producer.send(b"1", sequence_id=1, properties={KEY: "a"})) == part_number(first)
    assert part_number(producer.send(b"1", sequence_id=2, properties={KEY: "a"})) == part_number(first)
    assert part_number(producer.send(b"x", sequence_id=1, properties={KEY: "b"})) == (-1, -1)
    # A key that was only refused by its number is free.
    producer.send(b"2", sequence_id=3, properties={KEY: "b"})
    assert everything(client, "both") == [b"1", b"2"]
    client.close()


def test_a_key_of_a_megabyte(own_broker: BrokerProcess) -> None:
    """It is refused with a reason; the producer, its other messages and other producers go on."""
    own_broker.rest("PUT", path_of("large"))
    switch(own_broker, "large")
    client = connect(own_broker)
    producer, other = (client.create_producer("large", batching_enabled=False) for _ in range(2))
    told: list[pulsar.Result] = []
    for key in ("a", "k" * 1_000_000, "b", "k" * 1_025, "c", "k" * 1_024):
        producer.send_async(key[:1].encode(), lambda result, _id: told.append(result), properties={KEY: key})
    other.send(b"d", properties={KEY: "d"})
    eventually(lambda: len(told) == 6, what="answers")
    assert [result == pulsar.Result.Ok for result in told] == [True, False, True, False, True, True]
    assert sorted(everything(client, "large")) == [b"a", b"b", b"c", b"d", b"k"]
    assert figures(own_broker, "large")["keys"] == 5
    client.close()


# ---------------------------------------------------------------------------------------------------- across clusters


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[World, list[Replicator]]]:
    """Two clusters with the same policy, linked both ways."""
    world = World(tmp_path, ["a", "b"]).start()
    replicators = [Replicator(world, "a", "b"), Replicator(world, "b", "a")]
    for name in "ab":
        world[name].rest("POST", "/geo/v1/namespaces/public/default/idempotency", POLICY)
        with contextlib.suppress(HTTPError):  # the other one's link may have made it already
            world[name].rest("PUT", path_of("moving"))
    yield world, replicators
    for replicator in replicators:
        replicator.close()
    world.close()


def arrived(world: World, cluster: str, count: int) -> None:
    eventually(
        lambda: world[cluster].rest("GET", path_of("moving") + "/stats")["msgInCounter"] >= count,
        what=f"{count} messages",
    )


def test_an_outbox_that_is_sent_again_to_another_cluster(pair: tuple[World, list[Replicator]]) -> None:
    """What the link has brought counts, also after a kill: the client's outbox adds nothing but what is new."""
    world, _ = pair
    there, here = (connect(world[name]) for name in "ab")
    producer = there.create_producer("moving", batching_enabled=True, batching_max_messages=7)
    for n in range(50):
        producer.send_async(b"%d" % n, None, properties={KEY: str(n)})
    producer.flush()
    arrived(world, "b", 50)
    for kill in (False, True):
        if kill:
            world["b"].kill()
            world["b"].start()
        producer = here.create_producer("moving", batching_enabled=kill)
        for n in range(20, 60):
            producer.send_async(b"%d" % n, None, properties={KEY: str(n)})
        producer.flush()
        producer.close()
    assert sorted(map(int, everything(here, "moving"))) == list(range(60))
    arrived(world, "a", 60)
    assert sorted(map(int, everything(there, "moving"))) == list(range(60))
    assert [figures(world[name], "moving")["twice"] for name in "ab"] == [0, 0]
    there.close()
    here.close()


def test_of_what_two_clusters_accept_while_apart_one_stays(pair: tuple[World, list[Replicator]]) -> None:
    """The earlier one, everywhere; the other is withdrawn where nobody has it, and counted where somebody does."""
    world, replicators = pair
    clients = {name: connect(world[name]) for name in "ab"}
    takers = {name: clients[name].subscribe("moving", "taker") for name in "ab"}
    others = {name: clients[name].subscribe("moving", "idle", receiver_queue_size=1) for name in "ab"}
    for consumer in others.values():
        consumer.close()  # the subscription stays, and nobody is given anything
    for replicator in replicators:
        replicator.pause()
    for name in "ab":
        producer = clients[name].create_producer("moving", batching_enabled=False)
        for key in ("one", "two"):
            producer.send(f"{key} {name}".encode(), properties={KEY: key})
        producer.send(f"own {name}".encode(), properties={KEY: f"own of {name}"})
        for _ in range(3):
            takers[name].acknowledge(takers[name].receive(60_000))
        producer.close()
    for replicator in replicators:
        replicator.resume()
    left = [b"one a", b"own a", b"own b", b"two a"]
    for name in "ab":
        arrived(world, name, 6)
        assert sorted(everything(clients[name], "moving")) == left
        # From now on the key is known everywhere.
        producer = clients[name].create_producer("moving", batching_enabled=False)
        producer.send(b"again", properties={KEY: "two"})
        producer.close()
    # In a they came by the link, in b its taker had had them.
    found = [figures(world[name], "moving") for name in "ab"]
    assert [(one["withdrawn"], one["twice"], one["withdrawnInLog"]) for one in found] == [(2, 0, 2), (0, 2, 2)]
    assert takers["a"].receive(60_000).data() == b"own b"
    assert [takers["b"].receive(60_000).data() for _ in range(3)] == [b"one a", b"two a", b"own a"]
    for name in "ab":
        clients[name].close()
        world[name].kill()
        world[name].start()
        client = connect(world[name])
        assert sorted(everything(client, "moving")) == left
        eventually(lambda: figures(world[name], "moving")["status"] == "Enabled", what="idempotency keys")  # noqa: B023
        idle = client.subscribe("moving", "idle")
        assert sorted(idle.receive(60_000).data() for _ in range(4)) == left
        stats = world[name].rest("GET", path_of("moving") + "/stats")
        assert stats["subscriptions"]["idle"]["msgBacklog"] == 4
        assert stats["idempotency"]["withdrawnInLog"] == 2
        client.close()
