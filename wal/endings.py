"""What an unreadable place in a log file is: an unfinished write, or corruption.

How an ending is told from corruption (a block's length is covered by no checksum, so one flipped
bit can make the rest of a file look like an unfinished write):

* *torn tail*: the last block passes the file's end, **and** nothing valid follows it, **and** the
  bytes that are there do not match its checksum, **and** the file does not end in the EOF marker.
* *zero tail*: only zeros up to the file's end.
* *unsynced tail*: a disk may keep the 512-byte pieces of what was never synced in any order. Some
  piece is missing (zeros), no EOF marker follows (it is written only behind what was synced), and
  every valid block behind it was not synced either. logweir's own files say which these are: the
  field for the checksum of the block before, which every reader ignores, holds the distance
  back to the end of what was synced. So that zeros mean "missing", its writer packs rows that
  would leave a piece with zeros only. What is written ahead (`wal.filler`) is zeros on purpose:
  a piece that never arrived then holds them still, or the filler's head in front of them. The
  file's data ends at its last whole filler, which is none of the *valid blocks*.
* anything else is corruption; reading can go on at the next valid block, or, where the length field
  alone is wrong, with the same block (`Damage.salvage`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from logweir.wal.block import (
    EOF_MARKER,
    FIXHEADER_BYTES,
    MAGIC_PLAIN,
    MAGIC_ZSTD,
    BlockKind,
    FixHeader,
    encode_fixheader,
)
from logweir.wal.blockfile import Block, BlockFile, Problem
from logweir.wal.crc32c import checksum
from logweir.wal.damage import Damage, DamageKind
from logweir.wal.filler import FILLER_BYTES, encode_filler, may_end_filler
from logweir.wal.mp import decode_uint, encode_uint

_SECTOR_BYTES: Final = 512
_ZSTD_FRAME: Final = bytes.fromhex("28b52ffd")


def classify(
    file: BlockFile, at: int, problem: Problem, *, is_synced: bool
) -> tuple[Damage, int | None]:
    """What the problem at `at` is, and where reading can go on (None: nowhere).

    `is_synced`: whether the file's writer says that it synced before it acknowledged.
    """
    size = file.size
    header = problem.header
    if not file.has_nonzero(at, size):
        return _tail(
            file, DamageKind.ZERO_TAIL, at, f"only zeros follow, {size - at} bytes", is_synced
        ), None
    following = file.find_block(at + 1)
    end = _data_end(file, at)
    resume = end if following is None else following
    stop = size if resume is None else resume
    if _only_length_is_wrong(file, at, stop, problem):
        start = at + FIXHEADER_BYTES
        says = "cannot be read" if header is None else f"says {header.stored_bytes}"
        text = f"block length {says}, but its {stop - start} bytes match its checksum."
        damage = _damage(file, DamageKind.LENGTH, at, stop - at, text)
        return replace(damage, salvage=(start, stop)), resume
    if resume is None and _is_cut(file, at, problem):
        return _tail(file, DamageKind.TORN_TAIL, at, problem.message, is_synced), None
    if _is_unsynced(file, at, following, end):
        text = "pieces of the last write, which was never synced, are missing"
        return _tail(file, DamageKind.UNSYNCED_TAIL, at, text, is_synced), None
    text = problem.message
    if problem.kind is DamageKind.LENGTH:
        text += f", but valid data follows at byte {stop}: the length is damaged"
    return _damage(file, problem.kind, at, stop - at, text + "."), resume


def _only_length_is_wrong(file: BlockFile, at: int, stop: int, problem: Problem) -> bool:
    """Whether what is there up to `stop` has the checksum that the block's header gives.

    A wrong bit in the length can also change where the header's other fields seem to begin.
    """
    if problem.kind not in (DamageKind.LENGTH, DamageKind.CHECKSUM, DamageKind.BLOCK_HEADER):
        return False
    start = at + FIXHEADER_BYTES
    if not 0 < stop - start <= file.limit_bytes:
        return False
    if stop - start >= 8 and may_end_filler(bytes(file.bytes_at(start, 8))):
        return False  # what is left of a filler, behind a part of another header
    if _has_old_head(file, at, stop):
        return False  # or the reverse
    crc = checksum(file.bytes_at(start, stop - start))
    if problem.header is not None and problem.header.crc == crc:
        return True
    stored = encode_uint(crc)
    return len(stored) == 5 and stored in bytes(file.bytes_at(at + 5, FIXHEADER_BYTES - 5))


def _is_cut(file: BlockFile, at: int, problem: Problem) -> bool:
    """Whether the last block merely ends too early (nothing valid is known to follow)."""
    if problem.kind is DamageKind.LENGTH:
        return True
    head = bytes(file.bytes_at(at, FIXHEADER_BYTES))
    if len(head) >= FIXHEADER_BYTES:
        return False
    return any(magic.startswith(head[:4]) for magic in (MAGIC_PLAIN, MAGIC_ZSTD, EOF_MARKER))


def _data_end(file: BlockFile, at: int) -> int | None:
    """Where behind `at` the EOF marker or the last filler says that no block follows."""
    size = file.size
    if bytes(file.bytes_at(max(size - 4, 0), 4)) == EOF_MARKER and size - 4 > at:
        return size - 4
    _, filler = file.ending()
    return filler if filler is not None and filler > at else None


def _is_unsynced(file: BlockFile, at: int, following: int | None, end: int | None) -> bool:
    """Whether a never synced write begins at or before `at` and pieces of it are missing."""
    if end is not None and not file.is_filler_at(end):
        return False
    stop = following if following is not None else end if end is not None else file.size
    is_last = following is None and end is None
    if not _has_old_head(file, at, stop) and not _has_missing_piece(file, at, stop, last=is_last):
        return False
    while following is not None:
        found = file.block_at(following)
        if isinstance(found, Block):
            back = found.header.unsynced_bytes
            if back == 0 or following - back > at:
                return False
            following = found.end
        if following >= file.size or not isinstance(file.block_at(following), Block):
            following = file.find_block(following + 1)
    return True


def _has_missing_piece(file: BlockFile, at: int, stop: int, *, last: bool) -> bool:
    """Whether a sector behind `at` never arrived: zeros from `at`, or from its begin, on.

    A sector that holds something behind `stop` did arrive. `last`: `stop` is the file's end.
    """
    start = at
    while start < stop:
        end = (start // _SECTOR_BYTES + 1) * _SECTOR_BYTES
        if end > stop and not last:
            return False
        begin = at + FILLER_BYTES if _is_rest_of_head(file, at, start) else start
        if begin < stop and not file.has_nonzero(begin, min(end, stop)):
            return True
        start = end
    return False


def _is_rest_of_head(file: BlockFile, at: int, start: int) -> bool:
    """Whether the sector that begins at `start` may begin with the end of a filler from `at` on."""
    end = at + FILLER_BYTES
    return at < start < end and may_end_filler(bytes(file.bytes_at(start, end - start)))


def _has_old_head(file: BlockFile, at: int, stop: int) -> bool:
    """Whether the first sector of what begins at `at` may be as it was when a filler began there,
    and those behind it, up to `stop`, hold what arrived of a write over it.

    A wrong bit in the head of a block can look so, too; but then the rest of it is there.
    """
    if file.is_filler_at(at):
        return True
    count = _SECTOR_BYTES - at % _SECTOR_BYTES
    head = bytes(file.bytes_at(at, FILLER_BYTES))
    old = head[:count]
    if count >= FILLER_BYTES or not old.startswith(MAGIC_ZSTD):
        return False
    heads = _heads(file, at, stop)
    bits = [_bits_apart(head, right) for right in heads]
    if bits and min(bits) <= 1:
        return False
    length = encode_uint(max(stop - at - FIXHEADER_BYTES, 0))
    arrived = [right for right in heads if right[count:] == head[count:FIXHEADER_BYTES]]
    is_right = (arrived[0] if arrived else MAGIC_ZSTD + length).startswith(head[: 4 + len(length)])
    room = max(file.size - at - FILLER_BYTES, 0)
    if stop < file.size and encode_filler(room).startswith(old):
        return not is_right  # it went as far as the filler that is there now
    found = decode_uint(old, 4)
    if found is not None:
        zeros = found[0] - FILLER_BYTES + FIXHEADER_BYTES
        if zeros < 0 or not encode_filler(zeros).startswith(old):
            return False
        if count > found[1] + 2:  # a part of its checksum: it is no other block's
            return bool(arrived) or not is_right
    # One that the write went past: the block is whole, or the file ends where a sector does.
    is_cut = stop == file.size and stop % _SECTOR_BYTES == 0
    return not is_right and (bool(arrived) or is_cut)


def _bits_apart(one: bytes, other: bytes) -> int:
    """How many bits differ, as far as both go."""
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=False))


def _heads(file: BlockFile, at: int, stop: int) -> list[bytes]:
    """The header of one block from `at` to `stop`, for each width of what it says was not synced:
    that is taken from what is there."""
    start = at + FIXHEADER_BYTES
    if not 0 < stop - start <= file.limit_bytes:
        return []
    head = bytes(file.bytes_at(at, FIXHEADER_BYTES))
    payload = file.bytes_at(start, stop - start)
    first = 4 + len(encode_uint(stop - start))
    kind: BlockKind = "zstd" if payload[:4] == _ZSTD_FRAME else "plain"
    found = []
    for unsynced in (0, 0xFF, 0xFFFF, 2**32 - 1):
        right = encode_fixheader(kind, stop - start, checksum(payload), unsynced)
        last = first + len(encode_uint(unsynced))
        right[first:last] = head[first:last]
        found.append(bytes(right))
    return found


def salvaged(file: BlockFile, damage: Damage) -> Block | None:
    """The block whose length field alone is wrong."""
    start, end = damage.salvage
    if end <= start:
        return None
    is_plain = bytes(file.bytes_at(damage.offset, 4)) == MAGIC_PLAIN
    payload = file.bytes_at(start, end - start)
    right = FixHeader("plain" if is_plain else "zstd", end - start, checksum(payload))
    found = file.open_block(damage.offset, right, payload)
    return found if isinstance(found, Block) else None


def trailing(file: BlockFile, at: int, following: int | None) -> Damage:
    """The bytes behind the EOF marker at `at`. `following`: where a valid block is among them."""
    count = (file.size if following is None else following) - at - 4
    text = f"{file.size - at - 4} bytes follow the EOF marker"
    if following is not None:
        text += f", a valid block at byte {following} among them"
    return Damage(
        DamageKind.TRAILING_BYTES,
        file.name,
        at + 4,
        count,
        text + ".",
        hint="something else wrote to this file; its rows up to here are whole, "
        "`logweir repair DIR --to NEW` keeps them",
        rows_lost=0 if following is None else None,
    )


def _tail(file: BlockFile, kind: DamageKind, at: int, text: str, is_synced: bool) -> Damage:
    count = file.size - at
    hint = "the rows before it are whole; nothing that was acknowledged is missing"
    if not is_synced:
        hint = (
            f"whole up to byte {at}; an unfinished write of {count} bytes after it, which may "
            "have been acknowledged: the log does not say that its writer synced first"
        )
    return Damage(kind, file.name, at, count, f"{text}: an unfinished write.", hint=hint)


def _damage(file: BlockFile, kind: DamageKind, at: int, size: int, text: str) -> Damage:
    return Damage(
        kind,
        file.name,
        at,
        size,
        text,
        hint="this is corruption, not an unfinished write: restore from a copy, or keep what "
        "is whole with `logweir repair DIR --to NEW`",
    )
