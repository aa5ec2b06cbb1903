"""The tables of clusters.toml as structs: addresses, clusters, links, and every limit with its default and its reason.

`core.config` reads and checks the file; this module only has the structs.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from magnetar.core.addresses import SQLITE, is_host, port_of
from magnetar.core.errors import ConfigError
from magnetar.core.security import BookieSecurity, ZooKeeperSecurityConfig
from magnetar.core.tables import suggestion

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

ONLY_BROKER: Final = "a"
"""The name of the broker of a cluster that names none."""

Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Origin = Annotated[str, Meta(max_length=512)]
CountOrZero = Annotated[int, Meta(ge=0, le=10_000_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=366 * 24 * 3_600_000)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]


class Address(NamedTuple):
    """Host and TCP port. An IPv6 host is kept without its brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port` or `[ipv6]:port`.

        Raises:
            ConfigError: it is neither, or the port is not 1..65535.
        """
        host, separator, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            separator = ""
        if not separator or not is_host(host):
            raise ConfigError(f'{text!r} is not an address: write "host:port", such as "127.0.0.1:6650"')
        number = port_of(port)
        if not number:
            raise ConfigError(f"{text!r} has no valid port: a port is a number from 1 to 65535")
        return cls(host, number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def wildcard(self) -> bool:
        """Whether it listens on every interface, so that the address is not one that clients can connect to."""
        return self.host in {"0.0.0.0", "::", "*"}  # noqa: S104 - recognised, not bound

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")


class BrokerEndpoints(Struct, frozen=True, kw_only=True):
    """The addresses of one broker.

    Attributes:
        name: among the brokers of its cluster.
        pulsar: listen address of the Pulsar protocol.
        http: listen address of REST, metrics and the status page.
        advertised: `host:port` for clients and Spark executors.
        here: whether it runs on this machine (`magnetar up` starts it).
        pulsar_tls, https: listen addresses of the same by TLS; None: none.
        advertised_tls: `host:port` for clients and Spark executors with TLS, "" without.
        advertised_listeners, advertised_listeners_tls: name -> `host:port` for clients that ask for that name
            (`listener_name`), for example from outside a private network.
    """

    name: str
    pulsar: Address
    http: Address
    advertised: str
    here: bool = True
    pulsar_tls: Address | None = None
    https: Address | None = None
    advertised_tls: str = ""
    advertised_listeners: dict[str, str] = {}
    advertised_listeners_tls: dict[str, str] = {}

    def listeners(self) -> list[tuple[str, Address]]:
        """Key of the file and address of everything that it listens on."""
        named = (("pulsar", self.pulsar), ("http", self.http), ("pulsar_tls", self.pulsar_tls), ("https", self.https))
        return [(key, address) for key, address in named if address is not None]

    @property
    def service_url(self) -> str:
        """The URL for Pulsar clients."""
        return f"pulsar://{self.advertised}"

    @property
    def service_url_tls(self) -> str:
        """The URL for Pulsar clients by TLS, "" without."""
        return f"pulsar+ssl://{self.advertised_tls}" if self.advertised_tls else ""

    def listener_urls(self) -> dict[str, tuple[str, str]]:
        """Name of a listener -> what its clients connect to, and by TLS; "" for what it has not."""
        plain, tls = self.advertised_listeners, self.advertised_listeners_tls
        return {
            name: (
                f"pulsar://{plain[name]}" if name in plain else "",
                f"pulsar+ssl://{tls[name]}" if name in tls else "",
            )
            for name in (*plain, *tls)
        }

    @property
    def admin_url(self) -> str:
        """The URL of the REST interface, by TLS if it is configured; with the advertised host if it listens on every
        interface.
        """
        return self.web_url_tls or self.web_url

    @property
    def web_url_tls(self) -> str:
        """The URL of the REST interface by TLS, "" without."""
        return self._web_url("https", self.https, self.advertised_tls or self.advertised) if self.https else ""

    @property
    def web_url(self) -> str:
        """The URL of the REST interface without TLS."""
        return self._web_url("http", self.http, self.advertised)

    @staticmethod
    def _web_url(scheme: str, address: Address, advertised: str) -> str:
        if address.wildcard:
            address = Address(Address.parse(advertised).host, address.port)
        return f"{scheme}://{address}"


class ClusterConfig(Struct, frozen=True, kw_only=True):
    """One cluster of the file.

    Attributes:
        name: as in `[clusters.NAME]`.
        brokers: one or more, in the order of the file. A cluster without `[clusters.NAME.brokers]` has one, `ONLY_BROKER`.
        storage: `local`, a folder of this machine; or `bookkeeper`, Apache BookKeeper, so that another broker can take over.
        store: with `bookkeeper`: `zookeeper://host:port/path`, the node below which is recorded which broker serves, and which
            ledgers hold the log.
        ledgers: the node of ZooKeeper that has BookKeeper's own metadata.
        ensemble: bookies that get each entry of the log.
        ack_quorum: bookies that have an entry on disk before it is confirmed.
        bookies, zookeeper: how the connections to these servers are secured.
    """

    name: str
    brokers: tuple[BrokerEndpoints, ...]
    storage: Literal["local", "bookkeeper"] = "local"
    store: str = ""
    ledgers: str = "/ledgers"
    ensemble: int = 3
    ack_quorum: int = 2
    bookies: BookieSecurity = BookieSecurity()
    zookeeper: ZooKeeperSecurityConfig = ZooKeeperSecurityConfig()

    def broker(self, name: str) -> BrokerEndpoints:
        """One broker by name; with the name "" the only one.

        Raises:
            ConfigError: there is none of this name, or there are several; says which there are.
        """
        for broker in self.brokers:
            if broker.name == name or (not name and len(self.brokers) == 1):
                return broker
        if not name:
            raise ConfigError(
                f"cluster {self.name} has {len(self.brokers)} brokers: name one of them: {', '.join(self.titles())}"
            )
        known = [broker.name for broker in self.brokers]
        raise ConfigError(f"cluster {self.name} has no broker {name!r}{suggestion(name, known)}")

    def title(self, broker: BrokerEndpoints) -> str:
        """One of its brokers in messages, and for `magnetar broker`: `us-west/a`, or `us-west` if there is no other one."""
        return f"{self.name}/{broker.name}" if len(self.brokers) > 1 else self.name

    def titles(self) -> list[str]:
        """`title` of each broker."""
        return [self.title(broker) for broker in self.brokers]

    def local_brokers(self) -> list[BrokerEndpoints]:
        """The brokers of this machine, in the order of the file."""
        return [broker for broker in self.brokers if broker.here]

    @property
    def service_url(self) -> str:
        """The URL for Pulsar clients. It has the addresses of all brokers."""
        return _joined(broker.service_url for broker in self.brokers)

    @property
    def service_url_tls(self) -> str:
        """The same by TLS. It has the addresses of the brokers with TLS, "" if there are none."""
        return _joined(broker.service_url_tls for broker in self.brokers)

    @property
    def web_url(self) -> str:
        """The URL of the REST interface without TLS, as Pulsar writes it for several brokers: `http://h1:p1,h2:p2`."""
        return _joined(broker.web_url for broker in self.brokers)

    @property
    def web_url_tls(self) -> str:
        """The same by TLS. It has the addresses of the brokers with TLS, "" if there are none."""
        return _joined(broker.web_url_tls for broker in self.brokers)

    @property
    def admin_urls(self) -> tuple[str, ...]:
        """The URL of the REST interface of each broker (`BrokerEndpoints.admin_url`)."""
        return tuple(broker.admin_url for broker in self.brokers)

    @property
    def admin_url(self) -> str:
        """The first of `admin_urls`, for commands in messages."""
        return self.admin_urls[0]


def _joined(urls: Iterable[str]) -> str:
    """One URL with the addresses of several, as Pulsar's clients read it; "" for none."""
    given = [url for url in urls if url]
    scheme = given[0].partition("://")[0] if given else ""
    return f"{scheme}://" + ",".join(url.partition("://")[2] for url in given) if given else ""


