"""`magnetar links`: operate the links between clusters. A link `A:B` is operated at its source, A."""

from typing import Annotated, Any

import typer

from magnetar.admin.client import AdminClient
from magnetar.cli.shared.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    confirm,
    duration,
    print_json,
    print_line,
    print_rows,
    read_config,
    size,
)
from magnetar.cli.shared.group import Group
from magnetar.cli.shared.targets import at_once, client_of, of_config
from magnetar.core.config import Config
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.core.numbers import whole_number

app = Group("Links between clusters: list, pause, resume, skip, throttle.")

LinkArgument = Annotated[str, typer.Argument(metavar="A:B", help="Source and target, as in us-west:us-east.")]
TopicOption = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="One topic or partition; default: the whole link.")
]

COLUMNS = ("link", "state", "lag_messages", "lag", "lag_time", "sent_messages", "sent", "throttle", "detail")


def rows_of(links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Links as rows of a table."""
    return [
        {
            "link": f"{link['source']}:{link['target']}",
            "state": link["state"],
            "lag_messages": link["lag_messages"],
            "lag": size(link["lag_bytes"]),
            "lag_time": duration(link["lag_ms"]),
            "sent_messages": link["messages_sent"],
            "sent": size(link["bytes_sent"]),
            "throttle": f"{size(link['throttle_bytes_per_s'])}/s" if link["throttle_bytes_per_s"] else "",
            "detail": link["detail"],
        }
        for link in links
    ]


def _at_source(path: Any, text: str) -> tuple[AdminClient, str]:
    """A client of the link's source and the link's path there.

    Raises:
        ConfigError: no such link in the configuration.
    """
    config: Config = read_config(path)
    link = config.link(text)
    return client_of(config, link.source), f"/geo/v1/links/{link.target}"


def _topic(text: str | None) -> str | None:
    return None if text is None else str(TopicName.parse(text))


@app.add("list", example="magnetar links list")
def list_links(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every link with its lag, as its source sees it."""
    found = of_config(read_config(config))
    links: list[dict[str, Any]] = []
    failures: list[str] = []
    for target, answer in zip(found, at_once(found, lambda client: client.get("/geo/v1/links")), strict=True):
        if isinstance(answer, MagnetarError):
            failures.append(f"{target.cluster}: {answer}")
        else:
            links += answer
    if as_json:
        print_json(links)
    elif links or not failures:
        print_rows(rows_of(links), COLUMNS, as_json=False)
    if failures:
        raise MagnetarError("; ".join(failures))


@app.add("pause", example="magnetar links pause us-west:us-east --topic persistent://public/default/orders")
def pause(link: LinkArgument, topic: TopicOption = None, config: ConfigOption = None) -> None:
    """Pause a link, or one topic of it. Its data is kept, and the pause survives restarts."""
    client, path = _at_source(config, link)
    client.post(f"{path}/pause", query={"topic": _topic(topic)})
    print_line(f"paused {link}{f' for {topic}' if topic else ''}")


@app.add("resume", example="magnetar links resume us-west:us-east")
def resume(link: LinkArgument, topic: TopicOption = None, config: ConfigOption = None) -> None:
    """End a pause; blocked topics are tried again at once."""
    client, path = _at_source(config, link)
    client.post(f"{path}/resume", query={"topic": _topic(topic)})
    print_line(f"resumed {link}{f' for {topic}' if topic else ''}")


@app.add("throttle", example="magnetar links throttle us-west:us-east 10MB")
def throttle(
    link: LinkArgument,
    rate: Annotated[
        str, typer.Argument(metavar="BYTES|off", help="Bytes per second, with kB, MB or GB; off: no limit.")
    ],
    config: ConfigOption = None,
) -> None:
    """Limit the bytes per second of a link; survives restarts."""
    limit = rate_of(rate)
    client, path = _at_source(config, link)
    client.post(f"{path}/throttle", {"bytes_per_s": limit} if limit else {})
    print_line(f"{link} sends at most {size(limit)}/s" if limit else f"{link} sends without a limit")


def rate_of(text: str) -> int | None:
    """Bytes per second; None for `off`.

    Raises:
        MagnetarError: it is neither.
    """
    if text == "off":
        return None
    number = text.strip().lower().removesuffix("/s").removesuffix("b").strip()
    factor = {"k": 1000, "m": 1_000_000, "g": 1_000_000_000}.get(number[-1:], 1)
    if factor > 1:
        number = number[:-1].strip()
    count = whole_number(number)
    if count is None or not 1 <= count * factor < 2**63:
        raise MagnetarError(f"{text[:40]!r} is not a rate: write bytes per second, such as 500kB or 10MB, or off")
    return count * factor


@app.add("skip", example="magnetar links skip us-west:us-east --topic persistent://public/default/orders")
def skip(
    link: LinkArgument,
    topic: TopicOption = None,
    through: Annotated[
        str,
        typer.Option(metavar="POSITION", help="blocked: the blocking entry; latest: all entries; or LEDGER:ENTRY."),
    ] = "blocked",
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up messages on a link. Shows how many would be lost, and asks."""
    client, path = _at_source(config, link)
    name = _topic(topic)
    found = client.post(f"{path}/skip", query={"topic": name, "through": through, "preview": True})
    if not found["topics"]:
        raise MagnetarError(f"{link}: there is nothing to skip")
    if not as_json:
        print_rows(found["topics"], ("topic", "through", "messages", "entries", "bytes"), as_json=False)
    confirm(f"Lose {found['messages']:,} messages on {link}? They stay in {link.partition(':')[0]}.", yes=yes)
    # Exactly what was shown, even if more has come meanwhile.
    lost: list[dict[str, Any]] = []
    for shown in found["topics"]:
        try:
            lost += client.post(f"{path}/skip", query={"topic": shown["topic"], "through": shown["through"]})["topics"]
        except MagnetarError as error:
            count = sum(part["messages"] for part in lost)
            raise MagnetarError(
                f"{shown['topic']}: {error}; {count:,} messages of {len(lost):,} other topics are skipped, "
                f"{len(found['topics']) - len(lost):,} topics are not: run the command again"
            ) from None
    if as_json:
        print_json({"messages": sum(part["messages"] for part in lost), "topics": lost})
    else:
        print_line(f"skipped {sum(part['messages'] for part in lost):,} messages on {link}")
