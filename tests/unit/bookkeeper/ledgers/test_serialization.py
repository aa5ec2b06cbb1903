"""Metadata that cannot be read or stored is refused in one line."""

import re
from dataclasses import replace

import pytest

from magnetar.bookkeeper.ledgers.metadata import BookieId, DigestType, LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.ledgers.serialization import UnreadableMetadata, decode_metadata, encode_metadata

A, B = BookieId("a:1"), BookieId("b:1")
LEDGER = LedgerMetadata(2, 2, 2, LedgerState.OPEN, (Segment(0, (A, B)),), DigestType.HMAC, b"secret")
ONE = b"BookieMetadataFormatVersion\t1\n"
TWO = b"BookieMetadataFormatVersion\t2\n"
THREE = b"BookieMetadataFormatVersion\t3\n"


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (b"", "metadata of a ledger begins with b'': no format version"),
        (b"BookieMetadataFormatVersion\t4\n", "in format 4: this client knows 1, 2 and 3"),
        (THREE, "quorumSize, ensembleSize, length, state or firstEntryId is missing"),
        (THREE + b"\x05ab", "5 bytes are announced, 2 follow"),
        (THREE + b"\x02\xff\xff", "2 bytes are no protobuf message"),
        (encode_metadata(LEDGER) + b"x", "are announced"),
        (TWO + b"quorumSize: two", "in format 2: 1:13"),
        (TWO + b"quorumSize: 2", "quorumSize, ensembleSize, length, state or firstEntryId is missing"),
        (TWO + b"quorumSize: 1 ensembleSize: 1 length: 0 state: CLOSED", "it is closed and has no lastEntryId"),
        (
            TWO + b'quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN password: "x"',
            "digestType is missing or not known",
        ),
        (
            TWO + b"quorumSize: 1 ensembleSize: 1 length: -3 lastEntryId: 1 state: CLOSED",
            "the last entry is 1 and the length -3",
        ),
        (TWO + b"\xff", "'utf-8' codec can't decode"),
        (ONE + b"2\n2\n", "2 lines: write quorum, ensemble and length take three"),
        (ONE + b"2\n2\nzero\n", "'zero' is no number"),
        (ONE + b"2\n2\n0\n0\ta:1\tb 1\n", "'b 1' is no name of a bookie"),
        (ONE + b"2\n2\n0\n0\ta:1\tb:1\n-102\tCLOSED\n7\ta:1\tb:1", "follows the line that closes the ledger"),
        (ONE + b"2\n3\n0\n0\ta:1\tb:1\n", "a segment has not 3 bookies"),
        (ONE + b"2\n2\n0\n", "must rise from 0"),
    ],
)
def test_what_is_no_metadata(encoded: bytes, words: str) -> None:
    with pytest.raises(UnreadableMetadata, match=words) as caught:
        decode_metadata(encoded)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (replace(LEDGER, format_version=4), "in format 4: there are 1, 2 and 3"),
        (replace(LEDGER, format_version=1, ack_quorum=1), "no ack quorum of its own"),
        (replace(LEDGER, format_version=1, custom={"a": b""}), "no custom values"),
        (replace(LEDGER, segments=(Segment(0, (A, BookieId("b\t1"))),)), r"'b\\t1' is no name of a bookie"),
        (replace(LEDGER, custom={"a": bytes(1 << 20)}), "ZooKeeper stores at most 1048575"),
    ],
)
def test_what_cannot_be_stored(metadata: LedgerMetadata, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode_metadata(metadata)


def test_a_ledger_of_format_1_has_the_digest_and_password_of_the_caller() -> None:
    encoded = ONE + b"2\n3\n0\n0\ta:1\tb:1\tc:1\n5\ta:1\tb:1\td:1\n-102\tCLOSED"
    read = decode_metadata(encoded, digest=DigestType.HMAC, password=b"mine")
    assert (read.digest, read.password, read.state) == (DigestType.HMAC, b"mine", LedgerState.IN_RECOVERY)
    assert [segment.first for segment in read.segments] == [0, 5]
    assert encode_metadata(read) == encoded


def test_a_missing_ack_quorum_is_the_write_quorum() -> None:
    text = re.sub(rb"ackQuorumSize: 2\n", b"", encode_metadata(replace(LEDGER, format_version=2)))
    assert decode_metadata(text) == replace(LEDGER, format_version=2)


def test_length_and_last_entry_count_for_a_closed_ledger_alone() -> None:
    text = encode_metadata(replace(LEDGER, format_version=2)).replace(b"lastEntryId: -1", b"lastEntryId: 9")
    assert decode_metadata(text.replace(b"length: 0", b"length: 90")) == replace(LEDGER, format_version=2)
