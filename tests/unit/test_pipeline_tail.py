"""The pipeline without Spark: the tail of a live folder, and what a commit publishes."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows
from samples import sample

import logweir
from logweir import pipeline
from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    DecodeError,
    DirectoryLocked,
    PositionUnavailable,
    WalError,
)
from logweir.pipeline.checkpoints import query_id, stream_name
from logweir.pipeline.frames import scan_options
from logweir.pipeline.options import STAGE, ScanOptions, SinkOptions
from logweir.pipeline.parts import Part, PartWriter, SinkLayout, check_sink_columns
from logweir.pipeline.publish import Target, publish, remove_stale_stages
from logweir.pipeline.reading import scan
from logweir.pipeline.streams import TailReader, from_offset, to_offset
from logweir.pipeline.tail import Caps, Tail
from logweir.recovery import examine
from logweir.wal.mp import pack
from logweir.wal.replacing import REPLACING_NAME
from logweir.wal.vclock import VClock


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """An open store with a space `t` and small log files."""
    with logweir.open(tmp_path / "data", wal_max_size=1500, checkpoint_count=1) as opened:
        opened.create_space("t", format=[("id", "unsigned"), ("s", "string")])
        yield opened


def read_between(tail: Tail, options: ScanOptions, start: VClock, end: VClock) -> list[int]:
    """The lsns of a batch, as its tasks read them."""
    bounded = replace(options, vclock_from=start, vclock_to=end)
    return [
        lsn
        for split in tail.splits(start, end)
        for batch in scan(split, bounded)
        for lsn in batch.column("lsn").to_pylist()
    ]


def transactions(log: logweir.Log, first: int, count: int) -> None:
    """`count` transactions of three rows each."""
    for number in range(first, first + 3 * count, 3):
        with log.transaction() as transaction:
            for more in range(3):
                transaction.insert("t", (number + more, "x" * 20))


# --- the tail -------------------------------------------------------------------------------------


@pytest.mark.parametrize("caps", [Caps(rows=1), Caps(rows=7), Caps(size_bytes=200), Caps(files=1)])
def test_capped_steps_hold_whole_transactions_once(log: logweir.Log, caps: Caps) -> None:
    """Steps of any size, over several files, give each row once, in order, and never half of a
    transaction; a tail that remembers nothing gives the same rows for the same positions."""
    options = scan_options(log.path, columns=["lsn"])
    tail = Tail(options)
    position = start = tail.oldest()
    transactions(log, 0, 40)
    found: list[int] = []
    steps = []
    while (following := tail.advance(position, caps)) != position:
        rows = read_between(tail, options, position, following)
        assert rows == read_between(Tail(options), options, position, following)
        steps.append(len(rows))
        found += rows
        position = following
    assert found == list(range(start.signature + 1, log.vclock.signature + 1))
    assert len(steps) > 2
    ends = {sum(steps[:number]) for number in range(1, len(steps) + 1)}
    assert all((end - len(found)) % 3 == 0 for end in ends)
    assert position == tail.newest() == log.vclock
    tail.close()


def test_nothing_new_moves_nothing(log: logweir.Log) -> None:
    """At the end a step returns its start, and new rows are seen by the next one."""
    tail = Tail(scan_options(log.path))
    end = tail.advance(tail.oldest())
    assert tail.advance(end) == end
    log.insert("t", (1, "x"))
    assert tail.advance(end) == log.vclock
    tail.close()


def test_a_collected_log_is_named_or_passed_over(log: logweir.Log) -> None:
    """A position whose log was removed fails with folder, file and hint; with
    fail_on_data_loss=false the step begins where the logs do."""
    start = Tail(scan_options(log.path)).oldest()
    transactions(log, 0, 30)
    log.snapshot()
    transactions(log, 100, 30)
    log.snapshot()
    transactions(log, 200, 1)
    oldest = min(log.path.glob("*.xlog"))
    assert int(oldest.stem) > start.signature
    with (
        closing(Tail(scan_options(log.path))) as tail,
        pytest.raises(PositionUnavailable, match=oldest.name),
    ):
        tail.advance(start)
    with pytest.raises(PositionUnavailable, match="fail_on_data_loss"):
        Tail(scan_options(log.path)).splits(start, log.vclock)
    options = scan_options(log.path, fail_on_data_loss=False, columns=["lsn"])
    with closing(Tail(options)) as tail:
        end = tail.advance(start)
    assert end == log.vclock
    rows = read_between(tail, options, start, end)
    assert rows == list(range(int(oldest.stem) + 1, log.vclock.signature + 1))
    assert rows == read_between(Tail(options), options, start, end)


def test_a_checkpoint_of_a_longer_log_is_refused(log: logweir.Log) -> None:
    """A batch whose end the folder does not reach names both."""
    tail = Tail(scan_options(log.path))
    with pytest.raises(PositionUnavailable, match="another folder"):
        tail.splits(tail.oldest(), VClock({1: 10**9}))


def test_damage_stops_a_stream(log: logweir.Log) -> None:
    """A flipped byte in an older file is an error, not an end."""
    start = Tail(scan_options(log.path)).oldest()
    transactions(log, 0, 40)
    path = sorted(log.path.glob("*.xlog"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with (
        closing(Tail(scan_options(log.path))) as tail,
        pytest.raises(CorruptBlock, match=path.name),
    ):
        tail.advance(start)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """There is nothing to follow; a folder with a snapshot only has a beginning."""
    with pytest.raises(WalError, match="nothing to follow"):
        Tail(scan_options(tmp_path)).oldest()
    snap = next(sample("01-fresh").folder.glob("*.snap"))
    shutil.copy(snap, tmp_path)
    tail = Tail(scan_options(tmp_path))
    assert tail.advance(tail.oldest()) == tail.newest() == VClock()


# --- the stream reader ----------------------------------------------------------------------------


def test_offsets_are_json_with_string_keys_in_order() -> None:
    """One clock has one spelling, and another source's offset is refused."""
    offset = to_offset(VClock({10: 5, 2: 7}))
    assert list(offset["vclock"].items()) == [("2", 7), ("10", 5)]
    assert from_offset(offset) == VClock({10: 5, 2: 7})
    for bad in ({}, {"vclock": {"x": 1}}, {"vclock": [1]}, {"numbers": {"0": "1"}}):
        with pytest.raises(ConfigError, match="checkpoint"):
            from_offset(bad)


