"""Rows of a DataFrame → blocks in staged files, and what a commit makes of these.

A task writes one *part*: blocks as in a log, no header and no EOF marker, so parts can be put one
behind the other. Nothing of it is visible: parts stand in a folder ``.logweir-stage-…`` inside the
target until the commit.

=============  ====================================================================================
column         in a part
=============  ====================================================================================
type           INSERT where there is no such column
space_id,      made into the body that such a request has; or `body`, which is taken as it is
index_base,
key, tuple,
ops
ts             of the row; the time of the job where there is no such column
flags, tsn     bit 0 of `flags` ends a transaction; each row is one where there is no such column
replica_id,    kept (`positions=keep`, where both are there), or given anew at the commit (`new`);
lsn            a snapshot has none
group_id       1: replica-local
=============  ====================================================================================

The other columns of the format are passed over, and a column that is none is refused.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from logweir.errors import ConfigError, DecodeError
from logweir.limits import BLOCK_TARGET_BYTES, VCLOCK_COMPONENTS
from logweir.pipeline.columns import COLUMNS
from logweir.wal import kernel
from logweir.wal.block import encode_block
from logweir.wal.columns import encode_columns
from logweir.wal.filesystem import OS, explaining, give_up
from logweir.wal.mp import encode_uint
from logweir.wal.snapshot import insert_prefix
from logweir.wal.xrow import FLAG_COMMIT, RowType

if TYPE_CHECKING:
    import pyarrow as pa

USER_SPACES: Final = 512
"""The first id of a space that is not the system's."""

_HEADER: Final = ("type", "replica_id", "lsn", "tsn", "flags", "group_id")
_USED: Final = (*_HEADER, "ts", "space_id", "index_base", "key", "tuple", "ops", "body")


