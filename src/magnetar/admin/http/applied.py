"""`?applied=true`: the effective value of a policy; without it, the value that the level itself has.

    the topic's own  >  its namespace's  >  the broker's default

The answer to `applied=true` is never empty: if there is no limit, it is the value that means "no limit".
"""

from typing import Any, Final

from magnetar.admin.http.call import Call
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.namespace import BacklogQuota, BacklogQuotaType, Policies
from magnetar.metadata.policies.table import BY_NAME, Policy

APPLIED: Final = {"applied": "true answers with the value in force: the most specific one, or the broker's default."}

NO_QUOTAS: Final[dict[BacklogQuotaType, BacklogQuota]] = {
    "destination_storage": BacklogQuota(),
    "message_age": BacklogQuota(),
}
"""No limit of either kind."""


def value_of_namespace(call: Call, policy: Policy | str, namespace: NamespaceName) -> Any:
    """The requested value of a namespace's policy; None: it is not set.

    Args:
        call: the request, whose `applied` counts.
        policy: the policy, or its name.
        namespace: the namespace.

    Raises:
        NotFound: no such namespace. BadRequest: `applied` is neither true nor false.
    """
    row = BY_NAME[policy] if isinstance(policy, str) else policy
    policies = call.resources.policies(namespace)
    return _holding(call, row, policies) if call.flag("applied") else row.of_namespace(policies)


def value_of_topic(call: Call, policy: Policy | str, topic: TopicName) -> Any:
    """The requested value of a topic's policy; None: it is not set. Arguments and errors as for
    `value_of_namespace`.
    """
    row = BY_NAME[policy] if isinstance(policy, str) else policy
    own = row.of_topic(call.resources.topic_policies(topic))
    if own is not None or not call.flag("applied"):
        return own
    return _holding(call, row, call.resources.policies(topic.namespace_name))


def _holding(call: Call, policy: Policy, policies: Policies) -> Any:
    value = policy.of_namespace(policies)
    if value is None and policy.follows:
        return _holding(call, BY_NAME[policy.follows], policies)
    if value is None and policy.name == "replication-clusters":
        return [call.info.cluster]
    return call.control.policies.default(policy.name) if value is None else value
