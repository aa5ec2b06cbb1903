"""`magnetar metadata`: check whether tenants, namespaces and policies are the same in all clusters, and show the
differences.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from magnetar.admin.client import AdminClient, segment
from magnetar.cli.shared.common import (
    ConfigOption,
    JsonOption,
    cell,
    duration,
    print_json,
    print_line,
    print_rows,
    read_config,
)
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import AdminUrlOption, EverywhereOption, Target, at_once, change, of_config, targets
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName
from magnetar.metadata.sync.patterns import Exclusions

app = Group("Metadata: synchronisation of tenants, namespaces and policies between clusters.")

PATH: Final = "/geo/v1/metadata"

COLUMNS = ("cluster", "state", "documents", "heard", "waiting", "kept", "refused", "detail")

DIFFERENCES_MAX: Final = 100
"""The most documents that are compared field by field; above it only their number is reported."""


@app.add("status", example="magnetar metadata status")
def show_status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show for each cluster whether its metadata agrees with the others', and the reason if not."""
    found = of_config(read_config(config))
    answers = at_once(found, lambda client: client.get(PATH))
    states = {
        target.cluster: {"error": str(answer)} if isinstance(answer, MagnetarError) else answer
        for target, answer in zip(found, answers, strict=True)
    }
    if as_json:
        print_json(states)
        return
    compare(found, states)
    print_rows(rows_of(states, differing(states)), COLUMNS, as_json=False)
    for line in remarks(states) + unequal(states):
        print_line(cell(line))


