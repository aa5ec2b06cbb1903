"""`make soak`: for hours random clients, kills and faults; stops at the first failure.

Side by side, each with a broker of its own:

    ledger   official clients of all subscription types, in turns at a broker that is killed and at one that runs all the time;
             every message has to add up, disk space has to come back, and what the second one holds may not grow
             (tests/support/soaking)
    fuzz     a client that breaks the protocol (tests/support/fuzzing.py)
    tests    the tests with faults and kills, again and again with other seeds, each round with more of them; `--tests sink`
             for some of their groups
    cluster  only with `--only cluster`, or `make soak CLUSTER=bookkeeper`: two brokers on a real BookKeeper, and a cluster of one
             broker, with links both ways; everything is killed in turn (tests/support/soaking/cluster.py)
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.results import Figure  # noqa: E402 - the path comes first
from examples.cluster.world import World as BookKeeperWorld  # noqa: E402
from tests.support.apache_bookkeeper.kit import missing  # noqa: E402
from tests.support.brokers import World  # noqa: E402
from tests.support.jvm import PeerError  # noqa: E402
from tests.support.soaking.cluster import ClusterSoak  # noqa: E402
from tests.support.soaking.rounds import CONFIG, KEPT_S, Soak, keep  # noqa: E402

from magnetar.core.errors import MagnetarError  # noqa: E402

GROUPS = {
    "sink": "tests/spark/spark/kills",
    "links": "tests/replication",
    "clients": "tests/clients",
    "programs": "tests/e2e",
    "worlds": "tests/property",
}
"""Tests by what they try; in this order, one after the other."""

SEEDS = 1_000
"""Random worlds of each kind in the first round; twice as many in each round after it."""

KILLS = 10
"""Kills of a process that writes, in the same way; `make test` does 6."""

KILL_ROUNDS = 10
"""SIGKILLs of brokers, drivers, Python workers and executors, of each kind, in the same way; `make test` does as many."""

LEAST_S = 60.0
"""Of a group, however little time there is: pytest has to come so far that it can be interrupted."""

END_S = 120.0
"""From the interruption of tests whose time is up until everything that they started has to be gone."""

ROUND_S = 40.0
"""Of the ledger's clients, before everything heals and is counted."""

KILLS_PER_ROUND = 4
"""Of the one broker; half of the rounds are the other's, which is never killed, as a leak would be lost with the process."""

STEADY_BURST = 30
"""Messages at a time for the broker that runs all the time; the other gets up to 100."""

KEPT_ROUNDS = 3
"""Rounds until what the broker holds that is never killed has settled; it is compared with what it holds ever after."""

CLUSTER_ROUND_S = 200.0
"""Of the clients of the cluster on BookKeeper, before everything heals and is counted; their topics are read back whole."""

PARTS = ("ledger", "fuzz", "tests")

CLUSTER = "cluster"
"""The part that has the machine for itself: it runs some ten JVMs and Python processes."""


