"""`logweir space`: the spaces of a store and what they consist of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

import logweir
from logweir.errors import ConfigError
from logweir.store.schema.definition import SpaceDef
from logweir.tools.cli.common import FolderArgument
from logweir.tools.cli.output import Output

Action = Literal["list", "create", "drop"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    directory: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The space.")] = "",
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
    map, scalar, any. drop removes all tuples too. The store must not be served meanwhile.
    """
    if action != "list" and not name:
        raise ConfigError("NAME", "is missing", hint=f"logweir space {action} DIR NAME")
    with logweir.open(directory, create=False) as log:
        if action == "list":
            _list(out, [(space, log.count(space.id)) for space in log.spaces()])
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
    name, colon, kind = text.rpartition(":")
    if not colon or not name or not kind.removesuffix("?"):
        raise ConfigError("--field", f"{text!r} is not NAME:TYPE", origin="--field")
    return {"name": name, "type": kind.removesuffix("?"), "is_nullable": kind.endswith("?")}


def _index(text: str, option: str, *, is_unique: bool) -> tuple[str, dict[str, Any]]:
    name, equals, fields = text.partition("=")
    if not equals or not name or not fields:
        raise ConfigError(option, f"{text!r} is not NAME=FIELDS", origin=option)
    return name, {"parts": fields.split(","), "unique": is_unique}


def _list(out: Output, spaces: list[tuple[SpaceDef, int]]) -> None:
    found: list[dict[str, Any]] = [
        {
            "id": space.id,
            "name": space.name,
            "tuples": count,
            "fields": [field.to_map() for field in space.fields],
            "indexes": [
                {
                    "id": one.id,
                    "name": one.name,
                    "type": one.type.name,
                    "unique": one.is_unique,
                    "fields": [_field_name(space, part.field_no) for part in one.parts],
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
            space["tuples"],
            " ".join(_field_text(field) for field in space["fields"]),
            " ".join(_index_text(one) for one in space["indexes"]),
        )
        for space in found
    ]
    out.table(("id", "name", "tuples", "fields", "indexes"), rows, right=("id", "tuples"))


def _field_name(space: SpaceDef, number: int) -> str | int:
    return space.fields[number].name if number < len(space.fields) else number


def _field_text(field: dict[str, Any]) -> str:
    return f"{field['name']}:{field['type']}{'?' if field.get('is_nullable') else ''}"


def _index_text(index: dict[str, Any]) -> str:
    return f"{index['name']}={','.join(map(str, index['fields']))}"
