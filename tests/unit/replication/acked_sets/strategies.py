"""Small random sets, marks and logs, with a dumb twin: Python sets of (cluster, incarnation, index)."""

from hypothesis import strategies as st

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.message_set import MessageSet

CLUSTERS = ("a", "b", "c")
Message = tuple[str, int, int]

messages = st.tuples(st.sampled_from(CLUSTERS), st.integers(1, 2), st.integers(0, 11))
message_sets = st.frozensets(messages, max_size=20)
marks = st.dictionaries(st.sampled_from(CLUSTERS), st.tuples(st.integers(0, 3), st.integers(0, 12)))


def index_set(chosen) -> MessageSet:
    found = MessageSet()
    for cluster, incarnation, index in chosen:
        found.add_range(OriginKey(cluster, incarnation), index, index + 1)
    return found


def ids(found: MessageSet) -> set[Message]:
    found.validate()
    return {(key.cluster, key.incarnation, index) for key, bitmap in found.origins.items() for index in bitmap}