def test_available_now_stops_at_its_target(log: logweir.Log) -> None:
    """Rows that come after the query began are left for the next one, caps or not; a reader
    pickles while its files are open."""
    transactions(log, 0, 10)
    options = ScanOptions.parse({"path": str(log.path), "max_rows_per_batch": "9"})
    reader = TailReader(options)
    reader.prepareForTriggerAvailableNow()
    target = {"instance": str(log.instance), **to_offset(log.vclock)}
    transactions(log, 100, 10)
    position = reader.initialOffset()
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    steps = 0
    while (following := reader.latestOffset(position, ReadMaxRows(9))) != position:
        position = following
        steps += 1
    assert position == target
    assert steps > 2
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == target
    assert reader.partitions(target, target) == []
    again = pickle.loads(pickle.dumps(reader))
    assert again.latestOffset(position, ReadMaxFiles(1)) == target
    reader.stop()


def test_a_stream_begins_where_it_is_told(log: logweir.Log) -> None:
    """Earliest, latest, or a vclock."""
    transactions(log, 0, 3)
    for given, expected in (
        ("earliest", VClock()),
        ("latest", log.vclock),
        ("{1: 3}", VClock({1: 3})),
    ):
        reader = TailReader(ScanOptions.parse({"path": str(log.path), "from": given}))
        assert reader.initialOffset() == {"instance": str(log.instance), **to_offset(expected)}
        reader.stop()


