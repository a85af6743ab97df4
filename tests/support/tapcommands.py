"""What memcached's commands do to an item, one after the other: a model of what runs of them do."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.item import (
    NO_HOPS_MADE,
    Item,
    absolute_expiry,
    pack_item,
    pack_key,
    tombstone,
)
from logweir.replication.bucket.store import GroupItems
from logweir.replication.memcached.serve.commands import Executor, Failed, plain_opcode
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_answer
from logweir.store.commit.group import Group
from logweir.store.engine.request import Request
from logweir.wal.xrow import RowType

_NO_CREATE: Final = 0xFFFFFFFF
_SET: Final = struct.Struct(">II")
_COUNT: Final = struct.Struct(">QQI")
_NUMBER: Final = re.compile(rb"[ \t\n\v\f\r]*\+?([0-9]+)(?=[ \t\n\v\f\r\x00]|\Z)")
_U64_END: Final = 1 << 64
_WITH_KEY: Final = frozenset((Opcode.GETK, Opcode.GATK))
_READING: Final = _WITH_KEY | {Opcode.GET, Opcode.GAT}


def item_answer(request: Packet, item: Item) -> bytes:
    """The answer to GET, GAT or TOUCH if there is an item."""
    is_touch = request.opcode == Opcode.TOUCH
    return encode_answer(
        request,
        extras=item.flags.to_bytes(4, "big"),
        key=item.key if plain_opcode(request.opcode) in _WITH_KEY else b"",
        value=b"" if is_touch else item.value,
        cas=item.cas,
        datatype=0 if is_touch else item.datatype,
    )


class Stored(Protocol):
    """Where a model finds and puts items."""

    def get(self, key: bytes, vbucket: int) -> Item | None:
        """The item with that key in that vbucket, if it is not expired."""
        ...

    def put(self, item: Item) -> Item:
        """Store an item; a CAS of 0 is replaced by a new one. Returns it as stored."""
        ...

    def remove(self, key: bytes, vbucket: int) -> bool:
        """Remove an item. False: there is none."""
        ...


class StoredItems:
    """One bucket in a group, for a model: what it removes because it is expired is a transaction of
    its own."""

    def __init__(self, items: GroupItems, group: Group, now: float) -> None:
        self._items = items
        self._group = group
        self._now = now

    def get(self, key: bytes, vbucket: int) -> Item | None:
        found = self._items.find(key)
        if found is None or found.vbucket != vbucket:
            return None
        if found.is_expired(self._now):
            self._remove(found)
            self._group.divide()
            return None
        return found

    def put(self, item: Item) -> Item:
        old = self._items.find(item.key)
        if old is not None and old.vbucket != item.vbucket:
            self._remove(old)  # it moves
        if not item.cas:
            item = replace(item, cas=self._items.bucket.cas.after())
        space_id = self._items.space.id
        self._group.execute(Request(RowType.REPLACE, space_id, tuple=pack_item(item)))
        return item

    def remove(self, key: bytes, vbucket: int) -> bool:
        found = self._items.find(key)
        if found is None or found.vbucket != vbucket:
            return False
        self._remove(found)
        return True

    def _remove(self, item: Item) -> None:
        space_id = self._items.space.id
        grave = tombstone(item, self._items.bucket.cas.after(item.cas))
        self._group.execute(Request(RowType.REPLACE, space_id, tuple=pack_item(grave)))
        self._group.execute(Request(RowType.DELETE, space_id, key=pack_key(item.key)))


class Model(Executor):
    """An executor that knows commands on items, too. `stored`: where; None: in `items`."""

    def __init__(self, items: Any, now: float, stored: Stored | None = None) -> None:
        super().__init__(items, now)
        self._stored: Stored = items if stored is None else stored
        mine: dict[Opcode, Callable[[Packet], bytes]] = {
            Opcode.GET: self._get,
            Opcode.GETK: self._get,
            Opcode.SET: self._store,
            Opcode.ADD: self._store,
            Opcode.REPLACE: self._store,
            Opcode.DELETE: self._delete,
            Opcode.INCREMENT: self._count,
            Opcode.DECREMENT: self._count,
            Opcode.APPEND: self._extend,
            Opcode.PREPEND: self._extend,
            Opcode.TOUCH: self._touch,
            Opcode.GAT: self._touch,
            Opcode.GATK: self._touch,
        }
        self._mine = mine

    def execute(self, request: Packet) -> bytes:
        opcode = plain_opcode(request.opcode)
        command = None if opcode is None or request.too_big else self._mine.get(opcode)
        if command is None:
            return super().execute(request)
        is_quiet = opcode != request.opcode
        try:
            answer = command(request)
        except Failed as failed:
            is_miss = failed.status == Status.NOT_FOUND and opcode in _READING
            if is_miss and is_quiet:
                return b""
            if is_miss and opcode in _WITH_KEY:
                return encode_answer(request, failed.status, key=request.key, value=b"")
            return encode_answer(request, failed.status)
        return b"" if is_quiet and opcode not in _READING else answer

    def _find(self, request: Packet) -> Item | None:
        """The item that a request is about; checks the vbucket and the request's CAS."""
        self._active(request)
        found = self._stored.get(request.key, request.vbucket)
        if found is not None and request.cas and request.cas != found.cas:
            raise Failed(Status.EXISTS)
        return found

    def _get(self, request: Packet) -> bytes:
        self._active(request)
        found = self._stored.get(request.key, request.vbucket)
        if found is None:
            raise Failed(Status.NOT_FOUND)
        return item_answer(request, found)

    def _store(self, request: Packet) -> bytes:
        if len(request.value) > TAP_VALUE_BYTES:
            raise Failed(Status.TOO_BIG)
        opcode = plain_opcode(request.opcode)
        old = self._find(request)
        if old is None and (request.cas or opcode == Opcode.REPLACE):
            raise Failed(Status.NOT_FOUND)
        if old is not None and opcode == Opcode.ADD and not request.cas:
            raise Failed(Status.EXISTS)
        flags, expiry = _SET.unpack(request.extras)
        stored = self._stored.put(
            Item(
                request.key,
                request.vbucket,
                request.value,
                flags,
                absolute_expiry(expiry, self._now),
                datatype=request.datatype,
            )
        )
        return encode_answer(request, cas=stored.cas)

    def _delete(self, request: Packet) -> bytes:
        if self._find(request) is None:
            raise Failed(Status.NOT_FOUND)
        self._stored.remove(request.key, request.vbucket)
        return encode_answer(request)

    def _count(self, request: Packet) -> bytes:
        delta, first, expiry = _COUNT.unpack(request.extras)
        self._active(request)
        old = self._stored.get(request.key, request.vbucket)
        if old is not None and not old.value:
            raise Failed(Status.BAD_DELTA)  # told before its CAS is looked at
        old = self._find(request)
        if old is None:
            if expiry == _NO_CREATE:
                raise Failed(Status.NOT_FOUND)
            number = first
            item = Item(
                request.key,
                request.vbucket,
                b"%d" % number,
                expiry=absolute_expiry(expiry, self._now),
            )
        else:
            match = _NUMBER.match(old.value)
            if match is None or len(match[1]) > 25 or (number := int(match[1])) >= _U64_END:
                raise Failed(Status.BAD_DELTA)
            if plain_opcode(request.opcode) == Opcode.INCREMENT:
                number = (number + delta) % _U64_END
            else:
                number = max(number - delta, 0)
            text = (b"%d" % number).ljust(len(old.value))
            item = replace(old, value=text, cas=0, ttl=NO_HOPS_MADE)
        stored = self._stored.put(item)
        return encode_answer(request, value=number.to_bytes(8, "big"), cas=stored.cas)

    def _extend(self, request: Packet) -> bytes:
        old = self._find(request)
        if old is None:
            raise Failed(Status.NOT_STORED)
        is_append = plain_opcode(request.opcode) == Opcode.APPEND
        value = old.value + request.value if is_append else request.value + old.value
        if len(value) > TAP_VALUE_BYTES:
            raise Failed(Status.TOO_BIG)
        stored = self._stored.put(replace(old, value=value, cas=0, ttl=NO_HOPS_MADE))
        return encode_answer(request, cas=stored.cas)

    def _touch(self, request: Packet) -> bytes:
        old = self._find(replace(request, cas=0))
        if old is None:
            raise Failed(Status.NOT_FOUND)
        expiry = absolute_expiry(int.from_bytes(request.extras, "big"), self._now)
        stored = self._stored.put(replace(old, expiry=expiry, ttl=NO_HOPS_MADE))
        return item_answer(request, stored)
