"""Watchers of topic lists: clients that get the names of topics matching a pattern, and changes of the list (PIP-145).

A watcher is one client's request. All watchers of one pattern in one namespace share one list of names, which is
updated for every topic that is created or deleted, by any client. A role that may look up only some topics of a
namespace has a list of its own, with these.

    event                              effect
    ---------------------------------  ------------------------------------------------------------------------------------
    a client watches                   it is answered with the present list; later changes are sent
    a topic is created or deleted      it is added to the window of each matching list; after `TELL_MS` windows are sent
    a window is sent                   one UPDATE to every watcher that the list had when the window was closed
    a socket accepts no more           its changes are merged, and sent when it accepts more
    permissions change                 the watcher's list is looked up again; the difference is sent

Changes are sent in their order, and after the answer with the list that they change. A topic that is deleted and
created again within one window is sent as both: clients first leave the old one, then open the new one. Large work is
done in steps, so that no client waits for a thousand watchers of a hundred thousand topics. A list is only begun when
as much time has passed as the one before it took, with connections in turn, so that a client that keeps requesting new
ones has to wait.
"""

import struct
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.security.access import Access
from magnetar.broker.security.authorization import Operation
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.patterns import PatternNotValid, TopicPattern
from magnetar.wire import commands

TELL_MS: Final = 100
"""The time for which changes are collected: a program that creates a thousand topics causes ten updates per second, and
users do not notice the delay.
"""

UPDATE_BYTES_MAX: Final = 1024 * 1024
"""A ceiling on one update, below every client's limit on a frame: larger ones are sent in parts."""

NAMES_MAX: Final = 10_000_000
"""A ceiling on the names in all lists together, when one is made: 80 MB. A broker has 100,000 topics (`topics_max`)."""

TURN_STEPS: Final = 5_000
"""Names that are looked at in one event, or what takes as long: some 5 ms."""

TELLING_STEPS: Final = 20
"""The steps of sending an update to one watcher, in addition to the names."""

STEPS_PER_MS: Final = 1_000
"""The steps per ms of making lists: a step is about a microsecond."""

INSTRUCTIONS_MAX: Final = 100_000
"""A ceiling on the programs of all watched patterns together: a new topic is matched with all of its namespace at once,
in 4 us per pattern and at most 0.4 us per instruction. A typical pattern has a hundred.
"""

REMAKING_STEPS_MAX: Final = 200_000
"""The most steps of making a list again after permissions changed. This is done in one go, because the client must not
get a name in between. A client whose list would take longer is disconnected; it reconnects and gets a new list in
steps.
"""

REFUSED_STEPS: Final = 2_000
"""The most steps that a refused pattern may have taken."""

PASSING_STEP: Final = 10
"""The number of topics of other namespaces that are skipped in one step."""

ASKING_STEPS: Final = 4
"""The steps for each topic to check whether a role may look it up."""

_Key = tuple[str, int, int]
"""The pattern; and for a list that is one watcher's own its connection and number, else zeros."""


def topics_hash(names: Iterable[str]) -> str:
    """The hash by which clients compare lists: CRC32C of the names in Java's order, with commas, its lowest byte first.

    Java compares the halves of characters above U+FFFF separately; so does the sorting here.
    """
    ordered = sorted(names)
    text = ",".join(ordered)
    if not text.isascii():
        text = ",".join(sorted(ordered, key=lambda name: name.encode("utf-16-be")))
    return struct.pack("<I", crc32c(text.encode())).hex()


