"""The kinds of contents that a homeserver's database has, and what becomes of each.

A row of a stream names something; what it says is asked for in the tables of its kind, and becomes
a tuple of the kind's space, under the key of what was named:

=================  ===============================  ================================  ==============
kind               named by rows of                 tables                            space
=================  ===============================  ================================  ==============
events             `events`, `backfill`             `events`, `event_json`,           `event_json`
                                                    `state_events`, `rejections`,
                                                    `redactions`
account data       `account_data` without a room    `account_data`                    `account_json`
room account data  `account_data` with a room       `room_account_data`               `account_json`
tags               `account_data` of type `m.tag`,  `room_tags`                       `account_json`
                   `tag_account_data`
=================  ===============================  ================================  ==============

A tuple of account data is of the fields of `ACCOUNT`: `room_id` is "" where there is no room,
`token` that of the row it came with, `state` as in `contents` one of whole, long, unreadable and
missing. Tags are the content of `m.tag`: all that the room has then. Rows of `receipts` carry
their own data. Source: tables of Synapse 1.163.2, observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from logweir.errors import ConfigError, DecodeError
from logweir.replication.outgoing.shape import STREAM_PREFIX
from logweir.replication.synapse.wire.codec import decode_row_value, encode_value, read_json
from logweir.replication.urls import Url, option_names
from logweir.wal.mp import pack

_OPTIONAL: Final = {"is_nullable": True}
_TAGS: Final = "m.tag"
_NIL: Final = b"\xc0"


@dataclass(frozen=True, slots=True)
class Shape:
    """A space of contents. `suffix`: of its name; `key`: its first fields; `holds`: for people."""

    suffix: str
    holds: str
    key: Sequence[str]
    format: Sequence[dict[str, Any]]
    indexes: Mapping[str, Any] = field(default_factory=dict)

    def space(self, name: str = "") -> str:
        """The name of the space. `name`: of the source, "" for the only one."""
        return STREAM_PREFIX + (f"{name}_" if name else "") + self.suffix

    @property
    def fields(self) -> Sequence[str]:
        """The names of its fields."""
        return [one["name"] for one in self.format]


EVENTS: Final = Shape(
    "event_json",
    "contents of events",
    ("event_id",),
    (
        {"name": "event_id", "type": "string"},
        {"name": "room_id", "type": "string"},
        {"name": "type", "type": "string"},
        {"name": "sender", "type": "string", **_OPTIONAL},
        {"name": "state_key", "type": "string", **_OPTIONAL},
        {"name": "origin_server_ts", "type": "integer", **_OPTIONAL},
        {"name": "state", "type": "string"},
        {"name": "content", "type": "any"},
    ),
    {
        "room": {
            "parts": ["room_id", {"field": "origin_server_ts", **_OPTIONAL}],
            "unique": False,
        }
    },
)
ACCOUNT: Final = Shape(
    "account_json",
    "account data",
    ("user_id", "room_id", "type"),
    (
        {"name": "user_id", "type": "string"},
        {"name": "room_id", "type": "string"},
        {"name": "type", "type": "string"},
        {"name": "token", "type": "integer"},
        {"name": "state", "type": "string"},
        {"name": "content", "type": "any"},
    ),
)
ENRICHED: Final[Mapping[str, Shape]] = {
    "events": EVENTS,
    "backfill": EVENTS,
    "account_data": ACCOUNT,
    "tag_account_data": ACCOUNT,
}
"""Streams whose rows name what a database has, and where that is kept."""


class NamedEvent(NamedTuple):
    """What a row says of an event. `redacts`: the event that it takes the content of, or ""."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str

    @property
    def key(self) -> tuple[str, ...]:
        """Under which its contents stand."""
        return (self.event_id,)

    def stored(self, contents: bytes, token: int) -> bytes:
        """The tuple that is kept. `token`: of the row."""
        return contents

    def missing(self) -> bytes:
        """Its contents where the database has none."""
        return pack([*self[:3], None, self.state_key, None, "missing", None])


class NamedData(NamedTuple):
    """What a row says of account data. `room_id`: "" where it is of no room."""

    user_id: str
    room_id: str
    type: str

    @property
    def key(self) -> tuple[str, ...]:
        """Under which its contents stand."""
        return tuple(self)

    def stored(self, contents: bytes, token: int) -> bytes:
        """The tuple that is kept. `token`: of the row."""
        return b"".join((b"\x96", *map(pack, self), pack(token), contents))

    def missing(self) -> bytes:
        """Its contents where the database has none."""
        return pack("missing") + _NIL


Named = NamedEvent | NamedData


def named_in(stream: str, row: bytes) -> Named | None:
    """What a row of a stream names. `row`: MsgPack."""
    if stream not in ENRICHED:
        return None
    value = decode_row_value(row)
    if ENRICHED[stream] is ACCOUNT:
        return _data_in(stream, value)
    if stream == "events":
        value = value[1] if isinstance(value, list) and value[:1] == ["ev"] else None
    if not isinstance(value, list) or len(value) < 5 or not all(map(_is_text, value[:3])):
        return None
    event_id, room_id, kind, state_key, redacts = value[:5]
    is_rejected = len(value) > 7 and bool(value[7])
    return NamedEvent(
        event_id,
        room_id,
        kind,
        state_key if _is_text(state_key) else None,
        redacts if _is_text(redacts) and not is_rejected else "",
    )


def _data_in(stream: str, value: Any) -> NamedData | None:
    if not isinstance(value, list) or len(value) < 3:
        return None
    user, room, kind = value[:3]
    if stream == "tag_account_data":
        kind = _TAGS
    if not _is_text(user) or not _is_text(kind) or not (room is None or _is_text(room)):
        return None
    return NamedData(user, room or "", kind)


