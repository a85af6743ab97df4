"""The history of a key against what the store said after each change, ours and a Tarantool's."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from property.test_settled_rows import commit
from property.test_synchronous_rows import decision, prepared, replace_row
from samples import sample
from support.icu import needs_icu

import logweir
from logweir.errors import PositionUnavailable, RequestError
from logweir.store.engine.engine import key_of
from logweir.store.engine.request import Request
from logweir.store.engine.statements import request_for
from logweir.store.recover.history import Change, folder_history
from logweir.store.schema.definition import IndexDef
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

KEYS = range(3)
OPERATIONS = ("insert", "replace", "update", "upsert", "delete", "by index", "truncate", "other")
STEPS = st.lists(
    st.tuples(
        st.sampled_from((*OPERATIONS * 3, "together", "snapshot", "again", "alter", "index")),
        st.sampled_from(KEYS),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=40,
)


class Told:
    """A store, and what became of each of its keys, as it answered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = self.open()
        self.log.create_space(
            "things",
            format=[("id", "integer"), ("text", "string"), ("number", "integer")],
            indexes={"text": {"parts": ["text"], "unique": True}},
        )
        self.log.create_space("others", format=[("id", "unsigned")])
        self.changes: dict[int, list[Change]] = {key: [] for key in KEYS}
        self.has_index = False

    def open(self) -> logweir.Log:
        return logweir.open(self.folder, "write", wal_max_size=800, checkpoint_count=3)

    def do(self, what: str, key: int, value: int) -> None:
        """One step; what it did to any key is noted."""
        log, before = self.log, self.log.vclock
        rows = {one: log.get("things", one) for one in KEYS}
        name = {"by index": "UPDATE", "truncate": "TRUNCATE"}.get(what, what.upper())
        touched: Sequence[int] = ()
        with contextlib.suppress(RequestError):  # the key is taken
            touched = self.change(what, key, value)
        if log.vclock == before:
            return
        for one in touched:
            found = log.get("things", one)
            if rows[one] is not None or found is not None:
                lsn = log.vclock.lsn(1)
                self.changes[one].append(Change(name, found, log.vclock, 1, lsn, 0.0))

    def change(self, what: str, key: int, value: int) -> Sequence[int]:
        """Make it. Returns the keys that it is about."""
        log, row = self.log, (key, f"{key}-{value}", value)
        match what:
            case "insert":
                log.insert("things", row)
            case "replace":
                log.replace("things", row)
            case "update":
                log.update("things", key, [["+", 2, value]])
            case "upsert":
                log.upsert("things", row, [["+", 2, value], ["=", "text", f"u{key}"]])
            case "delete":
                log.delete("things", key)
            case "by index":
                found = log.update("things", f"{key}-{value}", [["=", 2, -1]], index="text")
                return () if found is None else (key,)
            case "truncate":
                log.truncate("things")
                return KEYS
            case "together":
                self.together(key, value)
                return ()
            case "other":
                log.replace("others", (value,))
                return ()
            case "alter":
                names = [("id", "integer"), ("text", "string"), (f"n{value}", "integer")]
                log.alter_space("things", format=names)
                return ()
            case "index" if not self.has_index:
                log.create_index("things", "number", {"parts": [(2, "integer")], "unique": False})
                self.has_index = True
                return ()
            case "snapshot":
                log.snapshot()
            case "again":
                log.close()
                self.log = self.open()
            case _:
                return ()
        return (key,)

    def together(self, key: int, value: int) -> None:
        """A transaction with two changes of one key."""
        start, found = self.log.vclock.lsn(1), []
        with self.log.transaction() as tx:
            for number in (value, 100 + value):
                found.append(tx.replace("things", (key, f"t{key}", number)))
        for at, row in enumerate(found, start + 1):
            self.changes[key].append(Change("REPLACE", row, self.log.vclock, 1, at, 0.0))


def plain(changes: Iterator[Change] | list[Change]) -> list[Any]:
    """All of changes but their times."""
    return [(one.type_name, one.tuple, one.vclock, one.replica_id, one.lsn) for one in changes]


@settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
@given(STEPS)
def test_each_change_is_told_with_the_tuple_that_the_store_had(
    steps: list[tuple[str, int, int]],
) -> None:
    """All of them behind the oldest snapshot, and behind any position: by the open store and of
    the folder, across logs, snapshots and reopenings."""
    with tempfile.TemporaryDirectory(prefix="logweir-history-") as folder:
        told = Told(Path(folder))
        for what, key, value in steps:
            told.do(what, key, value)
        log = told.log
        for key in KEYS:
            begin, *rest = list(log.history("things", key))
            known = told.changes[key]
            before = [one for one in known if begin.vclock.covers(one.vclock)]
            assert (begin.type_name, begin.replica_id) == ("SNAPSHOT", None)
            assert begin.tuple == (before[-1].tuple if before else None)
            assert plain(rest) == plain(known[len(before) :])
            assert [begin, *rest][-1].tuple == log.get("things", key)
            again = folder_history(log.path, "things", pack([key]), after=None, limit=None)
            assert list(again) == [begin, *rest]
            for number in range(1, len(rest) + 1, 1 + len(rest) // 2):
                one = rest[number - 1]
                behind = [each for each in rest if not one.vclock.covers(each.vclock)]
                assert list(log.history("things", key, after=one.vclock)) == behind
                first = list(log.history("things", key, after=begin.vclock, limit=number))
                assert first == rest[: len(rest) - len(behind)]
        log.close()


@pytest.mark.parametrize(
    "name", [pytest.param("02-spaces", marks=needs_icu), "03-replicaset/instance-2", "04-crashed"]
)
def test_the_last_image_of_a_tarantool_folder_is_its_tuple(name: str) -> None:
    """Every kind of key, two masters, local spaces: the program's own tuple of each space's last
    key, made from its own snapshots and logs alone."""
    found = sample(name)
    known = dict(found.spaces)
    looked_at = 0
    for space_id, primary in primaries(found.folder).items():
        tuples = known.get(space_id, [])
        for data in tuples[-1:]:
            key = key_of(primary, data)
            *_, last = folder_history(found.folder, space_id, key, after=None, limit=None)
            assert pack(list(last.tuple or ())) == pack(unpack(data))
            looked_at += 1
    assert looked_at


def primaries(folder: Path) -> dict[int, IndexDef]:
    """The primary indexes of a folder's spaces, by the store that opens a copy of it."""
    with tempfile.TemporaryDirectory(prefix="logweir-history-") as scratch:
        shutil.copytree(folder, Path(scratch) / "store")
        with logweir.open(Path(scratch) / "store") as log:
            return {one.id: one.primary for one in log.spaces() if one.primary is not None}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store with a space of things and one of them."""
    with logweir.open(tmp_path / "store", "write", checkpoint_count=1) as log:
        log.create_space("things", format=[("id", "unsigned"), ("text", "string")])
        log.insert("things", (1, "a"))
        yield log


def test_a_position_before_the_oldest_snapshot_is_refused_with_it(store: logweir.Log) -> None:
    """Its tuple is known from there on only; one that is not reached yet is refused, too."""
    early = store.vclock
    store.replace("things", (1, "b"))
    store.snapshot()
    with pytest.raises(PositionUnavailable) as caught:
        list(store.history("things", 1, after=early))
    assert (caught.value.wanted, caught.value.oldest) == (early, store.vclock)
    assert list(store.history("things", 1, after=store.vclock)) == []
    assert [one.tuple for one in store.history("things", 1)] == [(1, "b")]
    with pytest.raises(PositionUnavailable, match="not reached"):
        list(store.history("things", 1, after={1: 10_000}))


def test_a_key_that_does_not_fit_and_a_space_that_is_not_there_are_refused(
    store: logweir.Log,
) -> None:
    """At once by the store, at the end by the reader of a folder."""
    for limit in (-1, 1.5, "1"):
        with pytest.raises(RequestError, match="limit is a whole number"):
            store.history("things", 1, limit=limit)  # type: ignore[arg-type]
    for space, key, code in (("things", [1, 2], 19), ("things", "x", 18), ("none", 1, 36)):
        with pytest.raises(RequestError) as caught:
            store.history(space, key)
        assert caught.value.code == code
        packed = pack(key if isinstance(key, list) else [key])
        with pytest.raises(RequestError) as caught:
            list(folder_history(store.path, space, packed, after=None, limit=None))
        assert caught.value.code == code
    with pytest.raises(RequestError):
        list(folder_history(store.path, 999, pack([1]), after=None, limit=None))


def test_a_dropped_space_ends_the_story_and_another_of_its_id_begins_one(
    store: logweir.Log,
) -> None:
    """The two have nothing but the id in common: not even what a key is."""
    number = store.schema.space("things").id
    store.drop_space("things")
    store.create_space("names", format=[("name", "string"), ("id", "unsigned")], id=number)
    store.insert("names", ("x", 1))
    told = [(one.type_name, one.tuple) for one in store.history("names", "x")]
    assert told == [("SNAPSHOT", None), ("INSERT", ("x", 1))]
    before = folder_history(store.path, number, pack([1]), after=None, limit=None)
    told = [(one.type_name, one.tuple) for one in islice(before, 3)]
    assert told == [("SNAPSHOT", None), ("INSERT", (1, "a")), ("DROP", None)]


def test_what_an_index_held_when_it_was_made_is_in_nobodys_way(store: logweir.Log) -> None:
    """A unique index that is made of the tuple: a value that this gave up may come back."""
    store.create_index("things", "text", {"parts": ["text"], "unique": True})
    for text in ("b", "a"):
        store.replace("things", (1, text))
    store.truncate("things")
    store.insert("things", (1, "a"))
    told = [one.tuple for one in store.history("things", 1)]
    assert told == [None, (1, "a"), (1, "b"), (1, "a"), None, (1, "a")]


def test_another_primary_key_is_a_begin_that_needs_a_snapshot(store: logweir.Log) -> None:
    """What the key was before and after it are not the same tuple's: said, not mixed up."""
    space = store.schema.space("things").id
    row = [space, 0, "pk", "tree", {"unique": True}, [[1, "string"]]]
    store.execute(request_for(RowType.REPLACE, store.schema, "_index", row))
    store.replace("things", (2, "a"))
    with pytest.raises(PositionUnavailable, match="altered"):
        list(store.history("things", "a"))
    store.snapshot()
    store.delete("things", "a")
    told = [(one.type_name, one.tuple) for one in store.history("things", "a")]
    assert told == [("SNAPSHOT", (2, "a")), ("DELETE", None)]


def test_keys_are_matched_by_value_however_they_are_written(store: logweir.Log) -> None:
    """A number in more bytes than it needs, as other programs write it, is the same key; and what
    stands in other tuples is none."""
    space = store.schema.space("things").id
    wide = Request(RowType.REPLACE, space, tuple=b"\x92\xce\x00\x00\x00\x01\xa1b")
    gone = Request(RowType.DELETE, space, key=b"\x91\xcd\x00\x01")
    for request in (wide, request_for(RowType.INSERT, store.schema, space, (2, "\x01")), gone):
        store.execute(request)
    told = [one.tuple for one in store.history("things", 1)]
    assert told == [None, (1, "a"), (1, "b"), None]


def test_keys_that_are_a_part_of_one_another_are_not_mixed_up(store: logweir.Log) -> None:
    """Of text, and of several parts, in one block; nor keys of another index that found nothing."""
    fields = [("name", "string"), ("more", "string"), ("number", "unsigned")]
    store.create_space("names", fields, primary=["name", "more"], indexes={"number": ["number"]})
    names = ("", "a", "aa", "ba", "ab", "a\0", "\0a")
    rows = [(one, more, 0) for one in names for more in names]
    store.append("names", [(*row[:2], at) for at, row in enumerate(rows)])
    for at, row in enumerate(rows):
        told = [one.tuple for one in store.history("names", row[:2])]
        assert told == [None, (*row[:2], at)]
    store.create_space("pairs", [("id", "unsigned"), ("other", "unsigned")])
    store.create_index("pairs", "other", ["other"])
    store.insert("pairs", (1, 2))
    before = store.vclock
    store.update("pairs", 1, [["=", 1, 3]], index="other")
    assert store.vclock != before
    assert [one.tuple for one in store.history("pairs", 1)] == [None, (1, 2)]


def test_a_change_that_waits_for_its_confirm_is_not_told(tmp_path: Path) -> None:
    """As it is not seen: only once it is confirmed; one that was rolled back never was."""
    prepared(tmp_path / "store")
    with logweir.open(tmp_path / "store", "write") as log:

        def told() -> list[Any]:
            of_folder = folder_history(log.path, "s", pack([1]), after=None, limit=None)
            found = [one.tuple for one in log.history("s", 1)]
            assert [one.tuple for one in of_folder] == found
            return found

        commit(log, [replace_row(1, "s", 1), replace_row(2, "s", 2)])
        assert (told(), log.waiting) == ([None], 2)
        commit(log, [decision(RowType.CONFIRM, 3, 1), replace_row(4, "s", 1)])
        assert told() == [None, (1, 1)]
        commit(log, [decision(RowType.ROLLBACK, 5, 2), replace_row(6, "s", 1)])
        commit(log, [decision(RowType.CONFIRM, 7, 6)])
        assert (told(), log.get("s", 1)) == ([None, (1, 1), (1, 6)], (1, 6))
