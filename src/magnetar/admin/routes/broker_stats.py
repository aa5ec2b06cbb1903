"""Statistics of the whole broker on Pulsar's paths, as Pulsar Manager and `pulsar-admin broker-stats` read them.

Prometheus has all of it, and more, at `/metrics`; these paths are for tools that use nothing else.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.metrics.host import HOST
from magnetar.admin.unsupported.not_built import WHOLE_RANGE
from magnetar.metadata.errors import PreconditionFailed

broker_stats = Routes("Statistics of the broker", "/admin/v2/broker-stats")

TOPICS_PER_TURN: Final = 4
"""The number of topics whose statistics are collected before other work gets its turn."""

MEGABYTE: Final = 1 << 20


async def _topics(call: Call) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Namespace, name and statistics of each topic; others have their turn in between."""
    number = 0
    for namespace in call.resources.all_namespaces():
        for name in call.control.topics.names(str(namespace)):
            number += 1
            if number % TOPICS_PER_TURN == 0:
                await call.others()
            if call.control.topics.partitions(name) is not None:  # it may have been deleted while others had their turn
                yield str(namespace), name, await call.building.steps(call.control.statistics.topic_steps(name))
        await call.others()


@broker_stats.add(
    "GET",
    "/topics",
    "Statistics of all topics, by namespace, its one bundle, and domain.",
    errors=(412,),
    reply='{"public/default": {"0x00000000_0xffffffff": {"persistent": {"persistent://...": TopicStats}}}}',
)
@broker_stats.add("GET", "/destinations", "The same, by its older name.", errors=(412,), reply="as `topics`")
async def topics(call: Call) -> Any:
    """Includes the names that a broker of Pulsar writes here in addition to a topic's own statistics."""
    found: dict[str, Any] = {}
    most, size = call.services.answers.answer_bytes_max, 0
    async for namespace, name, stats in _topics(call):
        more = {
            "producerCount": len(stats.get("publishers", ())),
            "msgInCount": stats.get("msgInCounter", 0),
            "bytesInCount": stats.get("bytesInCounter", 0),
            "msgOutCount": stats.get("msgOutCounter", 0),
            "bytesOutCount": stats.get("bytesOutCounter", 0),
        }
        # Encoded at once: as objects, the statistics of all topics would take ten times the memory.
        text = msgspec.Raw(msgspec.json.encode(stats | more))
        size += len(text)
        if size > most:
            raise PreconditionFailed(
                f"statistics of all topics have over {most} bytes (http_answer_bytes_max): ask each topic for its stats"
            )
        of_bundle = found.setdefault(namespace, {}).setdefault(WHOLE_RANGE, {})
        of_bundle.setdefault(name.partition("://")[0], {})[name] = text
    return found


_SUMS: Final = {
    "brk_in_rate": "msgRateIn",
    "brk_in_tp_rate": "msgThroughputIn",
    "brk_out_rate": "msgRateOut",
    "brk_out_tp_rate": "msgThroughputOut",
    "brk_storage_size": "storageSize",
}


@broker_stats.add(
    "GET",
    "/metrics",
    "Rates and numbers of each namespace. `/metrics` has far more, for Prometheus.",
    reply='[{"metrics": {"brk_in_rate": 0.0, ...}, "dimensions": {"cluster": "us-west", "namespace": "public/default"}}]',
)
async def metrics(call: Call) -> Any:
    """Pulsar's names, where the meaning is the same."""
    sums: dict[str, dict[str, Any]] = {}
    async for namespace, _name, stats in _topics(call):
        one = sums.setdefault(
            namespace,
            dict.fromkeys((*_SUMS, "brk_no_of_topics", "brk_no_of_producers", "brk_no_of_subscriptions"), 0)
            | dict.fromkeys(("brk_no_of_consumers", "brk_no_of_replicators", "brk_msg_backlog"), 0),
        )
        subscriptions = stats.get("subscriptions", {}).values()
        for key, of_topic in _SUMS.items():
            one[key] += stats.get(of_topic, 0)
        one["brk_no_of_topics"] += 1
        one["brk_no_of_producers"] += len(stats.get("publishers", ()))
        one["brk_no_of_subscriptions"] += len(subscriptions)
        one["brk_no_of_consumers"] += sum(len(each.get("consumers", ())) for each in subscriptions)
        one["brk_no_of_replicators"] += len(stats.get("replication", {}))
        one["brk_msg_backlog"] += sum(each.get("msgBacklog", 0) for each in subscriptions)
    figures, cluster = call.control.statistics.broker_figures(), {"cluster": call.info.cluster}
    # Never an empty list: Java's tool fails on one, without a word.
    whole = {
        "brk_ml_count": figures.topics,
        "brk_ml_cache_used_size": call.control.statistics.broker().get("cacheSize", 0),
        "brk_ml_cache_hits_rate": figures.cache.hits_per_s,
        "brk_ml_cache_misses_rate": figures.cache.misses_per_s,
        "brk_ml_cache_hits_throughput": figures.cache.hit_bytes_per_s,
        "brk_ml_cache_misses_throughput": figures.cache.miss_bytes_per_s,
    }
    return [
        {"metrics": whole, "dimensions": cluster},
        *(
            {"metrics": one, "dimensions": cluster | {"namespace": namespace}}
            for namespace, one in sorted(sums.items())
        ),
    ]


