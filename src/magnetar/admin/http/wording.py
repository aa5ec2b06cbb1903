"""Refusals in Pulsar's words, for tools that parse them: they distinguish "already exists" from other conflicts by the
text alone.

One table, first match: the requests, this broker's text, and the text that Pulsar's tools expect. Some compare the
whole text, so no detail may be added. A client that sends the header `X-Magnetar-Words: own`, as Magnetar's command
line does, gets this broker's text, which names what is wrong and what would be right.
"""

import re
from typing import Final, NamedTuple

from aiohttp import web

from magnetar.admin.client import OWN_WORDS, WORDS_HEADER
from magnetar.metadata.policies.table import TABLE
from magnetar.metadata.policies.types import Int32, Int64

WHERE: Final = "/admin/"
"""Paths of Pulsar's whose refusals are put in its words."""


class Words(NamedTuple):
    r"""One row.

    Attributes:
        request: pattern that is searched for in `METHOD path`.
        said: pattern of this broker's whole text.
        words: the answer instead; `\1` is a group of `said`, `\g<0>` all of it.
    """

    request: str
    said: str
    words: str


_T: Final = r" /admin/v2/(?:non-)?persistent/"
_N: Final = r" /admin/v2/namespaces/"
_MORE: Final = r": \g<0>"

_STORES_NOTHING: Final = r"%s needs stored messages, and .+ stores none"
_PARTITIONED: Final = r"%s(?: to an id)? needs one partition, and .+ is partitioned: .+"

_COUNTS: Final = r" is 0 \(no limit\) or more, not -\d+"
_OF_TOPICS: Final = {
    "max-producers": "maxProducers must be 0 or more",
    "max-consumers": "maxConsumers must be 0 or more",
    "max-subscriptions": "maxSubscriptionsPerTopic must be 0 or more",
    "max-unacked-per-consumer": "maxUnackedNum must be 0 or more",
    "max-unacked-per-subscription": "maxUnackedNum must be 0 or more",
    "max-consumers-per-subscription": "Invalid value for maxConsumersPerSubscription",
    "compaction-threshold": "Invalid value for compactionThreshold",
}
_OF_BOTH: Final = {
    "ttl": "Invalid value for message TTL, message TTL must >= 0",
    "subscription-expiration-time": "Invalid value for subscription expiration time",
}

