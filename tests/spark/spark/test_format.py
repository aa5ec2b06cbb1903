"""The format `pulsar` on a real session against a real broker: what the official client wrote is read, and vice versa."""

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import AvroSchema, Double, Integer, JsonSchema, Record, String, StringSchema

from magnetar.spark import deduplicate
from magnetar.spark import topics as lookups
from magnetar.spark.client import Client, take
from magnetar.spark.connection import Access
from magnetar.spark.options import write_options
from magnetar.spark.sink import RowWriter, write_rows
from magnetar.spark_session.session import first_line
from tests.support.brokers import BrokerProcess, eventually
from tests.support.spark_format import Session, numbered, publish

pytestmark = pytest.mark.spark

KEY_COLUMNS = ("value", "__key", "__eventTime", "__messageProperties")


COMPRESSIONS = (
    pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
)  # fmt: skip


def test_everything_that_a_client_writes_is_read(session: Session, client: pulsar.Client, topic: str) -> None:
    expected: list[bytes] = []
    for number, compression in enumerate(COMPRESSIONS):
        batched, single = [b"b%d-%d" % (number, one) for one in range(50)], [b"s%d" % number]
        publish(client, topic, batched, compression_type=compression)
        publish(client, topic, single, compression_type=compression, batching_enabled=False)
        expected += batched + single
    large = bytes(range(256)) * 50_000  # three chunks
    publish(client, topic, [large], batching_enabled=False, chunking_enabled=True)
    publish(
        client,
        topic,
        [large],
        batching_enabled=False,
        chunking_enabled=True,
        compression_type=pulsar.CompressionType.LZ4,
    )
    expected += [large, large]
    producer = client.create_producer(topic)
    producer.send(b"whole", partition_key="k", properties={"a": "1", "b": "2"}, event_timestamp=1_700_000_000_123)
    rows = session.read(topic=topic).collect()
    assert [bytes(row.value) for row in rows] == [*expected, b"whole"]
    whole = rows[-1]
    assert (bytes(whole["__key"]), whole["__topic"]) == (b"k", topic)
    assert whole["__messageProperties"] == {"a": "1", "b": "2"}
    assert round(whole["__eventTime"].timestamp() * 1000) == 1_700_000_000_123
    assert rows[0]["__key"] is None
    assert rows[0]["__eventTime"] is None
    assert rows[0]["__publishTime"] <= whole["__publishTime"]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    ids = [reader.read_next(60_000).message_id() for _ in rows]
    mine = [pulsar.MessageId.deserialize(bytes(row["__messageId"])) for row in rows]
    assert [(x.ledger_id(), x.entry_id(), x.batch_index()) for x in mine] == [
        (x.ledger_id(), x.entry_id(), x.batch_index()) for x in ids
    ]
    reader.close()


def test_what_is_written_is_read_by_the_official_client(session: Session, client: pulsar.Client, topic: str) -> None:
    frame = session.spark.createDataFrame(
        [(b"1", b"k1", 1_700_000_000_000, {"a": "x"}), (None, b"\xff\x00", None, None), (b"", None, None, {})],
        "value binary, __key binary, __eventTime long, __messageProperties map<string,string>",
    ).coalesce(1)
    for compression in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"):
        options = {"service.url": session.url, "topic": topic, "pulsar.producer.compressionType": compression}
        frame.write.format("pulsar").options(**options).mode("append").save()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for _ in range(5):
        one, two, three = (reader.read_next(60_000) for _ in range(3))
        assert (one.data(), one.partition_key(), one.properties()) == (b"1", "k1", {"a": "x"})
        assert one.event_timestamp() == 1_700_000_000_000
        assert (two.data(), two.partition_key()) == (b"", "/wA=")
        assert (three.data(), three.partition_key(), three.properties()) == (b"", "", {})
    assert not reader.has_message_available()
    reader.close()
    back = session.read(topic=topic).limit(3).collect()
    assert [row.value if row.value is None else bytes(row.value) for row in back] == [b"1", None, b""]
    assert bytes(back[1]["__key"]) == b"\xff\x00"


