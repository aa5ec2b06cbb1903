"""`magnetar schemas check` and `diff`: one topic's schemas in all clusters at once.

Apart from `cli.commands.all.schemas`, which every command line loads: this needs the library for Avro.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from magnetar.admin.client import AdminClient, segment
from magnetar.broker.admin.schemas import definition_from
from magnetar.cli.commands.schemas import path_of
from magnetar.cli.shared.common import print_json, print_line, print_rows, read_config
from magnetar.cli.shared.targets import Target, at_once, of_config, targets
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.schemas.across import Held, Underway, digest, rows, summary, underway
from magnetar.schemas.compatibility import Strategy, identity
from magnetar.schemas.types import Definition

IN_FORCE: Final = "in force"
"""The state of schemas that new ones are compared with."""

DIFFERENCES_TOLD: Final = 3
"""Schemas that a line about differences names; the table has them all."""

ANSWER_S: Final = 10.0
"""The timeout of one cluster when all are asked: one that does not answer is named, and the others' answers are
shown.
"""


def check(name: TopicName, body: dict[str, Any], config: Path | None, admin_url: str | None, *, as_json: bool) -> None:
    """Say whether a schema could be registered in every cluster.

    Args:
        name: the topic.
        body: the schema as the admin interface takes it.
        config, admin_url, as_json: the command's options.

    Raises:
        MagnetarError: it could not, or a cluster did not answer; the answers of the others are printed before.
    """
    new = definition_from(body["type"], body["schema"], body["properties"])
    found, links = clusters_of(config, admin_url)
    answers = at_once(found, lambda client: _checked(client, name, body))
    verdicts: list[dict[str, Any]] = []
    for target, answer in zip(found, answers, strict=True):
        verdicts.append({"cluster": target.cluster} | _verdict(answer, new))
    held = {
        target.cluster: answer.held
        for target, answer in zip(found, answers, strict=True)
        if not isinstance(answer, MagnetarError)
    }
    coming = (
        underway(held, replicating(links, answers, found), new) if not any(row["failed"] for row in verdicts) else []
    )
    waits = [_waiting(one) for one in coming]
    if as_json:
        print_json({"topic": str(name.base), "clusters": verdicts, "underway": waits})
    else:
        for row in verdicts:
            if not row["failed"]:
                print_line(f"{row['cluster']}: {row['answer']}" if row["cluster"] else row["answer"])
        for one in waits:
            if not one["problem"]:
                print_line(f"{_described(one)}; both fit there in either order")
    failures = [
        f"{row['cluster']}: {row['answer']}" if row["cluster"] else row["answer"] for row in verdicts if row["failed"]
    ]
    failures += [f"{_described(one)}: {one['problem']}" for one in waits if one["problem"]]
    if failures:
        raise MagnetarError("; ".join(failures))


class Answer(NamedTuple):
    """The answer of one cluster about a topic.

    Attributes:
        held: its schemas, and the strategy.
        compatible, reason: whether the new one could be registered there.
        replicates_to: clusters that its namespace names.
    """

    held: Held
    compatible: bool
    reason: str
    replicates_to: frozenset[str]


def _held(client: AdminClient, name: TopicName, strategy: str) -> Held:
    space = name.namespace_name
    path = f"/geo/v1/schemas/{segment(space.tenant)}/{segment(space.local)}/{segment(name.local)}"
    registered = [
        (one["version"], definition_from(one["type"], one["data"], one["properties"]), str(one["state"]))
        for one in client.get(path)
    ]
    live = [(version, definition) for version, definition, state in registered if state == IN_FORCE]
    return Held(Strategy(strategy), live, [one for one in registered if one[2] != IN_FORCE])


def _replicates_to(client: AdminClient, name: TopicName) -> frozenset[str]:
    space = name.namespace_name
    return frozenset(client.get(f"/admin/v2/namespaces/{segment(space.tenant)}/{segment(space.local)}/replication"))


def _checked(client: AdminClient, name: TopicName, body: dict[str, Any]) -> Answer:
    answer = client.post(path_of(name, "compatibility"), body)
    held = _held(client, name, answer["schemaCompatibilityStrategy"])
    return Answer(held, answer["compatibility"], answer.get("reason", ""), _replicates_to(client, name))


def _verdict(answer: "Answer | MagnetarError", new: Definition) -> dict[str, Any]:
    """A row about one cluster."""
    if isinstance(answer, MagnetarError):
        return {"failed": True, "compatible": None, "strategy": None, "version": None, "answer": str(answer)}
    strategy, known = answer.held.strategy.value, answer.held.identities().get(identity(new))
    if not answer.compatible:
        words = f"not compatible: {answer.reason or strategy}"
    elif known is not None:
        words = f"registered already, version {known} ({strategy})"
    else:
        words = f"compatible ({strategy})"
    return {
        "failed": not answer.compatible,
        "compatible": answer.compatible,
        "strategy": strategy,
        "version": known,
        "answer": words,
    }


def replicating(
    links: Sequence[tuple[str, str]], answers: Sequence["Answer | MagnetarError"], found: Sequence[Target]
) -> list[tuple[str, str]]:
    """The links of the topic's messages, according to its namespace in the source."""
    goes = {
        target.cluster: answer.replicates_to
        for target, answer in zip(found, answers, strict=True)
        if not isinstance(answer, MagnetarError)
    }
    return [(source, target) for source, target in links if target in goes.get(source, ())]


