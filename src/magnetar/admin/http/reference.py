"""The route table as OpenAPI and as a page of the documentation."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from magnetar.admin.http.routing import Route, Routes

MEANINGS: Final = {
    200: "Done; the answer is in the body.",
    204: "Done; or, of a GET, not set.",
    400: "The request is malformed.",
    401: "The sender is not authenticated; only with authentication.",
    403: ("The sender has no permission, the request names something forbidden, or it comes from another site's page."),
    404: "No such cluster, tenant, namespace, topic, subscription or link.",
    405: "That kind of thing cannot do this.",
    406: "The number is out of range.",
    408: "The body did not arrive in time.",
    409: "It exists already, is not empty, or is being changed.",
    412: "A name is not valid, or a precondition is not met.",
    413: "The body is too large.",
    415: "The compression of the body is not supported.",
    422: "The change is not possible.",
    429: "Too many failed logins from this address; only with authentication.",
    500: "The broker failed; its log says why.",
    501: "Not implemented; the reason says why.",
    503: "The broker cannot serve this now.",
    504: "The disk did not answer in time; the change may still happen.",
}
"""The meaning of each status in this interface."""

ALWAYS: Final = (401, 403, 429, 500)
CHANGING: Final = (503, 504)
WITH_BODY: Final = (400, 408, 413, 415)

_PARAMETER: Final = re.compile(r"{(\w+)}")


def statuses(route: Route) -> list[int]:
    """Every status that a route may answer."""
    found = {route.ok, *route.errors, *ALWAYS}
    if route.changes:
        found |= set(CHANGING)
    if route.query:
        found.add(400)
    if route.body is not None:
        found |= set(WITH_BODY)
    if route.may_be_unset:
        found.add(204)
    return sorted(found)


def openapi(groups: Sequence[Routes], version: str) -> dict[str, Any]:
    """OpenAPI 3.1 of the route table."""
    routes = [(group, route) for group in groups for route in group.routes]
    kinds = [kind for _, route in routes for kind in (route.body, route.returns) if kind is not None]
    bodies = list({id(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schema_of = {id(body): schema for body, schema in zip(bodies, schemas, strict=True)}
    components["Refusal"] = {
        "type": "object",
        "properties": {"reason": {"type": "string", "description": "One line."}},
        "required": ["reason"],
    }
    paths: dict[str, dict[str, Any]] = {}
    for group, route in routes:
        operation: dict[str, Any] = {
            "summary": route.summary,
            "tags": [group.title],
            "operationId": _operation_id(route),
            "responses": {str(status): _response(route, status, schema_of) for status in statuses(route)},
        }
        parameters = [*_path_parameters(route), *_query_parameters(route)]
        if parameters:
            operation["parameters"] = parameters
        if route.body is not None:
            content = {"application/json": {"schema": schema_of[id(route.body)]}}
            operation["requestBody"] = {"required": route.body_needed, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Magnetar",
            "version": version,
            "description": "The implemented part of Apache Pulsar's admin REST interface v2, and /geo/v1 for links. "
            "Every other path below /admin answers 501.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "password": {"type": "http", "scheme": "basic"},
                "certificate": {"type": "mutualTLS"},
            },
        },
        # The broker's configuration decides which of these it accepts.
        "security": [{}, {"token": []}, {"password": []}, {"certificate": []}],
    }


def _operation_id(route: Route) -> str:
    return re.sub(r"\W+", "_", f"{route.method.lower()}_{route.path}").strip("_")


def _response(route: Route, status: int, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": MEANINGS[status]}
    if status >= 400:
        response["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    elif status == 200:
        if route.reply:
            response["description"] = f"{MEANINGS[200]} {route.reply}"
        if route.returns is not None:
            response["content"] = {"application/json": {"schema": schema_of[id(route.returns)]}}
    return response


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name in _PARAMETER.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name, description in route.query.items():
        yield {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def markdown(groups: Sequence[Routes]) -> str:
    """The reference page of the documentation."""
    lines = [
        "# REST interface",
        "",
        "Generated by `tools/generate_rest_reference.py` from the route table of `magnetar.admin`; do not edit.",
        "",
        "Names in a path are percent-encoded, one segment each. Bodies are JSON. Every refusal is JSON of one shape,",
        '`{"reason": "one line"}`. Paths of Pulsar below `/admin`, `/lookup`, `/ws` and `/topics` that Magnetar does not have',
        "answer 501. With `[authentication]` every request needs a token, a name and password, or a certificate (401 without),",
        "and is limited to the permissions of its role (403), see [security](../security.md). On loopback, a broker refuses an",
        "unknown name in `Host` and changes from other sites' pages.",
        "",
        "## Statuses",
        "",
        "In addition to the statuses in the tables, every route may answer "
        + _codes((*WITH_BODY, *ALWAYS, *CHANGING))
        + ".",
        "",
        "| status | meaning |",
        "| --- | --- |",
        *(f"| {status} | {meaning} |" for status, meaning in MEANINGS.items()),
    ]
    for group in groups:
        lines += [
            "",
            f"## {group.title}",
            "",
            "| operation | effect | answers | refuses with |",
            "| --- | --- | --- | --- |",
        ]
        lines += [_row(route) for route in group.routes]
    return "\n".join(lines) + "\n"


def _row(route: Route) -> str:
    does = route.summary
    if route.query:
        does += " " + " ".join(f"`?{name}`: {text}" for name, text in route.query.items())
    if route.body is not None:
        does += f" Body: `{_type_name(route.body)}`" + ("." if route.body_needed else " (may be left out).")
    answers = f"{route.ok} `{route.reply}`" if route.reply else str(route.ok)
    if route.may_be_unset:
        answers += ", 204 when not set"
    return f"| `{route.method} {route.path}` | {_cell(does)} | {_cell(answers)} | {_codes(route.errors)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _codes(codes: Iterable[int]) -> str:
    return ", ".join(str(code) for code in sorted(codes))


def _type_name(kind: Any) -> str:
    """A body's type in words of JSON."""
    (schema,), _ = msgspec.json.schema_components([kind])
    return _schema_name(schema)


def _schema_name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_schema_name(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"[{_schema_name(schema.get('items', {}))}, ...]"
        case "object":
            return '{"name": ' + _schema_name(schema.get("additionalProperties", {})) + ", ...}"
        case kind:
            return str(kind)
