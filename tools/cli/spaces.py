"""One space of a folder or of a running server, for the commands that read and write tuples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import typer

import logweir
from logweir.errors import ConfigError, DecodeError, DirectoryLocked, RequestError
from logweir.store.engine.request import Done, Request
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.named import Named
from logweir.store.schema.schema import Schema
from logweir.wal.mp import Value, unpack
from logweir.wal.render import loads

__all__ = [
    "NamesOption",
    "OpenSpace",
    "Row",
    "SpaceArgument",
    "WhereArgument",
    "given_key",
    "given_row",
    "given_value",
    "open_space",
]

WhereArgument = Annotated[
    str,
    typer.Argument(metavar="WHERE", help="A store's folder, or its server: tarantool://…"),
]
"""Where a space is."""

SpaceArgument = Annotated[str, typer.Argument(metavar="SPACE", help="The space: its name or id.")]
"""Which it is."""

NamesOption = Annotated[
    bool, typer.Option("--names", help="Objects with the names of the fields, not arrays.")
]
"""How tuples are printed."""


Row = Sequence[Value]


class OpenSpace(Protocol):
    """A space that tuples are read from and written to."""

    @property
    def schema(self) -> Schema:
        """Definitions, this space's among them."""

    @property
    def space(self) -> SpaceDef:
        """Its own."""

    def execute(self, request: Request) -> Row | None:
        """Make one change. Returns the tuple that it leaves, or removed."""

    def execute_all(self, requests: Sequence[Request]) -> Done:
        """Make several, in a folder as one transaction: there those before a refused one are made,
        those behind it are not."""

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
        from logweir.store.engine.select import Select, select

        with self._log.read_view() as view:
            wanted = Select.of(
                view.engine.schema,
                self._name,
                key,
                iterator=iterator,
                index=index,
                limit=limit,
                offset=offset,
            )
            yield from map(unpack, select(view.engine, wanted))

    def rows(self) -> Iterator[Row]:
        return self.select(None, iterator="ALL")


@contextlib.contextmanager
def open_space(where: str, name: str) -> Iterator[OpenSpace]:
    """Open the folder or reach the server. Raises `ConfigError` and what opening raises."""
    key = int(name) if name.isdecimal() else name
    if "://" in where:
        # Imported here: who has a folder needs no network, and the other way round no store.
        from logweir.replication.iproto.client.spaces import ServerSpace
        from logweir.tools.cli.peers import peer_url

        url = peer_url(where)
        if url.scheme != "tarantool":
            hint = "name its tarantool:// listener"
            raise ConfigError("WHERE", f"{url.scheme} has no spaces", hint=hint)
        with ServerSpace(url, key) as space:
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
    with log:
        yield _FolderSpace(log, key)


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
