"""What rows only name, from the homeserver's database: the options ``enrich``, ``enrich_streams``.

The address of a PostgreSQL is in libpq's own form, parameters with it.
Each event, and account data, that a row of the streams `kinds.ENRICHED` names becomes a tuple of
the space of its kind, written in the transaction of that row. `state` says what `content` is:

===========  ======================================================================================
state        content
===========  ======================================================================================
whole        the event's, or the account data
soft_failed  the event's, which clients are not shown
rejected     the event's, which is not part of its room
redacted     nil: an event that redacts it, and was not rejected, is in the database or came here
long         nil: its JSON has more than `limits.SYNAPSE_JSON_BYTES`
unreadable   nil: it is no JSON, or cannot be stored
missing      nil, and no sender and time: the database does not have it (any more)
===========  ======================================================================================

Nothing is stored until its contents are known: a database that is away is asked again until it
answers, and the position stays meanwhile. Only SELECT is ever sent to it. Source: tables of Synapse
1.163.2, observed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logweir.errors import ConfigError, SourceStopped, Unreachable
from logweir.limits import CONNECT_SECONDS, SYNAPSE_JSON_BYTES
from logweir.replication.synapse.follow.kinds import (
    ENRICHED,
    KINDS,
    Kind,
    Named,
    NamedEvent,
    named_in,
)
from logweir.replication.synapse.wire.units import Change, Unit, Units
from logweir.replication.urls import Url, read_password
from logweir.store.commit.group import Group
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

_STATE, _CONTENT = 6, 7  # of an event

PORTION_EVENTS: Final = 200
"""Events, or other data, that are asked for at once, about; rows that name them are stored
together."""
_ANSWER_SECONDS: Final = 20.0
_FILE_HEAD: Final = b"SQLite format 3\0"
_FILE_WORDS: Final = (
    "?",
    "length(CAST({} AS BLOB))",
    "group_concat(json_quote(a.tag) || ':' || a.content, ',')",
)
_SERVER_WORDS: Final = (
    "%s",
    "octet_length({})",
    "string_agg(to_json(a.tag)::text || ':' || a.content, ',')",
)
"""How each says: a value that is given, the bytes of a text, the tags of a room as one text."""
_WAYS: Final = "postgresql://…, sqlite:///FILE or, with synapse+file, database"


@dataclass(frozen=True, slots=True)
class Database:
    """Where contents are. `shown`: how it is called; `options`: of libpq; `password_file`: with its
    password; `file`: of SQLite, otherwise ""."""

    shown: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    password_file: str = ""
    file: str = ""


def read_database(url: Url) -> Database | None:
    """What the option `enrich` of an address says; None without it. Raises `ConfigError`."""
    text = url.option("enrich")
    if not text:
        return None
    scheme, _, rest = text.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest != "/":
        return Database(text, file=urllib.parse.unquote(rest))
    if scheme not in ("postgresql", "postgres"):
        raise ConfigError("enrich", "it is no address of a database", hint=f"write {_WAYS}")
    psycopg = _driver()
    try:  # errors of the library show parts of the text, which may be a password
        options = psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.Error:
        raise ConfigError("enrich", "it is no address of a PostgreSQL") from None
    if "password" in options:
        hint = "put it into a file, and name that: enrich_password_file=FILE"
        raise ConfigError("enrich", "a password stands in it, which others would see", hint=hint)
    found = tuple((name, str(value)) for name, value in options.items())
    if file := url.option("enrich_password_file"):
        _password(file)  # it is read again for each connection
    return Database(text, found, file)


def check_database(database: Database, *, may_come: bool) -> None:
    """Look at a file of SQLite: that it is one. `may_come`: it need not be there yet, as where a
    new homeserver waits for the server that follows it. Raises `ConfigError`."""
    if not database.file:
        return
    try:
        with open(database.file, "rb") as opened:
            head = opened.read(len(_FILE_HEAD))
    except OSError as error:
        if may_come and isinstance(error, FileNotFoundError):
            return
        raise ConfigError("enrich", f"{database.file}: {error.strerror}") from error
    if head and head != _FILE_HEAD:
        raise ConfigError("enrich", f"{database.file}: it is no database of SQLite")


def _driver() -> Any:
    """The library. Raises `ConfigError`."""
    try:
        import psycopg
    except ImportError as error:
        hint = "pip install 'logweir[enrich]'"
        raise ConfigError("enrich", "the package `psycopg` is not installed", hint=hint) from error
    return psycopg


def portions(
    changes: Sequence[Change], streams: Collection[str] = ENRICHED
) -> Iterator[tuple[list[Change], dict[tuple[str, ...], Named]]]:
    """Changes in their order, in portions that name about `PORTION_EVENTS` events and other data,
    with what each names, by key. `streams`: those whose contents are kept."""
    portion: list[Change] = []
    named: dict[tuple[str, ...], Named] = {}
    for change in changes:
        is_run = isinstance(change, Units) and change.stream in streams
        for one in change.each() if is_run and isinstance(change, Units) else (change,):
            portion.append(one)
            if isinstance(one, Unit) and one.stream in streams:
                named |= {found.key: found for found in _named(one)}
            if len(named) >= PORTION_EVENTS:
                yield portion, named
                portion, named = [], {}
    if portion:
        yield portion, named


def _named(unit: Unit) -> list[Named]:
    """What its rows name."""
    found = (named_in(unit.stream, row) for row in unit.rows)
    return [one for one in found if one is not None]


def keep(
    space: int, unit: Unit, contents: Mapping[tuple[str, ...], bytes]
) -> Callable[[Group], None]:
    """Writes what a unit's rows name. `contents`: by key."""
    all_named = _named(unit)

    def step(group: Group) -> None:
        for named in all_named:
            if named.key in contents:
                one = named.stored(contents[named.key], unit.token)
                group.execute(Request(RowType.REPLACE, space, tuple=one))
            if isinstance(named, NamedEvent) and named.redacts:
                wanted = Select.of(group.schema, space, [named.redacts])
                for held in list(select(group.engine, wanted)):
                    fields = unpack(held)
                    fields[_STATE], fields[_CONTENT] = "redacted", None
                    group.execute(Request(RowType.REPLACE, space, tuple=pack(fields)))

    return step