def ledger(hours: float, seed: int) -> None:
    """Rounds of clients, in turns with kills and without, until the time is up.

    Raises:
        AssertionError: something does not add up, or grew.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="magnetar-soak-") as name:
        folder = Path(name)
        worlds = {}
        for each in ("killed", "steady"):
            (folder / each).mkdir()
            worlds[each] = World(folder / each, [each], CONFIG).start()
        killed = Soak(worlds["killed"]["killed"], folder / "killed" / "data", seed)
        steady = Soak(worlds["steady"]["steady"], folder / "steady" / "data", seed + 1, STEADY_BURST)
        number, settled, held = 0, (0, 0), (0, 0)
        try:
            while time.monotonic() - start < hours * 3600:
                number += 1
                if number % 2:
                    killed.round(ROUND_S, kills=KILLS_PER_ROUND, tell=partial(_told, f"{number}, with kills"))
                    continue
                steady.round(ROUND_S, kills=0, tell=partial(_told, f"{number}, without"))
                held = steady.held()
                if number // 2 <= KEPT_ROUNDS:
                    settled = held
                assert_steady(settled, held)
        except AssertionError as error:
            for each, world in worlds.items():
                (ROOT / f"soak-{seed}-{each}.log").write_text(world[each].log.read_text())
            raise AssertionError(f"{error} (seed {seed}; the brokers' logs: soak-{seed}-*.log)") from error
        finally:
            for world in worlds.values():
                world.close()
    totals = killed.totals + steady.totals
    print(f"ledger: {number} rounds: {dict(totals)}", flush=True)
    print(
        f"ledger: the broker without kills: {shown(settled)} at first, {shown(held)} at the end",
        flush=True,
    )
    ran_s = time.monotonic() - start
    if ran_s >= KEPT_S:
        figures = [
            Figure("duration", round(ran_s), "s", detail={"seed": seed}),
            Figure("rounds", number, "rounds", detail={"kills in every second": KILLS_PER_ROUND}),
            *(Figure(what, count, "messages") for what, count in sorted(totals.items())),
            Figure("memory of the broker without kills, first", settled[0] >> 20, "MiB"),
            Figure("memory of the broker without kills, last", held[0] >> 20, "MiB", aim="as first"),
            Figure("its descriptors, first", settled[1], "descriptors"),
            Figure("its descriptors, last", held[1], "descriptors", aim="as first"),
        ]
        command = ["tools/soak.py", "--hours", str(hours), "--only", "ledger", "--seed", str(seed)]
        print(f"ledger: written to {keep('soak', figures, command)}", flush=True)


def cluster(hours: float, seed: int) -> None:
    """Rounds on a cluster on BookKeeper until the time is up. The folder of one that failed stays.

    Raises:
        AssertionError: something does not add up.
    """
    start, number = time.monotonic(), 0
    folder = Path(tempfile.mkdtemp(prefix="magnetar-soak-"))

    def told(line: str) -> None:
        print(f"cluster: {time.monotonic() - start:6.1f} s: {line}", flush=True)

    world = BookKeeperWorld(folder, "local[2,4]")
    try:
        world.open()
        world.pipeline.await_ready()
        start = time.monotonic()  # on a busy machine it took minutes until here
        soak = ClusterSoak(world, seed, told)
        while (left := hours * 3600 - (time.monotonic() - start)) > 0:
            number += 1
            counted = soak.round(min(CLUSTER_ROUND_S, left))
            told(f"round {number}: {dict(counted)}; {soak.folder_bytes >> 20} MiB on the disk")
    except AssertionError as error:
        raise AssertionError(f"{error} (seed {seed}; all files are in {folder})") from error
    finally:
        world.close()
    shutil.rmtree(folder)
    print(f"cluster: {number} rounds: {dict(soak.totals)}", flush=True)
    print(f"cluster: {soak.faults.total()} faults: {dict(soak.faults)}", flush=True)
    print("cluster: 0 lost, 0 invented, 0 confirmed twice", flush=True)
    if (ran_s := time.monotonic() - start) >= KEPT_S:
        figures = [
            Figure("duration", round(ran_s), "s", detail={"seed": seed}),
            Figure("rounds", number, "rounds"),
            *(Figure(what, count, "messages") for what, count in sorted(soak.totals.items())),
            *(Figure(what, count, "times") for what, count in sorted(soak.faults.items())),
        ]
        command = ["tools/soak.py", "--hours", str(hours), "--only", CLUSTER, "--seed", str(seed)]
        print(f"cluster: written to {keep('soak_cluster', figures, command)}", flush=True)


def assert_steady(settled: tuple[int, int], held: tuple[int, int]) -> None:
    """Memory and descriptors are what they were.

    Raises:
        AssertionError: they grew.
    """
    assert held[0] <= settled[0] * 1.3 + (32 << 20), f"memory grew from {settled[0] >> 20} to {held[0] >> 20} MiB"
    assert held[1] <= settled[1] + 8, f"descriptors grew from {settled[1]} to {held[1]}"


def shown(held: tuple[int, int]) -> str:
    """Memory and descriptors as text."""
    return f"{held[0] >> 20} MiB and {held[1]} descriptors"


def _told(number: str, line: str) -> None:
    print(f"ledger: round {number}: {line}", flush=True)


def tests(hours: float, seed: int, groups: list[str]) -> None:
    """Rounds of tests until the time is up; exits with the first run that failed.

    No group takes more of the time than its share, in a round, so that all of them have their turn.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("tests: ended"))
    start = time.monotonic()
    deadline, share = start + hours * 3600, hours * 3600 / len(groups)
    number = 0
    while time.monotonic() < deadline:
        number += 1
        for group in groups:
            left = deadline - time.monotonic()
            if left > 0:
                one_group(group, number, seed + number, max(LEAST_S, min(share, left)))


