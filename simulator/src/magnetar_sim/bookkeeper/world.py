"""Random worlds of one ledger: a writer, recoveries and readers between bookies, a network and a store that fail.

What is checked (the model is `appended` and `confirmed`, two lines of a log that no one can lose):

    confirmed is kept   the closed ledger has every entry that its writer confirmed, before or after the close
    on enough disks     a confirmed entry is on an ack quorum of the bookies that the stored metadata name, and so is each entry
                        of a ledger when it is closed; lost disks are counted off
    one truth           no reader ever gets another payload for an entry, or an entry that is not in the closed ledger
    exact end           last entry and length of the closed ledger
    after the fence     a writer that was refused by a bookie (fenced, another key) confirms nothing; what has finished asks for
                        nothing
    fenced first        a recovery looks for entries when so many bookies have a fence on disk that the writer has no ack quorum
    metadata            segments rise, no ensemble has a bookie twice, what is closed or in recovery stays so
    it ends             a recovery ends in time although as many bookies are hung as it can bear; a writer with enough bookies
                        confirms everything; readers find out
    no needless change  bookies that have too much to do are not replaced
    no repair           a bookie that is gone is replaced before BookKeeper's repair would fence the writer for it
    enough memory       no bookie gets more than it has memory for, however slow it is
    own answers         a recovery never takes an answer to the writer for its own
"""

import contextlib
import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from magnetar.bookkeeper.ledgers.effects import (
    Confirmed,
    Effect,
    Ending,
    EntriesRead,
    Finished,
    LastConfirmed,
    ReadFailed,
)
from magnetar.bookkeeper.ledgers.metadata import BookieId, DigestType, LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.ledgers.quorums import covered, stores
from magnetar.bookkeeper.ledgers.reader import LedgerReader, ReaderLimits
from magnetar.bookkeeper.ledgers.recovery import LedgerRecovery, RecoveryLimits
from magnetar.bookkeeper.ledgers.writer import LedgerWriter, WriterLimits
from magnetar.bookkeeper.protocol.entries import DamagedEntry, EntryCodec
from magnetar.bookkeeper.protocol.messages import LAST_ENTRY, ReadEntry, Request, Response
from magnetar_sim.bookkeeper.bookie import Bookie
from magnetar_sim.bookkeeper.clients import Client, Connection, Host, has_room
from magnetar_sim.bookkeeper.store import Store

LEDGER: Final = 7
PASSWORD: Final = b"secret"

TIMEOUT_S: Final = 5.0
"""Of a request."""

SESSION_S: Final = 0.3
"""For so long a dead bookie stays registered."""

REPAIR_S: Final = 30.0
"""After this time AutoRecovery recovers an open ledger whose last segment names a bookie that is gone."""

BOOKIE_BYTES: Final = 2_500
"""The memory of a bookie of a quiet world, for entries that are not on its disk."""

IN_TIME_S: Final = 2.5
"""What does not wait for time-outs ends in less: that separates a hung bookie that is waited for from one that is not."""

QUORUMS: Final = (
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 2),
    (4, 3, 2),
    (5, 3, 2),
    (3, 2, 2),
    (4, 2, 2),
    (3, 3, 3),
    (3, 2, 1),
    (5, 5, 3),
    (1, 1, 1),
)

KINDS: Final = ("mixed", "changes", "fences", "quiet", "mixed", "changes", "recoveries", "keys", "one process")
"""The kind of a world, by its seed. changes: bookies fail while entries are written; fences: bookies restart while they fence;
quiet: they are only slow or busy, and have little memory; recoveries: several, which die at any step; keys: bookies get another
key for the ledger; one process: the writer's process recovers its own ledger, while its adds are under way."""

OTHER_KEY: Final = b"of another password "
"""A master key that is not that of the ledger."""


