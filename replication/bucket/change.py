"""What becomes of an item that a command is about: one definition for all protocols of buckets.

A change is a REPLACE whose tuple the engine's computer makes (`store.engine.computing`): its own
tuple is the item as the command gives it, with the command's CAS as a condition (0: none); FIELD
one of the kinds below, VALUE a counter's step. What is expired, or of another vbucket, is not
there.

==========  ====================================================  ==================================
kind        makes                                                 unless
==========  ====================================================  ==================================
LOOK        nothing; the old tuple is the answer                  01 it is not there
SET         the given item                                        01 not there, with a CAS
ADD         the given item                                        01 as SET; 02 it is there, no CAS
REPLACE     the given item                                        01 it is not there
BURY        the tombstone of what is there, with the given TTL;   01 it is not there
            who asks puts a DELETE after it
APPEND      the value after, PREPEND: before what is there        05 not there; 03 too long
INCREMENT   the number that its text says, VALUE more, as text    06 it is no number; 01 not there,
DECREMENT   of the old length at least, modulo 2^64; less VALUE,  with NO_CREATE. Without it the
            0 at least; with RETIME the given expiry              given item is made
TOUCH       the old item and its CAS, with the given expiry       01 it is not there
TAKE        the given item and its CAS, also where there is an    nothing is changed where there is
            expired one                                           the same, whatever its TTL; with
                                                                  NO_REPLACE, if there is any
PATCH       what the given value, a patch, makes of the JSON      01 it is not there; 04 it is no
            that is there (`replication.bucket.patch`)            patch; 05 a step of it failed; 03;
                                                                  83 there is no JSON, or packed
FETCH       nothing, the old tuple is the answer; or it, marked   01 it is not there; with CREATE
            as told, and with RETIME with the given expiry: see   the given item, empty and marked
            below. FIRST_RETIME: before it is looked at           as told, is made instead
MARK        the old item, marked as stale and nothing else; with  01 it is not there
            RETIME with the given expiry
==========  ====================================================  ==================================

Another CAS than the condition's, if the item is there: 02; LOOK, TOUCH and TAKE have none. With
TAKEN a BURY has the given CAS for its tombstone, and also an expired item is there. All else that
is made gets a new CAS and the TTL of what was written here. Halted, with the tuple that is in the
way: an expired item, which is to be removed, and what is to be put where one of another vbucket is.

FETCH tells who asks to make another value, B is 1, if nobody was told: of a stale item; with
RECACHE of one that expires before the low half of VALUE, a Unix time; of one that it creates, whose
expiry is the high half of VALUE. It keeps the CAS. Who may not be told (`wins`, of the computer)
gets the old tuple. SET with OLDER is done, too, if its CAS is lower than the item's: what is
made is stale, told as before, and expires as before. What is made of an item has none of its marks,
but of TOUCH, and of a counter's text that fits into the old one.

CODE holds 0 or the number above, which is memcached's; A the item's CAS; B the counter's number.
Source: memcached 1.6.18, observed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.item import (
    JSON_DATATYPE,
    MARK_STALE,
    MARK_TOLD,
    NO_HOPS_MADE,
    SNAPPY_DATATYPE,
    Item,
    pack_item,
    tombstone,
    unpack_item,
)
from logweir.replication.bucket.patch import PatchFailed, patch
from logweir.store.engine.computing import HALTED, KEPT, MADE, UNMET, Computed, Computer

LOOK, SET, ADD, REPLACE, BURY, APPEND, PREPEND, INCREMENT, DECREMENT, TOUCH, TAKE = range(1, 12)
PATCH: Final = 12
FETCH: Final = 13
MARK: Final = 14
NO_CREATE: Final = 0x100
TAKEN: Final = 0x200
NO_REPLACE: Final = 0x400
RETIME: Final = 0x800
FIRST_RETIME: Final = 0x1000
RECACHE: Final = 0x2000
CREATE: Final = 0x4000
OLDER: Final = 0x8000

WINS_NONE, WINS_HALT, WINS_MAKE = range(3)
"""What a FETCH does that would tell somebody to make another value: nothing, halt before it, or do
so."""

MISSING: Final = 1
EXISTS: Final = 2
TOO_BIG: Final = 3
INVALID: Final = 4
NOT_STORED: Final = 5
BAD_NUMBER: Final = 6
NOT_SUPPORTED: Final = 0x83

_KINDS: Final = 0xFF
_NUMBER: Final = re.compile(rb"[ \t\n\v\f\r]*\+?([0-9]+)(?=[ \t\n\v\f\r\x00]|\Z)")
_DIGITS: Final = 25
_U64_END: Final = 1 << 64


class PlainItemComputer(Computer):
    """Computes in Python. `now`: Unix seconds; `cas`: the next one; `wins`: see `WINS_MAKE`."""

    def __init__(self, now: int, cas: int, wins: int = WINS_MAKE) -> None:
        super().__init__()
        self.now = now
        self.cas = cas
        self.wins = wins

    def refer(self, how: int, number: int, given: bytes, old: bytes | None) -> Computed:
        kind = how & _KINDS
        new = unpack_item(given)
        found = None if old is None else unpack_item(old)
        there = found if found is not None and found.vbucket == new.vbucket else None
        if kind == TAKE:
            is_same = found is not None and replace(found, ttl=new.ttl, marks=new.marks) == new
            if found is not None and (is_same or how & NO_REPLACE):
                return KEPT, None, (0, found.cas, 0)
            made, code, told = replace(new, marks=0), 0, 0
        else:
            if there is not None and not how & TAKEN and there.is_expired(self.now):
                self.obstacle = old
                return HALTED, None, (0, 0, 0)
            code = _verdict(kind, how, new.cas, there)
            if code:
                return UNMET, None, (code, 0, 0)
            if kind == LOOK:
                assert there is not None
                return KEPT, None, (0, there.cas, 0)
            if kind == FETCH and there is not None:
                made, told = _fetched(how, number, new, there)
                if told and self.wins == WINS_HALT:
                    self.obstacle = old
                    return HALTED, None, (0, 0, 0)
                if made is there or self.wins == WINS_NONE:
                    return KEPT, None, (0, there.cas, 0)
                return MADE, pack_item(made), (0, made.cas, told)
            made, code, told = _combined(kind, number, new, there)
            if how & RETIME and there is not None:
                made = replace(made, expiry=new.expiry)
            if how & OLDER and there is not None and new.cas != there.cas:
                marks = there.marks & MARK_TOLD | MARK_STALE
                made = replace(made, expiry=there.expiry, marks=marks)
            if kind == BURY and not how & TAKEN:
                made = replace(made, cas=0)
        if code:
            return UNMET, None, (code, 0, 0)
        if found is not None and there is None:
            self.obstacle = old
            return HALTED, None, (0, 0, 0)
        if not made.cas:
            made = replace(made, cas=self.next_cas(0 if there is None else there.cas))
        return MADE, pack_item(made), (0, made.cas, told)

    def next_cas(self, old: int) -> int:
        """A new one, and not `old`."""
        given = self.cas + (self.cas == old)
        self.cas = given + 1
        return given


def _verdict(kind: int, how: int, cas: int, old: Item | None) -> int:
    """Why a change is not made, as far as that can be told without its value; 0: it may be."""
    if old is None:
        if kind in (APPEND, PREPEND):
            return NOT_STORED
        if kind in (SET, ADD):
            return MISSING if cas else 0
        if kind == FETCH:
            return 0 if how & CREATE else MISSING
        if kind in (INCREMENT, DECREMENT):
            return MISSING if how & NO_CREATE else 0
        return MISSING
    if kind in (INCREMENT, DECREMENT) and not old.value:
        return BAD_NUMBER  # told before its CAS is looked at, as memcached does
    if cas and kind not in (LOOK, TOUCH, FETCH) and not how & TAKEN:
        return 0 if cas == old.cas or (how & OLDER and cas < old.cas) else EXISTS
    return EXISTS if kind == ADD else 0


def _fetched(how: int, number: int, new: Item, old: Item) -> tuple[Item, int]:
    """What a FETCH makes of an item, and whether it tells to make another value."""
    marks, expiry = old.marks, old.expiry
    if how & RETIME and how & FIRST_RETIME:
        expiry = new.expiry
    is_late = how & RECACHE and 0 < expiry < number & 0xFFFF_FFFF
    told = int(not marks & MARK_TOLD and bool(is_late or marks & MARK_STALE))
    if how & RETIME:
        expiry = new.expiry
    if not told and expiry == old.expiry:
        return old, 0
    marks |= MARK_TOLD * told
    return replace(old, expiry=expiry, marks=marks, ttl=NO_HOPS_MADE), told


def _combined(kind: int, number: int, new: Item, old: Item | None) -> tuple[Item, int, int]:
    """What a change makes of both, a new CAS apart; why it cannot; the counter's number."""
    fresh = replace(new, cas=0, ttl=NO_HOPS_MADE, marks=0)
    if kind == FETCH:
        return replace(fresh, expiry=number >> 32, marks=MARK_TOLD), 0, 1
    if kind in (INCREMENT, DECREMENT):
        if old is None:
            return fresh, 0, int(new.value)
        match = _NUMBER.match(old.value)
        if match is None or len(match[1]) > _DIGITS or (count := int(match[1])) >= _U64_END:
            return fresh, BAD_NUMBER, 0
        count = (count + number) % _U64_END if kind == INCREMENT else max(count - number, 0)
        text = (b"%d" % count).ljust(len(old.value))
        marks = old.marks if len(text) == len(old.value) else 0
        return replace(old, value=text, cas=0, ttl=NO_HOPS_MADE, marks=marks), 0, count
    if old is None or kind in (SET, ADD, REPLACE):
        return fresh, 0, 0
    if kind == BURY:
        return tombstone(old, new.cas, new.ttl), 0, 0
    if kind == TOUCH:
        return replace(old, expiry=new.expiry, ttl=NO_HOPS_MADE), 0, 0
    if kind == MARK:
        return replace(old, cas=0, ttl=NO_HOPS_MADE, marks=MARK_STALE), 0, 0
    if kind == PATCH:
        value, code = _patched(new, old)
    else:
        value = old.value + new.value if kind == APPEND else new.value + old.value
        code = TOO_BIG if len(value) > TAP_VALUE_BYTES else 0
    return replace(old, value=value, cas=0, ttl=NO_HOPS_MADE, marks=0), code, 0


def _patched(new: Item, old: Item) -> tuple[bytes, int]:
    """The value that a patch makes, and why it makes none."""
    is_packed = old.compression or old.datatype & SNAPPY_DATATYPE or new.compression
    if is_packed or not old.datatype & JSON_DATATYPE:
        return b"", NOT_SUPPORTED
    try:
        return patch(old.value, new.value, TAP_VALUE_BYTES), 0
    except PatchFailed:
        return b"", NOT_STORED
    except LimitExceeded:
        return b"", TOO_BIG
    except DecodeError:
        return b"", INVALID


if TYPE_CHECKING:
    ItemComputer = PlainItemComputer
else:
    try:
        from logweir.replication.bucket.itemkernel import ItemComputer as _Compiled
    except ImportError:
        ItemComputer = PlainItemComputer
    else:

        class ItemComputer(_Compiled):
            """The compiled one, which asks the plain one about odd tuples."""

            refer = PlainItemComputer.refer
            next_cas = PlainItemComputer.next_cas
