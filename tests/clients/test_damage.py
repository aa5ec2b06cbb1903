"""A flipped bit in a closed segment: the official client's reader stops in front of it, and goes on by the printed command."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pulsar

from tests.support.brokers import World, eventually

TOPIC: Final = "persistent://public/default/orders"
COUNT: Final = 40


def flip(folder: Path, needle: bytes) -> None:
    """One bit of a message that lies in a segment which is closed."""
    segments = sorted(folder.rglob("*.seg"))
    assert len(segments) > 2, "there are closed ones"
    for path in segments[:-2]:
        data = bytearray(path.read_bytes())
        if (at := data.find(needle)) >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("it lies in no closed segment")


def test_a_reader_stops_says_so_and_goes_on_by_the_printed_command(tmp_path: Path) -> None:
    world = World(
        tmp_path, ["solo"], "[broker]\nmessage_bytes_max = 65_536\nsegment_bytes = 100_000\ncache_bytes_max = 1\n"
    ).start()
    broker = world["solo"]
    try:
        client = pulsar.Client(broker.url)
        producer = client.create_producer(TOPIC)
        for number in range(COUNT):
            producer.send(b"message-%02d:" % number + bytes(20_000))
        client.close()
        broker.stop()
        flip(tmp_path, b"message-05:")
        broker.start()

        client = pulsar.Client(broker.url)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(20_000).data()[:10] for _ in range(5)] == [b"message-%02d" % n for n in range(5)]
        printed = re.compile(r"cannot read from (\d+:\d+) on: corrupt.*to give it up: (magnetar .*)")
        found = eventually(lambda: printed.search(broker.log.read_text()))
        assert found is not None
        path = f"{TOPIC.replace('://', '/')}/damaged"
        ((row,),) = broker.rest("GET", f"/geo/v1/{path}").values()
        assert row["position"] == found[1] and "corrupt" in row["reason"]

        words = shlex.split(found[2])
        assert words[0] == "magnetar"
        done = subprocess.run(
            [sys.executable, "-m", *words, "--yes"],  # at a terminal it asks
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rest = [reader.read_next(20_000).data()[:10] for _ in range(COUNT - 6)]
        assert rest == [b"message-%02d" % number for number in range(6, COUNT)]
        assert broker.figure("magnetar_damaged_messages_given_up_total") == 1
        client.close()
    finally:
        world.close()