@dataclass(frozen=True, slots=True)
class SinkLayout:
    """What parts are made of. `kind`: `xlog` or `snap`; `keeps`: lsn and replica id of the rows;
    `timestamp`: of rows that have none, seconds since the epoch; `compress_level`: of zstd."""

    kind: str
    keeps: bool
    timestamp: float
    compress_level: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A staged file. `first`, `last`: lsn per replica id; `spaces`: lowest and highest space id,
    those of users all counted as `USER_SPACES`."""

    path: str
    rows: int
    size: int
    first: Mapping[int, int]
    last: Mapping[int, int]
    spaces: tuple[int, int]


def check_sink_columns(types: Mapping[str, str]) -> None:
    """Refuse what cannot be written. `types`: of the DataFrame, by name. Raises `ConfigError`."""
    for name, given in types.items():
        if name not in COLUMNS:
            raise ConfigError(
                f"column {name}",
                "is no column of the format logweir.",
                origin="DataFrame",
                hint="select and rename: " + ", ".join(_USED),
            )
        if name in _USED and given.lower() != COLUMNS[name].lower():
            raise ConfigError(
                f"column {name}",
                f"is {given}, and has to be {COLUMNS[name]}",
                origin="DataFrame",
                hint="cast it",
            )
    if "body" not in types and "space_id" not in types:
        raise ConfigError(
            "columns", "neither `body` nor `space_id` with its parts is there", origin="DataFrame"
        )


@dataclass(slots=True)
class _Rows:
    """Rows that wait for their block. Numbers per header column, and bodies."""

    header: dict[str, np.ndarray[Any, np.dtype[np.uint64]]]
    bodies: list[bytes] = field(default_factory=list)


class PartWriter:
    """Writes one part. `path`: the file, in a folder that is there. Call `add`, then `finish`.

    Raises `DecodeError` for a row that no log can hold, `WalError` if writing fails.
    """

    def __init__(self, path: Path, layout: SinkLayout) -> None:
        self._path = path
        self._layout = layout
        self._rows = _Rows({name: np.empty(0, np.uint64) for name in (*_HEADER, "bits")})
        self._count = 0
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._spaces = (2**63, -1)
        with explaining(path):
            self._file = OS.create(path)

    def add(self, batch: pa.RecordBatch) -> None:
        """The rows of one batch."""
        if not batch.num_rows:
            return
        columns = {
            name: batch.column(at) for at, name in enumerate(batch.schema.names) if name in _USED
        }
        added = self._header(columns, batch.num_rows)
        bodies = self._bodies(columns, added["type"].tolist())
        for name, values in added.items():
            self._rows.header[name] = np.concatenate([self._rows.header[name], values])
        self._rows.bodies += bodies
        self._count += batch.num_rows
        self._flush(whole=False)

    def finish(self) -> Part:
        """Write what is left, sync and close."""
        self._flush(whole=True)
        with explaining(self._path):
            self._file.sync()
            size = self._file.size()
            self._file.close()
        return Part(str(self._path), self._count, size, self._first, self._last, self._spaces)

    def abandon(self) -> None:
        """Close and remove the file."""
        give_up(self._file)
        os.unlink(self._path)

    # --- columns ----------------------------------------------------------------------------------

    def _header(
        self, columns: Mapping[str, pa.Array], count: int
    ) -> dict[str, np.ndarray[Any, np.dtype[np.uint64]]]:
        layout = self._layout
        number = np.arange(self._count + 1, self._count + count + 1, dtype=np.uint64)
        zero = np.zeros(count, np.uint64)

        def given(name: str, default: np.ndarray[Any, np.dtype[np.uint64]]) -> Any:
            if name not in columns:
                return default
            column = columns[name]
            if column.null_count:
                raise DecodeError(f"a row has no {name}, which the log needs", offset=self._count)
            return column.to_numpy(zero_copy_only=False).astype(np.uint64)

        flags = given("flags", zero + np.uint64(FLAG_COMMIT))
        header = {
            "type": given("type", zero + np.uint64(RowType.INSERT)),
            "group_id": given("group_id", zero),
            "flags": flags & np.uint64(FLAG_COMMIT),
        }
        if layout.kind == "snap":
            header |= {"replica_id": zero, "lsn": zero, "tsn": zero}
            header["flags"] = zero + np.uint64(FLAG_COMMIT)
        elif layout.keeps:
            header |= {name: given(name, zero) for name in ("replica_id", "lsn")}
            header["tsn"] = given("tsn", header["lsn"])
        else:
            ended = np.concatenate([self._ended(), header["flags"][:-1]])
            begins = np.where(ended != 0, number, np.uint64(0))
            begins[0] = begins[0] or self._rows.header["tsn"][-1]
            header |= {"replica_id": zero, "lsn": number}
            header["tsn"] = np.maximum.accumulate(begins)
        if "ts" in columns:
            seconds = columns["ts"].to_numpy(zero_copy_only=False).astype(np.float64)
            header["bits"] = seconds.view(np.uint64)
        else:
            (bits,) = struct.unpack("Q", struct.pack("d", layout.timestamp))
            header["bits"] = zero + np.uint64(bits)
        return header

    def _ended(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Whether the row before these ended its transaction."""
        waiting = self._rows.header["flags"]
        return waiting[-1:] if len(waiting) else np.ones(1, np.uint64)

    def _bodies(self, columns: Mapping[str, pa.Array], types: list[int]) -> list[bytes]:
        count = len(types)
        if "body" in columns:
            bodies = [body or b"" for body in columns["body"].to_pylist()]
            return bodies
        spaces = columns["space_id"].to_pylist()
        parts = [
            columns[name].to_pylist() if name in columns else [None] * count
            for name in ("index_base", "key", "tuple", "ops")
        ]
        self._note_spaces(spaces)
        bodies = []
        for number, row in enumerate(zip(types, spaces, *parts, strict=True)):
            try:
                bodies.append(_body(row, snap=self._layout.kind == "snap"))
            except DecodeError as error:
                raise DecodeError(
                    f"row {self._count + number} of {self._path.name}: {error.reason}",
                    hint="the columns key, tuple and ops hold MsgPack arrays",
                ) from None
        return bodies

    def _note_spaces(self, spaces: Sequence[int | None]) -> None:
        # Of user spaces a Tarantool writes one after the other, in no order (2.6.0, observed).
        known = [min(space, USER_SPACES) for space in spaces if space is not None]
        if self._layout.kind == "snap" and known:
            ordered = [self._spaces[1], *known]
            if ordered != sorted(ordered):
                raise DecodeError(
                    "the rows of a snapshot do not begin with the system spaces by their ids",
                    hint="sort by space_id and key",
                )
        if known:
            low, high = self._spaces
            self._spaces = (min(low, *known), max(high, *known))

    # --- blocks -----------------------------------------------------------------------------------

    def _flush(self, *, whole: bool) -> None:
        """Write the blocks that are full, or all; a block ends with a transaction."""
        bodies, header = self._rows.bodies, self._rows.header
        if not bodies:
            return
        ends = np.flatnonzero(header["flags"] & np.uint64(FLAG_COMMIT)) + 1
        if whole and (not len(ends) or ends[-1] != len(bodies)):
            raise DecodeError(
                f"{self._path.name} ends inside a transaction",
                hint="keep the rows of a transaction in one partition, in their order",
            )
        sizes = np.fromiter(accumulate(map(len, bodies)), np.int64, len(bodies))
        done = 0
        for end in ends.tolist():
            size = int(sizes[end - 1]) - (int(sizes[done - 1]) if done else 0)
            if size >= BLOCK_TARGET_BYTES or (whole and end == len(bodies)):
                self._block(done, end)
                done = end
        if done:
            self._rows = _Rows(
                {name: values[done:] for name, values in header.items()}, bodies[done:]
            )

    def _block(self, first: int, last: int) -> None:
        chosen = {
            name: array("Q", values[first:last].tobytes())
            for name, values in self._rows.header.items()
        }
        bodies = self._rows.bodies[first:last]
        bounds = array("Q", accumulate(map(len, bodies), initial=0))
        rows = encode_columns(
            type=chosen["type"],
            replica_id=chosen["replica_id"],
            lsn=chosen["lsn"],
            timestamp_bits=chosen["bits"],
            tsn=chosen["tsn"],
            flags=chosen["flags"],
            group_id=chosen["group_id"],
            source=b"".join(bodies),
            starts=bounds[:-1],
            stops=bounds[1:],
        )
        if self._layout.keeps:
            self._note_lsns(chosen)
        parts = encode_block(rows, level=self._layout.compress_level, offset=self._file.size())
        with explaining(self._path):
            self._file.write(parts)

    def _note_lsns(self, chosen: Mapping[str, array[int]]) -> None:
        for replica_id, lsn in zip(chosen["replica_id"], chosen["lsn"], strict=True):
            if replica_id >= VCLOCK_COMPONENTS or lsn <= self._last.get(replica_id, 0):
                raise DecodeError(
                    f"replica {replica_id} lsn {lsn} of {self._path.name} does not come after "
                    f"lsn {self._last.get(replica_id, 0)}",
                    hint="sort by replica_id and lsn, or give positions=new",
                )
            self._first.setdefault(replica_id, lsn)
            self._last[replica_id] = lsn


