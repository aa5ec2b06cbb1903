"""Who is let in and what they may do, with the official client, certificates made here, and clients made of bytes."""

import base64
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import NONE
from magnetar.runtime.network.link_client import LinkClient, LinkDown, LinkRefused, geo_position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import NO_REQUEST
from magnetar.wire.frames import encode
from magnetar.wire.metadata import build
from tests.support.brokers import BrokerProcess, eventually
from tests.support.certificates import Authority
from tests.support.raw_client import Raw
from tests.support.secured import (
    EC,
    FAILED_LOGINS_MAX,
    NAMESPACE,
    RSA,
    SECRET,
    Secured,
    _pem,
    _private,
    as_role,
    closing,
    token,
)

OTHER_SECRET = os.urandom(64)


def round_trip(client: Any, topic: str) -> bytes:
    """Publish and consume one message."""
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(topic).send(b"hello")
    message = consumer.receive(timeout_millis=60_000)
    consumer.acknowledge(message)
    return bytes(message.data())


# ------------------------------------------------------------------------------------------------------- who is let in

WAYS: dict[str, Callable[[Secured], Any]] = {
    "HS256": lambda it: it.client(pulsar.AuthenticationToken(token("app"))),
    "HS512": lambda it: it.client(pulsar.AuthenticationToken(token("app", algorithm="HS512"))),
    "RS256": lambda it: it.client(pulsar.AuthenticationToken(token("app", RSA, "RS256"))),
    "PS384": lambda it: it.client(pulsar.AuthenticationToken(token("app", RSA, "PS384"))),
    "ES256": lambda it: it.client(pulsar.AuthenticationToken(token("app", EC, "ES256"))),
    "a supplier": lambda it: it.client(pulsar.AuthenticationToken(lambda: token("app"))),
    "basic": lambda it: it.client(pulsar.AuthenticationBasic("reader", "sesame")),
    "token by TLS": lambda it: it.by_tls(pulsar.AuthenticationToken(token("app"))),
    "certificate": lambda it: it.by_tls(
        pulsar.AuthenticationTLS(*map(str, it.authority.sign("app", "client"))),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_be_let_in(secured: Secured, way: str) -> None:
    secured.grant("app", "produce", "consume")
    secured.grant("reader", "produce", "consume")
    with closing(WAYS[way](secured)) as client:
        assert round_trip(client, f"let-in-{way.replace(' ', '-')}") == b"hello"


def test_looking_up_by_https_leads_to_tls(secured: Secured) -> None:
    secured.grant("app", "produce", "consume")
    authentication = pulsar.AuthenticationToken(token("app"))
    trust = str(secured.authority.file)
    with closing(secured.client(authentication, url=secured.broker.web_tls, tls_trust_certs_file_path=trust)) as client:
        assert round_trip(client, "by-https") == b"hello"
    answer = secured.broker.rest("GET", "/lookup/v2/topic/persistent/public/default/by-https")
    assert answer["brokerUrlTls"] == secured.broker.url_tls
    assert answer["httpUrlTls"] == secured.broker.web_tls


def test_the_spark_formats_connection_is_let_in(secured: Secured) -> None:
    from magnetar.spark.connection import Access, Connection, Down

    trust = str(secured.authority.file)
    for url in (secured.broker.url, secured.broker.url_tls):
        for check_name in (False, True):
            Connection(url, Access(url, token("app"), trust, check_name=check_name)).close()
        with pytest.raises(Down, match="nothing was presented"):
            Connection(url, Access(url, "", trust))


def test_a_client_without_the_right_secret_is_not_let_in(secured: Secured) -> None:
    wrong = pulsar.AuthenticationToken(token("app", OTHER_SECRET))
    with closing(secured.client(wrong, timeout_s=1)) as client, pytest.raises(pulsar.PulsarException):
        client.create_producer("nothing")


# ----------------------------------------------------------------------------------------------- clients made of bytes

_addresses = (f"127.1.{number // 250}.{number % 250 + 1}" for number in count())


class Stranger(Raw):
    """A client made of bytes, from an address of its own: its failed logins count for nobody else."""

    def __init__(self, broker: BrokerProcess, address: str = "") -> None:
        super().__init__(broker)
        self.socket.close()
        self.address = address or next(_addresses)
        self.socket = socket.create_connection(
            ("127.0.0.1", broker.pulsar_port), timeout=20, source_address=(self.address, 0)
        )


@contextmanager
def stranger(broker: BrokerProcess, address: str = "") -> Iterator[Stranger]:
    """Such a client, closed at the end."""
    made = Stranger(broker, address)
    try:
        yield made
    finally:
        made.socket.close()


def unsigned(claims: dict[str, Any], header: dict[str, Any], signature: str = "") -> str:
    """A token that nobody signed."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part(header)}.{part(claims)}.{signature}"


def hmac_by_public_key() -> str:
    """The classic: HMAC with the RSA public key, which everybody knows, as its secret."""
    import hashlib
    import hmac

    text = unsigned({"sub": "root", "aud": "shop"}, {"alg": "HS256", "typ": "JWT"}).rstrip(".")
    signature = hmac.new(_pem(RSA), text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def altered() -> str:
    """A genuine token whose role was changed afterwards."""
    header, _, signature = token("app").split(".")
    claims = base64.urlsafe_b64encode(b'{"sub":"root","aud":"shop"}').rstrip(b"=").decode()
    return f"{header}.{claims}.{signature}"


HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "nothing": ("", b"", "nothing was presented"),
    "the client's word for nothing": ("none", b"", "nothing was presented"),
    "empty data": ("token", b"", "without any data"),
    "an unknown method": ("kerberos", b"x", "method 'kerberos' is not one of"),
    "fifty kilobytes": ("token", b"a" * 50_000, "over token_bytes_max"),
    "no JWT": ("token", b"let me in", "is not a JWT"),
    "bytes that are not text": ("token", bytes(range(128, 256)), "is not a JWT"),
    "alg none": ("token", unsigned({"sub": "root", "aud": "shop"}, {"alg": "none"}).encode(), "no key of this broker"),
    "alg NONE": ("token", unsigned({"sub": "root", "aud": "shop"}, {"alg": "NonE"}).encode(), "no key of this broker"),
    "alg missing": ("token", unsigned({"sub": "root"}, {"typ": "JWT"}, "AA").encode(), "no key of this broker"),
    "alg a list": ("token", unsigned({"sub": "root"}, {"alg": ["HS256"]}, "AA").encode(), ""),
    "HMAC by the public key": ("token", hmac_by_public_key().encode(), "signature is not by a key"),
    "another secret": ("token", token("root", OTHER_SECRET).encode(), "signature is not by a key"),
    "another key pair": (
        "token",
        token("root", ec.generate_private_key(ec.SECP256R1()), "ES256").encode(),
        "signature is not by a key",
    ),
    "an altered role": ("token", altered().encode(), "signature is not by a key"),
    "expired": ("token", token("root", exp=int(time.time()) - 1).encode(), "has expired"),
    "not yet valid": ("token", token("root", nbf=int(time.time()) + 3600).encode(), "not valid yet"),
    "an expiry that is none": ("token", token("root", exp=1e300).encode(), ""),
    "another audience": ("token", token("root", aud="bank").encode(), "another audience"),
    "no audience": ("token", jwt.encode({"sub": "root"}, SECRET, algorithm="HS256").encode(), "another audience"),
    "no role": ("token", jwt.encode({"aud": "shop"}, SECRET, algorithm="HS256").encode(), "no role"),
    "a role with a line end": ("token", token("root\nINFO all is well").encode(), "no control characters"),
    "a wrong password": ("basic", b"reader:guess", "the name or the password is wrong"),
    "an unknown name": ("basic", b"root:guess", "the name or the password is wrong"),
    "a password with a zero byte": ("basic", b"reader:sesame\0x", "the name or the password is wrong"),
    "a certificate that is not there": ("tls", b"", "needs a connection by TLS"),
    "the old link secret": ("magnetar-link", b"0123456789", "is not a JWT"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_strangers_get_the_protocols_error_and_one_line(secured: Secured, case: str) -> None:
    method, data, reason = HOSTILE[case]
    with stranger(secured.broker) as client:
        answer = client.handshake(auth_method_name=method, auth_data=data)
        assert answer is not None and answer.type == 14
        assert answer.error.error == ErrorCode.AUTHENTICATION
        assert reason in answer.error.message
        assert client.answer() is None  # closed
        lines = eventually(lambda: [line for line in secured.log().splitlines() if client.address in line])
    assert len(lines) == 1, lines
    shown = "\n".join([lines[0], answer.error.message])
    assert "Traceback" not in shown
    for piece in re.split(rb"[.:]", data):
        if len(piece) > 8:
            assert piece.decode("latin-1") not in shown


def test_a_proof_that_is_larger_than_any_is_not_even_read(secured: Secured) -> None:
    with stranger(secured.broker) as client:
        command = pb.CommandConnect(client_version="x", auth_method_name="token", auth_data=b"a" * 1_000_000)
        # Its first bytes tell; the rest would meet a closed connection.
        client.socket.sendall(encode(pb.BaseCommand(type=2, connect=command))[:1_000])
        assert client.answer() is None
        (line,) = eventually(lambda: [line for line in secured.log().splitlines() if client.address in line])
    assert "at most 98304 are accepted" in line


def test_two_connects_end_the_connection(secured: Secured) -> None:
    with stranger(secured.broker) as client:
        assert client.handshake(auth_method_name="token", auth_data=token("app").encode()).type == 3  # type: ignore[union-attr]
        assert client.handshake(auth_method_name="token", auth_data=token("root").encode()) is None


def test_nothing_is_heard_before_connect_is_answered(secured: Secured) -> None:
    """A password that was not proved before takes its time; what a client says meanwhile ends the connection."""
    with stranger(secured.broker) as client:
        connect = pb.CommandConnect(
            client_version="x", auth_method_name="basic", auth_data=b"reader:" + os.urandom(8).hex().encode()
        )
        ask = pb.CommandPartitionedTopicMetadata(topic="t", request_id=1)
        both = [pb.BaseCommand(type=2, connect=connect), pb.BaseCommand(type=21, partitionMetadata=ask)]
        client.socket.sendall(b"".join(map(encode, both)))
        assert client.answer() is None


def test_a_proof_that_nobody_asked_for_ends_the_connection(secured: Secured) -> None:
    with stranger(secured.broker) as client:
        assert client.handshake(auth_method_name="token", auth_data=token("app").encode()).type == 3  # type: ignore[union-attr]
        response = pb.AuthData(auth_method_name="token", auth_data=token("root").encode())
        client.send(pb.BaseCommand(type=37, authResponse=pb.CommandAuthResponse(response=response)))
        assert client.answer() is None


def test_only_a_proxy_speaks_for_others(secured: Secured) -> None:
    secured.grant("proxy", "produce", "consume")
    secured.grant("app", "produce", "consume")

    def ask(role: str, original: str) -> list[int]:
        with stranger(secured.broker) as client:
            data = token(role).encode()
            answer = client.handshake(auth_method_name="token", auth_data=data, original_principal=original)
            assert answer is not None
            if answer.type == 14:
                return [answer.error.error]
            lookup = pb.CommandLookupTopic(topic="persistent://public/default/t", request_id=1)
            client.send(pb.BaseCommand(type=23, lookupTopic=lookup))
            found = client.answer()
            assert found is not None
            return [0, found.lookupTopicResponse.error if found.lookupTopicResponse.response == 2 else 0]

    def look_up(role: str, original: str) -> list[int]:
        """The proxy's own connection, which names for whom it looks up with each command."""
        with stranger(secured.broker) as client:
            client.handshake(auth_method_name="token", auth_data=token(role).encode())
            topic = "persistent://public/default/t"
            lookup = pb.CommandLookupTopic(topic=topic, request_id=1, original_principal=original)
            client.send(pb.BaseCommand(type=23, lookupTopic=lookup))
            first = client.answer()
            partitions = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=2, original_principal=original)
            client.send(pb.BaseCommand(type=21, partitionMetadata=partitions))
            second = client.answer()
            assert first is not None and second is not None
            return [first.lookupTopicResponse.error, second.partitionMetadataResponse.error]

    assert look_up("proxy", "app") == [0, 0]
    assert look_up("proxy", "stranger") == [ErrorCode.AUTHORIZATION] * 2
    assert look_up("app", "root") == [ErrorCode.AUTHORIZATION] * 2
    assert ask("app", "root") == [ErrorCode.AUTHORIZATION]
    assert ask("root", "app") == [ErrorCode.AUTHORIZATION]
    assert ask("proxy", "app") == [0, 0]
    assert ask("proxy", "stranger") == [0, ErrorCode.AUTHORIZATION]
    assert ask("proxy", "proxy") == [ErrorCode.AUTHORIZATION]


def test_guessing_is_slowed_down_for_the_address_alone(secured: Secured) -> None:
    address = "127.2.0.1"

    def login(source: str, data: bytes) -> int:
        with stranger(secured.broker, source) as client:
            answer = client.handshake(auth_method_name="token", auth_data=data)
            assert answer is not None
            return -1 if answer.type == 3 else int(answer.error.error)

    wrong, right = token("root", OTHER_SECRET).encode(), token("root").encode()
    assert [login(address, wrong) for _ in range(FAILED_LOGINS_MAX)] == [3] * FAILED_LOGINS_MAX
    assert login(address, wrong) == ErrorCode.TOO_MANY_REQUESTS
    assert login(address, right) == -1, "a signature cannot be guessed: what is right gets in"
    assert login(address, wrong) == ErrorCode.TOO_MANY_REQUESTS
    assert login("127.2.0.2", right) == -1
    metrics = urllib.request.Request(f"{secured.broker.web}/metrics", headers=secured.broker.headers)
    with urllib.request.urlopen(metrics, timeout=20) as answer:
        counted = dict(re.findall(r'magnetar_logins_total{.*?end="(\w+)".*?} (\S+)', answer.read().decode()))
    assert float(counted["guessed"]) >= FAILED_LOGINS_MAX and float(counted["waiting"]) >= 1
    assert f"{address}: {FAILED_LOGINS_MAX} failed logins (failed_logins_max)" in secured.log()


def test_guessing_over_rest_is_slowed_down_too_and_counted_with_the_other_port(secured: Secured) -> None:
    address = next(_addresses)

    def status(text: str) -> int:
        port = int(secured.broker.web.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(address, 0))
        try:
            connection.request("GET", "/openapi.json", headers={"Authorization": f"Bearer {text}"})
            answer = connection.getresponse()
            body = json.loads(answer.read())
            assert answer.status == 200 or (list(body) == ["reason"] and text not in body["reason"])
            return answer.status
        finally:
            connection.close()

    assert status(token("root")) == 200
    assert [status(token("root", OTHER_SECRET)) for _ in range(FAILED_LOGINS_MAX)] == [401] * FAILED_LOGINS_MAX
    assert status(token("root", OTHER_SECRET)) == 429
    assert status(token("root")) == 200, "what is right gets in"
    with stranger(secured.broker, address) as client:
        answer = client.handshake(auth_method_name="token", auth_data=token("root", OTHER_SECRET).encode())
        assert answer is not None and answer.error.error == ErrorCode.TOO_MANY_REQUESTS
    assert as_role(secured, "root")("GET", "/openapi.json") == 200, "other addresses do not wait"


def test_link_commands_need_a_role_that_may_replicate(secured: Secured) -> None:
    def connect(role: str) -> pb.BaseCommand | None:
        with stranger(secured.broker) as client:
            return client.handshake(auth_method_name="magnetar-link", auth_data=token(role).encode())

    answer = connect("linker")
    assert answer is not None and answer.connected.HasField("geo")
    answer = connect("app")
    assert answer is not None and answer.error.error == ErrorCode.AUTHORIZATION
    with stranger(secured.broker) as client:  # the role alone makes no link: it has to ask to be one
        assert not client.handshake(auth_method_name="token", auth_data=token("linker").encode()).connected.HasField(
            "geo"
        )  # type: ignore[union-attr]
        client.send(pb.BaseCommand(type=1010, geo_status=pb.CommandGeoStatus(request_id=1)))
        refused = client.answer()
        assert refused is not None and refused.error.error == ErrorCode.NOT_ALLOWED


def test_a_role_that_may_replicate_one_topic_forges_nothing_in_another(secured: Secured) -> None:
    topic = "persistent://public/default/not-to-be-forged"
    secured.broker.rest("PUT", "/admin/v2/persistent/public/default/to-be-linked")
    secured.broker.rest("PUT", "/admin/v2/persistent/public/default/not-to-be-forged")
    secured.grant("half", "replicate", place="/admin/v2/persistent/public/default/to-be-linked")
    secured.grant("half", "produce", place="/admin/v2/persistent/public/default/not-to-be-forged")
    with stranger(secured.broker) as client:
        hello = client.handshake(auth_method_name="magnetar-link", auth_data=token("half").encode())
        assert hello is not None and hello.connected.HasField("geo")
        client.send(pb.BaseCommand(type=5, producer={"topic": topic, "producer_id": 1, "request_id": 1}))
        opened = client.answer()
        assert opened is not None and opened.producer_success.producer_ready
        for sequence, forged in enumerate(({"replicated_from": "far"}, {"marker_type": 13})):
            seen = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **forged)  # type: ignore[arg-type]
            command = pb.BaseCommand(type=6, send={"producer_id": 1, "sequence_id": sequence})
            client.send(command, build(seen, b"forged"))
            answer = client.answer()
            assert answer is not None and answer.send_error.error == ErrorCode.NOT_ALLOWED
    assert secured.broker.rest("GET", "/admin/v2/persistent/public/default/not-to-be-forged/stats")["msgInCounter"] == 0


