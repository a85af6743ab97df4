"""An annotated dump of a log file or snapshot: every byte with what it means.

`annotate_file` yields entries in the order of the file: the lines of the text header, then per
block the parts of the 19-byte header and of every row's header and body maps, at last the EOF
marker. Rows of a compressed block are shown at their place in the unpacked data, marked by a ``+``.
Damaged stretches are shown as such, and reading goes on behind them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from logweir.wal.block import FIXHEADER_BYTES
from logweir.wal.damage import Damage
from logweir.wal.filesystem import OS, FileSystem, ReadFile
from logweir.wal.mp import decode_uint, skip
from logweir.wal.reader import Block, WalReader
from logweir.wal.render import value_json
from logweir.wal.spacenames import SpaceNames
from logweir.wal.xrow import Key, RowType

_BYTES_PER_LINE: Final = 12
_SHOWN_BYTES: Final = 48  # of one value, unless all are asked for
_READ_BYTES: Final = 4096  # of a damaged stretch or a compressed payload


@dataclass(frozen=True, slots=True)
class Entry:
    """Some bytes and their meaning. `offset`: in the file, or in the unpacked block where `packed`;
    `size`: how many bytes it stands for, of which `data` may hold the first only; `depth`: how far
    to indent the meaning."""

    offset: int
    data: bytes
    size: int
    meaning: str
    depth: int = 0
    packed: bool = False


def format_entry(entry: Entry, *, whole: bool = False) -> list[str]:
    """One entry as lines of text: offset, bytes in hexadecimal, meaning. `whole`: all its bytes."""
    shown = entry.data if whole else entry.data[:_SHOWN_BYTES]
    lines = []
    for at in range(0, max(len(shown), 1), _BYTES_PER_LINE):
        piece = shown[at : at + _BYTES_PER_LINE].hex(" ")
        place = f"{'+' if entry.packed else ''}{entry.offset + at:08x}"
        text = "  " * entry.depth + entry.meaning if at == 0 else ""
        lines.append(f"{place:>9}  {piece:<{3 * _BYTES_PER_LINE - 1}}  {text}".rstrip())
    if len(shown) < entry.size:
        lines.append(f"{'':>9}  … {entry.size - len(shown)} bytes more")
    return lines


def annotate_file(
    path: Path,
    *,
    names: SpaceNames,
    wanted: Callable[[Block], list[int] | None] | None = None,
    filesystem: FileSystem = OS,
) -> Iterator[Entry | Damage]:
    """The entries of one file, and the damage in it, in the order of the file.

    `names`: of spaces, learns new ones; `wanted`: picks rows of a block by their numbers; blocks
    without any are left out, None ends the dump. Raises as `WalReader` does.
    """
    with WalReader(path, filesystem=filesystem, skip_damage=True) as reader:
        raw = filesystem.open_read(path)
        try:
            at = 0
            for line in raw.read(reader.first_block, 0).split(b"\n")[:-1]:
                text = line.decode("utf-8", "backslashreplace")
                meaning = f"header: {text}" if text else "end of the header"
                yield Entry(at, line + b"\n", len(line) + 1, meaning)
                at += len(line) + 1
            for item in reader.blocks():
                if isinstance(item, Damage):
                    yield item
                    if item.size and item.salvage == (0, 0):
                        data = raw.read(min(item.size, _READ_BYTES), item.offset)
                        yield Entry(item.offset, data, item.size, f"damage: {item.kind.value}")
                    continue
                names.learn(item.columns)
                rows = list(range(len(item.columns))) if wanted is None else wanted(item)
                if rows is None:
                    return
                if rows:
                    yield from _block(raw, item, rows, names)
            if reader.end is not None and reader.end in ("clean", "trailing_bytes"):
                end = reader.end_offset
                yield Entry(end, raw.read(4, end), 4, "EOF marker")
        finally:
            raw.close()


def _block(raw: ReadFile, block: Block, rows: list[int], names: SpaceNames) -> Iterator[Entry]:
    head = raw.read(FIXHEADER_BYTES, block.offset)
    kind, stored = block.header.kind, block.header.stored_bytes
    what = {"plain": "block, rows as they are", "zstd": "block, rows in one zstd frame"}[kind]
    yield Entry(block.offset, head[:4], 4, what)
    at = 4
    meanings = (
        f"length: {stored} bytes",
        f"unsynced before it: {block.header.unsynced_bytes} bytes",
        f"checksum: {block.header.crc:08x}, matches",
    )
    for meaning in meanings:
        read = decode_uint(head, at)
        assert read is not None  # the reader took this header
        yield Entry(block.offset + at, head[at : read[1]], read[1] - at, meaning, 1)
        at = read[1]
    if at < FIXHEADER_BYTES:
        yield Entry(block.offset + at, head[at:], FIXHEADER_BYTES - at, "padding", 1)
    packed = kind == "zstd"
    start = block.offset + FIXHEADER_BYTES
    if packed:
        data = raw.read(min(stored, _READ_BYTES), start)
        yield Entry(start, data, stored, f"zstd frame, unpacks to {len(block.data)} bytes:", 1)
    for number in rows:
        for entry in _row(block, number, names):
            offset = entry.offset if packed else entry.offset + start
            yield replace(entry, offset=offset, packed=packed)


_HEADER_KEYS: Final = {
    Key.TYPE: "type",
    Key.SYNC: "sync",
    Key.REPLICA_ID: "replica id",
    Key.LSN: "lsn",
    Key.TIMESTAMP: "timestamp",
    Key.GROUP_ID: "group id",
    Key.TSN: "lsn minus transaction id",
    Key.FLAGS: "flags",
}
_BODY_KEYS: Final = {
    Key.SPACE_ID: "space id",
    Key.INDEX_ID: "index id",
    Key.INDEX_BASE: "index base",
    Key.KEY: "key",
    Key.TUPLE: "tuple",
    Key.OPS: "operations",
}


def _row(block: Block, number: int, names: SpaceNames) -> Iterator[Entry]:
    columns = block.columns
    data = memoryview(columns.data)
    start, body = columns.row_offset[number], columns.body_offset[number]
    row = columns.row(number)

    def header_value(key: int, at: int, end: int) -> str:
        if key == Key.TYPE:
            return f"{row.type} {row.type_name}" if row.type_name != str(row.type) else "unknown"
        if key == Key.TIMESTAMP:
            (seconds,) = struct.unpack_from(">d", data, at + 1)
            return f"{seconds!r} = {_time(seconds)}"
        if key == Key.FLAGS and row.flags & 1:
            return f"{row.flags}, COMMIT: last row of the transaction"
        if key == Key.TSN:
            return f"{value_json(bytes(data[at:end]))}, so transaction {row.tsn}"
        return value_json(bytes(data[at:end]))

    def body_value(key: int, at: int, end: int) -> str:
        text = value_json(bytes(data[at:end]))
        if key == Key.SPACE_ID and row.space_id is not None and row.space_id in names:
            return f"{text} {names[row.space_id]}"
        return text

    title = f"row {number + 1} of {len(columns)}, header"
    yield from _map(data, start, title, _HEADER_KEYS, header_value)
    if body < columns.end_offset[number]:
        keys = dict(_BODY_KEYS)
        if row.type == RowType.UPDATE:
            keys[Key.TUPLE] = "operations"
        yield from _map(data, body, "body", keys, body_value)


def _map(
    data: memoryview,
    at: int,
    title: str,
    keys: dict[Key, str],
    show: Callable[[int, int, int], str],
) -> Iterator[Entry]:
    """The entries of a header or body map: its first bytes, then each key with its value."""
    first = data[at]
    head = 1 if first < 0xA0 else 3 if first == 0xDE else 5
    count = first & 0x0F if head == 1 else int.from_bytes(data[at + 1 : at + head], "big")
    yield Entry(at, bytes(data[at : at + head]), head, f"{title}: map of {count}", 1)
    at += head
    for _ in range(count):
        key = decode_uint(data, at)
        assert key is not None  # the reader took this row
        end = skip(data, key[1])
        name = keys.get(key[0], f"key {key[0]:02x}")  # type: ignore[call-overload]
        array = _array_head(data, key[1])
        if array is None or key[0] not in (Key.KEY, Key.TUPLE, Key.OPS):
            text = f"{name}: {show(key[0], key[1], end)}"
            yield Entry(at, bytes(data[at:end]), end - at, text, 2)
        else:
            items, inside = array
            yield Entry(at, bytes(data[at:inside]), inside - at, f"{name}: array of {items}", 2)
            for _ in range(items):
                item_end = skip(data, inside)
                item = bytes(data[inside:item_end])
                yield Entry(inside, item, len(item), _short(value_json(item)), 3)
                inside = item_end
        at = end


def _array_head(data: memoryview, at: int) -> tuple[int, int] | None:
    """How many items the array at `at` has and where the first begins; None for other values."""
    first = data[at]
    if 0x90 <= first < 0xA0:
        return first & 0x0F, at + 1
    if first not in (0xDC, 0xDD):
        return None
    end = at + (3 if first == 0xDC else 5)
    return int.from_bytes(data[at + 1 : end], "big"), end


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return "no date"
