"""`logweir topic`: the Tank topics of a store or of a running broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from logweir.errors import ConfigError
from logweir.replication.topic.config import check_setting, check_topic
from logweir.tools.cli.operating import Ask, operate
from logweir.tools.cli.output import Output
from logweir.tools.cli.topicimport import import_topics
from logweir.wal.render import words

Action = Literal["list", "create", "config", "delete", "import"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    where: Annotated[
        str,
        typer.Argument(
            metavar="WHERE", help="The store's folder, its server (tarantool://…), or tank://…"
        ),
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
    it changes those named (KEY= removes one). A store's folder must not be served meanwhile; its
    server takes all of it under its address tarantool://…, from who may do everything. Any running
    broker can be asked under tank://… to list, to create, and by config to read its settings anew.

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
    if where.startswith("tank://"):
        from logweir.replication import loop

        return loop.run(_remote(out, action, where, name, partitions, lines))
    with operate(where) as ask:
        if action == "list":
            _show(out, ask("topics"))
        elif action == "create":
            text = "".join(f"{key}={value}\n" for key, value in lines.items())
            ask("create_topic", name, partitions, text)
            out.message(f"created {name} with {words(partitions, 'partition')}")
        elif action == "config":
            _config(out, ask, name, lines)
        else:
            ask("delete_topic", name)
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


def _config(out: Output, ask: Ask, name: str, lines: dict[str, str]) -> None:
    known = {one["topic"]: one["config"] for one in ask("topics")}
    if name not in known:
        text = f"there is no topic {name!r}"
        raise ConfigError(
            "NAME", text, hint="`logweir topic list WHERE` shows those that there are"
        )
    text = known[name]
    if lines:
        kept = [
            line
            for line in text.splitlines()
            if line.partition("=")[0].strip().lower() not in {key.lower() for key in lines}
        ]
        kept += [f"{key}={value}" for key, value in lines.items() if value]
        text = "".join(f"{line}\n" for line in kept)
        ask("configure_topic", name, text)
    if out.as_json:
        out.json({"topic": name, "config": text})
    else:
        for line in text.splitlines():
            out.line(line)


async def _remote(
    out: Output, action: Action, where: str, name: str, partitions: int, lines: dict[str, str]
) -> int:
    from logweir.replication.tank.client import Client
    from logweir.tools.cli.peers import peer_url

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
            out.message(f"created {name} with {words(partitions, 'partition')}")
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
