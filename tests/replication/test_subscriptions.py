"""Replicated subscriptions between real brokers over real Spark, with the official client."""

import pytest

from tests.replication.conftest import Mesh
from tests.support.replicated_subscriptions import (
    batch_indexes_and_cumulative_acknowledgements,
)

pytestmark = pytest.mark.spark


def test_batch_indexes_and_cumulative_acknowledgements(mesh: Mesh, topic: str) -> None:
    batch_indexes_and_cumulative_acknowledgements(mesh, topic)
