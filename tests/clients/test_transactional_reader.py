"""`magnetar.client`: a program that is killed again and again processes every message once, in its own database."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
import sqlalchemy
from sqlalchemy import text

from magnetar.client import Displaced, ReadPosition, TransactionalReader
from magnetar.core.errors import MagnetarError
from tests.clients.conftest import connect
from tests.support.brokers import BrokerProcess
from tests.support.postgres import Postgres

MESSAGES = 800

PROGRAM = """
import os, random, signal, sys
import pulsar, sqlalchemy
from sqlalchemy import event, text
from magnetar.client import TransactionalReader

url, topic, database, seed, kills = sys.argv[1:]
rng = random.Random(int(seed))

def die(*_):
    if rng.random() < float(kills):
        os.kill(os.getpid(), signal.SIGKILL)

def handle(connection, message):
    connection.execute(text("insert into seen (number) values (:n)"), {"n": int(message.data())})
    die()

engine = sqlalchemy.create_engine(database)
for name in ("begin", "commit", "checkin"):   # checkin: just behind the commit
    event.listen(engine, name, die)
logger = __import__("logging").getLogger("quiet")
logger.setLevel("CRITICAL")
client = pulsar.Client(url, logger=logger)
reader = TransactionalReader(client, topic, engine, name="counting", messages_max=rng.choice((1, 7, 60)))
reader.run(handle, idle_ms=600)
reader.close()
client.close()
os._exit(0)   # all is done; the C++ client's own threads end the process with SIGABRT at times when it is torn down
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/program.db"
        return
    # Not below tmp_path: that is root's alone, and too long for a socket.
    base = Path(tempfile.mkdtemp(prefix="pg-"))
    base.chmod(0o755)
    try:
        folder = base / "s"
        folder.mkdir()
        server = Postgres(folder)
        try:
            yield server.url
        finally:
            server.close()
    finally:
        shutil.rmtree(base)


def seen(engine: sqlalchemy.Engine) -> list[int]:
    with engine.begin() as connection:
        return [row[0] for row in connection.execute(text("select number from seen order by place"))]


def tables(database: str) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(database)
    kind = "integer primary key autoincrement" if "sqlite" in database else "bigserial primary key"
    with engine.begin() as connection:
        connection.execute(text(f"create table seen (place {kind}, number bigint)"))
    return engine


def publish(client: pulsar.Client, topic: str, numbers: range) -> None:
    """Batches and single messages in turns."""
    batching = client.create_producer(topic, batching_enabled=True, batching_max_messages=9)
    single = client.create_producer(topic, batching_enabled=False)
    for n in numbers:
        if n % 40 < 25:
            batching.send_async(b"%d" % n, None)
        else:
            batching.flush()
            single.send(b"%d" % n)
    batching.flush()


def test_killed_at_random(broker: BrokerProcess, client: pulsar.Client, topic: str, database: str) -> None:
    engine = tables(database)
    publish(client, topic, range(MESSAGES))
    codes = []
    for seed in range(100):
        kills = "0" if len(codes) == 8 else "0.01"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.url, topic, database, str(seed), kills],
            stderr=subprocess.PIPE,
            timeout=60,
            env=os.environ | {"PYTHONPATH": "src"},
        )
        codes.append(done.returncode)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-2000:]
        if done.returncode == 0:
            break
    assert seen(engine) == list(range(MESSAGES))
    assert codes.count(-signal.SIGKILL) >= 3, "the program was hardly killed"
    with engine.begin() as connection:
        row = connection.execute(text("select messages, reader from magnetar_progress")).one()
    assert tuple(row) == (MESSAGES, "counting")
    engine.dispose()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    engine = tables(f"sqlite:///{tmp_path}/own.db")
    yield engine
    engine.dispose()


def note(connection: sqlalchemy.Connection, message: pulsar.Message) -> None:
    connection.execute(text("insert into seen (number) values (:n)"), {"n": int(message.data())})


