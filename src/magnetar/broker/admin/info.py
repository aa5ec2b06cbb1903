"""The facts about a broker that do not change."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class BrokerInfo(NamedTuple):
    """The facts about a broker, which do not change while the process runs.

    Attributes:
        cluster: its own name.
        uuid: of the cluster's data folder.
        version: version of Magnetar.
        service_url: `pulsar://host:port` for clients (in answers to lookups).
        web_url: `http://host:port` of this interface.
        started_ms: wall clock.
        service_url_tls, web_url_tls: the same by TLS, "" without.
        listeners: name -> `service_url` and `service_url_tls` of clients that ask for a listener by name.
        topic_auto_creation: whether topics are created when clients open them, if the namespace does not say.
        settings: settings of the broker, by Pulsar's names.
    """

    cluster: str
    uuid: str
    version: str
    service_url: str
    web_url: str
    started_ms: int
    topic_auto_creation: bool = True
    service_url_tls: str = ""
    listeners: Mapping[str, tuple[str, str]] = MappingProxyType({})
    web_url_tls: str = ""
    settings: Mapping[str, str] = MappingProxyType({})
