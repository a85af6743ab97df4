"""Counting what a file holds, and learning the names of spaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.logs import ORDERS, SPACE_ROW, START, delete, insert, update, write_log, write_snapshot

from logweir.wal.damage import DamageKind, FileEnd
from logweir.wal.mp import pack
from logweir.wal.reader import WalReader
from logweir.wal.spacenames import SYSTEM_SPACES, SpaceNames
from logweir.wal.summary import summarize_file
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Key, Row, RowType


def test_log_is_counted(tmp_path: Path) -> None:
    """Rows, transactions, blocks, types, spaces, times and the vclock reached are right."""
    write_log(tmp_path, ORDERS)
    path = tmp_path / f"{0:020d}.xlog"
    seen: list[int] = []
    summary = summarize_file(path, progress=seen.append)
    assert (summary.rows, summary.transactions, summary.blocks) == (6, 4, 4)
    assert summary.types == {RowType.INSERT: 4, RowType.DELETE: 1, RowType.UPDATE: 1}
    assert summary.spaces == {280: 1, 512: 5}
    assert (summary.first_time, summary.last_time) == (START + 1, START + 6)
    assert summary.vclock == VClock({1: 6})
    assert (summary.end, summary.damage, summary.is_damaged) == (FileEnd.CLEAN, [], False)
    assert summary.size_bytes == path.stat().st_size
    assert len(seen) == 4
    assert seen[-1] == summary.size_bytes - 4


def test_damage_is_counted_and_reading_goes_on(tmp_path: Path) -> None:
    """A flipped byte costs its block only, and the file counts as damaged."""
    write_log(tmp_path, ORDERS)
    path = tmp_path / f"{0:020d}.xlog"
    data = bytearray(path.read_bytes())
    data[data.index(b"apple")] ^= 0xFF
    path.write_bytes(data)
    summary = summarize_file(path)
    assert summary.is_damaged
    assert [one.kind for one in summary.damage] == [DamageKind.CHECKSUM]
    assert summary.rows == 5


def test_unfinished_write_is_not_damage(tmp_path: Path) -> None:
    """A log that ends inside its last block is torn, not damaged."""
    write_log(tmp_path, ORDERS, close=False)
    path = tmp_path / f"{0:020d}.xlog"
    with WalReader(path) as reader:
        end = reader.data_end
    path.write_bytes(path.read_bytes()[: end - 3])
    summary = summarize_file(path)
    assert (summary.end, summary.rows, summary.is_damaged) == (FileEnd.TORN_TAIL, 5, False)
    assert len(summary.damage) == 1


def test_snapshot_without_its_end_is_damaged(tmp_path: Path) -> None:
    """A snapshot that lost its EOF marker, or more, is not complete."""
    path = write_snapshot(tmp_path, {280: [SPACE_ROW], 512: [[1], [2]]})
    data = path.read_bytes()
    assert not summarize_file(path).is_damaged
    for cut in (1, 4, 20):
        path.write_bytes(data[:-cut])
        summary = summarize_file(path)
        assert summary.is_damaged
        assert [one.kind for one in summary.damage] == [DamageKind.NO_EOF]


def test_names_are_learned_from_the_rows_that_define_spaces(tmp_path: Path) -> None:
    """INSERT names a space, UPDATE renames it, DELETE leaves its name to the rows before."""
    renamed = update(280, [512], [["=", 3, "purchases"]])
    write_log(tmp_path, [[insert(280, SPACE_ROW)], [renamed], [delete(280, [512])]])
    names = SpaceNames()
    summarize_file(tmp_path / f"{0:020d}.xlog", names=names)
    assert names[512] == "purchases"
    assert names[272] == "_schema"


def test_rename_by_field_name_is_learned(tmp_path: Path) -> None:
    """An UPDATE may name the field."""
    write_log(tmp_path, [[update(280, [512], [["=", "name", "purchases"]])]])
    names = SpaceNames()
    summarize_file(tmp_path / f"{0:020d}.xlog", names=names)
    assert names.show(512) == "purchases"


@pytest.mark.parametrize(
    ("base", "field", "name"), [({}, 2, "new"), ({}, 3, "orders"), ({Key.INDEX_BASE: 1}, 3, "new")]
)
def test_fields_of_an_update_count_from_its_base(
    base: dict[Key, int], field: int, name: str
) -> None:
    """0 where it has none."""
    names = SpaceNames()
    names[512] = "orders"
    body = {Key.SPACE_ID: 280, Key.KEY: [512], Key.TUPLE: [["=", field, "new"]], **base}
    names.learn_row(Row(RowType.UPDATE, body=pack({int(key): body[key] for key in body})))
    assert names[512] == name


def test_names_before_a_file_come_from_its_folder(tmp_path: Path) -> None:
    """A file's names are those of the newest snapshot before it and of the logs between."""
    write_snapshot(tmp_path, {280: [SPACE_ROW], 512: [[1]]})
    second = insert(280, [513, 1, "visits"])
    third = insert(280, [514, 1, "later"])
    write_log(tmp_path, [[second], [third]], max_bytes=2)
    names = SpaceNames.before(tmp_path / f"{1:020d}.xlog")
    assert (names[512], names[513]) == ("orders", "visits")
    assert names.show(514) == "514"


def test_odd_definitions_do_not_disturb_the_names(tmp_path: Path) -> None:
    """Rows of space 280 that define nothing are passed over."""
    odd = [insert(280, []), insert(280, ["x", 1, "y"]), insert(280, [512, 1, 7])]
    more = [update(280, [512], [["=", 3]]), update(280, [], [["=", 3, "a"]]), delete(280, [1])]
    write_log(tmp_path, [[change] for change in odd + more])
    names = SpaceNames()
    summarize_file(tmp_path / f"{0:020d}.xlog", names=names)
    assert names == SYSTEM_SPACES


def test_names_before_something_unreadable_are_the_system_spaces(tmp_path: Path) -> None:
    """Names are for people: what cannot be read gives none."""
    path = tmp_path / f"{0:020d}.xlog"
    path.write_bytes(b"no log")
    assert SpaceNames.before(path) == SYSTEM_SPACES
