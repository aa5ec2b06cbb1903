"""The numbers of partitions of partitioned topics: part of `Resources`, under `partitioned/<full name>`."""

from collections.abc import Mapping

import msgspec

from magnetar.core.errors import NameNotValid, StorageError
from magnetar.core.names import PARTITIONS_MAX, NamespaceName, TopicName
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotAcceptable, NotFound, PreconditionFailed, Unprocessable
from magnetar.metadata.keys import PARTITIONED_PREFIX, partitioned_key
from magnetar.metadata.policies.namespace import PartitionedTopic, changed_properties, check_properties


def check_partitions(number: int) -> int:
    """Return a possible number of partitions.

    Raises:
        NotAcceptable: not 1 to `PARTITIONS_MAX`.
    """
    if not 1 <= number <= PARTITIONS_MAX:
        raise NotAcceptable(f"{number} partitions are not possible: 1 to {PARTITIONS_MAX}")
    return number


def check_names(topic: TopicName, partitions: int) -> None:
    """Refuse a partitioned topic whose last partition has no valid name: no client could open it, and no broker could
    load it.

    Raises:
        PreconditionFailed: the name is too long for this number of partitions.
    """
    try:
        TopicName.parse(str(topic.with_partition(partitions - 1)))
    except NameNotValid as error:
        raise PreconditionFailed(f"the last of {partitions} partitions has no valid name: {error}") from None


class Partitions:
    """The partitioned topics of one cluster."""

    def __init__(self) -> None:
        self._topics: dict[str, PartitionedTopic] = {}

    def put(self, key: str, value: bytes) -> None:
        """Load one stored value; other keys are ignored.

        Raises:
            StorageError: it is damaged.
        """
        if not key.startswith(PARTITIONED_PREFIX):
            return
        try:
            self._topics[key.removeprefix(PARTITIONED_PREFIX)] = msgspec.json.decode(value, type=PartitionedTopic)
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored value of {key} is damaged: {error}") from error

    def delete(self, key: str) -> None:
        """Remove a deleted value; other keys are ignored."""
        if key.startswith(PARTITIONED_PREFIX):
            self._topics.pop(key.removeprefix(PARTITIONED_PREFIX), None)

    def count(self, topic: TopicName) -> int | None:
        """The number of partitions; None if the name is not that of a partitioned topic."""
        found = self._topics.get(str(topic))
        return found.partitions if found else None

    def of(self, namespace: NamespaceName) -> list[str]:
        """Names in a namespace, sorted, both domains."""
        prefixes = (f"persistent://{namespace}/", f"non-persistent://{namespace}/")
        return sorted(name for name in self._topics if name.startswith(prefixes))

    def properties(self, topic: TopicName) -> dict[str, str]:
        """Properties of one. Raises NotFound."""
        return dict(self._get(topic).properties)

    def _get(self, topic: TopicName) -> PartitionedTopic:
        try:
            return self._topics[str(topic)]
        except KeyError:
            raise NotFound(f"partitioned topic {topic} does not exist") from None

    def create(self, topic: TopicName, partitions: int, properties: Mapping[str, str]) -> Change:
        """A new one.

        Raises:
            Conflict: it exists. NotAcceptable: the number. PreconditionFailed: the name is that of a partition, or too long
                for one. BadRequest: too many properties.
        """
        check_partitions(partitions)
        if topic.partition >= 0:
            raise PreconditionFailed(f"{topic} is the name of a partition and cannot be partitioned itself")
        check_names(topic, partitions)
        if str(topic) in self._topics:
            raise Conflict(f"partitioned topic {topic} exists already")
        return _change(topic, PartitionedTopic(partitions, check_properties(dict(properties))))

    def grow(self, topic: TopicName, partitions: int) -> Change:
        """Raise the number of partitions. It is never lowered, because messages would be lost and keys would move.

        Raises:
            NotFound. NotAcceptable: the number. Unprocessable: not more than there are. PreconditionFailed: the name is
                too long for this number.
        """
        old = self._get(topic)
        check_partitions(partitions)
        if partitions <= old.partitions:
            raise Unprocessable(f"{topic} has {old.partitions} partitions; their number can only grow")
        check_names(topic, partitions)
        return _change(topic, msgspec.structs.replace(old, partitions=partitions))

    def describe(self, topic: TopicName, puts: Mapping[str, str], delete: str | None) -> Change:
        """Other properties: some set, one forgotten.

        Raises:
            NotFound. BadRequest: too many, or too long.
        """
        old = self._get(topic)
        properties = changed_properties(old.properties, puts, delete)
        return _change(topic, msgspec.structs.replace(old, properties=properties))

    def remove(self, topic: TopicName) -> Change:
        """It is deleted. Raises NotFound."""
        self._get(topic)
        return Change(deletes=(partitioned_key(topic),), topics=(str(topic),))


def _change(topic: TopicName, metadata: PartitionedTopic) -> Change:
    return Change(puts={partitioned_key(topic): msgspec.json.encode(metadata)}, topics=(str(topic),))
