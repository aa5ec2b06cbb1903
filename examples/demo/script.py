"""The script of the demo: publish, break things, check whether anything was lost.

    1  all three airports publish; every cluster gets everything                         (nothing is broken: calm)
    2  the consumer's broker is killed while the others publish; the consumer continues in another cluster; the broker comes back
    3  the subscription is moved back (`magnetar failover`) while all publish; the consumer follows
    4  a destination broker is down while the others publish; their other links continue; it comes back and catches up. A program
       that had sent its outbox there sends all of it again elsewhere; a policy is changed meanwhile (demo.outbox)
    5  the Spark driver is killed while all publish; it comes back
    6  all publish once more                                                             (calm)

A publisher whose own broker is about to be killed has been flushed before: without publisher deduplication a client that
sends again what was not confirmed stores it twice, and replication would not be the cause.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from examples.demo import schema
from examples.demo.cast import SUBSCRIPTION, TOPIC, Cast
from examples.demo.flights import Departures
from examples.demo.outbox import BOOKINGS, NAMESPACE, Booked, Outbox
from examples.demo.reasons import judge
from examples.demo.screen import Screen
from examples.demo.staleness import Staleness
from examples.demo.tally import Tally
from examples.demo.world import World
from magnetar.admin.client import AdminClient
from magnetar.core.errors import MagnetarError

CONSUMER_AT: Final = "jfk"
"""Where the consumer begins, and which broker is killed under it."""

ELSEWHERE: Final = "lga"
"""Where it continues."""

DOWN: Final = "ewr"
"""The destination that is down for a while. It is neither of the consumer's clusters: its client, which
moved to ELSEWHERE, drops all its connections when that one goes down, including the one to the cluster that its subscription was
moved to. Acknowledgements that it had not sent yet would be lost, and their messages would come twice."""

PARTS: Final = (0.35, 0.6, 0.7, 0.8, 0.9, 1.0)
"""How much of the flights is published by the end of each part of the story."""

KILL_AT: Final = 0.45
"""How much of the flights the consumer has when its broker is killed."""


WARM: Final = 0.02
"""How much is published before anything is measured."""


@dataclass(slots=True)
class Outcome:
    """What the players saw.

    Attributes:
        published: by airport, confirmed by its broker.
        watchers: by cluster.
        consumer: of the subscription.
        times: what happened when, seconds since the start, for the report.
        staleness: of the subscription in the other clusters, ms, while nothing was broken.
        moved: what `magnetar failover` reported of the way back.
        followed: whether the consumer came back with its subscription.
        evolved: how many flights were published with the new schema.
        versions: by cluster, the versions that its registry has of the topic's schema.
        booked: what came of the outbox that was sent twice.
    """

    published: dict[str, int]
    watchers: dict[str, Tally]
    consumer: Tally
    times: dict[str, float] = field(default_factory=dict)
    staleness: Sequence[int] = ()
    moved: dict[str, Any] = field(default_factory=dict)
    followed: bool = True
    evolved: int = 0
    versions: dict[str, list[int]] = field(default_factory=dict)
    booked: Booked = field(default_factory=Booked)

    def faults(self) -> list[str]:
        """Everything that must not be, a line each; empty when all is well."""
        lines = []
        for tally in (*self.watchers.values(), self.consumer):
            where = f"the reader in {tally.name}" if tally is not self.consumer else "the consumer"
            lines += tally.faults(where)
            if tally.undecoded:
                lines.append(
                    f"{where} could not decode {tally.undecoded:,} flights with the schema they were written with"
                )
            if tally.evolved < self.evolved:
                lines.append(f"{where} saw the new field in {tally.evolved:,} of {self.evolved:,} flights")
        for cluster, versions in self.versions.items():
            if len(versions) != 2:
                lines.append(f"{cluster} has {len(versions)} schemas of the topic, two were published")
        if self.moved.get("skipped"):
            lines.append(f"the planned move skipped {self.moved['skipped']:,} messages")
        if not self.staleness:
            lines.append(
                "how soon other clusters know of acknowledgements was not measured: none was seen in two clusters"
            )
        if not self.followed:
            lines.append(f"the consumer did not follow its subscription back to {CONSUMER_AT}")
        return lines + self.booked.faults()


class Story:
    """Runs the script, part by part.

    Args:
        world: opened: brokers running, the pipeline starting.
        departures: by airport.
        per_second: how fast each airport publishes.
        screen: where the progress is shown.
    """

    def __init__(self, world: World, departures: Mapping[str, Departures], per_second: int, screen: Screen) -> None:
        self.world, self.screen = world, screen
        self._departures = departures
        self._began = time.monotonic()
        self.cast = Cast(departures, per_second, world.urls, (CONSUMER_AT, ELSEWHERE), screen)
        self.staleness = Staleness(world.admin_urls, TOPIC, SUBSCRIPTION, self.cast.board)
        self.outbox = Outbox(world.urls, world.admin_urls, self.cast.wait)
        self._evolves = {airport: len(one) - one.evolves_at for airport, one in departures.items() if one.evolves_at}
        watchers = {cluster: one.tally for cluster, one in self.cast.watchers.items()}
        self.outcome = Outcome({}, watchers, self.cast.consumer.tally)
        self._replicated: int | None = None

    def run(self) -> Outcome:
        """Run all parts; the brokers are left running, the pipeline is not.

        Raises:
            MagnetarError: nothing moved for too long, or a player failed.
        """
        try:
            self.start()
            self.everybody_publishes(PARTS[0], "all is well")
            self.the_consumers_broker_dies(PARTS[1])
            self.the_consumer_comes_back(PARTS[2])
            self.a_destination_is_down(PARTS[3])
            self.the_driver_dies(PARTS[4])
            self.everybody_publishes(PARTS[5], "all is well again")
            self.settle()
        finally:
            self.dismiss()
        self.judge()
        return self.outcome

    # -------------------------------------------------------------------------------------------------------- the parts

    def start(self) -> None:
        """Wait for the pipeline, let all players begin, and send the first flights.

        The first micro-batch starts Python workers and compiles queries; it says nothing about replication, so it does
        not count as calm.
        """
        self.world.pipeline.await_ready(self.screen.look)
        self._mark("pipeline ready")
        self.cast.begin()
        self.staleness.start()
        self.screen.step(f"the pipeline is ready; the first {WARM:.0%} of the flights warm it up")
        self.cast.trouble()
        self.cast.allow(WARM, *self.cast.publishers)
        self.cast.heal()

    def everybody_publishes(self, share: float, mood: str) -> None:
        """A calm part: nothing is broken."""
        self.screen.step(f"all airports publish up to {share:.0%}; {mood}")
        self.cast.allow(share, *self.cast.publishers)
        self.cast.wait(self.cast.published, "publishing")
        self.cast.wait(self.cast.everywhere, "every cluster to have what was published")

    def the_consumers_broker_dies(self, share: float) -> None:
        """SIGKILL under the consumer, part of the way; it continues in another cluster while the others publish."""
        others = [name for name in self.cast.publishers if name != CONSUMER_AT]
        enough = round(self.cast.total * KILL_AT)
        self.cast.trouble()
        self.cast.allow(share, *others)
        self.cast.wait(lambda: self.cast.consumer.tally.arrived >= enough, f"the consumer to have {enough:,} flights")
        # An acknowledgement that has reached the other cluster by now cannot come twice.
        self._replicated = self.staleness.ask(ELSEWHERE) or 0
        self.world.brokers[CONSUMER_AT].kill()
        had = self.cast.consumer.tally.arrived
        self.screen.step(f"broker {CONSUMER_AT} is killed (SIGKILL) under the consumer, which has {had:,} flights")
        self.cast.wait(lambda: self.cast.between(others), f"{' and '.join(others)} to continue without {CONSUMER_AT}")
        self.cast.wait(lambda: bool(self._consumers(ELSEWHERE)), f"the consumer to continue in {ELSEWHERE}")
        self.screen.step(
            f"the consumer continued in {ELSEWHERE} by itself; {' and '.join(others)} have everything of each other; "
            f"{CONSUMER_AT} starts again"
        )
        self.world.brokers[CONSUMER_AT].start(self.screen.look)
        self.cast.allow(share, CONSUMER_AT)
        self.cast.heal()

    def the_consumer_comes_back(self, share: float) -> None:
        """A planned move of the subscription while all airports publish; it must not deliver anything twice."""
        self.cast.trouble()
        before = self.cast.arrived()
        self.cast.allow(share, *self.cast.publishers)
        some = self.cast.total * (share - PARTS[1]) / 4
        self.cast.wait(lambda: self.cast.arrived() - before >= some, "some flights of this part to arrive")
        command = f"magnetar failover {TOPIC} {SUBSCRIPTION} --from {ELSEWHERE} --to {CONSUMER_AT}"
        self.screen.step(command)
        self.outcome.moved = self._run(command)
        self.cast.wait(lambda: bool(self._consumers(CONSUMER_AT)), f"the consumer to follow to {CONSUMER_AT}")
        self.outcome.followed = not self._consumers(ELSEWHERE)
        self.screen.step(
            f"the subscription moved back to {CONSUMER_AT} in {self.outcome.moved['pause_ms']:,} ms, and the consumer with it"
        )
        self.cast.heal()

    def _consumers(self, cluster: str) -> int:
        """How many consumers the subscription has in a cluster; 0 also when it does not answer."""
        try:
            rows = AdminClient(self.world.admin_urls[cluster]).get(f"/geo/v1/subscriptions?topic={TOPIC}")
        except MagnetarError:
            return 0
        return sum(int(row["consumers"]) for row in rows if row["subscription"] == SUBSCRIPTION)

    def _run(self, command: str) -> dict[str, Any]:
        """Run a command of Magnetar as a user does; its JSON.

        Raises:
            MagnetarError: it failed; its own line.
        """
        words = [sys.executable, "-m", *command.split(), "-c", str(self.world.config), "--json"]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | self.world.environment
        ) as process:
            self.cast.wait(lambda: process.poll() is not None, command)
            out, errors = process.communicate()
        if process.returncode:
            raise MagnetarError(
                f"{command}: {errors.strip().splitlines()[-1] if errors.strip() else 'no reason given'}"
            )
        return dict(json.loads(out))

    def a_destination_is_down(self, share: float) -> None:
        """An orderly stop; two links towards it wait, the others continue."""
        others = [name for name in self.cast.publishers if name != DOWN]
        self.cast.trouble()
        self.outbox.make(DOWN)
        self.outbox.send(DOWN)
        self.outbox.crossed(ELSEWHERE)
        self.screen.step(
            f"namespace {NAMESPACE}, made in {DOWN}, is everywhere after {self.outbox.booked.everywhere_ms:,} ms; "
            f"a program sends {BOOKINGS} bookings with keys to {DOWN}"
        )
        self.world.brokers[DOWN].stop()
        self.screen.step(f"broker {DOWN} is down; {' and '.join(others)} publish up to {share:.0%}")
        self.outbox.send(ELSEWHERE)
        self.outbox.change(ELSEWHERE)
        self.screen.step(
            f"the program sends all its bookings again, to {ELSEWHERE}; there a policy of {NAMESPACE} is changed, too"
        )
        self.cast.allow(share, *others)
        self.cast.wait(lambda: self.cast.between(others), f"{' and '.join(others)} to continue without {DOWN}")
        self.screen.step(f"{' and '.join(others)} have everything of each other; {DOWN} starts again and catches up")
        self.world.brokers[DOWN].start(self.screen.look)
        self.cast.allow(share, DOWN)
        self.cast.heal()

    def the_driver_dies(self, share: float) -> None:
        """SIGKILL to Spark, with everything it started, in the middle of its work."""
        self.cast.trouble()
        before = self.cast.arrived()
        self.cast.allow(share, *self.cast.publishers)
        some = self.cast.total * (share - PARTS[3]) / 4
        self.cast.wait(lambda: self.cast.arrived() - before >= some, "some flights of this part to arrive")
        self.world.pipeline.kill()
        self.screen.step("the Spark driver is killed (SIGKILL) in the middle of its work; publishing continues")
        self.cast.wait(self.cast.published, "publishing without a pipeline")
        self.screen.step("everything is published; the Spark driver starts again")
        self.world.pipeline.start(self.screen.look)
        self.cast.heal()

    def settle(self) -> None:
        """Wait for the consumer, then end the pipeline in good order."""
        self.cast.wait(lambda: not self.cast.consumer.tally.missing, "the consumer to have every flight")
        self._mark("all delivered")
        self.outcome.booked = self.outbox.judge()
        self.staleness.over.set()
        self.outcome.staleness = self.staleness.calm
        self.outcome.published = {name: publisher.confirmed for name, publisher in self.cast.publishers.items()}
        self.outcome.evolved = sum(self._evolves.values())
        self.outcome.versions = {cluster: self._versions(url) for cluster, url in self.world.admin_urls.items()}
        self.decode()

    def judge(self) -> None:
        """Find the reason of everything that the consumer got twice."""
        path = f"/admin/v2/{TOPIC.replace('://', '/')}/internalStats"
        ledgers = {
            cluster: {int(one["ledgerId"]) for one in AdminClient(self.world.admin_urls[cluster]).get(path)["ledgers"]}
            for cluster in (CONSUMER_AT, ELSEWHERE)
        }
        verdict = judge(
            self.cast.consumer.again,
            self.cast.consumer.acknowledged,
            lambda ledger: frozenset(cluster for cluster, several in ledgers.items() if ledger in several),
            first=CONSUMER_AT,
            second=ELSEWHERE,
            replicated=self._replicated,
            redelivered=int(self.outcome.moved.get("redelivered", 0)),
        )
        self.outcome.consumer.reasons, self.outcome.consumer.strange = verdict.reasons, verdict.strange

    def decode(self) -> None:
        """Decode every flight that arrived, with the schema that the cluster's registry has under the number it came with."""
        for tally in (*self.outcome.watchers.values(), self.outcome.consumer):
            url = self.world.admin_urls.get(tally.name, self.world.admin_urls[CONSUMER_AT])
            for version, flights in tally.versions.items():
                payloads = [self._departures[airport].payloads[number] for airport, number in list(flights)]
                path = f"/admin/v2/schemas/{TOPIC.partition('://')[2]}/schema/{version}"
                age = schema.decodable(AdminClient(url).get(path)["data"], payloads) if version >= 0 else None
                tally.decode(version, age, len(payloads))

    @staticmethod
    def _versions(admin_url: str) -> list[int]:
        """The versions of the topic's schema in a cluster."""
        path = f"/admin/v2/schemas/{TOPIC.partition('://')[2]}/schemas"
        return [one["version"] for one in AdminClient(admin_url).get(path)["getSchemaResponses"]]

    def dismiss(self) -> None:
        """Let the players go, then the pipeline."""
        self.staleness.over.set()
        self.cast.dismiss(join=all(broker.running for broker in self.world.brokers.values()))
        if self.world.pipeline.running:
            self.world.pipeline.stop()
        self.screen.look()

    def _mark(self, what: str) -> None:
        self.outcome.times[what] = round(time.monotonic() - self._began, 1)