def test_a_store_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    """Its first rows have the positions that the checkpoint says were read."""
    folder = tmp_path / "log"

    def fill(count: int) -> None:
        with logweir.open(folder) as log:
            log.create_space("t", format=[("id", "unsigned"), ("text", "string")])
            transactions(log, 0, count)

    fill(3)
    reader = TailReader(ScanOptions.parse({"path": str(folder)}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    shutil.rmtree(folder)
    fill(6)
    again = TailReader(ScanOptions.parse({"path": str(folder)}))
    for ask in (
        lambda: again.latestOffset(end, ReadAllAvailable()),
        lambda: again.partitions(start, end),
    ):
        with pytest.raises(ConfigError, match="the checkpoint was made with"):
            ask()
    again.stop()


def test_a_stream_that_begins_before_its_store_is_of_that_store(tmp_path: Path) -> None:
    """Its checkpoint names it as soon as there is one; until then one of a store is refused."""
    reader = TailReader(ScanOptions.parse({"path": str(tmp_path), "from": "{}"}))
    start = reader.initialOffset()
    assert start == {"instance": "", "vclock": {}}
    with pytest.raises(ConfigError, match=r"has no store.*was made with a"):
        reader.latestOffset({**start, "instance": "a"}, ReadAllAvailable())
    with logweir.open(tmp_path) as log:
        log.create_space("t", format=[("id", "unsigned")])
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end == {"instance": str(log.instance), **to_offset(log.vclock)}
    reader.stop()


@pytest.mark.parametrize("name", ["on_error", "vclock_to", "recursive", "kinds", "live"])
def test_batch_options_are_refused_in_streams(name: str) -> None:
    """What a stream cannot do is refused by name."""
    value = {"on_error": "skip", "vclock_to": "{1: 5}", "kinds": "snap"}.get(name, "false")
    value = "true" if name == "recursive" else value
    with pytest.raises(ConfigError, match=name):
        TailReader(ScanOptions.parse({"path": "/data", name: value}))


# --- parts and commits ----------------------------------------------------------------------------


def batch(ids: list[int], **columns: Any) -> pa.RecordBatch:
    """REPLACEs in space 512."""
    return pa.RecordBatch.from_pydict(
        {
            "type": pa.array([3] * len(ids), pa.int16()),
            "space_id": pa.array([512] * len(ids), pa.int64()),
            "tuple": pa.array([pack([one, "x" * 300]) for one in ids], pa.binary()),
            **columns,
        }
    )


def stage(folder: Path, layout: SinkLayout, *batches: pa.RecordBatch) -> list[Part]:
    """One part per batch."""
    stage = folder / f"{STAGE}x"
    stage.mkdir(parents=True, exist_ok=True)
    parts = []
    for one in batches:
        writer = PartWriter(stage / f"part-{len(list(stage.iterdir()))}", layout)
        try:
            writer.add(one)
            parts.append(writer.finish())
        except BaseException:
            writer.abandon()
            raise
    return parts


def ids_of(folder: Path) -> list[int]:
    """The first fields of all tuples, by the plain reader."""
    return [row.decoded()["tuple"][0] for row in logweir.read(folder)]


NEW = SinkLayout(kind="xlog", keeps=False, timestamp=5.0)
KEEP = SinkLayout(kind="xlog", keeps=True, timestamp=5.0)


def test_new_positions_go_on_behind_the_folder(tmp_path: Path) -> None:
    """Two commits make two files with one chain of lsns; a store opens none of it half."""
    for number in range(2):
        parts = stage(
            tmp_path, NEW, batch(list(range(1000))), batch([]), batch(list(range(1000, 1500)))
        )
        path = publish(Target(tmp_path, NEW, replica_id=3), parts)
        assert path is not None
        assert path.name == f"{1500 * number:020d}.xlog"
    rows = list(logweir.read(tmp_path))
    assert [row.lsn for row in rows] == list(range(1, 3001))
    assert {row.replica_id for row in rows} == {3}
    assert all(row.tsn == row.lsn and row.commit for row in rows)
    assert ids_of(tmp_path) == [*range(1500), *range(1500)]


def test_transactions_stay_whole_with_new_positions(tmp_path: Path) -> None:
    """Rows up to one with bit 0 of `flags` are one transaction; a part that ends inside of one
    is refused."""
    flags = pa.array([0, 0, 1] * 400, pa.int16())
    parts = stage(tmp_path, NEW, batch(list(range(1200)), flags=flags))
    publish(Target(tmp_path, NEW), parts)
    rows = list(logweir.read(tmp_path))
    assert [row.tsn for row in rows] == [1 + 3 * (number // 3) for number in range(1200)]
    with pytest.raises(DecodeError, match="inside a transaction"):
        stage(tmp_path, NEW, batch([1, 2], flags=pa.array([1, 0], pa.int16())))


def kept(ids: list[int], replica_id: int = 1) -> pa.RecordBatch:
    """Rows whose lsn is their id."""
    return batch(
        ids,
        lsn=pa.array(ids, pa.int64()),
        replica_id=pa.array([replica_id] * len(ids), pa.int32()),
    )


def test_positions_must_rise_over_all_parts(tmp_path: Path) -> None:
    """Parts that overlap, go back inside, or begin before the folder's end publish nothing."""
    publish(Target(tmp_path, KEEP), stage(tmp_path, KEEP, kept([1, 2, 5]), kept([6, 9])))
    assert [row.lsn for row in logweir.read(tmp_path)] == [1, 2, 5, 6, 9]
    before = sorted(path.name for path in tmp_path.glob("*.xlog*"))
    for parts in ([kept([9, 10])], [kept([10, 20]), kept([15, 30])]):
        with pytest.raises(ChainGap, match="positions=new"):
            publish(Target(tmp_path, KEEP), stage(tmp_path, KEEP, *parts))
    with pytest.raises(DecodeError, match="does not come after"):
        stage(tmp_path, KEEP, kept([30, 29]))
    publish(Target(tmp_path, KEEP), stage(tmp_path, KEEP, kept([3], 2), kept([10], 1)))
    assert len(list(tmp_path.glob("*.xlog*"))) == len(before) + 1


def test_a_batch_is_published_once(tmp_path: Path) -> None:
    """The second commit of the same batch adds nothing; the next one goes on."""
    for number, expected in ((0, 10), (0, 10), (1, 20), (1, 20)):
        parts = stage(tmp_path, NEW, batch(list(range(10))))
        publish(Target(tmp_path, NEW, batch=f"query/{number}"), parts)
        assert len(ids_of(tmp_path)) == expected


@pytest.mark.kill
@pytest.mark.parametrize("place", ["before_rename", "after_rename"])
def test_a_driver_killed_in_a_commit_publishes_all_or_nothing(tmp_path: Path, place: str) -> None:
    """Killed on either side of the rename, and committed again by Spark's next run: the batch is
    there once, and nothing of it was visible before."""
    target = Target(tmp_path, NEW, batch="query/0")
    parts = stage(tmp_path, NEW, batch(list(range(500))))
    publishing = pickle.dumps((target, parts)).hex()
    code = (
        "import pickle; from logweir.pipeline.publish import publish; "
        f"publish(*pickle.loads(bytes.fromhex('{publishing}')))"
    )
    killed = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "LOGWEIR_FAILPOINTS": f"pipeline.{place}=kill"},
    )
    assert killed.returncode == -signal.SIGKILL
    visible = list(tmp_path.glob("*.xlog"))
    assert len(visible) == (place == "after_rename")
    publish(target, stage(tmp_path, NEW, batch(list(range(500)))))
    assert ids_of(tmp_path) == list(range(500))
    assert not list(tmp_path.glob("*.inprogress"))


def test_a_part_that_changed_publishes_nothing(tmp_path: Path) -> None:
    """A staged file that was cut or changed since is damage, and no file is there."""
    for change in (lambda data: data[:-1], lambda data: data[:-1] + bytes((data[-1] ^ 1,))):
        parts = stage(tmp_path, NEW, batch(list(range(10))))
        path = Path(parts[0].path)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(CorruptBlock, match="staged part"):
            publish(Target(tmp_path, NEW), parts)
        assert not list(tmp_path.glob("*.xlog*"))


def test_a_folder_that_is_open_is_refused(log: logweir.Log) -> None:
    """A store that holds the folder keeps it."""
    parts = stage(log.path, NEW, batch([1]))
    with pytest.raises(DirectoryLocked):
        publish(Target(log.path, NEW), parts)


def test_overwriting_replaces_all_files(tmp_path: Path) -> None:
    """All that was there is gone, also the mark of where a store's log ended."""
    with logweir.open(tmp_path, wal_max_size=4096) as log:
        log.create_space("t", format=[("id", "unsigned")])
        log.append("t", [(number,) for number in range(1000)])
    publish(Target(tmp_path, NEW, replaces=True), stage(tmp_path, NEW, batch([7, 8])))
    assert ids_of(tmp_path) == [7, 8]
    assert len(list(tmp_path.glob("*.xlog"))) == 1
    assert [one.kind for one in examine(tmp_path).damage] == ["missing_snapshot"]
    assert not (tmp_path / REPLACING_NAME).exists()


@pytest.mark.kill
@pytest.mark.parametrize(
    ("place", "is_new"),
    [
        ("before_replacing", False),
        ("before_rename", False),
        ("after_rename", True),
        ("after_replacing", True),
    ],
)
@pytest.mark.parametrize("finish", ["read", "publish", "open"])
def test_a_driver_killed_while_it_overwrites_leaves_the_old_or_the_new(
    tmp_path: Path, place: str, is_new: bool, finish: str
) -> None:
    """Never both: whoever looks sees all old rows or all new ones, and the next who may write
    removes the rest."""
    with logweir.open(tmp_path, wal_max_size=4096, checkpoint_interval=0) as log:
        log.create_space("t", format=[("id", "unsigned"), ("text", "string")])
        for number in range(100):
            log.insert("t", (number, "x" * 50))
        end = log.vclock
    before = [row.lsn for row in logweir.read(tmp_path)]
    target = Target(tmp_path, NEW, replaces=True)
    publishing = pickle.dumps((target, stage(tmp_path, NEW, batch([7, 8])))).hex()
    code = (
        "import pickle; from logweir.pipeline.publish import publish; "
        f"publish(*pickle.loads(bytes.fromhex('{publishing}')))"
    )
    killed = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "LOGWEIR_FAILPOINTS": f"pipeline.{place}=kill"},
    )
    assert killed.returncode == -signal.SIGKILL
    if finish == "publish":
        publish(target, stage(tmp_path, NEW, batch([9])))
        assert ids_of(tmp_path) == [9]
        assert len(list(tmp_path.glob("*.xlog"))) == 1
    elif finish == "open" and not is_new:
        with logweir.open(tmp_path) as log:
            assert (log.vclock, log.count("t")) == (end, 100)
    elif is_new:
        assert [one.kind for one in examine(tmp_path).damage] == ["missing_snapshot"]
        assert ids_of(tmp_path) == [7, 8]
        assert len(rows_of_folder(tmp_path)) == 2
    else:
        assert [row.lsn for row in logweir.read(tmp_path)] == before


