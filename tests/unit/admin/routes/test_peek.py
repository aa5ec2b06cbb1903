"""Headers of a message that is looked at."""

import asyncio

from magnetar.admin.routes.peek import peek_reply
from magnetar.core.ids import NONE
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build


def test_what_is_no_text_is_shown_as_such() -> None:
    """Clients write what they like into text fields; a message that is stored can be looked at."""
    seen = pb.MessageMetadata(producer_name="@@", sequence_id=0, publish_time=1, partition_key="@@")
    seen.properties.add(key="@@", value="v")
    seen = pb.MessageMetadata.FromString(seen.SerializeToString().replace(b"@@", b"\xff\xfe"))
    entry = StoredEntry(1, 0, 0, 1, 1, 1, "", 0, 0, NONE, build(seen, b"x"))
    headers = asyncio.run(peek_reply(entry)).headers
    assert headers["X-Pulsar-producer-name"] == headers["X-Pulsar-partition-key"] == "%FF%FE"
    assert headers["X-Pulsar-PROPERTY"] == '{"\\ufffd\\ufffd": "v"}'
