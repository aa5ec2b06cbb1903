"""Schemas over links, with whole brokers in one process: each message can be decoded everywhere with its own schema."""

import json
from typing import Any

import pytest

from magnetar.core.ids import NONE
from magnetar.core.names import NamespaceName, TopicName
from magnetar.schemas.keyvalue import put_together
from magnetar.schemas.registry import SCHEMA_PREFIX, schema_id
from magnetar.schemas.types import Definition, SchemaType
from magnetar.storage.entries import NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import wipe
from tests.support.geoworld import TOPIC, Node, World
from tests.support.restoring import restore

DEFAULT = NamespaceName("public", "default")
NAME = TopicName.parse(TOPIC)


def schema(*fields: str, required: bool = False) -> Definition:
    """A record of ints; those behind the first have a default, unless `required`."""
    first, *more = fields
    described: list[dict[str, Any]] = [{"name": first, "type": "int"}]
    described += [{"name": one, "type": "int"} | ({} if required else {"default": 0}) for one in more]
    data = json.dumps({"type": "record", "name": "R", "fields": described}).encode()
    return Definition(SchemaType.AVRO, data, {}, "R")


A, AB, AC = schema("a"), schema("a", "b"), schema("a", "c")
CLASH = schema("a", "b", required=True)


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def register(node: Node, definition: Definition, topic: TopicName = NAME) -> int:
    got: list[Any] = []
    node.run(lambda: node.broker.schemas.register(topic, definition, lambda *answer: got.append(answer)))
    node.work()
    number, error = got[0]
    assert error is None, error
    return int(number)


def publish(node: Node, text: str, stamp: bytes | None, topic: str = TOPIC) -> None:
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=7, schema_version=stamp)
    entry = NewEntry(metadata.build(meta, text.encode()), 0, 1, 7)
    node.run(lambda: node.broker.topics[topic].append([entry], lambda _append, _error: None))
    node.work()


def stored(node: Node, topic: str = TOPIC) -> list[tuple[str, str, bytes | None]]:
    """(payload, origin, schema version) of all messages, in order."""
    log = node.broker.log_of(topic)
    assert log is not None
    found: list[tuple[str, str, bytes | None]] = []
    entries = node.log.read(log.locations(log.first, 10_000, 1 << 30)) if log.first != NONE else []
    for entry in entries:
        seen = metadata.inspect(entry.data, message_bytes_max=1 << 20)
        if not seen.metadata.HasField("marker_type"):
            carried = seen.metadata.schema_version if seen.metadata.HasField("schema_version") else None
            found.append((entry.data[seen.metadata_end :].decode(), seen.metadata.replicated_from, carried))
    return found


def definition_at(node: Node, carried: bytes | None, topic: TopicName = NAME) -> bytes | None:
    """What a consumer here decodes a message with."""
    if carried is None:
        return None
    record = node.broker.schemas.registry.at(schema_id(topic), int.from_bytes(carried, "big"))
    return record.data if record is not None else None


def blocked(node: Node, to: str = "b", topic: str = TOPIC) -> Any:
    return node.broker.links.sources[to].topics[topic].blocked


@pytest.fixture
def world() -> World:
    return two()


def two(names: str = "ab") -> World:
    world = World(names)
    for name in names:
        change = world[name].broker.resources.set_replication(DEFAULT, list(names))
        world[name].apply(change)
    world[names[0]].create()
    world.settle()
    return world


def test_numbers_differ_and_schemas_do_not(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, AB)
    assert [register(a, A), register(a, AB)] == [0, 1]
    for text, stamp in [("one", 0), ("two", 1), ("three", 0), ("four", 1)]:
        publish(a, text, version(stamp))
    publish(a, "none", None)
    world.settle()
    got = stored(b)
    assert [(text, origin) for text, origin, _ in got] == [
        (text, "a") for text in ("one", "two", "three", "four", "none")
    ]
    assert [definition_at(b, carried) for *_, carried in got] == [A.data, AB.data, A.data, AB.data, None]
    assert [carried for *_, carried in got[:2]] == [version(1), version(0)], "each cluster has its own numbers"


