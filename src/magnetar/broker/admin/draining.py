"""Whether a cluster can be switched off with everything delivered to others: the condition that `magnetar drain` waits
for.

    links          every entry that a link takes is confirmed by its destination's disk (C has passed it)
    subscriptions  acknowledgements made here are written into their topics; links then carry them as entries
    writes         nothing is in flight to the disk
    producers      no client is connected that could publish the next message

Read-only: draining changes nothing, and a cluster that is safe now stays safe until a client publishes or acknowledges.
"""

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from magnetar.broker.context import BrokerContext
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.links.links import Links
from magnetar.broker.links.states import LinkState, LinkTopicState
from magnetar.broker.topics.topic import Topic
from magnetar.core.hints import command
from magnetar.core.ids import NONE, Position
from magnetar.replication.failover import Phase
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.policy import MAY_GO, local_messages
from magnetar.replication.link.source import LinkSource
from magnetar.storage.topiclog import TopicLog

LISTED_MAX: Final = 100
"""A ceiling on what is named of each kind: an answer of a page; the counts are complete."""


class DrainTopic(TypedDict):
    """A topic that a link has not delivered."""

    topic: str
    messages: int
    """Not confirmed by the destination; an upper bound, as some may not be for it."""
    entries: int
    """The same, counted as entries, with the markers of replicated subscriptions."""
    blocked: str
    """See `broker.links.states.LinkTopicState`."""
    reason: str
    """Why it is not delivered yet, in one line."""


class DrainLink(TypedDict):
    """One outgoing link."""

    target: str
    state: str
    """See `broker.links.states.LinkState`."""
    detail: str
    topics_linked: int
    """Topics whose entries the link takes."""
    topics_waiting: int
    messages: int
    entries: int
    topics: list[DrainTopic]
    """The first of those that wait, the largest first."""


class DrainState(TypedDict):
    """The reasons why a cluster cannot be switched off; `safe` if there are none."""

    cluster: str
    uuid: str
    safe: bool
    links: list[DrainLink]
    producers_connected: int
    producers: list[dict[str, str]]
    """`topic`, `producer`, `address` of the first."""
    writes: int
    """Appends on their way to the disk."""
    subscriptions_waiting: int
    subscriptions: list[dict[str, str]]
    """`topic`, `subscription`, `reason` of the first whose state is not written."""
    only_here_topics: int
    only_here_messages: int
    """Published here, retained, and carried by no link: they cannot be read while this cluster is off."""
    unlinked: dict[str, list[str]]
    """See `broker.admin.links.LinkControl.status`."""


def entries_to_go(log: TopicLog, after: Position, up_to: Position) -> int:
    """Entries with after < position <= up_to that a link may take, by their kind."""
    total = 0
    for ledger in log.ledger_infos():
        if not after.ledger <= ledger.ledger <= up_to.ledger:
            continue
        first = max(after.entry + 1, 0) if ledger.ledger == after.ledger else 0
        end = min(up_to.entry + 1, ledger.entries) if ledger.ledger == up_to.ledger else ledger.entries
        total += ledger.flags[first:end].translate(MAY_GO).count(1) if first < end else 0
    return total


