"""Names in paths: every valid one arrives as it is, every other one is refused, none is met by two spellings."""

import asyncio
import string
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.admin.client import segment, topic_path
from magnetar.core.errors import NameNotValid
from magnetar.core.names import TopicName, check_subscription
from tests.web.conftest import World, raw_answer, told

names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.text(string.ascii_letters + "./\\%_-:=?#&+ ;@~", min_size=1, max_size=20),
    st.sampled_from(
        ["..", ".", "%2e%2e", "a%2Fb", "%", "%%", "a b", "+", "a+b", "%00", "partitions", "stats", "a/../b", "{", "}{"]
    ),
)


def _run(names: list[str]) -> None:
    async def story(world: World) -> None:
        for name in names:
            for topic in world.topics():
                world.delete(topic)
            answer = await world.ask("PUT", f"/admin/v2/persistent/public/default/{segment(name)}")
            try:
                expected = TopicName.parse(f"persistent://public/default/{name}")
            except NameNotValid:
                assert answer.status in {404, 412, 501}, (name, answer.status)
                assert answer.reason
                assert world.topics() == []
            else:
                assert answer.status == 204, (name, answer.status, answer.data)
                assert world.topics() == [str(expected)]

    told(story)


@settings(max_examples=25, deadline=None)
@given(st.lists(names, min_size=1, max_size=10))
def test_a_topic_is_created_under_its_very_name_or_not_at_all(names: list[str]) -> None:
    _run(names)


@settings(max_examples=25, deadline=None)
@given(st.lists(names, min_size=1, max_size=10))
def test_a_subscription_is_created_under_its_very_name_or_not_at_all(names: list[str]) -> None:
    topic = "persistent://public/default/t"

    async def story(world: World) -> None:
        world.create(topic)
        for name in names:
            for there in world.control.subscriptions.names(topic):
                world.call(lambda done, there=there: world.control.subscriptions.delete(topic, there, True, done))  # type: ignore[misc]
            answer = await world.ask("PUT", topic_path("t", "subscription", name))
            try:
                check_subscription(name)
            except NameNotValid:
                assert answer.status in {404, 412, 501} and answer.reason, (name, answer.status)
                assert world.control.subscriptions.names(topic) == []
            else:
                assert (answer.status, world.control.subscriptions.names(topic)) == (204, [name]), name

    told(story)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=10))
def test_any_bytes_in_a_path_get_an_answer_of_the_one_shape(parts: list[bytes]) -> None:
    async def story(world: World) -> None:
        for part in parts:
            answer = await world.ask("GET", f"/admin/v2/persistent/public/default/{quote(part, safe='')}/stats")
            assert answer.status in {404, 412, 501}, (part, answer.status)
            assert answer.reason

    told(story)


def test_a_path_that_is_not_utf8_is_refused() -> None:
    async def story(world: World) -> None:
        answer = await world.ask("PUT", "/admin/v2/persistent/public/default/%FF")
        assert answer.status == 412 and "UTF-8" in answer.reason
        assert world.topics() == []

    told(story)


def test_the_longest_name_fits_and_a_longer_one_is_refused() -> None:
    head = "persistent://public/default/"
    _run(["x" * (512 - len(head)), "x" * (513 - len(head)), "ü" * 242, "ü" * 243, "x" * 6000])


def test_raw_dots_do_not_lead_anywhere() -> None:
    async def story(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
        for path in (
            "/admin/v2/persistent/../clusters",
            "/admin/v2/persistent/public/default/../../x/stats",
            "/./metrics/..",
        ):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n".encode())
            status, body = await raw_answer(reader)
            assert status in {b"404", b"412", b"501"}, (path, status)
            assert b'"reason"' in body
        writer.close()
        await writer.wait_closed()

    told(story)


def test_a_plus_is_a_space_as_java_and_go_write_it() -> None:
    async def story(world: World) -> None:
        at = "/admin/v2/persistent/public/default"
        for path in ("a+b", "a%2Bb", "%C3%BC+c%25"):
            await world.have(("PUT", f"{at}/{path}", None))
        full = "persistent://public/default"
        assert world.topics() == [f"{full}/a b", f"{full}/a+b", f"{full}/ü c%"]
        await world.have(("PUT", f"{at}/a+b/subscription/one+%2B%20two%2F", None))
        assert world.control.subscriptions.names(f"{full}/a b") == ["one + two/"]
        assert world.control.subscriptions.names(f"{full}/a+b") == []
        await world.have(("DELETE", f"{at}/a+b?force=true", None))
        assert f"{full}/a+b" in world.topics(), "the other topic stays"
        assert f"{full}/a b" not in world.topics()

    told(story)
