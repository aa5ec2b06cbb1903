"""What a broker does when it starts again after a SIGKILL: where its processor's time goes until it is ready, sampled by py-spy.

    python -m bench.profile_starts [--scale N] [--rate 400] [--keep]

Twice, as in `bench.load`: with ten thousand topics, half of them with a subscription, and with 10 GB in the log. With --keep the
tables go to `bench/results/profile-starts.txt`; seconds under py-spy are more than without.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from tests.support.brokers import World

from bench.broker import load
from bench.crowd import Crowd, in_turns
from bench.profile import parsed, report
from bench.results import RESULTS

READY_S: Final = 60
BULK_BYTES: Final = 128 << 10
TOPICS_EACH: Final = 10


async def _many(port: int, connections: int) -> None:
    clients = [await Crowd.connect(port) for _ in range(connections)]
    jobs: list[Callable[[], Awaitable[Any]]] = []
    for number, client in enumerate(clients):
        for each in range(TOPICS_EACH):
            topic = f"crowd-{number}-{each}"
            jobs.append(lambda client=client, topic=topic, each=each: client.produce(topic, each))  # type: ignore[misc]
    await in_turns(jobs)
    jobs = []
    for number, client in enumerate(clients):
        for each in range(TOPICS_EACH // 2):
            topic = f"crowd-{number}-{each}"
            jobs.append(lambda client=client, topic=topic, each=each: client.consume(topic, "s", each))  # type: ignore[misc]
    await in_turns(jobs)
    for client in clients:
        client.close()


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
        for line in spying.stdout:
            if " ready " in line:
                break
            if time.perf_counter() - began > READY_S:
                break
        else:
            raise SystemExit("the broker did not start below py-spy: may it trace here?")
        seconds = time.perf_counter() - began
        for child in Path(f"/proc/{spying.pid}/task/{spying.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)  # py-spy writes what it has when its child ends
        spying.stdout.read()  # to its end: py-spy gives up when nobody hears it
    return seconds


def main() -> None:
    """Sample, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=1, help="divides the numbers")
    parser.add_argument("--rate", type=int, default=400, help="samples a second")
    parser.add_argument("--keep", action="store_true", help="write bench/results/profile-starts.txt")
    options = parser.parse_args()
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise SystemExit("py-spy is needed: pip install py-spy")

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
        command = f"python -m bench.profile_starts --rate {options.rate} --keep"
        text = f"{command}\n\nShares in per cent of the samples of running threads.\n\n" + "\n".join(reports)
        (RESULTS / "profile-starts.txt").write_text(text)


if __name__ == "__main__":
    main()
