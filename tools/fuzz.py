"""`python tools/fuzz.py --minutes 60`: a client that breaks the protocol against a broker of its own; prints the seeds."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.results import Figure
from tests.support.brokers import World
from tests.support.fuzzing import HERE, Login, clean, descriptors, fuzz, resident_bytes, secured
from tests.support.soaking.rounds import KEPT_S, keep


def main() -> None:
    """Fuzz a broker of its own for some time; the exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--links", action="store_true", help="with authentication, and half of the clients as links")
    parser.add_argument("--http", action="store_true", help="requests of HTTP instead of frames")
    options = parser.parse_args()
    start = time.monotonic()
    print(f"fuzz: seeds from {options.seed} on", flush=True)
    with tempfile.TemporaryDirectory(prefix="magnetar-fuzz-") as folder:
        if options.links:
            world, login = secured(Path(folder))
            broker = world[HERE]
        else:
            world, login = World(Path(folder), ["solo"]).start(), Login()
            broker = world["solo"]
        assert broker.process is not None
        pid = broker.process.pid
        figures: list[tuple[int, int]] = []
        try:
            warm = time.monotonic() + options.minutes * 60 * 0.2
            count = fuzz(
                broker,
                options.seed,
                lambda _n: time.monotonic() < warm,
                lambda line: print("fuzz:", line, flush=True),
                login=login,
                http=options.http,
            )
            clean(broker)
            figures.append((resident_bytes(pid), descriptors(pid)))
            end = time.monotonic() + options.minutes * 60 * 0.8
            count += fuzz(
                broker,
                options.seed + count,
                lambda _n: time.monotonic() < end,
                lambda line: print("fuzz:", line, flush=True),
                login=login,
                http=options.http,
            )
            clean(broker)
            figures.append((resident_bytes(pid), descriptors(pid)))
        except AssertionError as error:
            sys.exit(f"fuzz: {error}")
        finally:
            world.close()
    (memory_before, files_before), (memory, files) = figures
    print(
        f"fuzz: {count} connections; {memory_before >> 20} -> {memory >> 20} MiB, {files_before} -> {files} descriptors"
    )
    if memory > memory_before * 1.3 + (32 << 20) or files > files_before + 8:
        sys.exit("fuzz: memory or descriptors grew")
    ran_s = time.monotonic() - start
    if ran_s >= KEPT_S:
        done = [
            Figure("duration", round(ran_s), "s", detail={"seed": options.seed}),
            Figure("connections", count, "connections"),
            Figure("memory, first", memory_before >> 20, "MiB"),
            Figure("memory, last", memory >> 20, "MiB", aim="as first"),
            Figure("descriptors, first", files_before, "descriptors"),
            Figure("descriptors, last", files, "descriptors", aim="as first"),
        ]
        command = ["tools/fuzz.py", "--minutes", str(options.minutes), "--seed", str(options.seed)]
        command += ["--links"] * options.links + ["--http"] * options.http
        print(f"fuzz: written to {keep('fuzz', done, command)}")


if __name__ == "__main__":
    main()