def test_a_link_for_one_namespace_touches_no_other(secured: Secured) -> None:
    mine, other = "persistent://public/linked/t", "persistent://public/default/not-linked"
    secured.broker.rest("PUT", "/admin/v2/namespaces/public/linked")
    for name in ("linked/t", "default/not-linked"):
        secured.broker.rest("PUT", f"/admin/v2/persistent/public/{name}")
    secured.grant("narrow", "replicate", place="/admin/v2/namespaces/public/linked")
    address = f"127.0.0.1:{secured.broker.pulsar_port}"
    trust = f"pulsar+ssl://127.0.0.1:{secured.broker.pulsar_tls_port}?ca={secured.authority.file}"
    for where in (address, trust):
        with LinkClient.connect(where, token("narrow")) as client:
            assert client.read(mine).response.end.ledger == -1
            with pytest.raises(
                LinkRefused, match="role narrow may not replicate persistent://public/default/not-linked"
            ):
                client.read(other)
            queries = [pb.GeoWatermarkQuery(topic=topic, incarnation=1, partitions=0) for topic in (mine, other)]
            told = {each.topic: each.blocked for each in client.watermarks("far", "u-1", queries).topics}
            assert told[other] == "policy" and "may not replicate" not in told[mine]
            append = pb.CommandGeoAppend(
                request_id=0,
                topic=other,
                source="far",
                uuid="u-1",
                incarnation=1,
                gen=1,
                p=geo_position(NONE),
            )
            client.append_async(append, [])
            (answer,) = client.poll(20_000)
            assert answer.response.blocked == "policy" and "role narrow may not replicate" in answer.response.reason
            commit = pb.GeoCommitTopic(
                topic=other,
                incarnation=1,
                cursor=pb.GeoCursor(c=geo_position(NONE), s=geo_position(NONE), gen=1),
            )
            with pytest.raises(LinkRefused) as caught:
                client.commit("far", [commit])
            assert caught.value.code is ErrorCode.AUTHORIZATION
    secured.broker.rest("DELETE", "/admin/v2/namespaces/public/linked/permissions/narrow")
    with pytest.raises(LinkRefused, match="role narrow may not be a link"):
        LinkClient.connect(address, token("narrow"))
    with pytest.raises(LinkDown, match="certificate is not trusted"):
        LinkClient.connect(trust.replace("ca.pem", "server.cert.pem"), token("root"))


