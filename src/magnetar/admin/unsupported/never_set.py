"""Policies of Pulsar that are not supported: setting one is refused (501, with the reason of `not_built`), so none is
ever set.

Reading one answers as Pulsar does for a policy that was never set, and removing one succeeds. Tools read all policies
of a namespace or a topic, whether they are used or not, and remove those that a description does not name.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from aiohttp import web

from magnetar.admin.http.applied import APPLIED
from magnetar.admin.http.call import Call
from magnetar.admin.http.replies import refusal
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import partitions_of
from magnetar.admin.unsupported.not_built import reason
from magnetar.metadata.errors import BadRequest, NotFound, PreconditionFailed

never_set = Routes("Policies that are not supported", "/admin/v2")

NAMESPACE: Final = "/namespaces/{tenant}/{namespace}/"
DOMAINS: Final = ("/persistent", "/non-persistent")
TOPIC: Final = "/{tenant}/{namespace}/{topic}/"

NO_OFFLOADING: Final = {
    "managedLedgerOffloadDriver": None,
    "managedLedgerOffloadThresholdInBytes": -1,
    "managedLedgerOffloadThresholdInSeconds": -1,
    "managedLedgerOffloadDeletionLagInMillis": None,
}


def says_nothing(value: Any) -> bool:
    """Whether a value to be set means "none": tools that name every policy send such values."""
    if isinstance(value, dict):
        return all(
            says_nothing(inner)
            for key, inner in value.items()
            if key not in {"ratePeriodInSecond", "relativeToPublishRate"}
        )
    return value is None or value is False or value in ("", []) or (type(value) in {int, float} and value <= 0)


def below_zero(value: Any) -> bool:
    """Whether a threshold says never; 0 would be at once."""
    return value is None or (type(value) in {int, float} and value < 0)


def is_off(value: Any) -> bool:
    """Whether a switch is to be off, of which a request without a body says that it is to be on."""
    return value is False


class NeverSet(NamedTuple):
    """One policy.

    Attributes:
        what: its name in the reference.
        namespace, topic: last part of its path on either level; "" if Pulsar does not have it there.
        unset: answer of reading on a namespace; None: 204. Java's tools fail on 204 if they expect a number or a
            boolean.
        applied: answer of reading a topic's with `applied=true`; None: 204.
        removes: last part of the namespace's path for removing it, if it is not `namespace`; "-": there is none.
        method: HTTP method to set it; "" if that belongs to another path.
        neutral: whether a value that is to be set changes nothing; everything else is 501.
        topic_unset: answer of reading a topic's; None: 204.
    """

    what: str
    namespace: str = ""
    topic: str = ""
    unset: Any = None
    applied: Any = None
    removes: str = ""
    method: str = "POST"
    neutral: Callable[[Any], bool] = says_nothing
    topic_unset: Any = None


TABLE: Final[tuple[NeverSet, ...]] = (
    NeverSet("affinity to bookies", "persistence/bookieAffinity"),
    NeverSet("offloading", "offloadPolicies", "offloadPolicies", applied=NO_OFFLOADING),
    NeverSet("offloading", removes="removeOffloadPolicies", method=""),
    NeverSet("a size from which on is offloaded", "offloadThreshold", "", -1, None, "-", "PUT", below_zero),
    NeverSet("an age from which on is offloaded", "offloadThresholdInSeconds", "", -1, None, "-", "PUT", below_zero),
    NeverSet("when what was offloaded is deleted", "offloadDeletionLagMs", method="PUT", neutral=below_zero),
    NeverSet("a resource group", "resourcegroup", "resourceGroup"),
    NeverSet("filters of entries", "entryFilters", "entryFilters", applied={"entryFilterNames": ""}),
    NeverSet(
        "a pause of dispatch for the state of acknowledgements",
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistent",
        unset=False,
        applied=False,
        neutral=is_off,
    ),
    # Java's tools print the list that they are given, and fail without one.
    NeverSet("shadows of a topic", "", "shadowTopics", applied=[], method="PUT", topic_unset=[]),
    NeverSet("scaling of segments", "scalableTopicAutoScalePolicy", "scalableTopicAutoScalePolicy"),
    NeverSet("labels of metrics", "allowedTopicPropertyKeysForMetrics"),
)
"""Every policy that Pulsar has and Magnetar has not."""


def _add(row: NeverSet, path: str, removes: str, answers: tuple[int, ...], answer: Callable[[Call], Any]) -> None:
    """The routes of one policy on one level.

    Args:
        row: the policy.
        path, removes: paths of reading and setting, and of removing; "" if there is none.
        answers: the statuses of reading: 200, 204 or both.
        answer: gives the answer of reading. Raises NotFound.
    """

    async def get(call: Call) -> Any:
        return answer(call)

    async def put(call: Call) -> Any:
        answer(call)
        if row.neutral(await call.body()):
            return None
        return refusal(501, reason(call.request.method, call.request.path))

    async def delete(call: Call) -> None:
        answer(call)

    title = f"Never set: {row.what}."
    more: dict[str, Any] = {"errors": (404, 412), "query": APPLIED if "{topic}" in path else {}}
    if path:
        never_set.add("GET", path, title, ok=answers[0], may_be_unset=len(answers) > 1, **more)(get)
    if path and row.method:
        never_set.add(
            row.method,
            path,
            f"Not supported: {row.what}. Only values that change nothing are accepted.",
            ok=204,
            errors=(404, 412, 501),
            body=Any,
            body_needed=False,
        )(put)
    if removes:
        never_set.add("DELETE", removes, title, ok=204, errors=(404, 412))(delete)


def _of_namespace(row: NeverSet) -> None:
    def answer(call: Call) -> Any:
        call.existing_namespace()
        return row.unset

    path = NAMESPACE + row.namespace if row.namespace else ""
    removes = "" if row.removes == "-" else NAMESPACE + (row.removes or row.namespace)
    _add(row, path, removes, (204,) if row.unset is None else (200,), answer)


def _of_topic(row: NeverSet, domain: str) -> None:
    def answer(call: Call) -> Any:
        partitions_of(call, call.topic())
        return row.applied if call.flag("applied") else row.topic_unset

    path = domain + TOPIC + row.topic
    statuses = {204 if value is None else 200 for value in (row.applied, row.topic_unset)}
    _add(row, path, path, tuple(sorted(statuses)), answer)


for _row in TABLE:
    if _row.namespace or _row.removes:
        _of_namespace(_row)
    if _row.topic:
        for _domain in DOMAINS:
            _of_topic(_row, _domain)


# ------------------------------------------------------------------------------------------- groups of anti-affinity


GROUP_CHARACTERS_MAX: Final = 1024
"""A ceiling on the name of a group of anti-affinity, which is kept with the namespace's policies."""