ROWS: Final[tuple[Words, ...]] = (
    # tenants
    Words("", r"tenant (\S+) exists already", "Tenant already exist"),
    Words(r"^GET /admin/v2/namespaces/[^/]+/?$", r"tenant .+ does not exist", "Tenant not found"),
    Words("", r"tenant .+ does not exist", "Tenant does not exist"),
    Words("", r"tenant \S+ still has .+", "The tenant still has active namespaces" + _MORE),
    Words("", r"tenant \S+ needs at least one allowed cluster", "Clusters can not be empty" + _MORE),
    Words("/tenants/", r"cluster .+ does not exist", "Clusters do not exist" + _MORE),
    Words("", r"admin role .+", "AdminRoles contains whitespace in the beginning or end" + _MORE),
    # clusters
    Words("", r"cluster (\S+) exists already", "Cluster already exists"),
    Words("/clusters/", r"cluster .+ does not exist", "Cluster does not exist"),
    Words("/clusters/", r"cluster \S+ is (?:named by|allowed for|a peer of) .+", "Cluster not empty" + _MORE),
    # namespaces
    Words("", r"namespace (\S+) exists already", "Namespace already exists"),
    Words(
        r"^DELETE /admin/v2/namespaces/[^/]+/[^/]+/?$",
        r"namespace (\S+) does not exist",
        r"Namespace \1 does not exist.",
    ),
    Words(r"^GET .*/replicatorDispatchRate/?$", r"namespace \S+ does not exist", "Namespace policies does not exist"),
    Words("", r"namespace \S+ does not exist(?:;.+)?", "Namespace does not exist"),
    Words("", r"namespace \S+ (?:still has|is getting|is not empty).*", "Cannot delete non empty namespace" + _MORE),
    Words("", r"cluster '(.+)' does not exist; known: .*", r"Invalid cluster id: \1"),
    Words(
        "",
        r"cluster (\S+) is not allowed for tenant (\S+)",
        r"Cluster [\1] is not in the list of allowed clusters list for tenant [\2]",
    ),
    Words(
        "",
        r"replication cluster (\S+) is not among the allowed clusters of namespace (\S+)",
        r"Cluster [\1] is not in the list of allowed clusters list for namespace [\2]",
    ),
    Words(
        "",
        r"clusters (\S+) and (\S+) are peers and .+",
        r"\1's peer-clusters [\2] can't be part of replication-clusters" + _MORE,
    ),
    Words(
        "",
        r".*needs a replication cluster; .+|name at least one cluster; .+",
        "ClusterIds should not be null or empty" + _MORE,
    ),
    # topics
    Words("", r"(?:partitioned )?topic .+ exists already", "This topic already exists"),
    Words("", r"topic .+ exists and is not partitioned", "Topic is not partitioned topic"),
    Words("^POST .*/partitions/?$", r"partitioned topic .+ does not exist", "Topic is not partitioned topic"),
    Words("^DELETE .*/partitions/?$", r"partitioned topic (.+) does not exist", r"Topic \1 not found"),
    Words("", r"partitioned topic (.+) does not exist", r"Partitioned Topic not found: \1"),
    Words("", r"topic (.+) does not exist", r"Topic \1 not found"),
    Words("", r"(\S+://.+) is partitioned: ask its (\S+)", r"Topic \1 not found: it is partitioned; ask its \2"),
    Words("", r"topic .+ has \d+ producers and \d+ consumers; .+", "Topic has active producers/subscriptions" + _MORE),
    Words("", _STORES_NOTHING % "lastMessageId", "GetLastMessageId on a non-persistent topic is not allowed"),
    Words("", _STORES_NOTHING % "terminate", "Termination of a non-persistent topic is not allowed"),
    Words("", _STORES_NOTHING % "peek", "Peek messages on a non-persistent topic is not allowed"),
    Words("", _STORES_NOTHING % "examinemessage", "Examine messages on a non-persistent topic is not allowed"),
    Words("", _STORES_NOTHING % "expireMessages", "Expire messages on a non-persistent topic is not allowed"),
    Words("", _STORES_NOTHING % "trim", "Trim on a non-persistent topic is not allowed"),
    Words("", _PARTITIONED % "terminate", "Termination of a partitioned topic is not allowed"),
    Words("", _PARTITIONED % "peek", "Peek messages on a partitioned topic is not allowed" + _MORE),
    Words("", _PARTITIONED % "skip", "Skip messages on a partitioned topic is not allowed" + _MORE),
    Words("", _PARTITIONED % "examinemessage", "Examine messages on a partitioned topic is not allowed" + _MORE),
    Words("", _PARTITIONED % "analyzeBacklog", "Analyze backlog on a partitioned topic is not allowed" + _MORE),
    Words("", _PARTITIONED % "resetcursor", "Reset-cursor at position is not allowed for partitioned-topic" + _MORE),
    Words(
        "", _PARTITIONED % "expireMessages", "Expire message at position is not supported for partitioned-topic" + _MORE
    ),
    Words("", _PARTITIONED % "backlogSize", "calculate backlog size is not allowed for partitioned-topic" + _MORE),
    Words("", r"role .+ has no permissions of its own on topic .+", "Permissions are not set at the topic level"),
    # subscriptions
    Words("", r"subscription (.+) of (\S+://.+) does not exist", r"Subscription \1 not found for topic \2"),
    Words("", r"subscription .+ of \S+://.+ exists already", "Subscription already exists for topic"),
    Words("", r"subscription .+ of \S+://.+ has consumers; .+", "Subscription has active connected consumers" + _MORE),
    # policies
    Words(
        f"{_N}.*/backlogQuota",
        r"retention of .+ must exceed the backlog quota, .+",
        "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and retry"
        + _MORE,
    ),
    Words(
        f"{_T}.*/backlogQuota",
        r"retention of .+ must exceed the backlog quota, .+",
        "Backlog Quota exceeds configured retention quota for topic. Please increase retention quota and retry" + _MORE,
    ),
    Words(
        _T,
        r"retention of .+ must exceed the backlog quota, .+",
        "Retention Quota must exceed configured backlog quota for topic. Please increase retention quota and retry"
        + _MORE,
    ),
    Words(
        "",
        r"retention of .+ must exceed the backlog quota, .+",
        "Retention Quota must exceed configured backlog quota for namespace" + _MORE,
    ),
    Words("", r"retention time and size are .+", "Invalid retention policy" + _MORE),
    Words(_T, "ttl" + _COUNTS, "Invalid value for message TTL"),
    *(Words("", name + _COUNTS, words) for name, words in _OF_BOTH.items()),
    *(Words(_T, name + _COUNTS, words) for name, words in _OF_TOPICS.items()),
    *(
        Words(_N, policy.name + _COUNTS, f"{policy.namespace_path} must be 0 or more")
        for policy in TABLE
        if policy.kind in {Int32, Int64} and not (policy.own or policy.name in _OF_BOTH)
    ),
    # schemas
    Words("/schemas/", r"topic .+ has no schema(?: version \d+)?", "Schema not found" + _MORE),
)
"""The texts that tools expect, word by word."""

_COMPILED: Final = tuple((re.compile(row.request), re.compile(row.said, re.DOTALL), row.words) for row in ROWS)


def worded(request: web.Request, said: str) -> str:
    """A refusal in the words that the request wants."""
    own = request.headers.get(WORDS_HEADER, "") == OWN_WORDS
    return said if own else in_pulsars_words(request.method, request.path, said)


def in_pulsars_words(method: str, path: str, said: str) -> str:
    """A refusal as Pulsar would have said it; as it is where no tool reads it.

    Args:
        method, path: of the request; the path as it was decoded.
        said: our reason.
    """
    if not path.startswith(WHERE):
        return said
    request = f"{method} {path}"
    for where, pattern, words in _COMPILED:
        if (found := pattern.fullmatch(said)) is not None and where.search(request):
            return found.expand(words)
    return said
