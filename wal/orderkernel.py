# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Blocks whose rows are in order, many in a call: nothing is made of a row.

In order are whole rows (`wal.kernel` reads them), at least one; whole transactions; replica ids up
to 31; of a log lsns that each follow the one before of the same replica id, of a snapshot INSERTs
with lsns below 2^63. What is not is left to `wal.columns`, which says what of it is wrong.

`told`: numbers that grow by what was in order: rows, transactions; and the bits of the last row's
time. Nothing grows, and no lsn, by a block that is not in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from logweir.wal.kernel import Table

TOLD = ("rows", "transactions", "timestamp")

# C does not see numbers in the tuple above.
ROWS, TRANSACTIONS, TIMESTAMP = range(3)
NUMBERS = 3

TYPE_AT, REPLICA_AT, LSN_AT, TIMESTAMP_AT, TSN_AT, FLAGS_AT = 0, 1, 3, 4, 5, 6
FIXHEADER_BYTES = 19
INSERT = 2
REPLICAS = 32
COMMIT = 1


def in_order(data: bytes, lsns: Table, told: Table, is_log: bool) -> bool:
    """Whether the rows of one block are, and they are counted then."""
    check_tables(lsns, told)
    raw = data
    owed = [0] * 512
    return check(raw, 0, len(data), lsns, told, is_log, owed)


def run(
    data: bytes,
    table: Table,
    capacity: int,
    first: int,
    last: int,
    lsns: Table,
    told: Table,
    is_log: bool,
) -> int:
    """Which of the blocks first … last - 1 in `data` is the first that is compressed, or not in
    order; `last` if none. `table`: as `wal.kernel.walk` wrote it."""
    rows.check_table(table, 4, capacity, last)
    check_tables(lsns, told)
    if first < 0:
        raise IndexError("a table of blocks is too short")
    raw = data
    owed = [0] * 512
    end = len(data)
    for block in range(first, last):
        begin = table[block]
        size = table[capacity + block]
        if table[3 * capacity + block] or begin > end or end - begin < FIXHEADER_BYTES:
            return block
        start = begin + FIXHEADER_BYTES
        if size > end - start or not check(raw, start, start + size, lsns, told, is_log, owed):
            return block
    return last


def check_tables(lsns: Table, told: Table) -> None:
    """See that there is room for what is told, and a number for each replica id."""
    if len(lsns) < REPLICAS or len(told) < NUMBERS:
        raise IndexError("a table of lsns is too short")


def check(
    data: bytes, at: int, end: int, lsns: Table, told: Table, is_log: bool, owed: list[int]
) -> bool:
    """Whether the rows from `at` to `end` are in order, and they are counted then."""
    fields = [0] * 15
    before = [0] * 32
    for i in range(REPLICAS):
        before[i] = lsns[i]
    count = ends = tsn = 0
    is_open = False
    while at < end:
        at = rows.read_header(data, at, end, fields, owed)
        if at >= 0:
            at = rows.read_body(data, at, end, fields, owed)
        lsn = fields[LSN_AT]
        fine = at >= 0 and fields[REPLICA_AT] < REPLICAS and lsn >> 63 == 0
        if fine and is_log:
            fine = lsn == lsns[fields[REPLICA_AT]] + 1
        elif fine:
            fine = fields[TYPE_AT] == INSERT
        if not fine or (is_open and fields[TSN_AT] != tsn):
            count = 0
            break
        if is_log:
            lsns[fields[REPLICA_AT]] = lsn
        count += 1
        tsn = fields[TSN_AT]
        is_open = fields[FLAGS_AT] & COMMIT == 0
        if not is_open:
            ends += 1
    if count == 0 or is_open:
        for i in range(REPLICAS):
            lsns[i] = before[i]
        return False
    told[ROWS] += count
    told[TRANSACTIONS] += ends
    told[TIMESTAMP] = fields[TIMESTAMP_AT]
    return True


COMPILED = "check" not in globals()  # compiled, it is a C function that Python does not see
