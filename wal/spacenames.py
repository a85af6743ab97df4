"""Names of spaces, learned from the rows that define them: for showing logs without a store.

A space is a tuple of system space 280, ``[id, owner, name, …]``. An INSERT or REPLACE there gives a
name, an UPDATE that assigns field 3 (or "name") another one, a DELETE takes it away only from the
space's future: rows before it still carry the id, so the name is kept. The system spaces have the
same ids in every store. Source: the bootstrap snapshot of Tarantool 2.6.0.

From the tuples of system space 288, ``[space id, id, name, type, options, …]``, it learns which
indexes there are that logweir does not keep.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logweir.errors import DecodeError, LimitExceeded, WalError
from logweir.wal.columns import RowColumns
from logweir.wal.damage import Damage
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.reader import WalReader
from logweir.wal.xrow import Row, RowType

SPACE_ID: Final = 280
"""The space whose tuples define spaces."""

INDEX_ID: Final = 288
"""The space whose tuples define indexes."""

SYSTEM_SPACES: Final[Mapping[int, str]] = {
    257: "_vinyl_deferred_delete",
    272: "_schema",
    276: "_collation",
    277: "_vcollation",
    280: "_space",
    281: "_vspace",
    284: "_sequence",
    285: "_sequence_data",
    286: "_vsequence",
    288: "_index",
    289: "_vindex",
    296: "_func",
    297: "_vfunc",
    304: "_user",
    305: "_vuser",
    312: "_priv",
    313: "_vpriv",
    320: "_cluster",
    328: "_trigger",
    330: "_truncate",
    340: "_space_sequence",
    356: "_fk_constraint",
    364: "_ck_constraint",
    372: "_func_index",
    380: "_session_settings",
}
"""The spaces that every store has, by id."""


def unkept_kind(definition: Sequence[Any]) -> str:
    """What makes an index, by its tuple of space 288, one that logweir does not keep; "" if nothing
    does: tuples are stored and followed, only reads by it are refused."""
    if isinstance(definition[4], dict) and definition[4].get("func"):
        return "functional"
    kind = str(definition[3]).upper()
    return "" if kind in ("TREE", "HASH") else kind


class SpaceNames(dict[int, str]):
    """Space id to name. Starts with the system spaces; `learn` adds what rows define.

    `unkept`: name and kind of indexes that logweir does not keep, by space and index id.
    """

    def __init__(self) -> None:
        super().__init__(SYSTEM_SPACES)
        self.unkept: dict[tuple[int, int], tuple[str, str]] = {}

    @classmethod
    def before(cls, path: Path, filesystem: FileSystem = OS) -> SpaceNames:
        """The names that hold where the file `path` begins, from the other files of its folder.

        Reads the newest snapshot that is not after it and the logs between the two. What cannot be
        read is left out: names are for people, an id without one is shown as a number.
        """
        names = cls()
        try:
            with WalReader(path, filesystem=filesystem) as reader:
                meta = reader.meta
            index = scan_directory(path.parent, filesystem)
        except WalError:
            return names
        snaps = [file for file in index.snaps if meta.vclock.covers(file.vclock)]
        logs = index.xlogs_after(snaps[-1].vclock) if snaps else index.xlogs
        if snaps and snaps[-1].path != path:
            names._learn_file(snaps[-1].path, filesystem, is_snap=True)
        for log in logs:
            if meta.vclock.compare(log.vclock) == ">":
                names._learn_file(log.path, filesystem)
        return names

    def _learn_file(self, path: Path, filesystem: FileSystem, *, is_snap: bool = False) -> None:
        try:
            with WalReader(path, filesystem=filesystem, skip_damage=True) as reader:
                for item in reader.blocks():
                    if isinstance(item, Damage):
                        continue
                    self.learn(item.columns)
                    # A snapshot holds its spaces in ascending id, the system's first.
                    if is_snap and SPACE_ID < item.columns.space_id[-1] <= max(SYSTEM_SPACES):
                        return
        except WalError:
            return

    def learn(self, columns: RowColumns) -> None:
        """Take the names that the rows of a block define."""
        spaces = columns.space_id.tolist()
        for wanted, learn in ((SPACE_ID, self.learn_row), (INDEX_ID, self._learn_index)):
            at = -1
            for _ in range(spaces.count(wanted)):
                at = spaces.index(wanted, at + 1)
                learn(columns.row(at))

    def _learn_index(self, row: Row) -> None:
        try:
            body = row.decoded()
        except (DecodeError, LimitExceeded):
            return
        fields = body.get("tuple" if row.type in (RowType.INSERT, RowType.REPLACE) else "key", ())
        if len(fields) < 2 or not all(isinstance(one, int) for one in fields[:2]):
            return
        self.unkept.pop((fields[0], fields[1]), None)
        if len(fields) > 5 and (kind := unkept_kind(fields)):
            self.unkept[fields[0], fields[1]] = (str(fields[2]), kind)

    def learn_row(self, row: Row) -> None:
        """Take the name that one row of space 280 defines, if it does."""
        try:
            body = row.decoded()
        except (DecodeError, LimitExceeded):
            return
        if row.type in (RowType.INSERT, RowType.REPLACE):
            fields = body.get("tuple", ())
            if len(fields) > 2:
                self._set(fields[0], fields[2])
        elif row.type == RowType.UPDATE and body.get("key"):
            base = body.get("index_base", 0)
            for op in body.get("ops", ()):
                if isinstance(op, list) and op[:2] in (["=", base + 2], ["=", "name"]):
                    self._set(body["key"][0], op[-1])

    def _set(self, space_id: Any, name: Any) -> None:
        if isinstance(space_id, int) and isinstance(name, str):
            self[space_id] = sys.intern(name)

    def show(self, space_id: int) -> str:
        """The name, or the number as text where it has none."""
        return self.get(space_id, str(space_id))
