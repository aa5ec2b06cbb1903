"""One cluster in a world of synchronised metadata (`metadata.py`): the real machine over a store that outlives crashes."""

import random
from typing import Final, Protocol

import msgspec

from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.sync.documents import kind_of, parent_of, to_fields
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.records import Malformed, Record, covers
from magnetar.metadata.sync.stamps import US_PER_MS, Stamp
from magnetar.metadata.sync.updates import BURIED_MAX, Batch, Update

TENANT: Final = "tenants/t"
SPACES: Final = ("namespaces/t/n", "namespaces/t/m")
POLICIES: Final = "topicpolicies/persistent://t/n/x"
ROLE: Final = "permissions/namespaces/t/n/app"
TOPIC: Final = "partitioned/persistent://t/n/p"
PATHS: Final = (TENANT, *SPACES, POLICIES, ROLE, TOPIC)
FIELDS: Final = ("message_ttl_in_seconds", "max_consumers_per_topic", "backlog")
AHEAD_MS: Final = 100
SKEWS: Final = (0, 0, 0, -40, 30, 90, 400)
PLAIN: Final = "p"
"""A cluster of Apache Pulsar, which knows whole values only."""


class Op:
    """One thing that was done, as the dumb twin remembers it."""

    __slots__ = ("field", "kind", "path", "stamp", "value")

    def __init__(self, kind: str, path: str, stamp: Stamp, field: str = "", value: bytes | None = None) -> None:
        self.kind, self.path, self.stamp, self.field, self.value = kind, path, stamp, field, value


def wins(one: Stamp, other: Stamp | None) -> bool:
    """The rule, once more: written again here so that a slip in `stamps` is seen."""
    return other is None or (one[0], [-ord(c) for c in one[1]]) > (other[0], [-ord(c) for c in other[1]])


class NodeWorld(Protocol):
    """What a cluster needs of the world that it is in.

    Attributes:
        now: ms.
        names: of all clusters.
        forgetful: confirmed deletions are forgotten at once.
        refused: events that were refused.
    """

    rng: random.Random
    now: int
    names: list[str]
    forgetful: bool
    refused: int

    def say(self, text: str) -> None:
        """One line of the story."""

    def remember(self, node: "Node", update: Update) -> None:
        """Write down what was done."""


