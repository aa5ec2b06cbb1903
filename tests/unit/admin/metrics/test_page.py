"""Series of one scrape."""

import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from magnetar.admin.metrics import families as metricfamilies
from magnetar.admin.metrics.host import Process, Usage
from magnetar.admin.metrics.page import Figures, Snapshot
from magnetar.broker.admin.statistics import BrokerFigures, CompactionFigures, TopicFigures
from magnetar.broker.catalog.maintenance import Totals
from magnetar.broker.links.states import LinkState
from magnetar.broker.statistics.cardinality import Rows, Series, Shown, Traffic
from magnetar.broker.statistics.latency import Connections, PublishLatency, Writes
from magnetar.broker.waiting.registration import Brokers, Registration
from magnetar.core.ids import NONE
from magnetar.storage.entries import StoredEntry
from tests.support.tools import tool

TOPIC = "persistent://public/default/t"

RATES = {"msgRateIn": 1, "msgRateOut": 2, "msgThroughputIn": 3, "msgThroughputOut": 4}


def entry(size: int) -> StoredEntry:
    return StoredEntry(1, 0, 0, 1, 0, 0, "", 0, 0, NONE, bytes(size))


def link_state(source: str, target: str, **changed: Any) -> LinkState:
    """A link in good health, unless said otherwise."""
    numbers = ("messages_sent", "bytes_sent", "skipped_messages", "gap_messages", "skipped_messages_total",
               "gap_messages_total", "lag_messages", "lag_bytes", "lag_ms")  # fmt: skip
    state: Any = dict.fromkeys(numbers, 1) | {
        "source": source,
        "target": target,
        "state": "up",
        "detail": "",
        "topics": [],
    }
    return state | {"throttle_bytes_per_s": None, "paused": False, "throttled": False, "since_ms": 1} | changed  # type: ignore[no-any-return]


def read_all(rows: Rows[Any], counted: dict[Any, tuple[int, ...]]) -> Shown[Any]:
    """Read all of them, of which one may have a row."""
    rows.begin(1, counted.__contains__)
    for key, now in counted.items():
        rows.read(key, now)
    return rows.end()


def exposed(snapshot: Snapshot) -> str:
    """As Prometheus reads it."""
    return "".join(Figures(snapshot, "here", "1").page())


def scraped(snapshot: Snapshot) -> Iterable[Metric]:
    """The families that a scrape finds."""
    return text_string_to_metric_families(exposed(snapshot))


def full() -> Snapshot:
    """Something of everything."""
    latency, writes = PublishLatency(), Writes(0)
    latency.add(0.003, 2)
    writes.add([entry(600), entry(100)], 0.003)
    writes.end(2_000)
    counted = (1, 2, 3, 4)
    topic: Any = {
        "topic": TOPIC, "lag_messages": 3, "lag_ms": 1500, "paused": False, "blocked": "schema", "blocked_at": "7:1",
        "schema_conflict": {
            "source": {"version": 1, "type": "AVRO", "digest": "ab"},
            "target": {"version": None},
            "strategy": "FULL",
        },
    }  # fmt: skip
    series = Series()
    series.begin(10, 10, lambda _topic: True, lambda _key: True)
    series.read(TOPIC, Traffic(*counted), [("s", (3, 4))])
    topics, subscriptions = series.end()
    return Snapshot(
        {"security": {"in": 1}, "schemas": {"refused_incompatible": 1}},
        {
            TOPIC: {
                "storageSize": 9,
                "subscriptions": {"s": {"msgBacklog": 2, "consumers": [{}]}},
                "replication": {"there": RATES},
            }
        },
        [link_state("here", "there", topics=[topic])],
        [
            {
                "topic": TOPIC,
                "subscription": "s",
                "setBytes": 1,
                "runs": 1,
                "pending": 0,
                "unsent": 0,
                "towards": {"there": {"lagMessages": 1, "lagMs": 500}},
            }
        ],
        {"markers_written": 1},
        {"there": {"schemas": 1}},
        {"enabled": True, "documents": 1, "clusters": {"there": {"agrees": True}}},
        BrokerFigures(1, 1, 1, 1, {"public/default": 1}, Totals(backlog=2), Connections(3, 2, 1, 1), latency),
        {
            TOPIC: TopicFigures(
                writes.latency.last_interval,
                writes.size.last_interval,
                CompactionFigures(1, 2, 3, 4, 5.0, 6),
                1,
                2,
                3,
                {"message_age": 1},
                {"s": 0.5},
            )
        },
        topics,
        subscriptions,
        process=Process(1.5, 2, 3, 4.0, 5, 6),
        usage=Usage(1.0, 2.0, 3.0, 4.0),
        brokers=Brokers(Registration(broker="a"), (Registration(broker="a"), Registration(broker="b"))),
    )


