"""Keys longer than LMDB takes, in pieces that many keys share.

An index's database holds a key of fewer than `PIECE_BYTES` bytes as it is. Of a longer one it
holds the first `PIECE_BYTES` bytes, and as value the number of a *branch*, 8 bytes, big-endian.
What comes behind them is in a second database, `<space id>/<index id>/long`:

======================  ==================================================  ====================
entry                   key                                                 value
======================  ==================================================  ====================
the key ends here       number, then what is left, fewer than 502 bytes     the key's value
the key goes on         number, then the next 502 bytes                     number of a branch
======================  ==================================================  ====================

So whether a key goes on is seen from the length of what is stored, the order of the entries of a
branch is that of the keys, and whatever is done with one key touches one entry for each 502 bytes
of it, however many others begin like it. A branch without entries is removed, with the entry that
names it; its number may come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from logweir.limits import STATE_KEY_BYTES

PIECE_BYTES: Final = STATE_KEY_BYTES - 1
_NUMBER_BYTES: Final = 8
_ROOM_BYTES: Final = PIECE_BYTES - _NUMBER_BYTES

_Pairs = Iterator[tuple[bytes, bytes]]


@dataclass(slots=True)
class LongKeys:
    """The keys of one index that have at least `PIECE_BYTES` bytes, in one transaction.

    `_raw`: LMDB's transaction; `_top`: the database of the index; `_below`: the second one.
    """

    _raw: Any
    _top: Any
    _below: Any

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        handle, stored = self._path(key)[-1]
        value: bytes | None = None
        if len(stored) < PIECE_BYTES:
            value = self._raw.get(stored, db=handle)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under `key`."""
        path = self._path(key)
        handle, stored = path[-1]
        at = PIECE_BYTES + (len(path) - 1) * _ROOM_BYTES
        branch = self._free_branch()
        while len(stored) == PIECE_BYTES:
            self._set(handle, stored, branch)
            handle, stored = self._below, branch + key[at : at + _ROOM_BYTES]
            at += _ROOM_BYTES
            branch = _behind(branch)
        self._set(handle, stored, value)

    def delete(self, key: bytes) -> None:
        """Remove `key`, which is there."""
        for handle, stored in reversed(self._path(key)):
            self._raw.delete(stored, db=handle)
            if handle is self._top or self._is_branch(stored[:_NUMBER_BYTES]):
                return

    def clear(self) -> None:
        """Remove what is in the second database."""
        self._raw.drop(self._below, delete=False)

    def surplus(self) -> int:
        """How many more keys there are than entries in the database of the index."""
        count: int = self._raw.stat(self._below)["entries"]
        with self._raw.cursor(self._below) as cursor:
            found = cursor.first()
            while found:  # for each branch there is one entry that is no key
                count -= 1
                found = cursor.set_range(_behind(cursor.key()))
        return count

    def ascending(self, piece: bytes, branch: bytes, start: bytes) -> _Pairs:
        """Keys that begin with `piece`, whose entry names `branch`, from `start` on, in order."""

        def enter(beginning: bytes, branch: bytes) -> _Pairs:
            rest = start[len(beginning) :] if start.startswith(beginning) else b""
            return self._up(branch, rest)

        return _walk(piece, branch, enter)

    def descending(self, piece: bytes, branch: bytes, stop: bytes | None) -> _Pairs:
        """The same below `stop` (None: all of them), in reverse order."""

        def enter(beginning: bytes, branch: bytes) -> _Pairs:
            is_cut = stop is not None and stop.startswith(beginning)
            return self._down(branch, stop[len(beginning) :] if stop and is_cut else None)

        return _walk(piece, branch, enter)

    def _path(self, key: bytes) -> list[tuple[Any, bytes]]:
        """The entries on the way to `key`; the last is its own, or the first that is missing."""
        path = [(self._top, key[:PIECE_BYTES])]
        at = PIECE_BYTES
        while len(path[-1][1]) == PIECE_BYTES:
            handle, stored = path[-1]
            branch = self._raw.get(stored, db=handle)
            if branch is None:
                break
            path.append((self._below, branch + key[at : at + _ROOM_BYTES]))
            at += _ROOM_BYTES
        return path

    def _set(self, handle: Any, stored: bytes, value: bytes) -> None:
        self._raw.put(stored, value, db=handle)

    def _free_branch(self) -> bytes:
        with self._raw.cursor(self._below) as cursor:
            return _behind(cursor.key() if cursor.last() else bytes(_NUMBER_BYTES))

    def _is_branch(self, branch: bytes) -> bool:
        with self._raw.cursor(self._below) as cursor:
            return bool(cursor.set_range(branch)) and cursor.key().startswith(branch)

    def _up(self, branch: bytes, start: bytes) -> _Pairs:
        """Entries of a branch from the one on that `start` would have, in order."""
        with self._raw.cursor(self._below) as cursor:
            if not cursor.set_range(branch + start[:_ROOM_BYTES]):
                return
            for stored, value in cursor.iternext():
                if not stored.startswith(branch):
                    return
                yield stored, value

    def _down(self, branch: bytes, stop: bytes | None) -> _Pairs:
        """Entries of a branch below the one that `stop` would have, in reverse order; with that
        one too where keys below `stop` may go on in it."""
        bound = _behind(branch) if stop is None else branch + stop[:_ROOM_BYTES]
        with self._raw.cursor(self._below) as cursor:
            if not cursor.set_range(bound):
                found = cursor.last()
            elif len(bound) == PIECE_BYTES and cursor.key() == bound:
                found = True
            else:
                found = cursor.prev()
            if not found:
                return
            for stored, value in cursor.iterprev():
                if not stored.startswith(branch):
                    return
                yield stored, value


def _walk(piece: bytes, branch: bytes, enter: Callable[[bytes, bytes], _Pairs]) -> _Pairs:
    """Keys and values behind `piece`; `enter` gives the wanted entries of a branch."""
    levels = [(piece, enter(piece, branch))]
    while levels:
        beginning, entries = levels[-1]
        for stored, value in entries:
            key = beginning + stored[_NUMBER_BYTES:]
            if len(stored) == PIECE_BYTES:
                levels.append((key, enter(key, value)))
                break
            yield key, value
        else:
            levels.pop()


def _behind(stored: bytes) -> bytes:
    """The number after the one that an entry begins with."""
    return (int.from_bytes(stored[:_NUMBER_BYTES], "big") + 1).to_bytes(_NUMBER_BYTES, "big")
