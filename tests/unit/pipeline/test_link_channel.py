"""A channel to a cluster of several brokers, over real sockets: it finds the broker that serves."""

import socket
import time
from collections.abc import Callable, Iterator
from math import inf

import pytest

from magnetar.core import addresses as limits
from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ErrorCode
from magnetar.pipeline.tasks import link_channel
from magnetar.pipeline.tasks.channel_poll import ChannelPoll
from magnetar.pipeline.tasks.link_channel import LinkChannel, call
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import commands, frames
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from tests.support.peer import Peer, Script

HELLO = pb.GeoHello(version=1, cluster="west", uuid="u-1")
REFUSED = "127.0.0.1:1"
"""An address at which no broker listens."""


def serves(frame: Frame, peer: Peer) -> None:
    """A broker that serves: it answers CONNECT and GEO_STATUS."""
    if frame.command.type == pb.CONNECT:
        peer.send(commands.connected(21, 5 << 20, HELLO))
    else:
        answer = pb.CommandGeoStatusResponse(request_id=frame.command.geo_status.request_id)
        peer.send(frames.encode(pb.BaseCommand(type=pb.GEO_STATUS_RESPONSE, geo_status_response=answer)))


def waits(frame: Frame, peer: Peer) -> None:
    """A broker that waits to take over refuses everything."""
    peer.send(commands.error(2**64 - 1, ErrorCode.SERVICE_NOT_READY, "broker b serves this cluster"))
    peer.hang_up()


def takes_no_links(frame: Frame, peer: Peer) -> None:
    """A broker that greets as one without links."""
    peer.send(commands.connected(21, 5 << 20))


def silent(frame: Frame, peer: Peer) -> None:
    """A broker whose process is paused: the system accepts connections, and nothing answers."""


def second_time(script: Script) -> Script:
    """A broker that is silent to the first CONNECT."""
    seen: list[Frame] = []

    def one(frame: Frame, peer: Peer) -> None:
        seen.append(frame)
        if len(seen) > 1:
            script(frame, peer)

    return one


@pytest.fixture
def start() -> Iterator[Callable[[Script], Peer]]:
    """Start a broker; it ends with the test."""
    peers: list[Peer] = []

    def one(script: Script) -> Peer:
        peers.append(Peer(script))
        return peers[-1]

    yield one
    for peer in peers:
        peer.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short limit for silent brokers."""
    monkeypatch.setattr(limits, "SILENT_S", 0.05)


@pytest.fixture
def gone() -> Iterator[str]:
    """An address whose machine is gone: the first packet of a connection gets no answer, because the queue is full."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    for one in (listener, *fillers):
        one.close()


def status(channel: LinkChannel) -> pb.BaseCommand:
    return call(channel, pb.BaseCommand(type=pb.GEO_STATUS, geo_status=pb.CommandGeoStatus(request_id=0)), 10.0)


def kinds(peer: Peer) -> list[int]:
    return [frame.command.type for frame in peer.frames]


def test_a_refused_connection_goes_to_the_next_address_at_once(start):
    peer = start(serves)
    channel = LinkChannel(f"{REFUSED},{peer.address}", "token")
    assert status(channel).type == pb.GEO_STATUS_RESPONSE
    assert (channel.address, channel.hello.cluster) == (peer.address, "west")
    channel.close()


def test_a_broker_that_waits_gets_no_request(start):
    waiting, serving = start(waits), start(serves)
    channel = LinkChannel(f"{waiting.address},{serving.address}", "token")
    assert status(channel).type == pb.GEO_STATUS_RESPONSE
    assert (kinds(waiting), kinds(serving)) == ([pb.CONNECT], [pb.CONNECT, pb.GEO_STATUS])
    channel.close()


def test_after_a_broker_without_links_the_next_channel_begins_elsewhere(start):
    other, serving = start(takes_no_links), start(serves)
    cluster = BrokerAddresses([other.address, serving.address])
    channel = LinkChannel(cluster, "token")
    with pytest.raises(LinkDown, match="does not accept this link token"):
        status(channel)
    channel.close()
    channel = LinkChannel(cluster, "token")
    status(channel)
    assert (kinds(other), channel.address) == ([pb.CONNECT], serving.address)
    channel.close()