def test_both_ways_and_a_third() -> None:
    world = two("abc")
    world.cut |= world.links
    definitions = {"a": [A, AB], "b": [AC, A], "c": [AB, A]}
    for name, brought in definitions.items():
        world[name].apply(
            world[name].broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
        )
        for number, one in enumerate(brought):
            assert register(world[name], one) == number
            publish(world[name], f"{name}{number}", version(number))
    world.cut.clear()
    world.settle()
    expected = {f"{name}{n}": one.data for name, brought in definitions.items() for n, one in enumerate(brought)}
    for name in "abc":
        assert {text: definition_at(world[name], carried) for text, _, carried in stored(world[name])} == expected


def test_versions_that_nobody_can_explain_are_left_out_and_told(world: World) -> None:
    a, b = world["a"], world["b"]
    register(a, A)
    for text, stamp in [("good", version(0)), ("short", b"\x01"), ("never", version(7)), ("negative", b"\xff" * 8)]:
        publish(a, text, stamp)
    world.settle()
    assert [(text, carried) for text, _, carried in stored(b)] == [
        ("good", version(0)), ("short", None), ("never", None), ("negative", None)
    ]  # fmt: skip
    assert b.broker.links.destination.schemas.dropped["a"] == 3
    assert sum("cannot explain" in note.text for note in b.notes) == 1
    register(a, AB)
    for number in range(2, 7):
        register(a, schema("a", f"x{number}"))
    assert register(a, AC) == 7
    publish(a, "now", version(7))
    world.settle()
    assert definition_at(b, stored(b)[-1][2]) == AC.data, "the number was given meanwhile"


