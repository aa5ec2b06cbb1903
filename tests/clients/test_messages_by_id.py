"""Administration by message id, as Pulsar's tools ask for it, beside an official client: look, find, measure, expire."""

import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pulsar
import pytest

from magnetar.wire.batches import walk_batch
from tests.support.brokers import BrokerProcess, eventually, path_of
from tests.support.pulsarstats import faults
from tests.support.receiving import receive


def looked(broker: BrokerProcess, path: str) -> tuple[Message, bytes]:
    with urllib.request.urlopen(broker.web + path, timeout=20) as answer:
        return answer.headers, answer.read()


def body(message_id: pulsar.MessageId, **more: Any) -> dict[str, Any]:
    """As pulsar-admin sends it."""
    return {"ledgerId": message_id.ledger_id(), "entryId": message_id.entry_id(), "partitionIndex": -1} | more


def java(message_id: pulsar.MessageId, *, excluded: bool) -> dict[str, Any]:
    """As Pulsar's Java tools send it: Jackson takes the name from the getter, which has lost its "is"."""
    return body(message_id, batchIndex=-1, excluded=excluded, properties=None)


def sent(client: pulsar.Client, topic: str, number: int) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, batching_enabled=False)
    return [producer.send(b"%d" % each, properties={"n": str(each)}) for each in range(number)]


