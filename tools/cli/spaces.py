"""One space of a folder or of a running server, for the commands that read and write tuples."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

import logweir
from logweir.errors import ConfigError, DecodeError, DirectoryLocked, RequestError
from logweir.store.engine.request import Done, Request
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.named import Named
from logweir.store.schema.schema import Schema
from logweir.tools.cli.common import existing, given_vclock
from logweir.tools.cli.refusals import with_hint
from logweir.wal.mp import Value, unpack
from logweir.wal.render import loads
from logweir.wal.selection import parse_time
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.store.engine.engine import Engine

WhereArgument = Annotated[
    str,
    typer.Argument(metavar="WHERE", help="A store's folder, or its server: tarantool://…"),
]
"""Where a space is."""

SpaceArgument = Annotated[str, typer.Argument(metavar="SPACE", help="The space: its name or id.")]
"""Which it is."""

AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME|VCLOCK",
        help="Of a folder as it was: 2026-11-20T14:30:00Z or '{1: 5}'.",
    ),
]
"""When to look at it."""

NamesOption = Annotated[
    bool, typer.Option("--names", help="Objects with the names of the fields, not arrays.")
]
"""How tuples are printed."""


Row = Sequence[Value]


class ReadSpace(Protocol):
    """A space that tuples are read from."""

    @property
    def schema(self) -> Schema:
        """Definitions, this space's among them."""

    @property
    def space(self) -> SpaceDef:
        """Its own."""

    def select(
        self,
        key: Row | None,
        *,
        iterator: str,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Row]:
        """Tuples in the order of an index."""


class OpenSpace(ReadSpace, Protocol):
    """A space that tuples are read from and written to."""

    def execute(self, request: Request) -> Row | None:
        """Make one change. Returns the tuple that it leaves, or removed."""

    def execute_all(self, requests: Sequence[Request]) -> Done:
        """Make several, in a folder as one transaction: there those before a refused one are made,
        those behind it are not."""

    def rows(self) -> Iterator[Row]:
        """All tuples in the order of the primary key."""


class _FolderSpace:
    def __init__(self, log: logweir.Log, name: int | str) -> None:
        self._log = log
        self._name = name
        log.schema.space(name)

    @property
    def schema(self) -> Schema:
        return self._log.schema

    @property
    def space(self) -> SpaceDef:
        return self.schema.space(self._name)

    def execute(self, request: Request) -> Row | None:
        made = self._log.execute(request)
        return None if made is None else unpack(made)

    def execute_all(self, requests: Sequence[Request]) -> Done:
        made = 0
        try:
            with self._log.transaction() as transaction:
                for request in requests:
                    transaction.execute(request)
                    made += 1
        except RequestError as error:
            self.execute_all(requests[:made])
            return Done(made, made, error)
        return Done(len(requests))

    def select(
        self,
        key: Row | None,
        *,
        iterator: str,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Row]:
        with self._log.read_view() as view:
            yield from _selected(view.engine, self._name, key, iterator, index, limit, offset)

    def rows(self) -> Iterator[Row]:
        return self.select(None, iterator="ALL")


class _PastSpace:
    """A space of a folder as it was."""

    def __init__(self, engine: Engine, name: int | str) -> None:
        self._engine = engine
        self.schema = engine.schema
        self.space = engine.schema.space(name)

    def select(
        self,
        key: Row | None,
        *,
        iterator: str,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Row]:
        return _selected(self._engine, self.space.id, key, iterator, index, limit, offset)


def _selected(
    engine: Engine,
    space: int | str,
    key: Row | None,
    iterator: str,
    index: int | str,
    limit: int | None,
    offset: int,
) -> Iterator[Row]:
    from logweir.store.engine.select import Select, select

    schema = engine.schema
    wanted = Select.of(
        schema, space, key, iterator=iterator, index=index, limit=limit, offset=offset
    )
    return map(unpack, select(engine, wanted))


