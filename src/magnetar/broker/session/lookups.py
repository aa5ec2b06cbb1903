"""The commands of one connection about names: where a topic is served, its partitions, its schemas."""

from magnetar.broker.connection import Connection
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.names import looked_up_name, namespace_name, topic_name
from magnetar.broker.session.refusals import in_look_up
from magnetar.broker.session.services import SessionServices
from magnetar.broker.topics.schemas import SchemaTopic, schema_message
from magnetar.core import names
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb


class SessionLookups:
    """Requests of one connection about topics that it need not have opened.

    Args:
        connection: the connection.
        services: the services of sessions.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self._connection = connection
        self._services = services

    def partitions(self, command: pb.CommandPartitionedTopicMetadata) -> None:
        """PARTITIONED_METADATA."""
        request_id = command.request_id

        def answer(count: int, error: BrokerError | None) -> None:
            if error is None:
                self._connection.send(commands.partitions_response(request_id, count))
            else:
                self._connection.send(commands.partitions_failed(request_id, in_look_up(error), error.message))

        try:
            name = topic_name(command.topic)
            self._services.catalog.check_namespace(
                name
            )  # first: clients take a missing namespace for that, as with Pulsar
            self._connection.check(Operation.LOOK, name, command.original_principal)
        except BrokerError as error:
            self._connection.send(commands.partitions_failed(request_id, in_look_up(error), error.message))
            return
        self._services.auto_partitions.count_or_make(name, command.metadata_auto_creation_enabled, answer)

    def lookup(self, command: pb.CommandLookupTopic) -> None:
        """LOOKUP."""
        try:
            name = looked_up_name(command.topic)
            self._services.catalog.check_namespace(name)
            self._connection.check(Operation.LOOK, name, command.original_principal)
            urls = self._services.broker.urls(command.advertised_listener_name)
        except BrokerError as error:
            self._connection.send(commands.lookup_failed(command.request_id, in_look_up(error), error.message))
            return
        self._connection.send(commands.lookup_response(command.request_id, *urls))

    def topics_of_namespace(self, command: pb.CommandGetTopicsOfNamespace) -> None:
        """GET_TOPICS_OF_NAMESPACE."""
        try:
            namespace = namespace_name(command.namespace)
        except BrokerError as error:
            self._connection.refuse(command.request_id, error)
            return
        access, identity = self._services.access, self._connection.identity
        # Mode: 0 persistent, 1 non-persistent, 2 all.
        found = [] if command.mode == 1 else self._services.catalog.topics_of(namespace)
        if command.mode != 0:
            found += self._services.nonpersistent.of(namespace)
        if access.enabled and not access.authorizer.allowed(identity, Operation.LOOK, namespace):
            # A role with permissions of single topics sees these; one without any is refused.
            found = access.authorizer.visible(identity, found)
            if not found:
                try:
                    self._connection.check(Operation.LOOK, namespace)
                except BrokerError as error:
                    self._connection.refuse(command.request_id, error)
                    return
        self._connection.send(commands.topics_of_namespace(command.request_id, found))

    def get_schema(self, command: pb.CommandGetSchema) -> None:
        """GET_SCHEMA."""
        request_id = command.request_id
        try:
            asked = command.schema_version if command.HasField("schema_version") else None
            name = topic_name(command.topic)
            self._connection.check(Operation.LOOK, name)
            version, record = self._services.schemas.get(name, asked)
        except BrokerError as error:
            self._connection.send(commands.get_schema_failed(request_id, error.code, error.message))
            return
        self._connection.send(commands.get_schema(request_id, schema_message(record), version))

    def get_or_create_schema(self, command: pb.CommandGetOrCreateSchema) -> None:
        """GET_OR_CREATE_SCHEMA."""
        request_id = command.request_id

        def answer(version: bytes, error: BrokerError | None) -> None:
            if error is None:
                self._connection.send(commands.get_or_create_schema(request_id, version))
            else:
                self._connection.send(commands.get_or_create_schema_failed(request_id, error.code, error.message))

        try:
            name = topic_name(command.topic)
            self._connection.check(Operation.PRODUCE, name)
            topic = self._writable(name)
        except BrokerError as error:
            answer(b"", error)
            return
        self._services.schemas.get_or_create(topic, command.schema, answer)

    def _writable(self, name: names.TopicName) -> SchemaTopic:
        """A topic that takes messages.

        Raises:
            BrokerError: there is none of that name, or it takes none now.
        """
        passing = self._services.nonpersistent.topics.get(str(name))
        if passing is not None:
            return passing
        topic = self._services.topics.get(str(name))
        if topic is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        topic.check_writable()
        return topic