def test_a_message_is_looked_at_by_id_and_by_number(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    ids = sent(client, topic, 3)
    path = path_of(topic)
    for number, one in enumerate(ids):
        headers, payload = looked(broker, f"{path}/ledger/{one.ledger_id()}/entry/{one.entry_id()}")
        assert payload == b"%d" % number
        assert headers["X-Pulsar-Message-ID"] == f"{one.ledger_id()}:{one.entry_id()}"
        assert headers["X-Pulsar-PROPERTY"] == f'{{"n": "{number}"}}'
        assert (
            looked(broker, f"{path}/examinemessage?initialPosition=earliest&messagePosition={number + 1}")[1] == payload
        )
        assert looked(broker, f"{path}/examinemessage?messagePosition={3 - number}")[1] == payload
    with pytest.raises(urllib.error.HTTPError, match="404"):
        looked(broker, f"{path}/ledger/{ids[0].ledger_id()}/entry/3")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        looked(broker, f"{path}/examinemessage?messagePosition=4")


def test_a_batch_is_looked_at_as_a_whole(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    for number in range(5):
        producer.send_async(b"%d" % number, lambda _result, _id: None)
    producer.flush()
    headers, payload = looked(broker, f"{path_of(topic)}/examinemessage")
    assert headers["X-Pulsar-num-batch-message"] == "5"
    assert [payload[first:end] for _, _, first, end in walk_batch(payload, 5)] == [
        b"%d" % number for number in range(5)
    ]


def test_a_subscription_begins_at_the_message_of_a_time(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    ids = sent(client, topic, 2)
    path = path_of(topic)
    found = broker.rest("GET", f"{path}/messageid/0")
    assert found == body(ids[0])
    after = broker.rest("GET", f"{path}/messageid/9999999999999")
    assert after == body(ids[1]) | {"entryId": ids[1].entry_id() + 1}
    broker.rest("PUT", f"{path}/subscription/s", after)
    client.create_producer(topic, batching_enabled=False).send(b"new")
    assert receive(client.subscribe(topic, "s"), 1) == [b"new"]


def test_sizes_from_a_message_on(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    ids = sent(client, topic, 3)
    path = path_of(topic)
    sizes = [broker.rest("PUT", f"{path}/backlogSize", body(one)) for one in ids]
    assert sizes[0] == broker.rest("GET", f"{path}/stats")["storageSize"]
    assert sizes[0] > sizes[1] > sizes[2] > 0


def test_messages_expire_up_to_one(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    ids = sent(client, topic, 5)
    path = f"{path_of(topic)}/subscription/s"
    broker.rest("POST", f"{path}/expireMessages", body(ids[0], isExcluded=False, batchIndex=-1))
    broker.rest("POST", f"{path}/expireMessages", body(ids[2], isExcluded=True))
    analyzed = broker.rest("POST", f"{path}/analyzeBacklog")
    assert (analyzed["entries"], analyzed["messages"], analyzed["aborted"]) == (3, 3, False)
    assert broker.rest("POST", f"{path}/analyzeBacklog", body(ids[4]))["messages"] == 1
    assert receive(client.subscribe(topic, "s"), 3) == [b"2", b"3", b"4"]
    assert broker.rest("GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]["totalMsgExpired"] == 2


def test_ids_are_exclusive_as_java_says_it(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    for name in ("expired", "reset"):
        client.subscribe(topic, name).close()
    ids = sent(client, topic, 5)
    path = f"{path_of(topic)}/subscription"
    broker.rest("POST", f"{path}/expired/expireMessages", java(ids[0], excluded=False))
    broker.rest("POST", f"{path}/expired/expireMessages", java(ids[2], excluded=True))
    assert broker.rest("POST", f"{path}/expired/analyzeBacklog")["messages"] == 3
    assert receive(client.subscribe(topic, "expired"), 3) == [b"2", b"3", b"4"]
    for excluded, rest in ((False, [b"3", b"4"]), (True, [b"4"])):
        broker.rest("POST", f"{path}/reset/resetcursor", java(ids[3], excluded=excluded))
        consumer = client.subscribe(topic, "reset")
        assert receive(consumer, len(rest)) == rest
        consumer.close()


@pytest.mark.parametrize(("excluded", "rest"), [(False, [b"2", b"3"]), (True, [b"3"])])
def test_a_subscription_goes_on_within_a_batch(
    broker: BrokerProcess, client: pulsar.Client, topic: str, excluded: bool, rest: list[bytes]
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    ids: list[pulsar.MessageId] = []
    for number in range(4):
        producer.send_async(b"%d" % number, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    assert {one.entry_id() for one in ids} == {0}
    broker.rest("POST", f"{path_of(topic)}/subscription/s/resetcursor", body(ids[2], batchIndex=2, excluded=excluded))
    assert receive(client.subscribe(topic, "s"), len(rest)) == rest


def test_a_connected_consumer_is_not_disturbed_by_expiry(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    ids = sent(client, topic, 3)
    held = [consumer.receive(60_000) for _ in range(3)]
    path = f"{path_of(topic)}/subscription/s"
    broker.rest("POST", f"{path}/expireMessages", body(ids[1]))
    for message in held:
        consumer.acknowledge(message)
    told = lambda: broker.rest("GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]  # noqa: E731
    eventually(lambda: (told()["msgBacklog"], told()["unackedMessages"]) == (0, 0))


def test_properties(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = path_of(topic)
    for own in (path, f"{path}-parts"):
        broker.rest("PUT", own if own == path else f"{own}/partitions", {"a": "1"} if own == path else 2)
        broker.rest("PUT", f"{own}/properties", {"b": "2"})
        broker.rest("DELETE", f"{own}/properties?key=a")
        assert broker.rest("GET", f"{own}/properties") == {"b": "2"}
    client.subscribe(f"{topic}-parts", "s", properties={}).close()
    broker.rest("PUT", f"{path}-parts/subscription/s/properties", {"who": "me"})
    assert broker.rest("GET", f"{path}-parts/subscription/s/properties") == {"who": "me"}


def test_what_is_stored_has_pulsars_types(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    sent(client, topic, 2)
    path = path_of(topic)
    place = {"ledgerId": int, "entryId": int}
    ledger = {"ledgerId": int, "entries": int, "size": int, "timestamp": int, "isOffloaded": bool}
    wanted = {
        "creationDate": str,
        "ledgers": [ledger],
        "cursors": {"*": {"markDelete": place, "properties": {"*": int}}},
        "properties": {"*": str},
    }
    info = broker.rest("GET", f"{path}/internal-info")
    assert faults(info, wanted, "info") == []
    assert info["ledgers"][0]["entries"] == 2
    broker.rest("POST", f"{path}/terminate")
    assert faults(broker.rest("GET", f"{path}/internal-info"), wanted | {"terminatedPosition": place}, "info") == []
    broker.rest("POST", f"{path}/trim")
    counts = dict.fromkeys(("entries", "messages", "markerMessages"), int)
    counts |= {
        f"filter{kind}{what}": int
        for kind in ("Accepted", "Rejected", "Rescheduled")
        for what in ("Entries", "Messages")
    }
    assert (
        faults(broker.rest("POST", f"{path}/subscription/s/analyzeBacklog"), counts | {"aborted": bool}, "backlog")
        == []
    )


def test_a_subscription_is_made_at_a_text(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    ids = sent(client, topic, 3)
    path = f"{path_of(topic)}/subscription"
    places = {"earliest": 3, "latest": 0, f"{ids[1].ledger_id()}:{ids[1].entry_id()}": 2, str(ids[2]).strip("()"): 1}
    for number, (place, left) in enumerate(places.items()):
        broker.rest("PUT", f"{path}/s{number}", place.replace(",", ":"))
        assert broker.rest("POST", f"{path}/s{number}/analyzeBacklog")["messages"] == left
    behind = f"{ids[2].ledger_id()}:{ids[2].entry_id() + 1}"
    with pytest.raises(urllib.error.HTTPError, match=f"409.*{behind} is behind the last message"):
        broker.rest("POST", f"{path}/s0/resetcursor", behind)
    with pytest.raises(urllib.error.HTTPError, match="412.*batch index 1 is none of them"):
        broker.rest("PUT", f"{path}/new", body(ids[0], batchIndex=1))
