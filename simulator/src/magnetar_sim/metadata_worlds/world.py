"""Random worlds of synchronised metadata: two to four clusters around the real machine, with everything else in the world's hand.

Clusters change documents while links are cut, clocks are wrong and jump, writes fail, brokers die before they could publish,
clusters are emptied and come back, or come back from an old backup; topics need documents that others delete; rubbish
is published, and forged and ancient events, and whole values as PIP-136 does.

Checkers, after everything could flow for a while:

    convergence       every cluster shows what the log of all changes says, field by field, worked out by the dumb twin here
    no resurrection   what a cluster knew to be deleted never comes back there, not even for a while
    both survive      a field keeps the newest value that any cluster set, also if others set other fields meanwhile
    no clock for ever a change that is made after seeing another wins over it everywhere
    no echo           what is applied is not published
    nothing by half   what is refused changes nothing; a value and its stamp are stored together or not at all
    nothing destroyed a document that topics of a cluster need stays; partitions never become fewer
    deletions rest    in the end no deletion is published any more
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from magnetar.metadata.sync.documents import kind_of, parent_of, to_fields
from magnetar.metadata.sync.stamps import Stamp
from magnetar.metadata.sync.updates import BURIED_MAX, Update
from magnetar_sim.metadata_worlds.node import (
    FIELDS,
    PATHS,
    PLAIN,
    POLICIES,
    ROLE,
    SPACES,
    TENANT,
    TOPIC,
    Node,
    Op,
    wins,
)


class World:
    """Some clusters, and what happens to them.

    Args:
        seed: of the world.
        trace: what happened is appended here.
        focus: deletions of few documents, cut links and confirmations above all: for bugs that need a rare order of them.
    """

    def __init__(self, seed: int, trace: list[str] | None = None, *, focus: bool = False) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - chance for tests
        self.trace = trace
        self.now = 1_000_000
        self.ops: list[Op] = []
        self.refused = 0
        self.serial = 0
        self.focus = focus
        self.paths = PATHS[:2] if focus else PATHS
        self.names = ["a", "b", "c", "d"][: self.rng.randint(3 if focus else 2, 4)]
        # Where confirmed deletions are really forgotten no cluster may bring back what is older: links keep their order.
        self.forgetful = focus or self.rng.random() < 0.5
        self.history: list[tuple[str, bytes]] = []
        self.nodes: dict[str, Node] = {}
        for name in self.names:
            self.nodes[name] = Node(self, name)
        self.sent = {(s, d): 0 for s in self.names for d in self.names if s != d}
        self.cut: set[tuple[str, str]] = set()

    def say(self, text: str) -> None:
        """One line of the story."""
        if self.trace is not None:
            self.trace.append(f"{self.now}: {text}")

    def remember(self, node: Node, update: Update) -> None:
        """Write down what was done, for the dumb twin: whatever carries the cluster's own name is its doing."""
        for path, new in update.records.items():
            for kind, stamp in (("create", new.created), ("delete", new.deleted)):
                if stamp is not None and stamp.cluster == node.name:
                    self.ops.append(Op(kind, path, stamp))
            for name, cell in new.fields.items():
                if cell.stamp.cluster == node.name:
                    self.ops.append(Op("set", path, cell.stamp, name, cell.value))

    # ------------------------------------------------------------------------------------------------------- actions

    def pick(self) -> Node:
        """Any cluster."""
        return self.nodes[self.rng.choice(self.names)]

    def act_change(self) -> None:
        """A cluster changes a document that is there, or makes one whose parent is."""
        node, rng = self.pick(), self.rng
        path = rng.choice(self.paths)
        present = node.store.get(path)
        parent = parent_of(path)
        if parent and node.store.get(parent) is None:
            path = parent if node.store.get(parent_of(parent) or parent, b"x") else TENANT
            present, parent = node.store.get(path), parent_of(path)
            if parent and node.store.get(parent) is None:
                path, present = TENANT, node.store.get(TENANT)
        if present is not None and rng.random() < (0.6 if self.focus else 0.3):
            self._delete(node, path)
            return
        node.change(path, self._document(path, present))

    def _delete(self, node: Node, path: str) -> None:
        """As administration does it: what is not empty is not deleted."""
        if any(parent_of(one) == path and one in node.store and one != ROLE for one in PATHS):
            return
        if path in node.topics or any(parent_of(one) == path for one in node.topics):
            return
        if path == SPACES[0] and ROLE in node.store:
            node.change(ROLE, None)
        node.change(path, None)

    def _document(self, path: str, present: bytes | None) -> bytes:
        self.serial += 1
        rng = self.rng
        document: dict[str, Any] = {} if present is None else msgspec.json.decode(present) if path != ROLE else {}
        if path == TENANT:
            document = {"adminRoles": [f"r{self.serial}"], "allowedClusters": document.get("allowedClusters", ["a"])}
            if rng.random() < 0.5:
                document["allowedClusters"] = sorted(rng.sample("abcd", 2))
        elif path == ROLE:
            return msgspec.json.encode(sorted(rng.sample(("produce", "consume", "replicate"), rng.randint(1, 3))))
        elif path == TOPIC:
            document["partitions"] = min(4000, document.get("partitions", 0) + rng.randint(1, 3))
        elif path == POLICIES:
            document[rng.choice(("messageTtlInSeconds", "maxMessageSize"))] = self.serial
        else:
            self._policies(document)
        return msgspec.json.encode(document)

    def _policies(self, document: dict[str, Any]) -> None:
        rng = self.rng
        name = rng.choice(FIELDS)
        document.setdefault("replication_clusters", ["a"])
        if name == "backlog":
            kind = rng.choice(("destination_storage", "message_age"))
            document.setdefault("backlog_quota_map", {})[kind] = {
                "limitSize": self.serial,
                "limitTime": 1,
                "policy": "producer_exception",
            }
        elif rng.random() < 0.2:
            document.pop(name, None)
        else:
            document[name] = self.serial

    def act_carry(self) -> None:
        """A link brings some of what its source has published, in order."""
        pairs = [
            pair
            for pair in sorted(self.sent)
            if pair not in self.cut and self.sent[pair] < len(self.nodes[pair[0]].outbox)
        ]
        if pairs:
            pair = self.rng.choice(pairs)
            self.carry(pair, self.rng.randint(1, 4))

    def carry(self, pair: tuple[str, str], most: int) -> None:
        """A link brings so many messages."""
        source, target = (self.nodes[name] for name in pair)
        messages = source.outbox[self.sent[pair] : self.sent[pair] + most]
        self.sent[pair] += len(messages)
        target.inbox += [(source.name, message) for message in messages]
        self.history += [(source.name, message) for message in messages]

    def act_apply(self) -> None:
        """A cluster reads some of what came."""
        self.pick().apply(self.rng.randint(1, 4))

    def act_snapshot(self) -> None:
        """A cluster publishes everything."""
        self.pick().publish_snapshot()

    def act_tidy(self) -> None:
        """Timers."""
        self.pick().tidy()

    def act_crash(self) -> None:
        """A broker dies and starts."""
        self.pick().crash()

    def act_tick(self) -> None:
        """Time passes."""
        self.now += self.rng.randint(0, 8)

    def act_jump(self) -> None:
        """An operator, or NTP, sets a clock."""
        self.pick().skew = self.rng.choice((0, -40, 30, 90, 400, 900))

    def act_cut(self) -> None:
        """A link is cut, or mended; in a focused world all that lead to one cluster."""
        if self.focus:
            away = self.rng.choice(self.names)
            self.cut = set() if self.cut else {pair for pair in self.sent if pair[1] == away}
            return
        self.cut ^= {self.rng.choice(sorted(self.sent))}

    def act_topics(self) -> None:
        """Topics come into use, or are deleted by name."""
        node = self.pick()
        if node.topics:
            node.needed_no_more()
        else:
            node.topics |= {path for path in (*SPACES, TOPIC) if path in node.store and self.rng.random() < 0.5}

    def act_rubbish(self) -> None:
        """Bytes that are no event, forged ones, damaged ones."""
        node, rng = self.pick(), self.rng
        origin, data = rng.choice(self.history) if self.history else ("a", b"{}")
        kind = rng.randrange(5)
        if kind == 0:
            data = rng.randbytes(30)
        elif kind == 1:
            data = data[: rng.randint(0, len(data) - 1)]
        elif kind == 2:
            origin = rng.choice([name for name in self.names if name != origin])
        elif kind == 3:
            data = data.replace(b'"cluster":"', b'"cluster":"x')
        else:
            data = b'{"path":"/admin/policies/t/n","value":{"message_ttl_in_seconds":-5},'
            data += b'"lastUpdatedTimestamp":5,"sourceCluster":"p"}'
        node.inbox.append((origin, data))

    def act_replay(self) -> None:
        """An event of long ago comes again."""
        if self.history and not self.forgetful:
            self.pick().inbox.append(self.rng.choice(self.history))

    def act_plain(self) -> None:
        """A whole value of a cluster that knows nothing of fields."""
        time_ms, node = self.now + self.rng.choice((0, -40, 30)), self.pick()
        path = SPACES[1]
        stamp = Stamp(time_ms * 1000, PLAIN)
        if self.forgetful and any(op.path == path and op.kind == "delete" and wins(op.stamp, stamp) for op in self.ops):
            # It confirms no deletion, so that one that is forgotten may be newer than what it says now.
            return
        if self.rng.random() < 0.3:
            content: dict[str, Any] = {"value": None, "type": "Deleted"}
            self.ops.append(Op("delete", path, stamp))
        else:
            self.serial += 1
            content = {
                "value": {"replication_clusters": ["a"], "message_ttl_in_seconds": self.serial},
                "type": "Modified",
            }
            self.ops.append(Op("create", path, stamp))
            kind = kind_of(path)
            assert kind is not None
            values = to_fields(kind, content["value"])
            for name in kind.fields:
                if name not in kind.maps:
                    self.ops.append(Op("set", path, stamp, name, values.get(name)))
        event = {"path": "/admin/policies/t/m", "lastUpdatedTimestamp": time_ms, "sourceCluster": PLAIN, **content}
        node.inbox.append((node.name, msgspec.json.encode(event)))
        self.say(f"{node.name} gets a whole value of {PLAIN}: {content}")

    def act_wipe(self) -> None:
        """A cluster loses everything; what it had published has arrived before."""
        node = self.pick()
        # Where deletions are really forgotten, a new life whose clock is behind its old one could make again what its old life
        # deleted, with an older stamp: no cluster would know better.
        if node.topics or self.forgetful or not self._drain(node):
            return
        self.say(f"{node.name} is emptied")
        node.store, node.inbox, node.outbox = {}, [], []
        for other in self.names:
            if other != node.name:
                self.sent[node.name, other] = 0
                self.sent[other, node.name] = 0
        node.backup, node.dead, node.early = None, {}, []
        node.start()

    def act_backup(self) -> None:
        """A copy of the store is made, or put in place of the store: years later, as it were."""
        node = self.pick()
        if self.forgetful or node.topics:
            return
        if node.backup is None:
            node.backup = dict(node.store)
            return
        if not self._drain(node):
            return
        self.say(f"{node.name} comes back from a backup")
        node.store, node.backup = {**node.backup, "cursor": str(len(node.inbox)).encode()}, None
        node.dead, node.early = {}, []
        node.start()

    def _drain(self, node: Node) -> bool:
        """All that a cluster knows is with the others; whether it is (what waits for its clock no other cluster publishes)."""
        while node.cursor < len(node.inbox):
            node.apply(len(node.inbox))
        node.release()
        if node.machine.ahead:
            return False
        node.publish_snapshot()
        for other in self.names:
            if other != node.name:
                self.carry((node.name, other), len(node.outbox))
        return True

    ACTIONS: Final = (
        (10, act_change), (12, act_carry), (12, act_apply), (1.5, act_snapshot), (4, act_tick), (2, act_tidy), (0.6, act_crash),
        (0.3, act_jump), (0.7, act_cut), (0.6, act_topics), (0.4, act_rubbish), (0.4, act_replay), (0.3, act_plain),
        (0.15, act_wipe), (0.15, act_backup),
    )  # fmt: skip

    # A document that was deleted has to rest for a while, and the others have to say that they know.
    FOCUSED: Final[Mapping[Callable[["World"], None], float]] = {
        act_change: 0.2, act_snapshot: 6, act_tidy: 4, act_cut: 2, act_topics: 0, act_wipe: 0, act_backup: 0, act_jump: 0,
    }  # fmt: skip

    # --------------------------------------------------------------------------------------------------------- the end

    def run(self, steps: int) -> None:
        """Live, then let everything flow, then check."""
        weights = [weight * (self.FOCUSED.get(act, 1) if self.focus else 1) for weight, act in self.ACTIONS]
        acts: list[Callable[[World], None]] = [act for _, act in self.ACTIONS]
        for act in self.rng.choices(acts, weights, k=steps):
            act(self)
        self.cut.clear()
        self.forgetful = False
        for node in self.nodes.values():
            node.machine.buried_max = BURIED_MAX
        self.flow()
        self.check()
        self.check_last_word()

    def flow(self, rounds: int = 5) -> None:
        """Clocks catch up, links carry everything, all clusters publish everything."""
        for number in range(rounds):
            if number >= 2 and self._quiet():
                break
            self.now += 2_000
            for name in self.names:
                self.nodes[name].release()
            for name in self.names:
                self.nodes[name].publish_snapshot()
            for pair in sorted(self.sent):
                self.carry(pair, len(self.nodes[pair[0]].outbox))
            for name in self.names:
                node = self.nodes[name]
                while node.cursor < len(node.inbox):
                    node.apply(50)
                node.release()
                node.commit(node.machine.collect(), allowed_to_fail=False)

    def _quiet(self) -> bool:
        """Whether another round would change anything."""
        machines = [node.machine for node in self.nodes.values()]
        same = len({machine.digest for machine in machines}) == 1
        return same and not any(machine.ahead or machine.dead for machine in machines)

    def truth(self, path: str) -> dict[str, bytes] | None:
        """What the log of all changes says of a document; None: it does not exist."""
        kind = kind_of(path)
        assert kind is not None
        created = deleted = None
        for op in self.ops:
            if op.path == path and op.kind == "create" and wins(op.stamp, created):
                created = op.stamp
            elif op.path == path and op.kind == "delete" and wins(op.stamp, deleted):
                deleted = op.stamp
        newest: dict[str, Op] = {}
        for op in self.ops:
            if op.path == path and op.kind == "set" and wins(op.stamp, deleted):
                old = newest.get(op.field)
                if (
                    old is None
                    or wins(op.stamp, old.stamp)
                    or (op.stamp == old.stamp and (op.value or b"") > (old.value or b""))
                ):
                    newest[op.field] = op
        values = {name: op.value for name, op in newest.items() if op.value is not None}
        if kind.implicit:
            return values or None
        return values if created is not None and wins(created, deleted) else None

    def check(self) -> None:
        """See the top."""
        for path in PATHS:
            wanted = self.truth(path)
            for name in self.names:
                machine = self.nodes[name].machine
                view = machine.view(path)
                got = (
                    {field: msgspec.json.encode(value, order="deterministic") for field, (value, _) in view.items()}
                    if view
                    else None
                )
                assert got == (wanted or None), f"{path}: {name} has {got}, the changes say {wanted}"
        digests = {node.machine.digest for node in self.nodes.values()}
        assert len(digests) == 1, "the same documents, and different digests"
        for node in self.nodes.values():
            node.machine.validate()
            assert not node.machine.ahead, f"{node.name}: still waits for its clock: {sorted(node.machine.ahead)}"
            assert not node.machine.dead or node.machine.kept(), f"{node.name}: deletions do not rest"
            self.check_documents(node)

    def check_documents(self, node: Node) -> None:
        """What is in force follows from the records."""
        for path in PATHS:
            parent = parent_of(path)
            exists = self.truth(path) is not None
            seen = (
                exists
                and (not parent or parent in node.store)
                and (path not in SPACES or self.truth(TENANT) is not None)
            )
            assert (path in node.store) >= seen, f"{node.name}: {path} exists and is not seen"
            kept = node.machine.kept()
            assert path not in node.store or seen or path in kept, f"{node.name}: {path} is seen and does not exist"

    def check_last_word(self) -> None:
        """Whatever the clocks did: who changes something now has the last word."""
        for name in self.names:
            self.nodes[name].skew = 0
        self.now += 5_000
        node = self.pick()
        for _ in range(20):
            if node.change(TENANT, self._document(TENANT, node.store.get(TENANT))):
                break
        else:
            raise AssertionError(f"{node.name} cannot change anything although its clock is right")
        wanted = self.truth(TENANT)
        self.flow(3)
        shown = {one.name: one.store.get(TENANT) for one in self.nodes.values()}
        assert len(set(shown.values())) == 1, f"the last word is not everywhere: {shown}"
        assert wanted == self.truth(TENANT), "the last word did not win"
