"""How long official clients wait when the broker that serves, or a bookie, is killed or stopped, with the log on BookKeeper.

    python -m bench.bookkeeper_pauses [--quick] [--rounds 9]

`tests/support/apache_bookkeeper` starts ZooKeeper and three bookies. One broker serves, another one waits. A producer that
knows both sends single messages, each after the last one was confirmed, and a consumer receives and acknowledges them. In each
round the broker that serves is killed (SIGKILL) or stopped (SIGTERM), and starts again later, to wait. After these rounds a
fourth bookie starts, and in each round one of the four is killed. The figure of a round is the longest time between two
confirmations, or between two messages received; `detail` has all of them. After a kill of the broker it contains the end of
the session of ZooKeeper (4 s). In the end the topic is read: what was confirmed has to be there, once.
"""

import argparse
import statistics
import sys
from typing import Final

from tests.support.apache_bookkeeper import kit
from tests.support.bookkeeper_brokers import Brokers, Publisher, Receiver, numbers

from bench.measuring import bookkeeper_brokers
from bench.results import Figure, store

ROUNDS: Final = 9

MESSAGES: Final = 300
"""Before and after each change: the connections are warm."""

AIMS: Final = {"killed": "< 5", "stopped": "< 0.5"}

BOOKIE_AIM: Final = "< 1"


class Clients:
    """The producer and the consumer, and their pauses by what happened.

    Args:
        url: of the cluster.
    """

    def __init__(self, url: str) -> None:
        self.publisher, self._receiver = Publisher(url), Receiver(url)
        self._pauses: dict[str, tuple[list[float], list[float]]] = {}

    def begin(self) -> tuple[int, int]:
        """Warm the connections; the message from which on the pauses of a round count, published and received."""
        self.publisher.after(MESSAGES)
        self._receiver.after(1)
        return len(self.publisher.confirmed) - 1, self._receiver.count - 1

    def end(self, what: str, first: tuple[int, int]) -> None:
        """Take the pauses of a round."""
        self.publisher.after(MESSAGES)
        self._receiver.after(MESSAGES)
        published, received = self._pauses.setdefault(what, ([], []))
        published.append(round(self.publisher.longest_pause_s(first[0]), 3))
        received.append(round(self._receiver.longest_pause_s(first[1]), 3))
        print(what, published[-1], received[-1], flush=True)

    def figures(self, what: str, aim: str) -> list[Figure]:
        """Of all rounds of one kind."""
        published, received = self._pauses[what]
        return [
            Figure(f"{what}: longest pause", statistics.median(published), "s", aim, {"pauses_s": published}),
            Figure(
                f"{what}: longest pause between messages", statistics.median(received), "s", aim, {"pauses_s": received}
            ),
        ]

    def close(self) -> None:
        """Stop both."""
        self.publisher.close()
        self._receiver.close()


def end_brokers(brokers: Brokers, clients: Clients, rounds: int) -> list[Figure]:
    """Kill and stop the broker that serves, by turns."""
    serving, waiting = "a", "b"
    for number in range(2 * rounds):
        how = tuple(AIMS)[number % 2]
        first = clients.begin()
        former = brokers[serving]
        former.kill() if how == "killed" else former.stop()
        clients.end(f"the serving broker is {how}", first)
        serving, waiting = waiting, serving
        brokers[serving].await_ready()
        brokers.wait_in_line(waiting)
    return [figure for how, aim in AIMS.items() for figure in clients.figures(f"the serving broker is {how}", aim)]


def end_bookies(brokers: Brokers, clients: Clients, rounds: int) -> list[Figure]:
    """Kill one bookie of four, each in turn."""
    brokers.cluster.add().start()
    for number in range(rounds):
        bookie = brokers.cluster.bookies[number % len(brokers.cluster.bookies)]
        first = clients.begin()
        bookie.kill()
        clients.end("a bookie is killed", first)
        bookie.start()
    return clients.figures("a bookie is killed", BOOKIE_AIM)


def measure(brokers: Brokers, rounds: int) -> list[Figure]:
    """All rounds, of all kinds."""
    brokers["a"].start()
    brokers.wait_in_line("b")
    clients = Clients(brokers.url)
    try:
        figures = [*end_brokers(brokers, clients, rounds), *end_bookies(brokers, clients, rounds)]
    finally:
        clients.close()
    held = numbers(brokers.url)
    lost = len({*clients.publisher.confirmed} - {*held})
    return [
        *figures,
        Figure(
            "confirmed messages that are lost", lost, "messages", "0", {"confirmed": len(clients.publisher.confirmed)}
        ),
        Figure("messages that are stored twice", len(held) - len({*held}), "messages", "0"),
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
