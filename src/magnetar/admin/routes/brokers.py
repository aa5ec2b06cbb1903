"""The broker itself, and HTTP lookup."""

from typing import Any, Final

from aiohttp import web

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.unsupported.not_built import WHOLE_RANGE
from magnetar.broker.waiting.registration import Brokers
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.metadata.errors import NotFound, PreconditionFailed

brokers = Routes("Brokers", "/admin/v2/brokers")
balancers = Routes("Load balancers")
lookup = Routes("Lookup", "/lookup/v2/topic", "/lookup/v2/destination")


def _serving(call: Call) -> web.Response:
    stats = call.control.statistics.broker()
    if not stats.get("ready", False):
        raise BrokerError(ErrorCode.SERVICE_NOT_READY, stats.get("state") or "the broker is not ready")
    return web.Response(text="ok")


@brokers.add(
    "GET", "/health", "Whether the broker accepts publishes; 503 with the reason if not.", errors=(503,), reply="ok"
)
async def health(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    call.choice("topicVersion", ("V1", "V2"), "V2")
    return _serving(call)


@brokers.add("GET", "/ready", "The same, for orchestrators.", errors=(503,), reply="ok")
async def ready(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    return _serving(call)


@balancers.add(
    "GET",
    "/status.html",
    "The same as `brokers/health`, where Pulsar has it for load balancers.",
    errors=(503,),
    reply="OK",
)
async def status_page(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    _serving(call)
    return web.Response(text="OK")


@brokers.add("GET", "/version", "Version of Magnetar.", reply="0.1.0")
async def version(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    return web.Response(text=call.info.version)


def _address(call: Call) -> str:
    return call.info.web_url.partition("://")[2]


def _addresses(call: Call) -> list[str]:
    return web_addresses(call.services.brokers()) or [_address(call)]


def web_addresses(brokers: Brokers) -> list[str]:
    """`host:port` of the admin interfaces of brokers, in the order of their names."""
    urls = (one.web_url() for one in brokers.all)
    return [url.partition("://")[2] for url in urls if url]


@brokers.add("GET", "", "The brokers of this cluster; one of them serves.", reply='["127.0.0.1:8080"]')
async def list_brokers(call: Call) -> Any:
    """`host:port` of the admin interface."""
    return _addresses(call)


def leader_answer(web_url: str) -> dict[str, str]:
    """The broker that leads, by the URL of its admin interface."""
    return {"brokerId": web_url.partition("://")[2], "serviceUrl": web_url}


def _leader(call: Call) -> dict[str, str]:
    return leader_answer(call.info.web_url)


LEADER: Final = '{"brokerId": "127.0.0.1:8080", "serviceUrl": "http://127.0.0.1:8080"}'


@brokers.add("GET", "/leaderBroker", "The broker that leads this cluster: the one that serves.", reply=LEADER)
async def leader(call: Call) -> Any:
    """The leader of the own cluster."""
    return _leader(call)


@brokers.add("GET", "/configuration", "Settings that can be changed while the broker runs: none.", reply="[]")
async def changeable(call: Call) -> Any:
    """They are those of clusters.toml, which is read at the start."""
    return []


@brokers.add("GET", "/configuration/values", "Settings that were changed while the broker ran: none.", reply="{}")
async def changed(call: Call) -> Any:
    """Always empty, because no setting can be changed at run time."""
    return {}


@brokers.add(
    "GET",
    "/configuration/runtime",
    "The broker's settings by Pulsar's names, if the meaning is the same.",
    reply='{"clusterName": "us-west", "maxMessageSize": "5242880", ...}',
    returns=dict[str, str],
)
async def runtime(call: Call) -> Any:
    """`pulsar-admin clusters list` needs the cluster's name."""
    return dict(call.info.settings)


@brokers.add(
    "DELETE",
    "/configuration/{name}",
    "Remove a setting that was changed while the broker runs: none can be.",
    ok=412,
    reply="always",
)
async def remove_changed(call: Call) -> Any:
    """412, as Pulsar for a setting that cannot be changed so."""
    raise PreconditionFailed(
        f"Can't delete non-dynamic configuration: {call.name('name')} is none that can be changed while the broker runs"
    )


@brokers.add(
    "GET",
    "/internal-configuration",
    "The metadata stores of Pulsar's brokers: none.",
    reply='{"zookeeperServers": "", ...}',
    returns=dict[str, str],
)
async def internal_configuration(call: Call) -> Any:
    """Metadata and messages are in the broker's own data folder."""
    names = ("zookeeperServers", "configurationStoreServers", "ledgersRootPath", "bookkeeperMetadataServiceUri")
    return dict.fromkeys((*names, "stateStorageServiceUrl", "metadataStoreUrl", "configurationMetadataStoreUrl"), "")


NO_CLUSTERS: Final = frozenset({"backlog-quota-check"})
"""Words that Pulsar's paths have in the position of a cluster's name."""


def _own(call: Call) -> None:
    """Refuse a cluster that is not this one.

    Raises:
        NotFound: it does not exist, or is another one, whose own admin interface knows.
    """
    name = call.name("cluster")
    data = call.resources.cluster_data(name)
    if name != call.info.cluster:
        raise NotFound(
            f"this is cluster {call.info.cluster}; ask cluster {name} itself at {data.service_url or 'its address'}"
        )


@brokers.add("GET", "/{cluster}/leaderBroker", "The same.", errors=(404,), reply=LEADER)
async def leader_of(call: Call) -> Any:
    """Only for the own cluster."""
    _own(call)
    return _leader(call)


@brokers.add(
    "GET",
    "/{cluster}/{broker}/ownedNamespaces",
    "The namespaces of a broker: all, each with one bundle; none of a broker that waits.",
    errors=(404,),
    reply=f'{{"public/default/{WHOLE_RANGE}": {{"broker_assignment": "shared", "is_controlled": false, "is_active": true}}}}',
)
async def owned(call: Call) -> Any:
    """`broker` is what the list of brokers says."""
    _own(call)
    served: dict[str, Any] = {}
    if call.name("broker") != _address(call):
        if call.name("broker") not in (known := _addresses(call)):
            raise NotFound(f"{call.name('broker')} is no broker of this cluster: {', '.join(known)}")
        return served  # it waits to take over
    for tenant in call.resources.tenants():
        await call.others()
        for namespace in call.resources.namespaces(tenant):
            served[f"{namespace}/{WHOLE_RANGE}"] = {
                "broker_assignment": "shared",
                "is_controlled": False,
                "is_active": True,
            }
    return served


@brokers.add("GET", "/{cluster}", "The brokers of a cluster.", errors=(404, 501), reply='["127.0.0.1:8080"]')
async def cluster_brokers(call: Call) -> Any:
    """Only for the own cluster; another cluster's own admin interface has its brokers."""
    name = call.name("cluster")
    if name in NO_CLUSTERS and name not in call.resources.clusters():
        raise web.HTTPNotFound  # of Pulsar's interface and not built: answered as all such paths are
    _own(call)
    return _addresses(call)


LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
"""Like Pulsar's, for proxies that cannot add a parameter."""


def _answer(call: Call) -> dict[str, str | None]:
    topic = call.looked_up()
    creates = call.resources.comes_when_opened(topic, call.info.topic_auto_creation)
    if not creates and call.control.topics.partitions(str(topic)) is None:
        raise NotFound(f"topic {topic} does not exist")
    url, url_tls = call.info.service_url, call.info.service_url_tls
    listener = call.parameter("listenerName") or call.request.headers.get(LISTENER_HEADER)
    if listener:
        if listener not in call.info.listeners:
            raise NotFound(f"listener {listener!r:.80} is not one of this cluster's")
        url, url_tls = call.info.listeners[listener]
    # Clients over the C++ client take an answer without the key, or with an empty text, for malformed, and crash then.
    answer: dict[str, str | None] = {"httpUrl": call.info.web_url, "brokerUrlTls": url_tls or None}
    if url:
        answer |= {"brokerUrl": url, "nativeUrl": url}
    if call.info.web_url_tls:
        answer["httpUrlTls"] = call.info.web_url_tls
    return answer


for _domain in ("persistent", "non-persistent"):

    @lookup.add(
        "GET",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}",
        "Which broker serves a topic.",
        errors=(404, 412),
        query={
            "authoritative": "accepted.",
            "listenerName": (
                "one of `advertised_listeners`, as a client's `listener_name`; or use the header X-Pulsar-ListenerName."
            ),
        },
        reply='{"brokerUrl": "pulsar://...", "brokerUrlTls": null, "httpUrl": "http://...", "nativeUrl": "pulsar://..."}',
    )
    async def look_up(call: Call) -> Any:
        """This one: a cluster has one broker."""
        return _answer(call)

    @lookup.add(
        "GET",
        f"/{_domain}/{{tenant}}/{{namespace}}/{{topic}}/bundle",
        "The bundle of a topic: its namespace has one.",
        errors=(404, 412),
        reply=WHOLE_RANGE,
    )
    async def bundle(call: Call) -> web.Response:
        """Plain text, as Pulsar's."""
        call.looked_up()
        return web.Response(text=WHOLE_RANGE)
