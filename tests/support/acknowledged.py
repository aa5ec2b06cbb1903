"""What a subscription has durably acknowledged: the official client of Python asks for no receipts of acknowledgements."""

import re
from collections.abc import Callable

import pulsar

from tests.support.brokers import BrokerProcess, path_of

Place = tuple[int, int]
"""Ledger and entry of a message that is not in a batch."""


def place(message: pulsar.Message) -> Place:
    """Where a message is stored."""
    id_ = message.message_id()
    return id_.ledger_id(), id_.entry_id()


def durably_acknowledged(broker: BrokerProcess, topic: str, subscription: str) -> Callable[[Place], bool]:
    """Whether the acknowledgement of a message is stored: whoever opens the log later must know of it.

    The broker names up to 100 ranges of single acknowledgements; what is after them counts as not acknowledged.
    """
    cursor = broker.rest("GET", f"{path_of(topic)}/internalStats")["cursors"][subscription]
    # It is answered when the subscription is stored as it is then, so with all that was named before.
    broker.rest("PUT", f"{path_of(topic)}/subscription/{subscription}/properties", {})
    (up_to,) = _places(cursor["markDeletePosition"])
    ends = _places(cursor["individuallyDeletedMessages"])
    ranges = list(zip(ends[::2], ends[1::2], strict=True))

    def found(at: Place) -> bool:
        return at <= up_to or any(below < at <= last for below, last in ranges)

    return found


def _places(text: str) -> list[Place]:
    return [(int(ledger), int(entry)) for ledger, entry in re.findall(r"(-?\d+):(-?\d+)", text)]
