"""How long an official client cannot publish when the broker that serves is killed or stopped, with the log on BookKeeper.

    python -m bench.bookkeeper_pauses [--quick] [--rounds 9]

`tests/support/apache_bookkeeper` starts ZooKeeper and three bookies. One broker serves, another one waits, and a producer that
knows both sends single messages, each after the last one was confirmed. In each round the broker that serves is killed
(SIGKILL) or stopped (SIGTERM), and starts again later, to wait. The figure of a round is the longest time between two
confirmations; `detail` has all of them. After a kill it contains the end of the session of ZooKeeper (4 s).
"""

import argparse
import statistics
import sys
from typing import Final

from tests.support.apache_bookkeeper import kit
from tests.support.bookkeeper_brokers import Brokers, Publisher

from bench.measuring import bookkeeper_brokers
from bench.results import Figure, store

ROUNDS: Final = 9

MESSAGES: Final = 300
"""Before and after each change: the connections are warm."""

AIMS: Final = {"killed": "< 5", "stopped": "< 0.5"}


def measure(brokers: Brokers, rounds: int) -> list[Figure]:
    """All rounds, of both kinds by turns."""
    brokers["a"].start()
    brokers.wait_in_line("b")
    publisher = Publisher(brokers.url)
    serving, waiting = "a", "b"
    pauses: dict[str, list[float]] = {how: [] for how in AIMS}
    try:
        for number in range(2 * rounds):
            how = tuple(AIMS)[number % 2]
            publisher.after(MESSAGES)
            first = len(publisher.confirmed) - 1
            former = brokers[serving]
            former.kill() if how == "killed" else former.stop()
            publisher.after(MESSAGES)
            pauses[how].append(round(publisher.longest_pause_s(first), 3))
            serving, waiting = waiting, serving
            brokers[serving].await_ready()
            brokers.wait_in_line(waiting)
            print(how, pauses[how][-1], flush=True)
    finally:
        publisher.close()
    return [
        Figure(
            f"the serving broker is {how}: longest pause", statistics.median(found), "s", AIMS[how], {"pauses_s": found}
        )
        for how, found in pauses.items()
    ]


def main() -> None:
    """Measure and store; one line, and nothing stored, where the peer cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of each")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each (default: {ROUNDS})")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: it should be 1 or more")
    if reason := kit.missing():
        print(f"skipped: {reason}")
        return
    with bookkeeper_brokers() as brokers:
        figures = measure(brokers, 3 if options.quick else options.rounds)
    store("bookkeeper_pauses", figures, sys.argv)


if __name__ == "__main__":
    main()
