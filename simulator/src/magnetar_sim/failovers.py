"""Planned failovers, as `magnetar failover` does them: an operator who may give up, roll back, or go home at any step.

begin at the source -> fenced, with the final state -> merged at the target -> activate there -> complete at the source
given up: give-up at the target, put-back at the source; or nothing at all, and somebody unfences when all is over
"""

from typing import TYPE_CHECKING, Any, Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.replication.failover import Phase

if TYPE_CHECKING:
    from magnetar.broker.failover.fencing import Fences
    from magnetar_sim.cluster import Cluster
    from magnetar_sim.truth import Copy
    from magnetar_sim.world import World

LOOK_MS: Final = 150
"""Between two looks of an operator."""
LOOKS_MAX: Final = 200
"""Then the operator loses patience."""


class Failover:
    """One command.

    Args:
        world: the world.
        topic, subscription, source, target: what moves.

    Attributes:
        moved: once the source is fenced: in which epoch, and what is acknowledged there.
        final: whether that is durable, in the final state.
        copy: the topic, in its present life, where the last step was taken.
        merged: whether the target was seen to have the final state.
        over: whether nothing more is done.
    """

    def __init__(self, world: "World", topic: str, subscription: str, source: str, target: str) -> None:
        self.world, self.topic, self.subscription = world, topic, subscription
        self.source, self.target = world.clusters[source], world.clusters[target]
        self.moved: tuple[Any, set[int]] | None = None
        self.copy: Copy | None = None
        self.over = self.merged = self.final = self._leaving = False
        self._token = ""
        self._looks = 0
        self._stage = self._begin
        self._asked = False
        self._patience = world.rng.choice((3, LOOKS_MAX, LOOKS_MAX))

    def go_on(self) -> None:
        """Do what comes next, and look again later."""
        if self.over or not self.world.storm:
            self.over = True
            return
        self._looks += 1
        if self.world.rng.random() < 0.01:
            self.world.say("the operator of a failover goes home")
            self.over = True
            return
        if self._looks > self._patience and not self._leaving:
            self._refused(None)
        if not self._asked:
            try:
                self._stage()
            except MagnetarError as error:
                self._refused(error)
        self.world.clock.after(LOOK_MS, self.go_on)

    def _next(self, stage: Any) -> None:
        self._stage, self._asked = stage, False

    def _refused(self, error: MagnetarError | None) -> None:
        """A step is refused, or patience is over: roll back, unless the target is active already."""
        self.world.say(f"failover of {self.subscription}: {error or 'it takes too long'}")
        if self._stage == self._give_up:
            self._next(self._complete)
        elif self._stage == self._begin or self._leaving:
            self.over = True
        else:
            self._leaving = True
            self.world.count("failover given up")
            self._next(self._give_up)

    def _fences(self, cluster: "Cluster") -> "Fences | None":
        return cluster.broker.fences if cluster.broker is not None else None

    def _ask(self, cluster: "Cluster", step: Any, then: Any) -> None:
        """Take a step; an answer that never comes (the broker died) is not waited for."""
        if cluster.broker is None:
            return
        life, self._asked = cluster.life, True

        def answered(error: MagnetarError | None) -> None:
            if self._asked and not self.over:
                self._asked = False
                self.copy = self.world.truth.copies.get((cluster.name, self.topic))
                if error is not None:
                    self._refused(error)
                elif then is None:
                    self.over = True
                else:
                    self._next(then)

        def forgotten() -> None:
            if self._asked and cluster.life != life:
                self._asked = False  # asked again: every step may be repeated

        self.world.clock.after(2_000, forgotten)
        step(answered)

    # ----------------------------------------------------------------------------------------------------------- steps

    def _begin(self) -> None:
        there = self._fences(self.target)
        if there is None or self.source.broker is None:
            self.over = True
            return
        above = str(there.fence(self.topic, self.subscription).token)
        grace_ms = self.world.rng.choice((0, 100, 1_000))
        self.world.say(f"{self.subscription} is to move from {self.source.name} to {self.target.name}")
        self._ask(
            self.source,
            lambda done: self.source.control.failovers.begin(
                self.topic, self.subscription, self.target.name, above, grace_ms, done
            ),
            self._wait,
        )

    def _wait(self) -> None:
        fences = self._fences(self.source)
        if fences is None:
            return
        fence = fences.fence(self.topic, self.subscription)
        self._token = str(fence.token)
        if not fence.held:
            self.over = True  # somebody else was faster
        elif fence.final is not None and self.moved is not None:
            position = fence.final
            self._next(lambda: self._merged(position))

    def _merged(self, position: Position) -> None:
        fences = self._fences(self.target)
        if fences is None:
            return
        told = fences.merged(self.topic, self.subscription, self.source.name, position)
        if told["merged"] and told["exists"]:
            self.merged = True
            self._next(self._activate)

    def _step(self, cluster: "Cluster", step: Any, then: Any) -> None:
        if not self._token:
            self.over = True
            return
        self._ask(
            cluster,
            lambda done: cluster.control.failovers.step(step, self.topic, self.subscription, self._token, done),
            then,
        )

    def _activate(self) -> None:
        self._step(self.target, "activate", self._activated)

    def _activated(self) -> None:
        self.world.failovers.activated(self)
        self._next(self._complete)

    def _complete(self) -> None:
        self._step(self.source, "complete", None)

    def _give_up(self) -> None:
        self._step(self.target, "give-up", self._put_back)

    def _put_back(self) -> None:
        self._step(self.source, "put-back", None)


