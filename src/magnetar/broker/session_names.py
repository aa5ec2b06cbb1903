"""Names as clients write them in commands."""

from magnetar.core.errors import BrokerError, ErrorCode, NameNotValid
from magnetar.core.names import TopicName


def topic_name(text: str) -> TopicName:
    """The topic that a command names.

    Raises:
        BrokerError: it is no name of a topic (InvalidTopicName).
    """
    try:
        return TopicName.parse(text)
    except NameNotValid as error:
        raise BrokerError(ErrorCode.INVALID_TOPIC_NAME, str(error)) from error
