"""Former names of topics, under which the log has their older ledgers: the names before an adoption, see
`broker.catalog.adoption`.
"""

from collections.abc import Mapping

from magnetar.core.ids import NONE
from magnetar.metadata.topic_records import TOPIC_PREFIX, TopicRecord
from magnetar.storage.topiclog import RecoveredTopic

_FIELD = b'"stored_as"'


def former_names(stored: Mapping[str, bytes]) -> dict[tuple[str, int], str]:
    """(Former name, incarnation) -> the name that the topic has now.

    Raises:
        StorageError: a record is damaged.
    """
    found = {}
    for key, data in stored.items():
        # Nearly no record has the field: the bytes say so without being taken apart.
        if key.startswith(TOPIC_PREFIX) and _FIELD in data:
            text = key.removeprefix(TOPIC_PREFIX)
            record = TopicRecord.decode(text, data)
            if isinstance(record.stored_as, str):
                found[record.stored_as, record.incarnation] = text
    return found


def by_present_name(
    stored: Mapping[str, bytes], recovered: Mapping[tuple[str, int], RecoveredTopic]
) -> dict[tuple[str, int], RecoveredTopic]:
    """The log's contents, by the present names of topics.

    Raises:
        StorageError: a record is damaged.
    """
    found = dict(recovered)
    for (former, incarnation), text in former_names(stored).items():
        older = found.pop((former, incarnation), None)
        if older is None:
            continue
        newer = found.get((text, incarnation), RecoveredTopic())
        marks = {
            source: max(older.watermarks.get(source, NONE), newer.watermarks.get(source, NONE))
            for source in {*older.watermarks, *newer.watermarks}
        }
        found[text, incarnation] = RecoveredTopic(
            {**older.ledgers, **newer.ledgers}, max(older.next_index, newer.next_index), marks
        )
    return found
