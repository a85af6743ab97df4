"""Folding an archive: the same state as opening or restoring the folder gives, without Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from samples import GOOD, sample
from support.folding import folded_here, keyed_here, prepared_here, state_here
from support.icu import needs_icu
from support.logs import transaction

import logweir
from logweir import pipeline
from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    CorruptFile,
    PositionUnavailable,
    RequestError,
)
from logweir.limits import PIPELINE_NARROW_BYTES, PIPELINE_PART_BYTES, TUPLE_BYTES
from logweir.pipeline.jobs.folding import keyed_rows, look_here, prepare
from logweir.pipeline.jobs.keyed import FoldPlan, Keyer
from logweir.pipeline.jobs.runs import LEAST_RUN_BYTES, RUN_BYTES
from logweir.recovery import restore
from logweir.store.schema import collation
from logweir.store.schema.definition import IndexType, SystemSpace
from logweir.wal.block import EOF_MARKER, encode_block
from logweir.wal.mp import pack, unpack
from logweir.wal.snapshot import read_snapshot
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

OPTIONS: Any = {"checkpoint_interval": 0, "checkpoint_count": 9, "durability": "write"}
SAMPLES = [pytest.param(name, marks=[needs_icu] if name == "02-spaces" else []) for name in GOOD]


def stored_state(folder: Path) -> dict[int, list[bytes]]:
    """What a store that opens the folder writes as a snapshot."""
    with logweir.open(folder, create=False) as log:
        log.insert("_schema", ["of the snapshot", 1])
        path = log.snapshot()
    out: dict[int, list[bytes]] = {}
    for block in read_snapshot(path):
        columns = block.columns
        for row in range(len(columns)):
            data = columns.tuple_bytes(row)
            assert data is not None
            if b"of the snapshot" not in data:
                out.setdefault(columns.space_id[row], []).append(data)
    return out


def test_a_number_in_a_wider_form_is_the_same_key(tmp_path: Path) -> None:
    """Rows as clients of Tarantool may send them: the later one counts, as in the store, and stays
    as it was written; a deletion in yet another form takes it."""
    wide, wider = b"\xce" + bytes(3), b"\xcf" + bytes(7)
    with logweir.open(tmp_path, **OPTIONS) as log:
        log.create_space("t", format=[("id", "unsigned"), ("n", "unsigned")])
        log.insert("t", (5, 1))
        log.insert("t", (6, 1))
        last = log.vclock.lsn(1)
    bodies = [
        (RowType.REPLACE, b"\x82\x10\xcd\x02\x00\x21\x92" + wide + b"\x05\x02"),
        (RowType.DELETE, b"\x82\x10\xcd\x02\x00\x20\x91" + wider + b"\x06"),
    ]
    path = max(tmp_path.glob("*.xlog"))
    blocks = [
        b"".join(map(bytes, encode_block(transaction(last + number, [change]))))
        for number, change in enumerate(bodies, 1)
    ]
    path.write_bytes(path.read_bytes().removesuffix(EOF_MARKER) + b"".join(blocks) + EOF_MARKER)
    found = state_here(prepared_here(tmp_path))[512]
    assert found == [b"\x92" + wide + b"\x05\x02"]
    assert found == stored_state(tmp_path)[512]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("batch_rows", [1, 7, 10_000])
def test_samples_fold_to_what_tarantool_had(name: str, batch_rows: int) -> None:
    """Every sample folds to the exact tuples, in order, that the real program held."""
    wanted = sample(name)
    prepared = prepared_here(wanted.folder)
    assert prepared.vclock == wanted.vclock
    got = state_here(prepared, batch_rows=batch_rows)
    for space_id, tuples in wanted.spaces.items():
        space = prepared.history.schema.space(space_id)
        found = got.get(space_id, [])
        if space.primary is not None and space.primary.type is IndexType.HASH:
            found, tuples = sorted(found), sorted(tuples)  # the program has these in no order
        if tuples or found:
            assert found == tuples, space.name


def test_wanted_spaces_alone_need_no_collation_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ICU is not there, the spaces that can be keyed are had by name, whole and alone; one
    that cannot, all of them, and one that is not there, are refused."""
    monkeypatch.setattr(collation, "_icu", lambda: None)
    collation._icu_maker.cache_clear()
    wanted = sample("02-spaces")
    folder, names = wanted.folder, {name: number for number, name in wanted.space_names.items()}
    schema = prepared_here(folder, spaces=["_schema"]).history.schema
    collated, plain = [], []
    for name, number in names.items():
        space = schema.space(number)
        if space.is_system or space.primary is None or not wanted.spaces.get(number):
            continue
        ordered = [part.collation for part in space.primary.parts]
        needs = any(one is not None and not one.is_binary for one in ordered)
        (collated if needs else plain).append(name)
    assert collated
    assert len(plain) > 2
    for first, second in pairwise(plain):
        prepared = prepared_here(folder, spaces=[first, names[second]], parts=3)
        got = folded_here(prepared)
        assert {number: sorted(tuples) for number, tuples in got.items()} == {
            names[name]: sorted(wanted.spaces[names[name]]) for name in (first, second)
        }
    for spaces in ([collated[0]], []):
        with pytest.raises(RequestError, match="does not support collation"):
            folded_here(prepared_here(folder, spaces=spaces))
    with pytest.raises(RequestError, match="nowhere"):
        prepared_here(folder, spaces=["nowhere"])
    collation._icu_maker.cache_clear()


