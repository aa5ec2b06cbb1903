"""Options of the format `pulsar`: each mistake is one line that names the option and says what is allowed."""

from pathlib import Path

import pytest

from magnetar.core.errors import ConfigError
from magnetar.spark.connection import Access
from magnetar.spark.offsets import MessagePosition
from magnetar.spark.options import read_options, write_options

URL = {"service.url": "pulsar://h:6650"}
BOTH = URL | {"topic": "t"}
T = "persistent://public/default/t"

READ_MISTAKES = [
    ({"topic": "t"}, "option service.url is missing"),
    (URL | {"service.url": "h:6650", "topic": "t"}, "service.url 'h:6650' is not valid: write pulsar://host:port"),
    (URL | {"service.url": "pulsar://h:99999", "topic": "t"}, "service.url 'pulsar://h:99999' is not valid"),
    *((BOTH | {"service.url": f"pulsar://{text}"}, "is not valid: write pulsar://host:port") for text in (
        "h", "h:", ":1", "h:0", "h:-1", "h:٣", "h:" + "9" * 5_000, "[]:1", "a..b:1", "a" * 64 + ":1", "a b:1", "\ud800:1",
        "h:1,i", "i,h:1",
    )),
    (URL, "exactly one of the options topic, topics, topicsPattern is needed; given: none"),
    (BOTH | {"topics": "u"}, "exactly one of the options topic, topics, topicsPattern is needed; given: topic, topics"),
    (URL | {"topics": "a,,b"}, "option topics is 'a,,b': write topic names, separated by commas"),
    (URL | {"topicsPattern": "a("}, "option topicsPattern is 'a(': no regular expression"),
    *((URL | {"topicsPattern": text}, "no regular expression") for text in ("a{99999999999}", "(" * 5_000)),
    (URL | {"topic": "a/b"}, "topic 'a/b' is not valid"),
    (BOTH | {"failOnDataLos": "true"}, "option 'failondatalos' is unknown when reading; did you mean 'failOnDataLoss'?"),
    (BOTH | {"zzz": "1"}, "option 'zzz' is unknown when reading; allowed: admin.url, allowDifferentTopicSchemas, "),
    (BOTH | {"failOnDataLoss": "no"}, "option failOnDataLoss is 'no': write true or false"),
    (BOTH | {"startingOffsets": "first"}, "option startingOffsets is 'first': write earliest, latest or JSON"),
    (BOTH | {"startingOffsets": "{"}, "option startingOffsets is '{'"),
    *((BOTH | {"startingOffsets": '{"t": ' + text}, "option startingOffsets is '{") for text in ("[" * 99_999, "9" * 5_000)),
    (BOTH | {"startingOffsets": '{"t": [9999999999999999999, 0, -1]}'}, "option startingOffsets: [9999999999999999999, 0, -"),
    (BOTH | {"startingOffsets": '{"t": [1]}'}, "option startingOffsets: [1] is not a valid position in t"),
    (BOTH | {"startingOffsets": "earliest", "startingTime": "1"}, "startingOffsets and startingTime contradict each other"),
    (BOTH | {"startingTime": "yesterday"}, "option startingTime is 'yesterday': write a whole number, 0 or more"),
    (BOTH | {"maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger is '0': write a whole number, 1 or more"),
    *((BOTH | {"startingTime": text}, "write a whole number, 0 or more") for text in ("-1", "1.5", "٣", "9" * 5_000)),
    (BOTH | {"startingTime": str(2**63)}, "option startingTime is '9223372036854775808': write a whole number, 0 or"),
    (BOTH | {"maxBytesPerTrigger": "1k"}, "option maxBytesPerTrigger is '1k'"),
    (BOTH | {"admin.url": "h:8080"}, "option admin.url is 'h:8080': write http://host:port"),
    (BOTH | {"predefinedSubscription": "s"}, "is not needed: progress is in the checkpoint"),
    (BOTH | {"pulsar.client.authParams": "token:x"}, "authPluginClassName and pulsar.client.authParams go together"),
    (BOTH | {"pulsar.client.authPluginClassName": "a.b.AuthenticationTls"}, "only AuthenticationToken is supported"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "line"), READ_MISTAKES)
def test_mistakes_of_readers(options: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_options(options, streaming=True)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "streaming", "line"),
    [
        ({"endingOffsets": "latest"}, True, "option endingOffsets is for batch queries; remove it"),
        ({"minPartitions": "3"}, True, "option minPartitions is for batch queries"),
        ({"maxBytesPerTrigger": "3"}, False, "option maxBytesPerTrigger is for streaming queries"),
        ({"startingOffsets": "latest"}, False, "a batch query would read nothing"),
        ({"endingOffsets": "latest", "endingTime": "3"}, False, "endingOffsets and endingTime contradict each other"),
        ({"startingTime": "9", "endingTime": "3"}, False, "startingTime 9 and endingTime 3 contradict each other"),
        (
            {"startingOffsets": '{"t": [5, 1, -1]}', "endingOffsets": '{"t": [4, 9, -1]}'},
            False,
            f"startingOffsets and endingOffsets contradict each other: {T} would end before it starts",
        ),
        ({"endingOffsets": "earliest"}, False, "option endingOffsets is 'earliest': write latest or JSON"),
    ],
)
def test_what_is_for_the_other_kind(options: dict[str, str], streaming: bool, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_options(URL | {"topic": "t"} | options, streaming=streaming)
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"topics": "t"}, "option 'topics' is unknown when writing; did you mean 'topic'?"),
        ({"topic": ""}, "option topic is empty"),
        ({"deduplication": "on"}, "option deduplication is 'on': write auto or required or off"),
        ({"pulsar.producer.compressionType": "gzip"}, "is 'gzip': write NONE or LZ4 or ZLIB or ZSTD or SNAPPY"),
        ({"rowOrder": "any"}, "option rowOrder is 'any': write stable or sorted"),
    ],
)
def test_mistakes_of_writers(options: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        write_options(URL | options)
    assert line in str(refused.value)


def test_what_is_right_is_understood() -> None:
    given = {
        "SERVICE.URL": "pulsar+ssl://a:1,b:2/",
        "topics": "t, t,u",
        "startingOffsets": '{"t": [1, 2, 3]}',
        "maxMessagesPerTrigger": "10",
        "checkpointLocation": "/x",
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "pulsar.client.authParams": "token:secret",
    }
    options = read_options(given, streaming=True)
    assert options.topics == (T, "persistent://public/default/u")
    assert options.starting == {T: MessagePosition(1, 2, 3)}
    assert (options.messages_max, options.bytes_max, options.fail_on_data_loss) == (10, 0, True)
    assert options.access.addresses() == ["pulsar+ssl://a:1", "pulsar+ssl://b:2"]
    assert options.access.token == "secret"
    assert "secret" not in repr(options)
    assert read_options(URL | {"topic": "t"}, streaming=True).starting == "latest"
    assert read_options(URL | {"topic": "t"}, streaming=False).starting == "earliest"


def test_patterns_stay_in_their_namespace() -> None:
    options = read_options(URL | {"topicsPattern": "persistent://a/b/t|u"}, streaming=True)
    assert options.namespace == "a/b"
    assert options.pattern == "persistent://a/b/(?:t|u)"
    assert Access("pulsar://h:1", "s").token == "s"


def test_a_token_comes_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "app.jwt"
    file.write_text("a.b.c\n")
    file.chmod(0o600)
    given = {
        "service.url": "pulsar://h:1",
        "topic": "t",
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    }
    for params in (f"file:{file}", f"file://{file}", "token:a.b.c"):
        found = read_options(given | {"pulsar.client.authParams": params}, streaming=False)
        assert found.access.token == "a.b.c" and "a.b.c" not in repr(found)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        read_options(given | {"pulsar.client.authParams": f"file:{file}"}, streaming=False)
