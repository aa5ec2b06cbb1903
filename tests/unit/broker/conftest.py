"""A broker in memory."""

import pytest

from tests.support.geoworld import Node, World


@pytest.fixture
def node() -> Node:
    """A cluster by itself, with the topic."""
    node = World("a")["a"]
    node.create()
    return node
