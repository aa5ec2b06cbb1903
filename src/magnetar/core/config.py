"""Reading and checking clusters.toml: the clusters, the links between them, and all limits.

`load` reads the file, `builtin` is the configuration without a file, `single` is one broker alone. Every mistake in a
file is reported as one `ConfigError` line that names the file, the key and what would be right. Tables are checked
field by field rather than by one `msgspec.convert` of the whole file, because msgspec's path (`$.clusters[...].http`)
does not say which cluster it means.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Meta, Struct

from magnetar.core.addresses import SQLITE, BrokerAddresses, is_zookeeper_path, parse_zookeeper
from magnetar.core.errors import ConfigError, NameNotValid
from magnetar.core.names import NamespaceName, TopicName, check_cluster
from magnetar.core.security import Security, bookie_security, zookeeper_security
from magnetar.core.security import build as build_security
from magnetar.core.settings import (
    ONLY_BROKER,
    Address,
    BrokerConfig,
    BrokerEndpoints,
    ClusterConfig,
    DeduplicationConfig,
    LinkConfig,
    MetadataConfig,
    NamespaceConfig,
    ReplicationConfig,
    ReplicationLimits,
    SubscriptionsConfig,
)
from magnetar.core.tables import check_keys, keys, quoted, read_table, suggestion

FILE_NAME: Final = "clusters.toml"
"""The file that commands look for in the working folder when no `-c` is given."""

FILE_BYTES_MAX: Final = 1 << 20
"""A ceiling: a configuration this long is a wrong path (a log, a data file), better refused than parsed."""

CLUSTERS_MAX: Final = 64
"""A ceiling: without `[[links]]` the mesh has n * (n - 1) links, each with a cursor in every replicated topic."""

BROKERS_MAX: Final = 16
"""A ceiling for one cluster: one broker serves, and a client that connects may try the addresses of all others first."""

BUILTIN_CLUSTERS: Final = ("us-west", "us-east", "eu-central")
"""The clusters that `magnetar up` starts without a file."""

BUILTIN_PULSAR_PORT: Final = 6650
BUILTIN_HTTP_PORT: Final = 8080


class Config(Struct, frozen=True, kw_only=True):
    """All that clusters.toml says, checked, with every default filled in.

    Attributes:
        path: the file, or None when built in.
        data_dir: absolute; each cluster's folder is inside.
        links: in the order of the file; the full mesh when it names none.
        namespaces: by `tenant/namespace`.
        policies: the broker's defaults of policies as written; `metadata.policies.defaults` reads them.
    """

    path: Path | None
    data_dir: Path
    clusters: dict[str, ClusterConfig]
    links: tuple[LinkConfig, ...]
    namespaces: dict[str, NamespaceConfig]
    replication: ReplicationConfig
    subscriptions: SubscriptionsConfig = SubscriptionsConfig()
    deduplication: DeduplicationConfig = DeduplicationConfig()
    metadata: MetadataConfig = MetadataConfig()
    broker: BrokerConfig = BrokerConfig()
    security: Security = Security()
    policies: dict[str, Any] = {}

    @property
    def source(self) -> str:
        """The name of this configuration in messages."""
        return str(self.path) if self.path else "the built-in configuration"

    def cluster(self, name: str) -> ClusterConfig:
        """One cluster by name.

        Raises:
            ConfigError: there is none of this name; says which there are.
        """
        try:
            return self.clusters[name]
        except KeyError:
            raise ConfigError(f"{self.source}: no cluster {name!r}{suggestion(name, self.clusters)}") from None

    def cluster_dir(self, name: str) -> Path:
        """The data folder of one cluster."""
        return self.data_dir / name

    def named_broker(self, name: str) -> tuple[ClusterConfig, BrokerEndpoints]:
        """A cluster and one of its brokers, by `CLUSTER/BROKER`, or by `CLUSTER` if it has one broker.

        Raises:
            ConfigError: there is no such cluster or broker, or the cluster has several; says which there are.
        """
        cluster, slash, broker = name.partition("/")
        found = self.cluster(cluster)
        if slash and not broker:
            raise ConfigError(f"{self.source}: {name!r} names no broker: write one of {', '.join(found.titles())}")
        try:
            return found, found.broker(broker)
        except ConfigError as error:
            raise ConfigError(f"{self.source}: {error}") from None

    def link_addresses(self, name: str) -> BrokerAddresses:
        """The addresses of the brokers of a cluster for links: each `host:port`, or a `pulsar+ssl://` URL that names the
        trusted CA.
        """
        trust = {"ca": self.security.trusted_ca} if self.security.trusted_ca else {}
        client = self.security.client
        own = {"cert": client.certificate_file, "key": client.key_file} if client.certificate_file else {}
        query = "?" + urlencode(trust | own) if trust or own else ""
        return BrokerAddresses(
            [
                broker.service_url_tls + query if self.replication.tls and broker.service_url_tls else broker.advertised
                for broker in self.cluster(name).brokers
            ]
        )

    def link(self, text: str) -> LinkConfig:
        """One link by its name `source:target`.

        Raises:
            ConfigError: not of this shape, or no such link; says which there are.
        """
        for link in self.links:
            if str(link) == text:
                return link
        raise ConfigError(f"{self.source}: no link {text!r}{suggestion(text, [str(link) for link in self.links])}")

    def local_clusters(self) -> list[ClusterConfig]:
        """The clusters with a broker on this machine, in the order of the file."""
        return [cluster for cluster in self.clusters.values() if cluster.local_brokers()]


_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""The allowed names of a listener, and of a broker."""


