"""schemathesis against the whole interface as /openapi.json describes it: no operation answers 5xx to anything, each answers
with a status and a shape that it declares. Few examples of each, the same in every run.
"""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.path_values import PATH_VALUES
from tests.web.conftest import World, planted_bug

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = settings(
    max_examples=3,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


worlds: list[World] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A running interface; its broker has no room for ten thousand partitions."""
    ready, stop = threading.Event(), threading.Event()
    found: list[str] = []

    worlds.clear()

    async def serve() -> None:
        world = World(limits={"topics_max": 64})

        async def story(world: World) -> None:
            world.create("persistent://public/default/t", subscriptions=["s"])
            found.append(world.url)
            worlds.append(world)
            ready.set()
            await asyncio.to_thread(stop.wait)

        await world.within(story)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    stop.set()
    thread.join()


def test_a_planted_bug_is_found(url: str) -> None:
    """The checks can fail: an operation that meets a bug of the broker, and one whose answer is not what it says."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    with planted_bug(worlds[0]), pytest.raises(FailureGroup, match="Server error"):
        _try(schema["/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats"]["GET"], url)
    default = worlds[0].control.policies.default
    worlds[0].control.policies.default = lambda name: {"no": "number"}  # type: ignore[method-assign]
    try:
        answer = requests.get(f"{url}/admin/v2/namespaces/public/default/maxProducersPerTopic?applied=true", timeout=20)
        case = schema["/admin/v2/namespaces/{tenant}/{namespace}/maxProducersPerTopic"]["GET"].Case(
            path_parameters={"tenant": "public", "namespace": "default"}
        )
        with pytest.raises(FailureGroup, match="schema"):
            case.validate_response(answer, checks=CHECKS)
    finally:
        worlds[0].control.policies.default = default  # type: ignore[method-assign]


def test_everything_that_openapi_describes_answers_as_it_says(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    failures: list[str] = []
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if "/non-persistent/" in operation.path:
            continue  # the same functions as for persistent topics
        try:
            _try(operation, url)
        except FailureGroup as failure:
            failures.append(f"{operation.label}: {failure}")
        tried += 1
    assert not failures, "\n".join(failures)
    assert tried > 200


def _try(operation: Any, url: str) -> None:
    described = {str(status) for status in operation.definition.raw["responses"]}

    @EXAMPLES
    @given(case=operation.as_strategy(), known=st.sampled_from([True, True, False]))
    def run(case: Any, known: bool) -> None:
        # Random names are refused at the door; most of the time the names are those of something that is there.
        if known:
            case.path_parameters = {
                key: PATH_VALUES.get(key, value) for key, value in (case.path_parameters or {}).items()
            }
        response = case.call(base_url=url, timeout=20)
        # 501 is the answer to setting what is not built, where it is described; it is no fault of the broker's.
        told = response.status_code == 501 and "501" in described
        case.validate_response(response, checks=CHECKS[1:] if told else CHECKS)

    run()
