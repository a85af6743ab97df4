"""Looking at LMDB's file before LMDB does: a damaged one would end the process.

LMDB maps the file and believes what it reads: a page behind the file's end is a SIGBUS, a page that
is no page an abort. What is checked here, without a checksum to go by, is the structure: both meta
pages, that the file has all pages that the newer one counts, every branch and leaf page of every
tree, the head of every value with pages of its own, and the lists of free pages. Bytes inside of
keys and values are not looked at.

The walk takes about half a second per GiB of a file that the system has in memory, one or two where
it has to be read from an SSD (measured with tuples of 100 bytes; larger ones cost less), and 15
where the kernel is not compiled: less than to make the state anew. It keeps one path of pages.

The layout is that of LMDB 0.9 (data version 1) on a 64-bit machine, in its byte order. Source:
`mdb.c` of LMDB 0.9.31: `MDB_page`, `MDB_meta`, `MDB_db`, `MDB_node`.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from pathlib import Path
from typing import Final

from logweir.store.state import pagekernel

_PAGE: Final = struct.Struct("=QHHHH")  # number, padding, flags, lower, upper
_META: Final = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_TREE: Final = struct.Struct("=IHHQQQQQ")  # padding, flags, depth, branch, leaf, overflow, …, root
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_IS_META: Final = 0x08
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
        self._told = array("Q", (0, 0, 0))

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
        (free, free_depth), (main, main_depth) = roots
        subtrees: list[int] = []
        self._tree(free, free_depth, "free pages", subtrees)
        self._tree(main, main_depth, "trees", subtrees)
        for at in subtrees:
            _, _, depth, *_, root = _TREE.unpack_from(self._data, at)
            self._tree(root, depth, "tuples", [])

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

    def _tree(self, root: int, depth: int, kind: str, subtrees: list[int]) -> None:
        """Check all pages of a tree, and of those that its entries name."""
        if root == _NONE:
            if depth:
                raise _Bad(f"a tree of depth {depth} has no page")
            return
        if not 0 < depth <= _DEPTH_MAX:
            raise _Bad(f"a tree has depth {depth}")
        wrong = pagekernel.tree(
            self._data,
            self._page_bytes,
            self._pages,
            root,
            depth,
            pagekernel.KINDS[kind],
            subtrees,
            self._told,
        )
        if wrong:
            _, page, size = self._told
            raise _Bad(pagekernel.WRONG[wrong].format(page=page, pages=self._pages, size=size))
