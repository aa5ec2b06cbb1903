"""Where queries of the format `pulsar` begin, end and stop for breath: options that the other tests do not touch."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from magnetar.spark.client import take
from magnetar.spark.connection import Access
from magnetar.spark.options import write_options
from magnetar.spark.producing import NotWritten
from magnetar.spark.sink import RowWriter
from tests.support.brokers import BrokerProcess, eventually
from tests.support.spark_format import Session, numbered, publish

pytestmark = pytest.mark.spark


def test_streams_begin_at_the_end_and_wait_for_topics(session: Session, client: pulsar.Client, topic: str) -> None:
    """Without a word about where, a stream reads what comes from now on; of a topic that is made later, everything."""
    publish(client, topic, numbered(5))
    name = topic.rpartition("-")[2]
    frame = session.stream(
        topics=f"{topic},{topic}-later", waitingForNonExistedTopic="true", topicsDiscoveryIntervalMs="0"
    )
    query = frame.select("value").writeStream.format("memory").queryName(f"reach_{name}").start()
    try:
        seen: Callable[[], list[int]] = lambda: sorted(  # noqa: E731
            int(row.value) for row in session.spark.table(f"reach_{name}").collect()
        )
        eventually(lambda: query.lastProgress is not None or query.recentProgress, within_s=60)
        publish(client, topic, numbered(2, 100))
        publish(client, topic + "-later", numbered(3, 200))
        eventually(lambda: seen() == [100, 101, 200, 201, 202], within_s=60)
    finally:
        query.stop()


def test_times_bound_what_is_read(session: Session, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, numbered(400), batching_max_messages=10)
    times = {int(row.value): row["__publishTime"] for row in session.read(topic=topic).collect()}
    middle = times[200]
    ms = str(int(middle.timestamp() * 1000))
    until = session.values(topic, endingTime=ms)
    assert sorted(map(int, until)) == sorted(number for number, at in times.items() if at <= middle)
    both = session.values(topic, startingTime=ms, endingTime=ms)
    assert sorted(map(int, both)) == sorted(number for number, at in times.items() if at == middle)
    frame = session.stream(topic=topic, startingTime=ms).select("value")
    session.writing(frame, topic + "-out").trigger(availableNow=True).start().awaitTermination()
    late = [number for number, at in times.items() if at >= middle]
    assert sorted(map(int, session.values(topic + "-out"))) == sorted(late)


def test_both_limits_hold(session: Session, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(bytes(1000 if number < 10 else 10))
    producer.close()
    frame = session.stream(
        topic=topic, startingOffsets="earliest", maxMessagesPerTrigger="10", maxBytesPerTrigger="5000"
    )
    query = session.writing(frame.select("value"), topic + "-out").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
    assert sum(rows) == 30
    assert max(rows) == 10  # small ones: as many as are allowed
    assert rows[0] < 6  # large ones: as many as there is room for


def test_entries_are_as_large_as_the_options_say(session: Session, broker: BrokerProcess, topic: str) -> None:
    def entries(name: str, **options: str) -> int:
        frame = session.spark.range(0, 100, 1, 1).selectExpr("repeat('x', 1000) value")
        given = {"service.url": session.url, "topic": name, **options}
        frame.write.format("pulsar").options(**given).mode("append").save()
        local = name.rpartition("/")[2]
        return int(broker.rest("GET", f"/admin/v2/persistent/public/default/{local}/internalStats")["numberOfEntries"])

    assert entries(topic) == 1
    assert entries(topic + "-b", **{"pulsar.producer.batchingMaxBytes": "5100"}) == 20
    assert entries(topic + "-m", **{"pulsar.producer.batchingMaxMessages": "7"}) == 15


def test_a_broker_that_stands_still_is_not_waited_for_for_good(broker: BrokerProcess, topic: str) -> None:
    options = write_options({"service.url": broker.url, "topic": topic, "pulsar.producer.sendTimeoutMs": "300"})
    writer: Any = RowWriter(options, take(Access(broker.url), patience_s=0.3), "task", 0, 0)
    writer.add(pa.record_batch({"value": pa.array(numbered(1))}))
    writer.finish()
    assert broker.process is not None
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        writer.add(pa.record_batch({"value": pa.array(numbered(1, 1))}))
        with pytest.raises(NotWritten) as failed:
            writer.finish()
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
        writer.close()
    assert "\n" not in str(failed.value)
    assert topic in str(failed.value)