def _body(row: tuple[Any, ...], *, snap: bool) -> bytes:
    """The body of one row: type, space, index base, key, tuple, operations."""
    kind, space, base, key, tuple_, ops = row
    if kind == RowType.NOP:
        return b""
    if space is None:
        raise DecodeError("it has no space_id")
    if snap:
        if kind != RowType.INSERT:
            raise DecodeError(f"a snapshot takes type 2 (insert), not {kind}")
        return insert_prefix(space) + _whole("tuple", tuple_)
    items = [b"\x10" + encode_uint(space)]
    if base:
        items.append(b"\x15" + encode_uint(base))
    if kind in (RowType.INSERT, RowType.REPLACE):
        items.append(b"\x21" + _whole("tuple", tuple_))
    elif kind == RowType.DELETE:
        items.append(b"\x20" + _whole("key", key))
    elif kind == RowType.UPDATE:
        items += [b"\x20" + _whole("key", key), b"\x21" + _whole("ops", ops)]
    elif kind == RowType.UPSERT:
        items += [b"\x21" + _whole("tuple", tuple_), b"\x28" + _whole("ops", ops)]
    else:
        raise DecodeError(f"type {kind} cannot be made from columns", hint="give the column body")
    return bytes((0x80 + len(items),)) + b"".join(items)


def _whole(name: str, value: bytes | None) -> bytes:
    if value is None:
        raise DecodeError(f"it has no {name}")
    if not value or not (0x90 <= value[0] < 0xA0 or value[0] in (0xDC, 0xDD)):
        raise DecodeError(f"its {name} is no MsgPack array")
    if kernel.skip(value, 0) != len(value):
        raise DecodeError(f"its {name} is not one whole MsgPack value")
    return value
