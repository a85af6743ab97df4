"""What events say, from the homeserver's database: the option ``enrich``.

========================================  =========================================================
value                                     database
========================================  =========================================================
``postgresql://[user@][host][:port]/db``  a PostgreSQL, in libpq's own form, parameters with it;
                                          its password stands in the file that
                                          `enrich_password_file` names, or where libpq looks
``sqlite:///FILE``                        of a small homeserver
``database``                              (``synapse+file`` only) what the homeserver's file says
========================================  =========================================================

Each event that a row of `events` or `backfill` names becomes a tuple of the space
``synapse_event_json``: the fields of `CONTENT_FORMAT`, primary key the first, index `room` over
room and time. It is written in the transaction of that row. `state` says what `content` is:

===========  ======================================================================================
state        content
===========  ======================================================================================
whole        the event's
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from logweir.errors import ConfigError, DecodeError, SourceStopped, Unreachable
from logweir.limits import CONNECT_SECONDS, SYNAPSE_JSON_BYTES
from logweir.replication.outgoing.shape import STREAM_PREFIX
from logweir.replication.synapse.wire.codec import decode_row_value, encode_value, read_json
from logweir.replication.synapse.wire.units import Change, Unit, Units
from logweir.replication.urls import Url
from logweir.store.commit.group import Group
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

__all__ = [
    "CONTENT_FIELDS",
    "CONTENT_FORMAT",
    "CONTENT_INDEXES",
    "ENRICHED",
    "PORTION_EVENTS",
    "Contents",
    "Database",
    "Named",
    "contents_space",
    "event_of",
    "keep",
    "portions",
    "read_database",
]

ENRICHED: Final = ("events", "backfill")
"""Streams whose rows name events."""


_OPTIONAL: Final = {"is_nullable": True}
CONTENT_FORMAT: Final[Sequence[dict[str, Any]]] = (
    {"name": "event_id", "type": "string"},
    {"name": "room_id", "type": "string"},
    {"name": "type", "type": "string"},
    {"name": "sender", "type": "string", **_OPTIONAL},
    {"name": "state_key", "type": "string", **_OPTIONAL},
    {"name": "origin_server_ts", "type": "integer", **_OPTIONAL},
    {"name": "state", "type": "string"},
    {"name": "content", "type": "any"},
)
CONTENT_FIELDS: Final[Sequence[str]] = [field["name"] for field in CONTENT_FORMAT]
_TIME: Final = {"field": "origin_server_ts", **_OPTIONAL}
CONTENT_INDEXES: Final = {"room": {"parts": ["room_id", _TIME], "unique": False}}
_STATE, _CONTENT = 6, 7

PORTION_EVENTS: Final = 200
"""Events that are asked for at once, about; the rows that name them are stored together."""
_ANSWER_SECONDS: Final = 20.0
_WAYS: Final = "postgresql://…, sqlite:///FILE or, with synapse+file, database"
_SQL: Final = """
SELECT e.event_id, e.room_id, e.type, e.sender, s.state_key, e.origin_server_ts, j.event_id,
  (SELECT count(*) FROM redactions AS r LEFT JOIN rejections AS x ON x.event_id = r.event_id
   WHERE r.redacts = e.event_id AND x.event_id IS NULL),
  {size}, CASE WHEN {size} <= {most} THEN b.json END, b.internal_metadata
FROM events AS e LEFT JOIN event_json AS b ON b.event_id = e.event_id
  LEFT JOIN state_events AS s ON s.event_id = e.event_id
  LEFT JOIN rejections AS j ON j.event_id = e.event_id
WHERE e.event_id {among}
"""


def contents_space(name: str = "") -> str:
    """The name of the space. `name`: of the source, "" for the only one."""
    return STREAM_PREFIX + (f"{name}_" if name else "") + "event_json"


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
    return Database(text, found, url.option("enrich_password_file"))


def _driver() -> Any:
    """The library. Raises `ConfigError`."""
    try:
        import psycopg
    except ImportError as error:
        hint = "pip install 'logweir[enrich]'"
        raise ConfigError("enrich", "the package `psycopg` is not installed", hint=hint) from error
    return psycopg


class Named(NamedTuple):
    """What a row says of an event. `redacts`: the event that it takes the content of, or ""."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str


def event_of(stream: str, row: bytes) -> Named | None:
    """The event that a row of a stream names. `row`: MsgPack."""
    if stream not in ENRICHED:
        return None
    value = decode_row_value(row)
    if stream == "events":
        value = value[1] if isinstance(value, list) and value[:1] == ["ev"] else None
    if not isinstance(value, list) or len(value) < 5 or not all(map(_is_text, value[:3])):
        return None
    event_id, room_id, kind, state_key, redacts = value[:5]
    is_rejected = len(value) > 7 and bool(value[7])
    return Named(
        event_id,
        room_id,
        kind,
        state_key if _is_text(state_key) else None,
        redacts if _is_text(redacts) and not is_rejected else "",
    )


def _is_text(value: Any) -> bool:
    """Whether a database takes it for one."""
    if not isinstance(value, str) or "\0" in value:
        return False
    with contextlib.suppress(UnicodeEncodeError):
        return bool(value.encode())
    return False


