"""What a broker does when it starts again after a SIGKILL: where its processor's time goes until it is ready, sampled by py-spy.

    python -m bench.profile_starts [--scale N] [--rate 400] [--keep]

Twice, as in `bench.load`: with ten thousand topics, half of them with a subscription, and with 10 GB in the log. With --keep the
tables go to `bench/results/profile-starts.txt`; seconds under py-spy are more than without.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from tests.support.brokers import World

from bench.broker import load
from bench.crowd import Crowd, on_each
from bench.profile import keep, parsed, py_spy, report

READY_S: Final = 60
BULK_BYTES: Final = 128 << 10
TOPICS_EACH: Final = 10


async def _many(port: int, connections: int) -> None:
    clients = [await Crowd.connect(port) for _ in range(connections)]
    await on_each(clients, TOPICS_EACH, Crowd.produce)
    await on_each(clients, TOPICS_EACH // 2, lambda client, topic, each: client.consume(topic, "s", each))
    for client in clients:
        client.close()


def _end_child(pid: int) -> None:
    """End what py-spy started; it writes what it has then."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def start_sampled(program: str, world: World, rate: int, out: Path) -> float:
    """Start the broker of a world below py-spy; the seconds until it said that it is ready. It is ended then.

    Raises:
        SystemExit: it did not become ready.
    """
    broker = world["bench"]
    command = [program, "record", "--rate", str(rate), "--threads", "--format", "raw", "--nolineno"]
    command += ["--duration", "unlimited", "--output", str(out), "--"]
    command += [sys.executable, "-m", "magnetar", "broker", "bench", "-c", str(broker.config)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as spying:
        assert spying.stdout is not None
        late = threading.Timer(READY_S, _end_child, (spying.pid,))
        late.start()
        ready = any(" ready " in line for line in spying.stdout)
        seconds = time.perf_counter() - began
        late.cancel()
        if not ready:
            raise SystemExit(f"the broker did not start below py-spy within {READY_S} s: may it trace here?")
        _end_child(spying.pid)
        spying.stdout.read()  # to its end: py-spy gives up when nobody hears it
    return seconds


def main() -> None:
    """Sample, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=1, help="divides the numbers")
    parser.add_argument("--rate", type=int, default=400, help="samples a second")
    parser.add_argument("--keep", action="store_true", help="write bench/results/profile-starts.txt")
    options = parser.parse_args()
    program = py_spy()

    def topics(world: World) -> str:
        asyncio.run(_many(world["bench"].pulsar_port, 1_000 // options.scale))
        return f"{1_000 // options.scale * TOPICS_EACH:,} topics"

    def bulk(world: World) -> str:
        gigabytes = 10 / options.scale
        number = str(int(gigabytes * 1e9 / BULK_BYTES))
        address = f"127.0.0.1:{world['bench'].pulsar_port}"
        load(address, "bulk", "--messages", number, "--size", str(BULK_BYTES), "--window", "100")
        return f"{gigabytes:g} GB"

    reports = []
    with tempfile.TemporaryDirectory() as name:
        for number, fill in enumerate((topics, bulk)):
            folder = Path(name) / str(number)
            folder.mkdir()
            world = World(folder, ["bench"])
            try:
                world["bench"].start()
                what = fill(world)
                world["bench"].kill()
                out = folder / "raw"
                seconds = start_sampled(program, world, options.rate, out)
            finally:
                world.close()
            reports.append(
                report(f"recovery with {what}", parsed(out.read_text().splitlines()), f"ready after {seconds:.2f} s")
            )
            print(reports[-1], flush=True)
    if options.keep:
        keep("profile-starts.txt", f"python -m bench.profile_starts --rate {options.rate} --keep", reports)


if __name__ == "__main__":
    main()
