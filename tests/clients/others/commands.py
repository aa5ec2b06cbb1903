"""All sub-commands of `pulsar-admin`, one after the other, at a broker: what each is to answer is in tools/commands.txt."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.clients.others.conversation import HERE
from tests.clients.others.pulsartools import Tools
from tests.support.brokers import BrokerProcess

LINES: Final = HERE / "tools" / "commands.txt"
TOPIC: Final = "persistent://acme/n/t"
SCHEMA: Final = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


class Answer(NamedTuple):
    """What came of a line.

    Attributes:
        name: of the sub-command, such as `topics stats`.
        line: as it was given.
        refusal: words that the answer was to have; "": it was to succeed.
        code: of the tool's end.
        text: what the tool said.
    """

    name: str
    line: str
    refusal: str
    code: int
    text: str

    @property
    def expected(self) -> bool:
        """Whether it is what it was to be."""
        return bool(self.code) == bool(self.refusal) and self.refusal in self.text

    @property
    def reason(self) -> str:
        """Of a refusal, in one line."""
        return self.text.partition("\n")[0].strip()


def answers(tools: Tools, broker: BrokerProcess, folder: Path) -> Iterator[Answer]:
    """Give all lines; what comes of each."""
    schema = folder / "schema.json"
    schema.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(SCHEMA), "properties": {}}))
    known = {"http": broker.http_port, "schema": schema, "ledger": 0}
    for row in LINES.read_text().splitlines():
        if not row or row.startswith("#"):
            continue
        line, _, refusal = row.partition(" => ")
        line = line.format(**known)
        code, text = tools.ask("admin", line)
        if line.startswith(f"topics create-subscription {TOPIC} -s s "):
            tools.client(f"produce {TOPIC} -m one,two,three")
            position = tools.json(f"topics stats-internal {TOPIC}")["cursors"]["s"]["readPosition"]
            known["ledger"] = int(position.split(":")[0])
        yield Answer(" ".join(line.split()[:2]), line, refusal, code, text)


def every(tools: Tools) -> set[str]:
    """The names of all sub-commands, as the tool itself lists them."""
    found = set()
    for group in _listed(tools.ask("admin", "--help")[1]):
        found |= {f"{group} {name}" for name in _listed(tools.ask("admin", f"{group} --help")[1])}
    return found


def _listed(page: str) -> list[str]:
    return re.findall(r"^  ([a-z][A-Za-z0-9-]*)(?:,|  |$)", page.partition("Commands:")[2], re.MULTILINE)
