"""Names as clients write them in commands."""

from collections.abc import Callable
from typing import TypeVar

from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid
from magnetar.core.names import NamespaceName, TopicName, looked_up

Name = TypeVar("Name")


def topic_name(text: str) -> TopicName:
    """The topic that a command names.

    Raises:
        BrokerError: it is not the name of a topic (InvalidTopicName).
    """
    return _parsed(TopicName.parse, text)


def looked_up_name(text: str) -> TopicName:
    """The topic that a lookup names, or the pattern.

    Raises:
        BrokerError: it is neither (InvalidTopicName).
    """
    return _parsed(looked_up, text)


def namespace_name(text: str) -> NamespaceName:
    """The namespace that a command names.

    Raises:
        BrokerError: it is not the name of a namespace (InvalidTopicName).
    """
    return _parsed(NamespaceName.parse, text)


def _parsed(parse: Callable[[str], Name], text: str) -> Name:
    try:
        return parse(text)
    except NameNotValid as error:
        raise BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)) from error
