"""A command that names many messages is handled as several: nothing is lost, doubled, or comes out of order."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.runtime.network.frame_slices import IDS_MAX, REDELIVERED_MAX, Portions
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame

sizes = st.one_of(st.integers(0, 5), st.integers(IDS_MAX - 2, IDS_MAX + 2), st.integers(0, 10 * IDS_MAX))


def ack(entries: range, kind: int = 0, request: int | None = None, transaction: int | None = None) -> Frame:
    """One command."""
    ids = [pb.MessageIdData(ledgerId=7, entryId=entry) for entry in entries]
    command = pb.CommandAck(
        consumer_id=3,
        ack_type=kind,
        message_id=ids,
        request_id=request,
        txnid_least_bits=transaction,
    )
    return Frame(pb.BaseCommand(type=10, ack=command), b"")


def flow(permits: int) -> Frame:
    """Another command."""
    return Frame(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=3, messagePermits=permits)), b"")


def redeliver(entries: range, epoch: int | None = None) -> Frame:
    """A command that gives messages back."""
    command = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=3,
        message_ids=[pb.MessageIdData(ledgerId=7, entryId=entry) for entry in entries],
        consumer_epoch=epoch,
    )
    return Frame(pb.BaseCommand(type=20, redeliverUnacknowledgedMessages=command), b"")


def entries_of(frames: list[Frame]) -> list[int]:
    """What they acknowledge."""
    return [item.entryId for frame in frames for item in frame.command.ack.message_id]


def drained(portions: Portions) -> list[list[Frame]]:
    """All of them."""
    taken = []
    while portions:
        taken.append(portions.take())
    return taken


@given(st.lists(st.one_of(st.none(), sizes), max_size=30))
def test_every_id_comes_once_and_in_its_place(commands: list[int | None]) -> None:
    """None: a command between acknowledgements; each acknowledgement wishes for an answer of its own."""
    portions, after, expected = Portions(), 0, []
    for number, size in enumerate(commands):
        if size is None:
            portions.add([flow(number)])
            expected.append(("flow", number))
        else:
            portions.add([ack(range(after, after + size), request=number)])
            expected += [("id", entry) for entry in range(after, after + size)] + [("answer", number)]
            after += size
    taken = drained(portions)
    told: list[tuple[str, int]] = []
    for frame in (frame for frames in taken for frame in frames):
        if frame.command.type == 11:
            told.append(("flow", frame.command.flow.messagePermits))
            continue
        assert frame.command.ack.consumer_id == 3
        told += [("id", item.entryId) for item in frame.command.ack.message_id]
        if frame.command.ack.HasField("request_id"):
            told.append(("answer", frame.command.ack.request_id))
    assert told == expected
    assert all(frames and len(entries_of(frames)) <= IDS_MAX for frames in taken)


def test_what_names_little_is_one_event() -> None:
    portions = Portions()
    portions.add([flow(1), ack(range(20)), flow(2), ack(range(20, IDS_MAX))])
    assert [len(frames) for frames in drained(portions)] == [4]


def test_what_is_refused_is_refused_once() -> None:
    """A cumulative acknowledgement names one message; one in a transaction is not served."""
    portions = Portions()
    portions.add([ack(range(1_000), kind=1, request=1), ack(range(1_000), request=2, transaction=5), ack(range(1_000))])
    sizes = [len(entries_of(frames)) for frames in drained(portions)]
    assert sizes[:2] == [1_000, 1_000]
    assert max(sizes[2:]) == IDS_MAX


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.one_of(st.integers(0, 70), st.integers(REDELIVERED_MAX - 1, REDELIVERED_MAX + 1), st.integers(0, 5_000)),
        ),
        max_size=8,
    )
)
def test_what_is_given_back_comes_by_the_thousand(commands: list[tuple[bool, int]]) -> None:
    """Acknowledgements in between take their share of an event."""
    portions, after, expected = Portions(), 0, []
    for given_back, size in commands:
        entries = range(after, after + size)
        portions.add([redeliver(entries, epoch=after) if given_back else ack(entries)])
        expected += [(given_back, entry) for entry in entries]
        after += size
    told = []
    for frames in drained(portions):
        work = 0.0
        for frame in frames:
            back = frame.command.redeliverUnacknowledgedMessages
            told += [(True, item.entryId) for item in back.message_ids]
            told += [(False, item.entryId) for item in frame.command.ack.message_id]
            work += len(back.message_ids) / REDELIVERED_MAX + len(frame.command.ack.message_id) / IDS_MAX
            if frame.command.type == 20:
                assert back.consumer_id == 3
                assert back.HasField("consumer_epoch")
        assert work < 1.001
    assert told == expected


def test_all_that_a_consumer_has_is_one_command() -> None:
    """A command without ids gives back everything, and must not come out of one that was divided."""
    portions = Portions()
    portions.add([redeliver(range(0)), redeliver(range(2 * REDELIVERED_MAX)), redeliver(range(0))])
    sizes = [
        len(frame.command.redeliverUnacknowledgedMessages.message_ids) for part in drained(portions) for frame in part
    ]
    assert sizes == [0, REDELIVERED_MAX, REDELIVERED_MAX, 0]
