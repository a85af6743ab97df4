"""One space of a running server, a logweir or a Tarantool, for programs that read and write tuples.

Names are looked up in the system views, which show what the user may know; requests are those of
the embedded store, made with the definitions found there. Each change is a transaction of its own:
the protocol of 2.6 has no others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

from logweir.errors import RemoteProtocolError
from logweir.limits import IPROTO_FRAME_BYTES, TUPLE_BYTES
from logweir.replication.iproto.client import Client, open_client
from logweir.replication.iproto.wire.codec import (
    U32_MAX,
    Answer,
    IprotoKey,
    RequestType,
    decode_ballot,
)
from logweir.replication.urls import Url
from logweir.store.engine.request import ITERATORS, Done, Request, encode_body
from logweir.store.schema.definition import SYSTEM_ID_MAX, SpaceDef, SystemSpace
from logweir.store.schema.schema import Definitions, Schema
from logweir.wal.mp import Value, pack

T = TypeVar("T")

Row = Sequence[Value]

_PAGE_ROWS: Final = IPROTO_FRAME_BYTES // TUPLE_BYTES - 4
"""So many of the largest tuples fit an answer."""
_VIEWS: Final = {SystemSpace.COLLATION: 277, SystemSpace.SPACE: 281, SystemSpace.INDEX: 289}
_BY_NAME: Final = 2


class ServerSpace:
    """A space on a server, found by `name`: its name or id. A context manager, not for event loops.

    Every method raises `Unreachable`, `RemoteProtocolError`, and `RequestError` for what the server
    refuses.
    """

    def __init__(self, url: Url, name: int | str) -> None:
        self._url = url
        self._name = name
        self._stack = contextlib.ExitStack()
        self.schema = Schema()
        """The definitions: of this space, and of the collations."""
        self.space: SpaceDef
        """Its own."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._runner = stack.enter_context(asyncio.Runner())
            opening = open_client(self._url)
            self._client: Client = self._run(opening.__aenter__())
            stack.callback(lambda: self._run(opening.__aexit__(None, None, None)))
            self._learn()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _learn(self) -> None:
        name, by_name = self._name, _BY_NAME if isinstance(self._name, str) else 0
        learn = partial(_learn, self._client, self.schema)
        self._run(learn(SystemSpace.COLLATION))
        self._run(learn(SystemSpace.SPACE, by_name, [name]))
        self._run(learn(SystemSpace.INDEX, 0, [self.schema.space(name).id]))
        self.space = self.schema.space(name)

    def execute(self, request: Request) -> Row | None:
        """Make one change. Returns the tuple that the server answers with, if any."""
        (answer,) = self._run(self._send([request]))
        if answer.is_error:
            raise answer.error()
        return next(iter(_rows(answer)), None)

    def execute_all(self, requests: Sequence[Request]) -> Done:
        """Make changes, each by itself: those after a refused one too."""
        answers = self._run(self._send(requests))
        refused = [number for number, answer in enumerate(answers) if answer.is_error]
        if not refused:
            return Done(len(answers))
        return Done(len(answers) - len(refused), refused[0], answers[refused[0]].error())

    async def _send(self, requests: Sequence[Request]) -> list[Answer]:
        waiting = [self._client.send(one.type, encode_body(one)) for one in requests]
        self._client.flush()
        return [await one for one in waiting]

    def select(
        self,
        key: Row | None,
        *,
        iterator: str,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Row]:
        """Tuples in the order of an index, in one answer. `iterator`: one of `ITERATORS`."""
        number = self.schema.index(self.space, index).id
        limit = U32_MAX if limit is None else min(limit, U32_MAX)
        asked = self.space.id, number, iterator, key or (), limit, min(offset, U32_MAX)
        yield from self._run(_selected(self._client, *asked))

    def rows(self) -> Iterator[Row]:
        """All tuples in the order of the primary key, page by page: not as of one position."""
        primary = self.schema.index(self.space, 0)
        iterator, key = "ALL", list[Value]()
        while page := self._run(
            _selected(self._client, self.space.id, 0, iterator, key, _PAGE_ROWS)
        ):
            yield from page
            iterator, key = "GT", [part.value_in(page[-1]) for part in primary.parts]


async def _selected(
    client: Client,
    space_id: int,
    index_id: int,
    iterator: str,
    key: Row,
    limit: int = U32_MAX,
    offset: int = 0,
) -> list[Row]:
    body: Mapping[int, Value] = {
        int(IprotoKey.SPACE_ID): space_id,
        int(IprotoKey.INDEX_ID): index_id,
        int(IprotoKey.ITERATOR): ITERATORS.index(iterator),
        int(IprotoKey.LIMIT): limit,
        int(IprotoKey.OFFSET): offset,
        int(IprotoKey.KEY): list(key),
    }
    return _rows(await client.call(RequestType.SELECT, body))


async def _learn(
    client: Client, schema: Schema, source: SystemSpace, index_id: int = 0, key: Row = ()
) -> None:
    """Learn the definitions that a user may know, of users' spaces."""
    for row in await _selected(client, _VIEWS[source], index_id, "EQ" if key else "ALL", key):
        if source == SystemSpace.COLLATION or key or cast(int, row[0]) > SYSTEM_ID_MAX:
            schema.apply(source, None, pack(row), trusted=True)


async def server_definitions(url: Url) -> Definitions:
    """Those of a server that its user may know, of users' spaces, as of a position or later. Raises
    `Unreachable`, `RemoteProtocolError`, `RequestError`."""
    schema = Schema()
    async with open_client(url) as client:
        ballot = decode_ballot((await client.call(RequestType.VOTE)).body)
        for source in _VIEWS:
            await _learn(client, schema, source)
    return Definitions(schema, None, ballot.vclock.without_local())


def _rows(answer: Answer) -> list[Row]:
    rows = answer.body.get(IprotoKey.DATA, [])
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise RemoteProtocolError("the server answered with something else than tuples")
    return rows
