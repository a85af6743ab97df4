"""Buckets: what a memcached or Greenstack client sees of a space. Values only, no I/O.

A bucket is a space of this format; index 0 is `key`, index 1 `vbucket, key`, both unique:

===========  =========  ==========================================================================
field        type       holds
===========  =========  ==========================================================================
key          varbinary  1 … 250 bytes
vbucket      unsigned   0 … 65535
value        varbinary
flags        unsigned   32 bits of the client's, never looked into
expiry       unsigned   Unix seconds from which on the item is gone; 0 never
cas          unsigned   64 bits; another one after each change of the item
datatype     unsigned   as a client gave it
compression  unsigned   as a client gave it
expiration   string     as a Greenstack client wrote it, else ""
meta         varbinary  private bytes of TAP, else ""
(ttl)        unsigned   servers that an item which came by TAP may still go through, as its packet
                        said, less one; not in the format; absent in what was written here: 255
(marks)      unsigned   1 stale: somebody said that the value is no longer right; 2 somebody was
                        told to make another; not in the format; absent if there is none
===========  =========  ==========================================================================

In the log an item that is removed is one transaction of two rows: a REPLACE by its *tombstone*, the
same tuple with an empty value and a CAS of its own, then the DELETE, which holds the key alone; so
whoever reads the log knows the vbucket. A DELETE without a tombstone is of any vbucket. Removing
everything is a truncate entry. An expired item is removed when somebody notices it.

States of vbuckets stand in the space `logweir_vbucket`: bucket, vbucket, state. In a fresh bucket
vbucket 0 is active and there is no other (ep-engine 1.8.1, observed).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from logweir.errors import DecodeError
from logweir.limits import TAP_KEY_BYTES
from logweir.wal.mp import pack, unpack

BUCKET_FORMAT: Final[Sequence[tuple[str, str]]] = (
    ("key", "varbinary"),
    ("vbucket", "unsigned"),
    ("value", "varbinary"),
    ("flags", "unsigned"),
    ("expiry", "unsigned"),
    ("cas", "unsigned"),
    ("datatype", "unsigned"),
    ("compression", "unsigned"),
    ("expiration", "string"),
    ("meta", "varbinary"),
)
BUCKET_INDEXES: Final = {"vbucket": ("vbucket", "key")}
DEFAULT_BUCKET: Final = "default"
"""The bucket of an address or a client that names none."""

RELATIVE_SECONDS: Final = 30 * 24 * 3600
"""Expiry up to this is counted from now, above it is a Unix time. Source: memcached 1.6.18."""

VBUCKETS: Final = 1 << 16
"""Vbuckets that a client can name. What another protocol put into a higher one is shown to none."""

NO_HOPS_MADE: Final = 255
"""The TTL of what was written here."""


JSON_DATATYPE: Final = 1
SNAPPY_DATATYPE: Final = 2
"""Bits of a datatype, as memcached has them."""

MARK_STALE: Final = 1
MARK_TOLD: Final = 2
"""Marks of an item, as meta commands of memcached's text protocol set them."""
_MARKS: Final = MARK_STALE | MARK_TOLD

_FIELDS: Final = 10
"""Those that each item has: up to `meta`."""


class VbucketState(IntEnum):
    """What a server does with a vbucket. Only in an active one clients may read and write."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One tuple of a bucket; see the module's text."""

    key: bytes
    vbucket: int = 0
    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    cas: int = 0
    datatype: int = 0
    compression: int = 0
    expiration: str = ""
    meta: bytes = b""
    ttl: int = NO_HOPS_MADE
    marks: int = 0

    def is_expired(self, now: float) -> bool:
        """Whether it is gone at `now`, in Unix seconds."""
        return 0 < self.expiry <= now

    @property
    def fits(self) -> bool:
        """Whether these protocols could have written it: its numbers are no larger than theirs, and
        its key is one. Others may put any tuple of the format into the space."""
        numbers = self.flags >> 32 | self.vbucket >> 16 | self.datatype >> 8 | self.compression >> 7
        return not numbers and 0 < len(self.key) <= TAP_KEY_BYTES


def pack_item(item: Item) -> bytes:
    """The item's tuple, as MsgPack."""
    fields = (
        item.key,
        item.vbucket,
        item.value,
        item.flags,
        item.expiry,
        item.cas,
        item.datatype,
        item.compression,
        item.expiration,
        item.meta,
    )
    if item.marks:
        return pack((*fields, item.ttl, item.marks))
    return pack(fields if item.ttl == NO_HOPS_MADE else (*fields, item.ttl))


def unpack_item(data: bytes) -> Item:
    """The item of a tuple. Raises `DecodeError` for one that a bucket's format does not let in, as
    far as its number of fields tells; what their types are was checked when it was stored."""
    fields: Any = unpack(data)
    if type(fields) is not list or len(fields) < _FIELDS:
        raise DecodeError(f"an item is an array of {_FIELDS} fields and more: {data[:40]!r}")
    item = Item(*fields[:_FIELDS])
    if len(fields) == _FIELDS:
        return item
    ttl = fields[10]
    marks = fields[11] if len(fields) > 11 else 0
    return replace(
        item,
        ttl=ttl if type(ttl) is int and 0 <= ttl < NO_HOPS_MADE else NO_HOPS_MADE,
        marks=marks & _MARKS if type(marks) is int else 0,
    )


def pack_key(key: bytes) -> bytes:
    """The primary key of an item, as MsgPack."""
    return pack((key,))


def tombstone(item: Item, cas: int, ttl: int = NO_HOPS_MADE) -> Item:
    """What is logged before `item` is removed."""
    return replace(item, value=b"", expiry=0, cas=cas, ttl=ttl, marks=0)


def absolute_expiry(expiry: int, now: float) -> int:
    """The Unix time of a client's expiry; 0 for never."""
    return expiry + int(now) if 0 < expiry <= RELATIVE_SECONDS else expiry


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of an item. `code`: 0, or why nothing did (`replication.bucket.change`); `cas`,
    `data`: of the item, its tuple, as it is now, None: there is none; of a removal the tombstone.
    """

    code: int
    cas: int
    data: bytes | None


class CasClock:
    """Gives CAS values: always rising, above those of earlier runs as long as time does not go
    back. `clock`: Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._last = 0

    def after(self, old: int = 0) -> int:
        """A CAS that is none that was given, and not `old`."""
        self._last = self.next()
        if self._last == old:
            self._last += 1
        return self._last

    def next(self) -> int:
        """The CAS from which on none was given: for whoever gives several one after the other,
        and then says so with `reach`."""
        return max(self._last + 1, int(self._clock() * 1_000_000))

    def reach(self, after: int) -> None:
        """All below `after` may have been given."""
        self._last = max(self._last, after - 1)


class Held(Exception):
    """A request waits until the state of its vbucket has changed, or for a job that may change
    something, and nothing was done."""
