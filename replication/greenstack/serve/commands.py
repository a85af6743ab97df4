"""What MUTATION, GET and REMOVE do to a bucket: request and items in, status and payload out.

==========  ====================================================  ==================================
operation   rule                                                  failures
==========  ====================================================  ==================================
Add         CAS has to be 0                                       01 CAS; 0d it is there
Set         CAS 0: always; else only if it still has that CAS     08 not there; 0d another CAS
Replace     only if it is there                                   as Set
Append      value is put after, Prepend: before what is there;   0403 not there; 0d another CAS
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
from typing import TYPE_CHECKING, Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GREENSTACK_ID_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket import change
from logweir.replication.bucket.item import (
    JSON_DATATYPE,
    SNAPPY_DATATYPE,
    Item,
    VbucketState,
    unpack_item,
)
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import (
    Document,
    MutationAnswer,
    Operation,
    decode_get,
    decode_mutation,
    decode_remove,
)

if TYPE_CHECKING:
    from logweir.replication.bucket.store import GroupItems

_KINDS: Final[dict[int, int]] = {
    Operation.ADD: change.ADD,
    Operation.SET: change.SET,
    Operation.REPLACE: change.REPLACE,
    Operation.APPEND: change.APPEND,
    Operation.PREPEND: change.PREPEND,
    Operation.PATCH: change.PATCH,
}
_STATUSES: Final = {
    change.MISSING: Status.NOT_FOUND,
    change.EXISTS: Status.ALREADY_EXISTS,
    change.TOO_BIG: Status.OBJECT_TOO_BIG,
    change.INVALID: Status.INVALID_ARGUMENTS,
    change.NOT_STORED: Status.NOT_STORED,
    change.NOT_SUPPORTED: Status.NOT_IMPLEMENTED,
}
"""Of what `replication.bucket.change` says."""

Answer = tuple[Status, bytes]
"""Status and payload."""

_SNAPPY: Final = 1
_COMPRESSIONS: Final = 4
_DATATYPES: Final = 2
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
    is_snappy = item.datatype & SNAPPY_DATATYPE and not item.compression
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


class Failed(Exception):
    """A request has failed with that status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


def _check_id(key: bytes) -> None:
    if not 0 < len(key) <= GREENSTACK_ID_BYTES or b"\0" in key:
        raise Failed(Status.INVALID_ARGUMENTS)


def told(code: int, data: bytes | None) -> bytes:
    """The payload of the answer to a GET, of what a look has found. Raises `Failed`."""
    if code or data is None:
        raise Failed(_STATUSES[code])
    try:
        return document_of(unpack_item(data)).encode_answer()
    except DecodeError:
        raise Failed(Status.INTERNAL_ERROR) from None


class Executor:
    """Runs requests on a bucket. `now`: Unix seconds; `uuid`: first 8 bytes of the instance's;
    `lsn`: that of the last row made."""

    def __init__(
        self, items: GroupItems, now: float, *, uuid: int, lsn: Callable[[], int] = lambda: 0
    ) -> None:
        self._items = items
        self._now = now
        self._uuid = uuid
        self._lsn = lsn

    def execute(self, request: Frame) -> Answer:
        """Run a MUTATION, GET or REMOVE. Returns the status and payload of its answer."""
        try:
            vbucket = request.number(FlexKey.VBUCKET)
            if vbucket is None:
                raise Failed(Status.INVALID_ARGUMENTS)
            if request.opcode == Opcode.GET:
                key = decode_get(request.payload)
                _check_id(key)
                self._state(vbucket)
                found = self._items.change(change.LOOK, Item(key, vbucket))
                return Status.SUCCESS, told(found.code, found.data)
            if request.opcode == Opcode.REMOVE:
                key, cas = decode_remove(request.payload)
                _check_id(key)
                self._state(vbucket)
                return Status.SUCCESS, self._changed(change.BURY, Item(key, vbucket, cas=cas))
            return Status.SUCCESS, self._mutate(*decode_mutation(request.payload), vbucket)
        except Failed as failed:
            return failed.status, b""
        except DecodeError:
            return Status.INVALID_ARGUMENTS, b""
        except LimitExceeded:
            return Status.OBJECT_TOO_BIG, b""

    def _state(self, vbucket: int) -> VbucketState | None:
        state = self._items.state(vbucket)
        if state == VbucketState.PENDING:
            raise Failed(Status.TMP_FAILURE)
        if state not in (None, VbucketState.ACTIVE):
            raise Failed(Status.NOT_MY_VBUCKET)
        return state

    def _mutate(self, operation: int, document: Document, vbucket: int) -> bytes:
        _check_id(document.id)
        is_kind = 0 <= document.compression < _COMPRESSIONS and 0 <= document.datatype < _DATATYPES
        kind = _KINDS.get(operation)
        if kind is None or not is_kind or (kind == change.ADD and document.cas):
            raise Failed(Status.INVALID_ARGUMENTS)
        item = item_of(document, vbucket)
        if len(document.value) > TAP_VALUE_BYTES:
            raise Failed(Status.OBJECT_TOO_BIG)
        state = self._state(vbucket)
        if 0 < item.expiry <= self._now and kind in (change.SET, change.ADD, change.REPLACE):
            answer = self._replaced_by_nothing(kind, item)
        else:
            answer = self._changed(kind, item)
        if state is None:
            self._items.set_state(vbucket, VbucketState.ACTIVE)
        return answer

    def _changed(self, kind: int, item: Item) -> bytes:
        changed = self._items.change(kind, item)
        if changed.code:
            raise Failed(_STATUSES[changed.code])
        size = 0 if kind == change.BURY else len(unpack_item(changed.data or b"").value)
        return MutationAnswer(changed.cas, size, self._lsn(), self._uuid).encode()

    def _replaced_by_nothing(self, kind: int, item: Item) -> bytes:
        """What is stored would be gone at once: only what is there goes, on the same conditions."""
        try:
            if kind == change.ADD:
                raise Failed(_STATUSES[self._items.change(change.LOOK, item).code or change.EXISTS])
            return self._changed(change.BURY, replace(item, value=b""))
        except Failed as failed:
            if failed.status != Status.NOT_FOUND or kind == change.REPLACE or item.cas:
                raise
            return MutationAnswer(self._items.new_cas(), 0, self._lsn(), self._uuid).encode()
