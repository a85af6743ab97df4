"""Looking at LMDB's file before LMDB does: a damaged one would end the process.

LMDB maps the file and believes what it reads: a page behind the file's end is a SIGBUS, a page that
is no page an abort. What is checked here, without a checksum to go by, is the structure: both meta
pages, that the file has all pages that the newer one counts, and, in a file that is not larger than
`limits.STATE_CHECK_BYTES`, every branch and leaf page of every tree. Bytes inside of keys and
values are not looked at.

The layout is that of LMDB 0.9 (data version 1) on a 64-bit machine, in its byte order. Source:
`mdb.c` of LMDB 0.9.31: `MDB_page`, `MDB_meta`, `MDB_db`, `MDB_node`.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from logweir.limits import STATE_CHECK_BYTES

__all__ = ["damage"]

_PAGE: Final = struct.Struct("=QHHHH")  # number, padding, flags, lower, upper
_META: Final = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_TREE: Final = struct.Struct("=IHHQQQQQ")  # padding, flags, depth, branch, leaf, overflow, …, root
_NODE: Final = struct.Struct("=HHHH")  # size or page, low and high part, flags, bytes of the key
_OVERFLOW_PAGES: Final = struct.Struct("=I")
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 0x01, 0x02, 0x04, 0x08
_BIG, _SUBTREE = 0x01, 0x02
_NONE: Final = 2**64 - 1
_DEPTH_MAX: Final = 32
_PAGE_BYTES_LEAST: Final = 512
_PAGE_BYTES_MOST: Final = 65_536


class _Bad(Exception):
    """What is wrong, as a sentence."""


def damage(path: Path) -> str:
    """What is wrong with the file; "" for nothing that can be seen. Raises `OSError`."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 2 * _PAGE_BYTES_LEAST:
                raise _Bad(f"it has {size} bytes, which is no LMDB")
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                _Looker(data, size).check()
    except _Bad as bad:
        return f"{path.name} is damaged: {bad}"
    return ""


class _Looker:
    """Reads one file, all bytes of which are there."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self._page_bytes = 0
        self._pages = 0

    def check(self) -> None:
        """Raises `_Bad`."""
        self._page_bytes = self._page_size()
        metas = [self._meta(number) for number in (0, 1)]
        last, _, roots = max(metas, key=lambda meta: meta[1])
        self._pages = last + 1
        if self._pages * self._page_bytes > self._size:
            raise _Bad(f"it has {self._size} bytes, {self._pages * self._page_bytes} are counted")
        for root, _ in roots:
            if root != _NONE and not 1 < root <= last:
                raise _Bad(f"a tree begins at page {root} of {self._pages}")
        if self._size > STATE_CHECK_BYTES:
            return
        for (root, depth), is_main in zip(roots, (False, True), strict=True):
            self._tree(root, depth, is_main)

    def _page_size(self) -> int:
        """As the first meta page says: in the place where the first tree keeps its padding."""
        (size,) = struct.unpack_from("=I", self._data, _PAGE.size + _META.size)
        if size & size - 1 or not _PAGE_BYTES_LEAST <= size <= _PAGE_BYTES_MOST:
            raise _Bad(f"its pages have {size} bytes")
        if self._size < 2 * size:
            raise _Bad(f"it has {self._size} bytes, less than two pages")
        return int(size)

    def _meta(self, number: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Of a meta page: the last page in use, the transaction's number, roots and depths."""
        at = number * self._page_bytes
        _, _, flags, _, _ = _PAGE.unpack_from(self._data, at)
        magic, version, _, _ = _META.unpack_from(self._data, at + _PAGE.size)
        if not flags & _IS_META or magic != _MAGIC or version != _VERSION:
            raise _Bad(f"page {number} is no meta page")
        at += _PAGE.size + _META.size
        roots: list[tuple[int, int]] = []
        for _ in range(2):
            padding, _, depth, *_, root = _TREE.unpack_from(self._data, at)
            if not roots and padding != self._page_bytes:
                raise _Bad(f"page {number} is no meta page")
            roots.append((root, depth))
            at += _TREE.size
        last, transaction = struct.unpack_from("=QQ", self._data, at)
        return last, transaction, roots

    def _tree(self, root: int, depth: int, is_main: bool) -> None:
        """Check all pages of a tree, and of those that its entries name."""
        if root == _NONE:
            if depth:
                raise _Bad(f"a tree of depth {depth} has no page")
            return
        if not 0 < depth <= _DEPTH_MAX:
            raise _Bad(f"a tree has depth {depth}")
        level = [root]
        seen = 0
        for above in range(depth - 1, -1, -1):
            below: list[int] = []
            for page in level:
                seen += 1
                if seen > self._pages:
                    raise _Bad("a tree has more pages than there are")
                if above:
                    below += self._children(page)
                else:
                    self._leaf(page, is_main)
            level = below

    def _children(self, page: int) -> Iterator[int]:
        at = page * self._page_bytes
        for place in self._nodes(page, _BRANCH):
            low, high, top, _ = _NODE.unpack_from(self._data, at + place)
            yield low | high << 16 | top << 32

    def _leaf(self, page: int, is_main: bool) -> None:
        nodes = self._nodes(page, _LEAF)
        at = page * self._page_bytes
        for place in nodes:
            low, high, flags, key_bytes = _NODE.unpack_from(self._data, at + place)
            size = low | high << 16
            begin = place + _NODE.size + key_bytes
            held = 8 if flags & _BIG else size
            if begin + held > self._page_bytes:
                raise _Bad(f"an entry of page {page} does not end in it")
            if flags & _BIG:
                (first,) = struct.unpack_from("=Q", self._data, at + begin)
                self._overflow(first, size)
            elif flags & _SUBTREE:
                if not is_main or size != _TREE.size:
                    raise _Bad(f"an entry of page {page} names a tree")
                _, _, depth, *_, root = _TREE.unpack_from(self._data, at + begin)
                self._tree(root, depth, is_main=False)

    def _nodes(self, page: int, kind: int) -> array[int]:
        """Where the entries of a page begin."""
        if not 1 < page < self._pages:
            raise _Bad(f"page {page} of {self._pages} is named")
        at = page * self._page_bytes
        number, _, flags, lower, upper = _PAGE.unpack_from(self._data, at)
        if number != page or flags & (_BRANCH | _LEAF | _OVERFLOW | _IS_META) != kind:
            raise _Bad(f"page {page} is none of its tree")
        if not _PAGE.size < lower <= upper <= self._page_bytes or lower % 2:
            raise _Bad(f"page {page} has no entries")
        nodes = array("H", self._data[at + _PAGE.size : at + lower])
        if min(nodes) < upper or max(nodes) > self._page_bytes - _NODE.size:
            raise _Bad(f"an entry of page {page} is not in it")
        return nodes

    def _overflow(self, page: int, size: int) -> None:
        """Check the head of a value that has pages of its own."""
        if not 1 < page < self._pages:
            raise _Bad(f"page {page} of {self._pages} is named")
        at = page * self._page_bytes
        number, _, flags, _, _ = _PAGE.unpack_from(self._data, at)
        (count,) = _OVERFLOW_PAGES.unpack_from(self._data, at + 12)
        if (
            number != page
            or not flags & _OVERFLOW
            or page + count > self._pages
            or _PAGE.size + size > count * self._page_bytes
        ):
            raise _Bad(f"page {page} is no value of {size} bytes")
