"""Rows of a block as columns: what a reader, a follower and the writer hand on instead of objects.

`RowColumns.scan` reads a block once and gives one column of 64-bit numbers per part of a row (the
table of columns is in `wal.kernel`); the rows' bytes stay where they are. The reverse direction
makes the bytes of rows from columns and slices of a buffer: `encode_columns` for any rows,
`encode_run` for rows that differ in their lsn only.

What is accepted, and every error with its offset, is what `wal.xrow` says of the same bytes: the
kernel finds *that* a row is malformed and where it begins, `xrow` then says why.

A transaction is rows with one transaction id, one after the other, the last with COMMIT; a block
is whole transactions. Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NoReturn

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import BLOCK_STORED_BYTES, VCLOCK_COMPONENTS
from logweir.wal import kernel
from logweir.wal.xrow import FLAG_COMMIT, Row, RowType, decode_body, decode_row, encode_row

ABSENT: Final = 2**64 - 1
"""In the column `space_id`: the body names no space."""

ALONE: Final = 2**63
"""In the column `flags`: key 08 is absent, the row is a transaction by itself."""

ODD: Final = 2**62
"""In the column `flags`: the header says more than the columns; `RowColumns.row` has it all."""

Buffer = bytes | bytearray | memoryview
Column = Sequence[int]
"""Unsigned 64-bit numbers: an array or memoryview of format "Q", or any sequence of them."""

_AT: Final = {name: number for number, name in enumerate(kernel.COLUMNS)}
_ZERO: Final = array("Q", (0,))
_NO_LSNS: Final = _ZERO * VCLOCK_COMPONENTS
_ONES: Final = array("Q", (2**64 - 1,))
_PACKET_MORE_BYTES: Final = 5 + 12  # length, and what a sync adds to a header
_ROW_BYTES: Final = 32  # few rows are shorter; a table that is too small is made again
_MANY_ROWS: Final = 128  # from so many guessed rows on it is worth to look at
_FEW_ROWS: Final = 16  # of them first


def _malformed(data: bytes, at: int) -> NoReturn:
    """Raise what `xrow` says of the row at `at`, which the kernel did not take."""
    row, end = decode_row(memoryview(data), at)
    try:
        decode_body(row.body)
    except DecodeError as error:
        offset = end - len(row.body) + (error.offset or 0)
        raise DecodeError(error.reason, offset=offset) from None
    raise AssertionError(f"kernel and xrow do not agree on the row at byte {at}")


def _table(capacity: int) -> memoryview:
    return memoryview(kernel.blank(len(_AT) * capacity)).cast("Q")


class RowColumns:
    """The rows of one block.

    `data`: the block's bytes. Each column is a `memoryview` of format "Q",
    one number per row; they stay valid as long as anybody holds them.
    """

    __slots__ = ("_capacity", "_count", "_table", "data")

    def __init__(self, data: bytes, table: memoryview, capacity: int, count: int) -> None:
        self.data = data
        self._table = table
        self._capacity = capacity
        self._count = count

    @classmethod
    def scan(cls, data: Buffer) -> RowColumns:
        """Read the rows of a block. `data`: complete rows; copied unless they are `bytes`.

        Raises `DecodeError` or `LimitExceeded` as `xrow.decode_row` and `decode_body` do.
        """
        data = data if isinstance(data, bytes) else bytes(data)
        size = len(data)
        if size > BLOCK_STORED_BYTES:
            raise LimitExceeded("BLOCK_STORED_BYTES", BLOCK_STORED_BYTES, size)
        capacity = size // _ROW_BYTES + 2
        if capacity > _MANY_ROWS:  # the table need not be much larger than the rows want it
            table = _table(_FEW_ROWS + 1)
            count = kernel.scan(data, table, _FEW_ROWS + 1)
            stopped = table[_AT["row_offset"] * (_FEW_ROWS + 1) + count]
            if count == _FEW_ROWS:
                capacity = 2 + count * size * 9 // (stopped * 8)
        while True:
            table = _table(capacity)
            count = kernel.scan(data, table, capacity)
            stopped = table[_AT["row_offset"] * capacity + count]
            if stopped == size:
                return cls(data, table, capacity, count)
            if count + 1 < capacity:
                _malformed(data, stopped)
            capacity = 2 + (count + 1) * size * 5 // (stopped * 4)

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> memoryview:
        """One column by its name in `kernel.COLUMNS`."""
        start = _AT[name] * self._capacity
        return self._table[start : start + self._count]

    @property
    def table(self) -> tuple[memoryview, int]:
        """All columns in the order of `kernel.COLUMNS`, and after how many numbers the next one
        begins: for another kernel."""
        return self._table, self._capacity

    @property
    def type(self) -> memoryview:
        """Header key 00."""
        return self.column("type")

    @property
    def replica_id(self) -> memoryview:
        """Header key 02; 0 is a local row."""
        return self.column("replica_id")

    @property
    def group_id(self) -> memoryview:
        """Header key 07; 1 is replica-local."""
        return self.column("group_id")

    @property
    def lsn(self) -> memoryview:
        """Header key 03."""
        return self.column("lsn")

    @property
    def timestamp_bits(self) -> memoryview:
        """The bits of the 64-bit float of header key 04."""
        return self.column("timestamp")

    @property
    def timestamp(self) -> memoryview[float]:
        """Seconds since the epoch, as floats (format "d")."""
        return self.column("timestamp").cast("B").cast("d")

    @property
    def tsn(self) -> memoryview:
        """The transaction's id, absolute."""
        return self.column("tsn")

    @property
    def flags(self) -> memoryview:
        """Header key 09; bit 0 also for a row that is a transaction by itself, and then `ALONE`."""
        return self.column("flags")

    @property
    def space_id(self) -> memoryview:
        """Body key 10, or `ABSENT`."""
        return self.column("space_id")

    @property
    def index_base(self) -> memoryview:
        """Body key 15."""
        return self.column("index_base")

    @property
    def row_offset(self) -> memoryview:
        """Where each row begins in `data`."""
        return self.column("row_offset")

    @property
    def end_offset(self) -> memoryview:
        """Where each row ends: where the next begins."""
        start = _AT["row_offset"] * self._capacity + 1
        return self._table[start : start + self._count]

    @property
    def body_offset(self) -> memoryview:
        """Where each row's body begins; it ends where the row does. A NOP's is empty."""
        return self.column("body_offset")

    @property
    def key_span(self) -> memoryview:
        """Body key 20: its first byte + 2^32 x where it ends, or 0."""
        return self.column("key")

    @property
    def tuple_span(self) -> memoryview:
        """Body key 21 (the operations of an UPDATE), as `key_span`."""
        return self.column("tuple")

    @property
    def ops_span(self) -> memoryview:
        """Body key 28, as `key_span`."""
        return self.column("ops")

    def _part(self, name: str, index: int) -> bytes | None:
        span = self.column(name)[index]
        return self.data[span & 0xFFFFFFFF : span >> 32] if span else None

    def row_bytes(self, index: int) -> bytes:
        """The stored bytes of one row."""
        return self.data[self.row_offset[index] : self.end_offset[index]]

    def body_bytes(self, index: int) -> bytes:
        """The stored bytes of one row's body; empty for a NOP."""
        return self.data[self.body_offset[index] : self.end_offset[index]]

    def key_bytes(self, index: int) -> bytes | None:
        """The stored bytes of body key 20."""
        return self._part("key", index)

    def tuple_bytes(self, index: int) -> bytes | None:
        """The stored bytes of body key 21, where that is a tuple: not for an UPDATE."""
        return None if self.type[index] == RowType.UPDATE else self._part("tuple", index)

    def index_id(self, index: int) -> int:
        """The index that an UPDATE or DELETE names, 0 for the primary one.

        Such a row found nothing: one that is found by another index is logged by its primary key
        (Tarantool 2.6.0, observed).
        """
        return int(self.column("index_id")[index])

    def ops_bytes(self, index: int) -> bytes | None:
        """The stored bytes of the operations: body key 28, for an UPDATE key 21 first."""
        ops = self._part("tuple", index) if self.type[index] == RowType.UPDATE else None
        return self._part("ops", index) if ops is None else ops

    def row(self, index: int) -> Row:
        """One row as an object."""
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        fields = self._table[index :: self._capacity].tolist()
        kind, replica_id, group_id, lsn, bits, tsn, flags, _, _, start, body = fields[:11]
        if flags & ODD:
            return decode_row(memoryview(self.data), start)[0]
        (timestamp,) = struct.unpack("d", struct.pack("Q", bits))
        return Row(
            type=kind,
            replica_id=replica_id,
            lsn=lsn,
            timestamp=timestamp,
            tsn=tsn,
            commit=bool(flags & FLAG_COMMIT),
            group_id=group_id,
            flags=flags & ~(ALONE | FLAG_COMMIT) if flags & ALONE else flags,
            body=self.data[body : self.end_offset[index]],
        )

    def raise_lsns(self, lsns: array[int]) -> int | None:
        """Raise `lsns`, the lsn reached per replica id (32 of them), by these rows.

        Returns the first row whose lsn was reached before it (it is there twice, or out of order),
        None if there is none. Raises `DecodeError` for a replica id over 31.
        """
        odd = kernel.highest_lsns(self._table, self._capacity, self._count, lsns)
        if odd < 0:
            row = -1 - odd
            raise DecodeError(
                f"row names replica {self.replica_id[row]}, the last is 31",
                offset=self.row_offset[row],
            )
        return odd if odd < self._count else None

    def last_lsns(self) -> dict[int, int]:
        """The highest lsn that these rows have of each replica id. Errors: `raise_lsns`."""
        lsns = _NO_LSNS[:]
        self.raise_lsns(lsns)
        return {replica_id: lsn for replica_id, lsn in enumerate(lsns) if lsn}

    def above(self, lsns: array[int]) -> RowColumns:
        """The rows above `lsns`, the lsn reached per replica id (32 of them), which they raise.

        The very same where these are all. Where the last row of a transaction is left out, the
        last one that stays gets its COMMIT flag. Errors: `raise_lsns`.
        """
        reached = lsns[:]
        if self.raise_lsns(reached) is None:
            lsns[:] = reached
            return self
        kept: list[bytes] = []
        last = -1  # of the transaction's rows that stay
        for row, (replica_id, lsn, flags) in enumerate(
            zip(self.replica_id, self.lsn, self.flags, strict=True)
        ):
            if lsn > lsns[replica_id]:
                lsns[replica_id] = lsn
                kept.append(self.row_bytes(row))
                last = row
            elif flags & FLAG_COMMIT and last >= 0:
                kept[-1] = encode_row(replace(self.row(last), commit=True))
            if flags & FLAG_COMMIT:
                last = -1
        return RowColumns.scan(b"".join(kept))

    def transaction_ends(self) -> memoryview:
        """The row after the last one of each transaction, in order.

        Raises `DecodeError` if rows of two transactions are mixed, or the last transaction is
        not complete.
        """
        ends = _ZERO * (self._count or 1)
        found = kernel.transactions(self._table, self._capacity, self._count, ends)
        if found >= 0:
            return memoryview(ends)[:found]
        row = -1 - found
        if row == self._count:
            raise DecodeError(
                "block ends inside a transaction: no row of it has the COMMIT flag",
                offset=len(self.data),
            )
        raise DecodeError(
            f"row of transaction {self.tsn[row]} stands inside transaction {self.tsn[row - 1]}",
            offset=self.row_offset[row],
        )

    def transactions(self) -> list[tuple[int, int]]:
        """Each transaction's first row and the row after its last. Errors: `transaction_ends`."""
        ends = self.transaction_ends().tolist()
        return list(zip([0, *ends], ends, strict=False))

    def packets(
        self,
        first: int,
        last: int,
        *,
        after: Mapping[int, int] | None = None,
        upto: Mapping[int, int] | None = None,
        sync: int = 0,
    ) -> bytearray:
        """Rows first … last - 1 as replication packets: `ce`, 4 bytes of length, stored row.

        `after`: lsn per replica id (a vclock) up to which the follower has all rows; `upto`: lsn
        per replica id after which rows of that id are not sent, for ids that are filtered (0) or
        the follower's own; `sync`: of the request that is answered, 0 none. Local rows are left
        out, or sent as NOP where they carry a replica id.
        Raises `DecodeError` at a row that no replica could take (its replica id is over 31).
        """
        if not 0 <= first <= last <= self._count:
            raise IndexError(f"rows {first} … {last} of {self._count}")
        after_lsns = _NO_LSNS[:]
        for replica_id, lsn in (after or {}).items():
            after_lsns[replica_id] = lsn
        upto_lsns = _ONES * VCLOCK_COMPONENTS
        for replica_id, lsn in (upto or {}).items():
            upto_lsns[replica_id] = lsn
        stored = self._table[_AT["row_offset"] * self._capacity :]
        size = stored[last] - stored[first] + (last - first) * _PACKET_MORE_BYTES + 128
        out = bytearray(size)
        written = kernel.packets(
            self.data, self._table, self._capacity, first, last, after_lsns, upto_lsns, sync, out
        )
        if written < 0:
            row = -1 - written
            raise DecodeError(
                f"row of replica {self.replica_id[row]} cannot be sent to a follower",
                offset=self.row_offset[row],
            )
        del out[written:]
        return out


