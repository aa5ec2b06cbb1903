"""Policies of Pulsar that are not built: setting one is refused (501, with the reason of `notbuilt`), and so none is ever set.

Reading one answers what Pulsar answers for one that was never set, and taking one back succeeds. Tools read all policies of
a namespace or a topic, whether somebody uses them or not, and take back those that a description does not name.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from magnetar.admin.applied import APPLIED
from magnetar.admin.call import Call
from magnetar.admin.routing import Routes
from magnetar.admin.topics import partitions_of
from magnetar.metadata.errors import NotFound

never_set = Routes("Policies that are not built", "/admin/v2")

NAMESPACE: Final = "/namespaces/{tenant}/{namespace}/"
DOMAINS: Final = ("/persistent", "/non-persistent")
TOPIC: Final = "/{tenant}/{namespace}/{topic}/"

NO_OFFLOADING: Final = {
    "managedLedgerOffloadDriver": None,
    "managedLedgerOffloadThresholdInBytes": -1,
    "managedLedgerOffloadThresholdInSeconds": -1,
    "managedLedgerOffloadDeletionLagInMillis": None,
}


class NeverSet(NamedTuple):
    """One policy.

    Attributes:
        what: for the reference.
        namespace, topic: last part of its path on either level; "" where Pulsar has it not.
        unset: what reading answers on a namespace; None: 204. Java's tools fail on that where they expect a number or truth.
        applied: what reading a topic's with `applied=true` answers; None: 204.
        removes: last part of the namespace's path for taking it back, where it is not `namespace`; "-": there is none.
    """

    what: str
    namespace: str = ""
    topic: str = ""
    unset: Any = None
    applied: Any = None
    removes: str = ""


TABLE: Final[tuple[NeverSet, ...]] = (
    NeverSet("anti-affinity of bundles", "antiAffinity"),
    NeverSet("affinity to bookies", "persistence/bookieAffinity"),
    NeverSet("offloading", "offloadPolicies", "offloadPolicies", applied=NO_OFFLOADING),
    NeverSet("offloading", removes="removeOffloadPolicies"),
    NeverSet("a size from which on is offloaded", "offloadThreshold", unset=-1, removes="-"),
    NeverSet("an age from which on is offloaded", "offloadThresholdInSeconds", unset=-1, removes="-"),
    NeverSet("when what was offloaded is deleted", "offloadDeletionLagMs"),
    NeverSet("a resource group", "resourcegroup", "resourceGroup"),
    NeverSet("filters of entries", "entryFilters", "entryFilters", applied={"entryFilterNames": ""}),
    NeverSet(
        "a pause of dispatch for the state of acknowledgements",
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistent",
        unset=False,
        applied=False,
    ),
    NeverSet("shadows of a topic", "", "shadowTopics"),
    NeverSet("scaling of segments", "scalableTopicAutoScalePolicy", "scalableTopicAutoScalePolicy"),
    NeverSet("labels of metrics", "allowedTopicPropertyKeysForMetrics"),
)
"""Every policy that Pulsar has and Magnetar has not."""


def _add(path: str, what: str, answer: Callable[[Call], Any], answers: tuple[int, ...], removes: str) -> None:
    """The routes of one policy on one level; `answers`: the statuses of reading, 200, 204 or both."""

    async def get(call: Call) -> Any:
        return answer(call)

    async def delete(call: Call) -> None:
        answer(call)

    more: dict[str, Any] = {"errors": (404, 412), "query": APPLIED if "{topic}" in path else {}}
    if path:
        never_set.add("GET", path, f"Never set: {what}.", ok=answers[0], may_be_unset=len(answers) > 1, **more)(get)
    if removes:
        never_set.add("DELETE", removes, f"Never set: {what}.", ok=204, errors=(404, 412))(delete)


def _of_namespace(row: NeverSet) -> None:
    def answer(call: Call) -> Any:
        call.existing_namespace()
        return row.unset

    path = NAMESPACE + row.namespace if row.namespace else ""
    removes = "" if row.removes == "-" else NAMESPACE + (row.removes or row.namespace)
    _add(path, row.what, answer, (204,) if row.unset is None else (200,), removes)


def _existing(call: Call) -> None:
    partitions_of(call, call.topic())


def _of_topic(row: NeverSet, domain: str) -> None:
    def answer(call: Call) -> Any:
        _existing(call)
        return row.applied if call.flag("applied") else None

    path = domain + TOPIC + row.topic
    _add(path, row.what, answer, (204,) if row.applied is None else (200, 204), path)


for _row in TABLE:
    if _row.namespace or _row.removes:
        _of_namespace(_row)
    if _row.topic:
        for _domain in DOMAINS:
            _of_topic(_row, _domain)

# ------------------------------------------------------------------------------------- what is said of clusters and brokers


CLUSTER: Final = "/clusters/{cluster}/"


def _nothing(path: str, what: str, answer: Any, errors: tuple[int, ...] = ()) -> None:
    async def get(call: Call) -> Any:
        if "{cluster}" in path:
            call.resources.cluster_data(call.name("cluster"))
        return answer(call) if callable(answer) else answer

    never_set.add("GET", path, what, errors=errors, reply="nothing")(get)


def _missing(path: str, what: str, methods: tuple[str, ...], reason: Callable[[Call], str]) -> None:
    async def refuse(call: Call) -> Any:
        if "{cluster}" in path:
            call.resources.cluster_data(call.name("cluster"))
        raise NotFound(reason(call))

    for method in methods:
        never_set.add(method, path, f"{what}: there is none.", ok=404, reply="always")(refuse)


def _brokers(call: Call) -> Any:
    """The one broker, which no policy concerns."""
    return [{"brokerName": call.info.web_url.partition("://")[2], "isPrimary": False, "namespaceRegex": []}]


_nothing(CLUSTER + "migrate", "Whether clients are sent to another cluster.", {"migrated": False}, (404,))
_nothing(CLUSTER + "failureDomains", "Failure domains: none.", {}, (404,))
_missing(
    CLUSTER + "failureDomains/{domain}",
    "A failure domain",
    ("GET", "DELETE"),
    lambda call: f"Domain-name {call.name('domain')} or cluster {call.name('cluster')} does not exist",
)
_nothing(CLUSTER + "namespaceIsolationPolicies", "Policies that isolate namespaces: none.", {}, (404,))
_nothing(CLUSTER + "namespaceIsolationPolicies/brokers", "Brokers with their policies: none.", _brokers, (404,))
_nothing(
    CLUSTER + "namespaceIsolationPolicies/brokers/{broker}",
    "A broker with its policies.",
    lambda call: _brokers(call)[0],
    (404,),
)
_missing(
    CLUSTER + "namespaceIsolationPolicies/{policy}",
    "A policy that isolates namespaces",
    ("GET", "DELETE"),
    lambda call: f"NamespaceIsolationPolicies for cluster {call.name('cluster')} does not exist",
)
_nothing(
    "/namespaces/{cluster}/antiAffinity/{group}", "Namespaces of a group whose bundles keep apart: none.", [], (404,)
)
_nothing("/resourcegroups", "Resource groups: none.", [])
_missing("/resourcegroups/{group}", "A resource group", ("GET", "DELETE"), lambda _call: "ResourceGroup does not exist")
_nothing("/bookies/all", "Bookies: none.", {"bookies": []})
_nothing("/bookies/racks-info", "Racks of bookies: none.", {})
_missing(
    "/bookies/racks-info/{bookie}",
    "The rack of a bookie",
    ("GET", "DELETE"),
    lambda call: f"Bookie rack placement configuration not found: {call.name('bookie')}",
)


# ------------------------------------------------------------------------------------------------------ resource quotas


QUOTAS: Final = "/resource-quotas"
BUNDLE: Final = "/{tenant}/{namespace}/{bundle}"
QUOTA: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}
"""Pulsar's default: what it takes a bundle to need until it has seen. Nothing acts on it here."""


async def _quota(call: Call) -> Any:
    if "{namespace}" in call.route.path:
        call.existing_namespace()
    return QUOTA


async def _no_quota(call: Call) -> None:
    call.existing_namespace()


never_set.add("GET", QUOTAS, "What a bundle is taken to need, for balancing: Pulsar's default.", reply="ResourceQuota")(
    _quota
)
never_set.add("GET", QUOTAS + BUNDLE, "The same.", errors=(404, 412), reply="ResourceQuota")(_quota)
never_set.add("DELETE", QUOTAS + BUNDLE, "Back to the default, which it always has.", ok=204, errors=(404, 412))(
    _no_quota
)
