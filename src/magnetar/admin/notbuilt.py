"""What Pulsar's admin interface has and this one has not, and why: the reasons of its 501 answers."""

import re
from typing import Final

_REASONS: Final[tuple[tuple[str, str], ...]] = (
    (r"/admin/v[23]/(functions|sources?|sinks?|packages|worker|worker-stats)(/|$)", "Pulsar Functions and IO are not built"),
    (r"/admin/v3/transactions(/|$)", "transactions are not built"),
    (r"/admin/v2/(resource-quotas|resourcegroups|loadbalance|broker-stats/load-report)(/|$)",
     "a cluster has one broker: there is nothing to balance"),
    (r"/(antiAffinity|bundles?|[^/]+/split|0x[0-9a-f]+_0x[0-9a-f]+)(/|$)",
     "namespaces have no bundles: a cluster has one broker"),
    (r"/admin/v2/clusters/[^/]+/(namespaceIsolationPolicies|failureDomains)(/|$)",
     "a cluster has one broker: nothing to isolate"),
    (r"/admin/v2/clusters/[^/]+/migrate$", "clusters are not migrated: link the new one, and move with `magnetar failover`"),
    (r"/persistence$", "messages are in the broker's own log: there are no bookies, ensembles and quorums to choose"),
    (r"/offload[^/]*(/|$)", "there is no tiered storage to offload to"),
    (r"/replicatorDispatchRate$", "a link has one rate for all its topics: `magnetar links throttle`"),
    (r"/subscribeRate$", "how often clients subscribe is not limited; limit how many there are: max-consumers"),
    (r"/(autoTopicCreation|autoSubscriptionCreation)$", "automatic creation is the broker's setting: `auto_create_topics`"),
    (r"/(subscriptionTypesEnabled|subscriptionExpirationTime|encryptionRequired|resourcegroup)$",
     "this policy is not built"),
    (r"/(entryFilters|shadowTopics|dispatcherPauseOnAckStatePersistent)$", "this is not built"),
    (r"/(examinemessage|messageid/[^/]+|ledger/[^/]+/entry/[^/]+|internal-info|trim|analyzeBacklog)$",
     "it is not built; `position/{number}` of a subscription shows messages, `internalStats` the ledgers"),
)  # fmt: skip

_PATTERNS: Final = [(re.compile(pattern), reason) for pattern, reason in _REASONS]


def reason(method: str, path: str) -> str:
    """Why an operation below /admin or /lookup is not there, in one line."""
    for pattern, why in _PATTERNS:
        if pattern.search(path):
            return f"{method} {path} is not implemented by Magnetar: {why}"
    return f"{method} {path} is not implemented by Magnetar; /openapi.json lists what is"