@dataclass(slots=True)
class Changes:
    """The changes of a list.

    Attributes:
        gone: names sent before whose topics have ended.
        new: present names that were not sent; a name that was sent, ended, and exists again is in both.
    """

    gone: set[str] = field(default_factory=set)
    new: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.gone or self.new)

    def ended(self, name: str) -> None:
        """A topic is gone; one that was never sent needs no change."""
        if name in self.new:
            self.new.discard(name)
        else:
            self.gone.add(name)

    def came(self, name: str) -> None:
        """There is a topic."""
        self.new.add(name)

    def merged(self, later: "Changes") -> "Changes":
        """These, and others that came later."""
        made = Changes(set(self.gone), set(self.new))
        for name in later.gone:
            made.ended(name)
        for name in later.new:
            made.came(name)
        return made

    def parts(self, bytes_max: int) -> list[tuple[list[str], list[str]]]:
        """(new, gone) for as many updates as needed; the gone ones first."""
        made: list[tuple[list[str], list[str]]] = [([], [])]
        size = 0
        for place, names in ((1, self.gone), (0, self.new)):
            for name in sorted(names):
                length = (len(name) if name.isascii() else len(name.encode())) + 4
                if size and size + length > bytes_max:
                    made.append(([], []))
                    size = 0
                made[-1][place].append(name)
                size += length
        return made


class TopicList:
    """The names of the topics of a namespace that match a pattern.

    Args:
        namespace, pattern: its namespace and pattern.
        owner: the watcher whose own list it is, with the topics that its role may look up; None: all topics.

    Attributes:
        names: sorted.
        watchers: its watchers.
        window: changes that are not sent yet.
    """

    __slots__ = (
        "_beginning",
        "_hash",
        "key",
        "names",
        "namespace",
        "owner",
        "pattern",
        "watchers",
        "window",
    )

    def __init__(self, namespace: NamespaceName, pattern: TopicPattern, key: _Key, owner: Connection | None) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.key = key
        self.owner = owner
        self.names: list[str] = []
        self.watchers: dict[Watcher, None] = {}
        self.window = Changes()
        self._beginning = f"{namespace}/"
        self._hash = ""

    def takes(self, name: TopicName) -> bool:
        """Whether a topic belongs into it. A partition does by the name of the topic it is of."""
        local = name.local if "-partition-" not in name.local else name.base.local
        if not self.pattern.matches(self._beginning + local):
            return False
        if self.owner is None:
            return True
        return self.owner.allowed(Operation.LOOK, name)

    def has(self, text: str) -> bool:
        """Whether it holds a name."""
        at = bisect_left(self.names, text)
        return at < len(self.names) and self.names[at] == text

    def put(self, text: str) -> None:
        """A topic is there."""
        insort(self.names, text)
        self._hash = ""
        self.window.came(text)

    def drop(self, text: str) -> None:
        """A topic was deleted."""
        del self.names[bisect_left(self.names, text)]
        self._hash = ""
        self.window.ended(text)

    def fill(self, names: Iterable[str]) -> None:
        """Set the first names, which count as not sent."""
        self.names = sorted(names)
        self._hash = ""

    @property
    def hash(self) -> str:
        """The hash of the names."""
        self._hash = self._hash or topics_hash(self.names)
        return self._hash


class Watcher:
    """One client's subscription to a list.

    Args:
        connection: the client's connection.
        number: the client's watcher id, which updates carry.
        found: its list.

    Attributes:
        pending: changes to send when its socket accepts more; None: none.
        hash: hash of the list after these.
    """

    __slots__ = ("closed", "connection", "found", "hash", "number", "pending")

    def __init__(self, connection: Connection, number: int, found: TopicList) -> None:
        self.connection = connection
        self.number = number
        self.found = found
        self.pending: Changes | None = None
        self.hash = ""
        self.closed = False


@dataclass(slots=True, eq=False)
class Asked:
    """A client's request to watch, which may have to wait.

    Attributes:
        connection, number: the client's connection and watcher id.
        namespace, pattern: the namespace and pattern to watch.
        then: called once with this request and the watcher or the error, unless it is closed before.
        closed: the client has cancelled it, or is gone.
        again: permissions changed since it was begun.
    """

    connection: Connection
    number: int
    namespace: NamespaceName
    pattern: str
    then: Callable[["Asked", Watcher | None, BrokerError | None], None]
    closed: bool = False
    again: bool = False