def one_group(group: str, number: int, seed: int, limit_s: float) -> None:
    """One run of some tests, for so long at most.

    Raises:
        SystemExit: a test failed; tells how to run the same again.
    """
    more = 1 << number - 1
    changes = {
        "HYPOTHESIS_PROFILE": "soak",
        "MAGNETAR_SEEDS": str(SEEDS * more),
        "MAGNETAR_KILLS": str(KILLS * more),
        "MAGNETAR_KILL_ROUNDS": str(KILL_ROUNDS * more),
        "MAGNETAR_KILL_SEED": str(seed),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=0", f"--hypothesis-seed={seed}", GROUPS[group]]
    began = time.monotonic()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts what it puts in the background; those who inherit it could not be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A session of its own: who ends these tests ends them gently, so that they end what they started.
    running = subprocess.Popen(command, cwd=ROOT, env=os.environ | changes, start_new_session=True)
    how = "passed"
    try:
        code = running.wait(limit_s)
    except subprocess.TimeoutExpired:
        how, code = "nothing failed until the time was up", 0
    finally:
        if running.poll() is None:
            end(running)
    if code != 0:
        again = " ".join([*(f"{key}={value}" for key, value in changes.items()), *command])
        sys.exit(f"tests: {group} failed in round {number}; the same again: {again}")
    print(f"tests: round {number}: {group}: {how} ({(time.monotonic() - began) / 60:.1f} minutes)", flush=True)


def end(running: "subprocess.Popen[bytes]") -> None:
    """Interrupt tests, wait for what they clear away, and end what is left of what they started.

    Their exit code then says nothing: nothing had failed before, or `-x` would have ended them.
    """
    started = psutil.Process(running.pid).children(recursive=True)
    os.kill(running.pid, signal.SIGINT)
    try:
        running.wait(END_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    for left in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


def side_by_side(parts: list[str], options: argparse.Namespace) -> int:
    """All parts, each a process of its own; the first failure ends the others, and so does the end of this process."""
    given = ["--hours", str(options.hours), "--seed", str(options.seed), "--tests", *options.tests]
    commands = {part: [sys.executable, __file__, *given, "--only", part] for part in parts}
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed = 0
    try:
        for part, command in commands.items():
            running[part] = subprocess.Popen(command, start_new_session=True)
        while running and not failed:
            time.sleep(0.5)
            for part, process in list(running.items()):
                if process.poll() is not None:
                    del running[part]
                    failed = failed or process.returncode
                    print(f"soak: {part} {'failed' if process.returncode else 'is done, nothing is wrong'}", flush=True)
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    return failed


def main() -> None:
    """Run until the time is up or something fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0, help="how long")
    parser.add_argument("--only", nargs="*", choices=(*PARTS, CLUSTER), default=list(PARTS), help="some of the parts")
    parser.add_argument("--tests", nargs="*", choices=GROUPS, default=list(GROUPS), help="some groups of the tests")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of clients, kills and spoiled commands")
    options = parser.parse_args()
    if CLUSTER in options.only and len(options.only) > 1:
        parser.error("the part `cluster` runs alone: --only cluster")
    if len(options.only) > 1:
        print(f"soak: seed {options.seed}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        sys.exit(side_by_side(options.only, options))
    if options.only == ["ledger"]:
        try:
            ledger(options.hours, options.seed)
        except AssertionError as error:
            sys.exit(f"ledger: {error}")
    elif options.only == [CLUSTER]:
        print(f"soak: seed {options.seed}", flush=True)
        if reason := missing():
            sys.exit(f"cluster: {reason}")
        try:
            cluster(options.hours, options.seed)
        except (AssertionError, MagnetarError, PeerError) as error:
            sys.exit(f"cluster: {error}")
    elif options.only == ["fuzz"]:
        command = [sys.executable, str(ROOT / "tools/fuzz.py"), "--minutes", str(options.hours * 60)]
        sys.exit(subprocess.run([*command, "--seed", str(options.seed)], check=False).returncode)
    else:
        tests(options.hours, options.seed, options.tests)


if __name__ == "__main__":
    main()
