"""The broker itself, and HTTP lookup."""

from typing import Any, Final

from aiohttp import web

from magnetar.admin.call import Call
from magnetar.admin.routing import Routes
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.metadata.errors import NotFound

brokers = Routes("Brokers", "/admin/v2/brokers")
lookup = Routes("Lookup", "/lookup/v2/topic", "/lookup/v2/destination")


def _serving(call: Call) -> web.Response:
    stats = call.control.broker_stats()
    if not stats.get("ready", False):
        raise BrokerError(ErrorCode.SERVICE_NOT_READY, stats.get("state") or "the broker is not ready")
    return web.Response(text="ok")


@brokers.add(
    "GET", "/health", "Whether the broker takes publishes; 503 with the reason when not.", errors=(503,), reply="ok"
)
async def health(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    call.choice("topicVersion", ("V1", "V2"), "V2")
    return _serving(call)


@brokers.add("GET", "/ready", "The same, for orchestrators.", errors=(503,), reply="ok")
async def ready(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    return _serving(call)


@brokers.add("GET", "/version", "Version of Magnetar.", reply="0.1.0")
async def version(call: Call) -> web.Response:
    """Plain text, as Pulsar's."""
    return web.Response(text=call.info.version)


def _address(call: Call) -> list[str]:
    return [call.info.web_url.partition("://")[2]]


@brokers.add("GET", "", "The brokers of this cluster: one, so far.", reply='["127.0.0.1:8080"]')
async def list_brokers(call: Call) -> Any:
    """`host:port` of the admin interface."""
    return _address(call)


NO_CLUSTERS: Final = frozenset({"leaderBroker", "configuration", "internal-configuration", "backlog-quota-check"})
"""What Pulsar has where a cluster's name stands here."""


@brokers.add("GET", "/{cluster}", "The brokers of a cluster.", errors=(404, 501), reply='["127.0.0.1:8080"]')
async def cluster_brokers(call: Call) -> Any:
    """Of the own cluster only; of another one its own admin interface knows."""
    name = call.name("cluster")
    if name in NO_CLUSTERS and name not in call.resources.clusters():
        raise web.HTTPNotFound  # of Pulsar's interface and not built: answered as all such paths are
    data = call.resources.cluster_data(name)
    if name != call.info.cluster:
        raise NotFound(
            f"this is cluster {call.info.cluster}; ask cluster {name} itself at {data.service_url or 'its address'}"
        )
    return _address(call)


LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
"""As in Pulsar, for proxies that cannot add a parameter."""


def _answer(call: Call) -> dict[str, str | None]:
    topic = call.looked_up()
    if not call.info.topic_auto_creation and call.control.partitions(str(topic)) is None:
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
            "listenerName": "as a client's `listener_name`: one of `advertised_listeners`; or header X-Pulsar-ListenerName.",
        },
        reply='{"brokerUrl": "pulsar://...", "brokerUrlTls": null, "httpUrl": "http://...", "nativeUrl": "pulsar://..."}',
    )
    async def look_up(call: Call) -> Any:
        """This one: a cluster has one broker."""
        return _answer(call)
