"""Reads markers: checks a marker of the log, and merges its part for each subscription into the states here.

No marker, however wrong, can damage the states; an invalid one is counted, and logged once. The machine reads the `Outcome`
and decides what a merge leads to: a change of the cursor, a relay to another cluster.
"""

from collections.abc import Mapping
from typing import NamedTuple

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import LEDGER_BELIEVED_MAX, LEDGER_MAX, OriginKey
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import Merged, Reported, SubscriptionState, marks_of
from magnetar.replication.acked_sets.topic_state import TopicState
from magnetar.storage.entries import StoredEntry
from magnetar.wire.acksets import (
    INDEX_MAX,
    AckedSet,
    AckedSetsMarker,
    Epoch,
    Indexes,
    StateRequest,
    believable,
)
from magnetar.wire.markers import SNAPSHOT_KINDS, parse_marker


class Outcome(NamedTuple):
    """The change that one part of a marker made.

    Attributes:
        subscription: whose part it is.
        writer: the cluster that wrote the marker.
        state: the state after the merge.
        merged: the change.
        fresh: the subscription was not known here before.
    """

    subscription: str
    writer: str
    state: SubscriptionState
    merged: Merged
    fresh: bool


class MarkerReader:
    """Reads the markers of one topic.

    Args:
        topic: what is known of the topic; its states are changed.

    Attributes:
        received_ms: when a marker of a cluster with this subscription last came: (subscription, cluster) -> time.
    """

    def __init__(self, topic: TopicState) -> None:
        self._topic, self._host, self._notices = topic, topic.host, topic.notices
        self.received_ms: dict[tuple[str, str], int] = {}

    # --------------------------------------------------------------------------------------------------------- a marker

    def parse(self, entry: StoredEntry) -> AckedSetsMarker | StateRequest | None:
        """One marker of exact mode; None for one of another kind, and for one that is not believed."""
        writer = entry.origin or self._host.cluster
        try:
            marker = parse_marker(entry.data, SNAPSHOT_KINDS)
            if not isinstance(marker, AckedSetsMarker | StateRequest):
                return None
            if marker.writer != writer:
                raise ProtocolError(f"it says that {marker.writer} wrote it")
            if isinstance(marker, AckedSetsMarker) and entry.origin:
                self._check_times(marker)
        except ProtocolError as error:
            self._notices.note_once("malformed", writer, f"marker {entry.position} from {writer} is ignored: {error}")
            return None
        if not self._topic.loading and writer not in self._topic.routing.clusters:
            self._notices.note_once(
                "unknown_cluster", writer, f"markers of {writer} are ignored: no link of this topic names it"
            )
            return None
        self._notices.count("markers_read")
        return marker

    def _check_times(self, marker: AckedSetsMarker) -> None:
        """Make sure that seeks and failovers here can be later than the times that it names.

        Raises:
            ProtocolError: they could not.
        """
        for part in marker.sets:
            if not believable(part.epoch.time_ms, self._topic.clock.time_ms):
                raise ProtocolError(f"the epoch {part.epoch} leaves no room for later ones")
            if part.fence is not None:
                state = self._topic.states.get(part.subscription)
                known_ms = 0 if state is None or state.fence is None else state.fence.time_ms
                if not believable(part.fence.time_ms, known_ms):
                    raise ProtocolError(
                        f"the failover {part.fence.time_ms}@{part.fence.cluster} leaves no room for later ones"
                    )

    def learn_marks(self, marker: AckedSetsMarker) -> None:
        """Take in the low-water marks of a marker."""
        low_water = self._topic.low_water
        # The marker is later in the log than the writer's messages below its next index: all that were to come have come.
        low_water.raise_next(marker.writer, (marker.incarnation, marker.next_index))
        for low in marker.low:
            if low.cluster != self._host.cluster:
                low_water.learn_low(low, self._host.latest_incarnation_of(low.cluster))
        low_water.learn_retained(mark for mark in marker.own if mark.cluster != self._host.cluster)

    # --------------------------------------------------------------------------------------------------- one subscription

    def merge(self, marker: AckedSetsMarker, part: AckedSet) -> Outcome | None:
        """Merge a marker's part for one subscription; None when the part is ignored."""
        topic, subscription, writer = self._topic, part.subscription, marker.writer
        if not self._is_wanted(subscription):
            return None
        self.received_ms[subscription, writer] = self._host.now_ms
        self._watch_clock(part.epoch, writer)
        reported = Reported(
            part.epoch,
            self._assigned(marker, part.acks, subscription),
            None if part.base is None else self._assigned(marker, part.base, subscription),
            topic.capped_at_present(marks_of(part.floor)),
            part.fence,
        )
        state, fresh = topic.states.get(subscription), False
        if state is None:
            state, fresh = SubscriptionState(epoch=part.epoch), True
            topic.states[subscription] = state
        elif part.epoch < state.epoch:
            self._pass_over(
                "older",
                f"{writer}/{subscription}",
                f"acknowledgements of {subscription} by {writer} in epoch {part.epoch} are ignored: "
                f"epoch {state.epoch} replaced it",
            )
        topic.cap_marks(state)
        merged = state.merge(reported, topic.needed)
        topic.note_left_out(subscription, state)
        return Outcome(subscription, writer, state, merged, fresh)

    def _is_wanted(self, subscription: str) -> bool:
        topic = self._topic
        if subscription in topic.gone:
            self._pass_over(
                "unknown_subscription",
                f"deleted {subscription}",
                f"subscription {subscription} was deleted here: acknowledgements of other clusters are ignored until a consumer "
                "subscribes again",
            )
            return False
        if subscription in topic.paused:
            topic.note_not_replicated(subscription)
            return False
        if subscription in topic.states or topic.loading:
            return True
        if self._host.cursor(subscription) is None or subscription in self._host.subscriptions():
            return True
        topic.note_not_replicated(subscription)
        return False

    def _pass_over(self, counter: str, about: str, text: str) -> None:
        """Count an ignored part, and note it as normal; parts that are only read again after a start do not count."""
        if self._topic.loading:
            self._notices.count(counter)
        else:
            self._notices.note_once(counter, about, text, "info")

    def _watch_clock(self, epoch: Epoch, writer: str) -> None:
        warning = self._topic.clock.see_epoch(epoch, self._host.now_ms)
        if warning and epoch.cluster != self._host.cluster:
            self._notices.note_once("clock_ahead", writer, warning)

    def _assigned(self, marker: AckedSetsMarker, indexes: Indexes, subscription: str) -> MessageSet:
        """Without indexes that no message has yet: a message to come would be born acknowledged."""
        messages, log = MessageSet(indexes), self._host.log
        next_indexes = {
            OriginKey(marker.writer, marker.incarnation): marker.next_index,
            OriginKey(self._host.cluster, log.incarnation): log.next_index,
        }
        for key in list(messages.origins):
            first = self._first_to_come(key, next_indexes)
            forged = messages.count_in(key, first, INDEX_MAX + 1)
            if forged:
                messages.remove_from(key, first)
                self._notices.note_once(
                    "never_assigned",
                    marker.writer,
                    f"{marker.writer} claims {forged} acknowledgements of {subscription} for messages that {key.cluster} never "
                    f"published (index {first} and above): ignored",
                )
        self._topic.leave_behind(messages)
        return messages

    def _first_to_come(self, key: OriginKey, next_indexes: Mapping[OriginKey, int]) -> int:
        """From which index on messages of one incarnation of the topic cannot have been published.

        An incarnation with a higher number than the present one may have ended: its cluster lost its disk, and its clock is slow.
        These bits may be all that is left of the incarnation: its messages may be trimmed in all other clusters, and the writer
        of the marker may never have had them. Ignoring the bits would not only lose them. A base without them says that the
        messages are not consumed, and all others would believe it (docs/design/acknowledged-sets.md#base-and-acks).
        """
        # This cluster's own topic gets an incarnation above the named one: that must leave room for ids of all its topics.
        own = key.cluster == self._host.cluster and key.incarnation != self._host.log.incarnation
        highest = LEDGER_BELIEVED_MAX if own else LEDGER_MAX
        return 0 if key.incarnation > highest else next_indexes.get(key, INDEX_MAX + 1)
