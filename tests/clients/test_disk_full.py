"""The disk is full: publishing fails with the protocol's error, reading and acknowledging go on, and it heals by itself."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import World, eventually

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def publish_on(producer: pulsar.Producer, stored: list[bytes]) -> None:
    """Until a message is refused: room is looked at 20 times a second (`ROOM_S`), and much fits between two such looks."""
    while len(stored) < 10_000:
        content = b"%d" % len(stored)
        producer.send(content)
        stored.append(content)


@pytest.mark.timeout(120)
def test_disk_full_and_room_again(small_disk: Path) -> None:
    world = World(small_disk, ["solo"], "[broker]\ndisk_free_bytes_min = 8388608\nsegment_bytes = 8388608\n")
    broker = world["solo"].start()
    try:
        client = connect(broker)
        consumer = client.subscribe("full", "s")
        producer = client.create_producer("full", batching_enabled=False, send_timeout_millis=4000)
        stored = [b"%d" % n for n in range(20)]
        for content in stored:
            producer.send(content)
        filler = small_disk / "filler"
        room = os.statvfs(small_disk)
        with filler.open("wb") as file:
            file.write(b"x" * max(0, room.f_bavail * room.f_frsize - 6 * MIB))
        with pytest.raises(pulsar.PulsarException):
            publish_on(producer, stored)
        refused = b"%d" % len(stored)
        for content in stored:
            message = consumer.receive(60_000)
            assert message.data() == content
            consumer.acknowledge(message)
        path = "/admin/v2/persistent/public/default/full/stats"
        eventually(lambda: broker.rest("GET", path)["subscriptions"]["s"]["msgBacklog"] == 0)
        filler.unlink()

        def published() -> bool:
            try:
                producer.send(b"room again")
            except pulsar.PulsarException:
                return False
            return True

        eventually(published, within_s=60)
        # What failed may not be there; what comes now is, after it in order.
        seen = [consumer.receive(60_000).data()]
        while seen[-1] != b"room again":
            seen.append(consumer.receive(60_000).data())
        assert set(seen) <= {b"room again", refused}
        client.close()
    finally:
        world.close()
