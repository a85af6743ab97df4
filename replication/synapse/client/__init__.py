"""A follower of Synapse's line protocol: logweir's streams, or a homeserver's, unit by unit.

::

    async with Follower("synapse://127.0.0.1:9092", tokens="tokens.json") as follower:
        async for change in follower:
            if isinstance(change, Rows):
                print(change.stream, change.token, change.rows)
            await follower.commit()

A `Rows` is one transaction of the server: all rows of one token. It may come twice, after a restart
or a lost connection (at least once): `token` and `more` tell. What cannot be had any more comes as
a `Missing`, in its place. The follower reconnects by itself for ever; `last_error` tells why the
last connection ended.

`tokens` names the file where `commit` keeps how far everything was taken: JSON, ``{"streams":
[[stream, writer, last, resume, epoch], …], "server": name}``, written to a new file that is synced
and renamed. A follower that begins with such a file goes on there; without one, or for streams that
are not in it, `start` says whether with what comes ("now") or with all there is ("all").

The address takes the options `dialect`, `server_name`, `http`, `http.<writer>` and `auth_file` of
an upstream; missed rows come over the connection in D1, and from `http` in D2 and D3. What arrives
and is not taken yet is bounded by `limits.SYNAPSE_WAITING_BYTES`: above it the server is not read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from logweir.errors import ConfigError, LogweirError, SourceStopped, Unreachable
from logweir.limits import SYNAPSE_WAITING_BYTES
from logweir.replication.budget import Unanswered
from logweir.replication.dialer import Closing, dial_with
from logweir.replication.link import Link
from logweir.replication.runner import Timing
from logweir.replication.synapse.client_session import ClientSession, Event, Greeted, dialect_of
from logweir.replication.synapse.follow.catchup import Sources, read_secret
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.wire.address import SCHEMES
from logweir.replication.synapse.wire.codec import decode_row_value
from logweir.replication.synapse.wire.units import (
    Change,
    Cursor,
    Fetch,
    Gap,
    Moved,
    Unit,
    Units,
    size_of,
)
from logweir.replication.urls import Url, read_url
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.newfile import replace_file

__all__ = ["Follower", "Missing", "Rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one token. `epoch`: how often the stream's tokens began anew, from 1.

    `more`: they go after the rows that this token had already; otherwise they are all it has.
    """

    stream: str
    writer: str
    token: int
    rows: Sequence[Any]
    epoch: int = 1
    more: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """Rows with tokens after `after` up to `upto` cannot be had."""

    stream: str
    writer: str
    after: int
    upto: int
    reason: str


class TokenFile:
    """Where a follower's cursors are kept; see the module's text. `filesystem`: of `path`."""

    def __init__(self, path: Path, *, filesystem: FileSystem = OS) -> None:
        self._path = path
        self._filesystem = filesystem

    def load(self) -> tuple[str, dict[tuple[str, str], Cursor]]:
        """The server's name and the cursors; "" and none without a file. Raises `ConfigError`."""
        try:
            with closing(self._filesystem.open_read(self._path)) as file:
                found = json.loads(file.read(file.size(), 0))
            cursors = {
                (str(stream), str(writer)): Cursor(int(last), int(resume), int(epoch))
                for stream, writer, last, resume, epoch in found["streams"]
            }
            return str(found["server"]), cursors
        except FileNotFoundError:
            return "", {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "tokens",
                f"{self._path} cannot be read: {error}",
                hint="it is no file of a follower; remove it to begin anew",
            ) from error

    def save(self, server: str, cursors: dict[tuple[str, str], Cursor]) -> None:
        """Replace the file; durable when it returns. Raises `OSError`."""
        streams = [[*key, one.last, one.resume, one.epoch] for key, one in sorted(cursors.items())]
        text = json.dumps({"server": server, "streams": streams})
        replace_file(self._filesystem, self._path, text.encode())