class _EndpointsTable(Struct, kw_only=True):
    """`[clusters.NAME.brokers.NAME]`, and the same keys of `[clusters.NAME]` for its only broker."""

    pulsar: str
    http: str
    advertised: str | None = None
    pulsar_tls: str | None = None
    https: str | None = None
    advertised_tls: str | None = None
    advertised_listeners: dict[str, str] | None = None
    advertised_listeners_tls: dict[str, str] | None = None
    here: bool = True


class _ClusterTable(Struct, kw_only=True):
    """The keys of `[clusters.NAME]` that are not of a broker."""

    storage: Literal["local", "bookkeeper"] = "local"
    store: str = ""
    ledgers: str = "/ledgers"
    ensemble: Annotated[int, Meta(ge=1, le=100)] = 3
    ack_quorum: Annotated[int, Meta(ge=1, le=100)] = 2
    brokers: dict[str, Any] | None = None
    bookies: dict[str, Any] = {}
    zookeeper: dict[str, Any] = {}


class _LinkTable(Struct, kw_only=True, rename={"source": "from", "target": "to"}):
    source: str
    target: str
    filter: str = ""


class _NamespaceTable(Struct, kw_only=True):
    clusters: Literal["all"] | list[str] = "all"
    replication_start: Literal["earliest", "latest"] = "earliest"


class _ReplicationTable(Struct, kw_only=True):
    master: Annotated[str, Meta(min_length=1)] = "local[2,4]"
    token_file: str = ""
    tls: bool = False
    checkpoint_dir: str = ""
    tail: Literal["long-batches", "short-batches"] = "long-batches"
    spark: dict[str, str | bool | int | float] = {}
    limits: dict[str, Any] = {}


class _MagnetarTable(Struct, kw_only=True):
    data_dir: Annotated[str, Meta(min_length=1)] = "data"


class _File(Struct, kw_only=True):
    magnetar: dict[str, Any] = {}
    clusters: dict[str, Any] = {}
    links: list[dict[str, Any]] | None = None
    namespaces: dict[str, Any] = {}
    replication: dict[str, Any] = {}
    subscriptions: dict[str, Any] = {}
    deduplication: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    broker: dict[str, Any] = {}
    authentication: dict[str, Any] = {}
    authorization: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    client: dict[str, Any] = {}
    policies: dict[str, Any] = {}


