"""`magnetar schemas`: the registered schemas of topics, and whether another one could be registered."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from magnetar.admin.client import AdminClient, segment
from magnetar.cli.shared.common import ConfigOption, JsonOption, YesOption, confirm, print_json
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, change, show, targets
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName

app = Group("Schemas: show, register, check and compare the schemas of topics.")

FILE_BYTES_MAX: Final = 1 << 20
"""A ceiling on a file with a definition: a broker's admin interface takes no larger body."""

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Complete or short name.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The definition, or Pulsar's {type, schema, properties} in JSON.")
]
OneUrlOption = Annotated[
    str | None, typer.Option("--admin-url", metavar="URL", help="Ask this broker alone; default: all clusters.")
]
TypeOption = Annotated[
    str, typer.Option("--type", help="Type of the definition: AVRO, JSON, PROTOBUF_NATIVE, STRING, ...")
]


def path_of(topic: TopicName, *rest: str) -> str:
    """The admin path of a topic's schemas."""
    parts = (segment(topic.namespace_name.tenant), segment(topic.namespace_name.local), segment(topic.local))
    return "/".join(["/admin/v2/schemas", *parts, *rest])


def read_schema(file: Path, kind: str) -> dict[str, Any]:
    """A schema as the admin interface takes it.

    Raises:
        MagnetarError: the file cannot be read, is not text, or is too large.
    """
    try:
        data = file.read_bytes()
        text = data.decode()
    except OSError as error:
        raise MagnetarError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MagnetarError(f"{file} is not UTF-8 text") from None
    if len(data) > FILE_BYTES_MAX:
        raise MagnetarError(f"{file} has {len(data)} bytes; a definition has at most {FILE_BYTES_MAX}")
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        loaded = None
    if isinstance(loaded, dict) and isinstance(loaded.get("schema"), str) and isinstance(loaded.get("type"), str):
        return {"type": loaded["type"], "schema": loaded["schema"], "properties": loaded.get("properties") or {}}
    return {"type": kind, "schema": text, "properties": {}}


@app.add("list", example="magnetar schemas list public/default")
def list_schemas(
    namespace: Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")] = "public/default",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the topics of a namespace that have schemas, with their number and the newest."""
    name = NamespaceName.parse(namespace)
    path = f"/geo/v1/schemas/{segment(name.tenant)}/{segment(name.local)}"

    def ask(client: AdminClient) -> list[dict[str, Any]]:
        return list(client.get(path))

    show(targets(config, admin_url, everywhere), ask, ("topic", "versions", "version", "type"), as_json=as_json)


@app.add("show", example="magnetar schemas show persistent://public/default/orders")
def show_schema(
    topic: TopicArgument,
    version: Annotated[int | None, typer.Option(min=0, help="Its version; default: the newest.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All schemas in force, the oldest first.")] = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Print a topic's schema as JSON."""
    name = TopicName.parse(topic)
    rest = ("schemas",) if every else ("schema",) if version is None else ("schema", str(version))
    found = targets(config, admin_url, everywhere)
    answers = {target.cluster: target.client.get(path_of(name, *rest)) for target in found}
    print_json(answers if everywhere else next(iter(answers.values())))


@app.add("upload", example="magnetar schemas upload persistent://public/default/orders order.avsc")
def upload(
    topic: TopicArgument,
    file: FileArgument,
    kind: TypeOption = "AVRO",
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Register a schema; a registered one keeps its version."""
    name, body = TopicName.parse(topic), read_schema(file, kind)
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(path_of(name, "schema"), body),
        f"{name} has the schema of {file}",
    )


@app.add("delete", example="magnetar schemas delete persistent://public/default/orders --yes")
def delete(
    topic: TopicArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Forget them permanently: stored messages with them can no longer be decoded."),
    ] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
) -> None:
    """Take all schemas of a topic out of force, so that it can have another; messages with them can still be decoded."""
    name = TopicName.parse(topic)
    what = "Forget all schemas of" if force else "Take all schemas out of force of"
    confirm(f"{what} {name}?", yes=yes)
    query = {"force": "true"} if force else None
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.delete(path_of(name, "schema"), query),
        f"deleted the schemas of {name}",
    )


@app.add("check", example="magnetar schemas check persistent://public/default/orders order.avsc")
def check(
    topic: TopicArgument,
    file: FileArgument,
    kind: TypeOption = "AVRO",
    config: ConfigOption = None,
    admin_url: OneUrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a schema can be registered in every cluster.

    It must be compatible with the schemas of each cluster and with those that will still arrive there from other clusters.
    The exit code is 1 if it cannot be registered, or if a cluster does not answer.
    """
    name, body = TopicName.parse(topic), read_schema(file, kind)
    from magnetar.cli.commands import schemas_across

    schemas_across.check(name, body, config, admin_url, as_json=as_json)


@app.add("diff", example="magnetar schemas diff persistent://public/default/orders")
def diff(topic: TopicArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Compare the schemas of a topic in all clusters by content, with their versions.

    The exit code is 0 if all clusters have the same schemas, 1 if not, or if a cluster does not answer.
    """
    name = TopicName.parse(topic)
    from magnetar.cli.commands import schemas_across

    schemas_across.diff(name, config, as_json=as_json)