# --------------------------------------------------------------------------------------------------- who may do what


def test_permissions_decide_and_follow_at_once(secured: Secured) -> None:
    topic = "persistent://public/default/guarded"
    with closing(secured.client(pulsar.AuthenticationToken(token("worker")))) as client:
        for act in (lambda: client.create_producer(topic), lambda: client.subscribe(topic, "s")):
            with pytest.raises(pulsar.AuthorizationError):
                act()
        with pytest.raises(pulsar.AuthorizationError):
            client.get_topic_partitions(topic)
        secured.grant("worker", "produce", place="/admin/v2/persistent/public/default/guarded")
        producer = client.create_producer(topic, send_timeout_millis=1000)
        producer.send(b"1")
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(topic, "s")
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer("persistent://public/default/guarded-2")
        secured.grant("worker", "produce", "consume", place="/admin/v2/persistent/public/default/guarded")
        consumer = client.subscribe(topic, "s")
        stats = "/admin/v2/persistent/public/default/guarded/stats"
        assert len(secured.broker.rest("GET", stats)["publishers"]) == 1
        secured.broker.rest("DELETE", "/admin/v2/persistent/public/default/guarded/permissions/worker")
        left = secured.broker.rest("GET", stats)
        assert left["publishers"] == [] and left["subscriptions"]["s"]["consumers"] == []
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"2")
        with pytest.raises(pulsar.PulsarException):
            consumer.receive(timeout_millis=1000)


