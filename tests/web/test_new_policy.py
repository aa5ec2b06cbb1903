"""What docs/architecture.md#a-new-policy promises of a field and its row: the rest follows from them."""

from typing import Any

import msgspec
import pytest

from magnetar.admin.http import server
from magnetar.admin.routes import policies as routes
from magnetar.broker.catalog.changes import LIMITS
from magnetar.cli.commands import policies as commands
from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.core.names import TopicName
from magnetar.metadata.keys import NAMESPACE_PREFIX
from magnetar.metadata.policies import checks, defaults, table
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import TABLE, Policy
from magnetar.metadata.policies.topic import TOPIC_POLICIES_PREFIX, TopicPolicies
from magnetar.metadata.policies.types import Int32
from magnetar.metadata.sync.documents import kind_of
from magnetar.metadata.sync.preview import preview
from tests.support.tools import tool
from tests.web.conftest import Tell, World

ROW = Policy(
    "test-size",
    "Bytes of something.",
    Int32,
    "nothing",
    namespace="max_message_size",
    namespace_path="testSize",
    topic="max_message_size",
    topic_path="testSize",
    default=lambda _config: 9,
    shown="9",
    check=checks.count("test-size"),
)
NAMESPACE = "/admin/v2/namespaces/public/default/testSize"
TOPIC = "/admin/v2/persistent/public/default/t/testSize"


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Policy:
    """The table has one row more."""
    groups = [routes.policies, routes.topic_policies, routes.non_persistent_policies]
    for group in groups:
        monkeypatch.setattr(group, "routes", [])
    routes.add_rows([ROW])
    made = [route for group in groups for route in group.routes]
    monkeypatch.setattr(server, "ROUTES", (*server.ROUTES, *made))
    rows, by_name = (*table.TABLE, ROW), {**table.BY_NAME, ROW.name: ROW}
    monkeypatch.setattr(commands, "TABLE", rows)
    for module in ("cli.commands.policies", "metadata.policies.defaults", "broker.admin.policies"):
        monkeypatch.setattr(f"magnetar.{module}.BY_NAME", by_name)
    return ROW


def test_a_row_has_its_routes_on_both_levels(row: Policy) -> None:
    found = {route.name for route in server.ROUTES if route.path.endswith(f"/{row.namespace_path}")}
    paths = (
        "/admin/v2/namespaces/{tenant}/{namespace}/testSize",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/testSize",
        "/admin/v2/non-persistent/{tenant}/{namespace}/{topic}/testSize",
    )
    assert found == {f"{method} {path}" for method in ("GET", "POST", "DELETE") for path in paths}


def test_the_routes_of_a_row_set_check_and_take_back(tell: Tell, row: Policy) -> None:
    async def story(world: World) -> None:
        world.create("persistent://public/default/t")
        assert (await world.ask("GET", NAMESPACE)).status == 204
        assert (await world.ask("GET", f"{TOPIC}?applied=true")).json == 9
        await world.have(("POST", NAMESPACE, "5"))
        assert (await world.ask("GET", f"{TOPIC}?applied=true")).json == 5
        await world.have(("POST", TOPIC, "7"))
        assert (await world.ask("GET", TOPIC)).json == 7
        assert (await world.ask("POST", NAMESPACE, "-1")).status == 412
        assert (await world.ask("POST", TOPIC, '"many"')).status == 400
        await world.have(("DELETE", TOPIC, None), ("DELETE", NAMESPACE, None))
        assert (await world.ask("GET", f"{TOPIC}?applied=true")).json == 9

    tell(story)


def test_the_command_line_knows_a_row(row: Policy) -> None:
    sent: list[tuple[Any, ...]] = []

    class Recorder:
        def __getattr__(self, method: str) -> Any:
            return lambda *arguments: sent.append((method, *arguments))

    client: Any = Recorder()
    topic = TopicName.parse("persistent://public/default/t")
    for text in ("7", "default"):
        commands.namespace_setter(commands.named("test-size", "namespace"), "public/default", text)(client)
        commands.topic_setter(commands.named("test-size", "topic"), topic, text)(client)
    assert [one[:2] for one in sent] == [("post", NAMESPACE), ("post", TOPIC), ("delete", NAMESPACE), ("delete", TOPIC)]
    assert sent[0][2] == 7
    with pytest.raises(MagnetarError, match="test-size is 0"):
        commands.read(row, "-1")
    shown = commands.namespace_row(row, Policies(max_message_size=7), as_json=True)
    assert shown == {"policy": "test-size", "value": 7, "default": "9", "does": "Bytes of something."}


def test_a_row_has_a_default_in_the_file(row: Policy) -> None:
    assert defaults.defaults_of({row.name: 5}) == Policies(max_message_size=5)
    with pytest.raises(ConfigError, match=r"policies\.test-size: test-size is 0"):
        defaults.defaults_of({row.name: -1})


def test_a_row_is_a_line_of_the_reference(row: Policy) -> None:
    line = tool("generate_policies").row(row)
    assert line == "| `test-size` | Bytes of something. | a number | 9 | `testSize` | `testSize` | nothing |\n"


def test_every_part_hears_of_a_row_unless_it_says_otherwise(row: Policy) -> None:
    """A policy used to join the limits by its name, such as `max-...`, and links did not hear of it."""
    assert not row.limits_only
    assert all(policy.limits_only is (policy.namespace in LIMITS) for policy in TABLE if policy.namespace)


@pytest.mark.parametrize("policy", TABLE, ids=lambda policy: policy.name)
def test_a_field_is_synchronised_and_checked_by_itself(policy: Policy) -> None:
    levels = ((NAMESPACE_PREFIX, Policies, policy.namespace), (TOPIC_POLICIES_PREFIX, TopicPolicies, policy.topic))
    for prefix, struct, field in levels:
        kind = kind_of(prefix)
        assert kind is not None
        if field:
            (name,) = [one.encode_name for one in msgspec.structs.fields(struct) if one.name == field]
            assert name in kind.fields and name not in kind.local
            assert kind.checks[name] in {policy.check, checks.quotas}


def test_a_field_has_its_line_in_a_preview() -> None:
    before, after = (msgspec.json.encode(Policies(max_message_size=size)) for size in (None, 5))
    (change,) = preview(f"{NAMESPACE_PREFIX}public/default", before, after, None)
    assert (change.field, change.now, change.then) == ("max_message_size", None, 5)


def test_an_interval_below_zero_is_refused_for_topics_that_store_nothing(tell: Tell) -> None:
    """It was taken, and could not be read again: the type of what is stored begins at 0."""

    async def story(world: World) -> None:
        world.create("non-persistent://public/default/t")
        path = "/admin/v2/non-persistent/public/default/t/deduplicationSnapshotInterval"
        assert (await world.ask("POST", path, "-1")).status == 400
        await world.have(("POST", path, "0"))

    tell(story)
