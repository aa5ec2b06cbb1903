"""`/metrics` of a real broker, name by name: what an official client did is what is told."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.metrics import metric, scrape

TOPIC = "persistent://public/default/told"
FLEETING = "non-persistent://public/default/told"
PATH = f"/admin/v2/{TOPIC.replace('://', '/')}"

OFTEN = "[broker]\nretention_interval_ms = 300\n"


def settled(broker: BrokerProcess, wanted: dict[tuple[str, ...], Any]) -> str:
    """Wait until series have these values; the page."""

    def told() -> str:
        page = scrape(broker)
        return page if all(metric(page, *series) == value for series, value in wanted.items()) else ""

    def difference() -> dict[Any, Any]:
        page = scrape(broker)
        return {
            series: (metric(page, *series), value) for series, value in wanted.items() if metric(page, *series) != value
        }

    try:
        return str(eventually(told))
    except AssertionError:
        raise AssertionError(f"told, wanted: {difference()}") from None


def test_who_is_there_and_what_is_stored(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], OFTEN).start()
    broker = world["solo"]
    client = connect(broker)
    try:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        consumers = [client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared) for _ in range(2)]
        client.subscribe(TOPIC, "other")
        for number in range(5):
            producer.send(b"%d" % number * 100)
        for _ in range(3):
            producer.send(b"later", deliver_after=timedelta(hours=1))
        for _ in range(2):
            (message,) = (eventually(lambda: received(consumers)),)
            message[0].acknowledge(message[1])
        fleeting = client.create_producer(FLEETING)
        fleeting.send(b"gone")

        def acknowledged() -> Any:
            stats = broker.rest("GET", f"{PATH}/stats")
            one = stats["subscriptions"]["s"]
            return stats if (one["msgBacklog"], one["msgDelayed"], one["unackedMessages"]) == (6, 3, 3) else None

        stats = eventually(acknowledged)
        one = stats["subscriptions"]["s"]
        page = settled(
            broker,
            {
                ("pulsar_active_connections",): 1,
                ("pulsar_connection_created_total_count",): 1,
                ("pulsar_connection_create_success_count",): 1,
                ("pulsar_connection_create_fail_count",): 0,
                ("pulsar_connection_closed_total_count",): 0,
                ("pulsar_broker_topics_count",): 2,
                ("pulsar_broker_subscriptions_count",): 2,
                ("pulsar_broker_producers_count",): 2,
                ("pulsar_broker_consumers_count",): 3,
                ("pulsar_broker_storage_size",): stats["storageSize"],
                ("pulsar_ml_cache_entries",): 8,
                ("pulsar_broker_msg_backlog",): 6 + 8,
                ("pulsar_topics_count", "public/default"): 2,
                ("pulsar_storage_size", TOPIC): stats["storageSize"],
                ("pulsar_storage_logical_size", TOPIC): stats["storageSize"],
                ("pulsar_producers_count", TOPIC): 1,
                ("pulsar_consumers_count", TOPIC): 3,
                ("pulsar_subscriptions_count", TOPIC): 2,
                ("pulsar_average_msg_size", TOPIC): 0,  # nobody publishes any more
                ("pulsar_storage_backlog_size", TOPIC): stats["backlogSize"],
                ("pulsar_storage_backlog_quota_limit", TOPIC): -1,
                ("pulsar_storage_backlog_quota_limit_time", TOPIC): -1,
                ("pulsar_publish_rate_limit_times", TOPIC): 0,
                ("pulsar_in_messages_total", TOPIC): 8,
                ("pulsar_in_bytes_total", TOPIC): stats["bytesInCounter"],
                ("pulsar_subscription_back_log", TOPIC, "s"): 6,
                ("pulsar_subscription_back_log_no_delayed", TOPIC, "s"): 3,
                ("pulsar_subscription_delayed", TOPIC, "s"): 3,
                ("pulsar_subscription_in_replay", TOPIC, "s"): 0,
                ("pulsar_subscription_unacked_messages", TOPIC, "s"): 3,
                ("pulsar_subscription_blocked_on_unacked_messages", TOPIC, "s"): 0,
                ("pulsar_subscription_consumers_count", TOPIC, "s"): 2,
                ("pulsar_subscription_out_messages_total", TOPIC, "s"): 5,
                ("pulsar_subscription_last_acked_timestamp", TOPIC, "s"): one["lastAckedTimestamp"],
                ("pulsar_subscription_last_consumed_timestamp", TOPIC, "s"): one["lastConsumedTimestamp"],
                ("pulsar_subscription_last_consumed_flow_timestamp", TOPIC, "s"): one["lastConsumedFlowTimestamp"],
                ("pulsar_subscription_last_mark_delete_advanced_timestamp", TOPIC, "s"): one[
                    "lastMarkDeleteAdvancedTimestamp"
                ],
                ("magnetar_metrics_topics_left_out",): 0,
            },
        )
        assert one["lastAckedTimestamp"] and one["lastConsumedTimestamp"] and one["lastConsumedFlowTimestamp"]
        assert stats["storageSize"] > 5 * 100
        assert metric(page, "pulsar_storage_backlog_age_seconds", TOPIC) > 0
        assert '"(other)"' not in page
        producer.close()
        settled(broker, {("pulsar_producers_count", TOPIC): 0, ("pulsar_broker_producers_count",): 1})
    finally:
        client.close()
        world.close()


def received(consumers: list[pulsar.Consumer]) -> tuple[pulsar.Consumer, pulsar.Message] | None:
    """The next message of any of them."""
    for consumer in consumers:
        try:
            return consumer, consumer.receive(50)
        except pulsar.Timeout:
            continue
    return None


def test_how_long_publishes_took_and_how_large_they_were(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], OFTEN).start()
    broker = world["solo"]
    client = connect(broker)
    seen: dict[str, float] = {}
    try:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        began = time.monotonic()
        for _ in range(20):
            producer.send(bytes(1_500))
        took_s = time.monotonic() - began
        page = settled(
            broker,
            {("pulsar_broker_publish_latency_count",): 20, ("magnetar_publish_latency_seconds_count",): 20},
        )
        # The client waited for each of them: the broker cannot have taken longer than all that.
        assert 0 < metric(page, "magnetar_publish_latency_seconds_sum") < took_s
        assert metric(page, "pulsar_broker_publish_latency_sum") == pytest.approx(
            1_000 * metric(page, "magnetar_publish_latency_seconds_sum")
        )
        quantiles = [metric(page, "pulsar_broker_publish_latency", f"{share}") for share in (0.0, 0.5, 0.99, 1.0)]
        assert quantiles == sorted(quantiles) and quantiles[0] > 0
        assert metric(page, "magnetar_publish_latency_seconds_bucket", "+Inf") == 20

        def interval() -> bool:
            """What the gauges tell of one interval in which something was written."""
            producer.send(bytes(1_500))
            page = scrape(broker)
            seen.clear()
            for line in page.splitlines():
                if line.startswith(("pulsar_storage_write_latency_", "pulsar_entry_size_")) and TOPIC in line:
                    seen[line.partition("{")[0]] = float(line.rsplit(" ", 1)[1])
            return bool(seen.get("pulsar_storage_write_latency_count")) and bool(
                metric(page, "pulsar_storage_write_rate", TOPIC)
            )

        eventually(interval)
        latencies = {name: value for name, value in seen.items() if name.startswith("pulsar_storage")}
        count, total_us = (latencies.pop(f"pulsar_storage_write_latency_{name}") for name in ("count", "sum"))
        assert sum(latencies.values()) == count and total_us > 0
        assert len(latencies) == 10
        assert seen["pulsar_entry_size_le_2_kb"] == seen["pulsar_entry_size_count"] == count
        assert count * 1_500 < seen["pulsar_entry_size_sum"] < count * 1_700
    finally:
        client.close()
        world.close()


def test_compaction_and_a_quota(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], OFTEN).start()
    broker = world["solo"]
    client = connect(broker)
    try:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(10):
            producer.send(bytes(1_000), partition_key=f"k{number % 3}")
        assert "pulsar_compaction_succeed_count{" not in scrape(broker), "there was none"
        broker.rest("PUT", f"{PATH}/compaction")
        page = settled_rows(broker, "pulsar_compaction_succeed_count")
        told = {
            name: metric(page, f"pulsar_compaction_{name}", TOPIC)
            for name in ("removed_event_count", "succeed_count", "failed_count", "compacted_entries_count")
        }
        assert told == {
            "removed_event_count": 7, "succeed_count": 1, "failed_count": 0, "compacted_entries_count": 3
        }  # fmt: skip
        assert metric(page, "pulsar_compaction_read_throughput", TOPIC) > 10_000
        assert metric(page, "pulsar_compaction_duration_time_in_mills", TOPIC) >= 0
        client.subscribe(TOPIC, "slow", initial_position=pulsar.InitialPosition.Earliest).close()
        quota = {"limitSize": -1, "limitTime": 1, "policy": "consumer_backlog_eviction"}
        broker.rest("POST", "/admin/v2/namespaces/public/default/backlogQuota?backlogQuotaType=message_age", quota)
        settled(broker, {("pulsar_storage_backlog_quota_limit_time", TOPIC): 1})
        page = settled_rows(broker, "pulsar_storage_backlog_quota_exceeded_evictions_total")
        assert metric(page, "pulsar_storage_backlog_quota_exceeded_evictions_total", TOPIC, "message_age") >= 1
    finally:
        client.close()
        world.close()


def settled_rows(broker: BrokerProcess, name: str) -> str:
    """Wait until a metric has a row that is not zero; the page."""

    def told() -> str:
        page = scrape(broker)
        return page if f"{name}{{" in page and metric(page, name, TOPIC) else ""

    return str(eventually(told))


def test_what_nobody_takes_is_dropped(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], OFTEN).start()
    broker = world["solo"]
    client = connect(broker)
    try:
        client.subscribe(FLEETING, "full", receiver_queue_size=1)
        producer = client.create_producer(FLEETING)

        def dropping() -> bool:
            for _ in range(20):
                producer.send(b"x")
            return metric(scrape(broker), "pulsar_subscription_msg_drop_rate", FLEETING, "full") > 0

        eventually(dropping)
    finally:
        client.close()
        world.close()


def test_what_waits_for_another_cluster(tmp_path: Path) -> None:
    world = World(tmp_path, ["here", "there"], OFTEN).start()
    broker = world["here"]
    client = connect(broker)
    try:
        broker.rest("POST", "/admin/v2/namespaces/public/default/replication", ["here", "there"])
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(5):
            producer.send(b"%d" % number)
        page = settled(
            broker,
            {
                ("pulsar_replication_backlog", TOPIC, "there"): 5,
                ("pulsar_replication_connected_count", TOPIC, "there"): 0,
                ("pulsar_replication_disconnected_count", TOPIC, "there"): 1,
                ("magnetar_link_lag_messages", "there"): 5,
            },
        )
        assert metric(page, "pulsar_replication_delay_in_seconds", TOPIC, "there") > 0
        assert metric(page, "magnetar_link_lag_seconds", "there") > 0
    finally:
        client.close()
        world.close()


def test_rows_of_what_is_gone_end_and_counters_of_what_is_there_do_not_fall(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], OFTEN).start()
    broker = world["solo"]
    client = connect(broker)
    try:
        producer = client.create_producer(TOPIC)
        producer.send(b"1")
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        consumer.receive(60_000)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        reader.read_next(60_000)
        settled(broker, {("pulsar_out_messages_total", TOPIC): 2})
        reader.close()
        consumer.unsubscribe()
        page = settled(broker, {("pulsar_subscriptions_count", TOPIC): 0})
        assert metric(page, "pulsar_out_messages_total", TOPIC) == 2
        assert "pulsar_subscription_out_messages_total{" not in page
        producer.close()
        broker.rest("DELETE", PATH)
        eventually(lambda: TOPIC not in scrape(broker))
    finally:
        client.close()
        world.close()


def test_what_readers_find_in_memory_and_what_they_read_from_the_disk(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"], OFTEN + "cache_bytes_max = 40000\n").start()
    broker = world["solo"]
    client = connect(broker)
    try:
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC, batching_enabled=False)

        def at_the_tail() -> str:
            producer.send(bytes(1_000))
            consumer.acknowledge(consumer.receive(20_000))
            page = scrape(broker)
            return page if metric(page, "pulsar_ml_cache_hits_rate") else ""

        page = eventually(at_the_tail)
        per_entry = metric(page, "pulsar_ml_cache_hits_throughput") / metric(page, "pulsar_ml_cache_hits_rate")
        assert 1_000 < per_entry < 1_200, "bytes of an entry"
        assert metric(page, "pulsar_storage_read_rate", TOPIC) == metric(page, "pulsar_ml_cache_misses_rate") == 0
        for _ in range(100):
            producer.send(bytes(1_000))
        seen: dict[str, float] = {}

        def evicted() -> bool:
            producer.send(bytes(1_000))
            return metric(scrape(broker), "pulsar_ml_cache_evictions") > 0

        eventually(evicted)

        def from_the_disk() -> bool:
            reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
            while reader.has_message_available():
                reader.read_next(20_000)
            reader.close()
            page = scrape(broker)
            seen["topic"] = metric(page, "pulsar_storage_read_rate", TOPIC)
            seen["broker"] = metric(page, "pulsar_broker_storage_read_rate")
            seen["misses"] = metric(page, "pulsar_ml_cache_misses_rate")
            seen["bytes"] = metric(page, "pulsar_ml_cache_misses_throughput")
            return all(seen.values())

        eventually(from_the_disk)
        assert 1_000 < seen["bytes"] / seen["misses"] < 1_200
        assert metric(page, "pulsar_storage_offloaded_size", TOPIC) == 0
    finally:
        client.close()
        world.close()


def test_the_process_and_its_machine(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"]).start()
    broker = world["solo"]
    try:
        page = scrape(broker)
        process = broker.process
        assert process is not None
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert 0 < metric(page, "process_cpu_seconds_total") < 1_000
        assert 1 << 20 < metric(page, "process_resident_memory_bytes") < int(fields[20]) * 2
        assert metric(page, "process_virtual_memory_bytes") > metric(page, "process_resident_memory_bytes")
        assert 0 <= time.time() - metric(page, "process_start_time_seconds") < 600
        before = metric(page, "process_open_fds")
        assert 0 < before < metric(page, "process_max_fds")
        client = connect(broker)
        try:
            client.create_producer(TOPIC)
            assert metric(scrape(broker), "process_open_fds") > before
        finally:
            client.close()
        for name in ("cpu", "memory", "bandwidth_in", "bandwidth_out"):
            assert 0 <= metric(page, f"pulsar_lb_{name}_usage") <= 100, name
        assert metric(page, "pulsar_lb_cpu_usage") and metric(page, "pulsar_lb_memory_usage")
    finally:
        world.close()