class Workload:
    """Changes of every kind on several spaces of a store, with all kinds of keys."""

    def __init__(self, log: logweir.Log, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)

    def create(self) -> None:
        """The spaces."""
        log = self.log
        log.create_space("plain", format=[("id", "unsigned"), ("n", "integer"), ("s", "string")])
        log.create_space("names", format=[("s", "string"), ("n", "integer")], primary=["s"])
        log.create_space("numbers", format=[("v", "number"), ("n", "any")], primary=["v"])
        log.create_space("scalars", format=[("v", "scalar"), ("n", "any")], primary=["v"])
        log.create_space(
            "pairs",
            format=[("a", "integer"), ("b", "varbinary"), ("c", "boolean"), ("n", "integer")],
            primary=["b", "a", "c"],
            indexes={"n": {"parts": ["n"], "unique": False}},
        )
        log.create_space("local", format=[("id", "unsigned"), ("n", "integer")], local=True)
        log.create_space("passing", format=[("id", "unsigned")], temporary=True)
        log.create_space("hashed", format=[("id", "unsigned"), ("n", "any")], type="HASH")
        log.create_sequence("numbering")
        log.create_space("numbered", format=[("id", "unsigned"), ("n", "any")])
        log.use_sequence("numbered", "numbering")

    def run(self, rounds: int) -> None:
        """Random changes."""
        for _ in range(rounds):
            self.random.choice(
                [self.plain, self.named, self.valued, self.paired, self.others, self.together]
            )()

    def plain(self) -> None:
        """Updates and upserts on one space."""
        log, pick = self.log, self.random
        key = pick.randrange(30)
        kind = pick.randrange(5)
        if kind == 0:
            log.replace("plain", [key, pick.randrange(100), "s" * pick.randrange(40)])
        elif kind == 1:
            log.update("plain", key, [("+", 1, 5), ("=", "s", "updated")])
        elif kind == 2:
            log.upsert("plain", [key, 1, "new"], [("-", "n", 3), ("!", 3, [1, {"a": 2}])])
        elif kind == 3:
            log.delete("plain", key)
        else:
            log.upsert("plain", [key, 1, "new"], [("=", 0, key + 1)])  # ignored where it is there

    def named(self) -> None:
        """Strings as keys, also with zeros and of different lengths."""
        key = self.random.choice(["", "a", "a\0", "a\0b", "ab", "ä", "z" * 300])
        if self.random.random() < 0.3:
            self.log.delete("names", key)
        else:
            self.log.upsert("names", [key, 0], [("+", 1, 1)])

    def valued(self) -> None:
        """Numbers of all kinds that are equal, and scalars."""
        number: Any = self.random.choice([1, 1.0, Decimal("1.00"), 2**64 - 1, -3, -3.5, 0.1, 1e300])
        self.log.replace("numbers", [number, self.random.randrange(9)])
        scalar: Any = self.random.choice([1, "1", b"1", True, False, 1.5, Decimal("1.5"), "x"])
        self.log.replace("scalars", [scalar, self.random.randrange(9)])

    def paired(self) -> None:
        """A key of several parts in another order than the fields."""
        values = [self.random.randrange(-2, 2), self.random.choice([b"", b"\0", b"\xff"]), True]
        primary = self.log.schema.space("pairs").primary
        assert primary is not None
        key = [values[part.field_no] for part in primary.parts]
        if self.random.random() < 0.5:
            self.log.replace("pairs", [*values, self.random.randrange(5)])
        elif self.random.random() < 0.5:
            self.log.update("pairs", key, [("+", "n", 1)])
        else:
            self.log.delete("pairs", key)

    def others(self) -> None:
        """Local, temporary, hashed, numbered."""
        n = self.random.randrange(50)
        self.log.replace("local", [n % 7, n])
        self.log.replace("passing", [n])
        self.log.replace("hashed", [n % 11, [n]])
        self.log.insert("numbered", [None, n])

    def together(self) -> None:
        """One transaction over several spaces."""
        with self.log.transaction() as tx:
            for n in range(self.random.randrange(1, 5)):
                tx.replace("plain", [n, n, "tx"])
                tx.delete("hashed", n)
                tx.upsert("names", ["tx", 0], [("+", 1, n)])

    def change_definitions(self) -> None:
        """Everything that a definition can become."""
        log = self.log
        more = {"name": "more", "type": "any", "is_nullable": True}
        fields = [("id", "unsigned"), ("n", "integer"), ("s", "string"), more]
        log.alter_space("plain", format=fields)
        log.create_index("plain", "by n", {"parts": [(1, "integer")], "unique": False})
        log.drop_index("plain", "by n")
        log.truncate("hashed")
        log.drop_space("scalars")
        log.create_space("scalars", format=[("v", "scalar"), ("n", "any")], primary=["v"])
        log.create_space("gone", format=[("id", "unsigned")])
        log.insert("gone", [1])
        log.drop_space("gone")
        log.alter_space("numbers", name="figures")
        log.alter_space("figures", name="numbers")
        parts = [[0, "integer"], [1, "varbinary"], [2, "boolean"]]
        log.update("_index", [log.schema.space("pairs").id, 0], [("=", 5, parts)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a snapshot in the middle, several logs, and changed definitions."""
    with logweir.open(tmp_path / "data", **OPTIONS) as log:
        work = Workload(log, 20)
        work.create()
        work.run(150)
        log.snapshot()
        work.run(200)
        work.change_definitions()
        work.run(100)
    with logweir.open(tmp_path / "data", create=False, **OPTIONS) as log:
        work = Workload(log, 21)
        work.run(60)
        log.snapshot()
        work.run(40)
    return tmp_path / "data"


@pytest.mark.parametrize("split_bytes", [400, 4000, 10**9])
def test_any_splits_and_parts_fold_to_what_a_store_holds(folder: Path, split_bytes: int) -> None:
    """Definitions that change, transactions, truncation, local and temporary spaces: as opened."""
    prepared = prepared_here(folder, split_bytes=split_bytes, parts=5)
    got = state_here(prepared, batch_rows=50)
    wanted = stored_state(folder)
    assert got == wanted


@pytest.mark.parametrize("stretch_bytes", [1, 500, 20_000, 10**9])
def test_rows_that_are_void_are_left_out_early(folder: Path, stretch_bytes: int) -> None:
    """Whatever stretch of rows is looked at together, the state is the same; all at once leaves
    of each key at most one insert, replace or delete, and drops rows."""
    prepared = prepared_here(folder, snapshot=min(path.name for path in folder.glob("*.snap")))
    state = state_here(prepared, stretch_bytes=stretch_bytes)
    rows = keyed_here(prepared, stretch_bytes).to_pylist()
    if stretch_bytes == 10**9:
        assert len(prepared.splits) == 1
        assert len(rows) < keyed_here(prepared, 1).num_rows
        full = (RowType.INSERT, RowType.REPLACE, RowType.DELETE)
        kept = [row for row in rows if row["file"] and row["what"] & 31 in full]
        assert len({(row["what"] >> 10, row["key"]) for row in kept}) == len(kept)
    assert state == stored_state(folder)  # which removes the first snapshot


def _set_back(log: logweir.Log, sequence_id: int) -> None:
    log.replace("_sequence_data", [sequence_id, 2])
    log.snapshot()


TAUGHT = [
    pytest.param(_set_back, [2], id="set back below rows of a snapshot"),
    pytest.param(lambda log, _: log.insert("t", [2**64 - 1]), [5], id="beyond the highest"),
    pytest.param(lambda log, _: log.truncate("t"), [5], id="rows that are gone"),
    pytest.param(lambda log, _: log.drop_space("t"), [5], id="a space that is gone"),
]


@pytest.mark.parametrize(("change", "wanted"), TAUGHT)
def test_a_sequence_has_the_number_that_the_store_has(
    tmp_path: Path, change: Any, wanted: list[int]
) -> None:
    """Whatever becomes of the rows that it learned from; rows of a snapshot teach nothing. Where
    only the rows of a space are wanted nothing is learned."""
    with logweir.open(tmp_path, **OPTIONS) as log:
        log.create_sequence("numbers")
        log.create_space("t", format=[("id", "unsigned")])
        log.create_space("other", format=[("id", "unsigned")])
        log.use_sequence("t", "numbers")
        sequence = log.schema.space("t").sequence
        assert sequence is not None
        for _ in range(5):
            log.insert("t", [None])
        change(log, sequence.sequence_id)
    assert folded_here(prepared_here(tmp_path, spaces=["other"])) == {}
    data = SystemSpace.SEQUENCE_DATA
    found = state_here(prepared_here(tmp_path))
    assert [unpack(row)[1] for row in found[data]] == wanted
    assert found == stored_state(tmp_path)


def test_rows_that_are_gone_and_taught_nothing_make_no_part(tmp_path: Path) -> None:
    """A sequence does not learn from upserts: nothing is left to be folded."""
    with logweir.open(tmp_path, **OPTIONS) as log:
        log.create_sequence("numbers")
        log.create_space("t", format=[("id", "unsigned")])
        log.use_sequence("t", "numbers")
        log.upsert("t", [7], [])
        log.truncate("t")
    prepared = prepared_here(tmp_path)
    (split,) = prepared.splits
    assert list(keyed_rows(split, prepared.options, Keyer(prepared.plan))) == []


def test_rows_that_are_gone_need_no_tuple(tmp_path: Path) -> None:
    """What no program writes, an insert of nothing, teaches a sequence nothing."""
    with logweir.open(tmp_path, **OPTIONS) as log:
        log.create_sequence("numbers")
        log.create_space("t", format=[("id", "unsigned")])
        log.use_sequence("t", "numbers")
        log.insert("t", [5])
        last = log.vclock.lsn(1)
    space, truncate = b"\x10\xcd\x02\x00", b"\x10\xcd\x01\x4a"
    bodies = [b"\x81" + space, b"\x82" + truncate + b"\x21\x92\xcd\x02\x00\x01"]
    path = max(tmp_path.glob("*.xlog"))
    blocks = [
        b"".join(map(bytes, encode_block(transaction(last + number, [(RowType.REPLACE, body)]))))
        for number, body in enumerate(bodies, 1)
    ]
    path.write_bytes(path.read_bytes().removesuffix(EOF_MARKER) + b"".join(blocks) + EOF_MARKER)
    assert folded_here(prepared_here(tmp_path)) == {SystemSpace.SEQUENCE_DATA: [pack([1, 5])]}


def test_tuples_are_as_large_as_where_they_were_written(tmp_path: Path) -> None:
    """Those that were changed, too: of a store that takes more than others do."""
    with logweir.open(tmp_path, **OPTIONS, tuple_bytes=4 * TUPLE_BYTES) as log:
        log.create_space("t", format=[("id", "unsigned"), ("s", "string"), ("n", "unsigned")])
        log.insert("t", [1, "s" * 2 * TUPLE_BYTES, 1])
        log.update("t", 1, [("+", "n", 1)])
        log.upsert("t", [1, "", 0], [("+", "n", 1)])
        tuples = [pack(list(row)) for row in log.select("t")]
        number = log.schema.space("t").id
    assert unpack(tuples[0])[2] == 3
    assert folded_here(prepared_here(tmp_path)) == {number: tuples}


def test_what_is_handed_on_depends_on_keys_not_on_changes(tmp_path: Path) -> None:
    """A log that changes few keys often, looked at in small stretches: a row per key is left."""
    with logweir.open(tmp_path / "data") as log:
        log.create_space("few", format=[("id", "unsigned"), ("text", "string")])
        for number in range(100):
            with log.transaction() as tx:
                for key in range(20):
                    tx.replace("few", [key, f"text {number}"])
    prepared = prepared_here(tmp_path / "data")
    prepared = replace(prepared, options=replace(prepared.options, batch_rows=100))
    changes = [row for row in keyed_here(prepared, 20_000).to_pylist() if row["file"]]
    assert len([row for row in changes if row["space_id"] == 512]) == 20
    assert state_here(prepared, stretch_bytes=20_000) == stored_state(tmp_path / "data")


def test_an_older_snapshot_folds_to_the_same(folder: Path) -> None:
    """Starting from the first snapshot, over more of the log, gives the same state."""
    first = min(path.name for path in folder.glob("*.snap"))
    assert state_here(prepared_here(folder, snapshot=first)) == state_here(prepared_here(folder))


def test_every_vclock_gives_what_restore_gives(folder: Path, tmp_path: Path) -> None:
    """At positions all over the log the folded state is that of the restored folder."""
    end = prepared_here(folder).vclock
    for number, lsn in enumerate(range(20, end.lsn(1), 211)):
        until = VClock({1: lsn})
        restored = tmp_path / f"restored-{number}"
        result = restore(folder, restored, at=until)
        prepared = prepared_here(folder, until=until)
        assert prepared.vclock == result.vclock
        assert state_here(prepared) == state_here(prepared_here(restored))


def test_a_time_gives_what_restore_gives(folder: Path, tmp_path: Path) -> None:
    """The cut at a time is the one that `restore` makes; before the log there is none."""
    stamps = sorted(row.timestamp for row in logweir.read(folder) if row.replica_id)
    for number in range(3):
        time = stamps[(number + 1) * len(stamps) // 4]
        restored = tmp_path / f"restored-{number}"
        result = restore(folder, restored, at=time)
        prepared = prepared_here(folder, until=time)
        assert prepared.vclock == result.vclock
        assert state_here(prepared) == state_here(prepared_here(restored))


def test_a_position_that_the_log_has_not_is_refused(folder: Path) -> None:
    """Beyond the end, and in front of the oldest snapshot."""
    end = prepared_here(folder).vclock
    with pytest.raises(PositionUnavailable):
        prepared_here(folder, until=end.with_lsn(1, end.lsn(1) + 1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_log_is_a_gap(number: int, folder: Path) -> None:
    """Rows that are missing on the way are refused, by the name of the file behind them: also those
    between a snapshot and the oldest log, of which no header tells."""
    logs = sorted(folder.glob("*.xlog"))
    first = min(path.name for path in folder.glob("*.snap"))
    logs[number].unlink()
    with pytest.raises(ChainGap) as caught:
        prepared_here(folder, snapshot=first)
    assert caught.value.path


def test_a_flipped_bit_is_named_with_file_and_offset(folder: Path) -> None:
    """Damage stops the job with the file and the byte of the block."""
    log = max(folder.glob("*.xlog"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x10
    log.write_bytes(data)
    first = min(path.name for path in folder.glob("*.snap"))
    with pytest.raises(CorruptBlock) as caught:
        folded_here(prepared_here(folder, snapshot=first))
    assert caught.value.path == str(log)
    assert 0 < (caught.value.offset or 0) <= len(data) // 2


def test_a_plan_survives_its_way_to_a_worker(folder: Path) -> None:
    """The text of a plan gives the same plan and the same history."""
    plan = prepared_here(folder, parts=4).plan
    again = FoldPlan.from_text(plan.to_text())
    assert again == plan
    assert [era.start for era in again.history().eras] == [era.start for era in plan.history().eras]


def test_parts_are_ranges_of_keys(folder: Path) -> None:
    """No key is in two parts, and parts ascend with keys."""
    prepared = prepared_here(folder, parts=6, split_bytes=400)
    table = keyed_here(prepared)
    assert prepared.plan.parts > 2
    numbers = Keyer(prepared.plan).parted(table.combine_chunks().to_batches()[0]).tolist()
    rows = [row | {"part": part} for row, part in zip(table.to_pylist(), numbers, strict=True)]
    ordered = sorted({(row["space_id"], row["key"], row["part"]) for row in rows})
    numbers = [part for _, _, part in ordered]
    assert numbers == sorted(numbers)
    assert len({one[:2] for one in ordered}) == len(ordered)
    for row in rows:
        assert row["part"] == prepared.plan.part_of(row["space_id"], row["key"])


def test_runs_that_overlap_are_no_more_than_a_part(folder: Path) -> None:
    """One of each stretch of all rows fits into a task, until runs are as small as they may be."""
    prepared = prepared_here(folder)
    assert prepared.is_small
    for size in (10**6, 10**8, 10**10, 10**11, 10**13):
        one = replace(prepared, size=size)
        assert one.is_small == (size < PIPELINE_PART_BYTES)
        stretches = size // PIPELINE_NARROW_BYTES + 1
        assert LEAST_RUN_BYTES <= one.run_bytes <= RUN_BYTES
        if one.run_bytes > LEAST_RUN_BYTES:
            assert stretches * one.run_bytes <= PIPELINE_PART_BYTES
    assert not replace(prepared, splits=prepared.splits * 2).is_small


def test_a_vinyl_space_is_refused_by_name() -> None:
    """Rows of vinyl are in other files: its space is named."""
    prepared = prepared_here(sample("01-fresh").folder)
    prepared.history.refuse_other_engines()
    space = prepared.history.schema.space("_schema")
    import dataclasses

    other = dataclasses.replace(space, id=600, name="elsewhere", engine="vinyl")
    prepared.history.schema._put(other)
    with pytest.raises(RequestError, match="elsewhere"):
        prepared.history.refuse_other_engines()


# --- folders of several stores --------------------------------------------------------------------


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Three, of which two have the space `a` alike, and the third `b` first."""
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for folder, names in zip(folders, ("ab", "ab", "ba"), strict=True):
        with logweir.open(folder, **OPTIONS) as log:
            for name in names:
                log.create_space(name, format=[("id", "unsigned")])
                log.insert(name, (ord(name),))
    return folders


def test_a_state_is_that_of_one_store(stores: list[Path]) -> None:
    """Folders of two stores are refused: rows of one are no changes of the other."""
    for folders in (stores[:2], stores[1::-1]):
        with pytest.raises(CorruptFile, match="that of another folder"):
            prepare(look_here, folders)


def test_a_space_of_several_stores_is_the_same_in_each(stores: list[Path]) -> None:
    """Its rows are read where all define it alike, by its fields and by its name; where its id is
    another space's in one of them, that is an error and no row of that other space."""
    options: dict[str, Any] = {"kinds": "xlog"}
    typed = pipeline.batches(*stores[:2], space="a", columns=["id"], **options).read_all()
    assert typed.column("id").to_pylist() == [97, 97]
    raw = pipeline.batches(*stores[:2], spaces="a", columns=["tuple"], **options).read_all()
    assert raw.column("tuple").to_pylist() == [pack([97])] * 2
    for given in ({"space": "a"}, {"spaces": "a"}):
        with pytest.raises(ConfigError, match="store"):
            pipeline.batches(*stores, **given, **options).read_all()
    both = pipeline.batches(*stores, spaces="a,b", columns=["tuple"], **options).read_all()
    assert both.num_rows == 6
