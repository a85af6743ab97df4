"""Any space as a topic: `space:NAME`, and `log` for the whole log. Synchronous.

A view takes no bundles. What is a message of it says docs/tank.md; its time is that of the row, and
it has no key where that has more than 255 bytes. Bundles are made when they are asked for, always
sparse, never compressed, of at most `BUNDLE_MESSAGES` messages.

The log is scanned once when a view is first used (`View.open`, which may take long and can run in
another thread), then row by row as it grows. On the way places are noted: from the one before a
number a reader finds it after at most `PLACE_BYTES` of log and a block. One read makes at most
about `READ_BYTES` of bundles, whatever more was asked for: making them takes time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from logweir.errors import LogweirError, PositionUnavailable
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.topic.partition import Chunk, ChunkMaker, Extent
from logweir.store import Log
from logweir.store.commit.applying import APPLIED
from logweir.store.engine.engine import key_of
from logweir.wal.columns import RowColumns
from logweir.wal.directory import scan_directory
from logweir.wal.follow import Follower
from logweir.wal.reader import Block
from logweir.wal.render import row_line
from logweir.wal.vclock import VClock

SPACE_PREFIX: Final = "space:"
LOG_VIEW: Final = "log"
BUNDLE_MESSAGES: Final = 255
BUNDLE_BYTES: Final = 64 * 1024
PLACE_BYTES: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024
_KEY_BYTES: Final = 255
_STEP_LIMIT: Final = 2**32

Content = Literal["json", "msgpack"]


def is_view(name: str) -> bool:
    """Whether a topic's name is that of a view."""
    return name == LOG_VIEW or name.startswith(SPACE_PREFIX)


@dataclass(frozen=True, slots=True)
class _Place:
    """Before a block: `number`: of the first row there that is in the view; `begin`: the file, the
    byte in it, and the log's position there."""

    number: int
    begin: tuple[Path, int, VClock]