class Follower(Closing):
    """See the module's text. `streams`: their names, () for all; `timing`: of reconnects."""

    def __init__(
        self,
        url: str | Url,
        *,
        tokens: str | Path | None = None,
        streams: Sequence[str] = (),
        start: Literal["now", "all"] = "now",
        name: str = "logweir-client",
        timing: Timing | None = None,
    ) -> None:
        self.url = read_url(url, SCHEMES) if isinstance(url, str) else url
        if self.url.scheme != "synapse":
            raise ConfigError("url", f"{self.url.scheme} is not followed here", hint="synapse://…")
        if start not in ("now", "all"):
            raise ConfigError("start", f"{start!r} is neither now nor all")
        self.dialect = dialect_of(self.url)
        self.name = name
        self.streams = frozenset(streams)
        self.server = self.url.option("server_name")
        self.last_error = ""
        self.sources = Sources(self.url, read_secret(self.url))
        self._file = None if tokens is None else TokenFile(Path(tokens))
        self._start_all = start == "all"
        self._timing = timing or Timing()
        self._taken: dict[tuple[str, str], Cursor] = {}
        self._saved: dict[tuple[str, str], Cursor] = {}
        self.tracker = Tracker({})
        self.waiting_bytes = 0
        self.conversation: _Conversation | None = None
        self._waiting: deque[Change] = deque()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: LogweirError | None = None

    async def __aenter__(self) -> Self:
        if self._file is not None:
            server, self._saved = await asyncio.to_thread(self._file.load)
            if server and self.server and server != self.server:
                raise ConfigError("tokens", f"they are of {server}, not of {self.server}")
            self.server = self.server or server
        self._taken = dict(self._saved)
        self.tracker = Tracker(self._saved, start_all=self._start_all)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda task: self._news.set())
        return self

    async def close(self) -> None:
        """Disconnect. What was not committed comes again next time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def tokens(self) -> dict[tuple[str, str], int]:
        """The token of each (stream, writer) up to which everything was taken."""
        return {key: cursor.last for key, cursor in self._taken.items()}

    async def commit(self) -> None:
        """Keep in the file that everything given out so far is done with. Durable then.

        Raises `ConfigError` if there is no file, `OSError` if it cannot be written.
        """
        if self._file is None:
            raise ConfigError("tokens", "there is no file to keep them in", hint="give tokens=…")
        cursors = dict(self._taken)
        if cursors != self._saved:
            await asyncio.to_thread(self._file.save, self.server, cursors)
            self._saved = cursors

    def __aiter__(self) -> AsyncIterator[Rows | Missing]:
        return self

    async def __anext__(self) -> Rows | Missing:
        """What comes next. Raises `SourceStopped` if going on needs an operator."""
        while True:
            while self._waiting:
                found = self._take(self._waiting.popleft())
                if found is not None:
                    return found
            if self._failure is not None:
                raise self._failure
            if self._task is None:
                raise StopAsyncIteration
            if self._task.done():
                self._task.result()
            self._news.clear()
            await self._news.wait()

    def _take(self, change: Change) -> Rows | Missing | None:
        if isinstance(change, Unit):
            self.waiting_bytes -= sum(map(len, change.rows))
            if self.conversation is not None:
                self.conversation.look()
            if change.cursor is not None:
                self._taken[change.stream, change.instance] = change.cursor
        elif isinstance(change, Moved):
            self._taken[change.stream, change.instance] = change.cursor
            return None
        assert isinstance(change, Unit | Gap)
        if self.streams and change.stream not in self.streams:
            return None
        where = (change.stream, change.instance)
        if isinstance(change, Gap):
            return Missing(*where, change.after, change.upto, change.reason)
        values = [decode_row_value(row) for row in change.rows]
        return Rows(*where, change.token, values, change.epoch, change.more)

    # --- the connection ---------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while self._failure is None:
            failures += 1
            try:
                link, conversation = await dial_with(
                    self.url, lambda link: _Conversation(self, link)
                )
                try:
                    await asyncio.wait((link.gone,))
                    self.last_error = link.gone.result()
                finally:
                    link.close("following ends")
                    await link.gone
                    self.conversation = None
                if conversation.session.wrong_server:
                    self.fail(SourceStopped(self.last_error, hint="is it the right address?"))
                if conversation.was_settled:
                    failures = 1
            except Unreachable as error:
                self.last_error = str(error)
            await self._timing.pause(self._timing.backoff_seconds(failures))

    def add(self, changes: Sequence[Change]) -> None:
        """Changes for the iterator."""
        for change in changes:
            if isinstance(change, Units):
                self._waiting.extend(change.each())
            else:
                self._waiting.append(change)
        self.waiting_bytes += sum(map(size_of, changes))
        self._news.set()

    def fail(self, error: LogweirError) -> None:
        """Nothing more can be followed."""
        self._failure = self._failure or error
        self._news.set()


class _Conversation:
    """One connection of a follower."""

    def __init__(self, follower: Follower, link: Link) -> None:
        self.was_settled = False
        self._follower = follower
        follower.conversation = self
        self._link = link
        self._unanswered = Unanswered(
            link, SYNAPSE_WAITING_BYTES, lambda held: self.session.reading(not held, link.time())
        )
        self.session = ClientSession(
            link.time(),
            dialect=follower.dialect,
            server_name=follower.server,
            name=follower.name,
            milliseconds=lambda: time.time_ns() // 1_000_000,
        )

    def handle(self, events: Sequence[Event]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        changes: list[Change] = []
        for event in events:
            if isinstance(event, Greeted):
                self._follower.server = event.server
                streams = sorted(self._follower.streams)
                self.session.begin(self._follower.tracker, self._link.time(), streams)
            elif isinstance(event, Fetch):
                self._link.spawn(self._fetch(event))
            else:
                changes.append(event)
        if changes:
            self._follower.add(changes)
        self.was_settled = self.was_settled or self._follower.tracker.is_settled
        self.look()

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        self.session.lost()

    async def _fetch(self, wanted: Fetch) -> None:
        try:
            page = await self._follower.sources.fetch(wanted, lambda problem: None)
        except SourceStopped as error:
            self._follower.fail(error)
            raise
        self.handle(self.session.take_page(wanted, page))
        self._link.flush()

    def look(self) -> None:
        """Read the server only while there is room."""
        tracker = self._follower.tracker
        waiting = self._follower.waiting_bytes + (tracker.held_bytes if tracker.is_fetching else 0)
        self._unanswered.set(waiting)
