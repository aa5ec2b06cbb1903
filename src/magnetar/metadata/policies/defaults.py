"""`[policies]` of clusters.toml: the policies of topics for which neither the topic nor its namespace sets a value.

A value is written as on the command line: a number, true or false, a word, or a table with Magnetar's or Pulsar's names
of fields. Namespaces keep their own values; missing ones are filled in when a policy is looked up. The broker's own
namespace is left out: messages that keep clusters in agreement never expire or wait.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from magnetar.core.errors import ConfigError
from magnetar.metadata.errors import Refused
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME, TABLE, Policy, check_policies

POSSIBLE: Final = tuple(policy for policy in TABLE if not policy.no_default)
"""Policies that may have a default here."""


def defaults_of(table: Mapping[str, Any]) -> Policies:
    """The defaults that `[policies]` names.

    Raises:
        ConfigError: no such policy, or no possible value; names the key.
    """
    defaults = Policies()
    for name, value in table.items():
        policy = _named(name)
        try:
            found = msgspec.convert(_fields(policy, value), policy.kind)
            policy.check(found)
        except (msgspec.ValidationError, Refused) as error:
            raise ConfigError(f"policies.{name}: {error}") from None
        if policy.kind_query:
            found = {**defaults.backlog_quota_map, policy.kind_query: found}
        defaults = replace(defaults, **{policy.namespace: found})
    try:
        check_policies(defaults)
    except Refused as error:
        raise ConfigError(f"policies: {error}") from None
    return defaults


def filled(policies: Policies, defaults: Policies) -> Policies:
    """The policies of a namespace with defaults where it has none of its own."""
    missing: dict[str, Any] = {
        policy.namespace: getattr(defaults, policy.namespace)
        for policy in POSSIBLE
        if policy.of_namespace(policies) is None and policy.of_namespace(defaults) is not None
    }
    if policies.backlog_quota_map and defaults.backlog_quota_map:
        missing["backlog_quota_map"] = defaults.backlog_quota_map | policies.backlog_quota_map
    return replace(policies, **missing) if missing else policies


def _named(name: str) -> Policy:
    policy = BY_NAME.get(name)
    if policy is None:
        known = ", ".join(policy.name for policy in POSSIBLE)
        raise ConfigError(f"policies.{name}: there is no such policy; there are {known}")
    if policy.no_default:
        raise ConfigError(f"policies.{name}: it has no default here; {policy.no_default}")
    return policy


def _fields(policy: Policy, value: Any) -> Any:
    """A table's keys as the type has them on the wire: ours or Pulsar's."""
    if not isinstance(value, dict) or not (isinstance(policy.kind, type) and issubclass(policy.kind, msgspec.Struct)):
        return value
    fields = msgspec.structs.fields(policy.kind)
    names = {field.name: field.encode_name for field in fields} | {
        field.encode_name: field.encode_name for field in fields
    }
    for key in value:
        if key not in names:
            raise ConfigError(f"policies.{policy.name}.{key}: there are {', '.join(field.name for field in fields)}")
    return {names[key]: inner for key, inner in value.items()}