class World:
    """One ledger and what happens to it.

    Args:
        seed: of the world.
        trace: what happened is appended here.
        kind: see `KINDS`; "": by the seed.
    """

    def __init__(self, seed: int, trace: list[str] | None = None, kind: str = "") -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 - chance for tests
        self.trace = trace
        self.kind = kind or KINDS[seed % len(KINDS)]
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._sessions = 0
        self.ensemble, self.write, self.ack = rng.choice(QUORUMS[:3] if self.kind == "fences" else QUORUMS)
        spare = rng.choice((0, 1, 2, 3))
        if self.kind in {"changes", "fences"}:
            spare = max(spare, 1)
        names = [BookieId(f"b{number}") for number in range(self.ensemble + spare)]
        self.bookies = {name: Bookie(name, LEDGER, self._journal) for name in names}
        self.codec = EntryCodec(LEDGER, DigestType.CRC32C, PASSWORD)
        # What goes wrong now.
        self.slow: dict[BookieId, float] = {}
        self.slow_disk: dict[BookieId, float] = {}
        self.loss = 0.0
        self.store_trouble = 0.0
        # Disks that were lost or damaged; more than the ack quorum less one may lose what was confirmed.
        self.lossy: set[BookieId] = set()
        self.were_busy: set[BookieId] = set()
        # Bookies that do not come back.
        self.lost: set[BookieId] = set()
        self.reused_allowed = self.reused = False
        self.healed = False
        # The model.
        self.appended: list[bytes] = []
        self.confirmed = -1
        self.delivered = -1
        self.registered = list(names)
        self.clients: list[Client] = []
        first = LedgerMetadata(
            self.ensemble, self.write, self.ack, LedgerState.OPEN,
            (Segment(0, tuple(rng.sample(names, self.ensemble))),), DigestType.CRC32C, PASSWORD,
        )  # fmt: skip
        self.store = Store(first, self._metadata_changed)
        self.writer = Host(self, self.client("writer"), self._writer_reports)
        limits = WriterLimits(entries_max=rng.choice((4, 1000)), retry_s=0.2, explicit_lac_s=0.1)
        self.writing = LedgerWriter(LEDGER, self.store.now, self.codec, self.writer.client.bookies, limits)
        self.writer.machine = self.writing
        self.closing = False
        self.readers: list[Host] = []
        self._reads = 0
        self._wanted: dict[Host, int] = {}
        self.quiet_changes = self.kind == "quiet"

    # ---------------------------------------------------------------------------------------------------------- time

    def say(self, text: str) -> None:
        """One line of the story."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f} {text}")

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._events, (max(time, self.now), self._count, action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something in a while."""
        self.at(self.now + seconds, action)

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; whether `done` came true."""
        while not done() and self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        if done():
            return True
        self.now = max(self.now, end)
        return False

    # ------------------------------------------------------------------------------------------------------- the outside

    def client(self, name: str, pool: int = 1) -> Client:
        """A new process."""
        client = Client(self, name, pool)
        if self.kind == "fences" and not self.healed:
            client.slow.update(self.rng.sample(sorted(self.bookies), self.rng.randrange(3)))
        client.bookies.registered(self.registered)
        self.clients.append(client)
        return client

    def kill(self, client: Client) -> None:
        """A process dies."""
        client.alive = False
        for connection in client.connections.values():
            connection.alive = False

    def _delay(self, client: Client, bookie: BookieId) -> float:
        rng = self.rng
        late = rng.random() * 0.4 if bookie in client.slow and rng.random() < 0.7 else 0.0
        return late + (0.0005 + rng.random() ** 4 * 0.02) * self.slow.get(bookie, 1.0)

    def send(self, host: Host, bookie: BookieId, number: int, request: Request) -> None:
        """Bring a request to a bookie, and its answer back."""
        there = self.bookies[bookie]
        if isinstance(host.machine, LedgerRecovery) and isinstance(request, ReadEntry) and request.entry != LAST_ENTRY:
            self._check_fenced(host.client, host.machine.metadata.metadata)
        connections = host.client.connections
        slot = (bookie, self.rng.randrange(host.client.pool))
        connection = connections.get(slot)
        if connection is None or not connection.alive:
            self._sessions += 1
            connection = connections[slot] = Connection(bookie, self._sessions, there.incarnation)
        key = (host, number)
        connection.asks(key, request)
        if not there.up:
            self.after(0.001, lambda: self._fail(connection, host, number))
            return
        self.after(TIMEOUT_S, lambda: self._fail(connection, host, number))
        if self.rng.random() < self.loss:
            return

        def reply(response: Response) -> None:
            if connection.alive and self.rng.random() >= self.loss:
                self.after(self._delay(host.client, bookie), lambda: answer(response))

        def answer(response: Response) -> None:
            asker = connection.asker(key, request)
            if connection.alive and asker in connection.outstanding:
                del connection.outstanding[asker]
                to, its_number = asker
                if self.trace is not None:
                    self.say(f"{to.client.name} <- {bookie} #{its_number} {_brief(response)}")
                to.answered(bookie, its_number, response, connection.session)

        # What is under way when a connection breaks may be in the bookie's hands already.
        late = self.rng.random() < 0.5

        def arrive() -> None:
            if there.up and connection.incarnation == there.incarnation and (connection.alive or late):
                if self.trace is not None:
                    self.say(f"{host.client.name} -> {bookie} #{number} {_brief(request)}")
                there.receive(request, reply)
                counts = self.store.now.metadata.state is LedgerState.OPEN and bookie not in self.were_busy
                if self.quiet_changes and counts:
                    # Recoveries have limits of their own. What a busy bookie refused is sent again whether there is room or not.
                    assert there.memory < BOOKIE_BYTES, f"{bookie} runs out of memory"
                if isinstance(request, ReadEntry) and request.previous_lac is not None:
                    self.after(request.timeout_ms / 1000, lambda: there.poll_over(reply))

        self.after(self._delay(host.client, bookie), arrive)

    def _fail(self, connection: Connection, host: Host, number: int) -> None:
        if (host, number) in connection.outstanding:
            del connection.outstanding[host, number]
            host.failed(connection.bookie, number)

    def cut(self, client: Client, bookie: BookieId) -> None:
        """The connections between two processes break."""
        for slot in range(client.pool):
            connection = client.connections.get((bookie, slot))
            if connection is not None:
                self._break(connection)

    def _gone(self, client: Client, bookie: Bookie) -> None:
        """A client notices that the run of a bookie has ended that its connections lead to."""
        name = BookieId(bookie.name)
        for connection in list(client.connections.values()):
            if connection.bookie == name and connection.incarnation != bookie.incarnation:
                self._break(connection)

    def _break(self, connection: Connection) -> None:
        if connection.alive:
            connection.alive = False
            for host, number in list(connection.outstanding):
                self._fail(connection, host, number)

    def _journal(self, bookie: Bookie) -> None:
        incarnation = bookie.incarnation

        def written() -> None:
            if bookie.incarnation == incarnation:
                bookie.written()

        self.after((0.0005 + self.rng.random() * 0.005) * self.slow_disk.get(BookieId(bookie.name), 1.0), written)

    def update(self, host: Host, metadata: LedgerMetadata, version: int) -> None:
        """Compare and set, with answers that get lost."""
        rng = self.rng
        self.say(f"{host.client.name} proposes {_short(metadata)} for version {version}")
        if rng.random() < self.store_trouble:
            # The connection to the store breaks: done, not done, or done later.
            fate = rng.randrange(3)
            if fate:
                self.after(0.001 if fate == 1 else rng.random(), lambda: self._store(metadata, version))
            self.after(0.02 + rng.random() * 0.2, lambda: self.read_metadata(host))
            return

        def done() -> None:
            if not host.client.alive and rng.random() < 0.5:
                return
            new = self._store(metadata, version)
            if new is None:
                self.after(0.002, lambda: self.read_metadata(host))
            else:
                self.after(0.002 + rng.random() * 0.01, lambda: host.written(new))

        self.after(0.002 + rng.random() * 0.01, done)

    def _store(self, metadata: LedgerMetadata, version: int) -> int | None:
        new = self.store.update(metadata, version)
        self.say(f"store: {'refused' if new is None else f'version {new}'}: {_short(metadata)}")
        return new

    def read_metadata(self, host: Host) -> None:
        """Read; a server may lag."""
        found = self.store.before if self.rng.random() < (0.4 if self.kind == "changes" else 0.1) else self.store.now
        self.after(0.002, lambda: host.read(found))

    # ---------------------------------------------------------------------------------------------------------- checks

    def copies(self, metadata: LedgerMetadata, entry: int) -> int:
        """Bookies that the metadata name for an entry and that have it on disk, whole; lost disks count as if they had it."""
        count = 0
        for bookie in metadata.bookies_of(entry):
            body = self.bookies[bookie].disk.get(entry)
            with contextlib.suppress(DamagedEntry):
                count += bookie in self.lossy or (
                    body is not None and self.codec.unpack(entry, body).payload == self.appended[entry]
                )
        return count

    def _metadata_changed(self, new: LedgerMetadata) -> None:
        old = self.store.history[-2].metadata
        for segment in new.segments:
            assert len(set(segment.ensemble)) == len(segment.ensemble), f"a bookie twice: {segment}"
        assert new.state >= old.state, f"from {old.state.name} back to {new.state.name}"
        assert not self.quiet_changes or len(new.segments) == 1, "bookies were replaced that had not failed"
        if new.state is not LedgerState.CLOSED:
            return
        ends = [(one.last_entry, one.length) for one in (old, new)]
        assert old.state is not LedgerState.CLOSED or ends[0] == ends[1], f"closed with {ends[0]}, then with {ends[1]}"
        if old.state is not LedgerState.CLOSED and not self.reused:
            assert new.last_entry < len(self.appended), f"closed with entry {new.last_entry}, which was never appended"
            length = sum(map(len, self.appended[: new.last_entry + 1]))
            assert new.length == length, f"closed with length {new.length} instead of {length}"
            for what, last in (("confirmed", self.confirmed), ("read", self.delivered)):
                assert last <= new.last_entry, (
                    f"entry {last} was {what}, and the ledger is closed with {new.last_entry}"
                )
            for entry in range(new.last_entry + 1):
                found = self.copies(new, entry)
                assert found >= self.ack, f"closed with entry {entry} on {found} bookies"

    def _check_fenced(self, client: Client, metadata: LedgerMetadata) -> None:
        ensemble = metadata.segments[-1].ensemble
        fenced = [index for index, name in enumerate(ensemble) if self.bookies[name].fenced_on_disk]
        assert self.reused or covered(metadata, fenced), f"{client.name} looks for entries, and the writer has a quorum"

    def _writer_reports(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Confirmed):
            self.say(f"writer: confirmed {effect.last}")
            assert not host.refused, f"the writer was refused by a bookie, and confirms entry {effect.last}"
            assert self.confirmed < effect.last < len(self.appended), f"confirmed {effect.last} after {self.confirmed}"
            metadata = self.store.now.metadata
            if metadata.state is LedgerState.CLOSED:
                if not self.reused:
                    last = metadata.last_entry
                    assert effect.last <= last, (
                        f"the ledger is closed with {last}, and the writer confirms {effect.last}"
                    )
            elif not self.reused:
                for entry in range(self.confirmed + 1, effect.last + 1):
                    found = self.copies(metadata, entry)
                    assert found >= self.ack, f"entry {entry} is confirmed and on {found} of its bookies"
            self.confirmed = effect.last
        elif isinstance(effect, Finished):
            self.say(f"writer: {effect.ending}")
            host.finished = True

    def _recovery_reports(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Finished):
            self.say(f"{host.client.name}: {effect.ending}")
            host.finished = True
            if effect.ending is Ending.CLOSED:
                assert effect.metadata.metadata.state is LedgerState.CLOSED, "recovered, and not closed"

    def _reader_reports(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, LastConfirmed):
            # One read at a time; a failed one is tried again with the next rise.
            self.after(0, lambda: self._read_on(host))
        elif isinstance(effect, EntriesRead):
            for entry, payload in enumerate(effect.payloads, effect.first):
                assert entry == self._wanted[host], f"{host.client.name}: entry {entry} instead of {self._wanted[host]}"
                assert entry < len(self.appended), f"{host.client.name}: entry {entry} was never appended"
                assert payload == self.appended[entry], f"{host.client.name}: entry {entry} has another payload"
                metadata = self.store.now.metadata
                if metadata.state is LedgerState.CLOSED and not self.reused:
                    assert entry <= metadata.last_entry, f"{host.client.name}: entry {entry} of {metadata.last_entry}"
                self._wanted[host] += 1
                self.delivered = max(self.delivered, entry)
            if effect.done:
                self.after(0, lambda: self._read_on(host))
        elif isinstance(effect, ReadFailed):
            self.say(f"{host.client.name}: cannot read {effect.entry}: {effect.problem}")
            self.after(0.5, lambda: self._read_on(host))

    def _read_on(self, host: Host) -> None:
        machine = host.machine
        if not host.client.alive or not isinstance(machine, LedgerReader) or machine.reading:
            return
        first = self._wanted[host]
        if first <= machine.last_readable:
            self._reads += 1
            host.run(machine.read(self._reads, first, machine.last_readable, self.now))

    # --------------------------------------------------------------------------------------------------------- actions

    def act_append(self) -> None:
        """The writer adds some entries."""
        for _ in range(self.rng.choice((1, 1, 2, 5, 12))):
            self._append()

    def _append(self) -> None:
        if self.kind == "quiet" and not has_room(self.writer.client, self.store.now.metadata.segments[-1].ensemble):
            return
        if self.writer.client.alive and self.writing.ending is None and self.writing.room and not self.closing:
            payload = b"%d-" % len(self.appended) + b"x" * self.rng.randrange(9)
            self.appended.append(payload)
            self.writer.run(self.writing.append(payload))

    def act_close(self) -> None:
        """The writer closes."""
        self.closing = True
        if self.writer.client.alive:
            self.writer.run(self.writing.close(self.now))

    def act_writer_dies(self) -> None:
        """The writer's process dies."""
        self.kill(self.writer.client)

    def act_recover(self) -> Host:
        """A client recovers the ledger; it may die on the way."""
        dies = self.rng.randint(1, 25) if self.rng.random() < (0.6 if self.kind == "recoveries" else 0.2) else 0
        host = self._recover(dies, self.rng.choice((1, 3, 64)), self.rng.choice((1, 2)))
        if self.kind == "fences":
            # Bookies restart or hang while they are asked, and the writer continues.
            for action in self.rng.choices((self.act_crash, self.act_hang, self.act_append, self.act_loss), k=4):
                self.after(self.rng.random() * 0.06, partial(self._unless_healed, action))
        return host

    def _unless_healed(self, action: Callable[[], object]) -> None:
        if not self.healed:
            action()

    def _recover(self, dies: int, entries_max: int, pool: int = 1) -> Host:
        shared = self.kind == "one process" and self.writer.client.alive and not self.healed
        client = self.writer.client if shared else self.client(f"recovery{len(self.clients)}", pool)
        host = Host(self, client, self._recovery_reports, 0 if shared else dies)
        limits = RecoveryLimits(entries_max=entries_max, speculative_s=0.1)
        found = self.store.before if self.rng.random() < 0.1 else self.store.now
        self.say(f"{host.client.name} begins with {_short(found.metadata)}")
        host.machine = machine = LedgerRecovery(LEDGER, found, self.codec, host.client.bookies, limits)
        host.run(machine.start(self.now))
        return host

    def act_reader(self) -> Host:
        """A client reads and follows the ledger."""
        host = Host(self, self.client(f"reader{len(self.clients)}"), self._reader_reports)
        rng = self.rng
        limits = ReaderLimits(entries_max=rng.choice((1, 5, 64)), speculative_s=0.1, poll_ms=400, batch_bytes=200)
        host.machine = machine = LedgerReader(
            LEDGER, self.store.now, self.codec, host.client.bookies, limits, batches=rng.random() < 0.5
        )
        self.readers.append(host)
        self._wanted[host] = 0
        host.run(machine.learn(self.now))
        host.run(machine.follow(self.now))
        return host

    def _some_bookie(self, *, member: bool = True) -> Bookie:
        members = self.store.now.metadata.segments[-1].ensemble
        return self.bookies[self.rng.choice(members if member and self.rng.random() < 0.8 else list(self.bookies))]

    def _register(self, bookie: Bookie) -> None:
        name = BookieId(bookie.name)
        if bookie.up and not bookie.read_only:
            self.registered = sorted({*self.registered, name})
        else:
            self.registered = [one for one in self.registered if one != name]
        for client in self.clients:
            client.bookies.registered(self.registered)

    def act_crash(self) -> None:
        """A bookie is killed, and starts again later."""
        bookie = self._some_bookie()
        if bookie.up:
            self._crash(bookie)
            soon = 0.01 if self.kind == "fences" else self.rng.choice((0.05, 2))
            self.after(0.002 + self.rng.random() * soon, lambda: self._start(bookie))

    def _crash(self, bookie: Bookie) -> None:
        self.say(f"{bookie.name} crashes")
        bookie.crash()
        self._end_connections(bookie)

    def _end_connections(self, bookie: Bookie) -> None:
        for client in list(self.clients):
            if client.alive:
                # What was under way before arrives before the end of the connection.
                noticed = 0.001 + self.rng.random() * (0.2 if client.pool > 1 else 0.03)
                self.after(noticed, partial(self._gone, client, bookie))
        self.after(SESSION_S, lambda: self._register(bookie))

    def _start(self, bookie: Bookie) -> None:
        if not bookie.up and BookieId(bookie.name) not in self.lost:
            self.say(f"{bookie.name} starts")
            bookie.up = True
            self._register(bookie)

    def act_hang(self) -> None:
        """A bookie hangs for a while."""
        bookie = self._some_bookie()
        bookie.hung = True
        self.say(f"{bookie.name} hangs")
        self.after(self.rng.random() * 2, bookie.wake)

    def act_cut(self) -> None:
        """A connection breaks."""
        client = self.rng.choice(self.clients)
        if client.alive and client.connections:
            self.cut(client, self.rng.choice(sorted(client.connections))[0])

    def act_busy(self) -> None:
        """A bookie has too much to do."""
        bookie = self._some_bookie()
        bookie.busy = True
        self.were_busy.add(BookieId(bookie.name))
        self.after(self.rng.random() * 0.3, lambda: setattr(bookie, "busy", False))

    def act_broken(self) -> None:
        """A bookie has errors."""
        bookie = self._some_bookie()
        bookie.broken = True
        self.after(self.rng.random() * 0.5, lambda: setattr(bookie, "broken", False))

    def act_read_only(self) -> None:
        """A bookie's disk is full, for a while."""
        bookie = self._some_bookie()
        bookie.read_only = True
        self.after(0.05, lambda: self._register(bookie))

        def back() -> None:
            bookie.read_only = False
            self._register(bookie)

        self.after(self.rng.random(), back)

    def act_slow(self) -> None:
        """A bookie's network or disk is slow for a while."""
        name = BookieId(self._some_bookie().name)
        table = self.rng.choice((self.slow, self.slow_disk))
        table[name] = self.rng.choice((5.0, 30.0))
        self.after(self.rng.random() * 2, lambda: table.pop(name, None))

    def act_loss(self) -> None:
        """Messages get lost for a while."""
        self.loss = self.rng.choice((0.05, 0.3))
        self.after(self.rng.random() * 0.3, lambda: setattr(self, "loss", 0.0))

    def act_store(self) -> None:
        """The connections to the store break for a while."""
        self.store_trouble = self.rng.choice((0.3, 0.8))
        self.after(self.rng.random(), lambda: setattr(self, "store_trouble", 0.0))

    def act_disk(self) -> None:
        """A disk is lost, or damaged; at most so many that what is confirmed survives."""
        bookie = self._some_bookie()
        name = BookieId(bookie.name)
        if len(self.lossy | {name}) >= self.ack:
            return
        self.lossy.add(name)
        fate = self.rng.randrange(3)
        self.say(f"{name} loses its disk: {('for good', 'and knows it', 'in part')[fate]}")
        if fate == 2:
            for entry in list(bookie.disk):
                if self.rng.random() < 0.5:
                    bookie.disk[entry] = bookie.disk[entry][:-1] + b"!"
                    bookie.entries[entry] = bookie.disk[entry]
            return
        self._crash(bookie)
        if fate == 1:
            bookie.wipe(knows=True)
            self.after(self.rng.random(), lambda: self._start(bookie))
        else:
            self.lost.add(name)

    def act_reuse(self) -> None:
        """A bookie comes back under its old name without its disk and without knowing it: then nothing is promised."""
        bookie = self._some_bookie()
        if self.reused_allowed and bookie.up:
            self.reused = True
            self.lossy.add(BookieId(bookie.name))
            self._crash(bookie)
            bookie.wipe(knows=False)
            self.after(0.01, lambda: self._start(bookie))

    def act_other_key(self) -> None:
        """Another client uses the ledger's number with a password of its own, at a bookie that does not know the ledger."""
        bookie = self._some_bookie(member=False)
        bookie.key = bookie.key or OTHER_KEY

    def act_repair(self) -> None:
        """AutoRecovery copies what a dead bookie had in older segments, or in a closed ledger, and names the copy's bookie."""
        now = self.store.now
        metadata = now.metadata
        ends = [*(segment.first for segment in metadata.segments[1:]), metadata.last_entry + 1]
        whole = metadata.state is LedgerState.CLOSED
        for at, segment in enumerate(metadata.segments if whole else metadata.segments[:-1]):
            for index, name in enumerate(segment.ensemble):
                spare = [one for one in self.registered if one not in segment.ensemble and one not in self.lossy]
                if self.bookies[name].up or not spare:
                    continue
                there = self.bookies[spare[0]]
                if not there.up:
                    continue
                copied = self._copy(metadata, index, range(segment.first, ends[at]), there)
                if copied:
                    ensemble = [there.name if place == index else one for place, one in enumerate(segment.ensemble)]
                    segments = list(metadata.segments)
                    segments[at] = Segment(segment.first, tuple(map(BookieId, ensemble)))
                    self.say(f"repair: {name} -> {there.name} in segment {segment.first}")
                    self._store(replace(metadata, segments=tuple(segments)), now.version)
                return

    def _copy(self, metadata: LedgerMetadata, index: int, entries: range, there: Bookie) -> bool:
        bodies: dict[int, bytes] = {}
        for entry in entries:
            if not stores(metadata, index, entry):
                continue
            for other in metadata.bookies_of(entry):
                body = self.bookies[other].disk.get(entry)
                if body is not None and other not in self.lossy:
                    bodies[entry] = body
                    break
            else:
                return False
        there.disk.update(bodies)
        there.entries.update(bodies)
        return True

    ACTIONS: Final = {
        act_append: 30, act_close: 0.4, act_writer_dies: 0.4, act_recover: 1.2, act_reader: 1, act_crash: 2.5, act_hang: 2,
        act_cut: 1.5, act_busy: 1.5, act_broken: 1.5, act_read_only: 0.7, act_slow: 3, act_loss: 1.2, act_store: 1.5,
        act_disk: 0.5, act_repair: 2, act_reuse: 0.05,
    }  # fmt: skip

    RARE: Final[dict[str, dict[Any, float]]] = {"keys": {act_other_key: 3}}
    """What happens in a kind of world only."""

    BY_KIND: Final = {
        "mixed": {},
        "changes": {act_recover: 0.3, act_crash: 2, act_broken: 3, act_slow: 2, act_store: 4, act_writer_dies: 0, act_reuse: 0},
        "fences": {act_recover: 4, act_crash: 4, act_loss: 2, act_hang: 1, act_writer_dies: 0, act_close: 0, act_reuse: 0,
            act_slow: 2, act_append: 0.3},
        "recoveries": {act_recover: 4, act_disk: 3, act_reuse: 0, act_close: 0.3},
        "keys": {act_reuse: 0, act_recover: 0.3, act_crash: 2},
        "one process": {act_recover: 2, act_append: 2, act_writer_dies: 0, act_reuse: 0},
        "quiet": dict.fromkeys(
            (act_crash, act_hang, act_cut, act_broken, act_read_only, act_loss, act_disk, act_repair, act_reuse, act_store), 0.0
        ),
    }  # fmt: skip
    """How much more often something happens in a kind of world."""

    # --------------------------------------------------------------------------------------------------------- the story

    def run(self, steps: int) -> None:
        """Live through it, let everything heal, recover, read, check."""
        rng = self.rng
        self.reused_allowed = rng.random() < 0.2
        factors = self.BY_KIND[self.kind]
        table: dict[Any, float] = {**self.ACTIONS, **self.RARE.get(self.kind, {})}
        actions = list(table)
        weights = [weight * factors.get(action, 1) for action, weight in table.items()]  # type: ignore[attr-defined]
        pace = rng.choice((0.002, 0.01, 0.05))
        if self.kind == "fences":
            # Bookies have to be asked that have nothing: early in a ledger.
            pace, steps = 0.005, min(steps, 25)
            self._race()
        else:
            self.act_append()
        for action in rng.choices(actions, weights, k=steps):
            self.run_until(self.now + rng.expovariate(1 / pace))
            action(self)
        self.run_until(self.now + rng.choice((0.0, 0.05, 1.0)))
        self._heal()
        self._end()

    def _race(self) -> None:
        """A recovery and an entry race for three bookies. What is late, and who restarts when, is left to chance.

        The entry reaches one of them before the recovery, and the others after it; or it is sent when a bookie has restarted
        that had answered the recovery.
        """
        rng = self.rng
        first, second, third = (
            self.bookies[name] for name in rng.sample(self.store.now.metadata.segments[-1].ensemble, 3)
        )
        names = [BookieId(one.name) for one in (first, second, third)]
        before = rng.random() < 0.5

        def sometimes(action: Callable[[], object], earliest: float, latest: float) -> None:
            if rng.random() < 0.8:
                self.after(rng.uniform(earliest, latest), action)

        def restart() -> None:
            if second.up:
                self._crash(second)
                self.after(rng.uniform(0.002, 0.01), lambda: self._start(second))

        self.writer.client.slow = set(names[:2] if before else names[:1])
        if rng.random() < 0.8:
            self.slow_disk[names[1]] = 30.0
        pool = rng.choice((1, 2))
        if before:
            if pool > 1:
                # The entry is sent again, perhaps to another run of the bookie.
                second.busy = True
                self.after(rng.uniform(0.05, 0.3), lambda: setattr(second, "busy", False))
                sometimes(restart, 0.1, 0.3)
            self.act_append()
            self.run_until(self.now + rng.uniform(0.01, 0.05))
            sometimes(lambda: setattr(third, "hung", True), 0.01, 0.05)
            self.after(rng.uniform(0.1, 1.0), third.wake)
        else:
            sometimes(restart, 0.01, 0.06)
            sometimes(self.act_append, 0.02, 0.2)
        host = self._recover(0, rng.choice((1, 3, 64)), pool)
        host.client.slow = {names[1] if before else names[2]}
        if before and pool == 1:
            self.after(0.03, host.client.slow.clear)
        self.run_until(self.now + rng.uniform(0.1, 0.5))

    def _heal(self) -> None:
        """What can come back comes back."""
        self.healed = True
        self.loss = self.store_trouble = 0.0
        for client in self.clients:
            client.slow.clear()
        self.slow.clear()
        self.slow_disk.clear()
        for bookie in self.bookies.values():
            bookie.busy = bookie.broken = bookie.read_only = False
            if bookie.key == OTHER_KEY:
                bookie.key = None
            if bookie.hung:
                bookie.wake()
            self._start(bookie)
            if bookie.up:
                self._register(bookie)

    def _end(self) -> None:
        rng = self.rng
        if rng.random() < 0.5 or self.kind == "quiet":
            self._check_writer()
        self.quiet_changes = False
        hung = self._hang_some()
        self._check_recovery(hung)
        for bookie in self.bookies.values():
            bookie.wake()
        self._check_readers()

    def _check_writer(self) -> None:
        """A writer whose bookies are there gets everything confirmed, and readers find out."""
        writing = self.writing
        if (
            not self.writer.client.alive
            or writing.ending is not None
            or self.store.now.metadata.state is not LedgerState.OPEN
        ):
            return
        if len(self.registered) - len(self.lossy) < self.ensemble or self.lossy & {
            name for name, one in self.bookies.items() if one.limbo
        }:
            return

        def quiet() -> bool:
            return writing.ending is not None or writing.unconfirmed == 0

        self.run_until(self.now + 4 * TIMEOUT_S, quiet)
        if writing.ending is None and self.store.now.metadata.state is LedgerState.OPEN:
            assert quiet(), f"{writing.unconfirmed} entries are not confirmed although all bookies are there"
            self._check_repair()
            if self.closing:
                return
            self.run_until(self.now + 2 * TIMEOUT_S)
            for host in self.readers:
                machine = host.machine
                assert isinstance(machine, LedgerReader)
                last = machine.last_readable
                if not self.reused and self.store.now.metadata.state is LedgerState.OPEN and writing.ending is None:
                    assert last == self.confirmed, f"{host.client.name} knows of {last}, confirmed is {self.confirmed}"

    def _check_repair(self) -> None:
        """A writer replaces a bookie that is gone before BookKeeper's repair would fence it for that.

        It learns of it when it adds an entry. The repair waits for `REPAIR_S` before it recovers an open ledger.
        """
        ensemble = self.store.now.metadata.segments[-1].ensemble
        gone = [name for name in ensemble if not self.bookies[name].up]
        if not gone or self.closing or not self.writing.room:
            return
        for _ in range(self.ensemble):
            self._append()
        self.run_until(self.now + REPAIR_S)
        metadata = self.store.now.metadata
        spare = set(self.registered) - set(metadata.segments[-1].ensemble)
        if metadata.state is LedgerState.OPEN and self.writing.ending is None and spare:
            named = [name for name in metadata.segments[-1].ensemble if not self.bookies[name].up]
            assert not named, (
                f"{named} are gone for {REPAIR_S:.0f} s, and the ledger names them still: its writer would be fenced"
            )

    def _hang_some(self) -> list[BookieId]:
        """So many bookies hang that a recovery can bear it."""
        rng = self.rng
        if self.reused or rng.random() < 0.3:
            return []
        present = [name for name, bookie in self.bookies.items() if bookie.up and name not in self.lossy]
        self.rng.shuffle(present)
        bearable = self.ack - 1 - len(self.lossy)
        if len(present) - bearable < self.ensemble:
            # There is none in exchange for a hung one: enough others have to take the entries.
            bearable = min(bearable, self.write - self.ack - len(self.lossy))
        hung = present[: max(0, bearable)]
        wait = rng.choice((0.0, 0.0, rng.random() * 0.03))
        for name in hung:
            self.after(wait, lambda name=name: setattr(self.bookies[name], "hung", True))  # type: ignore[misc]
        self.run_until(self.now)
        self.say(f"hung at the end: {hung}")
        return hung

    def _check_recovery(self, hung: list[BookieId]) -> None:
        for attempt in range(1, 20):
            host = self._recover(0, 64)
            began = self.now
            done = self.run_until(self.now + 20 * TIMEOUT_S, lambda host=host: host.finished)  # type: ignore[misc]
            assert done, f"{host.client.name} does not end"
            machine = host.machine
            assert isinstance(machine, LedgerRecovery)
            if machine.ending is Ending.CLOSED:
                took = self.now - began
                # With Qw = Qa a bookie that hangs has to be replaced, which takes a time-out; so has one that is gone.
                if attempt == 1 and self.write - self.ack >= len(hung) + len(self.lossy):
                    assert took < IN_TIME_S, f"the recovery took {took:.2f} s, with {hung} hung"
                return
            gone = sum(not one.up for one in self.bookies.values())
            if machine.ending is Ending.NO_BOOKIES and gone > max(
                self.write - self.ack, len(self.bookies) - self.ensemble
            ):
                # There are really too few for an ack quorum.
                return
            assert self.reused or attempt < 5, f"no recovery succeeds: {machine.ending}"
            if self.reused and attempt > 5:
                return
            self.run_until(self.now + 1)

    def _check_readers(self) -> None:
        metadata = self.store.now.metadata
        if metadata.state is not LedgerState.CLOSED or self.reused:
            return
        self.run_until(self.now + 2 * TIMEOUT_S)
        host = self.act_reader()
        readers = [one for one in self.readers if one.client.alive]

        def complete() -> bool:
            return all(self._wanted[one] == metadata.last_entry + 1 for one in readers)

        self.run_until(self.now + 6 * TIMEOUT_S, complete)
        for one in readers:
            wanted = self._wanted[one]
            assert wanted == metadata.last_entry + 1, (
                f"{one.client.name} has read {wanted} of {metadata.last_entry + 1}"
            )
        assert host in readers
        assert self.confirmed <= metadata.last_entry


def _brief(message: Request | Response) -> str:
    """A message without its bytes."""
    fields = [
        f"{name}={getattr(message, name)}" for name in message.__match_args__ if "bod" not in name and "key" not in name
    ]
    return f"{type(message).__name__} {' '.join(fields[1:])}"


def _short(metadata: LedgerMetadata) -> str:
    segments = " ".join(f"{one.first}:{','.join(one.ensemble)}" for one in metadata.segments)
    end = f" {metadata.last_entry}/{metadata.length}" if metadata.state is LedgerState.CLOSED else ""
    return f"{metadata.state.name}{end} [{segments}]"
