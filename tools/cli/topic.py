"""`logweir topic`: the Tank topics of a store or of a running broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import logweir
from logweir.errors import ConfigError
from logweir.replication import loop
from logweir.replication.tank.client import Client
from logweir.replication.topic.config import check_setting, check_topic
from logweir.replication.topic.spaces import (
    create_topic,
    delete_topic,
    last_bundle,
    oldest_bundle,
    set_config,
    topics_of,
)
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url
from logweir.tools.cli.topicimport import import_topics

Action = Literal["list", "create", "config", "delete", "import"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    where: Annotated[
        str, typer.Argument(metavar="WHERE", help="The store's folder, or tank://HOST:PORT.")
    ],
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The topic; import: the broker's data folder.")
    ] = "",
    partitions: Annotated[
        int, typer.Option(min=1, max=65530, help="create: how many partitions.")
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated."),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="import: only this topic; may be repeated."),
    ] = None,
) -> int:
    """List, make, configure, delete and import the topics of a store or of a running broker.

    ACTION is list, create, config, delete or import. config without --set shows the settings, with
    it changes those named (KEY= removes one). A store's folder must not be served meanwhile; a
    running broker can be asked to list, to create, and by config to apply what its store says.

    import takes the data folder of a Tank broker that does not run: every topic, configuration and
    message number, into a store that is made if need be. Done again, it takes what is new. Exit
    code 3 if something in it is damaged: that is listed and left out, all else is taken.
    """
    if action != "list" and not name:
        raise ConfigError("NAME", "is missing", hint=f"logweir topic {action} WHERE NAME")
    if action == "import" and "://" not in where:
        return import_topics(out, Path(name), Path(where), topics or ())
    lines = _lines(settings or [])
    if action == "create":
        check_topic(name, partitions)
    if "://" in where:
        return loop.run(_remote(out, action, where, name, partitions, lines))
    with logweir.open(Path(where), create=False) as log:
        if action == "list":
            _show(out, [_described(log, topic) for topic in topics_of(log).values()])
        elif action == "create":
            text = "".join(f"{key}={value}\n" for key, value in lines.items())
            create_topic(log, name, partitions, text, now_seconds=log.now())
            out.message(f"created {name} with {partitions} partitions")
        elif action == "config":
            _config(out, log, name, lines)
        else:
            delete_topic(log, name)
            out.message(f"deleted {name}")
    return 0


def _lines(settings: list[str]) -> dict[str, str]:
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError("--set", f"{setting!r} is not KEY=VALUE", origin="--set")
        if value:  # an empty one removes the key, whatever that was
            check_setting(key.strip())
        found[key.strip()] = value.strip()
    return found


def _described(log: logweir.Log, topic: Any) -> dict[str, Any]:
    with log.read_view() as view:
        partitions = []
        for number in range(topic.partitions):
            first = oldest_bundle(view.engine, topic.space_id, number)
            last = last_bundle(view.engine, topic.space_id, number)
            partitions.append(
                {
                    "partition": number,
                    "first": str(first.first if first else 0),
                    "last": str(last.last if last else 0),
                }
            )
    return {"topic": topic.name, "config": topic.config_text, "partitions": partitions}


def _show(out: Output, topics: list[dict[str, Any]]) -> None:
    if out.as_json:
        out.json(topics)
        return
    rows = [
        (topic["topic"], each["partition"], each["first"], each["last"])
        for topic in topics
        for each in topic["partitions"]
    ]
    out.table(("topic", "partition", "first", "last"), rows, right=("partition", "first", "last"))


def _config(out: Output, log: logweir.Log, name: str, lines: dict[str, str]) -> None:
    topic = topics_of(log).get(name)
    text = "" if topic is None else topic.config_text
    if lines:
        kept = [
            line
            for line in text.splitlines()
            if line.partition("=")[0].strip().lower() not in {key.lower() for key in lines}
        ]
        kept += [f"{key}={value}" for key, value in lines.items() if value]
        text = "".join(f"{line}\n" for line in kept)
        set_config(log, name, text)
    if out.as_json:
        out.json({"topic": name, "config": text})
    else:
        for line in text.splitlines():
            out.line(line)


async def _remote(
    out: Output, action: Action, where: str, name: str, partitions: int, lines: dict[str, str]
) -> int:
    async with Client(peer_url(where)) as client:
        if action == "list":
            topics = []
            for topic, _, _ in await client.topics():
                states = enumerate(await client.partitions(topic))
                topics.append(
                    {
                        "topic": topic,
                        "partitions": [
                            {"partition": number, "first": str(each.first), "last": str(each.last)}
                            for number, each in states
                        ],
                    }
                )
            _show(out, topics)
        elif action == "create":
            await client.create_topic(name, partitions, lines)
            out.message(f"created {name} with {partitions} partitions")
        elif action == "config" and not lines:
            await client.reload(name)
            out.message(f"the broker has read the configuration of {name} anew")
        else:
            raise ConfigError(
                "WHERE",
                f"a running broker cannot be asked for topic {action}",
                hint="stop it and give the folder of its store",
            )
    return 0