class Node:
    """One cluster: a store that outlives crashes, an inbox, an outbox, and the machine."""

    def __init__(self, world: NodeWorld, name: str) -> None:
        self.world, self.name = world, name
        self.skew = world.rng.choice(SKEWS)
        self.store: dict[str, bytes] = {}
        self.inbox: list[tuple[str, bytes]] = []
        self.outbox: list[bytes] = []
        self.topics: set[str] = set()
        self.backup: dict[str, bytes] | None = None
        self.last_now = 0
        self.dead: dict[str, Stamp] = {}
        self.early: list[tuple[str, Record]] = []
        self.start()

    @property
    def now(self) -> int:
        """Its wall clock. A running process never sees it go back (`Outbox.now_ms`)."""
        self.last_now = max(self.last_now, self.world.now + self.skew)
        return self.last_now

    @property
    def cursor(self) -> int:
        """How far the inbox is applied, durably."""
        return int(self.store.get("cursor", b"0"))

    # ------------------------------------------------------------------------------------------------- what the machine asks

    def members(self) -> frozenset[str]:
        """See `SyncContext`."""
        return frozenset(self.world.names)

    def known(self, cluster: str) -> bool:
        """See `SyncContext`."""
        return cluster in self.world.names or cluster == PLAIN

    def local(self, path: str) -> bytes | None:
        """See `SyncContext`."""
        return self.store.get(path)

    def keeps(self, path: str) -> str:
        """See `SyncContext`."""
        needed = any(one == path or parent_of(one) == path for one in self.topics)
        return "1 topic" if needed else ""

    def refuses_document(self, path: str) -> bool:
        """See `SyncContext`."""
        return False

    # ------------------------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """A process begins with what the store holds."""
        self.last_now = self.world.now + self.skew
        buried_max = 0 if self.world.forgetful else BURIED_MAX
        self.machine = Synchroniser(self.name, self, ahead_ms_max=AHEAD_MS, buried_max=buried_max)
        self.machine.load(self.store)
        update = self.machine.adopt(
            {path: self.store[path] for path in PATHS if path in self.store}, frozenset(), self.now
        )
        self.world.remember(self, update)
        self.commit(update, allowed_to_fail=False)
        self.publish_snapshot(hello=True)

    def commit(self, update: Update, puts: dict[str, bytes] | None = None, *, allowed_to_fail: bool = True) -> bool:
        """Store an update in one transaction, or fail to."""
        world = self.world
        if allowed_to_fail and world.rng.random() < 0.05:
            world.say(f"{self.name}: the store fails")
            return False
        more, gone = self.machine.stored(update)
        for key in gone:
            self.check_deletion(key)
            self.store.pop(key, None)
        for key, value in {**more, **(puts or {})}.items():
            self.check_put(key, value)
            self.store[key] = value
        for path, record in update.records.items():
            self.check_dead(path, record)
        self.early = [early for early in self.early if early[0] not in update.forgotten]
        self.machine.commit(update, self.now)
        for path in sorted(self.machine.due):
            self.make_topic(path)
        return True

    def check_dead(self, path: str, record: Record) -> None:
        """What this cluster knew to be deleted or taken back does not come back, not even for a while."""
        dead = self.dead.get(path)
        if record.exists:
            assert record.created is not None
            assert wins(record.created, dead), f"{self.name}: {path} is back, deleted at {dead}"
        for name, cell in record.fields.items():
            gone = self.dead.get(f"{path}:{name}")
            if cell.value is None:
                self.dead[f"{path}:{name}"] = cell.stamp
                continue
            assert wins(cell.stamp, dead), f"{self.name}: {name} of an earlier life of {path} is back"
            assert cell.stamp == gone or wins(cell.stamp, gone), (
                f"{self.name}: {name} of {path} is back, taken back at {gone}"
            )
        if record.deleted is not None and wins(record.deleted, dead):
            self.dead[path] = record.deleted

    def check_deletion(self, key: str) -> None:
        """Nothing that topics need goes."""
        assert key not in self.topics, f"{self.name}: {key} goes although a topic needs it"
        assert not any(parent_of(one) == key for one in self.topics), f"{self.name}: {key} goes although topics need it"

    def check_put(self, key: str, value: bytes) -> None:
        """Partitions never become fewer."""
        if key == TOPIC and key in self.store:
            before, after = (msgspec.json.decode(data)["partitions"] for data in (self.store[key], value))
            assert after >= before, f"{self.name}: {before} partitions become {after}"

    def make_topic(self, path: str) -> None:
        """As the broker does it after an update: the partitions, then the document."""
        data = self.machine.topic(path)
        if data is not None:
            update = Update(puts={path: data})
            more, _ = self.machine.stored(update)
            self.check_put(path, data)
            self.store.update(more)
            self.machine.commit(update, self.now)
        self.machine.due.discard(path)

    def crash(self) -> None:
        """What was not stored is gone."""
        self.world.say(f"{self.name} restarts")
        self.start()

    def publish_snapshot(self, *, hello: bool = False) -> None:
        """Publish everything; it is durable at once."""
        snapshot = self.machine.snapshot(self.now, hello=hello)
        self.outbox += snapshot.messages
        self.machine.listed(snapshot)

    # -------------------------------------------------------------------------------------------------- what it does

    def change(self, path: str, data: bytes | None) -> bool:
        """A local change; whether it was possible."""
        world = self.world
        try:
            update = self.machine.local({path: data}, self.now)
        except PreconditionFailed:
            world.say(f"{self.name} refuses a change: its clock is off")
            return False
        if data is not None:
            self.check_seen(path, update)
        puts = {path: data} if data is not None else {}
        if data is None:
            self.check_deletion(path)
        if not self.commit(update, puts):
            return False
        if data is None:
            self.store.pop(path, None)
        world.remember(self, update)
        world.say(f"{self.name} sets {path} = {data!r}")
        if data is not None:
            kind = kind_of(path)
            assert kind is not None
            shown = {name: msgspec.json.encode(value) for name, (value, _) in self.machine.view(path).items()}
            wanted = to_fields(kind, kind.read(data))
            missing = {name for name, value in wanted.items() if shown.get(name) != value}
            assert not missing, f"{self.name}: a change of {path} does not show: {missing}"
        if world.rng.random() < 0.9:
            self.outbox += self.machine.changes(update.to_publish, self.now)
        else:
            world.say("   (its event is lost)")
        return True

    def check_seen(self, path: str, update: Update) -> None:
        """A change that is made after seeing another wins over it."""
        old, new = self.machine.records.get(path), update.records.get(path)
        if old is None or new is None:
            return
        for name, cell in new.fields.items():
            before = old.fields.get(name)
            if before is not None and before != cell:
                assert wins(cell.stamp, before.stamp), f"{self.name}: a change after seeing {before.stamp} does not win"

    def apply(self, most: int) -> None:
        """Read some of the inbox."""
        world, at = self.world, self.cursor
        batch = Batch()
        entries = self.inbox[at : at + most]
        if not entries:
            return
        for origin, data in entries:
            before = dict(batch.records)
            try:
                self.machine.read(batch, data, origin)
            except Malformed as error:
                world.refused += 1
                assert batch.records == before, f"{self.name}: a refused event was taken by half"
                world.say(f"{self.name} refuses an event: {error}")
        update = self.machine.merge(batch, self.now)
        assert not update.to_publish, f"{self.name}: what is applied is published: {update.to_publish}"
        if self.commit(update, {"cursor": str(at + len(entries)).encode()}):
            early = {
                path: record
                for path, record in batch.records.items()
                if any(stamp.time_us > self.now * US_PER_MS for stamp in record.stamps())
            }
            # Of two that wait the newer may hide the other, until a snapshot publishes it again.
            self.early = [one for one in self.early if one[0] not in early] + list(early.items())
            world.say(f"{self.name} applies {len(entries)} events: {sorted(update.records)}")
            hellos = [header for header in batch.headers if header.hello and header.last]
            if update.awaited or any(header.digest != self.machine.digest for header in hellos):
                self.publish_snapshot()

    def tidy(self) -> None:
        """What waited for the clock, and deletions that can rest."""
        self.release(allowed_to_fail=True)
        self.commit(self.machine.collect())

    def release(self, *, allowed_to_fail: bool = False) -> None:
        """What waited for the clock."""
        if self.commit(self.machine.release(self.now), allowed_to_fail=allowed_to_fail):
            self.check_early()

    def check_early(self) -> None:
        """What came before its time is in force when the clock has reached it, without anybody saying it again."""
        late, self.early = self.early, []
        for path, record in late:
            if any(stamp.time_us > self.now * US_PER_MS for stamp in record.stamps()):
                self.early.append((path, record))
            elif path in self.machine.records:
                known = covers(self.machine.records[path], record)
                assert known, f"{self.name}: {path} was ahead of the clock, which has reached it: {record} is forgotten"

    def needed_no_more(self) -> None:
        """Its topics were deleted by name."""
        paths = sorted({*self.topics, *(parent_of(one) for one in self.topics)})
        self.topics.clear()
        known = [path for path in paths if path in self.machine.records]
        while not self.commit(self.machine.again(known)):
            pass