@contextlib.contextmanager
def read_space(where: str, name: str, as_of: str | None) -> Iterator[ReadSpace]:
    """`open_space`, or where a vclock or a time is given the space of a folder as it was then,
    which may be in use. Raises what both raise."""
    if as_of is None:
        with open_space(where, name) as opened:
            yield opened
        return
    if "://" in where:
        raise ConfigError("--as-of", "a server tells what is there now", hint="name a folder")
    from logweir.store import past

    is_vclock = re.match(r"\s*(\{|\d+\s*:)", as_of)
    at = given_vclock("--as-of", as_of) if is_vclock else parse_time(as_of, origin="--as-of")
    assert at is not None
    with past.as_of(existing(Path(where)), at) as view:
        yield _PastSpace(view.engine, _named(name))


def _named(name: str) -> int | str:
    return int(name) if name.isdecimal() else name


@contextlib.contextmanager
def open_space(where: str, name: str) -> Iterator[OpenSpace]:
    """Open the folder or reach the server. What is refused then has a hint. Raises `ConfigError`
    and what opening raises."""
    key = _named(name)
    if "://" in where:
        # Imported here: who has a folder needs no network, and the other way round no store.
        from logweir.replication.iproto.client.spaces import ServerSpace
        from logweir.tools.cli.peers import peer_url

        url = peer_url(where)
        if url.scheme != "tarantool":
            hint = "name its tarantool:// listener"
            raise ConfigError("WHERE", f"{url.scheme} has no spaces", hint=hint)
        with _hinting(str(url)) as told, ServerSpace(url, key) as space:
            told.append(space.space)
            yield space
        return
    try:
        log = logweir.open(Path(where), create=False)
    except DirectoryLocked as error:
        raise DirectoryLocked(
            error.reason,
            path=error.path,
            pid=error.pid,
            hint="if a server has it open, give the server's address in place of the folder: "
            "tarantool://USER@HOST:PORT",
        ) from error
    with log, _hinting(where) as told:
        made = _FolderSpace(log, key)
        told.append(made.space)
        yield made


@contextlib.contextmanager
def _hinting(where: str) -> Iterator[list[SpaceDef]]:
    """Around what may be refused. It is to be told of which space."""
    spaces: list[SpaceDef] = []
    try:
        yield spaces
    except RequestError as error:
        raise with_hint(error, where, spaces[0] if spaces else None) from error


def change_of(
    opened: ReadSpace,
    kind: RowType,
    first: Value,
    ops: Sequence[Sequence[Value]] | None = None,
    index: int | str = 0,
) -> Request:
    """A change of the space, as `request_for` makes it."""
    # Imported here: help and a wrong argument need no engine.
    from logweir.store.engine.statements import request_for

    return request_for(kind, opened.schema, opened.space.id, first, ops, index)


def form_of(opened: ReadSpace, names: bool) -> Callable[[Row], str]:
    """How tuples are printed. `names`: as objects. Raises `ConfigError` where that cannot be."""
    form = Named(opened.space)
    if names and form.obstacle:
        raise ConfigError("names", form.obstacle, origin="option", hint="leave it out")
    return functools.partial(form.text, names=names)


def given_value(name: str, text: str) -> Value:
    """The value of an argument in JSON. Raises `ConfigError`."""
    try:
        return loads(text)
    except DecodeError as error:
        hint = error.hint or """write 1, '"text"' or '[1, "text"]'"""
        raise ConfigError(name, error.reason, hint=hint) from error


def given_key(text: str) -> list[Value]:
    """The key of an argument in JSON: its parts. Raises `ConfigError`."""
    value = given_value("KEY", text)
    return value if isinstance(value, list) else [value]


def given_row(space: SpaceDef, text: str) -> list[Value]:
    """The tuple of an argument in JSON. Raises `ConfigError`."""
    try:
        return Named(space).read(text)
    except DecodeError as error:
        hint = error.hint or """write '[1, "ada"]' or '{"id": 1, "name": "ada"}'"""
        raise ConfigError("ROW", error.reason, hint=hint) from error
