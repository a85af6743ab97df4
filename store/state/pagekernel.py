# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Walking the trees of LMDB's file, without believing anything that is in it.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `pagekernel.pxd`. `lmdbfile` is its face, where the layout is told; nothing else calls it.

A tree is walked in depth first, so that only the path to the current page is kept; the pages that
all trees of a file have together are counted in `told`, since no page belongs to two: so a walk
ends, whatever the pages say.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array
    from mmap import mmap

    Buffer = bytes | bytearray | memoryview | mmap

# For who asks, and the same for C, which alone then sees them.
KINDS = {"free pages": 0, "trees": 1, "tuples": 2}
WRONG = (
    "",
    "page {page} of {pages} is named",
    "page {page} is none of its tree",
    "page {page} has no entries",
    "an entry of page {page} is not in it",
    "an entry of page {page} does not end in it",
    "an entry of page {page} names a tree",
    "page {page} is no value of {size} bytes",
    "the trees have more pages than there are",
    "an entry of page {page} is no list of free pages",
)
NO_PAGE, FOREIGN, NO_ENTRIES, OUTSIDE, UNENDED = 1, 2, 3, 4, 5
A_TREE, NO_VALUE, TOO_MANY, NO_FREE = 6, 7, 8, 9
OF_FREE_PAGES, OF_TREES = 0, 1

TREE_BYTES = 48
_HEAD = 16
_NODE = 8
_BRANCH = 0x01
_LEAF = 0x02
_OVERFLOW = 0x04
_KIND = 0x6F  # these, of meta pages, of those with entries of one size, and of pages in pages
_BIG = 0x01
_SUBTREE = 0x02
_LITTLE = sys.byteorder == "little"


def u16_at(data: Buffer, at: int) -> int:
    """Two bytes in the order of this machine. Unchecked."""
    if _LITTLE:
        return data[at] | data[at + 1] << 8
    return data[at] << 8 | data[at + 1]


def u64_at(data: Buffer, at: int) -> int:
    """Eight bytes in the order of this machine. Unchecked."""
    value = 0
    for i in range(8):
        byte = data[at + 7 - i] if _LITTLE else data[at + i]
        value = value << 8 | byte
    return value


def entries(data: Buffer, page: int, page_bytes: int, pages: int, wanted: int) -> int:
    """How many entries a branch or leaf page has, all of which begin in it; negative: what is
    wrong."""
    if page < 2 or page >= pages:
        return -NO_PAGE
    at = page * page_bytes
    if u64_at(data, at) != page or u16_at(data, at + 10) & _KIND != wanted:
        return -FOREIGN
    lower = u16_at(data, at + 12)
    upper = u16_at(data, at + 14)
    if lower <= _HEAD or lower > upper or upper > page_bytes or lower & 1:
        return -NO_ENTRIES
    for i in range((lower - _HEAD) >> 1):
        place = u16_at(data, at + _HEAD + 2 * i)
        if place < upper or place > page_bytes - _NODE or place & 1:
            return -OUTSIDE
    return (lower - _HEAD) >> 1


def overflow(data: Buffer, first: int, size: int, page_bytes: int, pages: int) -> int:
    """How many pages a value of `size` bytes has from page `first` on; negative: what is wrong."""
    if first < 2 or first >= pages:
        return -NO_PAGE
    at = first * page_bytes
    if u64_at(data, at) != first or u16_at(data, at + 10) & _KIND != _OVERFLOW:
        return -NO_VALUE
    count = u64_at(data, at + 8) >> 32 if _LITTLE else u64_at(data, at + 8) & 0xFFFFFFFF
    if count > pages - first or _HEAD + size > count * page_bytes:
        return -NO_VALUE
    return count


def is_free_list(data: Buffer, at: int, size: int, pages: int) -> bool:
    """Whether a value is a count and so many numbers of pages, falling."""
    if size < 8:
        return False
    count = u64_at(data, at)
    if count > (size >> 3) - 1:
        return False
    last = pages
    for i in range(count):
        page = u64_at(data, at + 8 + 8 * i)
        if page < 2 or page >= last:
            return False
        last = page
    return True


