"""Values of policies on the command line; which requests they become."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.cli.commands import policies
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME, TABLE
from tests.unit.cli.conftest import Answer


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ttl", "86_400", 86400),
        ("deduplication", "on", True),
        ("schema-strategy", "BACKWARD", "BACKWARD"),
        ("replication-clusters", "us-west, us-east", ["us-west", "us-east"]),
        (
            "publish-rate",
            "messages=1000,bytes=1_000_000",
            {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1000000},
        ),
        (
            "publish-rate",
            '{"publishThrottlingRateInMsg": 5}',
            {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
        ),
        (
            "backlog-quota",
            "limit_size=1000,policy=producer_exception",
            {"limitSize": 1000, "policy": "producer_exception"},
        ),
        ("delayed-delivery", "active=off", {"active": False}),
        ("retention", "time_minutes=60,size_mb=-1", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}),
    ],
)
def test_values(name: str, text: str, value: Any) -> None:
    read = policies.read(BY_NAME[name], text)
    assert (read | value if isinstance(value, dict) else read) == (read if isinstance(value, dict) else value)
    if isinstance(value, dict):
        assert {key: read[key] for key in value} == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ttl", "soon"),
        ("ttl", "-1"),
        ("ttl", str(2**31)),
        ("deduplication", "perhaps"),
        ("schema-strategy", "SIDEWAYS"),
        ("publish-rate", "cows=3"),
        ("publish-rate", "messages=-2"),
        ("publish-rate", "{"),
        ("publish-rate", '{"a": ' + "[" * 99_999),
        ("publish-rate", "messages=٣"),
        ("publish-rate", "messages=" + "9" * 5_000),
        ("ttl", "٣"),
        ("ttl", "9" * 5_000),
        ("inactive-topics", "duration_s=0"),
        ("retention", "time_minutes=60,size_mb=0"),
    ],
)
def test_impossible_values_are_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(MagnetarError) as refused:
        policies.read(BY_NAME[name], text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


class Recorder:
    """Takes requests instead of a broker."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self.requests.append((method, *arguments))


SAMPLES = {
    "subscription-types": "Shared,Failover",
    "replication-clusters": "us-west",
    "allowed-clusters": "us-west",
    "idempotency": "property=k",
}


@pytest.mark.parametrize("policy", TABLE, ids=lambda policy: policy.name)
@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_every_policy_has_a_request_that_the_interface_knows(policy: Any, level: Any) -> None:
    """The path and the method are those of a route, with a body of the route's type."""
    import re

    import msgspec

    from magnetar.admin.http.server import ROUTES

    if not getattr(policy, level):
        with pytest.raises(MagnetarError, match="has no policy"):
            policies.named(policy.name, level)
        return
    kind = policies.usage(policy)
    text = SAMPLES.get(policy.name) or (
        "on" if kind == "on or off" else "7" if kind == "a number" else kind.split(",")[0].replace("=...", "=1")
    )
    text = {
        "delayed-delivery": "active=on",
        "auto-topic-creation": "allow=on",
        "auto-subscription-creation": "allow=off",
        "inactive-topics": "duration_s=5",
        "retention": "time_minutes=0",
    }.get(policy.name, text)
    client = Recorder()
    if level == "namespace":
        path = policies.namespace_path(policy, NamespaceName("a", "b"))
        method, removable = policy.namespace_method, policy.removable
    else:
        path = policies.topic_policy_path(policy, TopicName.parse("persistent://a/b/c"))
        method, removable = policy.topic_method, True
    policies.setter(policy, path, method, text, removable=removable)(client)  # type: ignore[arg-type]
    try:
        policies.setter(policy, path, method, "default", removable=removable)(client)  # type: ignore[arg-type]
    except MagnetarError as error:
        assert "has no default" in str(error)
    for verb, sent, *rest in client.requests:
        found = [
            route
            for route in ROUTES
            if route.method == verb.upper() and re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), sent)
        ]
        assert found, (verb, sent)
        if rest and rest[0] is not None and found[0].body is not None:
            msgspec.convert(rest[0], found[0].body)


@pytest.mark.parametrize(
    ("namespace", "answered", "applied", "shown"),
    [(False, False, False, None), (True, False, True, None), (True, False, False, False), (False, True, True, True)],
)
def test_a_broker_that_says_false_where_nothing_is_set(
    namespace: bool, answered: bool, applied: bool, shown: bool | None
) -> None:
    """As Pulsar does for `schemaValidationEnforced`: what is shown as the topic's own is what it has."""

    class Answering:
        def get(self, path: str) -> bool:
            return applied if path.endswith("?applied=true") else answered

    shared, topic = Policies(schema_validation_enforced=namespace), TopicName.parse("persistent://a/b/c")
    row = policies.topic_row(BY_NAME["schema-validation"], topic, shared, Answering(), as_json=True)  # type: ignore[arg-type]
    assert (row["value"], row["namespace"]) == (shown, namespace)


def test_the_reference_page_is_what_the_table_says() -> None:
    import subprocess
    import sys
    from pathlib import Path

    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, str(root / "tools" / "generate_policies.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 20_000, "9" * 5_000, "messages=" + "9" * 5_000])
def test_a_value_that_is_long_is_one_line_that_is_not(run: Callable[..., Answer], text: str) -> None:
    answer = run("topics", "set", "t", "publish-rate", text)
    assert answer.code == 1 and answer.err.startswith("magnetar: publish-rate: ") and answer.err.count("\n") == 1
    assert "is not a value of this policy" in answer.err and len(answer.err) < 800
