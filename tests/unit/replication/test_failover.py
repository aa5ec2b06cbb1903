"""The fence's steps: each one, every step in every state, and random worlds of two clusters and careless commands."""

import random

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.metadata.errors import BadRequest, Conflict
from magnetar.replication.failover import NO_TOKEN, End, Fence, Phase, Token
from magnetar.wire.acksets import TIME_MS_MAX

EARLY, T, LATE = Token(50, "z"), Token(100, "a"), Token(200, "a")
FINAL = Position(7, 3)

ACTIVE = Fence()
FENCING = ACTIVE.fence(T, "b", 1)
FENCED = FENCING.drained(T, 2, 2)
WRITTEN = FENCED.written(T, FINAL)
MOVED = WRITTEN.complete(T, 3)
BACK = FENCED.put_back(T, 4)
UNFENCED = MOVED.unfence(LATE, 5)
HERE = ACTIVE.activate(T, 6)

STATES = {
    "active": ACTIVE,
    "fencing": FENCING,
    "fenced": FENCED,
    "written": WRITTEN,
    "moved": MOVED,
    "put back": BACK,
    "unfenced": UNFENCED,
    "activated": HERE,
}
STEPS = {
    "fence later": lambda state: state.fence(Token(300, "a"), "b", 9),
    "fence same": lambda state: state.fence(T, "b", 9),
    "fence elsewhere": lambda state: state.fence(Token(300, "a"), "c", 9),
    "drained": lambda state: state.drained(T, 0, 9),
    "written": lambda state: state.written(T, FINAL),
    "complete": lambda state: state.complete(T, 9),
    "complete early": lambda state: state.complete(EARLY, 9),
    "put back": lambda state: state.put_back(T, 9),
    "put back early": lambda state: state.put_back(EARLY, 9),
    "unfence": lambda state: state.unfence(Token(300, "a"), 9),
    "activate": lambda state: state.activate(T, 9),
    "activate later": lambda state: state.activate(Token(300, "a"), 9),
    "give up": lambda state: state.give_up(T),
    "call off": lambda state: state.call_off(T, 9),
    "call off later": lambda state: state.call_off(Token(300, "a"), 9),
}
TABLE = {
    # what each state becomes; "!" is a refusal, "=" no change
    "fence later": ("fencing", "=", "=", "=", "=", "fencing", "fencing", "fencing"),
    "fence same": ("fencing", "=", "=", "=", "=", "!", "!", "!"),
    "fence elsewhere": ("fencing", "!", "!", "!", "!", "fencing", "fencing", "fencing"),
    "drained": ("=", "fenced", "=", "=", "=", "=", "=", "="),
    "written": ("=", "=", "fenced", "=", "=", "=", "=", "="),
    "complete": ("!", "!", "!", "moved", "=", "!", "!", "!"),
    "complete early": ("!", "!", "!", "!", "!", "!", "!", "!"),
    "put back": ("active", "active", "active", "active", "active", "=", "=", "active"),
    "put back early": ("active", "!", "!", "!", "!", "=", "=", "active"),
    "unfence": ("=", "active", "active", "active", "active", "=", "=", "="),
    "activate": ("active", "!", "!", "!", "!", "!", "!", "="),
    "activate later": ("active", "!", "!", "!", "active", "active", "active", "active"),
    "give up": ("active", "fencing", "fenced", "fenced", "moved", "=", "=", "!"),
    "call off": ("active", "active", "active", "active", "moved", "=", "=", "active"),
    "call off later": ("active", "fencing", "fenced", "fenced", "moved", "active", "active", "active"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", STATES)
def test_every_step_in_every_state(name: str, step: str) -> None:
    before = STATES[name]
    expected = TABLE[step][list(STATES).index(name)]
    if expected == "!":
        with pytest.raises(Conflict):
            STEPS[step](before)
        return
    after = STEPS[step](before)
    if expected == "=":
        assert after == before
    else:
        assert str(after.phase) == expected
        assert after != before


@pytest.mark.parametrize("name", STATES)
def test_stored_and_read_again(name: str) -> None:
    state = STATES[name]
    assert Fence.decode("s", state.encode()) == state
    with pytest.raises(StorageError, match="subscription s is damaged"):
        Fence.decode("s", state.encode()[:-2])


def test_a_record_of_a_later_version_or_that_cannot_be_is_refused() -> None:
    with pytest.raises(StorageError, match="version 9; this broker reads 1"):
        Fence.decode("s", b'{"version": 9}')
    with pytest.raises(StorageError, match="damaged"):
        Fence.decode("s", b'{"phase": "moved", "target": "b"}')


def test_what_is_told() -> None:
    assert MOVED.plain() == {
        "phase": "moved",
        "token": "100@a",
        "target": "b",
        "since_ms": 3,
        "final": "7:3",
        "left": 2,
        "end": "",
        "given_up": "",
    }
    assert str(MOVED) == "moved (to b, failover 100@a)"
    assert str(HERE) == "active (activated by failover 100@a)"


def test_tokens_have_an_order_and_a_text() -> None:
    assert Token.parse(str(T)) == T
    assert EARLY < T < Token(100, "b") < LATE
    for text in ("", "a", "5", "@a", "5@", "x@a", "-5@a", "0@a", "9" * 30 + "@a", f"{TIME_MS_MAX + 1}@a"):
        with pytest.raises(BadRequest, match="is not a failover's token"):
            Token.parse(text)


def test_a_token_is_later_than_all_that_is_known_also_with_a_slow_clock() -> None:
    assert ACTIVE.next_token("a", 1000) == Token(1000, "a")
    assert UNFENCED.next_token("a", 5) == Token(201, "a")
    assert ACTIVE.next_token("a", 5, above=Token(900, "b")) == Token(901, "a")
    assert ACTIVE.give_up(Token(700, "b")).next_token("a", 5) == Token(701, "a")


@pytest.mark.parametrize("name", STATES)
def test_what_was_called_off_begins_nothing_any_more(name: str) -> None:
    """Neither when its request comes late, nor when what held the fence meanwhile is over."""
    late = Token(300, "a")
    state = STATES[name].call_off(late, 9)
    if state.phase is not Phase.ACTIVE:
        assert state.fence(late, state.target, 10) == state, "joined, as any other"
        state = state.put_back(state.token, 10)
    with pytest.raises(Conflict, match="300@a is not later than 300@a"):
        state.fence(late, "b", 11)
    assert state.next_token("a", 5) > late


def test_what_the_final_state_lacks_is_remembered() -> None:
    assert (FENCED.left, WRITTEN.left, MOVED.left, BACK.left) == (2, 2, 2, 0)


@pytest.mark.parametrize("seed", range(300))
def test_careless_commands_never_activate_out_of_order(seed: int) -> None:
    """Two clusters; commands that lose answers, repeat steps, stop anywhere and call off. Whatever they do: a token that was
    called off at the target never activates it later; activations of one cluster have rising tokens; and from any state
    there is a way to one active cluster.
    """
    chance = random.Random(seed)
    states = {"a": Fence(), "b": Fence()}
    commands: list[tuple[str, str, Token]] = []
    dead: dict[str, Token] = {"a": NO_TOKEN, "b": NO_TOKEN}
    activated: dict[str, Token] = {"a": NO_TOKEN, "b": NO_TOKEN}
    now_ms = 1000
    for _ in range(60):
        now_ms += chance.choice((-5, 0, 1, 10))
        source = chance.choice("ab")
        target = "b" if source == "a" else "a"
        if not commands or chance.random() < 0.2:
            above = max(states[target].token, states[target].given_up)
            try:
                token = states[source].next_token(source, now_ms, above)
                states[source] = states[source].fence(token, target, now_ms)
            except Conflict:
                continue
            commands.append((source, target, states[source].token))
            continue
        source, target, token = chance.choice(commands)
        step = chance.choice(("drained", "written", "activate", "complete", "put_back", "give_up", "call_off", "crash"))
        try:
            if step == "drained":
                states[source] = states[source].drained(token, 0, now_ms)
            elif step == "written":
                states[source] = states[source].written(token, FINAL)
            elif step == "activate":
                # The command activates only what it has seen written.
                if states[source].token == token and states[source].final is not None:
                    before = states[target]
                    states[target] = before.activate(token, now_ms)
                    if states[target] != before:
                        assert token > dead[target] and token > activated[target]
                        activated[target] = token
            elif step == "complete":
                if states[target].end is End.ACTIVATED and states[target].token >= token:
                    states[source] = states[source].complete(token, now_ms)
            elif step == "put_back":
                states[source] = states[source].put_back(token, now_ms)
            elif step == "call_off":
                before = states[source]
                states[source] = before.call_off(token, now_ms)
                assert before.token == token or states[source].phase is before.phase
            elif step == "give_up":
                states[target] = states[target].give_up(token)
                dead[target] = max(dead[target], token)
            else:
                states = {name: Fence.decode(name, state.encode()) for name, state in states.items()}
        except Conflict:
            pass
    for name in states:
        assert states[name].unfence(states[name].next_token(name, now_ms), now_ms).phase is Phase.ACTIVE
