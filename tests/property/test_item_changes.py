"""What becomes of items: the compiled computer does what the plain one does, to everything."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logweir
from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket import change
from logweir.replication.bucket.change import ItemComputer, PlainItemComputer
from logweir.replication.bucket.item import Item, pack_item, pack_key, unpack_item
from logweir.replication.bucket.store import Bucket, Buckets
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.computing import HALTED, KEPT, MADE, UNMET
from logweir.store.engine.executing import COLUMNS
from logweir.store.engine.request import Request
from logweir.store.log import Log
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

NOW = 1_795_000_000
CAS = NOW * 1_000_000
EXAMPLES = int(os.environ.get("LOGWEIR_EXAMPLES", "150"))
TOP = 2**64 - 1

VALUES = st.sampled_from(
    [
        *(b"", b"v", b"7", b" 7", b"\t\n+7 rest", b"+", b"-7", b"7x", b"7\0x", b"1 8"),
        *(b"%d" % TOP, b"%d" % (TOP + 1), b"9" * 25, b"0" * 24 + b"7", b"0" * 25 + b"7", b"9" * 40),
        *(b"x" * 255, b"y" * 256, b"z" * 70_000, b"[1]", b'{"a":null,"b":2}', b'[{"op":"x"}]'),
        *(bytes(TAP_VALUE_BYTES - 1), bytes(TAP_VALUE_BYTES)),
    ]
) | st.binary(max_size=20)  # fmt: skip
ITEMS = st.builds(
    Item,
    key=st.sampled_from([b"k", b"with\0zero", b"l" * 250]),
    vbucket=st.sampled_from([0, 0, 0, 0, 1, 65535]),
    value=VALUES,
    flags=st.sampled_from([0, 1, 2**32 - 1]),
    expiry=st.sampled_from([0, 0, 0, NOW - 1, NOW, NOW + 1, 2**32 - 1]),
    cas=st.sampled_from([0, 0, 1, CAS, CAS + 1, TOP]),
    datatype=st.sampled_from([0, 1, 255]),
    compression=st.sampled_from([0, 200]),
    expiration=st.sampled_from(["", "tomorrow", "x" * 40]),
    meta=st.sampled_from([b"", b"123456789"]),
    ttl=st.sampled_from([255, 255, 254, 1, 0]),
    marks=st.sampled_from([0, 0, 1, 2, 3]),
)
KINDS = st.sampled_from(
    [
        *(change.LOOK, change.SET, change.ADD, change.REPLACE, change.BURY, change.APPEND),
        *(change.PREPEND, change.INCREMENT, change.DECREMENT, change.TOUCH, change.TAKE),
        *(change.INCREMENT | change.NO_CREATE, change.DECREMENT | change.NO_CREATE),
        *(change.BURY | change.TAKEN, change.TAKE | change.NO_REPLACE, change.PATCH),
        *(change.INCREMENT | change.RETIME, change.DECREMENT | change.NO_CREATE | change.RETIME),
        *(change.FETCH, change.FETCH | change.CREATE, change.FETCH | change.RECACHE),
        *(change.FETCH | change.RETIME | change.RECACHE, change.SET | change.OLDER),
        change.FETCH | change.RETIME | change.FIRST_RETIME | change.RECACHE | change.CREATE,
        *(change.MARK, change.MARK | change.RETIME),
    ]
)
STEPS = st.sampled_from([0, 1, 7, NOW + 2, NOW << 32 | NOW, TOP - 7, TOP])


def odd(item: Item, how: int) -> bytes:
    """The item's tuple, written as other protocols may."""
    data = pack_item(item)
    if how == 1:  # numbers longer than they need be
        head = 1 + len(pack(item.key))
        return data[:head] + b"\xcd" + item.vbucket.to_bytes(2, "big") + data[
            head + len(pack(item.vbucket)) :
        ]  # fmt: skip
    if how == 2:  # more fields
        return b"\x9d" + data[1:] + b"\xc0" * (13 - (data[0] & 15))
    return data


STORED = st.tuples(ITEMS, st.sampled_from([0, 0, 0, 0, 1, 2]))