GROUP: Final = NAMESPACE + "antiAffinity"


@never_set.add(
    "GET", GROUP, "Its group of anti-affinity, as it was sent.", errors=(404, 412), reply="text", may_be_unset=True
)
async def get_group(call: Call) -> Any:
    """Pulsar's tools of some languages send it as JSON, of others as bare text, and expect to read what they sent."""
    group = call.resources.policies(call.namespace()).anti_affinity_group
    return None if group is None else web.Response(text=group, content_type="application/json")


@never_set.add(
    "POST",
    GROUP,
    "Store the name of a group of anti-affinity from the body, as JSON or bare. Without effect, because a "
    "namespace has one bundle.",
    ok=204,
    errors=(400, 404, 412),
)
async def set_group(call: Call) -> None:
    """An empty one takes it back."""
    namespace = call.existing_namespace()
    try:
        text = (await call.data()).decode().strip()
    except UnicodeDecodeError:
        raise BadRequest("the name of a group is text in UTF-8") from None
    if len(text) > GROUP_CHARACTERS_MAX or not text.isprintable():
        raise BadRequest(f"the name of a group has at most {GROUP_CHARACTERS_MAX} characters, none of control")
    group = None if text.strip('"') in {"", "null"} else text
    await call.apply(lambda: call.resources.change_policies(namespace, anti_affinity_group=group))


@never_set.add("DELETE", GROUP, "Remove its group of anti-affinity.", ok=204, errors=(404, 412))
async def remove_group(call: Call) -> None:
    """Succeeds, as if it was never set."""
    namespace = call.existing_namespace()
    await call.apply(lambda: call.resources.change_policies(namespace, anti_affinity_group=None))


@never_set.add(
    "GET",
    "/namespaces/{cluster}/antiAffinity/{group}",
    "Namespaces of a group of anti-affinity.",
    errors=(404,),
    query={"tenant": "only those of this tenant."},
    reply='["public/default", ...]',
    returns=list[str],
)
async def namespaces_of_group(call: Call) -> Any:
    """Sorted."""
    _known_cluster(call)
    wanted, tenant = call.name("group").strip('"'), call.parameter("tenant") or ""
    groups = {name: call.resources.policies(name).anti_affinity_group for name in call.resources.all_namespaces()}
    return [
        str(name)
        for name, group in groups.items()
        if group is not None and group.strip('"') == wanted and tenant in {"", name.tenant}
    ]