def test_an_administrator_of_a_tenant_may_do_everything_in_it_alone(secured: Secured) -> None:
    secured.broker.rest("PUT", "/admin/v2/tenants/shop", {"allowedClusters": ["solo"], "adminRoles": ["boss"]})
    rest = as_role(secured, "boss")
    assert rest("PUT", "/admin/v2/namespaces/shop/orders") == 204
    assert rest("POST", "/admin/v2/namespaces/shop/orders/permissions/app", ["produce"]) == 204
    assert rest("GET", "/admin/v2/tenants/shop") == 200
    assert rest("POST", "/admin/v2/namespaces/public/default/permissions/boss", ["produce"]) == 403
    assert rest("PUT", "/admin/v2/tenants/mine", {"allowedClusters": ["solo"]}) == 403
    assert rest("POST", "/admin/v2/tenants/shop", {"allowedClusters": ["solo"], "adminRoles": []}) == 403
    with closing(secured.client(pulsar.AuthenticationToken(token("boss")))) as client:
        assert round_trip(client, "persistent://shop/orders/new") == b"hello"
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer("persistent://public/default/not-his")


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("root", [200, 200, 200, 200, 200, 200]),
        ("monitor", [200, 200, 200, 200, 403, 403]),
        ("app", [403, 403, 403, 200, 403, 403]),
        ("", [401, 401, 401, 401, 401, 401]),
    ],
)
def test_pages_need_roles(secured: Secured, role: str, expected: list[int]) -> None:
    paths = ["/", "/metrics", "/geo/v1/status", "/openapi.json", "/admin/v2/tenants", NAMESPACE]
    ask = as_role(secured, role)
    assert [ask("GET", path) for path in paths] == expected


