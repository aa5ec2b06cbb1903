"""Exclusive access of producers, by the official client."""

import contextlib
import threading

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, eventually

Mode = pulsar.ProducerAccessMode
WAIT_MS = 60_000


def waiting(broker: BrokerProcess, topic: str) -> int:
    """How many wait for exclusive access."""
    return int(broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")["waitingPublishers"])


class Opening(threading.Thread):
    """A producer that is being opened: the client's call returns when it has access, or is refused."""

    def __init__(
        self, client: pulsar.Client, topic: str, mode: pulsar.ProducerAccessMode, name: str | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._client, self._topic, self._mode, self._name = client, topic, mode, name
        self.producer: pulsar.Producer | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.producer = self._client.create_producer(
                self._topic, self._name, access_mode=self._mode, batching_enabled=False
            )
        except pulsar.PulsarException as error:
            self.error = error


@pytest.mark.parametrize("mode", [Mode.Exclusive, Mode.Shared])
def test_who_waits_gets_in_when_the_holder_closes(
    broker: BrokerProcess, client: pulsar.Client, topic: str, mode: pulsar.ProducerAccessMode
) -> None:
    consumer = client.subscribe(topic, "s")
    holder = client.create_producer(topic, access_mode=mode)
    opening = Opening(client, topic, Mode.WaitForExclusive)
    eventually(lambda: waiting(broker, topic) == 1)
    assert opening.is_alive()
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    holder.send(b"held")
    holder.close()
    opening.join(WAIT_MS / 1000)
    assert opening.error is None
    assert opening.producer is not None
    opening.producer.send(b"waited")
    assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"held", b"waited"]


@pytest.mark.parametrize("held", [Mode.Exclusive, Mode.WaitForExclusive, Mode.ExclusiveWithFencing])
def test_the_fenced_one_publishes_no_more(
    broker: BrokerProcess, client: pulsar.Client, topic: str, held: pulsar.ProducerAccessMode
) -> None:
    consumer = client.subscribe(topic, "s")
    other = connect(broker)
    holder = other.create_producer(topic, access_mode=held, batching_enabled=False)
    holder.send(b"before")
    queue = Opening(other, topic, Mode.WaitForExclusive)
    eventually(lambda: waiting(broker, topic) == 1)
    fencing = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing, batching_enabled=False)
    fencing.send(b"fenced")
    queue.join(WAIT_MS / 1000)
    assert isinstance(queue.error, pulsar.ProducerFenced)
    with pytest.raises(pulsar.ProducerFenced):
        holder.send(b"too late")
    fencing.send(b"after")
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [b"before", b"fenced", b"after"]
    with contextlib.suppress(pulsar.AlreadyClosed):  # the client's way to say that the fenced one was closed before
        other.close()


def test_a_standby_of_the_same_name_waits_and_goes_on(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    """So that deduplication takes what both send for one sequence."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    other = connect(broker)
    holder = other.create_producer(topic, "p", access_mode=Mode.Exclusive, batching_enabled=False)
    standby = Opening(client, topic, Mode.WaitForExclusive, "p")
    eventually(lambda: waiting(broker, topic) == 1)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, "p", access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, "p")
    holder.send(b"held")
    other.close()
    standby.join(WAIT_MS / 1000)
    assert standby.error is None
    assert standby.producer is not None
    standby.producer.send(b"waited")
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"held", b"waited"]


def test_the_holder_goes_on_after_a_kill(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker)
    holder = client.create_producer(topic, access_mode=Mode.Exclusive, batching_enabled=False)
    holder.send(b"before")
    own_broker.kill()
    own_broker.start()
    holder.send(b"after")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"before", b"after"]
    client.close()