class LinkConfig(Struct, frozen=True, kw_only=True):
    """One direction of replication.

    Attributes:
        source: cluster whose messages travel.
        target: cluster they travel to.
        filter: SQL over entry columns, "" for everything.
    """

    source: str
    target: str
    filter: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.target}"


class NamespaceConfig(Struct, frozen=True, kw_only=True):
    """The settings of a namespace at a broker's first start.

    Attributes:
        clusters: its replication clusters; `"all"` of the file is already spelled out.
        replication_start: whether a new link sends retained messages ("earliest") or only new ones ("latest").
    """

    clusters: tuple[str, ...]
    replication_start: Literal["earliest", "latest"] = "earliest"


class ReplicationLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[replication.limits]` table: what networks, memory and patience differ in. Sizes in bytes, times in ms."""

    progress_ms: Milliseconds = 500
    """A cluster that sends or accepts no byte for this time is left out of this batch. Everything in the batch waits
    for it: raise it only if the network itself pauses for longer."""
    answer_ms: Milliseconds = 2_000
    """Time for one answer outside batches: a handshake of 1,000 topics, a durable commit of as many cursors."""
    window_bytes: Bytes = 32 * MIB
    """Ceiling of the bytes sent to a cluster and not yet answered, per task. Below it the window is twice bandwidth times round
    trip, and 8 MiB at least. 32 MiB carry 160 MB/s over 200 ms. A task reads as much ahead from a source that is far."""
    buffer_bytes_max: Bytes = 32 * MIB
    """Limit of the bytes held for one cluster beyond the window before a task waits for it: memory of each executor
    process."""
    tail_batch_bytes_max: Bytes = 16 * MIB
    """Limit of a batch while links are at their tail: about 100 ms of moving bytes, in addition to 160 ms of Spark's
    own."""
    long_batch_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 30_000
    """How long a batch of the tail lasts, with `tail = "long-batches"`. A batch costs some 50 ms of processor; while it lasts,
    Spark shows no progress of its query."""
    link_window_bytes_max: Bytes = 32 * MIB
    """Handed out by a source and not confirmed by the destination, per link, with long batches: bandwidth times round trip, as
    32 MiB for 100 MB/s over 300 ms. The tasks hold as much in memory for a cluster that does not answer."""
    bulk_batch_bytes_max: Bytes = 256 * MIB
    """Limit of a batch that catches up: large enough that Spark's own 160 ms are a small part of it. After a kill this
    much is sent twice, and ignored by its destination."""
    handshake_idle_ms: Milliseconds = 5_000
    """How often an idle link makes a handshake. Keep it below the brokers' `identity_silence_ms`, so that a running
    cluster does not lose its name."""
    blocked_retry_ms_max: Milliseconds = 60_000
    """A blocked topic is tried again after pauses of 1 s up to this: its cause ends only when an operator acts."""
    lease_ms: Annotated[int, Meta(ge=1_000, le=60_000)] = 10_000
    """After this time without a message from a pipeline, its stand-by takes over; brokers grant 60 s at most."""
    patience_ms: Milliseconds = 15_000
    """How long `--once` waits for a cluster that does not answer, or for another pipeline's lease."""


class ReplicationConfig(Struct, frozen=True, kw_only=True):
    """The pipeline between the clusters.

    Attributes:
        master: Spark master URL. `local[2,4]`: two threads, four attempts, for one failed task must not end a query.
        token_file: what links present: their shared secret, or, where there is authentication, a token (JWT); mode 0600.
        tls: whether links connect by TLS.
        tail: how topics at their end are carried: by long batches, within milliseconds, or by short ones, within 200 ms. Where
            the installed Spark does not allow long batches, short ones are used.
        checkpoint_dir: Spark's offsets and commits. Losing it costs nothing: the brokers' cursors are the truth.
        spark: further Spark settings, as Spark names them.
        limits: of the pipeline.
    """

    master: str
    token_file: Path
    checkpoint_dir: Path
    spark: dict[str, str]
    limits: ReplicationLimits = ReplicationLimits()
    tls: bool = False
    tail: Literal["long-batches", "short-batches"] = "long-batches"


class SubscriptionsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicated subscriptions: the broker's defaults."""

    mode: Literal["exact", "snapshot"] = "exact"
    """`exact` replicates acknowledged sets, `snapshot` is PIP-33; a namespace may choose another mode."""
    snapshot_interval_ms: Milliseconds = 1_000
    """Time between two snapshots of a topic in use; Pulsar's default. The mean lag is half of it plus a round trip."""
    snapshot_timeout_s: Count = 30
    """A snapshot that is not answered after this time is given up; Pulsar's default."""
    max_cached_snapshots: Count = 30
    """Limit per subscription: a snapshot is a few positions; fewer snapshots only make updates coarser."""
    ack_sync_interval_ms: Milliseconds = 100
    """How long acknowledgements are collected at most before they are written. It is half of the time that the topic's link needs
    if that is shorter, but 10 ms at least. A topic in use writes ten markers per second over a slow link, a hundred over a fast
    one; all topics of a broker together write at most 100 per second before this time is over."""
    markers_per_s_max: CountOrZero = 500
    """Limit of the markers of acknowledged sets that a broker writes per second for all topics; above it topics collect
    for longer. Ten busy topics stay below it; a thousand write one marker every 2 s each. 0: no limit."""
    set_bytes_max: Bytes = 16 * MIB
    """Above this size of its stored set a subscription gets a warning, and the set is stored completely: 16 MiB are
    millions of single runs, many times the limit of a cursor."""


class DeduplicationConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Publisher deduplication."""

    enabled: bool = False
    """The broker's default; namespaces and topics override it. Off, as in Pulsar."""
    producers_max: Count = 10_000
    """Limit of the producer names whose numbers a topic keeps; beyond it the least recently used name is forgotten.
    Pulsar's default."""
    producer_inactive_s: Count = 6 * 3600
    """A producer name that is unused for this time is forgotten; Pulsar's default."""
    snapshot_entries: Count = 1_000
    """The numbers are stored after this many entries, which is the most that a start after a crash replays. Pulsar's
    default."""
    snapshot_s: CountOrZero = 120
    """The numbers are also stored after this time if they have changed; 0: only after `snapshot_entries`. Pulsar's
    default."""
    replay_entries_max: Count = 1_000_000
    """Limit of the newest entries that are read when deduplication is switched on for a topic with messages: producers
    wait for a few seconds at most."""
    names_begin_with_role: bool = False
    """Whether a producer's name must begin with its role, as subscriptions with `subscription-auth-mode` Prefix, so
    that no producer can use the numbers of another role's name. It applies to topics with deduplication if there is
    authentication. It does not apply to superusers and administrators. Off, as in Pulsar, whose producers may have any
    name."""


class MetadataConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[metadata]` table: tenants, namespaces and policies kept the same in clusters that share no store."""

    store: str = SQLITE
    """Where this cluster keeps its metadata: `sqlite`, a file in the data folder, or `zookeeper://host:2181/path`
    (several hosts with commas), where each cluster has a node of its own below the path. There is no automatic
    migration between them."""
    zookeeper: ZooKeeperSecurityConfig = ZooKeeperSecurityConfig()
    metadata_sync_topic: str = ""
    """The topic for changes, which is replicated to all clusters: `persistent://pulsar/system/metadata-sync`. Use the
    same topic in every cluster. Empty: metadata is not synchronised."""
    metadata_sync_snapshot_s: Count = 600
    """How often each cluster publishes all its metadata, so that a cluster that missed a change catches up."""
    metadata_clock_ahead_ms: Milliseconds = 60_000
    """A change that is further ahead of this cluster's clock waits until the clock reaches its time; a cluster whose
    own clock is further ahead refuses changes. Clocks under NTP are a thousand times closer."""
    metadata_sync_exclude: tuple[str, ...] = ()
    """Patterns of documents and fields that stay local, such as `namespaces/acme/*` or
    `namespaces/*:retention_policies`."""


class BrokerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[broker]` table: every limit of a broker. Sizes in bytes, times in ms."""

    fsync: Literal["always", "interval", "never"] = "always"
    """When a publish is answered: `always` after its bytes are on disk. With `interval` a power cut loses up to
    `fsync_interval_ms` of answered messages, with `never` all that the kernel had not written. Replicated topics always
    use `always`."""
    fsync_interval_ms: Milliseconds = 1_000
    """Time between two syncs under `fsync = "interval"`."""

    message_bytes_max: Bytes = 5 * MIB
    """Limit of one message. The default is Pulsar's; clients assume it until CONNECTED gives another value."""
    command_bytes_max: Annotated[int, Meta(ge=4 * KIB, le=64 * MIB)] = 512 * KIB
    """Limit of a command without its message: twice the largest schema, which has 256 kB. Lists of message ids may fill
    a frame, because they are handled in portions."""
    client_metadata_bytes_max: Bytes = 16 * KIB
    """Limit of the metadata (properties) of one producer or consumer, which the broker keeps, and shows in `stats`, as
    long as it is open."""
    client_metadata_bytes_per_connection_max: Bytes = 4 * MIB
    """Limit of this metadata for all producers and consumers of one connection; the first 512 bytes of each do not
    count."""
    client_metadata_bytes_per_topic_max: Bytes = 8 * MIB
    """Limit of this metadata for one topic, because one answer to `stats` shows all of it."""
    client_metadata_bytes_total_max: Bytes = 64 * MIB
    """Limit of this metadata for the whole broker. Above it, producers and consumers with up to 512 bytes are still
    accepted."""
    segment_bytes: Bytes = 256 * MIB
    """A segment file is closed at this size: small enough to rewrite in the background, and large enough that a backlog
    of 1 TB has 4,000 files."""
    cache_bytes_max: Bytes = 64 * MIB
    """Limit of recent entries in memory for tailing readers: a few seconds of a busy broker's writes."""
    ledger_entries_max: Count = 50_000
    """A ledger is closed after this many entries; Pulsar's default."""
    ledger_bytes_max: Bytes = 2 * GIB
    """A ledger is closed after this many bytes; Pulsar's default."""
    ledger_age_ms_max: Milliseconds = 4 * 3_600_000
    """A ledger is closed at this age, so that retention by time can delete it; Pulsar's default."""
    disk_free_bytes_min: CountOrZero | Bytes = 64 * MIB
    """Publishes are refused below this much free space, so that cursors and metadata can still be written."""

    retention_unsubscribed_ms: Milliseconds = 7 * 24 * 3_600_000
    """How long a topic without durable subscriptions keeps its messages."""
    retention_unsubscribed_bytes: Bytes = 10 * GIB
    """How many bytes a topic without durable subscriptions keeps."""
    orphan_cursor_ms: Milliseconds = 7 * 24 * 3_600_000
    """How long the cursor of a removed link holds back deletion."""
    retention_interval_ms: Milliseconds = 60_000
    """Time between two searches for ledgers that can be deleted."""
    cursor_flush_ms: Milliseconds = 20
    """Acknowledgements of this time are stored together; an answered one is durable within 50 ms."""
    cursor_ranges_max: Count = 10_000
    """Limit of the stored ranges of individually acknowledged messages per cursor; Pulsar's default."""

    keep_alive_ms: Milliseconds = 30_000
    """A silent connection is pinged after this time, and closed after twice this time; Pulsar's default."""
    handshake_ms_max: Milliseconds = 10_000
    """A connection that has not sent CONNECT after this time is closed, so that open sockets do not accumulate."""
    topic_migrated_to_cpp: bool = False
    """Whether consumers that a failover moves get TOPIC_MIGRATED even if they use the C++ client (as Python and Node
    do). With it they reconnect to the new cluster; without it they ask their own cluster first. Up to version 4.2 the
    process of that client ends if it has a debug logger, or any `logging.Logger` of Python."""
    connections_max: Count = 10_000
    """Limit per broker: each connection needs a socket and buffers. The hard limit of open files (`ulimit -Hn`), to
    which a broker raises its own, must be above the sum of this and `http_connections_max`."""
    dispatch_messages_per_s: CountOrZero = 0
    """Messages per second for all consumers of the broker together (0: no limit), so that a small machine has time for
    publishers while consumers catch up. Pulsar's dispatchThrottlingRateInMsg."""
    dispatch_bytes_per_s: CountOrZero | Bytes = 0
    """As `dispatch_messages_per_s`, in bytes; Pulsar's
    dispatchThrottlingRateInByte."""
    connections_per_address_max: CountOrZero = 0
    """Limit of the connections of one address (for IPv6: of one /64), so that one machine cannot use all; 0: four
    fifths of `connections_max`. Behind one proxy or NAT all clients have one address: if there are no other clients,
    make both limits equal."""
    pending_publish_bytes_max: Bytes = 64 * MIB
    """Back-pressure: above it a broker stops reading from publishers until the disk has caught up."""

    topics_max: Count = 100_000
    """Limit per broker: a loaded topic takes some kilobytes of memory."""
    auto_create_topics: bool = True
    """Whether a producer or consumer of an unknown topic creates it."""
    producers_per_topic_max: Count = 10_000
    """Limit per topic: a client in a loop must not fill the memory."""
    consumers_per_topic_max: Count = 10_000
    """Limit per topic, as for producers."""
    subscriptions_per_topic_max: Count = 1_000
    """Limit per topic: each durable subscription holds back retention and has a cursor."""
    schema_versions_per_topic_max: Count = 10_000
    """Limit per topic, deletions included: ten times the number for which the broker is measured. More means that a
    producer generates schemas."""
    schemas_bytes_max: Bytes = 512 * MIB
    """Limit of the definitions of all schemas of a broker, which are in memory: two million of the usual size."""
    handles_per_connection_max: Count = 10_000
    """Limit of the producers, and separately of the consumers, of one connection; those that are being opened count."""
    topic_watchers_per_connection_max: Count = 1_000
    """Limit of watchers of topic lists; a client has one per pattern consumer. Beyond this and the next two limits,
    clients ask for the whole list at intervals."""
    topic_patterns_max: Count = 1_000
    """Limit per broker of different watched patterns: each new topic is matched with all patterns of its namespace. A
    pattern of many clients counts once, unless their roles may see only single topics."""
    topic_pattern_bytes_max: Count = 1_000
    """Limit of such a pattern: twice the longest name of a topic. Pulsar's default is 50."""
    unacked_messages_per_consumer_max: CountOrZero = 50_000
    """Back-pressure on Shared and Key_Shared consumers; 0: no limit. Pulsar's default."""
    unacked_messages_per_subscription_max: CountOrZero = 200_000
    """Back-pressure on a whole subscription; 0: no limit. Pulsar's default."""
    redeliveries_max: Count = 100_000
    """Limit of message ids that wait for redelivery per subscription; beyond it the subscription reads the log
    again."""
    delayed_messages_max: Count = 4_000_000
    """Limit of delayed messages in a subscription's memory, 22 bytes each; later messages wait until some of these are
    due."""

    link_read_bytes_max: Bytes = 8 * MIB
    """Limit of one answer to a link's read."""
    link_poll_ms_max: Milliseconds = 20_000
    """The longest time for which a link's poll waits for news: below every common idle timeout of networks."""
    identity_silence_ms: Milliseconds = 10_000
    """A new uuid under a known cluster name is accepted after the old one was silent for this time."""

    http_connections_max: Count = 2_048
    """Limit per broker of `http` and `https` together: beyond it connections are closed. Pulsar's default."""
    http_connections_per_address_max: CountOrZero = 0
    """Limit of the connections of one address, as `connections_per_address_max`; 0: four fifths of
    `http_connections_max`."""
    websocket: bool = True
    """Whether producers, consumers and readers may connect by WebSocket (docs/websocket.md)."""
    websocket_origins: list[Origin] = []
    """Origins of web pages (`https://app.example.com`; `*`: any) whose WebSockets need no token in the URL. For a page
    of any site, a browser adds the password that its user has entered."""
    http_body_bytes_max: Bytes = 1 * MIB
    """Limit of the body of an admin request."""
    http_answers_bytes_max: Annotated[int, Meta(ge=1 * MIB)] = 128 * MIB
    """Limit of the memory of all large HTTP answers (over 16 KiB), from before they are made until they are read;
    others wait. It is twice the largest answer, so that one slow reader leaves room for others."""
    http_answer_bytes_max: Annotated[int, Meta(ge=1 * MIB)] = 64 * MIB
    """Limit of one answer: the names of 100,000 topics of 512 bytes are 50 MB. A larger answer is refused."""
