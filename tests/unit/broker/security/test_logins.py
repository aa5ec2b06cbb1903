"""Who waits for whose logins: guesses are limited, what is right gets in, and passwords are checked in turns."""

from collections.abc import Callable

import bcrypt
import jwt
import pytest

from magnetar.broker.security import credentials
from magnetar.broker.security.access import Access
from magnetar.broker.security.credentials import Identity, Keys
from magnetar.broker.security.logins import (
    ADDRESSES_MAX,
    CHECKS_WAITING_MAX,
    PROVEN_MAX,
    SPRAY,
    FailedLogins,
    Recent,
    host_of,
    source_of,
)
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.security import AuthenticationConfig, Security
from magnetar.effects.outbox import Compute, Outbox
from magnetar.metadata.resources import Resources
from magnetar_sim.host.host import Host

SECRET, OTHER = b"s" * 64, b"o" * 64
MOST = 5
WAIT_MS = 60_000
SALT = bcrypt.gensalt(4)
NAMES = ("alice", "bob", "carol")
FAST = bcrypt.checkpw


class World:
    """A broker's door. The test does the slow checks, one by one, when it likes."""

    def __init__(self) -> None:
        self.outbox = Outbox(now_ms=1_700_000_000_000)
        config = AuthenticationConfig(methods=["token", "basic"], failed_logins_max=MOST, failed_logins_ms=WAIT_MS)
        self.access = Access(self.outbox, Security(authentication=config), self.keys(), Resources("here"), sessions={})
        self.checks: list[Compute] = []
        self.host = Host(self.outbox, {Compute: self.checks.append})
        self.done = 0

    @staticmethod
    def keys(word: str = "sesame") -> Keys:
        return Keys((SECRET,), (), {name: bcrypt.hashpw(word.encode(), SALT) for name in NAMES}, b"pepper")

    def work(self, most: int = 10_000) -> None:
        """Do the slow checks."""
        for _ in range(most):
            self.host.pump()
            if not self.checks:
                return
            check = self.checks.pop(0)
            assert not self.checks, "one at a time"
            self.done += 1
            check.then(check.work())
        self.host.pump()

    def ask(
        self, address: str, method: str, data: str, wanted: Callable[[], bool] = lambda: True
    ) -> list[Identity | BrokerError]:
        """The answers, which come in time."""
        answers: list[Identity | BrokerError] = []
        self.access.login(
            f"{address}:1", method, data.encode(), "", lambda who, error: answers.append(who or error or None),  # type: ignore[arg-type]
            wanted=wanted,
        )  # fmt: skip
        self.host.pump()
        return answers

    def says(self, address: str, method: str, data: str) -> str:
        """The role, or the error's code."""
        answers = self.ask(address, method, data)
        self.work()
        (answer,) = answers
        return answer.role if isinstance(answer, Identity) else answer.code.name


def token(role: str = "app", key: bytes = SECRET) -> str:
    return jwt.encode({"sub": role}, key, "HS256")


def test_right_tokens_get_in_while_their_address_waits() -> None:
    """Behind a NAT others share the address; a signature cannot be guessed, and connected clients renew theirs."""
    it = World()
    assert [it.says("1.1.1.1", "token", token(key=OTHER)) for _ in range(MOST)] == ["AUTHENTICATION"] * MOST
    assert it.says("1.1.1.1", "token", token(key=OTHER)) == "TOO_MANY_REQUESTS"
    assert it.says("1.1.1.1", "token", token()) == "app"
    assert it.says("1.1.1.1", "token", token(key=OTHER)) == "TOO_MANY_REQUESTS", "it does not pay for the others"
    assert it.says("1.1.1.1", "basic", "alice:sesame") == "alice", "passwords are another matter"
    notes = len(it.host.notes)
    for _ in range(100):
        it.says("1.1.1.1", "token", token(key=OTHER))
    assert len(it.host.notes) == notes, "those who wait fill no log"
    it.outbox.now_ms += WAIT_MS
    assert it.says("1.1.1.1", "token", token(key=OTHER)) == "AUTHENTICATION"