def leaf(
    data: Buffer,
    page: int,
    count: int,
    page_bytes: int,
    pages: int,
    kind: int,
    subtrees: list[int],
    told: array[int],
) -> int:
    """What is wrong with the entries of a leaf page, and the pages that they name; 0 for nothing.
    Where the entries describe trees, their places are added to `subtrees`."""
    at = page * page_bytes
    for i in range(count):
        node = at + u16_at(data, at + _HEAD + 2 * i)
        if _LITTLE:
            size = u16_at(data, node) | u16_at(data, node + 2) << 16
        else:
            size = u16_at(data, node) << 16 | u16_at(data, node + 2)
        flags = u16_at(data, node + 4)
        key_bytes = u16_at(data, node + 6)
        begin = node + _NODE + key_bytes
        held = 8 if flags & _BIG else size
        if begin + held > at + page_bytes:
            return UNENDED
        if flags & ~(_BIG if kind != OF_TREES else _BIG | _SUBTREE) or flags == _BIG | _SUBTREE:
            return A_TREE
        if flags & _SUBTREE:
            if size != TREE_BYTES:
                return A_TREE
            subtrees.append(begin)
        if flags & _BIG:
            first = u64_at(data, begin)
            found = overflow(data, first, size, page_bytes, pages)
            if found < 0:
                told[1] = first
                told[2] = size
                return -found
            told[0] += found
            if told[0] > pages:
                return TOO_MANY
            begin = first * page_bytes + _HEAD
        if kind == OF_FREE_PAGES and (key_bytes != 8 or not is_free_list(data, begin, size, pages)):
            return NO_FREE
    return 0


def tree(
    data: Buffer,
    page_bytes: int,
    pages: int,
    root: int,
    depth: int,
    kind: int,
    subtrees: list[int],
    told: array[int],
) -> int:
    """What is wrong with a tree, as a place in `WRONG`. `data`: at least `pages` whole pages;
    `depth`: 1 … 32 levels; `kind`: of `KINDS`.

    `told`: pages of all trees so far; then, where something is wrong, the page and a size.
    `subtrees`: see `leaf`.
    """
    if page_bytes < _HEAD or pages > len(data) // page_bytes or not 1 <= depth <= 32:
        raise IndexError("tree: pages that are not in the file")
    if len(told) < 3:
        raise IndexError("tree: no room for what is wrong")
    path = [0] * 32
    places = [0] * 32
    counts = [0] * 32
    level = 0
    path[0] = root
    while level >= 0:
        page = path[level]
        is_leaf = level == depth - 1
        if not places[level]:
            told[1] = page
            told[0] += 1
            if told[0] > pages:
                return TOO_MANY
            found = entries(data, page, page_bytes, pages, _LEAF if is_leaf else _BRANCH)
            if found < 0:
                return -found
            if not is_leaf and found < 2 and kind != OF_FREE_PAGES:
                return NO_ENTRIES  # LMDB asserts that
            counts[level] = found
        if is_leaf:
            wrong = leaf(data, page, counts[level], page_bytes, pages, kind, subtrees, told)
            if wrong:
                return wrong
        if is_leaf or places[level] == counts[level]:
            level -= 1
            continue
        at = page * page_bytes
        node = at + u16_at(data, at + _HEAD + 2 * places[level])
        if node + _NODE + u16_at(data, node + 6) > at + page_bytes:
            return UNENDED
        if _LITTLE:
            child = u64_at(data, node) & 0xFFFFFFFFFFFF
        else:  # low, high, then the top part
            child = u16_at(data, node) << 16 | u16_at(data, node + 2) | u16_at(data, node + 4) << 32
        places[level] += 1
        level += 1
        path[level] = child
        places[level] = 0
    return 0


COMPILED = "u16_at" not in globals()  # compiled, it is a C function that Python does not see