def rows_of_folder(folder: Path) -> list[int]:
    """The lsns of all rows, by the pipeline."""
    batches = pipeline.batches(folder, columns=["lsn"])
    return [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]


def test_a_snapshot_is_made_of_ordered_parts(tmp_path: Path) -> None:
    """A copy of a Tarantool's snapshot holds the same tuples in the same order; parts whose spaces
    go back are refused, and so is a snapshot that does not say what it contains."""
    layout = SinkLayout(kind="snap", keeps=False, timestamp=5.0)
    folder = sample("02-spaces").folder
    snap = max(folder.glob("*.snap"))
    columns = ["space_id", "tuple", "group_id"]
    found = list(pipeline.batches(snap, columns=columns, batch_rows=100))
    clock = VClock({1: 1356})
    path = publish(Target(tmp_path, layout, vclock=clock), stage(tmp_path, layout, *found))
    assert path is not None
    bodies = [(row.type, row.group_id, row.body) for row in logweir.read(snap)]
    assert [(row.type, row.group_id, row.body) for row in logweir.read(path)] == bodies
    with pytest.raises(ConfigError, match="is there already"):
        publish(Target(tmp_path, layout, vclock=clock), stage(tmp_path, layout, *found))
    with pytest.raises(ConfigError, match="what it contains"):
        publish(Target(tmp_path, layout), stage(tmp_path, layout, *found))
    parts = stage(tmp_path, layout, *reversed(found[:3]))
    with pytest.raises(DecodeError, match="begins with space"):
        publish(Target(tmp_path, layout, vclock=VClock({1: 9})), parts)
    mixed = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
    with pytest.raises(DecodeError, match="begin with the system spaces"):
        stage(tmp_path, layout, mixed.take(pa.array(range(mixed.num_rows - 1, -1, -1))))