def portions(changes: Sequence[Change]) -> Iterator[tuple[list[Change], dict[str, Named]]]:
    """Changes in their order, in portions of about `PORTION_EVENTS` events, with the events of
    each."""
    portion: list[Change] = []
    events: dict[str, Named] = {}
    for change in changes:
        is_run = isinstance(change, Units) and change.stream in ENRICHED
        for one in change.each() if is_run and isinstance(change, Units) else (change,):
            portion.append(one)
            for row in one.rows if isinstance(one, Unit) else ():
                event = event_of(one.stream, row)
                if event is not None:
                    events[event.event_id] = event
            if len(events) >= PORTION_EVENTS:
                yield portion, events
                portion, events = [], {}
    if portion:
        yield portion, events


def keep(space: int, unit: Unit, contents: Mapping[str, bytes]) -> Callable[[Group], None]:
    """Writes the contents of a unit's events. `contents`: tuples by event."""
    events = [event for row in unit.rows if (event := event_of(unit.stream, row)) is not None]

    def step(group: Group) -> None:
        for event in events:
            if event.event_id in contents:
                one = contents[event.event_id]
                group.execute(Request(RowType.REPLACE, space, tuple=one))
            if event.redacts:
                wanted = Select.of(group.schema, space, [event.redacts])
                for held in list(select(group.engine, wanted)):
                    fields = unpack(held)
                    fields[_STATE], fields[_CONTENT] = "redacted", None
                    group.execute(Request(RowType.REPLACE, space, tuple=pack(fields)))

    return step


class Contents:
    """Asks a database for events. `database`: which; nothing is opened until it is asked. Raises
    `ConfigError` if it cannot be."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._driver: Any = None if database.file else _driver()
        self._connection: Any = None

    async def of(self, events: Mapping[str, Named]) -> dict[str, bytes]:
        """Their tuples. Raises `Unreachable` if it may be had later, `SourceStopped` if not."""
        ids = list(events)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                if self._database.file:
                    rows = await asyncio.to_thread(self._of_file, ids)
                else:
                    rows = await self._of_server(ids)
        except TimeoutError as error:
            await self.close()
            raise Unreachable(self._database.shown, "no answer in time") from error
        found = {row[0]: _tuple(row) for row in rows}
        missing = {one: _missing(events[one]) for one in ids if one not in found}
        return found | missing

    async def close(self) -> None:
        """Give its connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _of_server(self, ids: Sequence[str]) -> Sequence[Sequence[Any]]:
        size = "octet_length(b.json)"
        sql = _SQL.format(size=size, most=SYNAPSE_JSON_BYTES, among="= ANY(%s)")
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
            cursor = await self._connection.execute(sql, (list(ids),))
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
        except (driver.Error, OSError) as error:
            await self.close()
            raise self._refusal(error, getattr(error, "sqlstate", None)) from error
        return rows

    def _of_file(self, ids: Sequence[str]) -> Sequence[Sequence[Any]]:
        size = "length(CAST(b.json AS BLOB))"
        among = f"IN ({', '.join('?' * len(ids))})"
        sql = _SQL.format(size=size, most=SYNAPSE_JSON_BYTES, among=among)
        name = f"file:{urllib.parse.quote(self._database.file)}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(name, uri=True, timeout=5.0)) as connection:
                return connection.execute(sql, list(ids)).fetchall()
        except sqlite3.Error as error:
            state = "42P01" if "no such table" in str(error) else None
            raise self._refusal(error, state) from error

    def _refusal(self, error: Exception, state: str | None) -> Unreachable | SourceStopped:
        """An error of the database. `state`: SQLSTATE, whose class 42 is about names and rights."""
        text = str(error).strip().partition("\n")[0]
        if state is not None and state.startswith("42"):
            hint = "the user needs SELECT on the tables of a homeserver's database"
            return SourceStopped(f"{self._database.shown}: {text}", hint=hint)
        return Unreachable(self._database.shown, text)


def _password(file: str) -> str:
    """The first line of a file. Raises `ConfigError`."""
    try:
        return Path(file).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError("enrich_password_file", f"{file}: {reason}") from error


def _tuple(row: Sequence[Any]) -> bytes:
    """A row of the database as a tuple."""
    rejected, redactions, size, text, internal = row[6:]
    state, content = "whole", b"\xc0"
    if redactions:
        state = "redacted"
    elif size is None:
        state = "missing"
    elif text is None:
        state = "long"
    else:
        try:
            content = encode_value(_map(text).get("content"))
            if rejected is not None:
                state = "rejected"
            elif _map(internal or "{}").get("soft_failed") is True:
                state = "soft_failed"
        except DecodeError:
            state = "unreadable"
    return b"".join((b"\x98", *map(pack, row[:6]), pack(state), content))


def _map(text: str) -> dict[str, Any]:
    """A JSON text that is an object. Raises `DecodeError`."""
    value = read_json(text)
    if not isinstance(value, dict):
        raise DecodeError("it is no object")
    return value


def _missing(event: Named) -> bytes:
    event_id, room_id, kind, state_key, _ = event
    return pack([event_id, room_id, kind, None, state_key, None, "missing", None])
