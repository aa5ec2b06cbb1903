"""A bookie dies for good while a broker serves, and AutoRecovery, BookKeeper's own, makes new copies of what it had."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_bookkeeper import kit
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import TOPIC, Brokers, Publisher, connect, ledgers_of, numbers
from tests.support.bookkeeper_ledgers import busiest, contents, ensembles
from tests.support.brokers import eventually

pytestmark = pytest.mark.timeout(400)

AT_ONCE = {
    "autoRecoveryDaemonEnabled": "true",
    "lostBookieRecoveryDelay": "0",
    "openLedgerRereplicationGracePeriod": "1000",
    "rwRereplicateBackoffMs": "500",
}
"""AutoRecovery in each bookie: it begins as soon as a bookie is gone, and closes its open ledgers after a second."""

LINES_MAX = 40
"""Of the broker's log, in all."""

LARGE = b"x" * (3 << 20)
"""A message that goes to the log of large ones."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BookKeeperCluster]:
    with kit.running(tmp_path / "bookkeeper", 4, settings=AT_ONCE) as made:
        yield made


@pytest.fixture
def brokers(cluster: BookKeeperCluster, tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path, cluster, "/magnetar/one")
    yield made
    made.close()


def named(cluster: BookKeeperCluster, brokers: Brokers) -> dict[int, set[str]]:
    """The ledgers of the log, and the bookies that any segment of each names."""
    found = ensembles(cluster, ledgers_of(cluster, brokers.store).values())
    return {ledger: set().union(*segments) for ledger, segments in found.items()}


def test_a_bookie_dies_for_good(cluster: BookKeeperCluster, brokers: Brokers) -> None:
    """Ledgers that the broker writes are closed under its hands if they are idle; it continues in others, and takes over
    from its peer. What was confirmed is there, also when only the new copies are left."""
    brokers["a"].start()
    brokers.wait_in_line("b")
    publisher = Publisher(brokers.url, pause_s=0.005, patience_s=120)
    client = connect(brokers.url, 120)
    large = client.create_producer(f"{TOPIC}-large", producer_name="large", send_timeout_millis=0)
    large.send(LARGE)
    publisher.after(50)
    former = set(ledgers_of(cluster, brokers.store).values())
    # The ledgers of a are closed from now on, those of b are open.
    assert brokers["a"].stop() == 0
    brokers["b"].await_ready()
    brokers.wait_in_line("a")
    large.send(LARGE)
    publisher.after(50)
    closed = former & set(ledgers_of(cluster, brokers.store).values())
    old = busiest(cluster, closed)
    expected = contents(cluster, old)
    before = named(cluster, brokers)
    # Two ensembles of three out of four have two in common: this bookie has entries of the closed ledger, and of the open one
    # that nobody writes to.
    state = ledgers_of(cluster, brokers.store)["state"]
    lost = cluster.bookie(min(before[old] & before[state]))
    lost.kill()
    publisher.after(50)
    eventually(
        lambda: not any(lost.id in ids for ids in named(cluster, brokers).values()),
        within_s=120,
        every_s=0.5,
        what=f"no ledger names {lost.id}",
    )
    large.send(LARGE)
    brokers["b"].rest("PUT", "/admin/v2/persistent/public/default/parts/partitions", 3)
    publisher.after(50)
    log = brokers["b"].log.read_text()
    fenced = f"ledger {state}: another client recovers the ledger, or has recovered it"
    assert log.count(f"the states of the broker cannot be written: {fenced}; nothing is stored until they can be") == 1
    assert log.count("the states of the broker are written again") == 1
    assert log.count("\n") < LINES_MAX
    assert "Traceback" not in log
    brokers["b"].kill()
    brokers["a"].await_ready()
    publisher.after(50)
    publisher.close()
    client.close()
    assert numbers(brokers["a"].url) == publisher.confirmed
    assert brokers["a"].rest("GET", "/admin/v2/persistent/public/default/parts/partitions")["partitions"] == 3
    assert brokers["a"].stop() == 0
    # The bookie that had none of it is left alone with its copy.
    assert len(expected) > 50
    (new,) = {bookie.id for bookie in cluster.bookies} - before[old]
    for bookie in cluster.bookies:
        if bookie.id not in (lost.id, new):
            bookie.kill()
    assert contents(cluster, old) == expected
