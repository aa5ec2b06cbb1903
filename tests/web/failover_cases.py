"""Cases of planned failovers, for the table of `test_rest`, with subscriptions that failovers have brought so far."""

from functools import cache

from magnetar.broker.admin.failovers import Step
from tests.support import geoworld
from tests.web.conftest import CLUSTER, CONFIG, Saved, World

FO = "/geo/v1/failover/persistent/public/default"
T = "persistent://public/default/t"
HERE, THERE = "9@us-west", "9@us-east"


@cache
def prepared() -> Saved:
    """What us-west has after these stories with us-east.

    s        takes part in no failover
    here     was activated here
    coming   could be: the final state is merged here
    written  is fenced here, the final state is written
    """
    world = geoworld.World(tuple(CONFIG.clusters))  # type: ignore[arg-type]  # any names will do
    west, east = world[CLUSTER], world["us-east"]
    west.create(T)
    many = f"{T.removesuffix('t')}many"
    west.control_call(lambda done: west.control.topics.create(many, 3, {}, done))
    topics = [(T, name) for name in ("s", "moving", "here", "coming", "written")]
    for topic, name in [*topics, *((f"{many}-partition-{number}", "s") for number in range(3))]:
        made = west.control_call(lambda done: west.control.subscriptions.create(topic, name, None, True, {}, done))  # noqa: B023
        assert made is None
    west.publish(b"one", b"two")
    world.settle()
    for node, name, target, token in (
        (east, "here", CLUSTER, THERE),
        (east, "coming", CLUSTER, THERE),
        (west, "written", "us-east", HERE),
    ):
        begin, step = node.control.failovers.begin, west.control.failovers.step
        assert node.control_call(lambda done: begin(T, name, target, "", 0, done, named=token)) is None  # noqa: B023
        if name == "here":
            assert west.control_call(lambda done: step("activate", T, "here", THERE, done)) is None  # noqa: B023
    return Saved(west.meta, west.files)


def revive(world: World) -> None:
    """moving is being fenced: a consumer has messages in its hands."""
    client = world.consume(T, "moving", replicated=True)
    client.flow(1)
    world.work()
    world.advance_to(world.now_ms + 5_000)  # what a start brings is written to the topics
    begin = world.control.failovers.begin
    world.call(lambda done: begin(T, "moving", "us-east", "", 10_000, done, named=HERE))


def _tokens(text: str) -> str:
    return f'{{"tokens": {{"{T}": "{text}"}}}}'


def _step_cases(
    step: Step, good: tuple[str, str], over: tuple[str, str] | None
) -> list[tuple[str, str, str | None, int]]:
    cases = [
        ("POST", f"{FO}/t/{good[0]}/{step}", _tokens(good[1]), 200),
        ("POST", f"{FO}/t/{good[0]}/{step}", _tokens("nonsense"), 400),
        ("POST", f"{FO}/t/{good[0]}/{step}", '{"tokens": {}}', 400),
        ("POST", f"{FO}/many/{good[0]}/{step}", _tokens(good[1]), 400),
        ("POST", f"{FO}/t/no/{step}", _tokens(good[1]), 404),
        ("POST", f"{FO}/missing/s/{step}", _tokens(good[1]), 404),
        ("POST", f"{FO}/t/pulsar.dedup/{step}", _tokens(good[1]), 412),
    ]
    return cases if over is None else [*cases, ("POST", f"{FO}/t/{over[0]}/{step}", _tokens(over[1]), 409)]


CASES: list[tuple[str, str, str | None, int]] = [
    ("GET", f"{FO}/t/s", None, 200),
    ("GET", f"{FO}/many/s", None, 200),
    ("GET", f"{FO}/missing/s", None, 404),
    ("GET", f"{FO}/t/no", None, 404),
    ("GET", f"{FO}/t/pulsar.dedup", None, 412),
    ("GET", f"{FO}/t/s/wait?since=0&wait_ms=10", None, 200),
    ("GET", f"{FO}/t/s/wait?since=long", None, 400),
    ("GET", f"{FO}/many/s/wait", None, 400),
    ("GET", f"{FO}/missing/s/wait", None, 404),
    ("GET", f"{FO}/t/pulsar.dedup/wait", None, 412),
    ("GET", f"{FO}/t/s/merged?source=us-east&position=7:3&wait_ms=5", None, 200),
    ("GET", f"{FO}/t/s/merged?source=us-east&position=somewhere", None, 400),
    ("GET", f"{FO}/t/s/merged?source=Upper.Case&position=7:3", None, 412),
    ("POST", f"{FO}/t/s/fence", '{"to": "us-east"}', 200),
    ("POST", f"{FO}/many/s/fence", '{"to": "us-east", "above": "5@us-east", "grace_ms": 10}', 200),
    ("POST", f"{FO}/t/moving/fence", '{"to": "us-east"}', 200),
    ("POST", f"{FO}/t/s/fence", '{"to": "us-west"}', 400),
    ("POST", f"{FO}/t/s/fence", "{}", 400),
    ("POST", f"{FO}/t/s/fence", f'{{"to": "us-east", "tokens": {{"{T}": "1800000000000@us-west"}}}}', 200),
    ("POST", f"{FO}/t/s/fence", f'{{"to": "us-east", "tokens": {{"{T}": "nonsense"}}}}', 400),
    ("POST", f"{FO}/t/s/fence", '{"to": "us-east", "tokens": ["5@us-west"]}', 400),
    ("POST", f"{FO}/t/here/fence", f'{{"to": "us-east", "tokens": {{"{T}": "5@us-west"}}}}', 409),
    ("POST", f"{FO}/missing/s/fence", '{"to": "us-east"}', 404),
    ("POST", f"{FO}/t/moving/fence", '{"to": "eu-central"}', 409),
    ("POST", f"{FO}/t/s/fence", '{"to": "Upper.Case"}', 412),
    *_step_cases("activate", ("coming", THERE), ("here", "5@us-east")),
    *_step_cases("complete", ("written", HERE), ("moving", HERE)),
    *_step_cases("put-back", ("moving", HERE), ("moving", "5@us-west")),
    *_step_cases("give-up", ("s", "5@us-east"), ("here", THERE)),
    *_step_cases("call-off", ("moving", HERE), None),
    ("GET", f"{FO}/t/s/unacknowledged", None, 200),
    ("GET", f"{FO}/many/s/unacknowledged", None, 400),
    ("GET", f"{FO}/t/no/unacknowledged", None, 404),
    ("GET", f"{FO}/t/pulsar.dedup/unacknowledged", None, 412),
    ("POST", f"{FO}/t/s/acknowledged", '{"runs": [["us-west", 5, 0, 9]]}', 200),
    ("POST", f"{FO}/t/s/acknowledged", '{"runs": [["us-west", 5, 9, 0]]}', 400),
    ("POST", f"{FO}/t/no/acknowledged", '{"runs": []}', 404),
    ("POST", f"{FO}/t/pulsar.dedup/acknowledged", '{"runs": []}', 412),
    ("POST", f"{FO}/t/moving/unfence", None, 200),
    ("POST", f"{FO}/t/s/unfence", None, 200),
    ("POST", f"{FO}/missing/s/unfence", None, 404),
    ("POST", f"{FO}/t/pulsar.dedup/unfence", None, 412),
]
