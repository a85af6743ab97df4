"""Damaged pages of LMDB's file: what is found does not depend on whether the kernel is compiled,
and a walk ends whatever the pages say."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from logweir.store.schema.bulk import interpreted
from logweir.store.state import base, lmdbfile, pagekernel

PAGE = 4096
BRANCH, LEAF, OVERFLOW = 1, 2, 4
ROUNDS = 400
plain = interpreted(pagekernel)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with trees of several levels, large values and lists of free pages."""
    folder = tmp_path_factory.mktemp("state")
    with base.Environment(str(folder), map_size=1 << 26, max_dbs=4, sync=False) as env:
        trees = [env.open_db(name) for name in (b"a", b"b")]
        for turn in range(4):
            with env.begin(write=True) as tx:
                for number in range(3000):
                    key = struct.pack(">Q", number * 7919 % 3000)
                    size = 9000 if number % 97 == turn else 50
                    tx.put(key, os.urandom(size), db=trees[number % 2])
            with env.begin(write=True) as tx:
                for number in range(turn, 3000, 3):
                    tx.delete(struct.pack(">Q", number), db=trees[number % 2])
    return (folder / "data.mdb").read_bytes()


def pages_of(data: bytes, kind: int) -> list[int]:
    """Where pages of a kind begin, in use or not."""
    at = range(2 * PAGE, len(data), PAGE)
    return [
        one
        for one in at
        if struct.unpack_from("=QHH", data, one)[0] * PAGE == one
        and struct.unpack_from("=H", data, one + 10)[0] == kind
    ]


def findings(path: Path, data: bytes, patch: pytest.MonkeyPatch) -> str:
    """What is found wrong, by both kernels."""
    path.write_bytes(data)
    found = lmdbfile.damage(path)
    with patch.context() as other:
        other.setattr(lmdbfile, "pagekernel", plain)
        assert lmdbfile.damage(path) == found
    return found


def test_a_whole_file_has_no_damage(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has pages of every kind."""
    assert all(pages_of(whole, kind) for kind in (BRANCH, LEAF, OVERFLOW))
    assert findings(tmp_path / "data.mdb", whole, monkeypatch) == ""


def test_kernels_find_the_same(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bytes that are changed anywhere, most of them where a page begins."""
    dice, found = Random(20261122), set()
    for _ in range(ROUNDS):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 3))):
            within = dice.randrange(dice.choice((24, 64, PAGE)))
            at = dice.randrange(len(data) // PAGE) * PAGE + within
            data[at] = dice.choice((0, 1, 0xFF, data[at] ^ 1 << dice.randrange(8)))
        found.add(findings(tmp_path / "data.mdb", bytes(data), monkeypatch))
    assert len(found) > ROUNDS // 10


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_file_that_ends_too_early_is_not_walked(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """What is behind its end would end the process."""
    left = int(share * len(whole) / PAGE) * PAGE
    assert left >= 2 * PAGE
    found = findings(tmp_path / "data.mdb", whole[:left], monkeypatch)
    assert f"it has {left} bytes" in found


def to_itself(data: bytearray, at: int) -> None:
    """Every entry of the page names the page."""
    (lower,) = struct.unpack_from("=H", data, at + 12)
    for place in struct.unpack_from(f"={(lower - 16) // 2}H", data, at + 16):
        struct.pack_into("=HHH", data, at + place, at // PAGE, 0, 0)


def one_entry(data: bytearray, at: int) -> None:
    """Only the first entry is left."""
    struct.pack_into("=H", data, at + 12, 18)


def long_key(data: bytearray, at: int) -> None:
    """The first key does not end in the page."""
    (place,) = struct.unpack_from("=H", data, at + 16)
    struct.pack_into("=H", data, at + place + 6, PAGE)


def in_a_page(data: bytearray, at: int) -> None:
    """The first value is told to hold duplicates, which no tree of ours has."""
    (place,) = struct.unpack_from("=H", data, at + 16)
    struct.pack_into("=H", data, at + place + 4, 4)


def endless(data: bytearray, at: int) -> None:
    """The value has more pages than the file."""
    struct.pack_into("=I", data, at + 12, 2**31)


@pytest.mark.parametrize(
    ("kind", "damage", "said"),
    [
        (BRANCH, to_itself, "is none of its tree"),
        (BRANCH, one_entry, "has no entries"),
        (BRANCH, long_key, "does not end in it"),
        (LEAF, long_key, "does not end in it"),
        (LEAF, in_a_page, "names a tree"),
        (OVERFLOW, endless, "is no value of"),
    ],
)
def test_damage_of_each_kind_is_named(
    tmp_path: Path,
    whole: bytes,
    monkeypatch: pytest.MonkeyPatch,
    kind: int,
    damage: Callable[[bytearray, int], None],
    said: str,
) -> None:
    """Of all pages of that kind, some of which are in use."""
    data = bytearray(whole)
    for at in pages_of(whole, kind):
        damage(data, at)
    assert said in findings(tmp_path / "data.mdb", bytes(data), monkeypatch)


def test_lists_of_free_pages_name_free_pages(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB would write where they say."""
    data = bytearray(whole)
    newest = max((0, PAGE), key=lambda at: struct.unpack_from("=Q", whole, at + 144)[0])
    (root,) = struct.unpack_from("=Q", data, newest + 16 + 24 + 40)
    at = root * PAGE
    (place,) = struct.unpack_from("=H", data, at + 16)
    low, _, flags, key_bytes = struct.unpack_from("=HHHH", data, at + place)
    value = at + place + 8 + key_bytes
    assert flags == 0
    assert low >= 16
    struct.pack_into("=Q", data, value + 8, 1 << 40)
    found = findings(tmp_path / "data.mdb", bytes(data), monkeypatch)
    assert f"an entry of page {root} is no list of free pages" in found