class Failovers:
    """All that are under way.

    Args:
        world: the world.

    Attributes:
        done: by (cluster, topic, subscription) what came there by a failover: epoch, and messages acknowledged before it.
        begun, completed: how many.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.done: dict[tuple[str, str, str], tuple[Any, set[int]]] = {}
        self.begun = self.completed = 0
        self._going: list[Failover] = []

    def begin(self) -> None:
        """An operator moves a subscription to another cluster."""
        world, rng = self.world, self.world.rng
        self._going = [one for one in self._going if not one.over]
        if not world.both:
            return
        busy = sorted({one.cluster for one in world.workload.consumers if one.open and one.received})
        source, target = rng.choice([pair for pair in world.both if pair[0] in busy] or world.both)
        broker, topic = world.clusters[source].broker, rng.choice(world.topics)
        known = broker.topics.get(topic) if broker is not None else None
        if known is None or not known.subscriptions:
            return
        name = rng.choice(sorted(known.subscriptions))
        if rng.random() < 0.5:
            world.workload.finish(source, name)
        self.start(topic, name, source, target)

    def start(self, topic: str, subscription: str, source: str, target: str) -> Failover:
        """An operator moves this one."""
        found = Failover(self.world, topic, subscription, source, target)
        self.begun += 1
        self._going.append(found)
        found.go_on()
        return found

    def after_event(self, cluster: "Cluster") -> None:
        """Notice that a source is fenced: what is acknowledged there now goes into its final state."""
        for one in self._going:
            if one.source is cluster and one.moved is None and not one.over and cluster.broker is not None:
                fence = cluster.broker.fences.fence(one.topic, one.subscription)
                state = self.world.acks.state(cluster, one.topic, one.subscription)
                if fence.phase is Phase.FENCED and fence.target == one.target.name and state is not None:
                    one.moved = self.world.acks.key(state), self.world.acks.uids(one.topic, state.acks)
            if one.source is cluster and not one.final and cluster.broker is not None:
                one.final = cluster.broker.fences.fence(one.topic, one.subscription).final is not None

    def died(self, cluster: str) -> None:
        """A broker died: what was acknowledged there, and not durable, will be in no final state."""
        for one in self._going:
            if one.source.name == cluster and not one.final:
                one.moved = None

    def activated(self, one: Failover) -> None:
        """The target dispatches."""
        assert one.moved is not None
        self.completed += 1
        self.world.count("failover")
        if self.world.truth.copies.get((one.target.name, one.topic)) is one.copy:  # else it was deleted since
            self.done[one.target.name, one.topic, one.subscription] = one.moved
        if self.world.rng.random() < 0.8:
            self.world.workload.follow(one.topic, one.subscription, one.target.name)

    def unfence(self) -> None:
        """Whatever operators left behind is put right."""
        for cluster, broker in self.world.living():
            for told in broker.fences.held():
                cluster.control.failovers.unfence(told["topic"], told["subscription"], lambda _error: None)
