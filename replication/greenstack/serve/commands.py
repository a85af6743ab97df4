"""What MUTATION, GET and REMOVE do to a bucket: request and items in, status and payload out.

==========  ====================================================  ==================================
operation   rule                                                  failures
==========  ====================================================  ==================================
Add         CAS has to be 0                                       01 CAS; 0d it is there
Set         CAS 0: always; else only if it still has that CAS     08 not there; 0d another CAS
Replace     only if it is there                                   as Set
Append      value is put behind, Prepend: before what is there;   0403 not there; 0d another CAS
Prepend     flags, datatype and expiration stay
Patch       a part of a JSON document (`patch`); flags and        08; 0d; 0b no JSON or packed;
            expiration stay                                       01 no patch; 0403 a step failed
GET         –                                                     08
REMOVE      CAS as of Set                                         08; 0d
==========  ====================================================  ==================================

01 InvalidArguments: no or a wrong vbucket key, an id that is empty, longer than 250 bytes or has a
NUL, an operation, datatype or compression that is none, an expiration that is no date. 0e: too
large. A vbucket that is no one's is made active by the first change in it (Greenstack cannot make
one); replica or dead: 0400, pending: 11.

An expiration is `YYYY-MM-DDThh:mm:ss`, maybe with a fraction, `Z` or `+hh:mm`; without them UTC. In
the past it makes the change a removal. It is given back as it came; of an item that another
protocol made, as the date in UTC. A datatype of memcached's with its bits JSON 1 and Snappy 2 is
shown as JSON and Snappy. Source: couchbase/memcached's daemon of 2015, its source; what it left
open is logweir's choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GREENSTACK_ID_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket.item import Item, ItemStore, VbucketState
from logweir.replication.greenstack.serve.patch import PatchFailed, patch
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import (
    JSON_DATATYPE,
    Document,
    MutationAnswer,
    Operation,
    decode_get,
    decode_mutation,
    decode_remove,
)

__all__ = ["STORE_OPCODES", "Executor", "document_of", "expiration_seconds", "item_of"]

STORE_OPCODES: Final = frozenset((Opcode.MUTATION, Opcode.GET, Opcode.REMOVE))
"""Requests that are run on a bucket."""

_SNAPPY: Final = 1
_COMPRESSIONS: Final = 4
_DATATYPES: Final = 2
_MEMCACHED_SNAPPY: Final = 2
_SECONDS_END: Final = 1 << 40
_I8_MAX: Final = 127
_U16_MAX: Final = 0xFFFF
_DATE: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?(?:Z|([+-])(\d\d):(\d\d))?",
    re.ASCII,
)


def expiration_seconds(text: str) -> int:
    """Unix seconds of an expiration; 0 for "". Raises `DecodeError`."""
    if not text:
        return 0
    match = _DATE.fullmatch(text)
    if match is None:
        raise DecodeError(f"{text[:64]!r} is no date like 2031-04-05T06:07:08Z")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    sign, hours, minutes = match.groups()[6:]
    try:
        shift = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        zone = timezone(-shift if sign == "-" else shift)
        when = datetime(year, month, day, hour, minute, second, tzinfo=zone)
        return max(int(when.timestamp()), 1)
    except (ValueError, OverflowError) as error:
        raise DecodeError(f"{text[:64]!r} is no date: {error}") from error


def _expiration(item: Item) -> str:
    """What a client is told of an item's expiry."""
    if item.expiration:
        try:
            if expiration_seconds(item.expiration) == item.expiry:
                return item.expiration
        except DecodeError:
            pass  # another protocol put it there
    if not 0 < item.expiry < _SECONDS_END:
        return ""
    try:
        return datetime.fromtimestamp(item.expiry, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return ""  # after the year 9999


def document_of(item: Item) -> Document:
    """An item as it goes to a client. Raises `DecodeError` for what no document can show: not
    these protocols have written it."""
    if item.flags >> 32 or item.compression > _I8_MAX or item.vbucket > _U16_MAX:
        raise DecodeError(
            f"item {item.key[:64]!r} has flags {item.flags}, compression {item.compression} and "
            f"vbucket {item.vbucket}, which no document has",
            hint="another protocol wrote this tuple into the bucket's space: replace or delete it",
        )
    is_snappy = item.datatype & _MEMCACHED_SNAPPY and not item.compression
    return Document(
        item.key,
        item.value,
        item.flags,
        _expiration(item),
        _SNAPPY if is_snappy else item.compression,
        item.datatype & JSON_DATATYPE,
        item.cas,
    )


def item_of(document: Document, vbucket: int) -> Item:
    """What a document makes of an item, its CAS with it. Raises `DecodeError`."""
    return Item(
        document.id,
        vbucket,
        document.value,
        document.flags,
        expiration_seconds(document.expiration),
        document.cas,
        document.datatype,
        document.compression,
        document.expiration,
    )


class _Failed(Exception):
    """A request has failed with that status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


def _check_id(key: bytes) -> None:
    if not 0 < len(key) <= GREENSTACK_ID_BYTES or b"\0" in key:
        raise _Failed(Status.INVALID_ARGUMENTS)


class Executor:
    """Runs requests on a bucket. `now`: Unix seconds; `uuid`: first 8 bytes of the instance's;
    `lsn`: that of the last row made; `new_cas`: a CAS that is not the one it is given."""

    def __init__(
        self,
        items: ItemStore,
        now: float,
        *,
        uuid: int,
        lsn: Callable[[], int] = lambda: 0,
        new_cas: Callable[[int], int] = lambda old: old + 1,
    ) -> None:
        self._items = items
        self._now = now
        self._uuid = uuid
        self._lsn = lsn
        self._new_cas = new_cas

    def execute(self, request: Frame) -> tuple[Status, bytes]:
        """Run one request of `STORE_OPCODES`. Returns the status and payload of its answer."""
        try:
            vbucket = request.number(FlexKey.VBUCKET)
            if vbucket is None:
                raise _Failed(Status.INVALID_ARGUMENTS)
            if request.opcode == Opcode.GET:
                return Status.SUCCESS, self._get(decode_get(request.payload), vbucket)
            if request.opcode == Opcode.REMOVE:
                return Status.SUCCESS, self._remove(*decode_remove(request.payload), vbucket)
            return Status.SUCCESS, self._mutate(*decode_mutation(request.payload), vbucket)
        except _Failed as failed:
            return failed.status, b""
        except DecodeError:
            return Status.INVALID_ARGUMENTS, b""
        except LimitExceeded:
            return Status.OBJECT_TOO_BIG, b""

    def _state(self, vbucket: int) -> VbucketState | None:
        state = self._items.state(vbucket)
        if state == VbucketState.PENDING:
            raise _Failed(Status.TMP_FAILURE)
        if state not in (None, VbucketState.ACTIVE):
            raise _Failed(Status.NOT_MY_VBUCKET)
        return state

    def _get(self, key: bytes, vbucket: int) -> bytes:
        _check_id(key)
        self._state(vbucket)
        found = self._items.get(key, vbucket)
        if found is None:
            raise _Failed(Status.NOT_FOUND)
        try:
            return document_of(found).encode_answer()
        except DecodeError:
            raise _Failed(Status.INTERNAL_ERROR) from None

    def _remove(self, key: bytes, cas: int, vbucket: int) -> bytes:
        _check_id(key)
        self._state(vbucket)
        found = self._items.get(key, vbucket)
        if found is None:
            raise _Failed(Status.NOT_FOUND)
        if cas and cas != found.cas:
            raise _Failed(Status.ALREADY_EXISTS)
        return self._removed(found)

    def _removed(self, found: Item | None) -> bytes:
        cas = self._new_cas(0 if found is None else found.cas)
        if found is not None:
            self._items.remove(found.key, found.vbucket, cas=cas)
        return MutationAnswer(cas, 0, self._lsn(), self._uuid).encode()

    def _mutate(self, operation: int, document: Document, vbucket: int) -> bytes:
        _check_id(document.id)
        is_kind = 0 <= document.compression < _COMPRESSIONS and 0 <= document.datatype < _DATATYPES
        if not Operation.ADD <= operation <= Operation.PATCH or not is_kind:
            raise _Failed(Status.INVALID_ARGUMENTS)
        if operation == Operation.ADD and document.cas:
            raise _Failed(Status.INVALID_ARGUMENTS)
        item = item_of(document, vbucket)
        if len(document.value) > TAP_VALUE_BYTES:
            raise _Failed(Status.OBJECT_TOO_BIG)
        state = self._state(vbucket)
        old: Item | None = None
        if operation != Operation.SET or document.cas:
            old = self._items.get(document.id, vbucket)
            item = self._combined(operation, item, old)
        if state is None:
            self._items.set_state(vbucket, VbucketState.ACTIVE)
        if 0 < item.expiry <= self._now:
            return self._removed(self._items.get(document.id, vbucket))
        stored = self._items.put(replace(item, cas=self._new_cas(old.cas if old else 0)))
        answer = MutationAnswer(stored.cas, len(stored.value), self._lsn(), self._uuid)
        return answer.encode()

    def _combined(self, operation: int, new: Item, old: Item | None) -> Item:
        """What an operation that looks at the old item makes of both."""
        extends = operation in (Operation.APPEND, Operation.PREPEND)
        if operation == Operation.ADD:
            if old is not None:
                raise _Failed(Status.ALREADY_EXISTS)
            return new
        if old is None:
            raise _Failed(Status.NOT_STORED if extends else Status.NOT_FOUND)
        if new.cas and new.cas != old.cas:
            raise _Failed(Status.ALREADY_EXISTS)
        if operation == Operation.PATCH:
            return self._patched(new, old)
        if not extends:
            return new
        is_append = operation == Operation.APPEND
        value = old.value + new.value if is_append else new.value + old.value
        if len(value) > TAP_VALUE_BYTES:
            raise _Failed(Status.OBJECT_TOO_BIG)
        return replace(old, value=value)

    def _patched(self, new: Item, old: Item) -> Item:
        is_plain = document_of(old).compression == 0 and not new.compression
        if not is_plain or not old.datatype & JSON_DATATYPE:
            raise _Failed(Status.NOT_IMPLEMENTED)
        try:
            return replace(old, value=patch(old.value, new.value, TAP_VALUE_BYTES))
        except PatchFailed:
            raise _Failed(Status.NOT_STORED) from None