@app.add("diff", example="magnetar metadata diff")
def diff(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the fields that differ between clusters, without local ones. Exit code 1 if any differ."""
    found = of_config(read_config(config))
    rows = differences(found)
    if rows or as_json:
        print_rows(rows, ("document", "field", *(target.cluster for target in found)), as_json=as_json)
    if rows:
        raise MagnetarError(f"{len({row['document'] for row in rows})} documents differ; changes may be on their way")
    if not as_json:
        print_line(f"the metadata of {', '.join(target.cluster for target in found)} is the same")


@app.add("show", example="magnetar metadata show namespaces/public/default --everywhere")
def show(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A document, such as namespaces/TENANT/NAMESPACE or tenants/TENANT.")
    ],
    config: ConfigOption = None,
    admin_url: AdminUrlOption = None,
    everywhere: EverywhereOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which cluster set each field of a document, and when."""
    found = targets(config, admin_url, everywhere)
    rows = []
    for target in found:
        for row in target.client.get(f"{PATH}/document", {"path": path}):
            where = {"cluster": target.cluster} if len(found) > 1 else {}
            rows.append(where | row | {"when": _when(row["set_ms"])})
    columns = ("field", "value", "set_by", "when")
    print_rows(rows, ("cluster", *columns) if len(found) > 1 else columns, as_json=as_json)


@app.add("snapshot", example="magnetar metadata snapshot --everywhere")
def snapshot(
    config: ConfigOption = None, admin_url: AdminUrlOption = None, everywhere: EverywhereOption = False
) -> None:
    """Make a cluster publish all its metadata now, so that others catch up; this also happens at intervals."""
    change(
        targets(config, admin_url, everywhere),
        lambda client: client.post(f"{PATH}/snapshot"),
        "published a snapshot of the metadata",
    )


# ----------------------------------------------------------------------------------------------------------- comparing


LOCAL: Final = "(local)"
"""The value of a field where it is not shared."""

UNEQUAL_SHOWN: Final = 5
"""Fields that differ which a status page shows; `magnetar metadata diff` has all."""


def compare(found: Sequence[Target], states: dict[str, dict[str, Any]]) -> None:
    """Put into each cluster's state as `differs` what is not there as in most others, what stays local left out. It is not put
    there when a cluster does not answer meanwhile.
    """
    digests = {name: state["digest"] for name, state in states.items() if state.get("enabled")}
    rows: list[dict[str, Any]] = []
    if len(set(digests.values())) > 1:
        try:
            rows = differences([target for target in found if target.cluster in digests])
        except MagnetarError:
            return
    for name in digests:
        states[name]["differs"] = [
            {"document": row["document"], "field": row["field"], "here": row[name], "elsewhere": _common(row, digests)}
            for row in rows
            if row[name] not in (LOCAL, _common(row, digests))
        ]


def differing(states: dict[str, dict[str, Any]]) -> set[str]:
    """Clusters whose metadata is not that of most others."""
    on = {name: state for name, state in states.items() if state.get("enabled")}
    if all("differs" in state for state in on.values()):
        return {name for name, state in on.items() if state["differs"]}
    # Documents that stay local in one cluster are part of the others' digests.
    digests = {name: state["digest"] for name, state in on.items() if not state.get("exclude")}
    values = list(digests.values())
    common = max(values, key=values.count, default="")
    return {name for name, digest in digests.items() if digest != common}


def unequal(states: dict[str, dict[str, Any]]) -> list[str]:
    """Lines that say what differs."""
    lines = [
        f"{name}: {one['document']} {one['field']} is {_shown(one['here'])}, elsewhere {_shown(one['elsewhere'])}"
        for name, state in states.items()
        for one in state.get("differs", ())
    ]
    left = len(lines) - UNEQUAL_SHOWN
    return lines[:UNEQUAL_SHOWN] + ([f"{left} more fields differ: magnetar metadata diff"] if left > 0 else [])


def _common(row: dict[str, Any], names: dict[str, Any]) -> Any:
    """The value that most clusters have."""
    values = [row[name] for name in names if row[name] != LOCAL]
    return max(values, key=values.count)


def differences(found: Sequence[Target]) -> list[dict[str, Any]]:
    """One row a field that differs: `document`, `field`, and a value for each cluster.

    Raises:
        MagnetarError: a cluster does not answer, or does not synchronise.
    """
    prints: dict[str, dict[str, str]] = {}
    local: dict[str, Exclusions] = {}
    for target, answer in zip(found, at_once(found, lambda client: client.get(f"{PATH}/fingerprints")), strict=True):
        if isinstance(answer, MagnetarError):
            raise MagnetarError(f"{target.cluster}: {answer}")
        prints[target.cluster] = answer["documents"]
        local[target.cluster] = Exclusions(answer["exclude"])
    paths = sorted({path for documents in prints.values() for path in documents})
    unequal = [path for path in paths if len({documents.get(path) for documents in prints.values()}) > 1]
    rows = []
    for path in unequal[:DIFFERENCES_MAX]:
        rows += _fields(found, path, local)
    return rows


def _fields(found: Sequence[Target], path: str, local: dict[str, Exclusions]) -> list[dict[str, Any]]:
    views = {target.cluster: _view(target.client, path) for target in found}
    shared = {name: view for name, view in views.items() if not local[name].path(path)}
    rows = []
    if len({view is None for view in shared.values()}) > 1:
        rows.append({"document": path, "field": "(exists)"} | {name: view is not None for name, view in views.items()})
    names = {field for view in shared.values() if view is not None for field in view}
    for field in sorted(names):
        values: dict[str, Any] = {
            name: view.get(field)
            for name, view in shared.items()
            if view is not None and not local[name].field(path, field)
        }
        if len({repr(value) for value in values.values()}) > 1:
            row: dict[str, Any] = {"document": path, "field": field}
            rows.append(
                row
                | {
                    name: LOCAL if local[name].path(path) or local[name].field(path, field) else values.get(name)
                    for name in views
                }
            )
    return rows


def _view(client: AdminClient, path: str) -> dict[str, Any] | None:
    try:
        return {row["field"]: row["value"] for row in client.get(f"{PATH}/document", {"path": path})}
    except MagnetarError:
        return None


def rows_of(states: dict[str, dict[str, Any]], different: set[str]) -> list[dict[str, Any]]:
    """One row a cluster."""
    rows = []
    for name, state in states.items():
        heard = [
            f"{other} {'never' if peer['heard_ms'] is None else 'yes'}"
            for other, peer in state.get("clusters", {}).items()
            if peer["heard_ms"] is None
        ]
        rows.append(
            {
                "cluster": name,
                "state": word(name, state, different),
                "documents": state.get("documents"),
                "heard": "nothing of " + ", ".join(one.split()[0] for one in heard)
                if heard
                else "all"
                if state.get("enabled")
                else "",
                "waiting": len(state.get("waiting", ())),
                "kept": len(state.get("kept", ())),
                "refused": state.get("counters", {}).get("refused"),
                "detail": state.get("error", ""),
            }
        )
    return rows


def word(name: str, state: dict[str, Any], different: set[str]) -> str:
    """One word about a cluster's metadata."""
    if "error" in state:
        return "unknown"
    if not state.get("enabled"):
        return "off"
    return "differs" if name in different else "agrees"


def remarks(states: dict[str, dict[str, Any]]) -> list[str]:
    """A line for everything that an operator may have to check."""
    lines = []
    for name, state in states.items():
        for path, ahead_ms in state.get("waiting", {}).items():
            lines.append(
                f"{name}: {path} is ahead of this cluster's clock by {duration(ahead_ms)} and waits: check the clocks"
            )
        for path, why in state.get("kept", {}).items():
            lines.append(
                f"{name}: {path} was deleted in another cluster and is kept here for {why}; delete them by name"
            )
        for path, why in state.get("stuck", {}).items():
            lines.append(f"{name}: {path} cannot be made as in other clusters: {why}")
        lines += [f"{name}: {line}" for line in state.get("refused", ())[-3:]]
    return lines


# ----------------------------------------------------------------------------------------------------------- previews


def show_preview(config: Any, namespace: str, values: dict[str, Any]) -> None:
    """Print field by field what setting policies of a namespace would change in every cluster of the configuration.

    Args:
        config: path of the configuration, or None.
        namespace: which.
        values: policies by the names of Pulsar's JSON; None: taken back.
    """
    name = NamespaceName.parse(namespace)
    path = f"/geo/v1/namespaces/{segment(name.tenant)}/{segment(name.local)}/preview"
    body = {
        "set": {field: value for field, value in values.items() if value is not None},
        "unset": [field for field, value in values.items() if value is None],
    }
    found = of_config(read_config(config))
    refused = []
    for target, answer in zip(found, at_once(found, lambda client: client.post(path, body)), strict=True):
        if isinstance(answer, MagnetarError):
            refused.append(f"{target.cluster}: {answer}")
            continue
        for row in answer or [None]:
            print_line(f"{target.cluster}: {said(row) if row else 'nothing changes'}")
    print_line("nothing was changed: this is a preview")
    if refused:
        raise MagnetarError("; ".join(refused))


def said(row: dict[str, Any]) -> str:
    """One field of a preview in words."""
    who = f" (set by {row['set_by']}, {_when(row['set_ms'])})" if row["set_by"] else ""
    if row["local"]:
        return f"{row['field']}: {_shown(row['now'])}{who} stays when another cluster changes it: it is local here"
    return f"{row['field']}: {_shown(row['now'])}{who} -> {_shown(row['then'])}"


def _shown(value: Any) -> str:
    return "not set" if value is None else cell(str(value))


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if time_ms > 1 else "before"