class View:
    """The rows of one space, or of all, as a partition. `space`: its name, "" for the whole log.

    To be opened before anything else; again when `is_ready` has become false. `extent` tells then
    what was there before.
    """

    def __init__(self, log: Log, space: str, content: Content) -> None:
        self._log = log
        self._space = space
        self._content: Content = content
        self._places: list[_Place] = []
        self._first = 0
        self._last = 0
        self._bytes = 0
        self._follower: Follower | None = None
        self._error: LogweirError | None = None
        self._names: dict[int, str] = {}
        self._is_closed = False
        self.is_ready = False
        """Whether everything that the log holds was looked at."""

    def open(self) -> None:
        """Look what there is. In any thread, while nobody else uses the view."""
        self._places.clear()
        self._first = self._last = 0
        try:
            self._follower = self._follow(_oldest(self._log))
            self.grow()
        except LogweirError as error:
            self._error = error
        else:
            self._error = None
            self.is_ready = not self._is_closed
        finally:
            if not self.is_ready and self._follower is not None:
                self._follower.close()

    def close(self) -> None:
        """Close the log file that is being read; end an `open` that runs."""
        self._is_closed = True
        if self.is_ready and self._follower is not None:
            self._follower.close()

    def grow(self) -> bool:
        """Take in what the log has more. Returns whether anything of it is in the view."""
        assert self._follower is not None
        before = self._last
        since = PLACE_BYTES
        for block, start, _, numbers in self._blocks(self._follower):
            if self._is_closed:
                break
            since += len(block.data)
            if not numbers:
                continue
            if since >= PLACE_BYTES:
                assert self._follower.file is not None
                begin = (self._follower.file, block.offset, start)
                self._places.append(_Place(numbers[0], begin))
                since = 0
            self._first = self._first or numbers[0]
            self._last = numbers[-1]
            self._bytes += len(block.data)
        return self._last != before

    def extent(self) -> Extent:
        """What the view holds. Raises why it could not be opened."""
        if self._error is not None:
            raise self._error
        return Extent(self._first, self._last, self._bytes)

    def read(self, start: int, limit_bytes: int) -> Chunk:
        """The rows from number `start` on, as bundles; at least one row."""
        self._names = {space.id: space.name for space in self._log.spaces(system=True)}
        limit_bytes = min(limit_bytes, READ_BYTES)
        if not self.is_ready:
            return Chunk(0, False)
        made = ChunkMaker(limit_bytes)
        try:
            for messages in self._groups(start, limit_bytes):
                data = encode_bundle(messages, sparse=True)
                if not made.add(messages[0].number, data) or made.size_bytes >= limit_bytes:
                    break
        except PositionUnavailable:  # the log lost its oldest rows: it is to be looked at anew
            self.is_ready = False
            if self._follower is not None:
                self._follower.close()
        return made.chunk()

    def _follow(self, after: VClock, place: tuple[Path, int, VClock] | None = None) -> Follower:
        log = self._log
        return Follower(
            log.path,
            after,
            filesystem=log.inner.filesystem,
            durable=lambda: log.inner.durable_end,
            settled=log.inner.settled,
            place=place,
        )

    def _blocks(
        self, follower: Follower
    ) -> Iterator[tuple[Block, VClock, Sequence[int], Sequence[int]]]:
        """Each block with the position before it, and its rows in the view: where they are in it,
        and their numbers."""
        lsns = dict(follower.vclock)
        space = self._log.schema.get(self._space) if self._space else None
        for block in follower.poll():
            start = VClock(lsns)
            numbers = _signatures(block.columns, lsns)
            rows = self._rows(block.columns, -1 if space is None else space.id)
            if len(rows) < len(numbers):
                numbers = [numbers[row] for row in rows]
            yield block, start, rows, numbers

    def _rows(self, columns: RowColumns, wanted: int) -> Sequence[int]:
        """Which rows of a block are in the view. `wanted`: the space's id, -1 if it is gone."""
        kinds, spaces = columns.type.tolist(), columns.space_id.tolist()
        has_all = not self._space or spaces.count(wanted) == len(spaces)
        if has_all and APPLIED.issuperset(kinds):
            return range(len(kinds))
        return [
            row
            for row, (kind, space_id) in enumerate(zip(kinds, spaces, strict=True))
            if kind in APPLIED and (not self._space or space_id == wanted)
        ]

    def _messages(self, start: int) -> Iterator[Message]:
        at = bisect.bisect_right([place.number for place in self._places], start) - 1
        at = max(at, 0)
        while at < len(self._places):
            place = self._places[at]
            at += 1
            passed = 0
            follower = self._follow(place.begin[2], place.begin)
            try:
                for block, _, rows, numbers in self._blocks(follower):
                    for row in range(bisect.bisect_left(numbers, start), len(numbers)):
                        start = numbers[row] + 1
                        yield self._message(block, rows[row], numbers[row])
                    passed = 0 if numbers else passed + len(block.data)
                    following = self._places[at].number if at < len(self._places) else None
                    if following is not None and following >= start and passed > PLACE_BYTES:
                        break  # nothing of the view is between here and the next place
                else:
                    return
            finally:
                follower.close()

    def _groups(self, start: int, limit_bytes: int) -> Iterator[list[Message]]:
        most_bytes = max(1, min(BUNDLE_BYTES, limit_bytes))
        group: list[Message] = []
        size = 0
        for message in self._messages(start):
            if group and (
                size >= most_bytes
                or len(group) >= BUNDLE_MESSAGES
                or message.number - group[0].number >= _STEP_LIMIT
            ):
                yield group
                group, size = [], 0
            group.append(message)
            size += len(message.content) + len(message.key or b"") + 16
        if group:
            yield group

    def _message(self, block: Block, index: int, number: int) -> Message:
        columns = block.columns
        if self._content == "msgpack":
            content = columns.row_bytes(index)
        else:
            content = row_line(block, index, self._names).encode()
        time_ms = max(0, int(columns.timestamp[index] * 1000))
        return Message(number, time_ms, self._key(block, index), content)

    def _key(self, block: Block, index: int) -> bytes | None:
        columns = block.columns
        key = columns.key_bytes(index)
        if key is None:
            data = columns.tuple_bytes(index)
            space = self._log.schema.get(columns.space_id[index])
            if data is not None and space is not None and space.primary is not None:
                try:
                    key = key_of(space.primary, data)
                except (LogweirError, IndexError):
                    key = None
        return key if key is not None and len(key) <= _KEY_BYTES else None


def _signatures(columns: RowColumns, lsns: dict[int, int]) -> Sequence[int]:
    """The signature of the log after each row. `lsns`: by replica id before them, raised here."""
    signature, lsn, who = sum(lsns.values()), columns.lsn.tolist(), columns.replica_id.tolist()
    if not lsn:
        return ()
    if lsn[-1] - lsn[0] == len(lsn) - 1 and who.count(who[0]) == len(who):  # as nearly always
        first = signature + lsn[0] - lsns.get(who[0], 0)
        lsns[who[0]] = lsn[-1]
        return range(first, first + len(lsn))
    found = []
    for replica_id, number in zip(who, lsn, strict=True):
        signature += number - lsns.get(replica_id, 0)
        lsns[replica_id] = number
        found.append(signature)
    return found


def _oldest(log: Log) -> VClock:
    """The position before the oldest row of the log's files, as they are now: others may have
    removed some, of which `Log.oldest_position` does not know."""
    files = scan_directory(log.path, log.inner.filesystem).xlogs
    return files[0].vclock if files else log.vclock
