"""The topics that a link may access: with a role in `replicate_roles` all, otherwise those where its role has
`replicate`.

A topic without permission does not stop other topics. So it is answered as the link's machines answer a topic that a
policy excludes (`blocked: policy`), if the answer has a field for this; a list leaves out topics that the link may not
see.
"""

from typing import Final

from magnetar.broker.connection import Connection
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.services import SessionServices
from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid
from magnetar.core.ids import NONE
from magnetar.core.names import TopicName
from magnetar.wire import pulsar_pb2 as pb

POLICY: Final = "policy"


class LinkAccess:
    """The permissions of one link.

    Args:
        connection: its connection.
        services: the services of sessions.
    """

    def __init__(self, connection: Connection, services: SessionServices) -> None:
        self._connection = connection
        self._services = services
        self._access = services.access

    @property
    def everywhere(self) -> bool:
        """Whether it may touch every topic; asked each time, for permissions change."""
        return not self._access.enabled or self._access.authorizer.allowed(
            self._connection.identity, Operation.REPLICATE
        )

    @property
    def narrow(self) -> str:
        """The role of a link that may touch some topics only; "" where it may touch all."""
        return "" if self.everywhere else self._connection.identity.shown

    def refusal(self, topic: str) -> str:
        """Why it may not access a topic; "" if it may. An invalid name is left to the command's own check."""
        if self.everywhere:
            return ""
        try:
            name = TopicName.parse(topic)
        except NameNotValid:
            return ""
        if self._access.authorizer.allowed(self._connection.identity, Operation.REPLICATE, name):
            return ""
        return f"role {self._connection.identity.shown} may not replicate {name} in {self._services.context.cluster}"

    def check(self, topic: str) -> None:
        """Refuse a topic.

        Raises:
            BrokerError: AuthorizationError.
        """
        if reason := self.refusal(topic):
            raise BrokerError(ErrorCode.AUTHORIZATION, reason)

    def permitted_topics(self, response: pb.CommandGeoTopicsResponse) -> pb.CommandGeoTopicsResponse:
        """The list of a link's topics without those that it may not touch."""
        if self.everywhere:
            return response
        allowed = [state for state in response.topics if not self.refusal(state.topic)]
        answer = pb.CommandGeoTopicsResponse()
        answer.CopyFrom(response)
        del answer.topics[:]
        answer.topics.extend(allowed)
        return answer

    def permitted_blocks(self, response: pb.CommandGeoStatusResponse) -> pb.CommandGeoStatusResponse:
        """The part of an answer about blocked topics that the link may see."""
        if self.everywhere:
            return response
        allowed = [one for one in response.blocked if not self.refusal(one.topic)]
        answer = pb.CommandGeoStatusResponse(
            request_id=response.request_id
        )  # what is lost is a number of the whole link
        answer.blocked.extend(allowed)
        return answer

    def refuse_read(self, request: pb.CommandGeoRead) -> pb.CommandGeoReadResponse | None:
        """The answer to reading a topic that it may not touch; None when it may."""
        reason = self.refusal(request.topic)
        if not reason:
            return None
        return pb.CommandGeoReadResponse(
            request_id=request.request_id,
            end=request.after,
            blocked=POLICY,
            error=ErrorCode.AUTHORIZATION,
            message=reason,
        )

    def refuse_append(self, request: pb.CommandGeoAppend) -> pb.CommandGeoAppendResponse | None:
        """The answer to entries of a topic that it may not touch; None when it may."""
        reason = self.refusal(request.topic)
        if not reason:
            return None
        answer = pb.CommandGeoAppendResponse(request_id=request.request_id, blocked=POLICY, reason=reason)
        self._persisted(answer.persisted, request.topic, request.source)
        return answer

    def take_out_refused(self, request: pb.CommandGeoWatermarks) -> list[pb.GeoWatermark]:
        """The answers about topics that it may not touch; they are taken out of the request."""
        if self.everywhere:
            return []
        answers: list[pb.GeoWatermark] = []
        allowed: list[pb.GeoWatermarkQuery] = []
        for query in request.topics:
            reason = self.refusal(query.topic)
            if not reason:
                allowed.append(query)
                continue
            answer = pb.GeoWatermark(topic=query.topic, blocked=POLICY, reason=reason)
            self._persisted(answer.persisted, query.topic, request.source)
            answers.append(answer)
        if answers:
            del request.topics[:]
            request.topics.extend(allowed)
        return answers

    def _persisted(self, answer: pb.GeoPosition, topic: str, source: str) -> None:
        found = self._services.topics.get(topic)
        answer.ledger, answer.entry = found.log.watermark(source) if found is not None else NONE