def test_stages_that_were_left_are_removed(tmp_path: Path) -> None:
    """Those of the same query at once, others when they are a day old."""
    for name in ("q-1", "other-1", "other-2"):
        (tmp_path / f"{STAGE}{name}").mkdir()
    os.utime(tmp_path / f"{STAGE}other-1", (0, 0))
    remove_stale_stages(tmp_path, query="q")
    assert [path.name for path in tmp_path.iterdir()] == [f"{STAGE}other-2"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tuple": b"\x91\x01\x02"}, "not one whole"),
        ({"tuple": b"\xdd\xff\xff\xff\xff"}, "not one whole"),
        ({"tuple": b""}, "no MsgPack array"),
        ({"tuple": None}, "has no tuple"),
        ({"tuple": b"\x90", "space_id": None}, "no space_id"),
        ({"tuple": b"\x90", "type": 77}, "type 77"),
        ({"tuple": b"\x90", "type": 4}, "has no key"),
    ],
)
def test_a_row_that_no_log_can_hold_is_named(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    """With its number and what is wrong; the part is not finished."""
    row = {"type": 3, "space_id": 512, **columns}
    types = {"type": pa.int16(), "space_id": pa.int64(), "tuple": pa.binary()}
    made = pa.RecordBatch.from_pydict(
        {name: pa.array([row[name]], kind) for name, kind in types.items()}
    )
    with pytest.raises(DecodeError, match=message):
        stage(tmp_path, NEW, made)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"space_id": "bigint", "tuple": "string"}, "BINARY"),
        ({"space_id": "bigint", "tupel": "binary"}, "tupel"),
        ({"tuple": "binary"}, "neither"),
    ],
)
def test_a_dataframe_that_is_no_log_is_refused(types: dict[str, str], message: str) -> None:
    """Wrong names and types fail before any task runs."""
    with pytest.raises(ConfigError, match=message):
        check_sink_columns(types)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/a", "url": "tarantool://h"}, "either"),
        ({"path": "s3://bucket/a"}, "local folder"),
        ({"path": "/a", "columns": "lsn"}, "columns"),
        ({"path": "/a", "instance": "x"}, "UUID"),
        ({"path": "/a", "compress_level": "23"}, "22"),
        ({"path": "/a", "query": "a b"}, "query"),
        ({"path": "/a", "replica_id": "0"}, "replica_id"),
    ],
)
def test_a_wrong_sink_option_is_refused(options: dict[str, str], message: str) -> None:
    """By name, before anything is written."""
    with pytest.raises(ConfigError, match=message):
        SinkOptions.parse(options)


def test_a_stream_is_known_by_the_id_in_its_checkpoint(tmp_path: Path) -> None:
    """Wherever the checkpoint is; one that is begun anew is another stream. One that cannot be
    read asks for a name."""
    one, moved, anew = (tmp_path / name for name in ("one", "moved", "anew"))
    for folder in (one, anew):
        folder.mkdir()
        (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    shutil.copytree(one, moved)
    names = [stream_name("", {"checkpointLocation": str(each)}) for each in (one, moved, anew)]
    assert names[0] == names[1] == query_id(f"file:{one}") == query_id(f"file://{one}")
    assert names[1] != names[2]
    assert stream_name("q", {"checkpointlocation": str(one)}) == f"q-{names[0]}"
    assert stream_name("q", {}) == "q"
    for odd in ("{}", "[1]", '{"id": "../x"}', "no"):
        (anew / "metadata").write_text(odd)
        assert stream_name("q", {"checkpointLocation": str(anew)}) == "q"
        with pytest.raises(ConfigError, match="option query"):
            stream_name("", {"checkpointLocation": str(anew)})
    with pytest.raises(ConfigError, match="option query"):
        stream_name("", {"checkpointLocation": "nosuch://place/checkpoint"})
