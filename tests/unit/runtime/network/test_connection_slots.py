"""Who gets a place, and who makes room."""

import random

import pytest

from magnetar.runtime.network.connection_slots import (
    CROWD,
    IDLE_S,
    STRANGER_S,
    ConnectionSlots,
    address_of,
    per_address,
)


class Ports:
    """Places with a clock, and what they tell."""

    def __init__(self, most: int, **options: int) -> None:
        self.now_s = 0.0
        self.full: list[str] = []
        self.crowded: list[str] = []
        self.moved: list[str] = []
        self.dropped: list[str] = []
        self.slots = ConnectionSlots(
            most,
            self.full.append,
            crowded=self.crowded.append,
            made_room=self.moved.append,
            clock=lambda: self.now_s,
            **options,
        )

    def come(self, peer: str) -> bool:
        """Somebody connects; its name is its peer."""
        return self.slots.take(peer, peer, lambda: self.dropped.append(peer))


def test_strangers_of_a_crowd_make_room_for_others_and_for_their_own_address() -> None:
    ports = Ports(100, per_address=100)
    assert all(ports.come(f"10.0.0.1:{port}") for port in range(99))
    assert ports.come("10.0.0.2:1") and ports.come("10.0.0.1:99")
    assert ports.dropped == ports.moved == ["10.0.0.1:0", "10.0.0.1:1"] and ports.slots.open == 99
    assert not ports.full


def test_who_is_known_makes_no_room_until_it_has_been_idle() -> None:
    ports = Ports(3)
    for port in range(3):
        assert ports.come(f"10.0.0.1:{port}")
        ports.slots.known(f"10.0.0.1:{port}")
    ports.now_s = 100
    assert not ports.come("10.0.0.2:1") and ports.full == ["10.0.0.2:1"]
    ports.slots.idle("10.0.0.1:1")
    ports.slots.idle("10.0.0.1:2")
    ports.now_s += IDLE_S - 0.1
    assert not ports.come("10.0.0.2:2")
    ports.slots.busy("10.0.0.1:1")
    ports.now_s += 0.1
    assert ports.come("10.0.0.2:3") and ports.dropped == ["10.0.0.1:2"]
    ports.slots.leave("10.0.0.1:2")  # its transport says so later
    assert ports.slots.open == 3


def test_a_few_strangers_make_room_after_some_seconds() -> None:
    ports = Ports(CROWD)
    for number in range(CROWD):
        assert ports.come(f"10.0.{number}.1:1")
    ports.now_s = STRANGER_S - 0.1
    assert not ports.come("10.9.9.9:1") and ports.full == ["10.9.9.9:1"]
    ports.now_s = STRANGER_S
    assert ports.come("10.9.9.9:2") and ports.dropped == ["10.0.0.1:1"]


def test_one_address_has_a_limit_of_its_own() -> None:
    ports = Ports(100, per_address=10)
    for port in range(10):
        assert ports.come(f"10.0.0.1:{port}")
        ports.slots.known(f"10.0.0.1:{port}")
    assert not ports.come("10.0.0.1:99") and ports.crowded == ["10.0.0.1:99"] and not ports.full
    assert ports.come("10.0.0.2:1")
    ports.slots.leave("10.0.0.1:3")
    assert ports.come("10.0.0.1:98")
    assert (per_address(2_048, 0), per_address(2_048, 7), per_address(1, 0)) == (1_639, 7, 1)


def test_some_places_are_for_this_machine() -> None:
    ports = Ports(128)
    for port in range(128):
        came = ports.come(f"10.0.0.1:{port}")
        ports.slots.known(f"10.0.0.1:{port}")
        assert came == (port < 126)
    assert ports.come("127.0.0.1:1") and ports.come("::1:1") and not ports.come("127.0.0.1:2")


def test_handshakes_are_strangers_and_can_be_ended() -> None:
    ports = Ports(40)
    for number in range(40):
        assert ports.slots.begin(number, f"10.0.0.1:{number}", lambda at=number: ports.dropped.append(str(at)))  # type: ignore[misc]
    assert ports.slots.begin("new", "10.0.0.2:1", lambda: None)
    assert ports.dropped == ["0"] and ports.slots.shaking == 40
    ports.slots.end(0)
    assert ports.slots.take("new", "10.0.0.2:1", lambda: None) and ports.slots.take(1, "10.0.0.1:1", lambda: None)
    assert (ports.slots.shaking, ports.slots.open) == (38, 2)
    ports.slots.end("new")
    assert ports.slots.open == 2, "the end of its handshake is not its own"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("1.2.3.4:5", "1.2.3.4"),
        ("::1:5", "::1"),
        ("::ffff:1.2.3.4:5", "1.2.3.4"),
        ("2001:db8:1:2:3::4:5", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9:5", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:5", "fe80::/64"),
        ("?", ""),
    ],
)
def test_the_address_that_counts(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_nothing_is_left_of_who_came_and_went() -> None:
    chance = random.Random(5)
    ports = Ports(60, per_address=45)
    there: set[str] = set()
    for _ in range(20_000):
        ports.now_s += 0.05
        peer = f"10.0.0.{chance.randrange(4)}:{chance.randrange(200)}"
        match chance.randrange(6):
            case 0 | 1 | 2 if peer not in there and ports.come(peer):
                there.add(peer)
            case 3:
                ports.slots.leave(peer)
                there.discard(peer)
            case 4:
                ports.slots.known(peer)
            case 5:
                (ports.slots.idle if chance.random() < 0.7 else ports.slots.busy)(peer)
        there -= set(ports.dropped)
        ports.dropped.clear()
        assert ports.slots.open == len(there) <= 60
    for peer in there:
        ports.slots.leave(peer)
    slots = ports.slots
    assert not (slots.open or slots._counts or slots._strangers or slots._idle or slots._crowds._sizes)
    assert slots._crowds.largest() == ""