def test_deleted_at_the_source_while_messages_are_on_their_way(world: World) -> None:
    a, b = world["a"], world["b"]
    world.cut.add(("a", "b"))
    register(a, A)
    publish(a, "one", version(0))
    a.control_call(lambda done: a.control.schemas.delete(TOPIC, False, lambda _version, error: done(error)))
    assert register(a, CLASH) == 2
    publish(a, "two", version(2))
    world.cut.clear()
    b.apply(b.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    world.settle()
    assert [definition_at(b, carried) for *_, carried in stored(b)] == [A.data, CLASH.data]


def test_numbers_that_begin_again_are_other_schemas(world: World) -> None:
    a, b = world["a"], world["b"]
    register(a, A)
    publish(a, "one", version(0))
    world.settle()
    world.now_ms += 1
    a.control_call(lambda done: a.control.schemas.delete(TOPIC, True, lambda _version, error: done(error)))
    assert register(a, AB) == 0
    publish(a, "two", version(0))
    world.settle()
    assert [definition_at(b, carried) for *_, carried in stored(b)] == [A.data, AB.data]


def test_forgotten_at_the_destination(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, AC)
    register(a, A)
    publish(a, "one", version(0))
    world.settle()
    b.control_call(lambda done: b.control.schemas.delete(TOPIC, True, lambda _version, error: done(error)))
    publish(a, "two", version(0))
    world.settle()
    assert definition_at(b, stored(b)[-1][2]) == A.data
    assert stored(b)[-1][2] == version(0)


def test_an_incompatible_schema_stops_its_topic_there_until_it_fits(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, A)
    register(a, A)
    a.apply(a.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    assert register(a, CLASH) == 1
    for text, stamp in [("one", 0), ("two", 1), ("three", 0)]:
        publish(a, text, version(stamp))
    world.settle()
    assert [text for text, *_ in stored(b)] == ["one"]
    stop = blocked(a)
    assert stop.kind == "schema"
    for part in (str(stop.position), "version 1", "version 0", "AVRO", "magnetar links skip a:b", "\n"):
        assert (part in stop.reason) == (part != "\n"), stop.reason
    (link,) = a.control.links.states()
    (told,) = link["topics"]
    assert (told["blocked"], told["blocked_at"], told["lag_messages"]) == ("schema", str(stop.position), 2)
    conflict = told["schema_conflict"]
    assert (conflict["source"]["cluster"], conflict["source"]["version"], conflict["source"]["type"]) == (
        "a",
        1,
        "AVRO",
    )
    assert (conflict["target"]["cluster"], conflict["target"]["version"]) == ("b", 0)
    assert conflict["strategy"] == "FULL"
    assert "version 0" in conflict["cause"]
    (preview,) = a.control.links.skip_preview("b", TOPIC, None)
    assert preview["messages"] == 1, "the one in the way"
    b.apply(b.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    world.settle()
    assert [definition_at(b, carried) for *_, carried in stored(b)] == [A.data, CLASH.data, A.data]
    assert blocked(a) is None


def test_deleting_the_schema_there_makes_room_and_what_is_known_stays_readable(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, A)
    register(a, A)
    a.apply(a.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    register(a, CLASH)
    for text, stamp in [("one", 0), ("two", 1), ("three", 0)]:
        publish(a, text, version(stamp))
    world.settle()
    assert blocked(a) is not None
    b.control_call(lambda done: b.control.schemas.delete(TOPIC, False, lambda _version, error: done(error)))
    world.settle()
    assert [definition_at(b, carried) for *_, carried in stored(b)] == [A.data, CLASH.data, A.data]
    assert b.broker.schemas.registry.latest(TOPIC) is not None
    live = b.broker.schemas.registry.live(TOPIC)
    assert [one.data for _, one in live] == [CLASH.data], (
        "a deleted schema is read by its number, not put in force again"
    )


def test_a_restart_asks_again_and_gets_the_same_numbers(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, AC)
    register(a, A)
    publish(a, "one", version(0))
    world.settle()
    b.restart()
    publish(a, "two", version(0))
    world.settle()
    got = stored(b)
    assert [definition_at(b, carried) for *_, carried in got] == [A.data, A.data]
    assert len(b.broker.schemas.registry.live(TOPIC)) == 2, "nothing is registered twice"


def test_down_between_registering_and_publishing(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, AC)
    register(a, A)
    b.hold_log = True
    publish(a, "one", version(0))
    for _ in range(20):  # the entry waits for b's disk
        world.pump()
    assert [one.data for _, one in b.broker.schemas.registry.live(TOPIC)] == [AC.data, A.data]
    b.hold_log = False
    b.restart()
    assert stored(b) == [], "registered, and not published"
    publish(a, "two", version(0))
    world.settle()
    assert [(text, definition_at(b, carried)) for text, _, carried in stored(b)] == [("one", A.data), ("two", A.data)]
    assert [one.data for _, one in b.broker.schemas.registry.live(TOPIC)] == [AC.data, A.data]


def test_a_registration_that_fails_is_tried_again(world: World) -> None:
    a, b = world["a"], world["b"]
    register(a, A)
    publish(a, "before", None)
    world.settle()
    b.hold_stores = True
    publish(a, "one", version(0))
    for _ in range(20):
        world.pump()
    held = [store for store in b.stores if any(key.startswith(SCHEMA_PREFIX) for key in store.puts)]
    assert len(held) == 1
    assert b.store.answer("the disk is full", held[0])
    b.hold_stores = False
    assert not b.broker.schemas.registry.live(TOPIC), "neither a version nor a hole"
    world.settle()
    assert (blocked(a), stored(b)[-1]) == (None, ("one", "a", version(0)))
    assert definition_at(b, version(0)) == A.data


def test_automatic_updates_off_block_too(world: World) -> None:
    a, b = world["a"], world["b"]
    b.apply(b.broker.resources.change_policies(DEFAULT, is_allow_auto_update_schema=False))
    register(a, A)
    publish(a, "one", version(0))
    world.settle()
    assert "automatic updates" in blocked(a).reason
    assert "schema-auto-update-over-links on" in blocked(a).reason
    register(b, A)
    world.settle()
    assert definition_at(b, stored(b)[0][2]) == A.data
    # For links alone they go on (PIP-433), as far as schemas are compatible; producers still may not.
    register(a, AB)
    publish(a, "two", version(1))
    world.settle()
    assert blocked(a).kind == "schema"
    b.apply(
        b.broker.resources.change_policies(
            DEFAULT, is_allow_auto_update_schema=False, is_allow_auto_update_schema_with_replicator=True
        )
    )
    world.settle()
    assert definition_at(b, stored(b)[1][2]) == AB.data
    assert not b.broker.schemas.rules(NAME).auto_update
    b.apply(
        b.broker.resources.change_policies(
            DEFAULT, is_allow_auto_update_schema=True, is_allow_auto_update_schema_with_replicator=False
        )
    )
    register(a, AC)
    publish(a, "three", version(2))
    world.settle()
    assert blocked(a).kind == "schema", "nor links where producers may"


def test_partitions_share_what_a_link_registers() -> None:
    world = World("ab")
    for name in "ab":
        world[name].apply(world[name].broker.resources.set_replication(DEFAULT, ["a", "b"]))
    a, b = world["a"], world["b"]
    base = TopicName.parse("persistent://public/default/p")
    change = a.broker.resources.create_partitioned(base, 3, {})
    a.run(lambda: a.broker.changes.create_partitions(base, 3, change, lambda _error: None))
    world.settle()
    register(a, A, base)
    for number in range(3):
        publish(a, f"m{number}", version(0), str(base.with_partition(number)))
    world.settle()
    for number in range(3):
        (one,) = stored(b, str(base.with_partition(number)))
        assert definition_at(b, one[2], base) == A.data
    assert len(b.broker.schemas.registry.live(str(base))) == 1


def test_foreign_schemas_are_for_reading_alone(world: World) -> None:
    a, b = world["a"], world["b"]
    register(b, A)
    register(a, A)
    a.apply(a.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    register(a, CLASH)
    for text, stamp in [("one", 0), ("two", 1), ("three", 0)]:
        publish(a, text, version(stamp))
    world.settle()
    assert blocked(a).kind == "schema"
    foreign(b)
    world.settle()
    assert blocked(a) is None, "it goes on by itself"
    assert [definition_at(b, carried) for *_, carried in stored(b)] == [A.data, CLASH.data, A.data]
    registry = b.broker.schemas.registry
    assert [one.data for _, one in registry.live(TOPIC)] == [A.data]
    newest = registry.latest(TOPIC)
    assert newest is not None
    assert newest[0] == 0, "the newest is still the producers' own"
    assert b.control.schemas.one(TOPIC, 1)["foreign"] is True
    with pytest.raises(AssertionError, match="cannot read"):
        register(b, CLASH)  # producers here still obey the strategy
    assert register(b, AB) == 2
    b.restart()
    assert [one.data for _, one in b.broker.schemas.registry.live(TOPIC)] == [A.data, AB.data]
    publish(a, "four", version(1))
    world.settle()
    assert stored(b)[-1][2] == version(1), "known under its number after a restart"


def test_a_foreign_schema_that_a_producer_brings_later_is_in_force_under_a_number_of_its_own(world: World) -> None:
    a, b = world["a"], world["b"]
    foreign(b)
    register(a, A)
    publish(a, "one", version(0))
    world.settle()
    assert b.broker.schemas.registry.latest(TOPIC) is None
    assert register(b, A) == 1
    publish(a, "two", version(0))
    world.settle()
    assert [definition_at(b, carried) for *_, carried in stored(b)] == [A.data, A.data]


def foreign(node: Node) -> None:
    """Set the namespace's policy."""
    node.apply(node.broker.resources.change_policies(DEFAULT, schema_replication="foreign"))


def test_what_is_restored_is_read_with_what_it_was_written_with(world: World) -> None:
    a, b = world["a"], world["b"]
    a.apply(a.broker.resources.change_policies(DEFAULT, schema_compatibility_strategy="ALWAYS_COMPATIBLE"))
    foreign(b)
    register(b, AC)
    for one in (A, CLASH, AB):
        register(a, one)
    for number in (1, 0, 2, 0):
        publish(a, f"m{number}", version(number))
    publish(a, "none", None)
    world.settle()
    wanted = [CLASH.data, A.data, AB.data, A.data, None]
    assert [definition_at(b, carried) for *_, carried in stored(b)] == wanted
    wipe(world, "a")
    a.apply(a.broker.resources.set_replication(DEFAULT, ["a", "b"]))
    world.settle()
    restore(world, "b")
    got = stored(a)
    assert [(text, origin) for text, origin, _ in got] == [(f"m{n}", "") for n in (1, 0, 2, 0)] + [("none", "")]
    assert [definition_at(a, carried) for *_, carried in got] == wanted, "also one that does not fit the others"
    again = [one for one, *_ in stored(a)]
    restore(world, "b")
    assert [one for one, *_ in stored(a)] == again


def test_two_links_bring_the_same_schema_at_once() -> None:
    world = two("abc")
    a, b, c = (world[name] for name in "abc")
    world.cut |= world.links
    for node in (a, b):
        register(node, A)
        publish(node, f"from {node.name}", version(0))
    world.settle()
    world.cut.clear()
    world.cut |= {("a", "b"), ("b", "a")}
    world.settle()  # handshakes, and the topic, are there
    assert len(c.broker.schemas.registry.live(TOPIC)) == 1
    world.cut |= world.links
    c.control_call(lambda done: c.control.schemas.delete(TOPIC, True, lambda _version, error: done(error)))
    for node in (a, b):
        publish(node, f"again from {node.name}", version(0))
    c.hold_stores = True
    world.cut.clear()
    world.pump()
    world.pump()
    assert not c.broker.schemas.registry.live(TOPIC), "both wait for the store"
    c.hold_stores = False
    world.settle()
    assert len(c.broker.schemas.registry.live(TOPIC)) == 1
    again = [(text, definition_at(c, carried)) for text, _, carried in stored(c) if text.startswith("again")]
    assert sorted(again) == [("again from a", A.data), ("again from b", A.data)]


def test_key_value_schemas_keep_both_parts_and_where_the_key_travels(world: World) -> None:
    a, b = world["a"], world["b"]
    properties = {
        "key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED",
        "key.schema.name": "k", "value.schema.name": "v",
    }  # fmt: skip
    pair = Definition(SchemaType.KEY_VALUE, put_together(b"", AB.data), properties, "kv")
    register(b, pair)
    register(a, Definition(SchemaType.KEY_VALUE, put_together(b"", A.data), properties, "kv"))
    register(a, pair)
    publish(a, "one", version(0))
    publish(a, "two", version(1))
    world.settle()
    records = [b.broker.schemas.registry.at(TOPIC, int.from_bytes(carried or b"", "big")) for *_, carried in stored(b)]
    assert [(one.data, one.properties) for one in records if one is not None] == [
        (put_together(b"", A.data), properties),
        (put_together(b"", AB.data), properties),
    ]
    assert stored(b)[1][2] == version(0)


def test_a_connection_that_dies_with_its_question_leaves_nothing_behind(world: World) -> None:
    a, b = world["a"], world["b"]
    register(a, A)
    publish(a, "one", version(0))
    asked: list[pb.CommandGeoSchemasWanted] = []
    world._answer_schemas = lambda _a, _b: asked.append  # type: ignore[method-assign, assignment, return-value]
    world.settle()
    desk = b.broker.links.destination.schemas
    assert (len(asked) > 0, stored(b)) == (True, [])
    assert desk.parked_bytes > 0
    b.run(b.broker.links.disconnected, 1)
    assert desk.parked_bytes == 0
    late = pb.CommandGeoSchemasBrought(ticket=asked[0].ticket, missing=[0])
    b.run(desk.brought, 1, late)
    assert stored(b) == [], "nobody waits for it any more"
    del world._answer_schemas
    world.settle()
    assert definition_at(b, stored(b)[0][2]) == A.data
