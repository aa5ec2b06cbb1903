"""docs/configuration.md and docs/bookkeeper.md show files that are read as they say."""

import re
from pathlib import Path

from magnetar.core import config

DOCS = Path(__file__).resolve().parents[3] / "docs"


def file_of(page: str) -> str:
    """The first file on a page."""
    text = re.search(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert text is not None
    return text[1]


def test_the_file_of_the_page_is_right() -> None:
    text = file_of("configuration.md")
    found = config.parse(text, Path("/x/clusters.toml"))
    assert list(found.clusters) == ["us-west", "us-east"]
    assert str(found.links[0]) == "us-west:us-east"
    assert found.replication.token_file == Path("/x/link.token")
    named = set(re.findall(r"^\[+([a-z]+)", text, re.MULTILINE))
    assert named >= {"magnetar", "clusters", "links", "namespaces", "replication", "broker", "subscriptions"}


def test_a_cluster_on_bookkeeper_has_the_defaults_of_the_page() -> None:
    text = file_of("bookkeeper.md")
    found = config.parse(text, Path("/x/clusters.toml")).cluster("us-west")
    assert (found.storage, found.titles()) == ("bookkeeper", ["us-west/a", "us-west/b"])
    with_defaults = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert with_defaults.count("\n# ") == 0
    assert config.parse(with_defaults, Path("/x/clusters.toml")).cluster("us-west") == found
    for key in ("storage", "store", "pulsar", "here", "ledgers", "ensemble", "ack_quorum"):
        assert f"\n{key} = " in with_defaults
