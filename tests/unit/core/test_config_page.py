"""docs/configuration.md shows a file that is read as it says."""

import re
from pathlib import Path

from magnetar.core import config

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_file_of_the_page_is_right() -> None:
    text = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert text is not None
    found = config.parse(text[1], Path("/x/clusters.toml"))
    assert list(found.clusters) == ["us-west", "us-east"]
    assert str(found.links[0]) == "us-west:us-east"
    assert found.replication.token_file == Path("/x/link.token")
    named = set(re.findall(r"^\[+([a-z]+)", text[1], re.MULTILINE))
    assert named >= {"magnetar", "clusters", "links", "namespaces", "replication", "broker", "subscriptions"}