def test_rest_takes_passwords_and_certificates(secured: Secured) -> None:
    def ask(header: str, path: str, *own: Path) -> int:
        context = ssl.create_default_context(cafile=str(secured.authority.file))
        if own:
            context.load_cert_chain(*own)
        url = (secured.broker.web_tls if own else secured.broker.web) + path
        request = urllib.request.Request(url, headers={"Authorization": header} if header else {})
        try:
            with urllib.request.urlopen(request, timeout=20, context=context if own else None) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            assert error.code != 401 or 'Basic realm="magnetar"' in str(error.headers)
            return error.code

    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    assert ask(basic("reader:sesame"), "/openapi.json") == 200
    assert ask(basic("reader:sesame"), "/admin/v2/tenants") == 403
    assert ask(basic("reader:wrong"), "/openapi.json") == 401
    assert ask("Basic ***", "/openapi.json") == 401
    assert ask("Digest x", "/openapi.json") == 401
    assert ask("Bearer", "/openapi.json") == 401
    assert ask("", "/admin/v2/tenants", *secured.authority.sign("root", "root-client")) == 200
    assert ask("", "/admin/v2/tenants", *secured.authority.sign("somebody", "somebody")) == 403


def test_a_list_of_topics_shows_what_one_may_see(secured: Secured) -> None:
    for name in ("seen", "unseen"):
        secured.broker.rest("PUT", f"/admin/v2/persistent/public/default/list-{name}")
    secured.grant("looker", "consume", place="/admin/v2/persistent/public/default/list-seen")

    def topics(role: str) -> list[str] | int:
        with stranger(secured.broker) as client:
            client.handshake(auth_method_name="token", auth_data=token(role).encode())
            ask = pb.CommandGetTopicsOfNamespace(request_id=1, namespace="public/default", mode=2)
            client.send(pb.BaseCommand(type=32, getTopicsOfNamespace=ask))
            answer = client.answer()
            assert answer is not None
            return int(answer.error.error) if answer.type == 14 else list(answer.getTopicsOfNamespaceResponse.topics)

    assert topics("looker") == ["persistent://public/default/list-seen"]
    assert topics("nobody-at-all") == ErrorCode.AUTHORIZATION
    found = topics("root")
    assert isinstance(found, list) and "persistent://public/default/list-unseen" in found