@dataclass(slots=True)
class _Making:
    """A list that is being made.

    Attributes:
        asked: the request.
        found: the resulting list.
        topics, at: topics of the namespace at the beginning, and the number of those that were checked.
        names: the matching names.
        late: topics created (true) or deleted in the meantime.
        steps: number of steps so far.
    """

    asked: Asked
    found: TopicList | None = None
    topics: list[Topic] = field(default_factory=list)
    at: int = 0
    names: set[str] = field(default_factory=set)
    late: dict[str, bool] = field(default_factory=dict)
    steps: int = 0

    def notice(self, topic: Topic, there: bool) -> None:
        """A topic came or ended."""
        found = self.found
        if found is not None and topic.name.namespace_name == found.namespace:
            self.late[topic.text] = there and found.takes(topic.name)


@dataclass(slots=True)
class _Round:
    """An update that is sent to some watchers, one after the other.

    Attributes:
        changes, hash: the update; without a hash only their pending changes are sent.
        left: the watchers that have not got it yet.
        parts: `changes`, as updates.
    """

    changes: Changes
    hash: str
    left: deque[Watcher]
    parts: list[tuple[list[str], list[str]]]


class TopicWatches(TopicPart):
    """All watched lists of a broker.

    Args:
        context: the broker's context.
        topics: the loaded topics, by full name.
        access: authorization of lookups.

    Attributes:
        count: number of watchers.
        updates: number of updates sent since the start.
    """

    def __init__(self, context: BrokerContext, topics: Mapping[str, Topic], access: Access) -> None:
        self._context = context
        self._outbox = context.outbox
        self._topics = topics
        self._access = access
        self._lists: dict[NamespaceName, dict[_Key, TopicList]] = {}
        self._rounds: deque[_Round] = deque()
        self._changed: dict[TopicList, None] = {}
        self._doubted: dict[Watcher, None] = {}
        self._asked: dict[int, deque[Asked]] = {}
        self._making: _Making | None = None
        self._free_ms = 0
        self._wakes_ms: int | None = None
        self._update_bytes_max = min(UPDATE_BYTES_MAX, context.config.message_bytes_max)
        self.count = 0
        self.updates = 0

    @property
    def patterns(self) -> int:
        """The number of lists."""
        return sum(map(len, self._lists.values()))

    @property
    def instructions(self) -> int:
        """The size of their patterns together."""
        return sum(found.pattern.instructions for lists in self._lists.values() for found in lists.values())

    # ------------------------------------------------------------------------------------------------------- watching

    def ask(self, asked: Asked) -> None:
        """Begin to watch the topics of a namespace that match a pattern; `Watcher.found` is the first list.

        The client is answered at once, or when its turn comes. The request is refused (BrokerError) if the pattern is
        not supported, if the client may look up nothing there, or if there are too many lists.
        """
        waiting = self._asked.get(asked.connection.number)
        first = waiting is None and (self._making is None or self._making.asked.connection is not asked.connection)
        idle = not self._asked and self._making is None and self._outbox.now_ms >= self._free_ms
        if first and (idle or self._is_there(asked)):
            self._begin(asked)
            return
        if waiting is None:
            waiting = self._asked[asked.connection.number] = deque()
        waiting.append(asked)
        self._wake(max(self._free_ms, self._outbox.now_ms))

    def _is_there(self, asked: Asked) -> bool:
        """Whether the request is for the shared list, and there is one."""
        there = (asked.pattern, 0, 0) in self._lists.get(asked.namespace, {})
        return there and self._sees_all(asked.connection, asked.namespace)

    def _answer_next(self) -> int:
        """Answer the first request of the connection that has waited longest; how many steps that took."""
        number = next(iter(self._asked))
        waiting = self._asked.pop(number)
        asked = waiting.popleft()
        if waiting:
            self._asked[number] = waiting
        return 1 if asked.closed else self._begin(asked)

    def _begin(self, asked: Asked) -> int:
        """Answer with a list that is there, or begin to make it; how many steps that took."""
        asked.again = False
        making = _Making(asked)
        try:
            found = self._found(making)
        except BrokerError as error:
            self._spent(making)
            asked.then(asked, None, error)
            return 1 + making.steps
        if found is not None:
            self._let_in(asked, found)
            return TELLING_STEPS
        self._making = making
        before = making.steps
        self._go_on(TURN_STEPS)
        return 1 + before

    def _found(self, making: "_Making") -> TopicList | None:
        """The requested list, if there is one; else it has to be made.

        Raises:
            BrokerError: it is refused.
        """
        connection, namespace, text = making.asked.connection, making.asked.namespace, making.asked.pattern
        if len(text.encode()) > self._context.config.topic_pattern_bytes_max:
            most = self._context.config.topic_pattern_bytes_max
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"the pattern is longer than {most} bytes (topic_pattern_bytes_max)"
            )
        everything = self._sees_all(connection, namespace)
        if not everything:
            # As in a request for a list: a client that may look up single topics sees these, one that may look up none
            # is refused.
            topics = [topic.text for topic in self._topics_of(namespace)]
            making.steps += ASKING_STEPS * len(topics)
            if not self._access.authorizer.visible(connection.identity, topics):
                connection.check(Operation.LOOK, namespace)
        key: _Key = (text, 0, 0) if everything else (text, connection.number, making.asked.number + 1)
        found = self._lists.get(namespace, {}).get(key)
        if found is not None:
            if found.owner is not None:  # asked for once more, maybe just after permissions changed
                for watcher in [one for one in found.watchers if one in self._doubted]:
                    self._look_again(watcher)
            return found
        most = self._context.config.topic_patterns_max
        if self.patterns >= most:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"{most} patterns are watched, the most allowed (topic_patterns_max)"
            )
        try:
            pattern = TopicPattern(text)
        except PatternNotValid as error:
            making.steps += REFUSED_STEPS
            # Not InvalidTopicName: Java's client would repeat the request for half a minute before it continues without
            # it.
            raise BrokerError(ErrorCode.NOT_ALLOWED, str(error)) from error
        making.steps += pattern.making_steps
        if pattern.instructions + self.instructions > INSTRUCTIONS_MAX:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"the patterns that are watched have {INSTRUCTIONS_MAX} instructions together, the most allowed",
            )
        making.found = TopicList(namespace, pattern, key, None if everything else connection)
        making.topics = self._topics_of(namespace)
        making.steps += len(self._topics) // PASSING_STEP
        return None

    def _go_on(self, steps: int) -> int:
        """Continue with the list that is being made; returns the number of steps."""
        making = self._making
        assert making is not None, "nothing is being made"
        found = making.found
        assert found is not None, "something is being made, and not said what"
        if making.asked.closed:
            self._making = None
            self._spent(making)
            return 1
        each = found.pattern.matching_steps
        end = making.at + max(1, steps // each)
        portion = making.topics[making.at : end]
        making.names.update(topic.text for topic in portion if found.takes(topic.name))
        making.at = end
        making.steps += each * len(portion)
        if end < len(making.topics):
            self._wake(self._outbox.now_ms + 1)
        else:
            self._making = None
            self._spent(making)
            self._made(making, found)
        return 1 + each * len(portion)

    def _made(self, making: "_Making", found: TopicList) -> None:
        """A list is complete: answer the requests for it."""
        asked = making.asked
        if asked.again:
            self._asked.setdefault(asked.connection.number, deque()).appendleft(asked)
            self._wake(self._free_ms)
            return
        for text, there in making.late.items():
            (making.names.add if there else making.names.discard)(text)
        found.fill(making.names)
        names = len(found.names) + sum(len(one.names) for lists in self._lists.values() for one in lists.values())
        if names > NAMES_MAX:
            reason = f"{NAMES_MAX} names of topics are watched, the most allowed"
            asked.then(asked, None, BrokerError(ErrorCode.NOT_ALLOWED, reason))
            return
        # A change of another client's permissions may have made the same list in the meantime.
        self._let_in(asked, self._lists.get(found.namespace, {}).get(found.key, found))

    def _spent(self, making: "_Making") -> None:
        self._free_ms = max(self._free_ms, self._outbox.now_ms) - (-making.steps // STEPS_PER_MS)

    def _let_in(self, asked: Asked, found: TopicList) -> None:
        watcher = Watcher(asked.connection, asked.number, found)
        self._join(watcher, found)
        self.count += 1
        asked.then(asked, watcher, None)

    def unwatch(self, watcher: Watcher) -> None:
        """A client cancelled its watcher, or is gone."""
        if not watcher.closed:
            watcher.closed = True
            watcher.pending = None
            self.count -= 1
            self._doubted.pop(watcher, None)
            self._leave(watcher, watcher.found)

    def resume(self, watcher: Watcher) -> None:
        """A client's socket takes more again."""
        if watcher.pending is not None:
            self._tell_soon(Changes(), "", [watcher])

    def doubt(self, watcher: Watcher) -> None:
        """Permissions changed: find out which topics a client may see, before anything else is sent to it."""
        self._doubted[watcher] = None
        self._wake(self._outbox.now_ms)

    def _sees_all(self, connection: Connection, namespace: NamespaceName) -> bool:
        access = self._access
        return not access.enabled or access.authorizer.allowed(connection.identity, Operation.LOOK, namespace)

    def _matching(self, found: TopicList) -> list[str]:
        """The names that belong into a list."""
        return [topic.text for topic in self._topics_of(found.namespace) if found.takes(topic.name)]

    def _topics_of(self, namespace: NamespaceName) -> list[Topic]:
        prefix = f"persistent://{namespace}/"
        return [topic for text, topic in self._topics.items() if text.startswith(prefix)]

    def _join(self, watcher: Watcher, found: TopicList) -> None:
        """Add a watcher to a list; it knows already the changes of the list that are not sent to the others yet."""
        self._close(found)
        self._lists.setdefault(found.namespace, {})[found.key] = found
        found.watchers[watcher] = None
        watcher.found = found

    def _leave(self, watcher: Watcher, found: TopicList) -> None:
        del found.watchers[watcher]
        if not found.watchers:
            self._changed.pop(found, None)
            lists = self._lists[found.namespace]
            del lists[found.key]
            if not lists:
                del self._lists[found.namespace]

    # ------------------------------------------------------------------------------------------------------- changes

    def topic_loaded(self, topic: Topic) -> None:
        """A topic exists from now on."""
        if self._making is not None:
            self._making.notice(topic, there=True)
        name = topic.name
        for found in self._lists.get(name.namespace_name, {}).values() if self._lists else ():
            if found.takes(name) and not found.has(topic.text):
                found.put(topic.text)
                self._tell_later(found)

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone."""
        if self._making is not None:
            self._making.notice(topic, there=False)
        for found in self._lists.get(topic.name.namespace_name, {}).values() if self._lists else ():
            if found.has(topic.text):
                found.drop(topic.text)
                self._tell_later(found)

    def _tell_later(self, found: TopicList) -> None:
        if found not in self._changed:
            self._changed[found] = None
            self._wake(self._outbox.now_ms + TELL_MS)

    def _close(self, found: TopicList) -> None:
        """Close a list's window: its changes are for the present watchers."""
        self._changed.pop(found, None)
        if found.window:
            window, found.window = found.window, Changes()
            self._tell_soon(window, found.hash, found.watchers)

    def _tell_soon(self, changes: Changes, behind: str, watchers: Iterable[Watcher]) -> None:
        self._rounds.append(_Round(changes, behind, deque(watchers), changes.parts(self._update_bytes_max)))
        self._wake(self._outbox.now_ms)

    # --------------------------------------------------------------------------------------------------------- turns

    def _wake(self, at_ms: int) -> None:
        if self._wakes_ms is None or at_ms < self._wakes_ms:
            self._wakes_ms = at_ms
            self._context.timer(at_ms, self._turn)

    def _turn(self, now_ms: int) -> None:
        """Do what waits, as much of it as one event may take."""
        if self._wakes_ms is None or now_ms < self._wakes_ms:
            return  # a timer that an earlier one made needless
        self._wakes_ms = None
        steps = TURN_STEPS
        while steps > 0:
            if self._doubted:
                steps -= self._look_again(next(iter(self._doubted)))
            elif self._rounds:
                steps -= self._tell_one(self._rounds[0])
            elif self._changed:
                found = next(iter(self._changed))
                steps -= 1 + len(found.names) // TELLING_STEPS
                self._close(found)
            elif self._making is not None:
                steps -= self._go_on(steps)
            elif self._asked and now_ms >= self._free_ms:
                steps -= self._answer_next()
            else:
                break
        if self._doubted or self._rounds or self._changed or self._making is not None:
            self._wake(now_ms + 1)
        elif self._asked:
            self._wake(max(self._free_ms, now_ms + 1))

    def _tell_one(self, update: _Round) -> int:
        """Send the update to the next watcher; returns the number of steps."""
        if not update.left:
            self._rounds.popleft()
            return 1
        watcher = update.left.popleft()
        if watcher.closed:
            return 1
        watcher.hash = update.hash or watcher.hash
        if watcher.pending is None and watcher.connection.writable:
            self._send(watcher, update.parts)
            return TELLING_STEPS + len(update.changes.new) + len(update.changes.gone)
        changes = (watcher.pending or Changes()).merged(update.changes)
        if watcher.connection.writable:
            watcher.pending = None
            self._send(watcher, changes.parts(self._update_bytes_max))
        else:
            watcher.pending = changes or None
        return TELLING_STEPS + len(changes.new) + len(changes.gone)

    def _send(self, watcher: Watcher, parts: list[tuple[list[str], list[str]]]) -> None:
        for new, gone in parts:
            if new or gone:
                self.updates += 1
                watcher.connection.send(commands.watch_topic_update(watcher.number, new, gone, watcher.hash))

    def _look_again(self, watcher: Watcher) -> int:
        """Find out which topics a client may see now; returns the number of steps."""
        del self._doubted[watcher]
        before, connection = watcher.found, watcher.connection
        everything = self._sees_all(connection, before.namespace)
        if everything and before.owner is None:
            return 1
        if before.pattern.matching_steps * len(self._topics_of(before.namespace)) > REMAKING_STEPS_MAX:
            connection.close(
                "its list of topics takes too long to be built again at once after a change of permissions"
            )
            return 1
        if not everything and before.owner is not None:
            seen = set(self._matching(before))
            for text in [text for text in before.names if text not in seen]:
                before.drop(text)
            for text in sorted(seen.difference(before.names)):
                before.put(text)
            if before.window:
                self._tell_later(before)
        else:
            self._move(watcher, everything=everything)
        return len(self._topics) or 1

    def _move(self, watcher: Watcher, *, everything: bool) -> None:
        """Give a watcher another list, its own or the shared one, and send it the difference."""
        before, connection = watcher.found, watcher.connection
        key: _Key = (before.key[0], 0, 0) if everything else (before.key[0], connection.number, watcher.number + 1)
        # Without a check of limits: a client must not keep seeing forbidden names because there are too many lists.
        found = self._lists[before.namespace].get(key)
        if found is None:
            found = TopicList(before.namespace, before.pattern, key, None if everything else connection)
            found.fill(self._matching(found))
        known = set(before.names) - before.window.new | before.window.gone
        names = set(found.names)
        self._tell_soon(Changes(known - names, names - known), found.hash, [watcher])
        self._join(watcher, found)
        self._leave(watcher, before)

    # ------------------------------------------------------------------------------------------------------ checking

    def validate(self) -> None:
        """Check what must hold after every event."""
        count = 0
        for namespace, lists in self._lists.items():
            assert lists, "a namespace without lists"
            for key, found in lists.items():
                count += len(found.watchers)
                assert (found.namespace, found.key) == (namespace, key), "a list in another's place"
                assert found.watchers, "a list that nobody watches"
                assert not found.window or found in self._changed, "changes that nobody will be told of"
                assert found.names == sorted(set(found.names)), "names twice, or not in order"
                if found.owner is None:
                    assert found.names == sorted(self._matching(found)), "a list that is not what is there"
                for watcher in found.watchers:
                    assert watcher.found is found, "a watcher of another list"
                    assert not watcher.closed, "a closed watcher"
        assert count == self.count, "watchers that are not counted"
        waits = self._rounds or self._changed or self._doubted or self._asked or self._making is not None
        assert not waits or self._wakes_ms is not None, "what waits is never looked at"