def test_it_goes_on_within_a_batch(client: pulsar.Client, topic: str, engine: sqlalchemy.Engine) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=5000
    )
    for n in range(10):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    for stop_after in (3, 4, 9):
        reader = TransactionalReader(client, topic, engine, name="r", messages_max=1)
        reader.run(note, stop=lambda stop_after=stop_after: len(seen(engine)) >= stop_after)
        assert seen(engine) == list(range(stop_after))
        assert reader.position.batch_index == stop_after - 1
        reader.close()
    reader = TransactionalReader(client, topic, engine, name="r")
    assert reader.run(note, idle_ms=200) == 1
    assert seen(engine) == list(range(10))
    reader.close()


def test_a_failing_handler_undoes_its_transaction(client: pulsar.Client, topic: str, engine: sqlalchemy.Engine) -> None:
    publish(client, topic, range(60))
    reader = TransactionalReader(client, topic, engine, name="r", messages_max=8)
    bad = {31, 5, 59}

    def handle(connection: sqlalchemy.Connection, message: pulsar.Message) -> None:
        note(connection, message)
        if int(message.data()) in bad:
            bad.remove(int(message.data()))
            raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            reader.run(handle, idle_ms=1000)
    reader.run(handle, idle_ms=400)
    assert seen(engine) == list(range(60))
    reader.close()


def test_two_under_one_name(client: pulsar.Client, topic: str, engine: sqlalchemy.Engine) -> None:
    """The second to commit loses its transaction, whatever it did in it."""
    publish(client, topic, range(20))
    one, other = (TransactionalReader(client, topic, engine, name="r", messages_max=5) for _ in range(2))
    other.run(note, stop=lambda: len(seen(engine)) >= 5)
    one.run(note, stop=lambda: len(seen(engine)) >= 10)
    # A transaction has the messages that have arrived, at most five: there may be more than ten.
    committed = seen(engine)
    assert committed == list(range(len(committed)))
    with pytest.raises(Displaced, match="another process uses its name"):
        other.run(note, idle_ms=400)
    assert seen(engine) == committed
    # Another name has a place of its own.
    separate = TransactionalReader(client, topic, engine, name="s")
    assert separate.run(lambda *_: None, idle_ms=400) == 20
    for reader in (one, other, separate):
        reader.close()


def test_latest_begins_with_what_comes(client: pulsar.Client, topic: str, engine: sqlalchemy.Engine) -> None:
    publish(client, topic, range(5))
    reader = TransactionalReader(client, topic, engine, name="r", start="latest")
    assert reader.run(note, idle_ms=200) == 0
    publish(client, topic, range(5, 8))
    assert reader.run(note, idle_ms=400) == 3
    assert seen(engine) == [5, 6, 7]
    reader.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "1 to 200 characters"),
        ({"name": "n" * 201}, "1 to 200 characters"),
        ({"name": "n", "messages_max": 0}, "at least one"),
        ({"name": "n", "start": "newest"}, "'earliest' or 'latest'"),
    ],
)
def test_wrong_options(client: pulsar.Client, topic: str, engine: sqlalchemy.Engine, options, words: str) -> None:
    with pytest.raises(MagnetarError, match=words) as raised:
        TransactionalReader(client, topic, engine, **options)
    assert "\n" not in str(raised.value)


def test_partitions(broker: BrokerProcess, client: pulsar.Client, topic: str, engine: sqlalchemy.Engine) -> None:
    broker.rest("PUT", topic.replace("://", "/").join(("/admin/v2/", "/partitions")), 2)
    with pytest.raises(MagnetarError, match="has 2 partitions: use a reader for each"):
        TransactionalReader(client, topic, engine, name="r")
    part = f"{topic}-partition-1"
    client.create_producer(part).send(b"1")
    reader = TransactionalReader(client, part, engine, name="r")
    assert reader.run(note, idle_ms=400) == 1
    assert reader.position > ReadPosition(-1, -1, -1)
    reader.close()


def test_a_broker_that_is_killed(own_broker: BrokerProcess, engine: sqlalchemy.Engine) -> None:
    client = connect(own_broker)
    publish(client, "t", range(100))
    reader = TransactionalReader(client, "t", engine, name="r", messages_max=7)
    reader.run(note, stop=lambda: len(seen(engine)) >= 31)
    own_broker.kill()
    own_broker.start()
    publish(client, "t", range(100, 120))
    reader.run(note, stop=lambda: len(seen(engine)) >= 120)
    assert seen(engine) == list(range(120))
    reader.close()
    client.close()