def _bits(timestamp: float) -> int:
    bits: int = _UINT64.unpack(_DOUBLE.pack(timestamp))[0]
    return bits


_UINT64: Final = struct.Struct("Q")
_DOUBLE: Final = struct.Struct("d")


def encode_columns(
    *,
    type: int | Column,
    replica_id: int | Column,
    lsn: int | Column,
    timestamp_bits: int | Column,
    tsn: int | Column,
    flags: int | Column,
    group_id: int | Column = 0,
    source: Buffer,
    starts: Column,
    stops: Column,
    prefix: bytes = b"",
) -> bytearray:
    """The bytes of rows, as `xrow.encode_row` makes them, from columns.

    Every header column is one number per row, or one number for all rows; `tsn` is absolute and
    bit 0 of `flags` marks the last row of a transaction, also if that is its only row. The
    body of row i is `prefix` and source[starts[i]:stops[i]]; a NOP has none.
    Raises `ValueError` if a slice is not in `source` or columns differ in length.
    """
    count = len(starts)
    source = source if isinstance(source, bytes) else bytes(source)
    table = array("Q")
    header = (type, replica_id, group_id, lsn, timestamp_bits, tsn, flags)
    for number, column in enumerate((*header, starts, stops), 1):
        if isinstance(column, int):
            table.extend(array("Q", (column,)) * count)
        elif isinstance(column, memoryview | array):
            table.frombytes(memoryview(column).cast("B"))
        else:
            table.extend(column)
        if len(table) != number * count:
            raise ValueError(f"a column has {len(table) - (number - 1) * count} rows, not {count}")
    at = len(header) * count
    size = kernel.slices(table, 0, count, at, at + count, len(source))
    if size >= 0:
        out = bytearray(size + count * (kernel.HEADER_ROOM + len(prefix)))
        size = kernel.encode(table, count, at, at + count, source, prefix, out)
    if size < 0:
        raise ValueError(f"the body of row {-1 - size} is not a slice of the source")
    del out[size:]
    return out


def encode_run(
    *,
    type: int,
    replica_id: int,
    first_lsn: int,
    timestamp: float,
    source: Buffer,
    bounds: array[int] | memoryview,
    prefix: bytes = b"",
    group_id: int = 0,
    one_transaction: bool = False,
) -> bytearray:
    """The bytes of rows that differ in lsn and body only; their lsns follow one another.

    `bounds`: format "Q", one more than there are rows; the body of row i is `prefix` and
    source[bounds[i]:bounds[i + 1]]. `one_transaction`: all rows are one, else each is one.
    Raises `ValueError` if a slice is not in `source`.
    """
    source = source if isinstance(source, bytes) else bytes(source)
    bits = _bits(timestamp)
    out: bytearray | None = kernel.encode_run(
        type, replica_id, group_id, first_lsn, bits, one_transaction, source, bounds, prefix
    )
    if out is None:
        row = -1 - kernel.slices(bounds, 0, len(bounds) - 1, 0, 1, len(source))
        raise ValueError(f"the body of row {row} is not a slice of the source")
    return out