def test_of_what_has_no_series_of_its_own_counts_are_summed_and_the_newest_time_counts() -> None:
    told = [{"totalMsgExpired": 3, "lastExpireTimestamp": at_ms} for at_ms in (700, 900, 800)]
    topics = {TOPIC: {"subscriptions": dict(zip("abc", told, strict=True))}}
    rows = read_all(Rows[tuple[str, str]](2), {(TOPIC, name): (0, 0) for name in "abc"})
    found = {
        (sample.name.removeprefix("pulsar_subscription_"), sample.labels["subscription"]): sample.value
        for family in scraped(Snapshot({}, topics, subscription_rows=rows))
        for sample in family.samples
        if family.type == "gauge" and sample.name.endswith(("expired", "expire_timestamp"))
    }
    assert found == {
        ("total_msg_expired", "a"): 3,
        ("total_msg_expired", "(other)"): 6,
        ("msg_rate_expired", "a"): 0,
        ("msg_rate_expired", "(other)"): 0,
        ("last_expire_timestamp", "a"): 700,
        ("last_expire_timestamp", "(other)"): 900,
    }


def test_every_metric_is_in_the_table_and_of_its_type_with_its_labels() -> None:
    known = {family.name: family for section in metricfamilies.SECTIONS for family in section.families}
    assert len(known) == sum(len(section.families) for section in metricfamilies.SECTIONS)
    text = exposed(full())
    told = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert told.keys() == known.keys()
    for name, family in known.items():
        assert told[name] == ("gauge" if family.kind == "info" else family.kind), name
        rows = re.findall(rf"^{name}(?:_count|_bucket)?{{(.*)}} \S+$", text, re.MULTILINE)
        assert rows, f"{name} has no row: nobody would see whether it can be written"
        labels = set(re.findall(r'(\w+)="', rows[0])) - {"quantile", "le"}
        assert labels == {"cluster", *family.labels}, name


def test_entries_are_told_by_latency_and_size() -> None:
    found = {
        sample.name: sample.value
        for family in scraped(full())
        for sample in family.samples
        if sample.name.startswith(("pulsar_storage_write_latency", "pulsar_entry_size")) and sample.value
    }
    assert found == {
        "pulsar_storage_write_latency_le_5": 2,
        "pulsar_storage_write_latency_count": 2,
        "pulsar_storage_write_latency_sum": pytest.approx(6_000),
        "pulsar_entry_size_le_128": 1,
        "pulsar_entry_size_le_1_kb": 1,
        "pulsar_entry_size_count": 2,
        "pulsar_entry_size_sum": 700,
    }


@pytest.fixture
def generator() -> ModuleType:
    """tools/generate_metrics.py as a module."""
    return tool("generate_metrics")


def test_the_page_is_what_the_table_gives(generator: ModuleType) -> None:
    page = Path(generator.PAGE)
    assert page.read_text(encoding="utf-8") == generator.page(), "run `make docs`"
    names = set(re.findall(r"`((?:pulsar|magnetar|process)_\w+)`", page.read_text(encoding="utf-8")))
    assert names >= {family.name for section in metricfamilies.SECTIONS for family in section.families}


def test_labels_are_escaped_as_prometheus_reads_them() -> None:
    name = 'persistent://public/default/a"b\\c\nd'
    rows = read_all(Rows[str](4), {name: (1, 2, 3, 4)})
    found = [
        sample
        for family in scraped(Snapshot({}, topic_rows=rows))
        for sample in family.samples
        if sample.name == "pulsar_in_messages_total"
    ]
    assert [(one.labels, one.value) for one in found] == [
        ({"cluster": "here", "namespace": "public/default", "topic": name}, 1)
    ]
