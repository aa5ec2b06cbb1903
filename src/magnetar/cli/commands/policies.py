"""Any policy of a namespace or a topic by its name: `set` and `get`, made from `metadata.policies.table`."""

import json
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
import typer

from magnetar.admin.client import AdminClient, segment, topic_path
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.numbers import whole_number
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME, TABLE, UNDEFINED, Policy

DEFAULT = "default"
"""The value that removes a policy."""

PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help=f"One of {', '.join(BY_NAME)}.")]
ValueArgument = Annotated[
    str,
    typer.Argument(
        metavar="VALUE", help="A number, on, off, a word, names with commas, field=value,..., JSON; or default."
    ),
]

SHOWN_MAX: Final = 200
"""Characters of a wrong value that are shown."""

WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def names(level: Literal["namespace", "topic"]) -> list[str]:
    """Policies that a level can have."""
    return [policy.name for policy in TABLE if getattr(policy, level)]


def named(name: str, level: Literal["namespace", "topic"]) -> Policy:
    """A policy by its name.

    Raises:
        MagnetarError: there is none, or the level cannot have it.
    """
    if name not in names(level):
        raise MagnetarError(f"a {level} has no policy {name!r}; it has: {', '.join(names(level))}")
    return BY_NAME[name]


def rows(name: str, level: Literal["namespace", "topic"]) -> list[Policy]:
    """One policy, or all of a level when no name is given. Raises MagnetarError as `named`."""
    return [named(name, level)] if name else [BY_NAME[each] for each in names(level)]


def read(policy: Policy, text: str) -> Any:
    """A value from the command line, as JSON holds it: a number, on or off, a word, names with commas, or `field=value,...`.

    Raises:
        MagnetarError: it is not a value of the policy.
    """
    try:
        value = msgspec.convert(_parsed(policy.kind, text), policy.kind)
        policy.check(value)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise MagnetarError(
            f"{policy.name}: {_cut(text)} is not a value of this policy ({error}); write {usage(policy)}"
        ) from None
    return msgspec.to_builtins(value)


def _parsed(kind: Any, text: str) -> Any:
    if text.lstrip().startswith(("{", "[")):
        return json.loads(text)
    if kind is bool:
        return _word(text)
    if get_origin(kind) is Literal:
        return text
    if _is_struct(kind):
        return _fields(kind, text)
    if _is_list(kind):
        return [name.strip() for name in text.split(",") if name.strip()]
    number = _whole(text)
    if number is None:
        raise ValueError("no whole number")
    return number


def _whole(text: str) -> int | None:
    """A whole number, as Python writes them; None: none."""
    number = whole_number(text.removeprefix("-").replace("_", ""))
    return -number if number is not None and text.startswith("-") else number


def _cut(text: str) -> str:
    """A value in quotes, as much of it as a line takes."""
    return repr(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "...")


def _word(text: str) -> Any:
    return WORDS.get(text.lower(), text)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_list(kind: Any) -> bool:
    return any(get_origin(one) is list for one in (kind, *get_args(kind)))


def _fields(kind: Any, text: str) -> dict[str, Any]:
    """`field=value,field=value` with our names of fields, or Pulsar's."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    encoded = {field.encode_name: field for field in known.values()}
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        field = known.get(name.strip()) or encoded.get(name.strip())
        if not equals or field is None:
            raise ValueError(f"{_cut(part.strip())} is not one of {', '.join(f'{each}=' for each in known)}")
        found[field.encode_name] = _scalar(field.type, value.strip())
    return found


def _scalar(kind: Any, text: str) -> Any:
    kinds = [kind, *(get_args(kind) if get_origin(kind) in (Union, UnionType) else ())]
    if bool in kinds:
        return _word(text)
    number = _whole(text)
    return text if number is None else number


def usage(policy: Policy) -> str:
    """The notation of a value."""
    if policy.kind is bool:
        return "on or off"
    if get_origin(policy.kind) is Literal:
        return ", ".join(get_args(policy.kind))
    if _is_struct(policy.kind):
        return ",".join(f"{field.name}=..." for field in msgspec.structs.fields(policy.kind)) + ", or JSON"
    return "names with commas" if _is_list(policy.kind) else "a number"


# ------------------------------------------------------------------------------------------------------------- paths


def namespace_path(policy: Policy, namespace: NamespaceName) -> str:
    """The path of a namespace's policy."""
    root = "/geo/v1" if policy.own else "/admin/v2"
    return f"{root}/namespaces/{segment(namespace.tenant)}/{segment(namespace.local)}/{policy.namespace_path}"


