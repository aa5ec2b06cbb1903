"""One cluster: a real broker over a disk that forgets, driven as `runtime.driver` does it, in virtual time."""

import logging
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from magnetar.broker.admin.controller import Controller
from magnetar.broker.broker import Broker
from magnetar.broker.catalog.deletion_proofs import begin_proving
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError, StorageError
from magnetar.core.settings import BrokerConfig
from magnetar.effects.outbox import (
    Close,
    Compute,
    Drop,
    FrameLimit,
    Hold,
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
from magnetar_sim.disk import PowerCut, SimLog, SimStore
from magnetar_sim.host.memory_files import MemoryFiles

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.topic import Topic
    from magnetar_sim.world import World

_Fact = tuple[int, Callable[[Broker], None]]

LINK_TOKEN = b"sim"
VALIDATE_EVERY = 20
"""Every so many events the broker's own `validate` runs: it costs as much as several events."""

logging.getLogger("magnetar.log").setLevel(logging.CRITICAL + 1)


class Cluster:
    """One cluster of the world.

    Args:
        world: the world.
        name: of the cluster.
        config: what a clusters.toml would say.
        limits: of its broker.
        skew_ms: its clock against the world's.
        targets: clusters that links lead to from here.
    """

    def __init__(
        self, world: "World", name: str, config: Config, limits: BrokerConfig, skew_ms: int, targets: tuple[str, ...]
    ) -> None:
        self.world, self.name, self._config, self.limits = world, name, config, limits
        self.skew_ms = skew_ms
        self.targets = targets
        self.broker: Broker | None = None
        self.life = 0
        self.lives = 0
        self.uuid = ""
        self.events = 0
        self._of_log: deque[_Fact] = deque()
        self._of_store: deque[_Fact] = deque()
        self.wiped()

    # --------------------------------------------------------------------------------------------------- life and death

    def wiped(self) -> None:
        """A new disk, with a new data folder."""
        self.lives += 1
        self.uuid = f"{self.name}-{self.lives}"
        self.files = MemoryFiles(self.world.rng)
        self.meta: dict[str, bytes] = {}

    @property
    def now_ms(self) -> int:
        """What the broker takes for the time."""
        return self.clock.now_ms()

    def start(self) -> None:
        """Start the broker from what disk and store hold; the disk may fail it, then it stays down."""
        world = self.world
        self.life += 1
        self._pending: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._running = False
        self.clock = SystemClock(
            lambda: (world.clock.now_ms + self.skew_ms) * 1_000_000,
            lambda: world.clock.now_ms * 1_000_000,
            lambda _text: None,
        )
        self.outbox = Outbox(now_ms=self.now_ms)
        life = self.life
        self.log = SimLog(
            world.clock,
            world.rng,
            self.files,
            self.limits,
            world.slow_disk_ms,
            on_appended=lambda batch: self._appended(life, batch),
            on_failed=lambda batch, error: self._failed(life, batch, error),
            on_healed=lambda: self._healed(life),
            on_power_cut=lambda: self._power_cut(life),
        )
        self.store = SimStore(
            world.clock,
            world.rng,
            self.meta,
            world.slow_disk_ms,
            lambda done, error: self._answered(life, done, error),
        )
        broken = self.files.broken
        try:
            recovered = self.log.start()
        except (PowerCut, OSError):
            self.files = self.files.crash()
            world.say(f"{self.name} does not come up")
            return
        except StorageError:
            if self.files.broken == broken:
                raise
            world.say(f"{self.name} cannot read its disk and does not come up")
            return
        for piece in begin_proving(self.meta, recovered.topics):
            self.meta.update(piece.puts)
        resources = Resources.load(self.meta)
        first = resources.first_start(self._config, self.name, self.uuid)
        if first.puts:
            self.meta.update(first.puts)
            resources.apply(first)
        self.broker = Broker(
            self.outbox,
            self.limits,
            cluster=self.name,
            uuid=self.uuid,
            service_url=f"pulsar://{self.name}:6650",
            link_token=LINK_TOKEN,
            resources=resources,
            stored=dict(self.meta),
            recovered=recovered.topics,
            ledger_ids=LedgerIds(max(recovered.last_ledger, int(self.meta.get(LAST_LEDGER_KEY, b"-1")))),
            cache=EntryCache(self.limits.cache_bytes_max),
            link_targets=self.targets,
            boot=self.now_ms + self.life,
            **world.broker_extras(self),
        )
        self.control = Controller(self.broker, self.run)
        world.truth.restarted(self)
        self.run(_nothing)
        world.say(f"{self.name} is up ({self.uuid})")

    def die(self) -> None:
        """Power cut: what was not durable may be gone."""
        if self.broker is None:
            return
        self.world.count("broker died")
        if not self.log.idle or not self.store.idle:
            self.world.count("broker died with something on its way to the disk")
        self._cut_off()
        self.files = self.files.crash()
        self._over()
        self.world.say(f"{self.name} dies")

    def kill(self) -> None:
        """The process is killed: lost is what was never written, and what was written is there, durable or not."""
        if self.broker is None:
            return
        self.world.count("process killed")
        self._cut_off()
        self._over()
        self.world.say(f"{self.name} is killed")

    def stop(self) -> None:
        """The broker ends in good order, as on SIGTERM: connections are closed, then everything is written that waits."""
        broker = self.broker
        if broker is None:
            return
        for connection in [one for one in self.world.net.connections.values() if one.cluster is self]:
            connection.cut()
            self.run(broker.disconnected, connection.number)
        self.run(broker.shut_down)
        self.life += 1
        logged = self.log.finish()
        whole = self.store.finish() and logged
        if whole:
            self.world.count("broker stopped")
            self.world.acks.stopped(self.name)
        if not logged:
            self.files = self.files.crash()  # whoever stopped it switches the machine off
        self._over()
        self.world.say(f"{self.name} has ended" + ("" if whole else ", and could not write everything"))

    def _cut_off(self) -> None:
        """Nothing more is done; of what was on its way to the store a part may have been committed."""
        self.life += 1
        self.log.over = True
        self.store.power_cut()

    def _over(self) -> None:
        """Everybody hears of it, in time."""
        self.broker = None
        self.world.net.died(self)
        self.world.truth.died(self)

    def _power_cut(self, life: int) -> None:
        if life == self.life:
            self.world.count("power cut within an operation of the disk")
            self.die()
            self.world.revive_later(self)

    # ---------------------------------------------------------------------------------------------------------- events

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        """Handle one event and carry out what it asks for; events that arise meanwhile queue behind it."""
        self._pending.append((event, arguments))
        if self._running:
            return
        self._running = True
        life = self.life
        try:
            while self._pending and life == self.life:
                event, arguments = self._pending.popleft()
                self.outbox.now_ms = self.now_ms
                self.outbox.ahead_ms = self.clock.ahead_ms
                event(*arguments)
                self.events += 1
                while self.outbox.effects:
                    for effect in self.outbox.drain():
                        self._perform(effect)
                if self.broker is not None:
                    self.world.after_event(self)
                    if not self.events % VALIDATE_EVERY:
                        self.broker.validate()
        finally:
            self._running = False

    def _hop(self, queue: "deque[_Fact]", life: int, event: Callable[[Broker], None]) -> None:
        """Another thread has something to tell: the broker hears of it a little later, in the order of the facts."""
        queue.append((life, event))

        def arrive() -> None:
            told_life, told = queue.popleft()
            if told_life == self.life and self.broker is not None:
                self.run(told, self.broker)

        self.world.clock.after(self.world.hop_ms(), arrive)

    def _appended(self, life: int, batch: list[tuple[Append, Location]]) -> None:
        for append, _ in batch:
            self.world.truth.stored(self, append.topic, append.entries)
        self._hop(self._of_log, life, lambda broker: broker.appended(batch))

    def _failed(self, life: int, batch: list[Append], error: str) -> None:
        self.world.count("append failed")
        self._hop(self._of_log, life, lambda broker: broker.append_failed(batch, error))

    def _healed(self, life: int) -> None:
        self._hop(self._of_log, life, lambda broker: broker.healed())

    def _answered(self, life: int, done: Callable[[str], None], error: str) -> None:
        if error:
            self.world.count("commit of the store failed")
        self._hop(self._of_store, life, lambda _broker: done(error))

    # --------------------------------------------------------------------------------------------------------- effects

    def _perform(self, effect: Any) -> None:
        kind = type(effect)
        world = self.world
        if kind is Send:
            connection = world.net.connections.get(effect.connection)
            for buffer in effect.buffers:
                world.digest = zlib.crc32(buffer, world.digest)
            if connection is not None:
                connection.deliver(effect.buffers)
        elif kind is Write:
            self.log.submit(effect.append)
        elif kind is Sync:
            life = self.life
            self.log.sync(lambda error: self._hop(self._of_log, life, lambda _broker: effect.then(error)))
        elif kind is Timer:
            self._timer(effect, self.life)
        elif kind is Store:
            self.store.submit(effect.puts, effect.deletes, effect.then)
        elif kind is Read:
            self._read(effect)
        elif kind is Close:
            connection = world.net.connections.get(effect.connection)
            if connection is not None:
                connection.server_closes()
        elif kind is Drop:
            world.truth.dropped(self, effect.ledgers)
            self.log.drop(effect.ledgers)
        elif kind is Note:
            world.noted(self, effect)
        elif kind is Compute:
            self._compute(effect, self.life)
        else:
            assert kind in (Hold, FrameLimit), f"an effect that the simulator does not know: {effect}"

    def _timer(self, effect: Timer, life: int) -> None:
        def fire() -> None:
            if life != self.life or self.broker is None:
                return
            if self.now_ms < effect.at_ms:
                self._timer(effect, life)  # the clock was set back meanwhile
                return
            self.run(lambda: effect.then(self.outbox.now_ms))

        self.world.clock.after(max(1, effect.at_ms - self.now_ms), fire)

    def _compute(self, effect: Compute, life: int) -> None:
        def answer() -> None:
            if life == self.life and self.broker is not None:
                self.run(effect.then, effect.work())

        self.world.clock.after(self.world.hop_ms(), answer)

    def _read(self, effect: Read) -> None:
        assert self.broker is not None
        log = self.broker.log_of(effect.topic)
        if log is None:
            self._pending.append((effect.then, ([], f"topic {effect.topic} is gone")))
            return
        cached, spans = effect.find(log)
        if not spans:
            self._pending.append((effect.then, (cached, "")))
            return
        life = self.life

        def answer() -> None:
            if life != self.life or self.broker is None:
                return
            entries: list[StoredEntry] = []
            error = ""
            try:
                entries = self.log.read(spans)
            except (MagnetarError, OSError) as failure:
                error = str(failure)
            self.run(effect.then, entries, error)

        self.world.clock.after(self.world.hop_ms(), answer)

    # ------------------------------------------------------------------------------------------------------- questions

    def topic(self, text: str) -> "Topic | None":
        """As the broker has it; None where it has none, or there is no broker."""
        return self.broker.topics.get(text) if self.broker is not None else None

    def when_ready(self, topic: str, machine: "Subscription", do: Callable[[], None]) -> None:
        """During the replay after a start operators wait, and so does whoever looks at what they did."""
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
            with self.files.without_faults():
                found += self.log.read(spans)
            if not found or found[-1].position >= log.last:
                return found
            position = found[-1].position._replace(entry=found[-1].entry + 1)


def _nothing() -> None:
    """An event that only lets effects out."""


def small_limits(**changes: Any) -> BrokerConfig:
    """Limits that are reached in a short world."""
    return msgspec.structs.replace(BrokerConfig(), **changes)
