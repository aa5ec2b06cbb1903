"""The settings for `pulsar-admin brokers get-runtime-config`: this broker's settings under Pulsar's names, if the
meaning is the same.

`pulsar-admin clusters list` requests it too, to mark the cluster that it talks to.
"""

from magnetar.core.config import Config
from magnetar.core.settings import BrokerEndpoints
from magnetar.metadata.policies.namespace import Policies, RetentionPolicies
from magnetar.runtime.network.connection_slots import per_address


def runtime_settings(config: Config, cluster: str, endpoints: BrokerEndpoints, policies: Policies) -> dict[str, str]:
    """Pulsar's names with this broker's values, as texts.

    Args:
        config: the configuration.
        cluster: the name of this cluster.
        endpoints: the addresses of this broker.
        policies: the defaults of topics and namespaces.
    """
    broker, deduplication = config.broker, config.deduplication
    security, tls = config.security.authentication, endpoints.pulsar_tls
    retention = policies.retention_policies or RetentionPolicies()
    values: dict[str, object] = {
        "clusterName": cluster,
        "bindAddress": endpoints.pulsar.host,
        "advertisedAddress": endpoints.advertised.rpartition(":")[0].strip("[]"),
        "brokerServicePort": endpoints.pulsar.port,
        "brokerServicePortTls": tls.port if tls else "",
        "webServicePort": endpoints.http.port,
        "webServicePortTls": endpoints.https.port if endpoints.https else "",
        "authenticationEnabled": security.enabled,
        "authorizationEnabled": security.enabled,
        "anonymousUserRole": security.anonymous_role,
        "allowAutoTopicCreation": broker.auto_create_topics,
        "brokerDeduplicationEnabled": deduplication.enabled,
        "brokerDeduplicationEntriesInterval": deduplication.snapshot_entries,
        "brokerDeduplicationMaxNumberOfProducers": deduplication.producers_max,
        "brokerDeduplicationProducerInactivityTimeoutMinutes": deduplication.producer_inactive_s // 60,
        "brokerDeduplicationSnapshotIntervalSeconds": deduplication.snapshot_s,
        "defaultRetentionSizeInMB": retention.size_mb,
        "defaultRetentionTimeInMinutes": retention.time_minutes,
        "keepAliveIntervalSeconds": broker.keep_alive_ms // 1_000,
        "brokerMaxConnections": broker.connections_max,
        "brokerMaxConnectionsPerIp": per_address(broker.connections_max, broker.connections_per_address_max),
        "managedLedgerMaxEntriesPerLedger": broker.ledger_entries_max,
        "managedLedgerMaxSizePerLedgerMbytes": broker.ledger_bytes_max >> 20,
        "maxConsumersPerTopic": broker.consumers_per_topic_max,
        "maxHttpServerConnections": broker.http_connections_max,
        "maxMessageSize": broker.message_bytes_max,
        "maxProducersPerTopic": broker.producers_per_topic_max,
        "maxSubscriptionsPerTopic": broker.subscriptions_per_topic_max,
        "maxUnackedMessagesPerConsumer": broker.unacked_messages_per_consumer_max,
        "maxUnackedMessagesPerSubscription": broker.unacked_messages_per_subscription_max,
        "replicatedSubscriptionsSnapshotFrequencyMillis": config.subscriptions.snapshot_interval_ms,
        "replicatedSubscriptionsSnapshotMaxCachedPerSubscription": config.subscriptions.max_cached_snapshots,
        "replicatedSubscriptionsSnapshotTimeoutSeconds": config.subscriptions.snapshot_timeout_s,
        "ttlDurationDefaultInSeconds": policies.message_ttl_in_seconds or 0,
    }
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in sorted(values.items())}