def test_a_watched_list_of_topics_shows_what_one_may_see_and_follows(secured: Secured) -> None:
    path = "/admin/v2/persistent/public/default/watched-"
    full = "persistent://public/default/watched-"
    for name in ("seen", "unseen"):
        secured.broker.rest("PUT", path + name)
    secured.grant("watcher", "consume", place=path + "seen")
    watch = pb.CommandWatchTopicList(
        request_id=1, watcher_id=1, namespace="public/default", topics_pattern=full + "[a-z]+"
    )

    def begun(client: Raw, role: str) -> pb.BaseCommand:
        client.handshake(auth_method_name="token", auth_data=token(role).encode())
        client.send(pb.BaseCommand(type=64, watchTopicList=watch))
        answer = client.answer()
        assert answer is not None
        return answer

    with stranger(secured.broker) as client:
        assert begun(client, "nobody-at-all").error.error == ErrorCode.AUTHORIZATION
    with stranger(secured.broker) as client, stranger(secured.broker) as other:
        assert list(begun(client, "watcher").watchTopicListSuccess.topic) == [full + "seen"]
        assert list(begun(other, "root").watchTopicListSuccess.topic) == [full + "seen", full + "unseen"]
        secured.broker.rest("PUT", path + "secret")
        update = other.answer()
        assert update is not None and list(update.watchTopicUpdate.new_topics) == [full + "secret"]
        secured.grant("watcher", "consume", place=path + "unseen")
        update = client.answer()  # nothing of the secret one came before
        assert update is not None and list(update.watchTopicUpdate.new_topics) == [full + "unseen"]
        secured.broker.rest("DELETE", path + "seen/permissions/watcher")
        update = client.answer()
        assert update is not None and list(update.watchTopicUpdate.deleted_topics) == [full + "seen"]


# ------------------------------------------------------------------------------------------------ what changes meanwhile


def test_a_client_brings_a_new_token_before_the_old_one_ends(secured: Secured) -> None:
    secured.grant("app", "produce", "consume")
    made: list[str] = []

    def supplier() -> str:
        made.append(token("app", exp=int(time.time()) + 5))
        return made[-1]

    with closing(secured.client(pulsar.AuthenticationToken(supplier))) as client:
        producer = client.create_producer("refreshed")
        stats = "/admin/v2/persistent/public/default/refreshed/stats"
        (before,) = secured.broker.rest("GET", stats)["publishers"]
        eventually(lambda: len(made) >= 3, what="the client was asked for new tokens")
        producer.send(b"still here")
        (after,) = secured.broker.rest("GET", stats)["publishers"]
        assert after["address"] == before["address"]  # the same connection