@pytest.mark.usefixtures("quick")
def test_brokers_that_say_nothing_cost_a_limit_each(start, gone):
    paused, serving = start(silent), start(serves)
    channel = LinkChannel(f"{gone},{paused.address},{serving.address}", "token")
    assert status(channel).type == pb.GEO_STATUS_RESPONSE
    assert (kinds(paused), kinds(serving)) == ([pb.CONNECT], [pb.CONNECT, pb.GEO_STATUS])
    channel.close()


@pytest.mark.usefixtures("quick")
def test_a_selector_that_is_kept_follows_to_the_next_address(start, gone):
    waiting, serving = start(waits), start(serves)
    channel = LinkChannel(f"{gone},{waiting.address},{REFUSED},{serving.address}", "token")
    poll: ChannelPoll[LinkChannel] = ChannelPoll()
    until = time.monotonic() + 20
    while channel.hello is None and time.monotonic() < until:
        for one, readable, writable in poll.wait([channel], 10.0):
            one.pump(readable, writable)
    assert channel.address == serving.address
    channel.close()
    poll.close()


@pytest.mark.usefixtures("quick")
def test_a_broker_that_was_too_slow_is_tried_again_when_no_other_one_serves(start):
    slow, waiting = start(second_time(serves)), start(waits)
    channel = LinkChannel(f"{slow.address},{waiting.address}", "token")
    assert status(channel).type == pb.GEO_STATUS_RESPONSE
    assert (channel.address, channel.wake_at) == (slow.address, inf)
    assert (kinds(slow), kinds(waiting)) == ([pb.CONNECT, pb.CONNECT, pb.GEO_STATUS], [pb.CONNECT])
    channel.close()


@pytest.mark.usefixtures("quick")
def test_the_last_address_has_the_patience_of_the_caller(start):
    paused = start(silent)
    channel = LinkChannel(f"{REFUSED},{paused.address}", "token")
    with pytest.raises(LinkDown, match="no answer within 300 ms"):
        call(channel, pb.BaseCommand(type=pb.GEO_STATUS, geo_status=pb.CommandGeoStatus(request_id=0)), 0.3)
    channel.close()


def test_no_broker_serves_names_every_address(start):
    waiting = start(waits)
    with pytest.raises(LinkDown) as caught:
        status(LinkChannel(f"{waiting.address},{REFUSED}", "token"))
    assert str(caught.value) == (f"{waiting.address}: broker b serves this cluster; {REFUSED}: Connection refused")


def test_the_next_channel_begins_with_the_broker_that_answered(start):
    waiting, serving = start(waits), start(serves)
    cluster = BrokerAddresses([waiting.address, serving.address])
    for _ in range(2):
        channel = LinkChannel(cluster, "token")
        status(channel)
        channel.close()
    assert (kinds(waiting), kinds(serving)) == ([pb.CONNECT], [pb.CONNECT, pb.GEO_STATUS] * 2)


def test_a_channel_that_was_given_up_makes_the_next_one_begin_elsewhere(start):
    paused, serving = start(silent), start(serves)
    cluster = BrokerAddresses([paused.address, serving.address])
    LinkChannel(cluster, "token").close()
    channel = LinkChannel(cluster, "token")
    status(channel)
    assert channel.address == serving.address
    channel.close()


def test_a_takeover_is_found_by_the_next_channel(start):
    first, second = Peer(serves), start(serves)
    cluster = BrokerAddresses([first.address, second.address])
    channel = LinkChannel(cluster, "token")
    status(channel)
    first.close()
    with pytest.raises(LinkDown):
        status(channel)
    channel.close()
    channel = LinkChannel(cluster, "token")
    status(channel)
    assert channel.address == second.address
    channel.close()


def test_tasks_of_a_process_remember_who_answered(start):
    waiting, serving = start(waits), start(serves)
    for _ in range(2):
        channel = link_channel.new_channel(f"{waiting.address},{serving.address}", "token")
        status(channel)
        channel.close()
    assert kinds(waiting) == [pb.CONNECT]