def _waiting(one: Underway) -> dict[str, Any]:
    return {
        "from": one.source,
        "version": one.version,
        "to": one.target,
        "schema": digest(identity(one.definition)),
        "summary": summary(one.definition),
        "problem": one.problem,
    }


def _described(one: dict[str, Any]) -> str:
    return f"version {one['version']} of {one['from']}, {one['summary']}, has not arrived in {one['to']} yet"


def clusters_of(config: Path | None, admin_url: str | None) -> tuple[list[Target], list[tuple[str, str]]]:
    """All clusters of the configuration and the links between them; one broker when its URL is given."""
    if admin_url is not None:
        return targets(None, admin_url, everywhere=False), []
    chosen = read_config(config)
    return of_config(chosen, timeout_s=ANSWER_S), [(link.source, link.target) for link in chosen.links]


def diff(name: TopicName, config: Path | None, *, as_json: bool) -> None:
    """Show which cluster has which schema.

    Raises:
        MagnetarError: they differ, or a cluster did not answer.
    """
    found, _ = clusters_of(config, None)
    answers = at_once(found, lambda client: _held(client, name, Strategy.FULL.value))
    held: dict[str, Held] = {}
    failures: list[str] = []
    for target, answer in zip(found, answers, strict=True):
        if isinstance(answer, MagnetarError):
            failures.append(f"{target.cluster}: {answer}")
        else:
            held[target.cluster] = answer
    table = rows(held)
    lines = [
        {
            "schema": digest(row.identity),
            "type": row.identity.type.name,
            "what": summary(row.definition),
            "versions": {cluster: registration.version for cluster, registration in row.registrations.items()},
            "states": {cluster: registration.state or IN_FORCE for cluster, registration in row.registrations.items()},
        }
        for row in table
    ]
    if as_json:
        print_json({"topic": str(name.base), "schemas": lines, "unreachable": failures})
    elif lines:
        flat = [
            line | {cluster: str(row.registrations.get(cluster, "-")) for cluster in held}
            for line, row in zip(lines, table, strict=True)
        ]
        print_rows(flat, ("schema", "type", "what", *held), as_json=False)
    elif held:
        print_line(f"{name.base} has no schema in {', '.join(held)}")
    differing = [(summary(row.definition), ", ".join(lacking)) for row in table if (lacking := row.lacking(held))]
    if differing:
        named = [f"{what} is not in force in {where}" for what, where in differing[:DIFFERENCES_TOLD]]
        if len(differing) > len(named):
            named.append(f"{len(differing) - len(named)} more")
        failures.append(f"the clusters differ: {', '.join(named)}")
    if failures:
        raise MagnetarError("; ".join(failures))
