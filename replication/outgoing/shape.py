"""What the tuples of a space are to followers of another protocol than the one that wrote them.

==========  ==========================  ==========================================================
kind        space                       an entry: its key, its tuple
==========  ==========================  ==========================================================
tank        a topic                     of each message ``[partition, number]``, ``[partition,
                                        number, time in ms since 1970, key, content]``
synapse     a stream of a homeserver    as stored: ``[instance, token, place]``, the same and the
                                        row
memcached   a bucket, filled by TAP,    as stored: ``[key]``, the item
            memcached or Greenstack
tarantool   any other                   as stored: the primary key, the tuple
==========  ==========================  ==========================================================

Bytes of a message or an item are text if they are UTF-8, else binary. A bundle that cannot be
read is one message without key whose content is the bundle. A topic is a log: what retention or
compaction removes from it is not told.

The *envelope* says the same of an entry of any kind, as a map: docs/hub.md has its keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from logweir.errors import LogweirError
from logweir.replication.bucket.store import is_bucket
from logweir.replication.topic.bundle import Message, decode_bundle
from logweir.store.engine.engine import key_of
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.wal.mp import pack, unpack
from logweir.wal.render import value_json
from logweir.wal.xrow import RowType

STREAM_FORMAT: Final = (
    ("instance", "string"),
    ("token", "integer"),
    ("place", "unsigned"),
    ("row", "any"),
)
"""Fields of the space of a homeserver's stream."""

_NIL: Final = b"\xc0"
_STREAM_NAMES: Final = tuple(name for name, _ in STREAM_FORMAT)
STREAM_PREFIX: Final = "synapse_"
"""So begins the name of such a space."""

OPS: Final = {
    RowType.INSERT: "insert",
    RowType.REPLACE: "replace",
    RowType.UPDATE: "update",
    RowType.UPSERT: "upsert",
    RowType.DELETE: "delete",
}
"""The rows that followers are told of, with their names."""


class Entry(NamedTuple):
    """One thing that a space holds, in MsgPack. `data`: None: it is gone."""

    key: bytes
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Stamp:
    """What happened to it. `time`: Unix seconds, None if that is not known; `replica_id`, `lsn`:
    of the row, 0 if only the state is known."""

    op: str = "replace"
    time: float | None = None
    replica_id: int = 0
    lsn: int = 0


def is_relayed(space: SpaceDef) -> bool:
    """Whether a space holds a stream of a homeserver."""
    names = tuple(field.name for field in space.fields[: len(_STREAM_NAMES)])
    return space.name.startswith(STREAM_PREFIX) and names == _STREAM_NAMES


def _text(data: bytes | None) -> str | bytes | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class Shape:
    """How one space is shown. `primary`: its primary index."""

    def __init__(self, space: SpaceDef, primary: IndexDef) -> None:
        self.name = space.name
        self.primary = primary
        if space.is_topic:
            self.kind = "tank"
        elif is_relayed(space):
            self.kind = "synapse"
        else:
            self.kind = "memcached" if is_bucket(space) else "tarantool"

    @property
    def is_stored(self) -> bool:
        """Whether each tuple is one entry, as it stands."""
        return self.kind != "tank"

    def tells(self, op: int) -> bool:
        """Whether a row of that type is told."""
        return op == RowType.INSERT if self.kind == "tank" else op in OPS

    def entries(self, data: bytes) -> list[Entry]:
        """What a stored tuple is."""
        if self.is_stored:
            return [Entry(key_of(self.primary, data), data)]
        partition, first, _, time_ms, bundle = unpack(data)[:5]
        try:
            messages = decode_bundle(bundle, first)
        except LogweirError:
            messages = [Message(first, time_ms, None, bundle)]
        return [
            Entry(
                pack([partition, one.number]),
                pack([partition, one.number, one.time_ms, _text(one.key), _text(one.content)]),
            )
            for one in messages
        ]

    def envelope(
        self, entry: Entry, stamp: Stamp, render: Callable[[bytes], str] = value_json
    ) -> str:
        """An entry in the envelope, as JSON. `render`: makes the text of one MsgPack value."""
        position, time, key, value = self._parts(entry, stamp)
        parts = (
            ("kind", pack(self.kind)),
            ("name", pack(self.name)),
            ("position", pack(position)),
            ("time", pack(time)),
            ("op", pack(stamp.op)),
            ("key", key),
            ("value", _NIL if entry.data is None else value),
        )
        return "{" + ", ".join(f'"{name}": {render(part)}' for name, part in parts) + "}"

    def _parts(
        self, entry: Entry, stamp: Stamp
    ) -> tuple[dict[str, Any] | None, float | None, bytes, bytes]:
        """Position and time; key and value in MsgPack."""
        if self.kind == "tarantool":
            place = {"replica": stamp.replica_id, "lsn": stamp.lsn} if stamp.lsn else None
            return place, stamp.time, entry.key, entry.data or _NIL
        data = unpack(entry.data or entry.key)
        if self.kind == "tank":
            partition, number, time_ms, key, content = data
            place = {"partition": partition, "number": number}
            return place, time_ms / 1000, pack(key), pack(content)
        if self.kind == "synapse":
            place = dict(zip(_STREAM_NAMES, data[:3], strict=False))
            return place, stamp.time, _NIL, pack(data[-1])
        if entry.data is None:
            return None, stamp.time, pack(_text(data[0])), _NIL
        place = {"vbucket": data[1], "cas": data[5]}
        return place, stamp.time, pack(_text(data[0])), pack(_text(data[2]))
