"""Small logs for tests, written by the writer under test's own house."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.mp import encode_uint, pack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Key, Row, RowType, encode_rows

INSTANCE = uuid.UUID("0b5c1d0e-0000-4000-8000-000000000001")
START = 1_700_000_000.0
"""Timestamp of lsn 0: lsn n happened n seconds later."""

SPACE_ROW = [512, 1, "orders", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]]
"""The tuple of space 280 that defines space 512."""


def body(*parts: tuple[Key, Any]) -> bytes:
    """A row's body from keys and values."""
    pairs = b"".join(encode_uint(key) + pack(value) for key, value in parts)
    return bytes((0x80 + len(parts),)) + pairs


def insert(space_id: int, value: list[Any]) -> tuple[int, bytes]:
    """Type and body of an INSERT."""
    return RowType.INSERT, body((Key.SPACE_ID, space_id), (Key.TUPLE, value))


def delete(space_id: int, key: list[Any]) -> tuple[int, bytes]:
    """Type and body of a DELETE."""
    return RowType.DELETE, body((Key.SPACE_ID, space_id), (Key.KEY, key))


def update(space_id: int, key: list[Any], ops: list[Any]) -> tuple[int, bytes]:
    """Type and body of an UPDATE; field numbers count from 1."""
    parts = (Key.SPACE_ID, space_id), (Key.INDEX_BASE, 1), (Key.KEY, key), (Key.TUPLE, ops)
    return RowType.UPDATE, body(*parts)


def transaction(first_lsn: int, changes: Sequence[tuple[int, bytes]], replica_id: int = 1) -> bytes:
    """The rows of one transaction, lsns counting from `first_lsn`."""
    last = first_lsn + len(changes) - 1
    return encode_rows(
        Row(
            type=kind,
            replica_id=replica_id,
            lsn=first_lsn + i,
            timestamp=START + first_lsn,
            tsn=first_lsn,
            commit=first_lsn + i == last,
            body=data,
        )
        for i, (kind, data) in enumerate(changes)
    )


def write_log(
    folder: Path,
    transactions: Sequence[Sequence[tuple[int, bytes]]],
    *,
    close: bool = True,
    max_bytes: int = 2**28,
    start: VClock | None = None,
) -> VClock:
    """Write transactions, one block each, lsns from `start` on, as by durability `fsync`, without
    an end mark beside them. Returns the vclock reached."""
    vclock = start or VClock()
    writer = WalWriter(
        folder,
        INSTANCE,
        AppendPoint(vclock),
        options=WriterOptions(max_bytes=max_bytes, is_synced=True),
    )
    for changes in transactions:
        rows = transaction(vclock.lsn(1) + 1, changes)
        vclock = vclock.with_lsn(1, vclock.lsn(1) + len(changes))
        writer.write([rows], vclock)
        writer.sync()
    if close:
        writer.close()
    else:
        writer.abandon()
    forget_end(folder)
    return vclock


def forget_end(folder: Path) -> None:
    """Remove the end mark, as a copy of the logs alone does."""
    (folder / END_MARK_NAME).unlink(missing_ok=True)


def write_snapshot(
    folder: Path, tuples: dict[int, list[list[Any]]], vclock: VClock | None = None
) -> Path:
    """Write a snapshot of spaces given as space id to tuples."""
    writer = SnapshotWriter(folder, vclock or VClock(), INSTANCE, timestamp=START)
    for space_id, values in sorted(tuples.items()):
        writer.write(space_id, map(pack, values))
    return writer.finish()


ORDERS: list[list[tuple[int, bytes]]] = [
    [insert(280, SPACE_ROW)],
    [insert(512, [1, "apple"])],
    [insert(512, [2, "pear"]), insert(512, [3, "plum"]), delete(512, [1])],
    [update(512, [2], [["=", 2, "quince"]])],
]
"""Six rows in four transactions: lsn 1 defines space 512, "orders"; 3 to 5 are one transaction."""
