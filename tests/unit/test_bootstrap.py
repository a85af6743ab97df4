"""store/schema/bootstrap.msgpack: the rows of a fresh store.

The file is arrays [space id, tuple], MsgPack, one behind the other, in the order of the snapshot
that a fresh Tarantool 2.6.0 writes, each tuple in its exact bytes. Two of them name the replica set
and the instance of that Tarantool; a store puts its own there.
"""

from __future__ import annotations

from pathlib import Path

from samples import blocks, sample

from logweir.wal.columns import RowColumns
from logweir.wal.mp import encode_uint, skip, unpack, unpack_at

FILE = Path(__file__).resolve().parents[2] / "store" / "schema" / "bootstrap.msgpack"


def test_it_is_the_fresh_snapshot() -> None:
    """The file is made of the snapshot's rows, byte for byte."""
    snap = sample("01-fresh").file("00000000000000000000.snap")
    ((_, data),) = blocks(snap.path)
    columns = RowColumns.scan(data)
    made = b""
    for i in range(len(columns)):
        made += b"\x92" + encode_uint(columns.space_id[i]) + (columns.tuple_bytes(i) or b"")
    assert FILE.read_bytes() == made
    assert len(columns) == 513


def test_rows_by_space() -> None:
    """It holds the system spaces' rows, and nothing else."""
    data = FILE.read_bytes()
    counts: dict[int, int] = {}
    at = 0
    while at < len(data):
        assert skip(data, at) <= len(data)
        (space_id, tuple_), at = unpack_at(data, at)
        counts[space_id] = counts.get(space_id, 0) + 1
        assert isinstance(tuple_, list)
    assert counts == {272: 3, 276: 277, 280: 25, 288: 53, 296: 67, 304: 5, 312: 82, 320: 1}
    spaces = sample("01-fresh").spaces
    assert {space_id: len(tuples) for space_id, tuples in spaces.items() if tuples} == counts


def test_what_a_store_replaces() -> None:
    """The UUIDs stand in the third row's key "cluster" and in the one row of `_cluster`."""
    summary = sample("01-fresh").summary
    data = FILE.read_bytes()
    first = unpack(data[: skip(data)])
    assert first == [272, ["cluster", summary["cluster"]]]
    assert data.count(summary["cluster"].encode()) == 1
    assert data.count(summary["uuid"].encode()) == 1
