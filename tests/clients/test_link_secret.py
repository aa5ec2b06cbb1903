"""The secret that links share where there is no authentication is replaced while brokers run."""

from pathlib import Path

import pytest

from magnetar.runtime.network.link_client import LinkClient, LinkRefused
from tests.support.brokers import World, eventually


def test_a_new_secret_is_in_force_and_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, ["solo"]).start()
    try:
        broker = world["solo"]
        address = f"127.0.0.1:{broker.pulsar_port}"
        (path,) = tmp_path.rglob("link.token")
        old, new, aside = path.read_text().strip(), "n" * 43, tmp_path / "aside"

        def put(text: str) -> None:
            aside.write_text(text)
            aside.chmod(0o600)
            aside.replace(path)

        def accepted(secret: str) -> bool:
            try:
                LinkClient.connect(address, secret).close()
            except LinkRefused:
                return False
            return True

        with LinkClient.connect(address, old) as there:
            put("")
            eventually(lambda: "the former one stays in force" in broker.log.read_text())
            assert accepted(old)
            put(new + "\n")
            eventually(lambda: accepted(new), what="the new secret is in force")
            assert not accepted(old)
            assert there.status().gap == 0, "who is there stays"
        log = broker.log.read_text()
        assert old not in log and new not in log
        with pytest.raises(LinkRefused, match="link token"):
            LinkClient.connect(address, old)
    finally:
        world.close()