def topic_policy_path(policy: Policy, topic: TopicName) -> str:
    """The path of a topic's policy."""
    path = topic_path(topic.base, policy.topic_path)
    return path.replace("/admin/v2/", "/geo/v1/", 1) if policy.own_topic else path


def setter(policy: Policy, path: str, method: str, text: str, *, removable: bool) -> Callable[[AdminClient], object]:
    """A function that sets a policy, or removes it if the text is `default`.

    Raises:
        MagnetarError: the value is not possible, or the policy cannot be removed.
    """
    query = {"backlogQuotaType": policy.kind_query} if policy.kind_query else None
    if text == DEFAULT:
        if removable:
            return lambda client: client.delete(path, query)
        if policy.namespace_unset == UNDEFINED:
            return lambda client: client.put(path, UNDEFINED)
        if policy.namespace_nullable:
            return lambda client: client.post(path, None)
        raise MagnetarError(f"{policy.name} has no default to go back to; write {usage(policy)}")
    value = read(policy, text)
    if method == "PUT":
        return lambda client: client.put(path, value)
    return lambda client: client.post(path, value, query)


def namespace_setter(policy: Policy, namespace: str, text: str) -> Callable[[AdminClient], object]:
    """A function that sets or removes a policy of a namespace. Raises MagnetarError as `setter`; NameNotValid."""
    path = namespace_path(policy, NamespaceName.parse(namespace))
    return setter(policy, path, policy.namespace_method, text, removable=policy.removable)


def topic_setter(policy: Policy, topic: TopicName, text: str) -> Callable[[AdminClient], object]:
    """A function that sets or removes a policy of a topic. Raises MagnetarError as `setter`."""
    return setter(policy, topic_policy_path(policy, topic), policy.topic_method, text, removable=True)


def previewed(policy: Policy, text: str) -> dict[str, Any]:
    """A namespace's policy as a preview names it: by the field of Pulsar's JSON, with its value; None: taken back.

    Raises:
        MagnetarError: no possible value.
    """
    names_of = {field.name: field.encode_name for field in msgspec.structs.fields(Policies)}
    name = names_of[policy.namespace] + (f"/{policy.kind_query}" if policy.kind_query else "")
    return {name: None if text == DEFAULT else read(policy, text)}


def getter(policy: Policy, path: str, client: AdminClient) -> Any:
    """The value of one policy; None when it is not set."""
    if policy.kind_query:
        return (client.get(f"{path}Map") or {}).get(policy.kind_query)
    return client.get(path)


def shown(value: Any) -> str:
    """A value on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value)


def _of_namespace(policy: Policy, stored: Policies) -> Any:
    value = policy.of_namespace(stored)
    return (value or {}).get(policy.kind_query) if policy.kind_query else value


def _row(policy: Policy, values: dict[str, Any], as_json: bool) -> dict[str, Any]:
    values = {key: msgspec.to_builtins(value) for key, value in values.items()}
    cells = values if as_json else {key: shown(value) for key, value in values.items()}
    return {"policy": policy.name, **cells, "default": policy.shown, "does": policy.summary}


def namespace_row(policy: Policy, stored: Policies, *, as_json: bool) -> dict[str, Any]:
    """One line of `namespaces get`."""
    return _row(policy, {"value": _of_namespace(policy, stored)}, as_json)


def topic_row(
    policy: Policy, topic: TopicName, shared: Policies, client: AdminClient, *, as_json: bool
) -> dict[str, Any]:
    """One line of `topics get`."""
    path, namespace = topic_policy_path(policy, topic), _of_namespace(policy, shared)
    own = getter(policy, path, client)
    if own is not None and own == policy.topic_unset:
        # Like Pulsar's, a broker gives this answer also if nothing is set; that matters only if the namespace has
        # another value.
        differs = namespace is not None and namespace != own
        own = own if differs and client.get(f"{path}?applied=true") == own else None
    return _row(policy, {"value": own, "namespace": namespace}, as_json)
