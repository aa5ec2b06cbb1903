"""One cluster: a real broker over a disk that forgets, driven as `runtime.driver` does it, in virtual time."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from magnetar.broker.admin.controller import Controller
from magnetar.broker.broker import Broker
from magnetar.core.config import Config, parse
from magnetar.core.errors import MagnetarError, StorageError
from magnetar.core.settings import BrokerConfig
from magnetar.effects.outbox import (
    Close,
    Compute,
    Drop,
    Note,
    Outbox,
    Read,
    Send,
    Store,
    Sync,
    Timer,
    Write,
)
from magnetar.metadata.resources import Resources
from magnetar.metadata.topic_records import LAST_LEDGER_KEY
from magnetar.runtime.clock import SystemClock
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds
from magnetar_sim.bookkeeper.takeover.site import Site
from magnetar_sim.connections.net import Network
from magnetar_sim.context import WorldContext
from magnetar_sim.disk import HELD_MS, Disk, LocalDisk, Opened, PowerCut, Reports
from magnetar_sim.host.host import Host
from magnetar_sim.machines import EpochObserver, SimMachines

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.topic import Topic

_Fact = tuple[int, Callable[[Broker], None]]

LINK_TOKEN = b"sim"
VALIDATE_EVERY = 20
"""Every so many events the broker's own `validate` runs: it costs as much as several events."""

_CONFIGS: dict[tuple[str, ...], Config] = {}


def config_of(names: tuple[str, ...]) -> Config:
    """A clusters.toml with these clusters."""
    if names not in _CONFIGS:
        lines = [
            f'[clusters.{name}]\npulsar = "127.0.0.1:{6650 + at}"\nhttp = "127.0.0.1:{8080 + at}"\n'
            for at, name in enumerate(names)
        ]
        _CONFIGS[names] = parse("\n".join(lines), Path("/sim/clusters.toml"))
    return _CONFIGS[names]


class ClusterEvents(Protocol):
    """What clusters report; see `observers.Observer`."""

    def appended(self, cluster: "Cluster", topic: str, entries: Sequence[StoredEntry]) -> None:
        """Entries of a topic are durable."""

    def dropped(self, cluster: "Cluster", ledgers: Iterable[int]) -> None:
        """Retention deleted ledgers."""

    def restarted(self, cluster: "Cluster") -> None:
        """A broker runs."""

    def stopped(self, cluster: "Cluster") -> None:
        """A broker ended in good order."""

    def died(self, cluster: "Cluster") -> None:
        """A broker is gone."""

    def deletion_stored(self, cluster: "Cluster", keys: tuple[str, ...]) -> None:
        """A broker has the store's answer that these keys are deleted."""

    def noted(self, cluster: "Cluster", note: Note) -> None:
        """A broker's log has a line."""

    def after_event(self, cluster: "Cluster") -> None:
        """A broker handled an event."""

    def late(self, cluster: "Cluster", topic: str, entries: Sequence[StoredEntry]) -> None:
        """A former owner learns that entries are durable, when another one has taken the log."""


