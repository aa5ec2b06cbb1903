"""Clients in a world: each has its own view of the bookies and its own connections, and hosts machines."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import Effect, ReadMetadata, Send, UpdateMetadata
from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.ledgers.reader import LedgerReader
from magnetar.bookkeeper.ledgers.recovery import LedgerRecovery
from magnetar.bookkeeper.ledgers.writer import LedgerWriter
from magnetar.bookkeeper.protocol.messages import AddEntry, Code, EntryAdded, Request, Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar.bookkeeper.ledgers.metadata import Versioned
    from magnetar_sim.bookkeeper.world import World

CLIENT_BYTES_MAX: Final = 1_000
"""Of entries that a bookie has not answered, where bookies have little memory."""

Machine = LedgerWriter | LedgerReader | LedgerRecovery


def numbered(request: Request) -> bool:
    """Whether the answer to a request names it, as in version 3. See `bookkeeper.network.connection.Connections.send`."""
    return not isinstance(request, AddEntry) or request.recovery


@dataclass(slots=True, eq=False)
class Connection:
    """From one client to one bookie.

    Attributes:
        bookie: where it leads.
        session: its number; no other connection has it.
        incarnation: of the bookie that it leads to.
        alive: neither end has closed it.
        outstanding: (host, number) that wait for an answer, and the bytes of each.
        unnumbered: the first part of the same for requests of version 2, by entry. An answer to one names nothing else, so it
            goes to the first one.
    """

    bookie: BookieId
    session: int
    incarnation: int
    alive: bool = True
    outstanding: dict[tuple["Host", int], int] = field(default_factory=dict)
    unnumbered: dict[int, list[tuple["Host", int]]] = field(default_factory=dict)

    def asks(self, key: tuple["Host", int], request: Request) -> None:
        """A request is sent."""
        self.outstanding[key] = len(request.body) if isinstance(request, AddEntry) else 0
        if isinstance(request, AddEntry) and not numbered(request):
            self.unnumbered.setdefault(request.entry, []).append(key)

    def asker(self, key: tuple["Host", int], request: Request) -> tuple["Host", int]:
        """The one that the answer to a request is taken for."""
        if isinstance(request, AddEntry) and not numbered(request) and (waiting := self.unnumbered.get(request.entry)):
            return waiting.pop(0)
        return key


def has_room(client: "Client", bookies: Iterable[BookieId]) -> bool:
    """Whether these have answered enough of what a process sent. See `bookkeeper.network.connection.Connections.has_room`."""
    waiting = Counter[BookieId]()
    for connection in client.connections.values():
        waiting[connection.bookie] += sum(connection.outstanding.values())
    return all(waiting[bookie] < CLIENT_BYTES_MAX for bookie in bookies)


class Client:
    """A process.

    Attributes:
        name: for the story.
        alive: it runs.
        bookies: its view of them.
        pool: connections to each bookie.
        connections: by bookie and number.
        slow: bookies to which its messages are slow.
    """

    def __init__(self, world: "World", name: str, pool: int) -> None:
        self.name = name
        self.alive = True
        self.bookies = Bookies(world.rng.randrange)
        self.pool = pool
        self.connections: dict[tuple[BookieId, int], Connection] = {}
        self.slow: set[BookieId] = set()


class Host:
    """Carries out what a machine asks for, in simulated time.

    Args:
        world: everything outside.
        client: its process.
        report: gets the effects that report something.
        dies_after: so many requests and updates later the client dies; 0: it does not.

    Attributes:
        machine: of the ledger; set once, before the first `run`.
        refused: a bookie has said that the ledger is fenced, or that it has another key.
        finished: the machine has ended.
    """

    def __init__(
        self, world: "World", client: Client, report: Callable[["Host", Effect], None], dies_after: int = 0
    ) -> None:
        self._world = world
        self.client = client
        self._report = report
        self._dies_after = dies_after
        self._wakes_at: float | None = None
        self.machine: Machine | None = None
        self.refused = False
        self.finished = False

    def run(self, effects: "Sequence[Effect]") -> None:
        """Carry out what a machine has asked for."""
        world = self._world
        for effect in effects:
            if not self.client.alive:
                return
            assert not self.finished, f"{self.client.name}: asks for something after its end: {effect}"
            if isinstance(effect, Send | UpdateMetadata) and self._dies_after:
                self._dies_after -= 1
                if not self._dies_after:
                    world.say(f"{self.client.name} dies before {effect!r:.120}")
                    world.kill(self.client)
                    return
            if isinstance(effect, Send):
                for bookie in effect.bookies:
                    world.send(self, bookie, effect.number, effect.request)
            elif isinstance(effect, UpdateMetadata):
                world.update(self, effect.metadata, effect.version)
            elif isinstance(effect, ReadMetadata):
                world.read_metadata(self)
            else:
                self._report(self, effect)
        self.set_alarm()

    def set_alarm(self) -> None:
        """Come back when the machine wants it."""
        assert self.machine is not None
        wake_at = self.machine.wake_at
        if wake_at is None or (self._wakes_at is not None and self._world.now < self._wakes_at <= wake_at):
            return
        self._wakes_at = wake_at
        self._world.at(wake_at, self._tick)

    def _tick(self) -> None:
        if self.client.alive and self.machine is not None:
            self._wakes_at = None
            self.run(self.machine.tick(self._world.now))

    def answered(self, bookie: BookieId, number: int, response: Response, session: int) -> None:
        """A bookie's answer arrives."""
        if self.client.alive and self.machine is not None:
            if isinstance(response, EntryAdded) and response.code in (Code.FENCED, Code.UNAUTHORISED):
                self.refused = True
                well = response.code is not Code.FENCED or not isinstance(self.machine, LedgerRecovery)
                assert well, f"{self.client.name}: a recovery takes the refusal of the writer for its own"
            self.run(self.machine.answered(bookie, number, response, self._world.now, session))

    def failed(self, bookie: BookieId, number: int) -> None:
        """No answer will come."""
        if self.client.alive and self.machine is not None:
            self.run(self.machine.failed(bookie, number, self._world.now))

    def written(self, version: int) -> None:
        """An update was done."""
        if self.client.alive and isinstance(self.machine, LedgerWriter | LedgerRecovery):
            self.run(self.machine.metadata_written(version, self._world.now))

    def read(self, versioned: "Versioned") -> None:
        """Metadata were read."""
        if self.client.alive and self.machine is not None:
            self.run(self.machine.metadata_read(versioned, self._world.now))