class Drain:
    """Finds the reasons why a cluster cannot be switched off.

    Args:
        context: the broker's context.
        topics: every persistent topic, by name.
        links: the broker's links.
        fences: planned failovers.
    """

    def __init__(self, context: BrokerContext, topics: Mapping[str, Topic], links: Links, fences: Fences) -> None:
        self._context, self._topics, self._links, self._fences = context, topics, links, fences

    def describe(self) -> DrainState:
        """Look at everything now."""
        links = [self._link(source) for source in self._links.sources.values() if source.linked]
        producers = [
            {"topic": topic.text, "producer": producer.name, "address": producer.address}
            for topic in self._topics.values()
            for producer in topic.producers.live.values()
        ]
        waiting = self._unwritten()
        writes = sum(topic.in_flight for topic in self._topics.values())
        topics, messages = self._only_here()
        return DrainState(
            cluster=self._context.cluster,
            uuid=self._context.uuid,
            safe=not (producers or waiting or writes or any(link["topics_waiting"] for link in links)),
            links=links,
            producers_connected=len(producers),
            producers=producers[:LISTED_MAX],
            writes=writes,
            subscriptions_waiting=len(waiting),
            subscriptions=waiting[:LISTED_MAX],
            only_here_topics=topics,
            only_here_messages=messages,
            unlinked=self._links.reports.unlinked(),
        )

    def _link(self, source: LinkSource) -> DrainLink:
        # Thousands of topics have nothing to wait for: of these nothing is worked out.
        link, states = self._links.reports.state_alone(source), source.topics
        topics = [
            _topic(link, self._links.reports.topic_state(state, source.to), state)
            for _, state in sorted(states.items())
            if state.wanted and _waits(state)
        ]
        topics.sort(key=lambda one: (not one["blocked"], -one["messages"], one["topic"]))
        return DrainLink(
            target=link["target"],
            state=link["state"],
            detail=link["detail"],
            topics_linked=sum(state.wanted for state in states.values()),
            topics_waiting=len(topics),
            messages=sum(topic["messages"] for topic in topics),
            entries=sum(topic["entries"] for topic in topics),
            topics=topics[:LISTED_MAX],
        )

    def _unwritten(self) -> list[dict[str, str]]:
        """Replicated subscriptions that their topic does not hold yet as they are, in topics that some link takes anywhere."""
        found: list[dict[str, str]] = []
        for topic in self._topics.values():
            host = topic.replicated_subscriptions
            if host is None or not any(source.wants(topic.text) for source in self._links.sources.values()):
                continue
            for name in host.subscriptions():
                state = host.to_tell(name)
                reason = _to_tell(state) or (self._snapshot_to_pass(topic, name) if state.get("toTell") else "")
                if reason:
                    found.append({"topic": topic.text, "subscription": name, "reason": reason})
        return found

    def _snapshot_to_pass(self, topic: Topic, name: str) -> str:
        """Why snapshot mode has not reported all acknowledgements of a subscription; "" for one that a failover moved,
        with its whole state.
        """
        if self._fences.fence(topic.text, name).phase is Phase.MOVED:
            return ""
        if topic.subscriptions[name].backlog_entries():
            return (
                "snapshot mode reports acknowledgements when all earlier messages are acknowledged: consume those, or move "
                "the subscription with magnetar failover"
            )
        return "acknowledgements wait for the next snapshot"

    def _only_here(self) -> tuple[int, int]:
        """(topics, messages) that no link takes anywhere."""
        topics = messages = 0
        for topic in self._topics.values():
            if not any(source.wants(topic.text) for source in self._links.sources.values()):
                count = local_messages(topic.log, NONE, topic.log.last)
                topics, messages = topics + bool(count), messages + count
        return topics, messages


def _waits(state: LinkTopic) -> bool:
    c, last = state.cursor.c, state.log.last
    return state.rewinding is not None or (c < last and entries_to_go(state.log, c, last) > 0)


def _topic(link: LinkState, shown: LinkTopicState, state: LinkTopic) -> DrainTopic:
    c, last = state.cursor.c, state.log.last
    pair = f"{link['source']}:{link['target']}"
    if shown["blocked"]:
        reason = f"blocked: {shown['blocked']}: {shown.get('blocked_detail', '')}"
    elif link["paused"]:
        reason = f"the link is paused: {command('links', 'resume', pair)}"
    elif shown["paused"]:
        reason = f"paused: {command('links', 'resume', pair, '--topic', state.name)}"
    elif link["state"] != "up":
        reason = f"the link is {link['state']}: {link['detail']}"
    elif state.rewinding is not None:
        reason = f"{link['target']} lost data: it is being sent again"
    else:
        reason = "on its way"
    return DrainTopic(
        topic=state.name,
        messages=local_messages(state.log, c, last),
        entries=entries_to_go(state.log, c, last),
        blocked=shown["blocked"],
        reason=reason,
    )


def _to_tell(state: Mapping[str, Any]) -> str:
    """The part of a subscription's state (`marker_host.Machine.describe`) that other clusters cannot have yet; "":
    none.
    """
    if not state["ready"]:
        return "its state is being read back"
    if state.get("inFlight"):
        return "its state is being written to the disk"
    if state.get("fullStateDue"):
        return "its full state will be written"
    if state.get("unsent"):
        return f"{state['unsent']:,} acknowledgements are not written yet"
    return ""
