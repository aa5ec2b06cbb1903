"""Properties of namespaces: texts that are stored and synchronised with their policies and that the broker does not
use.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.routes.topics import Properties

namespace_properties = Routes("Properties of namespaces", "/admin/v2/namespaces")

ALL = "/{tenant}/{namespace}/properties"
ONE = "/{tenant}/{namespace}/property/{key}"


def _text(value: str | None) -> web.Response | None:
    """A value as Pulsar's tools expect it: bare; nothing where there is none."""
    return None if value is None else web.Response(text=value)


async def _change(call: Call, change: Callable[[Properties], Properties]) -> None:
    namespace = call.existing_namespace()

    def changed() -> Any:
        return call.resources.change_policies(
            namespace, properties=change(call.resources.policies(namespace).properties)
        )

    await call.apply(changed)


@namespace_properties.add(
    "GET", ALL, "Properties of a namespace.", errors=(404, 412), reply='{"key": "value"}', returns=dict[str, str]
)
async def get_properties(call: Call) -> Any:
    """All of them; none is an empty object."""
    return call.resources.policies(call.namespace()).properties


@namespace_properties.add(
    "PUT",
    ALL,
    "Set properties of a namespace; those that are not named stay.",
    ok=204,
    errors=(400, 404, 412),
    body=Properties,
)
async def set_properties(call: Call) -> None:
    """Within the limits of a topic's."""
    named: Properties = await call.body()
    await _change(call, lambda there: there | named)


@namespace_properties.add("DELETE", ALL, "Forget all properties of a namespace.", ok=204, errors=(404, 412))
async def clear_properties(call: Call) -> None:
    """None there is no error."""
    await _change(call, lambda _there: {})


@namespace_properties.add(
    "GET", ONE, "One property of a namespace, as bare text.", errors=(404, 412), reply="value", may_be_unset=True
)
async def get_property(call: Call) -> Any:
    """204 where there is none."""
    return _text(call.resources.policies(call.namespace()).properties.get(call.name("key")))


@namespace_properties.add("PUT", ONE + "/{value}", "Set one property of a namespace.", ok=204, errors=(400, 404, 412))
async def set_property(call: Call) -> None:
    """An empty value needs `properties`: a path has no empty names."""
    key, value = call.name("key"), call.name("value")
    await _change(call, lambda there: there | {key: value})


@namespace_properties.add(
    "DELETE",
    ONE,
    "Forget one property of a namespace; its value, as bare text.",
    errors=(404, 412),
    reply="value",
    may_be_unset=True,
)
async def remove_property(call: Call) -> Any:
    """204 where there was none."""
    key = call.name("key")
    value = call.resources.policies(call.existing_namespace()).properties.get(key)
    if value is not None:
        await _change(call, lambda there: {each: text for each, text in there.items() if each != key})
    return _text(value)
