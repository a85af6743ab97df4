"""`logweir get`, `select`, `insert`, `replace`, `update`, `upsert`, `delete`: one statement, on a
folder or a running server, with JSON in and out."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from logweir.errors import ConfigError
from logweir.tools.cli.output import Output
from logweir.tools.cli.spaces import (
    AsOfOption,
    NamesOption,
    Row,
    SpaceArgument,
    WhereArgument,
    change_of,
    form_of,
    given_key,
    given_row,
    given_value,
    open_space,
    read_space,
)
from logweir.wal.mp import Value
from logweir.wal.xrow import RowType

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="The key in JSON: 1, '\"ada\"' or '[1, \"ada\"]'.")
]
RowArgument = Annotated[
    str,
    typer.Argument(metavar="ROW", help="The tuple in JSON: an array, or an object of fields."),
]
OpsArgument = Annotated[
    str, typer.Argument(metavar="OPS", help="""Operations: '[["=", "name", "x"], ["+", 2, 1]]'.""")
]
IndexOption = Annotated[str, typer.Option("--index", metavar="INDEX", help="Its name or number.")]


class Iterator(StrEnum):
    """Which tuples a selection takes."""

    EQ = "eq"
    REQ = "req"
    ALL = "all"
    LT = "lt"
    LE = "le"
    GE = "ge"
    GT = "gt"


def get(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    key: KeyArgument,
    index: IndexOption = "0",
    names: NamesOption = False,
    as_of: AsOfOption = None,
) -> int:
    """Print the tuple with a key. Exit code 1 if there is none.

    The key is that of the primary index, or of the unique one that --index names.
    """
    wanted = given_key(key)
    with read_space(where, space, as_of) as opened:
        text_of = form_of(opened, names)
        chosen = opened.schema.index(opened.space, _index(index))
        if not chosen.is_unique or len(wanted) != len(chosen.parts):
            text = f"index {chosen.name!r} has {len(chosen.parts)} parts"
            text += "" if chosen.is_unique else " and is not unique"
            raise ConfigError("KEY", text, hint="logweir select takes a part of a key")
        found = opened.select(wanted, iterator="EQ", index=chosen.id, limit=1)
        return _show(out, text_of, next(found, None))


def select(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="In JSON: 1, '\"ada\"', or an array of the first parts."),
    ] = None,
    iterator: Annotated[
        Iterator | None,
        typer.Option(
            metavar="ITERATOR", help="eq, req, all, lt, le, ge or gt. Default: eq with a key."
        ),
    ] = None,
    index: IndexOption = "0",
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="So many at most.")] = None,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first N.")] = 0,
    names: NamesOption = False,
    as_of: AsOfOption = None,
) -> int:
    """Print tuples in the order of an index, one a line.

    A server gives them in one answer, of 64 MiB at most: use --limit, or logweir export.
    With --as-of the folder may be in use; its logs are read up to there.
    """
    by = iterator or (Iterator.ALL if key is None else Iterator.EQ)
    wanted = None if key is None else given_key(key)
    with read_space(where, space, as_of) as opened:
        text_of = form_of(opened, names)
        found = opened.select(
            wanted,
            iterator=by.value.upper(),
            index=_index(index),
            limit=limit,
            offset=offset,
        )
        for row in found:
            out.line(text_of(row))
    return 0


def insert(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    row: RowArgument,
    names: NamesOption = False,
) -> int:
    """Insert a tuple and print it as it is stored. Exit code 1 if its key is taken."""
    return _put(out, RowType.INSERT, where, space, row, names)


def replace(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    row: RowArgument,
    names: NamesOption = False,
) -> int:
    """Store a tuple, in the place of the one with its primary key, and print it."""
    return _put(out, RowType.REPLACE, where, space, row, names)


def update(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    key: KeyArgument,
    ops: OpsArgument,
    index: IndexOption = "0",
    names: NamesOption = False,
) -> int:
    """Change fields of the tuple with a key and print it. Exit code 1 if there is none.

    Operators: = + - & | ^ : ! #. Fields are named, or numbered from 0.
    """
    wanted, operations = given_key(key), _ops(ops)
    with open_space(where, space) as opened:
        text_of = form_of(opened, names)
        request = change_of(opened, RowType.UPDATE, wanted, operations, _index(index))
        return _show(out, text_of, opened.execute(request))


def upsert(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    row: RowArgument,
    ops: OpsArgument,
) -> int:
    """Insert a tuple or, where its primary key is taken, apply operations to what is there."""
    operations = _ops(ops)
    with open_space(where, space) as opened:
        values = given_row(opened.space, row)
        opened.execute(change_of(opened, RowType.UPSERT, values, operations))
    return 0


def delete(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    key: KeyArgument,
    index: IndexOption = "0",
    names: NamesOption = False,
) -> int:
    """Remove the tuple with a key and print it. Exit code 1 if there is none."""
    wanted = given_key(key)
    with open_space(where, space) as opened:
        text_of = form_of(opened, names)
        request = change_of(opened, RowType.DELETE, wanted, index=_index(index))
        return _show(out, text_of, opened.execute(request))


def _put(out: Output, kind: RowType, where: str, space: str, row: str, names: bool) -> int:
    with open_space(where, space) as opened:
        text_of = form_of(opened, names)
        request = change_of(opened, kind, given_row(opened.space, row))
        return _show(out, text_of, opened.execute(request))


def _ops(text: str) -> list[list[Value]]:
    operations = given_value("OPS", text)
    if not isinstance(operations, list) or not all(isinstance(one, list) for one in operations):
        raise ConfigError("OPS", "no list of lists", hint="""write '[["=", "name", "x"]]'""")
    return operations


def _index(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _show(out: Output, text_of: Callable[[Row], str], row: Row | None) -> int:
    """Print the tuple that there is. Returns the exit code."""
    if row is None:
        out.message("there is no tuple with that key")
        return 1
    out.line(text_of(row))
    return 0
