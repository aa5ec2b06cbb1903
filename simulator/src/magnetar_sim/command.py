"""The simulator's command line."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar import FORM
from magnetar.runtime.interpreter.compiled import COMPILED, VARIABLE
from magnetar_sim.bookkeeper import runner as ledger_runner
from magnetar_sim.bookkeeper.bugs import BUGS as LEDGER_BUGS
from magnetar_sim.bookkeeper.takeover import runner as takeover_runner
from magnetar_sim.bookkeeper.takeover.bugs import BUGS as TAKEOVER_BUGS
from magnetar_sim.compare import compare, table
from magnetar_sim.host import outcomes
from magnetar_sim.host.quiet import quiet
from magnetar_sim.metadata_worlds import runner as metadata_runner
from magnetar_sim.metadata_worlds.bugs import BUGS as METADATA_BUGS
from magnetar_sim.runner import BUGS, run_many, run_world, shorter

MODES: Final = ("exact", "snapshot", "mixed", "metadata", "bookkeeper", "takeover")
"""Every kind of world that `make sim` runs. The first three may be wide, or have takeovers, too."""


@quiet()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run worlds.

    Returns:
        0 when every promise held, 1 when one was broken, 2 for a wrong command line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m magnetar_sim", description="Random worlds around the real brokers; a seed replays exactly."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="exact",
        help="of replicated subscriptions; metadata: worlds of synchronised metadata instead; bookkeeper: of ledgers; "
        "takeover: of the brokers of one cluster",
    )
    parser.add_argument("--seed", type=int, help="one world")
    parser.add_argument("--steps", type=int, default=0, help="of that world, instead of what its seed says")
    bugs = ("", *BUGS, *METADATA_BUGS, *LEDGER_BUGS, *TAKEOVER_BUGS)
    parser.add_argument("--bug", default="", choices=bugs, metavar="RULE", help="leave a rule out (docs/simulator.md)")
    parser.add_argument("--wide", action="store_true", help="more is done, and more goes wrong (docs/simulator.md)")
    parser.add_argument(
        "--takeover", action="store_true", help="several brokers a cluster, on BookKeeper (docs/simulator.md#takeovers)"
    )
    parser.add_argument(
        "--batches", default="", choices=("short", "long", "both"), help="what carries the links; else by the seed"
    )
    parser.add_argument("--trace", action="store_true", help="print what happens in that world")
    parser.add_argument("--cores", type=int, default=0, help="0: all")
    parser.add_argument(
        "--find",
        default="",
        choices=bugs,
        metavar="RULE",
        help="the first of the seeds that notices this planted bug",
    )
    parser.add_argument("--compare", action="store_true", help="messages that come twice: both modes on the same seeds")
    parser.add_argument("--output", type=Path, help="of --compare: a JSON file for its figures")
    given = parser.parse_args(arguments)
    if (given.bug or given.find) and FORM.name == COMPILED:
        parser.error(f"--bug and --find replace functions, which compiled modules do not notice: set {VARIABLE}=no")
    if given.mode == "metadata" or given.find in METADATA_BUGS:
        return outcomes.command("metadata", metadata_runner.run_world, given)
    if given.mode == "takeover" or given.find in TAKEOVER_BUGS:
        return outcomes.command("takeover", takeover_runner.run_world, given)
    if given.mode == "bookkeeper" or given.find in LEDGER_BUGS:
        return outcomes.command("bookkeeper", ledger_runner.run_world, given)
    if given.find:
        return _find(given)
    if given.compare:
        return _compare(given)
    if given.seed is not None:
        return _one(given)
    return _many(given)


def _one(given: argparse.Namespace) -> int:
    trace: list[str] | None = [] if given.trace else None
    outcome = run_world(
        given.seed,
        given.mode,
        steps=given.steps,
        bug=given.bug,
        trace=trace,
        wide=given.wide,
        takeover=given.takeover,
        batches=given.batches,
    )
    for line in trace or ():
        sys.stdout.write(line + "\n")
    sys.stdout.write(
        f"seed {given.seed}: {outcome.why or 'every promise held'} "
        f"({outcome.events} events, digest {outcome.digest:08x})\n"
    )
    return 1 if outcome.why else 0


def _find(given: argparse.Namespace) -> int:
    mode = BUGS[given.find].mode
    for seed in range(given.first, given.first + given.seeds):
        why = run_world(seed, mode, bug=given.find).why
        if why and not run_world(seed, mode, without=given.find).why:
            sys.stdout.write(f"{given.find}: seed {seed} ({mode}): {why}\n")
            return 0
    sys.stdout.write(f"{given.find}: not noticed by {given.seeds} seeds\n")
    return 1


def _compare(given: argparse.Namespace) -> int:
    seeds = range(given.first, given.first + given.seeds)
    result = compare(seeds, given.cores)
    sys.stdout.write(table(result) + "\n")
    if given.output is not None:
        command = f"python -m magnetar_sim --compare --seeds {given.seeds} --from {given.first}"
        given.output.write_text(json.dumps({"command": command, **result}, indent=2) + "\n")
    return 0


def _many(given: argparse.Namespace) -> int:
    began = time.monotonic()
    done = events = 0
    broken = []
    seeds = range(given.first, given.first + given.seeds)
    for outcome in run_many(
        seeds,
        given.mode,
        bug=given.bug,
        cores=given.cores,
        wide=given.wide,
        takeover=given.takeover,
        batches=given.batches,
    ):
        done += 1
        events += outcome.events
        if outcome.why:
            broken.append(outcome)
            steps = (
                shorter(
                    outcome.seed, given.mode, given.bug, wide=given.wide, takeover=given.takeover, batches=given.batches
                )
                if len(broken) <= 3
                else 0
            )
            again = f"python -m magnetar_sim --seed {outcome.seed} --mode {given.mode}"
            again += f" --steps {steps}" if steps else ""
            again += f" --bug {given.bug}" if given.bug else ""
            again += " --wide" if given.wide else ""
            again += " --takeover" if given.takeover else ""
            again += f" --batches {given.batches}" if given.batches else ""
            sys.stdout.write(f"seed {outcome.seed}: {outcome.why} | {again} --trace\n")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    kind = ("wide " if given.wide else "") + "worlds" + (" with takeovers" if given.takeover else "")
    sys.stdout.write(
        f"{done} {kind} ({given.mode}), seeds {seeds.start} to {seeds.stop - 1}, {events} events, "
        f"{len(broken)} broken promises, {seconds:.0f} s, "
        f"{1000 * seconds / max(1, done):.0f} ms a world\n"
    )
    return 1 if broken else 0