class Cluster:
    """One cluster of the world.

    Args:
        context: of the world.
        net: what its connections come over.
        events: what happens here is reported to it.
        epochs: sees the epochs of exact mode.
        name: of the cluster.
        limits: of its broker.
        skew_ms: its clocks against the world's; each of several machines has a skew in addition (`Disk.skew_ms`).

    Attributes:
        ending: the broker writes what waits, which may take long, and has no clients any more.
    """

    def __init__(
        self,
        context: WorldContext,
        net: Network,
        events: ClusterEvents,
        epochs: EpochObserver,
        name: str,
        limits: BrokerConfig,
        skew_ms: int,
    ) -> None:
        self.context, self._net, self._events, self._epochs = context, net, events, epochs
        self.name, self.limits = name, limits
        self.skew_ms = skew_ms
        self._machine_ms = 0
        self.broker: Broker | None = None
        self.ending = False
        self.life = 0
        self.lives = 0
        self.uuid = ""
        self.events = 0
        self._taken = 0
        """The life that has taken the storage last."""
        self._held: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._of_log: deque[_Fact] = deque()
        self._of_store: deque[_Fact] = deque()
        self.wiped()

    # --------------------------------------------------------------------------------------------------- life and death

    def wiped(self) -> None:
        """A new disk, with a new data folder."""
        if self.lives:
            self.disk.ended()
        self.lives += 1
        self.uuid = f"{self.name}-{self.lives}"
        self.disk: Disk = self._make_disk()

    def _make_disk(self) -> Disk:
        context = self.context
        if context.options.takeover:
            return Site(context, self)
        return LocalDisk(context.clock, context.rng, context.slow_disk_ms)

    @property
    def awake(self) -> bool:
        """Whether the process of its broker runs."""
        return self.disk.awake()

    @property
    def serves(self) -> bool:
        """Whether what clients and operators ask is done at once."""
        return self.broker is not None and not self.ending and self.awake

    @property
    def wall_ms(self) -> int:
        """The clock of the broker's machine."""
        return self.context.clock.now_ms + self.skew_ms + self._machine_ms

    @property
    def now_ms(self) -> int:
        """What the broker takes for the time."""
        return self.clock.now_ms()

    def start(self) -> None:
        """Start the broker from what disk and store hold; the disk may fail it, then it stays down."""
        if not self.disk.ready():
            return
        context, disk = self.context, self.disk
        self._former()
        self.life += 1
        life = self.life
        self._machine_ms = machine_ms = disk.skew_ms
        self.clock = SystemClock(
            lambda: (context.clock.now_ms + self.skew_ms + machine_ms) * 1_000_000,
            lambda: context.clock.now_ms * 1_000_000,
            lambda _text: None,
        )
        reports = Reports(
            appended=lambda batch: self._appended(life, batch),
            failed=lambda batch, error: self._failed(life, batch, error),
            healed=lambda: self._healed(life),
            answered=lambda done, error: self._answered(life, done, error),
            power_cut=lambda: self._power_cut(life),
        )
        broken = disk.broken
        try:
            opened = disk.open(reports, self.limits)
        except (PowerCut, OSError):
            disk.crash()
            context.say(f"{self.name} does not come up")
            return
        except StorageError:
            if disk.broken == broken:
                raise
            context.say(f"{self.name} cannot read its disk and does not come up")
            return
        if life != self.life or not opened.still():
            context.say(f"{self.name} has lost its log while it took it")
            opened.shut(False)
            return
        self._begin(opened, life)

    def _former(self) -> None:
        """A broker that still runs, or is stopped, has lost the log to another one: its clients leave it."""
        if self.broker is not None:
            self.context.count("taken over from a living broker")
            self._end_life()
            self._over()

    def _begin(self, opened: Opened, life: int) -> None:
        """A broker begins."""
        context = self.context
        self.log, self.store, self._shut = opened.log, opened.store, opened.shut
        self.outbox = Outbox(now_ms=self.now_ms)
        self.host = Host(
            self.outbox,
            {
                Send: self._send,
                Write: lambda effect: self.log.submit(effect.append),
                Sync: self._sync,
                Timer: lambda effect: self._timer(effect, life),
                Store: self._store,
                Read: self._read,
                Close: self._close,
                Drop: self._drop,
                Note: self._note,
                Compute: lambda effect: self._later(lambda: self.run(effect.then, effect.work())),
            },
            before=self._set_time,
            after=self._handled,
        )
        stored = opened.stored
        resources = Resources.load(stored)
        first = resources.first_start(config_of(tuple(context.names)), self.name, self.uuid)
        if first.puts:
            opened.save(first.puts)
            stored.update(first.puts)
            resources.apply(first)
        self._taken = life
        self.broker = Broker(
            self.outbox,
            self.limits,
            cluster=self.name,
            uuid=self.uuid,
            service_url=f"pulsar://{self.name}:6650",
            link_token=LINK_TOKEN,
            resources=resources,
            stored=dict(stored),
            recovered=opened.recovered.topics,
            ledger_ids=LedgerIds(max(opened.recovered.last_ledger, int(stored.get(LAST_LEDGER_KEY, b"-1")))),
            cache=EntryCache(self.limits.cache_bytes_max),
            link_targets=tuple(target for source, target in context.pairs if source == self.name),
            boot=self.now_ms + self.life,
            routes=context.routes,
            subscriptions=context.settings,
            machines=SimMachines(self._epochs),
        )
        self.control = Controller(self.broker, self.run)
        self._events.restarted(self)
        self.host.pump()
        context.say(f"{self.name} is up ({self.uuid})")

    def die(self) -> None:
        """Power cut: what was not durable may be gone."""
        if self.broker is None:
            return
        self.context.count("broker died")
        if not self.log.idle or not self.store.idle:
            self.context.count("broker died with something on its way to the disk")
        self._cut_off()
        self._shut(False)
        self.disk.crash()
        self._over()
        self.context.say(f"{self.name} dies")

    def kill(self) -> None:
        """The process is killed: lost is what was never written, and what was written is there, durable or not."""
        if self.broker is None:
            return
        self.context.count("process killed")
        self._cut_off()
        self._shut(False)
        self._over()
        self.context.say(f"{self.name} is killed")

    def stop(self) -> None:
        """The broker ends in good order, as on SIGTERM: connections are closed, then everything is written that waits."""
        broker = self.broker
        if broker is None:
            return
        if not self.disk.awake() or self.disk.busy():
            self.kill()
            return
        if reason := self.disk.expired():
            self.expire(reason)
            return
        for connection in self._net.of(self):
            connection.cut()
            self.run(broker.disconnected, connection.number)
        self.run(broker.shut_down)
        self._finish(flushed=True)

    def _finish(self, *, flushed: bool) -> None:
        """Write what waits, then let go; `flushed`: the broker was asked to write all that it has."""
        self._end_life()
        self.ending = True
        # Another broker may begin meanwhile.
        life, log, store, shut = self.life, self.log, self.store, self._shut
        logged = log.finish()
        whole = store.finish() and logged
        clean = whole and flushed
        shut(whole)
        if life != self.life:
            return  # it was killed meanwhile, or another broker has taken over
        if clean:
            self.context.count("broker stopped")
            self._events.stopped(self)
        if not logged:
            self.disk.crash()  # the operator who stopped it switches the machine off
        self._over()
        self.context.say(f"{self.name} has ended" + ("" if clean else ", and could not write everything"))

    def expire(self, reason: str) -> None:
        """The broker must not serve any longer, and ends: it handles nothing more, writes what waits, and lets go."""
        if self.broker is None:
            return
        self.context.say(f"{self.name} stops: {reason}")
        self.context.count("broker stopped at the end of its lease")
        if self.disk.busy():
            self.kill()
        else:
            self._finish(flushed=False)

    def wake(self) -> None:
        """A process that was stopped goes on: with what came meanwhile, unless its time is over."""
        held, self._held = self._held, []
        for life, event, arguments in held:
            if life == self.life:
                self.run(event, *arguments)

    def _end_life(self) -> None:
        """Nothing of this life is done or answered any more."""
        self.life += 1
        self.host.stop()

    def _cut_off(self) -> None:
        """Nothing more is done; of what was on its way to the store a part may have been committed."""
        self._end_life()
        self.log.power_cut()
        self.store.power_cut()

    def _over(self) -> None:
        """Its connections break. A client that cannot reach it notices when it can."""
        self.broker = None
        self.ending = False
        for connection in self._net.of(self):
            connection.cut()
        self._events.died(self)

    def _power_cut(self, life: int) -> None:
        if life == self.life:
            self.context.count("power cut within an operation of the disk")
            self.die()
            self.revive_later()

    def revive_later(self) -> None:
        """It is started again, some time."""
        context, life = self.context, self.life

        def start() -> None:
            if self.broker is None and self.life == life:
                self.start()
                if self.broker is None:
                    self.revive_later()

        context.clock.after(int(context.rng.random() * context.rng.choice((100, 2_000, 20_000))), start)

    # ---------------------------------------------------------------------------------------------------------- events

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        """Handle one event and carry out what it asks for; events that arise meanwhile queue behind it."""
        if not self.disk.awake():
            self._held.append((self.life, event, arguments))
        elif reason := self.disk.expired():
            self.expire(reason)
        else:
            if self._held:
                self.wake()
            self.host.run(event, *arguments)

    def _set_time(self) -> None:
        self.outbox.now_ms = self.now_ms
        self.outbox.ahead_ms = self.clock.ahead_ms

    def _handled(self) -> None:
        self.events += 1
        if self.broker is not None:
            self._events.after_event(self)
            if not self.events % VALIDATE_EVERY:
                self.broker.validate()

    def _hop(self, queue: "deque[_Fact]", life: int, event: Callable[[Broker], None]) -> None:
        """Another thread has a fact: the broker gets it a little later, in the order of the facts."""
        queue.append((life, event))

        def arrive() -> None:
            of_life, first = queue.popleft()
            if of_life == self.life and self.broker is not None:
                self.run(first, self.broker)

        self.context.clock.after(self.context.hop_ms(), arrive)

    def _appended(self, life: int, batch: list[tuple[Append, Location]]) -> None:
        report = self._events.appended if life >= self._taken else self._events.late
        for append, _ in batch:
            report(self, append.topic, append.entries)
        self._hop(self._of_log, life, lambda broker: broker.appended(batch))

    def _failed(self, life: int, batch: list[Append], error: str) -> None:
        self.context.count("append failed")
        self._hop(self._of_log, life, lambda broker: broker.append_failed(batch, error))

    def _healed(self, life: int) -> None:
        self._hop(self._of_log, life, lambda broker: broker.healed())

    def _answered(self, life: int, done: Callable[[str], None], error: str) -> None:
        if error:
            self.context.count("commit of the store failed")
        self._hop(self._of_store, life, lambda _broker: done(error))

    # --------------------------------------------------------------------------------------------------------- effects

    def _send(self, effect: Send) -> None:
        connection = self._net.connections.get(effect.connection)
        self.disk.sends()
        self.context.sends(effect.buffers)
        if connection is not None:
            connection.deliver(effect.buffers)

    def _close(self, effect: Close) -> None:
        connection = self._net.connections.get(effect.connection)
        if connection is not None:
            connection.server_closes()

    def _store(self, effect: Store) -> None:
        deletes, then = effect.deletes, effect.then
        if then is None or not deletes:
            self.store.submit(effect.puts, deletes, then)
            return

        def answered(error: str) -> None:
            if not error:
                self._events.deletion_stored(self, deletes)
            then(error)

        self.store.submit(effect.puts, deletes, answered)

    def _sync(self, effect: Sync) -> None:
        life = self.life
        self.log.sync(lambda error: self._hop(self._of_log, life, lambda _broker: effect.then(error)))

    def _drop(self, effect: Drop) -> None:
        self._events.dropped(self, effect.ledgers)
        self.log.drop(effect.ledgers)

    def _note(self, effect: Note) -> None:
        if effect.level in ("warning", "error"):
            self.context.say(f"{self.name} {effect.level}: {effect.text}")
        self._events.noted(self, effect)

    def _later(self, event: Callable[[], None]) -> None:
        """Another thread answers, if the broker lives to receive it."""
        life = self.life

        def arrive() -> None:
            if life == self.life and self.broker is not None:
                event()

        self.context.clock.after(self.context.hop_ms(), arrive)

    def _timer(self, effect: Timer, life: int) -> None:
        def fire() -> None:
            if life != self.life or self.broker is None:
                return
            if self.now_ms < effect.at_ms:
                self._timer(effect, life)  # the clock was set back meanwhile
                return
            self.run(lambda: effect.then(self.outbox.now_ms))

        self.context.clock.after(max(1, effect.at_ms - self.now_ms), fire)

    def _read(self, effect: Read) -> None:
        assert self.broker is not None
        log = self.broker.log_of(effect.topic)
        if log is None:
            self.run(effect.then, [], f"topic {effect.topic} is gone")
            return
        cached, spans = effect.find(log)
        if not spans:
            self.run(effect.then, cached, "")
            return

        life = self.life

        def answer() -> None:
            entries: list[StoredEntry] = []
            error = ""
            if self.disk.busy():
                self.context.clock.after(HELD_MS, self._later, answer)
                return
            try:
                entries = self.log.read(spans)
            except (MagnetarError, OSError) as failure:
                error = str(failure)
            except PowerCut:
                self._power_cut(life)
            if life == self.life:
                self.run(effect.then, entries, error)

        self._later(answer)

    # ------------------------------------------------------------------------------------------------------- questions

    def topic(self, text: str) -> "Topic | None":
        """As the broker has it; None where it has none, or there is no broker."""
        return self.broker.topics.get(text) if self.broker is not None else None

    def when_ready(self, topic: str, machine: "Subscription", do: Callable[[], None]) -> None:
        """During the replay after a start operators wait, and so does what looks at what they did."""
        found = self.topic(topic)
        if found is None or found.replicated_subscriptions is None or not machine.replicated:
            do()
        else:
            found.replicated_subscriptions.when_ready(do)

    def entries(self, topic: str) -> list[StoredEntry]:
        """Everything readable of a topic, for the world's own eyes."""
        assert self.broker is not None
        log = self.broker.log_of(topic)
        if log is None or not log.ledger_ids():
            return []
        found: list[StoredEntry] = []
        position = log.first
        while True:
            spans = log.locations(position, 100_000, 1 << 40)
            with self.disk.without_faults():
                found += self.log.read(spans)
            if not found or found[-1].position >= log.last:
                return found
            position = found[-1].position._replace(entry=found[-1].entry + 1)


class Clusters(dict[str, Cluster]):
    """The clusters of a world by their names. The world fills it when its parts have it already."""

    def living(self) -> list[tuple[Cluster, Broker]]:
        """Clusters whose broker serves, with it."""
        return [(one, one.broker) for one in self.values() if one.broker is not None and one.serves]


def small_limits(**changes: Any) -> BrokerConfig:
    """Limits that are reached in a short world."""
    return msgspec.structs.replace(BrokerConfig(), **changes)
