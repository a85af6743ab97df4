"""`logweir space`: the spaces of a store and what they consist of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import logweir
from logweir.errors import ConfigError, RequestError
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.schema import Schema
from logweir.tools.cli.operating import StoreArgument, server_at
from logweir.tools.cli.output import Output
from logweir.tools.cli.refusals import field_name, field_text, with_hint

if TYPE_CHECKING:  # a folder is looked at without a network
    from logweir.replication.urls import Url

Action = Literal["list", "create", "drop"]

MORE_HINT = "it takes one NAME; `create` has an option for each field: --field id:unsigned"


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    where: StoreArgument,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The space; list: this one alone.")
    ] = "",
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME:TYPE",
            help="create: the next field; NAME:TYPE? may be nil. Types: any, array, boolean, "
            "decimal, double, integer, map, number, scalar, string, unsigned, uuid, varbinary.",
        ),
    ] = None,
    primary: Annotated[
        str, typer.Option(metavar="FIELDS", help="create: its primary key. Default: the first.")
    ] = "",
    unique: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FIELDS", help="create: a further index, unique; repeatable."),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FIELDS", help="create: one that is not unique; repeatable."),
    ] = None,
) -> int:
    """List, make and drop the spaces of a store.

    ACTION is list, create or drop. FIELDS are names with commas between them. Types are those of
    Tarantool: unsigned, integer, number, double, decimal, string, varbinary, boolean, uuid, array,
    map, scalar, any. drop removes all tuples too. A folder must not be served meanwhile; a server
    can be asked to list alone, and shows what its user may know, without numbers of tuples.
    """
    if action != "list" and not name:
        raise ConfigError("NAME", "is missing", hint=f"logweir space {action} WHERE NAME")
    if (url := server_at(where)) is not None:
        if action != "list":
            hint = "stop the server and give its folder, or do it as a client of a Tarantool does"
            raise ConfigError("WHERE", f"a server is not asked to {action} spaces", hint=hint)
        schema = _of_server(url)
        found = [space for space in schema if not space.is_system]
        _list(out, [(space, None) for space in _chosen(schema, found, name)])
        if not found:
            may = f"there is no space that {url.user or 'guest'} may know"
            out.message(f"{may}: `logweir user grant` gives rights, other users may see more")
        return 0
    with logweir.open(Path(where), create=False) as log:
        if action == "list":
            chosen = _chosen(log.schema, log.spaces(), name)
            _list(out, [(space, log.count(space.id)) for space in chosen])
        elif action == "create":
            indexes = {
                **dict(_index(one, "--unique", is_unique=True) for one in unique or ()),
                **dict(_index(one, "--index", is_unique=False) for one in index or ()),
            }
            space_id = log.create_space(
                name,
                format=[_field(one) for one in fields or ()],
                primary=primary.split(",") if primary else None,
                indexes=indexes,
            )
            out.message(f"created {name} with id {space_id}")
        else:
            log.drop_space(name)
            out.message(f"dropped {name}")
    return 0


def _field(text: str) -> dict[str, Any]:
    name, _, given = text.rpartition(":")
    kind = given.removesuffix("?")
    if not name or not kind or FieldType.parse(kind) is None:
        types = ", ".join(sorted(one.label for one in FieldType))
        raise ConfigError(
            "--field", f"{text!r} is not NAME:TYPE", origin="--field", hint=f"types: {types}"
        )
    return {"name": name, "type": kind, "is_nullable": given.endswith("?")}


def _index(text: str, option: str, *, is_unique: bool) -> tuple[str, dict[str, Any]]:
    name, equals, fields = text.partition("=")
    if not equals or not name or not fields:
        raise ConfigError(option, f"{text!r} is not NAME=FIELDS", origin=option)
    return name, {"parts": fields.split(","), "unique": is_unique}


def _chosen(schema: Schema, spaces: Sequence[SpaceDef], name: str) -> Sequence[SpaceDef]:
    """All of them; the one of that name, if there is a name. Raises `RequestError` 36."""
    return [schema.space(name)] if name else spaces


def _of_server(url: Url) -> Schema:
    from logweir.replication import loop
    from logweir.replication.iproto.client.spaces import server_definitions

    try:
        return loop.run(server_definitions(url)).schema
    except RequestError as error:
        raise with_hint(error, str(url), None) from error


def _list(out: Output, spaces: Sequence[tuple[SpaceDef, int | None]]) -> None:
    """`spaces`: each with how many tuples it has; None: that is not known of any."""
    found: list[dict[str, Any]] = [
        {
            "id": space.id,
            "name": space.name,
            **({} if count is None else {"tuples": count}),
            "fields": [field.to_map() for field in space.fields],
            "indexes": [
                {
                    "id": one.id,
                    "name": one.name,
                    "type": one.type.name,
                    "unique": one.is_unique,
                    "fields": [field_name(space, part.field_no) for part in one.parts],
                }
                for one in space.indexes
            ],
        }
        for space, count in spaces
    ]
    if out.as_json:
        out.json(found)
        return
    rows = [
        (
            space["id"],
            space["name"],
            space.get("tuples", "-"),
            " ".join(field_text(field) for field in space["fields"]),
            " ".join(
                f"{one['name']}={','.join(map(str, one['fields']))}" for one in space["indexes"]
            ),
        )
        for space in found
    ]
    out.table(("id", "name", "tuples", "fields", "indexes"), rows, right=("id", "tuples"))


def _index_text(index: dict[str, Any]) -> str:
    return f"{index['name']}={','.join(map(str, index['fields']))}"
