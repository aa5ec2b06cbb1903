"""Planned failovers, as `magnetar failover` does them: an operator who may give up, roll back, or go home at any step.

begin at the source -> fenced, with the final state -> merged at the target -> activate there -> complete at the source
given up: give-up at the target, put-back at the source; or nothing at all, and an operator unfences when all is over
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.replication.failover import Phase
from magnetar_sim.actions.workload import Workload
from magnetar_sim.cluster import Cluster, Clusters
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.acks import Acks
from magnetar_sim.memory.records import Copy
from magnetar_sim.memory.truth import Truth
from magnetar_sim.observers import Observer

if TYPE_CHECKING:
    from magnetar.broker.failover.fencing import Fences

LOOK_MS: Final = 150
"""Between two looks of an operator."""
LOOKS_MAX: Final = 200
"""Then the operator loses patience."""


class Failover:
    """One command.

    Args:
        context: of the world.
        truth: the lives of topics.
        topic, subscription, source, target: what moves.
        activated: called when the target dispatches.

    Attributes:
        moved: once the source is fenced: in which epoch, and what is acknowledged there.
        final: whether that is durable, in the final state.
        copy: the topic, in its present life, where the last step was taken.
        merged: whether the target was seen to have the final state.
        over: whether nothing more is done.
    """

    def __init__(
        self,
        context: WorldContext,
        truth: Truth,
        topic: str,
        subscription: str,
        source: Cluster,
        target: Cluster,
        activated: "Callable[[Failover], None]",
    ) -> None:
        self.context, self._truth, self._on_activated = context, truth, activated
        self.topic, self.subscription, self.source, self.target = topic, subscription, source, target
        self.moved: tuple[Any, set[int]] | None = None
        self.copy: Copy | None = None
        self.over = self.merged = self.final = self._leaving = False
        self._token = ""
        self._looks = 0
        self._stage = self._begin
        self._asked = False
        self._patience = context.rng.choice((3, LOOKS_MAX, LOOKS_MAX))

    def go_on(self) -> None:
        """Do what comes next, and look again later."""
        if self.over or not self.context.storm:
            self.over = True
            return
        self._looks += 1
        if self.context.rng.random() < 0.01:
            self.context.say("the operator of a failover goes home")
            self.over = True
            return
        if self._looks > self._patience and not self._leaving:
            self._refused(None)
        if not self._asked:
            try:
                self._stage()
            except MagnetarError as error:
                self._refused(error)
        self.context.clock.after(LOOK_MS, self.go_on)

    def _next(self, stage: Any) -> None:
        self._stage, self._asked = stage, False

    def _refused(self, error: MagnetarError | None) -> None:
        """A step is refused, or patience is over: roll back, unless the target is active already."""
        self.context.say(f"failover of {self.subscription}: {error or 'it takes too long'}")
        if self._stage == self._give_up:
            self._next(self._complete)
        elif self._stage == self._begin or self._leaving:
            self.over = True
        else:
            self._leaving = True
            self.context.count("failover given up")
            self._next(self._give_up)

    def _fences(self, cluster: Cluster) -> "Fences | None":
        return cluster.broker.fences if cluster.broker is not None else None

    def _ask(self, cluster: Cluster, step: Any, then: Any) -> None:
        """Take a step; an answer that never comes (the broker died) is not waited for."""
        if cluster.broker is None:
            return
        life, self._asked = cluster.life, True

        def answered(error: MagnetarError | None) -> None:
            if self._asked and not self.over:
                self._asked = False
                self.copy = self._truth.copies.get((cluster.name, self.topic))
                if error is not None:
                    self._refused(error)
                elif then is None:
                    self.over = True
                else:
                    self._next(then)

        def forgotten() -> None:
            if self._asked and cluster.life != life:
                self._asked = False  # asked again: every step may be repeated

        self.context.clock.after(2_000, forgotten)
        step(answered)

    # ----------------------------------------------------------------------------------------------------------- steps

    def _begin(self) -> None:
        there = self._fences(self.target)
        if there is None or self.source.broker is None:
            self.over = True
            return
        above = str(there.fence(self.topic, self.subscription).token)
        grace_ms = self.context.rng.choice((0, 100, 1_000))
        self.context.say(f"{self.subscription} is to move from {self.source.name} to {self.target.name}")
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
            self.over = True  # another operator was faster
        elif fence.final is not None and self.moved is not None:
            position = fence.final
            self._next(lambda: self._merged(position))

    def _merged(self, position: Position) -> None:
        fences = self._fences(self.target)
        if fences is None:
            return
        answer = fences.merged(self.topic, self.subscription, self.source.name, position)
        if answer["merged"] and answer["exists"]:
            self.merged = True
            self._next(self._activate)

    def _step(self, cluster: Cluster, step: Any, then: Any) -> None:
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
        self._on_activated(self)
        self._next(self._complete)

    def _complete(self) -> None:
        self._step(self.source, "complete", None)

    def _give_up(self) -> None:
        self._step(self.target, "give-up", self._put_back)

    def _put_back(self) -> None:
        self._step(self.source, "put-back", None)


class Failovers(Observer):
    """All that are under way.

    Args:
        context: of the world.
        clusters: by their names.
        truth: the lives of topics.
        acks: what is acknowledged.
        workload: whose consumers follow.

    Attributes:
        done: by (cluster, topic, subscription) what came there by a failover: epoch, and messages acknowledged before it.
        begun, completed: how many.
    """

    def __init__(self, context: WorldContext, clusters: Clusters, truth: Truth, acks: Acks, workload: Workload) -> None:
        self.context, self._clusters, self._truth = context, clusters, truth
        self._acks, self._workload = acks, workload
        self.done: dict[tuple[str, str, str], tuple[Any, set[int]]] = {}
        self.begun = self.completed = 0
        self._going: list[Failover] = []

    def begin(self) -> None:
        """An operator moves a subscription to another cluster."""
        context, workload, rng = self.context, self._workload, self.context.rng
        self._going = [one for one in self._going if not one.over]
        if not context.both:
            return
        busy = sorted({one.cluster for one in workload.consumers if one.open and one.received})
        source, target = rng.choice([pair for pair in context.both if pair[0] in busy] or context.both)
        broker, topic = self._clusters[source].broker, rng.choice(context.topics)
        known = broker.topics.get(topic) if broker is not None else None
        if known is None or not known.subscriptions:
            return
        name = rng.choice(sorted(known.subscriptions))
        if rng.random() < 0.5:
            workload.finish(source, name)
        self.start(topic, name, source, target)

    def start(self, topic: str, subscription: str, source: str, target: str) -> Failover:
        """An operator moves this one."""
        found = Failover(
            self.context,
            self._truth,
            topic,
            subscription,
            self._clusters[source],
            self._clusters[target],
            self._activated,
        )
        self.begun += 1
        self._going.append(found)
        found.go_on()
        return found

    def after_event(self, cluster: Cluster) -> None:
        """Notice that a source is fenced: what is acknowledged there now goes into its final state."""
        for one in self._going:
            if one.source is cluster and one.moved is None and not one.over and cluster.broker is not None:
                fence = cluster.broker.fences.fence(one.topic, one.subscription)
                state = self._acks.state(cluster, one.topic, one.subscription)
                if fence.phase is Phase.FENCED and fence.target == one.target.name and state is not None:
                    one.moved = self._acks.key(state), self._acks.uids(one.topic, state.acks)
            if one.source is cluster and not one.final and cluster.broker is not None:
                one.final = cluster.broker.fences.fence(one.topic, one.subscription).final is not None

    def died(self, cluster: Cluster) -> None:
        """A broker died: what was acknowledged there, and not durable, will be in no final state."""
        for one in self._going:
            if one.source is cluster and not one.final:
                one.moved = None

    def _activated(self, one: Failover) -> None:
        assert one.moved is not None
        self.completed += 1
        self.context.count("failover")
        if self._truth.copies.get((one.target.name, one.topic)) is one.copy:  # else it was deleted since
            self.done[one.target.name, one.topic, one.subscription] = one.moved
        if self.context.rng.random() < 0.8:
            self._workload.follow(one.topic, one.subscription, one.target.name)

    def unfence(self) -> None:
        """What operators left fenced is unfenced."""
        for cluster, broker in self._clusters.living():
            for fence in broker.fences.held():
                cluster.control.failovers.unfence(fence["topic"], fence["subscription"], lambda _error: None)
