"""Publisher deduplication with the official client: what is sent again is stored once, through kills, switching and moving."""

import contextlib
import io
import random
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar import cli
from magnetar.broker.publish.sequence_numbers import SEQUENCE_TAKEN_MAX
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually, path_of
from tests.support.receiving import WAIT_MS, everything
from tests.support.replicator import Replicator

ON = "[deduplication]\nenabled = true\n"


@pytest.fixture
def deduplicating(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with deduplication on for every topic."""
    world = World(tmp_path, ["solo"], ON).start()
    yield world["solo"]
    world.close()


def status(broker: BrokerProcess, topic: str) -> str:
    return str(broker.rest("GET", path_of(topic) + "/stats")["deduplicationStatus"])


def test_a_number_is_stored_once(deduplicating: BrokerProcess) -> None:
    client = connect(deduplicating)
    producer = client.create_producer("once", producer_name="p", initial_sequence_id=0, batching_enabled=False)
    ids = [producer.send(b"%d" % n, sequence_id=n) for n in (3, 7, 7, 5, 8)]
    assert [(one.ledger_id(), one.entry_id()) == (-1, -1) for one in ids] == [False, False, True, True, False]
    producer.close()
    # A client that comes back is told where it stopped, and goes on behind it.
    again = client.create_producer("once", producer_name="p", batching_enabled=False)
    assert again.last_sequence_id() == 8
    again.send(b"next")
    # Numbers belong to a name.
    client.create_producer("once", producer_name="other", batching_enabled=False).send(b"other", sequence_id=3)
    assert everything(client, "once") == [b"3", b"7", b"8", b"next", b"other"]
    stats = deduplicating.rest("GET", path_of("once") + "/internalStats")["cursors"]["pulsar.dedup"]
    assert stats["properties"] == {"p": 9, "other": 3}
    client.close()


def test_who_finds_its_name_used_up_goes_on_when_an_operator_says_so(tmp_path: Path) -> None:
    """The way out, as docs/deduplication.md has it."""
    page = (Path(__file__).parents[2] / "docs" / "deduplication.md").read_text()
    (block,) = [one for one in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "forget-producer" in one]
    world = World(tmp_path, ["solo"], ON).start()
    try:
        stranger, owner = connect(world["solo"]), connect(world["solo"])
        taken = stranger.create_producer("orders", producer_name="orders-importer", batching_enabled=False)
        taken.send(b"mine now", sequence_id=SEQUENCE_TAKEN_MAX)
        stranger.close()
        producer = owner.create_producer("orders", producer_name="orders-importer", batching_enabled=False)
        assert producer.send(b"lost", sequence_id=6).ledger_id() == -1
        said = []
        for line in block.strip().splitlines():
            out = io.StringIO()
            with contextlib.chdir(world.folder), contextlib.redirect_stdout(out):
                assert cli.run(line.split()[1:]) == 0, line
            said.append(out.getvalue())
        assert f"{SEQUENCE_TAKEN_MAX:,}" in said[0] and "orders-importer" in said[1]
        assert producer.send(b"stored", sequence_id=7).ledger_id() >= 0
        assert everything(owner, "orders") == [b"mine now", b"stored"]
        owner.close()
    finally:
        world.close()


def test_batches_are_told_to_their_end(deduplicating: BrokerProcess) -> None:
    client = connect(deduplicating)
    producer = client.create_producer("batches", producer_name="p", batching_max_publish_delay_ms=50)
    for n in range(10):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    producer.close()
    again = client.create_producer("batches", producer_name="p")
    assert again.last_sequence_id() == 9
    client.close()


def test_batches_by_key_are_all_stored(deduplicating: BrokerProcess) -> None:
    """A flush of ids 0 to 19 with 17 keys: the batch of 0 and 17 comes first, and that of 1 and 18 after it."""
    client = connect(deduplicating)
    for kept in (False, True):
        if kept:  # the numbers come from the log, after a crash
            deduplicating.kill()
            deduplicating.start()
        topic = f"by-key-{kept}"
        producer = client.create_producer(
            topic,
            producer_name="p",
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=200,
        )
        for n in range(20):
            producer.send_async(b"%d" % n, None, partition_key=str(n % 17))
        producer.flush()
        assert sorted(int(data) for data in everything(client, topic)) == list(range(20))
        producer.close()
        again = client.create_producer(topic, producer_name="p")
        assert again.last_sequence_id() >= 16, "the last batch has only 16"
        again.close()
    client.close()


def test_ten_kills_with_retries_store_every_message_once(deduplicating: BrokerProcess) -> None:
    """The client sends again what was not answered; without deduplication that is stored twice now and then.

    The first message is answered before the first kill: a C++ client that was never answered begins its numbers anew when
    it reconnects, beside those of what it still has to send (docs/deduplication.md).
    """
    client = connect(deduplicating)
    producer = client.create_producer(
        "kills", producer_name="p", batching_max_messages=7, block_if_queue_full=True, send_timeout_millis=0
    )
    producer.send(b"0")
    number, rng = 1, random.Random(5)
    for _ in range(10):
        for _ in range(rng.randint(100, 900)):
            producer.send_async(b"%d" % number, None)
            number += 1
        deduplicating.kill()
        deduplicating.start()
    producer.flush()
    assert everything(client, "kills") == [b"%d" % n for n in range(number)]
    client.close()


def test_large_messages_in_chunks_through_kills(deduplicating: BrokerProcess) -> None:
    """The consumer comes when all is stored: a C++ client that has some chunks of a message when its connection breaks gets the
    first one again, takes it for out of order and drops the whole message until it is redelivered.
    """
    client = connect(deduplicating)
    client.subscribe("chunks", "s").close()
    producer = client.create_producer(
        "chunks", producer_name="p", batching_enabled=False, chunking_enabled=True, send_timeout_millis=0
    )
    large = [bytes([65 + n]) * (6_000_000 + n) for n in range(6)]
    producer.send(large[0])
    for n, data in enumerate(large[1:]):
        producer.send_async(data, None)
        if n in (1, 3):
            deduplicating.kill()
            deduplicating.start()
    producer.flush()
    consumer = client.subscribe("chunks", "s")
    got = []
    for _ in large:
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        got.append(message.data())
    assert [(data[:1], len(data)) for data in got] == [(data[:1], len(data)) for data in large]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()


def test_large_and_small_messages_of_one_topic_through_kills(deduplicating: BrokerProcess) -> None:
    """They go by two lanes of the log (`runtime.log.lanes`), beside another topic's small ones: each is stored once, in order."""
    client = connect(deduplicating)
    rng = random.Random(7)
    sent: dict[str, list[bytes]] = {"mixed": [], "small": []}
    producers = {
        topic: client.create_producer(
            topic, producer_name="p", batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0
        )
        for topic in sent
    }

    def data(topic: str) -> bytes:
        size = rng.choice((10, 300_000, 1_000_000)) if topic == "mixed" else 10
        return b"%06d" % len(sent[topic]) + bytes(size)

    for topic, producer in producers.items():
        sent[topic].append(data(topic))
        producer.send(sent[topic][-1])
    for _ in range(4):
        for _ in range(rng.randint(10, 40)):
            topic = rng.choice(("mixed", "small"))
            sent[topic].append(data(topic))
            producers[topic].send_async(sent[topic][-1], None)
        deduplicating.kill()
        deduplicating.start()
    for producer in producers.values():
        producer.flush()
    for topic, all_of_it in sent.items():
        assert [(each[:6], len(each)) for each in everything(client, topic)] == [
            (each[:6], len(each)) for each in all_of_it
        ]
    client.close()


def test_switched_on_and_off_at_run_time(own_broker: BrokerProcess) -> None:
    """What was published before it was switched on counts: there is no window."""
    client = connect(own_broker)
    producer = client.create_producer("later", producer_name="p", batching_enabled=False)
    for n in range(20):
        producer.send(b"%d" % n, sequence_id=n)
    assert status(own_broker, "later") == "Disabled"
    own_broker.rest("POST", path_of("later") + "/deduplicationEnabled", True)
    eventually(lambda: status(own_broker, "later") == "Enabled", what="deduplication enabled")
    assert producer.send(b"again", sequence_id=19).entry_id() == -1
    producer.send(b"20", sequence_id=20)
    own_broker.rest("DELETE", path_of("later") + "/deduplicationEnabled")
    own_broker.rest("POST", "/admin/v2/namespaces/public/default/deduplication", True)
    assert producer.send(b"again", sequence_id=20).entry_id() == -1
    # A topic's own setting is stronger than its namespace's.
    own_broker.rest("POST", path_of("later") + "/deduplicationEnabled", False)
    assert status(own_broker, "later") == "Disabled"
    assert "pulsar.dedup" not in own_broker.rest("GET", path_of("later") + "/internalStats")["cursors"]
    producer.send(b"twice", sequence_id=20)
    assert everything(client, "later") == [b"%d" % n for n in range(21)] + [b"twice"]
    client.close()


def test_numbers_outlive_a_clean_stop_and_retention(deduplicating: BrokerProcess) -> None:
    client = connect(deduplicating)
    producer = client.create_producer("kept", producer_name="p", batching_enabled=False)
    for n in range(5):
        producer.send(b"%d" % n)
    client.close()
    deduplicating.stop()
    deduplicating.start()
    client = connect(deduplicating)
    again = client.create_producer("kept", producer_name="p", batching_enabled=False)
    assert again.last_sequence_id() == 4
    assert again.send(b"old", sequence_id=2).entry_id() == -1
    client.close()


def test_a_partitioned_topic_has_one_setting(own_broker: BrokerProcess) -> None:
    own_broker.rest("PUT", path_of("parts") + "/partitions", 3)
    own_broker.rest("POST", path_of("parts") + "/deduplicationEnabled", True)
    assert own_broker.rest("GET", path_of("parts-partition-1") + "/deduplicationEnabled") is True
    eventually(lambda: status(own_broker, "parts-partition-2") == "Enabled", what="deduplication enabled")


def test_a_second_producer_of_a_name_has_to_wait(deduplicating: BrokerProcess) -> None:
    """One name, one sequence: while its producer lives, nobody else gets it; a client of its own is told why."""
    one, other = connect(deduplicating), connect(deduplicating)
    producer = one.create_producer("busy", producer_name="p", batching_enabled=False)
    producer.send(b"0", sequence_id=0)
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer("busy", producer_name="p")
    producer.send(b"1", sequence_id=1)
    producer.close()
    heir = other.create_producer("busy", producer_name="p", batching_enabled=False)
    assert heir.last_sequence_id() == 1
    heir.send(b"2", sequence_id=2)
    assert everything(one, "busy") == [b"0", b"1", b"2"]
    one.close()
    other.close()


def test_names_are_evicted_and_counted(tmp_path: Path) -> None:
    """Beyond `producers_max` the longest unused name is forgotten: told in the metrics, with its consequence."""
    world = World(tmp_path, ["solo"], ON + "producers_max = 3\n").start()
    broker = world["solo"]
    client = connect(broker)
    for n in range(5):
        producer = client.create_producer("many", producer_name=f"p{n}", batching_enabled=False)
        producer.send(b"x", sequence_id=7)
        producer.close()
    for name, last in (("p4", 7), ("p0", -1)):
        producer = client.create_producer("many", producer_name=name)
        assert producer.last_sequence_id() == last
        producer.close()
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'magnetar_deduplication_events_total{cluster="solo",event="evictedLimit"} 3' in metrics
    assert 'magnetar_deduplication_producer_names{cluster="solo"} 3' in metrics
    client.close()
    world.close()


def test_a_producer_that_moves_to_another_cluster(tmp_path: Path) -> None:
    """What of its name came over the link counts, also after a kill there; what had not come yet is stored in both."""
    world = World(tmp_path, ["a", "b"], ON).start()
    replicators = [Replicator(world, "a", "b"), Replicator(world, "b", "a")]
    world["a"].rest("PUT", path_of("moves"))
    there = connect(world["a"])
    producer = there.create_producer("moves", producer_name="p", batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n, sequence_id=n)
    count = lambda name: world[name].rest("GET", path_of("moves") + "/stats")["msgInCounter"]  # noqa: E731
    eventually(lambda: count("b") == 10, what="what the link brings")
    replicators[0].pause()
    producer.send(b"10", sequence_id=10)
    producer.close()
    world["b"].kill()
    world["b"].start()
    here = connect(world["b"])
    moved = here.create_producer("moves", producer_name="p", batching_enabled=False)
    assert moved.last_sequence_id() == 9
    assert moved.send(b"again", sequence_id=8).entry_id() == -1
    moved.send(b"10", sequence_id=10)
    moved.send(b"11", sequence_id=11)
    replicators[0].resume()
    for name in "ab":
        client = connect(world[name])
        eventually(lambda: len(everything(client, "moves")) == 13, what="both clusters' messages")  # noqa: B023
        assert sorted(map(int, everything(client, "moves"))) == sorted([*range(12), 10])
        client.close()
    assert world["b"].rest("GET", path_of("moves") + "/stats")["deduplicationStatus"] == "Enabled"
    there.close()
    here.close()
    for replicator in replicators:
        replicator.close()
    world.close()