def test_partitions_patterns_and_rows_that_name_their_topic(
    session: Session, client: pulsar.Client, broker: BrokerProcess
) -> None:
    family = f"f{uuid.uuid4().hex[:8]}"
    parted = f"persistent://public/default/{family}-parted"
    broker.rest("PUT", f"/admin/v2/persistent/public/default/{family}-parted/partitions", 3)
    rows = [(f"{number}".encode(), f"key-{number % 10}".encode(), parted) for number in range(200)]
    rows += [(b"other", b"k", f"persistent://public/default/{family}-other")]
    frame = session.spark.createDataFrame(rows, "value binary, __key binary, __topic string")
    frame.write.format("pulsar").option("service.url", session.url).mode("append").save()
    read = session.read(topicsPattern=f"{family}-.*").collect()
    assert sorted(bytes(row.value) for row in read) == sorted(row[0] for row in rows)
    at = {(bytes(row["__key"]), row["__topic"]) for row in read if row["__topic"].startswith(parted)}
    assert len(at) == 10, "a key has one partition"
    assert len({topic for _, topic in at}) > 1


def test_ranges_times_and_several_tasks(
    session: Session, client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    publish(client, topic, numbered(3000), batching_max_messages=5)
    frame = session.read(topic=topic, minPartitions="4")
    assert frame.rdd.getNumPartitions() > 1
    assert sorted(int(row.value) for row in frame.collect()) == list(range(3000))
    by_ledgers = session.read(topic=topic, minPartitions="3", **{"admin.url": broker.web})
    assert by_ledgers.rdd.getNumPartitions() == 3
    assert sorted(int(row.value) for row in by_ledgers.collect()) == list(range(3000))
    options = {"service.url": session.url, "topic": topic}
    alone = session.spark.read.format("pulsar").schema("value binary").options(**options).load()
    assert alone.columns == ["value"]
    assert alone.count() == 3000
    rows = session.read(topic=topic).select("value", "__messageId", "__publishTime").collect()
    ids = {int(row.value): pulsar.MessageId.deserialize(bytes(row["__messageId"])) for row in rows}
    position = [[ids[number].ledger_id(), ids[number].entry_id(), ids[number].batch_index()] for number in (102, 1001)]
    between = session.values(
        topic, startingOffsets=json.dumps({topic: position[0]}), endingOffsets=json.dumps({topic: position[1]})
    )
    assert sorted(map(int, between)) == list(range(103, 1002))
    middle = rows[1500]["__publishTime"]
    late = session.read(topic=topic, startingTime=str(int(middle.timestamp() * 1000)))
    expected = [int(row.value) for row in rows if row["__publishTime"] >= middle]
    assert sorted(int(row.value) for row in late.collect()) == sorted(expected)
    pushed = session.read(topic=topic).where(f"__publishTime >= timestamp'{middle}' and __topic = '{topic}'")
    assert sorted(int(row.value) for row in pushed.collect()) == sorted(expected)
    assert session.read(topic=topic).where("__topic = 'other'").count() == 0
    assert session.read(topic=topic).where("__key = X'00'").count() == 0


def test_streams_admit_resume_and_tell_their_lag(session: Session, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, numbered(1000), batching_max_messages=70)
    target = topic + "-out"

    def run(**options: str) -> Any:
        frame = session.stream(topic=topic, startingOffsets="earliest", **options).select("value", "__key")
        query = session.writing(frame, target).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run(maxMessagesPerTrigger="300")
    progress = query.recentProgress
    assert [one["numInputRows"] for one in progress] == [300, 300, 300, 100]
    lag = json.loads(progress[0]["sources"][0]["latestOffset"])
    assert lag["entriesBehindInAll"] > 0
    assert json.loads(progress[-1]["sources"][0]["latestOffset"])["entriesBehindInAll"] == 0
    publish(client, topic, numbered(500, 1000))
    assert sum(one["numInputRows"] for one in run(maxBytesPerTrigger="1000").recentProgress) == 500
    assert list(map(int, session.values(target))) == list(range(1500))
    stats = session_stats(session, target)
    assert stats == (1500, 1500)


def test_chunked_messages_across_batches(session: Session, client: pulsar.Client, topic: str) -> None:
    large = bytes(range(256)) * 45_000  # three chunks, each of which is admitted alone
    publish(client, topic, [b"a", large, b"b"], batching_enabled=False, chunking_enabled=True)
    frame = session.stream(topic=topic, startingOffsets="earliest", maxMessagesPerTrigger="1").select("value")
    name = f"chunks{uuid.uuid4().hex[:8]}"
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(query.recentProgress) == 5
    assert [bytes(row.value) for row in session.spark.table(name).collect()] == [b"a", large, b"b"]


def session_stats(session: Session, topic: str) -> tuple[int, int]:
    values = session.values(topic)
    return len(values), len(set(values))


def test_new_partitions_and_topics_join_a_running_stream(
    session: Session, client: pulsar.Client, broker: BrokerProcess
) -> None:
    family = f"g{uuid.uuid4().hex[:8]}"
    publish(client, f"{family}-one", numbered(10))
    frame = session.stream(topicsPattern=f"{family}-.*", startingOffsets="earliest", topicsDiscoveryIntervalMs="0")
    query = frame.writeStream.format("memory").queryName(family).start()
    try:
        seen: Callable[[], int] = lambda: session.spark.sql(f"select count(*) from {family}").collect()[0][0]  # noqa: E731
        eventually(lambda: seen() == 10, within_s=60)
        broker.rest("PUT", f"/admin/v2/persistent/public/default/{family}-two/partitions", 2)
        publish(client, f"{family}-two", numbered(10))
        eventually(lambda: seen() == 20, within_s=60)
    finally:
        query.stop()


def test_a_batch_write_with_a_name_can_be_run_again(session: Session, client: pulsar.Client, topic: str) -> None:
    frame = session.spark.range(0, 5000, 1, 2).selectExpr("cast(id as string) value")
    for _ in range(2):
        frame.write.format("pulsar").options(
            **{"service.url": session.url, "topic": topic, "producerName": "import-7"}
        ).mode("append").save()
    assert Counter(map(int, session.values(topic))) == Counter(range(5000))


@pytest.mark.parametrize("deduplication", ["auto", "off"])
@pytest.mark.parametrize("cut", [1, 999, 1000, 1500])
def test_a_task_that_dies_and_runs_again(
    broker: BrokerProcess, client: pulsar.Client, topic: str, cut: int, deduplication: str
) -> None:
    """The second attempt's rows come in other Arrow batches and are packed into other entries, as after an upgrade."""
    rows = pa.record_batch({"value": pa.array(numbered(3000))})
    given = {"service.url": broker.url, "topic": topic, "deduplication": deduplication}
    first = RowWriter(write_options(given), take(Access(broker.url)), "task" * (deduplication != "off"), 5 << 31, 0)
    first.add(rows.slice(0, cut))
    first.finish()
    first.close()  # and dies: the rest is never sent
    other = write_options(given | {"pulsar.producer.batchingMaxMessages": "700"})
    done = write_rows(other, "task", 5, 0, iter([rows.slice(0, 1234), rows.slice(1234)]))
    assert done.rows == 3000
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[int] = []
    while reader.has_message_available():
        found.append(int(reader.read_next(60_000).data()))
    reader.close()
    expected = list(range(3000)) if deduplication == "auto" else [*range(cut), *range(3000)]
    assert found == expected


def test_a_deleted_topic(session: Session, client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    local = topic.rpartition("/")[2]
    publish(client, topic, numbered(10))
    publish(client, topic + "-b", numbered(10))

    def run(name: str, **options: str) -> Any:
        topics = f"{topic},{topic}-b"
        frame = session.stream(topics=topics, startingOffsets="earliest", waitingForNonExistedTopic="true", **options)
        query = session.writing(frame.select("value"), topic + name, name).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(one["numInputRows"] for one in query.recentProgress)

    assert run("-x") == 20
    assert run("-y") == 20
    broker.rest("DELETE", f"/admin/v2/persistent/public/default/{local}-b?force=true")
    with pytest.raises(Exception, match="was deleted") as failed:
        run("-x")
    assert first_line(failed.value).startswith(f"topic {topic}-b was deleted")
    broker.rest("DELETE", f"/admin/v2/persistent/public/default/{local}?force=true")
    publish(client, topic, numbered(5))
    broker.rest("PUT", f"/admin/v2/persistent/public/default/{local}-b")
    with pytest.raises(Exception, match="no longer exists") as failed:
        run("-x")
    assert first_line(failed.value).endswith("to continue without them set failOnDataLoss=false")
    assert run("-y", failOnDataLoss="false") == 5


def test_a_topic_deleted_under_a_running_query(
    session: Session, client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    """One query ends with one line; the other, which may lose data, goes on with what is published in the new topic."""
    local = topic.rpartition("/")[2]
    publish(client, topic, numbered(10))
    publish(client, topic + "-kept", numbered(5))
    options = {"startingOffsets": "earliest", "topicsDiscoveryIntervalMs": "0", "waitingForNonExistedTopic": "true"}
    queries = {}
    for name, fail in (("careful", "true"), ("careless", "false")):
        frame = session.stream(topics=f"{topic},{topic}-kept", failOnDataLoss=fail, **options).select("value")
        queries[name] = frame.writeStream.format("memory").queryName(f"{name}_{local[2:]}").start()
    try:
        seen: Callable[[str], int] = lambda name: session.spark.table(f"{name}_{local[2:]}").count()  # noqa: E731
        eventually(lambda: seen("careful") == seen("careless") == 15, within_s=60)
        broker.rest("DELETE", f"/admin/v2/persistent/public/default/{local}?force=true")
        eventually(lambda: not queries["careful"].isActive, within_s=60)
        line = first_line(queries["careful"].exception())
        assert line.startswith((f"topic {topic} was deleted", f"{topic}")) and line.endswith("set failOnDataLoss=false")
        assert "\n" not in line
        publish(client, topic, numbered(7))
        publish(client, topic + "-kept", numbered(1))
        eventually(lambda: seen("careless") == 23, within_s=60)
        assert queries["careless"].isActive
    finally:
        for query in queries.values():
            query.stop()


def test_checkpoints_of_others(session: Session, client: pulsar.Client, topic: str) -> None:
    for name in (topic, topic + "-b"):
        publish(client, name, numbered(3))

    def run(source: str, checkpoint: str) -> Any:
        frame = session.stream(topic=source, startingOffsets="earliest").select("value")
        query = session.writing(frame, topic + "-out", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    run(topic, "mine")
    with pytest.raises(Exception, match="checkpointLocation of its own"):
        run(topic + "-b", "mine")
    offsets = max((session.folder / "mine" / "offsets").glob("[0-9]*"))
    offsets.write_text(offsets.read_text().replace('"v": 1', '"v": 7'))
    for crc in offsets.parent.glob(".*.crc"):
        crc.unlink()
    with pytest.raises(Exception, match="version 7; this release reads version 1"):
        run(topic, "mine")
    older = re.sub(r'\{"topics": (\{[^}]*\}), "v": 7\}', r"\1", offsets.read_text())
    assert '"v": 7' not in older and topic in older
    offsets.write_text(older)  # as before offsets had a version: it goes on where it was
    publish(client, topic, [b"100"])
    run(topic, "mine")
    assert session_stats(session, topic + "-out") == (4, 4)
    run(topic, "lost")  # a new checkpoint is a new query: it begins anew
    assert session_stats(session, topic + "-out") == (8, 4)


def test_deduplicating_by_key(session: Session, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, numbered(50), keys=[str(number % 20) for number in range(50)])
    frame = deduplicate(session.stream(topic=topic, startingOffsets="earliest"), ["__key"], watermark="1 hour")
    query = (
        session.writing(frame.select("value", "__key"), topic + "-out", rowOrder="sorted")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    publish(client, topic, numbered(50, 50), keys=[str(number % 30) for number in range(50)])
    frame = deduplicate(session.stream(topic=topic, startingOffsets="earliest"), ["__key"], watermark="1 hour")
    query = (
        session.writing(frame.select("value", "__key"), topic + "-out", rowOrder="sorted")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    keys = Counter(bytes(row["__key"]) for row in session.read(topic=topic + "-out").collect())
    assert keys == Counter(b"%d" % number for number in range(30))
    assert "RocksDB" in session.spark.conf.get("spark.sql.streaming.stateStore.providerClass")


def test_keys_are_forgotten_behind_the_watermark(session: Session, client: pulsar.Client, topic: str) -> None:
    """By the messages' own time, over restarts from the checkpoint; the keys seen are in RocksDB files there."""
    minute, began = 60_000, 1_700_000_000_000
    producer = client.create_producer(topic)

    def run(*sent: tuple[str, int]) -> list[bytes]:
        for key, minutes in sent:
            producer.send(key.encode(), partition_key=key, event_timestamp=began + minutes * minute)
        frame = session.stream(topic=topic, startingOffsets="earliest")
        once = deduplicate(frame, "__key", watermark="10 minutes", time="__eventTime").select("value")
        query = session.writing(once, topic + "-out", rowOrder="sorted").trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(session.values(topic + "-out"))

    assert run(("a", 0), ("a", 5), ("b", 6)) == [b"a", b"b"]
    assert run(("a", 9), ("b", 7)) == [b"a", b"b"]  # another query object: what it has seen was in the checkpoint
    assert run(("c", 60)) == [b"a", b"b", b"c"]
    assert run(("c", 61)) == [b"a", b"b", b"c"]  # behind this batch those of an hour ago are forgotten
    assert run(("a", 62)) == [b"a", b"a", b"b", b"c"]  # forgotten: the first one was an hour ago
    state = session.folder / "query" / "state"
    assert any(state.rglob("*.sst")) or any(state.rglob("*.zip")), list(state.rglob("*"))[:20]
    producer.close()


def test_mistakes_are_told_in_one_line(session: Session, topic: str) -> None:
    frame = session.spark.range(3)
    text = frame.selectExpr("cast(id as string) value")
    options = {"service.url": session.url, "topic": "t"}
    mistakes: dict[str, Callable[[], Any]] = {
        "missing topic": lambda: session.read(topic=topic).count(),
        "typo": lambda: session.read(topic=topic, startingOfsets="earliest").count(),
        "typed": lambda: session.spark.read.format("pulsar").schema("id int").options(**options).load().count(),
        "column": lambda: frame.write.format("pulsar").options(**options).mode("append").save(),
        "both topics": lambda: (
            text.selectExpr("value", "'t' __topic").write.format("pulsar").options(**options).mode("append").save()
        ),
        "backwards": lambda: session.read(topic=topic, startingTime="9", endingTime="3").count(),
        "overwrite": lambda: text.write.format("pulsar").options(**options).mode("overwrite").save(),
    }
    lines = {}
    for name, act in mistakes.items():
        with pytest.raises(Exception) as failed:
            act()
        lines[name] = first_line(failed.value)
    assert lines["missing topic"].startswith(f"topic {topic} does not exist")
    assert lines["typo"] == "option 'startingofsets' is unknown when reading; did you mean 'startingOffsets'?"
    assert lines["typed"].startswith("column id int: the topic has no schema with columns; there are: value binary")
    assert lines["column"].startswith("column id cannot be written: the columns are value, __key")
    assert lines["both topics"] == "option topic and column __topic contradict each other: give one of them"
    assert (
        lines["backwards"]
        == "options startingTime 9 and endingTime 3 contradict each other: the end is before the start"
    )
    assert lines["overwrite"] == "mode overwrite is not possible with topics: allowed is append"


def test_without_deduplication_the_sink_says_so(
    session: Session, client: pulsar.Client, broker: BrokerProcess, topic: str
) -> None:
    local = topic.rpartition("/")[2]
    client.create_producer(topic).close()
    broker.rest("POST", f"/admin/v2/persistent/public/default/{local}/deduplicationEnabled", False)
    frame = session.spark.range(3).selectExpr("cast(id as string) value")
    options = {"service.url": session.url, "topic": topic}
    with pytest.raises(Exception, match="does not deduplicate"):
        frame.write.format("pulsar").options(deduplication="required", **options).mode("append").save()
    frame.write.format("pulsar").options(**options).mode("append").save()


def test_places_by_the_protocol_alone(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, numbered(10))
    own = Client(Access(broker.url))
    ends = lookups.Ends(own)
    last = ends.last([topic, topic + "-none"])
    assert list(last) == [topic]
    assert lookups.position_at(own, topic, 0, last[topic]).entry == -1
    assert lookups.position_at(own, topic, 1 << 50, last[topic]) == last[topic]
    ends.close()
    own.close()


# ------------------------------------------------------------------------------------------------------------- schemas


class Delay(Record):
    carrier = String()
    number = Integer()


class LaterDelay(Record):
    carrier = String()
    number = Integer()
    minutes = Double(required_default=True)


def test_typed_columns_follow_the_schema_through_versions(
    session: Session, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    client.create_producer(topic, schema=AvroSchema(Delay)).send(Delay(carrier="UA", number=1), partition_key="k")
    new = client.create_producer(topic, schema=AvroSchema(LaterDelay))
    new.send(LaterDelay(carrier="AA", number=2, minutes=2.5))
    client.create_producer(topic, schema=AvroSchema(Delay)).send(Delay(carrier="DL", number=3))
    client.create_producer(topic, schema=AvroSchema(LaterDelay)).send(LaterDelay(carrier="B6", number=4, minutes=None))
    frame = session.read(topic=topic)
    assert frame.dtypes[:4] == [("carrier", "string"), ("number", "int"), ("minutes", "double"), ("__key", "binary")]
    rows = [(row.carrier, row.number, row.minutes) for row in frame.orderBy("number").collect()]
    assert rows == [("UA", 1, None), ("AA", 2, 2.5), ("DL", 3, None), ("B6", 4, None)]
    some = session.spark.read.format("pulsar").options(**{"service.url": session.url, "topic": topic})
    kept = some.schema("minutes double, value binary, __key binary").load().where("minutes is not null").collect()
    assert [(row.minutes, len(row.value) > 0, row["__key"]) for row in kept] == [(2.5, True, None)]
    raw = session.read(topic=topic, allowDifferentTopicSchemas="true")
    assert raw.dtypes[0] == ("value", "binary") and raw.count() == 4
    for wanted, reason in (
        ("minuets double", "column minuets is not a field of the newest schema"),
        ("number string", "column number is string: the schema of"),
    ):
        with pytest.raises(Exception, match=reason):
            some.schema(wanted).load().collect()
    # A stream has the columns too, and what no version of the schema fits ends it with one line that says where.
    query = (
        session.stream(topic=topic, startingOffsets="earliest")
        .selectExpr("sum(number)")
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path / "typed"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert session.spark.table("typed").collect()[0][0] == 10
    client.create_producer(topic).send(b"\xff")
    with pytest.raises(Exception, match="the message at .* is not as its Avro schema says"):
        session.read(topic=topic).collect()
    assert session.read(topic=topic, allowDifferentTopicSchemas="true").count() == 5


def test_topics_of_different_schemas(session: Session, client: pulsar.Client, topic: str) -> None:
    client.create_producer(f"{topic}-a", schema=AvroSchema(Delay)).send(Delay(carrier="UA", number=1))
    client.create_producer(f"{topic}-b", schema=JsonSchema(LaterDelay)).send(
        LaterDelay(carrier="AA", number=2, minutes=0.5)
    )
    both = {"topics": f"{topic}-a,{topic}-b"}
    with pytest.raises(Exception, match="have different schemas"):
        session.read(**both)
    assert session.read(**both, allowDifferentTopicSchemas="true").dtypes[0] == ("value", "binary")
    # Columns that are named are decoded with each topic's own schema.
    options = {"service.url": session.url, **both, "allowDifferentTopicSchemas": "true"}
    named = session.spark.read.format("pulsar").options(**options).schema("number int, minutes double, __topic string")
    rows = {row["__topic"][-1]: (row.number, row.minutes) for row in named.load().collect()}
    assert rows == {"a": (1, None), "b": (2, 0.5)}


def test_plain_schemas(session: Session, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema()).send("ü")
    frame = session.read(topic=topic)
    assert frame.dtypes[0] == ("value", "string") and [row.value for row in frame.collect()] == ["ü"]