def _is_text(value: Any) -> bool:
    """Whether a database takes it for one."""
    if not isinstance(value, str) or "\0" in value:
        return False
    with contextlib.suppress(UnicodeEncodeError):
        return bool(value.encode())
    return False


class Kind(NamedTuple):
    """What is asked for together. `text`: the JSON; `sql`: with the places `keys`, `size` (of the
    text in bytes), `most` and `tags` (of a room, joined)."""

    tables: Sequence[str]
    text: str
    sql: str

    def takes(self, named: Named) -> bool:
        """Whether this kind has it."""
        if isinstance(named, NamedEvent):
            return self is _EVENTS
        room, tags = bool(named.room_id), named.type == _TAGS
        return self is (_TAGGED if room and tags else _OF_ROOM if room else _GLOBAL)

    def found(self, row: Sequence[Any]) -> tuple[tuple[str, ...], bytes]:
        """Key and contents that a row of the answer has."""
        if self is _EVENTS:
            return (row[0],), _event(row)
        state, content = _read(*row[3:])
        return tuple(row[:3]), pack(state) + content


_DATA: Final = """
WITH k(u, r, t) AS (VALUES {keys})
SELECT k.u, k.r, k.t, {size}, CASE WHEN {size} <= {most} THEN a.content END
FROM k JOIN """
_EVENTS: Final = Kind(
    ("events", "event_json", "state_events", "rejections", "redactions"),
    "b.json",
    """
SELECT e.event_id, e.room_id, e.type, e.sender, s.state_key, e.origin_server_ts, j.event_id,
  (SELECT count(*) FROM redactions AS r LEFT JOIN rejections AS x ON x.event_id = r.event_id
   WHERE r.redacts = e.event_id AND x.event_id IS NULL),
  {size}, CASE WHEN {size} <= {most} THEN b.json END, b.internal_metadata
FROM events AS e LEFT JOIN event_json AS b ON b.event_id = e.event_id
  LEFT JOIN state_events AS s ON s.event_id = e.event_id
  LEFT JOIN rejections AS j ON j.event_id = e.event_id
WHERE e.event_id IN ({keys})
""",
)
_GLOBAL: Final = Kind(
    ("account_data",),
    "a.content",
    _DATA + "account_data AS a ON a.user_id = k.u AND a.account_data_type = k.t",
)
_OF_ROOM: Final = Kind(
    ("room_account_data",),
    "a.content",
    _DATA + "room_account_data AS a"
    " ON a.user_id = k.u AND a.room_id = k.r AND a.account_data_type = k.t",
)
_TAGGED: Final = Kind(
    ("room_tags",),
    "a.tag || a.content",
    """
WITH k(u, r, t) AS (VALUES {keys})
SELECT k.u, k.r, k.t, coalesce(sum({size}), 0), CASE WHEN coalesce(sum({size}), 0) <= {most}
  THEN '{{"tags":{{' || coalesce({tags}, '') || '}}}}' END
FROM k LEFT JOIN room_tags AS a ON a.user_id = k.u AND a.room_id = k.r GROUP BY k.u, k.r, k.t
""",
)
KINDS: Final = (_EVENTS, _GLOBAL, _OF_ROOM, _TAGGED)
"""All of them."""


def _event(row: Sequence[Any]) -> bytes:
    """The tuple of an event. SQLite keeps values of any type in any column: what has another one
    than Synapse gives it is left out, and the contents are unreadable."""
    rejected, redactions, size, text, internal = row[6:]
    kinds = (str, str, str, str, str, int)
    fields = [
        one if isinstance(one, kind) else None for one, kind in zip(row[:6], kinds, strict=True)
    ]
    fields[1:3] = [one or "" for one in fields[1:3]]
    if fields != [*row[:6]]:
        state, content = "unreadable", _NIL
    elif redactions:
        state, content = "redacted", _NIL
    else:
        state, content = _read(size, text, "content", "" if rejected is not None else internal)
        if state == "whole" and rejected is not None:
            state = "rejected"
    return b"".join((b"\x98", *map(pack, fields), pack(state), content))


def _read(
    size: int | None, text: str | None, part: str = "", internal: str | None = ""
) -> tuple[str, bytes]:
    """The state of a JSON text of `size` bytes, and what it says, or a part of it. `internal`: what
    the homeserver notes of it, in JSON, too."""
    if text is None:
        return "missing" if size is None else "long", _NIL
    try:
        value = _map(text)
        content = encode_value(value.get(part) if part else value)
        is_soft = _map(internal or "{}").get("soft_failed") is True
    except DecodeError:
        return "unreadable", _NIL
    return "soft_failed" if is_soft else "whole", content


def _map(text: object) -> dict[str, Any]:
    """A JSON text that is an object. Raises `DecodeError`."""
    value = read_json(text) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise DecodeError("it is no object")
    return value


def enriched_streams(url: Url, *, is_asked: bool) -> frozenset[str]:
    """The streams whose contents are kept, of the option `enrich_streams` of an address; all that
    have some unless it is given. `is_asked`: whether there is a database. Raises `ConfigError`."""
    chosen = option_names(url, "enrich_streams")
    for one in chosen:
        if one not in ENRICHED:
            hint = f"those that have some are {', '.join(ENRICHED)}"
            raise ConfigError("enrich_streams", f"{one!r} is no stream with contents", hint=hint)
    if chosen and not is_asked:
        hint = "name the homeserver's database with enrich="
        raise ConfigError("enrich_streams", "there is no database to ask", hint=hint)
    return frozenset(chosen or ENRICHED) if is_asked else frozenset()
