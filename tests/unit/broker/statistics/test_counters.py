"""Counters of `/metrics` never fall, whatever goes away."""

from magnetar.admin.metrics.families import REPLICATED_LEVELS
from magnetar.broker.admin.statistics import TOPICS_A_STEP, Scrape, ScrapeSteps
from magnetar.broker.replicated_subscriptions.machine_host import LEVELS
from magnetar.core.ids import LATEST
from tests.support.geosteps import consumer, two
from tests.support.geoworld import TOPIC, Node, World

OTHER = TOPIC + "-2"


def at_once(steps: ScrapeSteps) -> Scrape:
    """All steps of a scrape."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: Scrape = ended.value
            return found


def create_all(node: Node, count: int) -> list[str]:
    """So many topics."""
    names = [f"{TOPIC}-{number}" for number in range(count)]
    for name in names:
        node.create(name)
    node.world.settle()
    return names


def test_a_scrape_looks_at_each_topic_once_and_a_step_at_few() -> None:
    """Work is counted, not time: topics that are read for the figures of the whole broker and for the rows."""
    world = World(["a"])
    node = world["a"]
    names = create_all(node, 2 * TOPICS_A_STEP + 20)
    steps, sizes, read = node.control.statistics.scrape_steps(10, 10), [], 0
    series = node.broker.series
    while True:
        ended = next(steps, "ended") == "ended"
        done = read
        reading = series.topics._reading
        read = len(reading.rows) + reading.idle + reading.others if reading is not None else len(names)
        sizes.append(read - done)
        if ended:
            break
    assert sizes == [TOPICS_A_STEP, TOPICS_A_STEP, 20]


def test_what_changes_while_a_scrape_is_under_way_never_makes_a_counter_fall() -> None:
    world = World(["a"])
    node = world["a"]
    names = create_all(node, TOPICS_A_STEP + 10)
    for name in names:
        node.publish(b"1", topic=name)
    world.settle()

    def messages(steps: ScrapeSteps) -> int:
        _, _, topics, _ = at_once(steps)
        assert topics.rest is not None
        return topics.rest[0]

    before = messages(node.control.statistics.scrape_steps(1, 1))
    assert before == len(names) - 1
    steps = node.control.statistics.scrape_steps(1, 1)
    next(steps)
    for name in (names[3], names[-1]):  # one that was read in the first step, one that was not
        assert node.control_call(lambda done, name=name: node.control.topics.delete(name, True, done)) is None  # type: ignore[misc]
    world.settle()
    assert messages(steps) == before
    assert messages(node.control.statistics.scrape_steps(1, 1)) == before


def test_a_second_scrape_waits_for_the_first_and_for_one_that_is_given_up_no_longer() -> None:
    world = World(["a"])
    node = world["a"]
    names = create_all(node, TOPICS_A_STEP + 10)
    first, second = (node.control.statistics.scrape_steps(10, 10) for _ in range(2))
    next(first)
    for _ in range(5):
        next(second)  # it only waits
    first.close()
    broker, whole, topics, _ = at_once(second)
    assert broker["topics"] == whole.topics == len(names)
    assert len(topics.rows) == 10
    assert topics.left_out == len(names) - 10


def events(node: Node) -> dict[str, int]:
    counters: dict[str, int] = node.control.replicated.metrics()["counters"]
    return {name: value for name, value in counters.items() if name not in LEVELS}


def levels(node: Node) -> set[int]:
    return {value for name, value in node.control.replicated.metrics()["counters"].items() if name in LEVELS}


def fallen(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return [name for name, value in before.items() if after.get(name, -1) < value]


def busy() -> World:
    """Acknowledgements went through markers from a to b."""
    world = two()
    client, number = consumer(world["a"])
    positions = world["a"].publish(*(b"%d" % n for n in range(4)))
    world.advance(500)
    client.ack(number, *positions[:2])
    world.advance(2_000)
    client.unsubscribe(number)
    world.advance(1_000)
    assert events(world["a"])["markers_written"] > 0
    assert sum(events(world["b"]).values()) > 0
    return world


def test_the_page_knows_which_figures_are_levels() -> None:
    assert {family.key for family in REPLICATED_LEVELS} == LEVELS


def test_what_a_deleted_topic_counted_stays_counted() -> None:
    world = busy()
    for name in "ab":
        node = world[name]
        before = events(node)
        assert node.control_call(lambda done, n=node: n.control.topics.delete(TOPIC, True, done)) is None  # type: ignore[misc]
        world.advance(1_000)
        assert TOPIC not in node.broker.topics
        assert fallen(before, events(node)) == []
        assert levels(node) <= {0}
        node.create(OTHER)
        world.settle()
        assert fallen(before, events(node)) == []


def test_what_machines_counted_that_were_let_go_stays_counted() -> None:
    world = busy()
    before = events(world["a"])
    assert any(value for name, value in before.items() if name.startswith("exact_"))
    # Without subscriptions a topic has no machines; the next message finds that out.
    world["a"].broker.topics[TOPIC].replicated_subscriptions.states.known.clear()  # type: ignore[union-attr]
    world["a"].publish(b"x")
    world.settle()
    assert world["a"].broker.topics[TOPIC].replicated_subscriptions._made is None  # type: ignore[union-attr]
    assert fallen(before, events(world["a"])) == []


def test_what_a_link_gave_up_in_a_topic_that_is_gone_stays_counted() -> None:
    world = two()
    node = world["a"]
    world.cut.add(("a", "b"))
    node.publish(b"0", b"1", b"2")
    control = node.control
    assert node.control_call(lambda done: control.links.skip("b", TOPIC, LATEST, done)) is None

    def seen() -> tuple[int, int]:
        (link,) = node.control.links.states()
        return link["skipped_messages"], link["skipped_messages_total"]

    assert seen() == (3, 3)
    assert node.control_call(lambda done: control.topics.delete(TOPIC, True, done)) is None
    world.advance(1_000)
    assert seen() == (0, 3)
    world.cut.clear()
    node.create(OTHER)
    world.settle()
    node.restart()
    assert seen() == (0, 0), "since the start"


def shown(node: Node, topics_max: int, subscriptions_max: int = 10) -> tuple[dict[str, int], dict[str, int]]:
    """Messages sent, by row of topics and of subscriptions."""
    _, _, topics, subscriptions = at_once(node.control.statistics.scrape_steps(topics_max, subscriptions_max))
    by_topic = {text: counted[2] for text, counted in topics.rows.items()}
    by_subscription = {key[1]: counted[0] for key, counted in subscriptions.rows.items()}
    if topics.rest is not None:
        by_topic["(other)"] = topics.rest[2]
    if subscriptions.rest is not None:
        by_subscription["(other)"] = subscriptions.rest[0]
    return by_topic, by_subscription


def test_what_a_subscription_sent_stays_counted_when_it_is_gone() -> None:
    world = World(["a"])
    node = world["a"]
    node.create(TOPIC)
    world.settle()
    client, number = consumer(node)
    node.publish(*(b"%d" % n for n in range(4)))
    world.settle()
    assert shown(node, 10) == ({TOPIC: 4}, {"s": 4})
    assert node.control.statistics.topic(TOPIC)["msgOutCounter"] == 4
    client.unsubscribe(number)
    world.settle()
    assert shown(node, 10) == ({TOPIC: 4}, {})
    assert node.control.statistics.topic(TOPIC)["msgOutCounter"] == 4


def test_what_is_counted_together_does_not_fall_when_topics_and_subscriptions_go() -> None:
    world = World(["a"])
    node = world["a"]
    for topic in (TOPIC, OTHER):
        node.create(topic)
        world.settle()
    before = shown(node, 1)
    assert before[0].keys() == {TOPIC, "(other)"}
    client, number = consumer(node, topic=OTHER)
    node.publish(b"1", b"2", topic=OTHER)
    world.settle()
    assert shown(node, 1) == ({TOPIC: 0, "(other)": 2}, {"(other)": 2})
    client.unsubscribe(number)
    world.settle()
    assert shown(node, 1) == ({TOPIC: 0, "(other)": 2}, {"(other)": 2})
    # The row that becomes free is given to the other topic, which begins at zero in it.
    assert node.control_call(lambda done: node.control.topics.delete(TOPIC, True, done)) is None
    world.settle()
    assert shown(node, 1)[0] == {OTHER: 0, "(other)": 2}
    node.create(TOPIC)
    world.settle()
    assert shown(node, 1)[0] == {OTHER: 0, "(other)": 2}
    assert node.control_call(lambda done: node.control.topics.delete(OTHER, True, done)) is None
    world.settle()
    assert shown(node, 1)[0] == {TOPIC: 0, "(other)": 2}
