"""The brokers of clusters that have several, for `magnetar status`: which one serves, and which ones wait."""

import http
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from magnetar.admin.client import AdminClient, AdminError
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.settings import BrokerEndpoints

BROKER_COLUMNS: Final = ("cluster", "broker", "state", "service", "detail")

BrokerState = tuple[str, str]
"""The state of a broker, and the reason if it does not serve."""


class OneBroker(NamedTuple):
    """A broker of a cluster with several; `client` speaks to it alone."""

    cluster: str
    endpoints: BrokerEndpoints
    client: AdminClient


def several(config: Config, timeout_s: float) -> list[OneBroker]:
    """The brokers of clusters that have several."""
    return [
        OneBroker(cluster.name, broker, AdminClient(broker.admin_url, timeout_s=timeout_s))
        for cluster in config.clusters.values()
        if len(cluster.brokers) > 1
        for broker in cluster.brokers
    ]


def questions_to(brokers: Sequence[OneBroker]) -> list[Callable[[], BrokerState]]:
    """The questions to brokers, for `targets.answers_of`."""
    return [partial(_state, client, endpoints.web_url) for _, endpoints, client in brokers]


def rows_by_cluster(
    brokers: Sequence[OneBroker], answers: Sequence[BrokerState | MagnetarError]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of `BROKER_COLUMNS` by cluster; `answers` are those to `questions_to`."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for (cluster, endpoints, _), answer in zip(brokers, answers, strict=True):
        state, detail = ("down", str(answer)) if isinstance(answer, MagnetarError) else answer
        row = {"broker": endpoints.name, "state": state, "service": endpoints.service_url, "detail": detail}
        rows.setdefault(cluster, []).append(row)
    return rows


def broker_rows(seen: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of all clusters for a table."""
    return [{"cluster": name, **row} for name, one in seen.items() for row in one.get("brokers", ())]


def _state(client: AdminClient, web_url: str) -> BrokerState:
    """The state of a broker, and the reason if it does not serve. `web_url` is its address in answers to `leaderBroker`.

    Raises:
        MagnetarError: it does not answer, or refuses.
    """
    try:
        client.get("/admin/v2/brokers/ready")
    except AdminError as error:
        if error.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return ("not ready" if _leads(client, web_url) else "waits"), error.reason
    return "serves", ""


def _leads(client: AdminClient, web_url: str) -> bool:
    """Whether it owns the log of its cluster."""
    try:
        answer = client.get("/admin/v2/brokers/leaderBroker")
    except AdminError:
        return False
    return isinstance(answer, dict) and answer.get("serviceUrl") == web_url