def test_who_brings_no_new_token_is_closed_at_the_end_of_the_old(secured: Secured) -> None:
    for refreshes in (False, True):
        with stranger(secured.broker) as client:
            data = token("app", exp=int(time.time()) + 3).encode()
            flags = pb.FeatureFlags(supports_auth_refresh=refreshes)
            answer = client.handshake(auth_method_name="token", auth_data=data, feature_flags=flags)
            assert answer is not None and answer.type == 3
            if refreshes:
                challenge = client.answer()
                assert challenge is not None and challenge.type == 36
                other = pb.AuthData(auth_method_name="token", auth_data=token("root").encode())
                client.send(pb.BaseCommand(type=37, authResponse=pb.CommandAuthResponse(response=other)))
            assert client.answer() is None
    assert "presented itself as another one" in secured.log()


def test_who_brings_a_wrong_new_token_is_told_so_before_the_end(secured: Secured) -> None:
    """As by Pulsar: its log says then why it lost its connection."""
    with stranger(secured.broker) as client:
        data = token("app", exp=int(time.time()) + 3).encode()
        flags = pb.FeatureFlags(supports_auth_refresh=True)
        assert client.handshake(auth_method_name="token", auth_data=data, feature_flags=flags)
        challenge = client.answer()
        assert challenge is not None and challenge.type == 36
        forged = pb.AuthData(auth_method_name="token", auth_data=token("app", os.urandom(64)).encode())
        client.send(pb.BaseCommand(type=37, authResponse=pb.CommandAuthResponse(response=forged)))
        answer = client.answer()
        assert answer is not None and answer.error.error == ErrorCode.AUTHENTICATION
        assert answer.error.request_id == NO_REQUEST
        assert client.answer() is None


def test_a_client_whose_issuer_is_late_is_asked_twice(secured: Secured) -> None:
    """It answers with the token that it has, and with a new one when it is asked again at the end of that: also while its
    address, which others may share, waits because of wrong tokens.
    """
    old = token("app", exp=int(time.time()) + 4)

    def prove(client: Stranger, text: str) -> None:
        challenge = client.answer()
        assert challenge is not None and challenge.authChallenge.challenge.auth_data == b"PulsarAuthRefresh"
        data = pb.AuthData(auth_method_name="token", auth_data=text.encode())
        client.send(pb.BaseCommand(type=37, authResponse=pb.CommandAuthResponse(response=data)))

    with stranger(secured.broker) as client:
        flags = pb.FeatureFlags(supports_auth_refresh=True)
        answer = client.handshake(auth_method_name="token", auth_data=old.encode(), feature_flags=flags)
        assert answer is not None and answer.type == 3
        for _ in range(FAILED_LOGINS_MAX + 1):
            with stranger(secured.broker, client.address) as guessing:
                told = guessing.handshake(auth_method_name="token", auth_data=token("app", OTHER_SECRET).encode())
        assert told is not None and told.error.error == ErrorCode.TOO_MANY_REQUESTS
        prove(client, old)
        prove(client, token("app"))
        ask = pb.CommandPartitionedTopicMetadata(topic="persistent://public/default/t", request_id=1)
        client.send(pb.BaseCommand(type=21, partitionMetadata=ask))
        answer = client.answer()
        assert answer is not None and answer.type == 22


