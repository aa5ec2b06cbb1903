"""Properties of namespaces: as Pulsar's tools set, read and forget them."""

import json
from urllib.parse import quote

from magnetar.metadata.policies.namespace import PROPERTIES_MAX
from tests.web.conftest import Tell, World

N = "/admin/v2/namespaces/public/default"


async def properties(world: World) -> object:
    answer = await world.ask("GET", f"{N}/properties")
    assert answer.status == 200
    return json.loads(answer.data)


def test_they_are_set_read_and_forgotten(tell: Tell) -> None:
    async def story(world: World) -> None:
        assert await properties(world) == {}
        await world.have(
            ("PUT", f"{N}/properties", '{"team": "us", "cost": "7"}'), ("PUT", f"{N}/property/team/me", None)
        )
        assert await properties(world) == {"team": "me", "cost": "7"}
        await world.have(("PUT", f"{N}/properties", '{"more": "x"}'))
        assert await properties(world) == {"team": "me", "cost": "7", "more": "x"}

        one = await world.ask("GET", f"{N}/property/team")
        assert (one.status, one.data) == (200, b"me"), "bare, as Pulsar's tools show it"
        gone = await world.ask("DELETE", f"{N}/property/team")
        assert (gone.status, gone.data) == (200, b"me"), "what was forgotten"
        assert (await world.ask("GET", f"{N}/property/team")).status == 204
        assert (await world.ask("DELETE", f"{N}/property/team")).status == 204
        assert await properties(world) == {"cost": "7", "more": "x"}

        await world.have(("DELETE", f"{N}/properties", None))
        assert await properties(world) == {}

    tell(story)


def test_any_text_will_do(tell: Tell) -> None:
    async def story(world: World) -> None:
        key, value = "who/what", "größe/länge + 1 %41"
        await world.have(("PUT", f"{N}/property/{quote(key, safe='')}/{quote(value, safe='')}", None))
        assert await properties(world) == {key: value}
        one = await world.ask("GET", f"{N}/property/{quote(key, safe='')}")
        assert one.data == value.encode()

    tell(story)


def test_a_namespace_has_them_from_its_creation_and_shows_them(tell: Tell) -> None:
    async def story(world: World) -> None:
        await world.have(("PUT", "/admin/v2/namespaces/public/new", '{"properties": {"team": "us"}}'))
        shown = await world.ask("GET", "/admin/v2/namespaces/public/new")
        assert json.loads(shown.data)["properties"] == {"team": "us"}
        shown = await world.ask("GET", N)
        assert json.loads(shown.data)["properties"] == {}  # as in Pulsar

    tell(story)


def test_null_is_none_of_them(tell: Tell) -> None:
    """Tools that name every field say so."""

    async def story(world: World) -> None:
        await world.have(("PUT", "/admin/v2/namespaces/public/new", '{"properties": null}'))
        shown = await world.ask("GET", "/admin/v2/namespaces/public/new/properties")
        assert json.loads(shown.data) == {}

    tell(story)


def test_so_many_and_no_more(tell: Tell) -> None:
    async def story(world: World) -> None:
        full = {str(number): "x" for number in range(PROPERTIES_MAX)}
        await world.have(("PUT", f"{N}/properties", json.dumps(full)))
        refused = await world.ask("PUT", f"{N}/property/one/more")
        assert refused.status == 400
        assert f"at most {PROPERTIES_MAX}" in refused.reason
        await world.have(("PUT", f"{N}/property/7/other", None))
        assert await properties(world) == full | {"7": "other"}
        refused = await world.ask(
            "PUT", "/admin/v2/namespaces/public/new", json.dumps({"properties": full | {"z": "z"}})
        )
        assert refused.status == 400

    tell(story)