class Side:
    """A store whose changes of items are computed by one of the two."""

    def __init__(self, folder: Path, computer: Any) -> None:
        self.log: Log = logweir.open(folder, clock=lambda: float(NOW), durability="write")
        self.computer = computer
        self.buckets = 0

    def begin(self) -> None:
        """Begin anew, with another bucket."""
        self.buckets += 1
        self.bucket: Bucket = Buckets(self.log, lambda: float(NOW)).make(f"b{self.buckets}")
        self.start = self.log.vclock

    def make(
        self, stored: list[tuple[Item, int]], asked: list[tuple[int, int, Item]]
    ) -> tuple[object, ...]:
        """Store items, then do all changes as one batch, each a transaction, a BURY with a DELETE.
        Everything that can be seen of it."""

        def apply(group: Group) -> tuple[object, ...]:
            for item, how in stored:
                data = odd(item, how)
                group.execute(Request(RowType.REPLACE, self.bucket.space_id, tuple=data))
            return self._asked(group, asked)

        job = Job(apply)
        self.log.inner.run_job(job)
        rows = [transaction.rows for transaction in self.log.rows(self.start)]
        held = [self.log.select(self.bucket.name, index=index) for index in (0, 1)]
        return job.result, rows, held

    def _asked(self, group: Group, asked: list[tuple[int, int, Item]]) -> tuple[object, ...]:
        data, columns = bytearray(), array("Q")
        for kind, number, item in asked:
            given, key = pack_item(item), pack_key(item.key)
            start, middle = len(data), len(data) + len(given)
            data += given + key
            is_burial = kind & 0xFF == change.BURY
            last = int(not is_burial)
            columns.extend((3, 0, 0, 0, start, middle, 0, 0, last, 4, kind, number, 0))
            if is_burial:
                columns.extend((5, 0, 0, 0, middle, len(data), 0, 0, 1, 0, 0, 0, 0))
        computer = self.computer(NOW, CAS)
        done = group.execute_batch(
            bytes(data), columns, (self.bucket.space_id,), limit_bytes=1 << 40, computer=computer
        )
        told = [
            (tuple(done.results[10 * number : 10 * number + 4]), done.changed(number))
            for number in range(done.count)
        ]
        return told, list(done.refused), computer.cas, computer.obstacle, len(columns) // COLUMNS


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """One compiled (where anything is), one plain."""
    folder = tmp_path_factory.mktemp("sides")
    one, other = Side(folder / "one", ItemComputer), Side(folder / "other", PlainItemComputer)
    with one.log, other.log:
        yield one, other


@settings(deadline=None, max_examples=EXAMPLES)
@given(
    st.lists(STORED, max_size=3),
    st.lists(st.tuples(KINDS, STEPS, ITEMS), min_size=1, max_size=6),
)
def test_the_compiled_computer_is_the_plain_one(
    sides: tuple[Side, Side],
    stored: list[tuple[Item, int]],
    asked: list[tuple[int, int, Item]],
) -> None:
    """The same answers, CAS values, rows and state, and the same tuple in the way."""
    asked = [
        (kind, number, replace(item, value=b"%d" % (len(item.value) * 2**40)))
        if kind & 0xFF in (change.INCREMENT, change.DECREMENT)
        else (kind, number, item)
        for kind, number, item in asked
    ]
    found = []
    for side in sides:
        side.begin()
        found.append(side.make(stored, asked))
    assert found[0] == found[1]


def test_a_counter_tells_what_it_is_now(sides: tuple[Side, Side]) -> None:
    """Up and down. What stands behind the digits in the tuple is no part of the value."""
    there, asked = Item(b"k", value=b"9", flags=1), Item(b"k")
    steps = [(change.DECREMENT, 1, asked), (change.INCREMENT, 7, asked), (change.LOOK, 0, asked)]
    for side in sides:
        side.begin()
        (told, *_), _, held = side.make([(there, 0)], steps)
        assert [result[0] for result in told] == [
            (0, 0, CAS, 8), (0, 0, CAS + 1, 15), (0, 0, CAS + 1, 0)
        ]  # fmt: skip
        assert [row[2] for row in held[0]] == [b"15"]


def outcome(
    kind: int, given_item: Item, old: Item | None = None, number: int = 0
) -> tuple[int, Item | None, tuple[int, int, int]]:
    """What the plain computer says."""
    computer = PlainItemComputer(NOW, CAS)
    before = None if old is None else pack_item(old)
    how, made, told = computer.refer(kind, number, pack_item(given_item), before)
    return how, None if made is None else unpack_item(made), told


def test_what_is_made_and_what_is_told() -> None:
    """One of each, by hand."""
    there = Item(b"k", 0, b"5", 3, 0, 77, 1, 2, "date", b"meta", 9)
    item = Item(b"k", 0, b"n", 4, NOW + 9, 0, 5)
    fresh = replace(item, cas=CAS)
    stays = replace(there, cas=CAS, ttl=255)
    assert outcome(change.SET, item) == (MADE, fresh, (0, CAS, 0))
    assert outcome(change.SET, replace(item, cas=77), there) == (MADE, fresh, (0, CAS, 0))
    assert outcome(change.SET, replace(item, cas=78), there) == (UNMET, None, (2, 0, 0))
    assert outcome(change.SET, replace(item, cas=77)) == (UNMET, None, (1, 0, 0))
    assert outcome(change.ADD, item, there) == (UNMET, None, (2, 0, 0))
    assert outcome(change.REPLACE, item) == (UNMET, None, (1, 0, 0))
    assert outcome(change.LOOK, item, there) == (KEPT, None, (0, 77, 0))
    assert outcome(change.APPEND, item, there)[1] == replace(stays, value=b"5n")
    assert outcome(change.PREPEND, item, there)[1] == replace(stays, value=b"n5")
    assert outcome(change.APPEND, item) == (UNMET, None, (5, 0, 0))
    assert outcome(change.INCREMENT, item, there, 6) == (
        MADE, replace(stays, value=b"11"), (0, CAS, 11)
    )  # fmt: skip
    assert outcome(change.DECREMENT, item, there, 6)[2] == (0, CAS, 0)
    assert outcome(change.INCREMENT, item, replace(there, value=b"x")) == (UNMET, None, (6, 0, 0))
    assert outcome(change.TOUCH, item, there)[1] == replace(there, expiry=NOW + 9, ttl=255)
    assert outcome(change.BURY, item, there)[1] == replace(stays, value=b"", expiry=0)
    assert outcome(change.TAKE, replace(item, cas=8), there) == (
        MADE, replace(item, cas=8), (0, 8, 0)
    )  # fmt: skip
    assert outcome(change.TAKE, replace(there, ttl=3), there) == (KEPT, None, (0, 77, 0))