def test_keys_and_certificates_change_while_it_runs(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    secured.world.start()
    try:
        new = os.urandom(64)

        def login(key: bytes) -> bool:
            with stranger(secured.broker) as client:
                answer = client.handshake(auth_method_name="token", auth_data=token("root", key).encode())
                return answer is not None and answer.type == 3

        assert login(SECRET) and not login(new)
        _private(tmp_path / "secret.key", b"too short")
        eventually(lambda: "the former one stays in force" in secured.log())
        assert login(SECRET)
        _private(tmp_path / "next.key", base64.b64encode(new))
        (tmp_path / "next.key").replace(tmp_path / "secret.key")
        eventually(lambda: login(new), what="the new key is in force")
        assert not login(SECRET)

        def issuer(trusted: Authority, *own: Path) -> str:
            context = ssl.create_default_context(cafile=str(trusted.file))
            if own:
                context.load_cert_chain(*own)
            with (
                socket.create_connection(("127.0.0.1", secured.broker.pulsar_tls_port), timeout=20) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                # The client's certificate is judged after the handshake (TLS 1.3): only an answer tells.
                connection.settimeout(20)
                connect = pb.CommandConnect(client_version="x", auth_method_name="tls")
                connection.sendall(encode(pb.BaseCommand(type=2, connect=connect)))
                if not connection.recv(1):
                    raise ConnectionError("closed")
                return str(connection.getpeercert()["issuer"])  # type: ignore[index]

        old_client = secured.authority.sign("app", "client")
        assert "'ca'" in issuer(secured.authority, *old_client)
        other = Authority(tmp_path, "other")
        certificate, key = other.sign("server", "new")
        shutil.copy(other.file, tmp_path / "ca.pem.new")
        (tmp_path / "ca.pem.new").replace(tmp_path / "ca.pem")
        certificate.replace(tmp_path / "server.cert.pem")
        key.replace(tmp_path / "server.key.pem")

        def changed() -> bool:
            try:
                return "'other'" in issuer(other)
            except (OSError, ssl.SSLError):
                return False

        eventually(changed, what="the new certificate is in force")
        with pytest.raises(OSError):
            issuer(other, *old_client)  # signed by an authority that is trusted no more
        assert "'other'" in issuer(other, *other.sign("app", "client-2"))
    finally:
        secured.world.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_of_tls_are_refused(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    for port in (secured.broker.pulsar_tls_port, secured.broker.https_port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_no_secret_is_in_the_log_the_list_of_processes_or_any_page(secured: Secured) -> None:
    log = secured.log()
    assert secured.broker.process is not None
    pid = secured.broker.process.pid
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode() if Path("/proc").exists() else ""
    pages = []
    for path in (
        "/",
        "/metrics",
        "/openapi.json",
        "/geo/v1/status",
        "/geo/v1/links",
        "/admin/v2/clusters/solo",
        "/nothing",
    ):
        request = urllib.request.Request(secured.broker.web + path, headers=secured.broker.headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                pages.append(answer.read().decode())
        except urllib.error.HTTPError as error:
            pages.append(error.read().decode())
    assert all(pages)
    for text in (log, arguments, *pages):
        for secret in (base64.b64encode(SECRET).decode(), "sesame", token("root"), token("app")):
            assert secret not in text


MARK = "eyJhbGciOiJzZWNyZXQtbWFyayI"
"""The beginning of what no line of the log may show."""

IN_BASE64 = base64.b64encode(f"{MARK}:x".encode()).decode()
GET = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"

PRESENTED_BY_HTTP = {
    "a token": f"{GET}Authorization: Bearer {MARK}\r\n\r\n",
    "a token of 16 KiB": f"{GET}Authorization: Bearer {MARK * 600}\r\n\r\n",
    "a token of 100 KiB": f"{GET}Authorization: Bearer {MARK * 4_000}\r\n\r\n",
    "no scheme": f"{GET}Authorization: {MARK}\r\n\r\n",
    "a password": f"{GET}Authorization: Basic {IN_BASE64}\r\n\r\n",
    "no base64": f"{GET}Authorization: Basic {MARK}!\r\n\r\n",
    "a parameter": f"GET /metrics?token={MARK} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a parameter of an unknown path": f"GET /ws/v2/producer?token={MARK} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the URL of a proxy": f"GET http://{MARK}:{MARK}@localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a control character": f"{GET}Authorization: Bearer {MARK}\x01\r\n\r\n",
    "a line end": f"{GET}Authorization: Bearer\r\n {MARK}\r\n\r\n",
    "no colon": f"{GET}Authorization Bearer {MARK}\r\n\r\n",
    "the method": f"{MARK} /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the version": f"GET /metrics {MARK}\r\nHost: localhost\r\n\r\n",
    "the name of the host": f"GET /metrics HTTP/1.1\r\nHost: {MARK}@localhost\r\n\r\n",
    "a body": f"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n{MARK:40}",
    "a bad chunk": f"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{MARK}\r\n",
}


@pytest.mark.parametrize("where", PRESENTED_BY_HTTP)
def test_no_credential_that_comes_by_http_is_in_the_log(secured: Secured, where: str) -> None:
    port = secured.broker.http_port
    with socket.create_connection(("127.0.0.1", port), timeout=20, source_address=("127.0.0.98", 0)) as link:
        link.sendall(PRESENTED_BY_HTTP[where].encode())
        assert link.recv(65536).startswith(b"HTTP/1.")
    log = secured.broker.log.read_text()
    assert MARK not in log and IN_BASE64[:20] not in log


@pytest.mark.parametrize(("method", "data"), [("token", MARK), (MARK, "x"), ("basic", f"{MARK}:{MARK}"), ("tls", MARK)])
def test_no_credential_that_comes_by_the_binary_protocol_is_in_the_log(
    secured: Secured, method: str, data: str
) -> None:
    with stranger(secured.broker, "127.0.0.99") as client:
        client.handshake(auth_method_name=method, auth_data=data.encode())
    assert MARK not in secured.broker.log.read_text()
