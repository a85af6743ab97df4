"""What an item's tuple is, and what becomes of the marks of one that was set later."""

from __future__ import annotations

from typing import Any

import pytest

from logweir.errors import DecodeError
from logweir.replication.bucket.change import OLDER, SET, PlainItemComputer
from logweir.replication.bucket.item import (
    MARK_STALE,
    MARK_TOLD,
    Item,
    pack_item,
    unpack_item,
)
from logweir.wal.mp import pack, unpack


@pytest.mark.parametrize("fields", [[], unpack(pack_item(Item(b"k")))[:-1], {1: 2}, "k"])
def test_what_is_no_item_is_told(fields: Any) -> None:
    """Fewer fields than a bucket's format wants, or no array."""
    with pytest.raises(DecodeError, match="an item is an array"):
        unpack_item(pack(fields))


@pytest.mark.parametrize("marks", [0, MARK_STALE, MARK_TOLD, MARK_STALE | MARK_TOLD])
def test_a_value_of_an_older_cas_is_stale_and_who_was_told_stays(marks: int) -> None:
    """Somebody makes a newer one already, or the next who asks is told to."""
    there = Item(b"k", value=b"old", cas=5, marks=marks)
    given = Item(b"k", value=b"new", cas=4)
    _, made, _ = PlainItemComputer(100, 9).refer(SET | OLDER, 0, pack_item(given), pack_item(there))
    assert made is not None
    item = unpack_item(bytes(made))
    assert (item.value, item.marks) == (b"new", marks & MARK_TOLD | MARK_STALE)