class Contents:
    """Asks a database for contents. `database`: which; nothing is opened until it is asked. Raises
    `ConfigError` if it cannot be."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._driver: Any = None if database.file else _driver()
        self._connection: Any = None

    async def of(self, named: Mapping[tuple[str, ...], Named]) -> dict[tuple[str, ...], bytes]:
        """What they say. Raises `Unreachable` if it may be had later, `SourceStopped` if not."""
        found = {key: one.missing() for key, one in named.items()}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                for kind in KINDS:
                    keys = [key for key, one in named.items() if kind.takes(one)]
                    if keys:
                        found.update(map(kind.found, await self._ask(kind, keys)))
        except TimeoutError as error:
            await self.close()
            raise Unreachable(self._database.shown, "no answer in time") from error
        return found

    async def _ask(self, kind: Kind, keys: Sequence[tuple[str, ...]]) -> Sequence[Sequence[Any]]:
        """The rows of a database's answer."""
        is_file = bool(self._database.file)
        mark, size, tags = _FILE_WORDS if is_file else _SERVER_WORDS
        marks = ", ".join([mark] * len(keys[0]))
        sql = kind.sql.format(
            keys=", ".join([marks if len(keys[0]) == 1 else f"({marks})"] * len(keys)),
            size=size.format(kind.text),
            most=SYNAPSE_JSON_BYTES,
            tags=tags,
        )
        given = [part for key in keys for part in key]
        if is_file:
            return await asyncio.to_thread(self._of_file, kind, sql, given)
        return await self._of_server(kind, sql, given)

    async def close(self) -> None:
        """Give its connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _of_server(
        self, kind: Kind, sql: str, given: Sequence[str]
    ) -> Sequence[Sequence[Any]]:
        driver = self._driver
        try:
            if self._connection is None:
                options = dict(self._database.options)
                options.setdefault("application_name", "logweir")
                options.setdefault("connect_timeout", str(int(CONNECT_SECONDS)))
                if self._database.password_file:
                    options["password"] = _password(self._database.password_file)
                self._connection = await driver.AsyncConnection.connect(
                    "", autocommit=True, prepare_threshold=None, **options
                )
            cursor = await self._connection.execute(sql, given)
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
        except (driver.Error, OSError) as error:
            await self.close()
            raise self._refusal(kind, error, getattr(error, "sqlstate", None)) from error
        return rows

    def _of_file(self, kind: Kind, sql: str, given: Sequence[str]) -> Sequence[Sequence[Any]]:
        name = f"file:{urllib.parse.quote(self._database.file)}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(name, uri=True, timeout=5.0)) as connection:
                return connection.execute(sql, given).fetchall()
        except sqlite3.Error as error:
            state = "42P01" if "no such table" in str(error) else None
            raise self._refusal(kind, error, state) from error

    def _refusal(
        self, kind: Kind, error: Exception, state: str | None
    ) -> Unreachable | SourceStopped:
        """An error of the database. `state`: SQLSTATE, whose class 42 is about names and rights."""
        text = str(error).strip().partition("\n")[0]
        if state is not None and state.startswith("42"):
            tables = ", ".join(kind.tables)
            hint = f"the user needs SELECT on {tables}; enrich_streams= says what is asked for"
            return SourceStopped(f"{self._database.shown}: {text}", hint=hint)
        return Unreachable(self._database.shown, text)


def _password(file: str) -> str:
    """The first line of a file. Raises `ConfigError`."""
    try:
        return read_password(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError("enrich_password_file", f"{file}: {reason}") from error