def test_one_is_told_to_make_another_value() -> None:
    """Of a stale item, one that soon expires, and one that is made for that; nobody twice."""
    fetch, item = change.FETCH, Item(b"k", expiry=NOW + 60)
    stale = Item(b"k", 0, b"5", cas=77, marks=1)
    soon = Item(b"k", 0, b"5", expiry=NOW + 9, cas=77)
    told = replace(soon, marks=2)
    assert outcome(fetch, item, stale) == (MADE, replace(stale, marks=3), (0, 77, 1))
    assert outcome(fetch, item, replace(stale, marks=3)) == (KEPT, None, (0, 77, 0))
    assert outcome(fetch, item, soon) == (KEPT, None, (0, 77, 0))
    late = fetch | change.RECACHE
    assert outcome(late, item, soon, NOW + 10) == (MADE, told, (0, 77, 1))
    assert outcome(late, item, soon, NOW + 9) == (KEPT, None, (0, 77, 0))
    assert outcome(late, item, told, NOW + 10) == (KEPT, None, (0, 77, 0))
    longer = replace(told, expiry=NOW + 60)
    assert outcome(late | change.RETIME, item, soon, NOW + 10)[1:] == (longer, (0, 77, 1))
    first = late | change.RETIME | change.FIRST_RETIME
    assert outcome(first, item, soon, NOW + 10)[1:] == (replace(longer, marks=0), (0, 77, 0))
    assert outcome(fetch, item) == (UNMET, None, (1, 0, 0))
    made = Item(b"k", expiry=NOW + 7, cas=CAS, marks=2)
    assert outcome(fetch | change.CREATE, item, None, NOW + 7 << 32) == (MADE, made, (0, CAS, 1))


def test_who_is_not_to_be_told_gets_what_is_there() -> None:
    """Or the statement halts before it."""
    stale = Item(b"k", 0, b"5", cas=77, marks=1)
    for computer in (ItemComputer, PlainItemComputer):
        quiet = computer(NOW, CAS, change.WINS_NONE)
        given = pack_item(Item(b"k")), pack_item(stale)
        assert quiet.refer(change.FETCH, 0, *given) == (KEPT, None, (0, 77, 0))
        halting = computer(NOW, CAS, change.WINS_HALT)
        assert halting.refer(change.FETCH, 0, *given)[0] == HALTED
        assert halting.obstacle == given[1]


def test_a_mark_is_gone_with_the_value_it_was_about() -> None:
    """But stays with an expiry, and with a number that is written over the old one."""
    item = Item(b"k", 0, b"n", expiry=NOW + 60)
    there = Item(b"k", 0, b"9", 3, 0, 77, marks=3)
    stale = replace(there, cas=CAS, marks=1)
    assert outcome(change.MARK, item, there)[1] == stale
    assert outcome(change.MARK | change.RETIME, item, there)[1] == replace(stale, expiry=NOW + 60)
    assert outcome(change.MARK, replace(item, cas=76), there)[2] == (2, 0, 0)
    assert outcome(change.TOUCH, item, there)[1] == replace(there, expiry=NOW + 60)
    assert outcome(change.DECREMENT, item, there, 2)[1] == replace(there, value=b"7", cas=CAS)
    assert outcome(change.INCREMENT, item, there, 2)[1] == replace(stale, value=b"11", marks=0)
    assert outcome(change.APPEND, item, there)[1] == replace(stale, value=b"9n", marks=0)
    assert outcome(change.SET, item, there)[1] == replace(item, cas=CAS)
    older = change.SET | change.OLDER
    given = replace(item, cas=76)
    assert outcome(older, given, there)[1] == replace(given, cas=CAS, expiry=0, marks=3)
    assert outcome(older, replace(item, cas=77), there)[1] == replace(item, cas=CAS)
    assert outcome(older, replace(item, cas=78), there) == (UNMET, None, (2, 0, 0))


def test_what_is_in_the_way_halts() -> None:
    """An expired item always; one of another vbucket where something would be put in its place."""
    expired = Item(b"k", 0, b"5", expiry=NOW)
    elsewhere = Item(b"k", 1, b"5")
    item = Item(b"k")
    assert outcome(change.LOOK, item, expired)[0] == HALTED
    assert outcome(change.LOOK, item, elsewhere) == (UNMET, None, (1, 0, 0))
    assert outcome(change.SET, item, elsewhere)[0] == HALTED
    assert outcome(change.BURY | change.TAKEN, item, expired)[0] == MADE
    assert outcome(change.TAKE, item, expired)[0] == MADE