def load(path: Path | None) -> Config:
    """Read and check clusters.toml.

    Args:
        path: the file, or None for `builtin(Path("data"))`.

    Raises:
        ConfigError: the file cannot be read or anything in it is wrong; one line.
    """
    if path is None:
        return builtin(Path("data"))
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes: not a {FILE_NAME}")
    try:
        text = raw.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8: a TOML file is UTF-8 text") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Config:
    """Check the text of a clusters.toml; `path` is for messages and for what is relative to the file.

    Raises:
        ConfigError: as `load`.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML that can be read: nested too deeply") from None
    except ValueError:
        raise ConfigError(f"{path}: not TOML that can be read: a number has thousands of digits") from None
    try:
        return _build(tables, path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def builtin(data_dir: Path) -> Config:
    """Three clusters on this machine in a full mesh, with defaults for everything else: the configuration without a
    file.
    """
    tables = {
        name: {"pulsar": f"127.0.0.1:{BUILTIN_PULSAR_PORT + i}", "http": f"127.0.0.1:{BUILTIN_HTTP_PORT + i}"}
        for i, name in enumerate(BUILTIN_CLUSTERS)
    }
    return msgspec.structs.replace(_build({"clusters": tables}, None), **_folders(data_dir))


def single(name: str, data_dir: Path, pulsar_port: int, http_port: int) -> Config:
    """One cluster on its own on the loopback interface: `magnetar broker NAME` without a file.

    Raises:
        ConfigError: the name breaks the grammar, a port is out of range, or both ports are the same.
    """
    tables = {"clusters": {name: {"pulsar": f"127.0.0.1:{pulsar_port}", "http": f"127.0.0.1:{http_port}"}}}
    return msgspec.structs.replace(_build(tables, None), **_folders(data_dir))


def _folders(data_dir: Path) -> dict[str, Any]:
    """The settings that depend on the data folder, for a configuration without a file."""
    folder = data_dir.expanduser().absolute()
    return {"data_dir": folder, "replication": _replication({}, folder, folder.parent)}


def _build(tables: dict[str, Any], path: Path | None) -> Config:
    """The whole file; `path` None for what is built in."""
    file = read_table(_File, tables, "")
    here = path.absolute().parent if path else _working_folder()
    data_dir = _path(read_table(_MagnetarTable, file.magnetar, "magnetar").data_dir, here)
    clusters = _clusters(file.clusters, here)
    _ports(_listening(file.clusters, clusters))
    _stores(clusters.values())
    security = _security(file, clusters, here)
    return Config(
        path=path.absolute() if path else None,
        data_dir=data_dir,
        clusters=clusters,
        links=_links(file.links, clusters),
        namespaces=_namespaces(file.namespaces, clusters),
        replication=_replication(file.replication, data_dir, here),
        subscriptions=read_table(SubscriptionsConfig, file.subscriptions, "subscriptions"),
        deduplication=read_table(DeduplicationConfig, file.deduplication, "deduplication"),
        metadata=_metadata(file.metadata, here),
        broker=_broker(file.broker),
        security=security,
        policies=file.policies,
    )


def _security(file: _File, clusters: dict[str, ClusterConfig], here: Path) -> Security:
    names = ("authentication", "authorization", "tls", "client")
    security = build_security(read_table, {name: getattr(file, name) for name in names}, lambda text: _path(text, here))
    for where, broker in _listening(file.clusters, clusters):
        key = "pulsar_tls" if broker.pulsar_tls else "https" if broker.https else ""
        if key and broker.here and not security.tls.certificate_file:
            raise ConfigError(f"{where}.{key}: needs certificate_file and key_file in [tls]")
    if read_table(_ReplicationTable, file.replication, "replication").tls:
        for cluster in clusters.values():
            for broker in cluster.brokers:
                if not broker.service_url_tls:
                    raise ConfigError(
                        f"replication.tls: cluster {cluster.title(broker)} has no pulsar_tls for links to connect to"
                    )
    return security


def _listening(tables: dict[str, Any], clusters: dict[str, ClusterConfig]) -> Iterator[tuple[str, BrokerEndpoints]]:
    """Every broker, with the name of the table that has its addresses."""
    for name, cluster in clusters.items():
        for broker in cluster.brokers:
            inside = f".brokers.{quoted(broker.name)}" if "brokers" in tables[name] else ""
            yield f"clusters.{name}{inside}", broker


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(f"the working folder cannot be used ({error.strerror}): go to another one") from None


def _path(text: str, relative_to: Path) -> Path:
    if "\0" in text:
        raise ConfigError(f"path {text!a} holds a zero byte")
    try:
        return relative_to / Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"path {text!a}: no user of this machine has that home directory: write ./{text} or a complete path"
        ) from None


def _clusters(tables: dict[str, Any], here: Path) -> dict[str, ClusterConfig]:
    if not tables:
        raise ConfigError(
            'clusters: none; write at least one, such as [clusters.us-west] with pulsar = "127.0.0.1:6650" '
            'and http = "127.0.0.1:8080"'
        )
    if len(tables) > CLUSTERS_MAX:
        raise ConfigError(f"clusters: {len(tables)} of them; at most {CLUSTERS_MAX}")
    return {name: _cluster(name, value, here) for name, value in tables.items()}


def _cluster(name: str, value: Any, here: Path) -> ClusterConfig:
    where = f"clusters.{quoted(name)}"
    try:
        check_cluster(name)
    except NameNotValid as error:
        raise ConfigError(f"{where}: {error}") from None
    of_broker = keys(_EndpointsTable)
    check_keys(value, [*of_broker, *keys(_ClusterTable)], where)
    listening = {key: value[key] for key in value if key in of_broker}
    table = read_table(_ClusterTable, {key: value[key] for key in value if key not in listening}, where)
    if table.brokers is None:
        brokers: tuple[BrokerEndpoints, ...] = (_endpoints(ONLY_BROKER, listening, where),)
    elif listening:
        key = next(iter(listening))
        raise ConfigError(f"{where}.{key}: the brokers of this cluster have it: write it in [{where}.brokers.NAME]")
    else:
        brokers = _brokers(table.brokers, f"{where}.brokers")
    _check_storage(table, name, where)
    if table.storage == "local" and len(brokers) > 1:
        raise ConfigError(
            f"{where}.brokers: {len(brokers)} brokers cannot use one log in a folder: keep one of them, or write "
            f'storage = "bookkeeper" in [{where}]'
        )
    return ClusterConfig(
        name=name,
        brokers=brokers,
        storage=table.storage,
        store=table.store,
        ledgers=table.ledgers,
        ensemble=table.ensemble,
        ack_quorum=table.ack_quorum,
        bookies=bookie_security(table.bookies, f"{where}.bookies", lambda text: _path(text, here)),
        zookeeper=zookeeper_security(table.zookeeper, f"{where}.zookeeper", lambda text: _path(text, here)),
    )


def _brokers(tables: dict[str, Any], where: str) -> tuple[BrokerEndpoints, ...]:
    if not tables:
        raise ConfigError(f"{where}: none; write at least one, such as [{where}.{ONLY_BROKER}] with pulsar and http")
    if len(tables) > BROKERS_MAX:
        raise ConfigError(f"{where}: {len(tables)} of them; at most {BROKERS_MAX}")
    for name in tables:
        _check_name(name, where)
        if name in {".", ".."}:
            raise ConfigError(f"{where}: {name!r} cannot be the name of a node of ZooKeeper: write another name")
    return tuple(_endpoints(name, value, f"{where}.{quoted(name)}") for name, value in tables.items())


def _endpoints(name: str, value: Any, where: str) -> BrokerEndpoints:
    table = read_table(_EndpointsTable, value, where)
    pulsar = _address(table.pulsar, f"{where}.pulsar")
    http = _address(table.http, f"{where}.http")
    pulsar_tls = _address(table.pulsar_tls, f"{where}.pulsar_tls") if table.pulsar_tls is not None else None
    https = _address(table.https, f"{where}.https") if table.https is not None else None
    tls = _advertised(table.advertised_tls, pulsar_tls, where, "advertised_tls") if pulsar_tls else ""
    if table.advertised_tls is not None and not pulsar_tls:
        raise ConfigError(f"{where}.advertised_tls: there is no pulsar_tls to advertise: write it too")
    return BrokerEndpoints(
        name=name,
        pulsar=pulsar,
        http=http,
        advertised=_advertised(table.advertised, pulsar, where, "advertised"),
        pulsar_tls=pulsar_tls,
        https=https,
        advertised_tls=tls,
        advertised_listeners=_named(table.advertised_listeners, where, "advertised_listeners"),
        advertised_listeners_tls=_named(table.advertised_listeners_tls, where, "advertised_listeners_tls"),
        here=table.here,
    )


def _check_storage(table: _ClusterTable, name: str, where: str) -> None:
    """Refuse a storage that cannot work."""
    if not is_zookeeper_path(table.ledgers):
        raise ConfigError(
            f'{where}.ledgers: {table.ledgers!a} is not the path of a node of ZooKeeper: write "/ledgers"'
        )
    if table.storage == "local":
        if table.store:
            raise ConfigError(f'{where}.store: only with storage = "bookkeeper"; [metadata] store is for all clusters')
        for key in ("bookies", "zookeeper"):
            if getattr(table, key):
                raise ConfigError(f'{where}.{key}: only with storage = "bookkeeper"')
        return
    if not table.store:
        raise ConfigError(
            f'{where}.store: missing, and storage = "bookkeeper" needs it: write store = "zookeeper://host:2181/{name}"'
        )
    try:
        parse_zookeeper(table.store)
    except ValueError as error:
        raise ConfigError(f"{where}.store: {error}") from None
    if table.ack_quorum > table.ensemble:
        raise ConfigError(
            f"{where}.ack_quorum: {table.ack_quorum} bookies of an ensemble of {table.ensemble}: write {table.ensemble} or less"
        )


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is not a valid name: 1 to 64 letters, digits, '-', '_' and '.'")


def _named(table: dict[str, str] | None, where: str, key: str) -> dict[str, str]:
    """Addresses by the name of a listener."""
    found = {}
    for name, text in (table or {}).items():
        _check_name(name, f"{where}.{key}")
        address = _address(text, f"{where}.{key}.{name}")
        if address.wildcard:
            raise ConfigError(
                f"{where}.{key}.{name}: clients cannot connect to {address}: write this machine's name there"
            )
        found[name] = str(address)
    return found


def _advertised(text: str | None, listen: Address, where: str, key: str) -> str:
    """The address of a listener that clients receive."""
    if text is not None:
        advertised = _address(text, f"{where}.{key}")
        if advertised.wildcard:
            raise ConfigError(f"{where}.{key}: clients cannot connect to {advertised}: write this machine's name")
        return str(advertised)
    if listen.wildcard:
        raise ConfigError(
            f"{where}.{key}: missing, and clients cannot connect to {listen}: "
            f'write {key} = "this-machine.example:{listen.port}"'
        )
    return str(listen)


def _address(text: str, where: str) -> Address:
    try:
        return Address.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _ports(brokers: Iterable[tuple[str, BrokerEndpoints]]) -> None:
    """Refuse two listeners that cannot both bind."""
    taken: list[tuple[Address, bool, str]] = []
    for where, broker in brokers:
        for key, listen in broker.listeners():
            address = listen
            if listen.wildcard and not broker.here:
                # Which machine that is, only the advertised address says.
                tls = broker.advertised_tls if key in {"pulsar_tls", "https"} else ""
                address = Address(Address.parse(tls or broker.advertised).host, listen.port)
            for other, here, first in taken:
                if _clash(address, broker.here, other, here):
                    raise ConfigError(
                        f"{where}.{key}: port {address.port} is already taken by {first}: write another one"
                    )
            taken.append((address, broker.here, f"{where}.{key}"))


def _stores(clusters: Iterable[ClusterConfig]) -> None:
    """Refuse two clusters with one log."""
    taken: dict[str, str] = {}
    for cluster in clusters:
        if cluster.storage != "bookkeeper":
            continue
        hosts, path = parse_zookeeper(cluster.store)
        for host in hosts.split(","):
            if (other := taken.setdefault(host + path, cluster.name)) != cluster.name:
                raise ConfigError(
                    f"clusters.{cluster.name}.store: {path} is already that of clusters.{other}: write another path"
                )


def _clash(one: Address, one_here: bool, two: Address, two_here: bool) -> bool:
    if one.port != two.port:
        return False
    same_host = one.host == two.host or (one.loopback and two.loopback and "localhost" in {one.host, two.host})
    # A wildcard takes the port of every address of its machine; whether two hosts are one other machine is not known.
    return (same_host and one_here == two_here) or (one_here and two_here and (one.wildcard or two.wildcard))


def _links(tables: list[dict[str, Any]] | None, clusters: dict[str, ClusterConfig]) -> tuple[LinkConfig, ...]:
    if tables is None:
        return tuple(LinkConfig(source=a, target=b) for a in clusters for b in clusters if a != b)
    links: list[LinkConfig] = []
    for number, value in enumerate(tables):
        where = f"links[{number}]"
        table = read_table(_LinkTable, value, where)
        for key, name in (("from", table.source), ("to", table.target)):
            if name not in clusters:
                raise ConfigError(f"{where}.{key}: no cluster {name!a}{suggestion(name, clusters)}")
        if table.source == table.target:
            raise ConfigError(f"{where}.to: a link from {table.source} to itself: write another cluster")
        link = LinkConfig(source=table.source, target=table.target, filter=table.filter.strip())
        if any(str(link) == str(other) for other in links):
            raise ConfigError(f"{where}: a second link from {link.source} to {link.target}: keep one of them")
        links.append(link)
    return tuple(links)


def _namespaces(tables: dict[str, Any], clusters: dict[str, ClusterConfig]) -> dict[str, NamespaceConfig]:
    namespaces = {"public/default": NamespaceConfig(clusters=tuple(clusters))}
    for name, value in tables.items():
        where = f'namespaces."{name}"' if name.isprintable() else f"namespaces.{name!a}"
        try:
            NamespaceName.parse(name)
        except NameNotValid as error:
            raise ConfigError(f"{where}: {error}") from None
        table = read_table(_NamespaceTable, value, where)
        if isinstance(table.clusters, str):
            names = tuple(clusters)
        else:
            names = tuple(dict.fromkeys(table.clusters))
            for cluster in names:
                if cluster not in clusters:
                    raise ConfigError(f"{where}.clusters: no cluster {cluster!a}{suggestion(cluster, clusters)}")
            if not names:
                raise ConfigError(f'{where}.clusters: empty: write "all" or at least one of {", ".join(clusters)}')
        namespaces[name] = NamespaceConfig(clusters=names, replication_start=table.replication_start)
    return namespaces


def _replication(value: dict[str, Any], data_dir: Path, here: Path) -> ReplicationConfig:
    table = read_table(_ReplicationTable, value, "replication")
    return ReplicationConfig(
        master=table.master,
        token_file=_path(table.token_file, here) if table.token_file else data_dir / "link.token",
        tls=table.tls,
        checkpoint_dir=_path(table.checkpoint_dir, here) if table.checkpoint_dir else data_dir / "checkpoints",
        spark={key: _spark_value(setting) for key, setting in table.spark.items()},
        limits=read_table(ReplicationLimits, table.limits, "replication.limits"),
        tail=table.tail,
    )


def _spark_value(value: str | bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _metadata(value: dict[str, Any], here: Path) -> MetadataConfig:
    given = {key: value[key] for key in value if key != "zookeeper"}
    table = read_table(MetadataConfig, given, "metadata")
    if "zookeeper" in value:
        security = zookeeper_security(value["zookeeper"], "metadata.zookeeper", lambda text: _path(text, here))
        if table.store == SQLITE:
            raise ConfigError('metadata.zookeeper: only with store = "zookeeper://host:2181/magnetar" in [metadata]')
        table = msgspec.structs.replace(table, zookeeper=security)
    if table.store != SQLITE:
        try:
            parse_zookeeper(table.store)
        except ValueError as error:
            raise ConfigError(f'metadata.store: {error}, or "sqlite"') from None
    if table.metadata_sync_topic:
        try:
            name = TopicName.parse(table.metadata_sync_topic)
        except NameNotValid as error:
            raise ConfigError(f"metadata.metadata_sync_topic: {error}") from None
        if not name.persistent or name.partition >= 0:
            raise ConfigError(
                'metadata.metadata_sync_topic: not a persistent topic: write "persistent://pulsar/system/metadata-sync"'
            )
    return table


def _broker(value: dict[str, Any]) -> BrokerConfig:
    table = read_table(BrokerConfig, value, "broker")
    if table.segment_bytes < table.message_bytes_max:
        raise ConfigError(
            f"broker.segment_bytes: {table.segment_bytes} is less than one message: "
            f"write at least message_bytes_max ({table.message_bytes_max})"
        )
    if table.pending_publish_bytes_max < table.message_bytes_max:
        raise ConfigError(
            f"broker.pending_publish_bytes_max: {table.pending_publish_bytes_max} is less than one message: "
            f"write at least message_bytes_max ({table.message_bytes_max})"
        )
    return table
