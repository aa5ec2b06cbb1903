"""The commits of a long batch to one source, when answers do not come."""

from typing import Any, cast

import pytest

from magnetar.core.ids import Position
from magnetar.pipeline.long import commit_channel
from magnetar.pipeline.long.commit_channel import CommitChannel
from magnetar.pipeline.tasks.link_channel import LinkChannel
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto


class Channel:
    """A connection that keeps what it is given; `broken`: the next move fails."""

    def __init__(self) -> None:
        self.sent: list[pb.BaseCommand] = []
        self.broken = False

    def request(self, command: pb.BaseCommand) -> int:
        self.sent.append(command)
        return len(self.sent)

    def pump(self, _readable: bool, _writable: bool) -> list[Any]:
        if self.broken:
            raise LinkDown("it broke")
        return []

    def close(self) -> None:
        pass


def commit(entry: int, ended: str = "") -> pb.GeoCommitTopic:
    position = position_to_proto(Position(5, entry))
    found = pb.GeoCommitTopic(topic="t", incarnation=7, cursor=pb.GeoCursor(c=position, s=position, gen=1), grant=3)
    if ended:
        found.ended = ended
    return found


def test_the_latest_commit_is_sent_again_when_several_were_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_channel, "PAUSE_S", 0.0)
    channels: list[Channel] = []

    def connect(_address: str, _token: str) -> LinkChannel:
        channels.append(Channel())
        return cast("LinkChannel", channels[-1])

    commits = CommitChannel("a:1", "token", 60_000, connect)
    totals = pb.GeoFetchTotals(task=1, messages=0, bytes=0, duplicates=0)
    commits.put(0, "b", {"t": commit(1)}, totals)
    commits.put(0, "b", {"t": commit(2, "retry")}, totals)
    assert len(channels[0].sent) == 2
    channels[0].broken = True
    commits.pump(True, False)
    commits.go_on()
    [again] = channels[1].sent
    assert list(again.geo_commit.commits) == [commit(2, "retry")]