def test_what_is_not_looked_at_are_passwords_of_the_name_that_is_guessed_at() -> None:
    it = World()
    assert [it.says("1.1.1.1", "basic", f"alice:{n}") for n in range(MOST)] == ["AUTHENTICATION"] * MOST
    done = it.done
    assert it.says("1.1.1.1", "basic", "alice:sesame") == "TOO_MANY_REQUESTS", "right or wrong: a guess gives no answer"
    assert it.done == done
    assert it.says("1.1.1.1", "basic", "bob:sesame") == "bob"
    assert it.says("2.2.2.2", "basic", "alice:sesame") == "alice"
    assert it.says("1.1.1.1", "token", token()) == "app"
    it.outbox.now_ms += WAIT_MS
    assert it.says("1.1.1.1", "basic", "alice:sesame") == "alice"


def test_who_tries_many_names_waits_with_all_that_were_not_proved_from_there() -> None:
    it = World()
    assert it.says("1.1.1.1", "basic", "bob:sesame") == "bob"
    tried = [it.says("1.1.1.1", "basic", f"name{n}:x") for n in range(MOST * SPRAY)]
    assert set(tried) == {"AUTHENTICATION"}
    assert it.says("1.1.1.1", "basic", "name:x") == "TOO_MANY_REQUESTS"
    assert it.says("1.1.1.1", "basic", "alice:sesame") == "TOO_MANY_REQUESTS"
    assert it.says("1.1.1.1", "basic", "bob:sesame") == "bob"
    assert it.says("2.2.2.2", "basic", "alice:sesame") == "alice"
    assert [it.says("1.1.1.1", "basic", f"bob:{n}") for n in range(MOST)] == ["AUTHENTICATION"] * MOST
    assert it.says("1.1.1.1", "basic", "bob:sesame") == "TOO_MANY_REQUESTS", "guesses at one name stay limited"


def test_tokens_wait_for_no_password() -> None:
    it = World()
    waiting = [it.ask("1.1.1.1", "basic", f"alice:{n}") for n in range(300)]
    assert it.says("2.2.2.2", "token", token()) == "app"
    assert it.says("1.1.1.1", "token", token()) == "app"
    assert sum(len(one) for one in waiting) == 300


def test_sources_and_names_take_turns() -> None:
    """120 connections of one user hold up another by as many checks as others wait, not as connections do."""
    it = World()
    for n in range(120):
        it.ask("1.1.1.1", "basic", f"alice:{n}")
    other, beside = it.ask("2.2.2.2", "basic", "bob:sesame"), it.ask("1.1.1.1", "basic", "carol:sesame")
    it.work(3)
    assert other == [Identity("bob", "basic")]
    it.work(3)
    assert beside == [Identity("carol", "basic")]


def test_who_fills_the_queue_makes_room() -> None:
    it = World()
    many = [it.ask("1.1.1.1", "basic", f"alice:{n}") for n in range(CHECKS_WAITING_MAX + 10)]
    refused = [one[0].code for one in many if one and isinstance(one[0], BrokerError)]
    assert refused == [ErrorCode.SERVICE_NOT_READY] * 9, "one is being checked"
    assert it.ask("2.2.2.2", "basic", "bob:sesame") == []
    assert len([one for one in many if one]) == 10
    assert it.ask("1.1.1.1", "basic", "carol:sesame") == []


def test_a_proved_password_is_known_again_until_the_passwords_change() -> None:
    it = World()
    assert it.says("1.1.1.1", "basic", "alice:sesame") == "alice"
    assert it.done == 1
    for _ in range(20):
        assert it.says("3.3.3.3", "basic", "alice:sesame") == "alice"
    assert it.done == 1
    assert it.says("3.3.3.3", "basic", "bob:sesame") == "bob"
    assert it.says("3.3.3.3", "basic", "alice:sesam") == "AUTHENTICATION"
    assert it.done == 3
    it.access.new_keys(World.keys("open"))
    assert it.says("3.3.3.3", "basic", "alice:sesame") == "AUTHENTICATION"
    late = it.ask("3.3.3.3", "basic", "alice:open")
    it.access.new_keys(World.keys("shut"))
    it.work()
    assert isinstance(late[0], BrokerError), "what was right when it began is not right any more"


