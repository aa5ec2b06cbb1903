"""Topics that store nothing, made by an administrator."""

import pytest

from magnetar.core.errors import BrokerError, ErrorCode
from tests.support.geoworld import World

PASSING = "non-persistent://public/default/t"


@pytest.mark.parametrize("allowed", [True, False])
def test_an_administrator_makes_one_whether_clients_may_or_not(allowed: bool) -> None:
    node = World("a", limits={"auto_create_topics": allowed})["a"]
    assert node.control_call(lambda done: node.control.topics.create(PASSING, None, {}, done)) is None
    assert node.control.topics.names("public/default") == [PASSING]
    if not allowed:
        with pytest.raises(BrokerError) as refused:
            node.broker.nonpersistent.open(node.broker.nonpersistent.topics[PASSING].name._replace(local="other"))
        assert refused.value.code is ErrorCode.TOPIC_NOT_FOUND
