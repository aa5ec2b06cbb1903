"""The examples of docs/policies.md, run as they stand; and what every policy shows afterwards. Those of compacted topics, too."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnetar.cli.commands.all import app
from magnetar.core.errors import MagnetarError
from tests.support.brokers import BrokerProcess, World

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def run(command: str) -> str:
    """A command as a user types it, in this process; its output, or the one line of its error."""
    result = CliRunner().invoke(app, command.split()[1:], prog_name="magnetar")
    if isinstance(result.exception, MagnetarError):
        return f"magnetar: {result.exception}"
    assert result.exit_code == 0, (command, result.output, result.exception)
    return result.output


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert defaults is not None
    world = World(tmp_path, ["us-west", "us-east"], defaults[1])
    monkeypatch.chdir(tmp_path)
    try:
        world["us-west"].start()
        world["us-west"].rest("PUT", "/admin/v2/persistent/public/default/orders/partitions", 2)
        path = "/admin/v2/namespaces/public/default"
        assert world["us-west"].rest("GET", f"{path}/messageTTL?applied=true") == 604800
        assert world["us-west"].rest("GET", f"{path}/publishRate?applied=true")["publishThrottlingRateInMsg"] == 10000
        text = PAGE.read_text(encoding="utf-8")
        commands = re.findall(r"^    (magnetar [^#\n]*)$", text, re.MULTILINE)
        assert len(commands) > 12
        for command in commands:
            answer = run(command)
            assert not answer.startswith("magnetar:"), (command, answer)
        for command, said in re.findall(r"^    \$ (magnetar .*)\n    (.*)$", text, re.MULTILINE):
            assert run(command).strip() == said
        rows = json.loads(run("magnetar topics get persistent://public/default/orders --json"))
        own = {row["policy"]: row["value"] for row in rows if row["value"] is not None}
        assert own == {
            "publish-rate": {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1000000},
            "inactive-topics": {
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 86400,
                "deleteWhileInactive": True,
            },
            "replication-clusters": ["us-east", "us-west"],
            "schema-strategy": "BACKWARD",
            "subscription-types": ["Shared", "Key_Shared"],
        }
        shared = {row["policy"]: row["namespace"] for row in rows if row["namespace"] is not None}
        assert (
            shared["max-producers"] == 50 and shared["ttl"] == 604800 and shared["delayed-delivery"]["active"] is False
        )
        assert "max-producers" in run("magnetar namespaces get public/default")
    finally:
        world.close()


def test_compacted_topics(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(broker.config.parent)
    broker.rest("PUT", "/admin/v2/persistent/public/default/prices")
    section = PAGE.with_name("topics.md").read_text("utf-8").partition("## Compacted topics\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^    (magnetar [^#\n]*)$", section, re.MULTILINE)
    assert len(commands) >= 4
    try:
        for command in commands:
            answer = run(command)
            assert not answer.startswith("magnetar:"), (command, answer)
        path = "/geo/v1/persistent/public/default/prices/compactionDeleteRetention"
        assert broker.rest("GET", path) == -1
    finally:
        for policy in ("compaction-threshold", "compaction-delete-retention"):
            run(f"magnetar namespaces set public/default {policy} default")
        broker.rest("DELETE", "/admin/v2/persistent/public/default/prices?force=true")
