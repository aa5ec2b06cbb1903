"""Names as clients write them in commands."""

from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid
from magnetar.core.names import NamespaceName, TopicName, looked_up


def topic_name(text: str) -> TopicName:
    """The topic that a command names.

    Raises:
        BrokerError: it is no name of a topic (InvalidTopicName).
    """
    try:
        return TopicName.parse(text)
    except NameNotValid as error:
        raise BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)) from error


def looked_up_name(text: str) -> TopicName:
    """The topic that a lookup names, or the pattern.

    Raises:
        BrokerError: it is neither (InvalidTopicName).
    """
    try:
        return looked_up(text)
    except NameNotValid as error:
        raise BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)) from error


def namespace_name(text: str) -> NamespaceName:
    """The namespace that a command names.

    Raises:
        BrokerError: it is no name of a namespace (InvalidTopicName).
    """
    try:
        return NamespaceName.parse(text)
    except NameNotValid as error:
        raise BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)) from error