# ------------------------------------------------------------------------------------- what is said of clusters and brokers


CLUSTER: Final = "/clusters/{cluster}/"


def _known_cluster(call: Call) -> None:
    """Refuse an unknown cluster, with the status that Pulsar has for each path.

    Raises:
        NotFound, PreconditionFailed: no such cluster.
    """
    name = call.request.match_info.get("cluster")
    if name is not None and name not in call.resources.clusters():
        if call.route.path.endswith(("/migrate", "/namespaceIsolationPolicies", "/antiAffinity/{group}")):
            raise NotFound("Cluster does not exist")
        raise PreconditionFailed(f"Cluster {name} does not exist.")


def _nothing(path: str, what: str, answer: Any, errors: tuple[int, ...] = ()) -> None:
    async def get(call: Call) -> Any:
        _known_cluster(call)
        return answer

    never_set.add("GET", path, what, errors=errors, reply="nothing")(get)


def _missing(path: str, what: str, methods: tuple[str, ...], said: Callable[[Call], str]) -> None:
    async def refuse(call: Call) -> Any:
        _known_cluster(call)
        raise NotFound(said(call))

    errors = (412,) if path.startswith(CLUSTER) and not path.endswith("/namespaceIsolationPolicies") else ()
    for method in methods:
        never_set.add(method, path, f"{what}: none exists.", ok=404, errors=errors, reply="always")(refuse)


def _refused(method: str, path: str, what: str) -> None:
    """Refuse to set something that is not supported; as in Pulsar, the scope is checked first."""

    async def refuse(call: Call) -> Any:
        _known_cluster(call)
        if "{namespace}" in path:
            call.existing_namespace()
        return refusal(501, reason(call.request.method, call.request.path))

    errors = (404, 412) if "{namespace}" in path else (404,) if path.endswith("/migrate") else (412,)
    never_set.add(method, path, f"Not supported: {what}.", ok=501, errors=errors, reply="always")(refuse)


_refused("POST", CLUSTER + "migrate", "sending clients to another cluster")
_refused("POST", CLUSTER + "failureDomains/{domain}", "failure domains")
_refused("POST", CLUSTER + "namespaceIsolationPolicies/{policy}", "policies that isolate namespaces")
_refused("POST", NAMESPACE + "resourcegroup/{group}", "resource groups")
_refused("POST", NAMESPACE + "migration", "sending clients to another cluster")
_nothing(CLUSTER + "migrate", "Whether clients are sent to another cluster.", {"migrated": False}, (404,))
_nothing(CLUSTER + "failureDomains", "Failure domains: none.", {}, (412,))
_missing(
    CLUSTER + "failureDomains/{domain}",
    "A failure domain",
    ("GET", "DELETE"),
    lambda call: f"Domain-name {call.name('domain')} or cluster {call.name('cluster')} does not exist",
)
for _path, _methods in (
    ("", ("GET",)),
    ("/brokers", ("GET",)),
    ("/brokers/{broker}", ("GET",)),
    ("/{policy}", ("GET", "DELETE")),
):
    _missing(
        CLUSTER + "namespaceIsolationPolicies" + _path,
        "A policy that isolates namespaces",
        _methods,
        lambda call: f"NamespaceIsolationPolicies for cluster {call.name('cluster')} does not exist",
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


# ----------------------------------------------------------------------------------------------------------- offloading


@never_set.add(
    "GET",
    "/persistent" + TOPIC + "offload",
    "Whether it is being offloaded: never.",
    errors=(404, 412),
    reply='{"status": "NOT_RUN", "lastError": ""}',
)
async def offload_status(call: Call) -> Any:
    """Pulsar's answer for a topic that was never offloaded."""
    partitions_of(call, call.topic())
    return {"status": "NOT_RUN", "lastError": ""}


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
"""Pulsar's default: its estimate for a bundle until it has measured. It has no effect here."""


async def _quota(call: Call) -> Any:
    if "{namespace}" in call.route.path:
        call.existing_namespace()
    return QUOTA


async def _no_quota(call: Call) -> None:
    call.existing_namespace()


never_set.add("GET", QUOTAS, "The assumed load of a bundle: Pulsar's default.", reply="ResourceQuota")(_quota)
never_set.add("GET", QUOTAS + BUNDLE, "The same.", errors=(404, 412), reply="ResourceQuota")(_quota)
never_set.add("DELETE", QUOTAS + BUNDLE, "Restore the default, which is always in force.", ok=204, errors=(404, 412))(
    _no_quota
)