def _usage(usage: float, limit: float) -> dict[str, float]:
    return {"usage": round(usage, 2), "limit": round(limit, 2)}


@broker_stats.add(
    "GET",
    "/load-report",
    "Load of this broker and its machine (Pulsar's LocalBrokerData).",
    reply='{"cpu": {"usage": 7.0, "limit": 200.0}, "numTopics": 3, ...}',
)
async def load_report(call: Call) -> Any:
    """Processors in percent, 100 each; memory in megabytes; the network in kilobits per second. Nothing is balanced by it."""
    usage = HOST.usage(await asyncio.to_thread(HOST.process))
    figures, broker, now_ms = (
        call.control.statistics.broker_figures(),
        call.control.statistics.broker(),
        call.services.now_ms(),
    )
    network = usage.network_bytes_per_s * 8 / 1000
    bundles = [f"{namespace}/{WHOLE_RANGE}" for namespace in sorted(figures.by_namespace)]
    stats = {
        bundle: {
            "msgRateIn": 0.0,
            "msgThroughputIn": 0.0,
            "msgRateOut": 0.0,
            "msgThroughputOut": 0.0,
            "consumerCount": 0,
            "producerCount": 0,
            "topics": figures.by_namespace[bundle.rpartition("/")[0]],
            "cacheSize": 0,
        }
        for bundle in bundles
    }
    async for namespace, _name, of_topic in _topics(call):
        one = stats.get(f"{namespace}/{WHOLE_RANGE}")
        if one is not None:
            for key in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut"):
                one[key] += of_topic.get(key, 0.0)
            one["producerCount"] += len(of_topic.get("publishers", ()))
            one["consumerCount"] += sum(
                len(each.get("consumers", ())) for each in of_topic.get("subscriptions", {}).values()
            )
    report: dict[str, Any] = {
        "loadReportType": "LocalBrokerData",
        "loadManagerClassName": "",
        "webServiceUrl": call.info.web_url,
        "webServiceUrlTls": call.info.web_url_tls or None,
        "pulsarServiceUrl": call.info.service_url,
        "pulsarServiceUrlTls": call.info.service_url_tls or None,
        "brokerVersionString": call.info.version,
        "startTimestamp": call.info.started_ms,
        "lastUpdate": now_ms,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "cpu": _usage(usage.cpu * usage.cpu_limit / 100, usage.cpu_limit),
        "memory": _usage(usage.memory_bytes / MEGABYTE, usage.memory_limit_bytes / MEGABYTE),
        "directMemory": _usage(broker.get("cacheSize", 0) / MEGABYTE, usage.memory_limit_bytes / MEGABYTE),
        "bandwidthIn": _usage(usage.in_bytes_per_s * 8 / 1000, network),
        "bandwidthOut": _usage(usage.out_bytes_per_s * 8 / 1000, network),
        "numTopics": figures.topics,
        "numBundles": len(bundles),
        "numConsumers": figures.consumers,
        "numProducers": figures.producers,
        "bundles": bundles,
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "protocols": {},
        "advertisedListeners": {},
        "lastStats": stats,
        "bundleStats": stats,
        "maxResourceUsage": round(max(usage.cpu, usage.memory, usage.bandwidth_in, usage.bandwidth_out) / 100, 4),
    }
    for key in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut"):
        report[key] = sum(float(one[key]) for one in stats.values())
    return report


@broker_stats.add("GET", "/mbeans", "Measurements of a Java machine: none.", reply="[]")
async def mbeans(call: Call) -> Any:
    """`/metrics` has this process's."""
    return []


@broker_stats.add("GET", "/bookieops", "Operations that wait for bookies: none.", reply="{}")
async def bookie_operations(call: Call) -> Any:
    """Messages are in the broker's own log."""
    return {}


ALLOCATOR: Final = {
    "numDirectArenas": 0,
    "numHeapArenas": 0,
    "numThreadLocalCaches": 0,
    "normalCacheSize": 0,
    "smallCacheSize": 0,
    "directPoolArenas": [],
    "heapPoolArenas": [],
    "usedDirectMemory": 0,
    "usedHeapMemory": 0,
}


@broker_stats.add("GET", "/allocator-stats/{allocator}", "Arenas of Netty's memory: none.", reply="AllocatorStats")
async def allocator(call: Call) -> Any:
    """Whichever allocator is asked for."""
    return ALLOCATOR