def test_what_many_present_at_once_is_one_check() -> None:
    it = World()
    answers = [it.ask("1.1.1.1", "basic", f"{name}:sesame") for _ in range(40) for name in NAMES]
    it.work()
    assert it.done == len(NAMES)
    assert [one[0].role for one in answers if isinstance(one[0], Identity)] == list(NAMES) * 40
    wrong = [it.ask("1.1.1.1", "basic", "alice:x") for _ in range(MOST)]
    it.work()
    assert it.done == len(NAMES) + 1
    assert all(isinstance(one[0], BrokerError) for one in wrong)
    assert it.says("1.1.1.1", "basic", "alice:sesame") == "TOO_MANY_REQUESTS", "each of them was a guess"


def test_who_is_gone_takes_no_time() -> None:
    it = World()
    there = True
    gone = [it.ask("1.1.1.1", "basic", f"alice:{n}", wanted=lambda: there) for n in range(50)]
    there = False
    assert it.says("1.1.1.1", "basic", "bob:sesame") == "bob"
    assert it.done == 2, "one was being checked"
    assert sum(len(one) for one in gone) == 1


@pytest.mark.parametrize("data", ["", "alice", "alice:", "alice:" + "x" * 73, "alice:a\0b", ":" + "x" * 20_000])
def test_what_cannot_be_right_is_refused_at_once(data: str) -> None:
    it = World()
    assert it.says("1.1.1.1", "basic", data) == "AUTHENTICATION"
    assert it.done == 0


def test_a_proof_shows_no_password() -> None:
    proof = World().access.verifier.password(b"alice:sesame")
    assert "sesame" not in repr(proof) and b"sesame" not in proof.key
    assert credentials.Verifier.check(proof) == Identity("alice", "basic")


def test_failures_make_wait_and_are_forgotten() -> None:
    it = FailedLogins(3, 1000)
    assert [it.failed("a", at) for at in (0, 10, 20)] == [False, False, True]
    assert [it.waits_ms(*one) for one in (("a", 20), ("a", 1019), ("a", 1020), ("b", 20))] == [1000, 1, 0, 0]
    assert [it.failed("a", at) for at in (1020, 1030, 1040)] == [False, False, True]
    assert [it.failed("c", at) for at in (0, 900, 1900, 2000)] == [False, False, False, False]
    for number in range(ADDRESSES_MAX + 5):
        it.failed(f"x{number}", 5000)
    assert len(it) == ADDRESSES_MAX


def test_a_clock_that_is_set_back_lets_nobody_wait_for_longer() -> None:
    it = FailedLogins(1, 1000)
    it.failed("a", 1_000_000)
    assert it.waits_ms("a", 10) == 1000
    it = FailedLogins(2, 1000)
    it.failed("a", 1_000_000)
    assert [it.failed("a", at) for at in (10, 20)] == [False, True], "the window begins anew"


def test_the_latest_are_remembered() -> None:
    it = Recent(3)
    for name in (b"a", b"b", b"c", b"a", b"d"):
        it.note(name)
    assert [name in it for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert len(it) == 3 < PROVEN_MAX


def test_hosts_and_sources() -> None:
    assert [host_of(text) for text in ("1.2.3.4:5", "[::1]:5", "::1:5", "?")] == ["1.2.3.4", "::1", "::1", "?"]
    shown = ("1.2.3.4:5", "2001:db8:1:2:3:4:5:6:77", "[2001:db8:1:2::9]:5", "::ffff:1.2.3.4:5", "?")
    assert [source_of(text) for text in shown] == ["1.2.3.4", *["2001:db8:1:2::/64"] * 2, "1.2.3.4", "?"]
