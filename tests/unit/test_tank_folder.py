"""Data folders of a Tank broker: the real ones, and damaged copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from interop.tankmodel import DATA
from logweir.errors import CorruptFile
from logweir.replication.tank.follow.folder import FolderProblem, PartitionFolder, read_folder
from logweir.replication.topic.bundle import Message, decode_bundle, encode_bundle, encode_varint

FOLDER = DATA / "data"


def framed(*bundles: bytes) -> bytes:
    """Bundles as a segment holds them."""
    return b"".join(encode_varint(len(data)) + data for data in bundles)


def ordinary(count: int) -> bytes:
    """An ordinary bundle."""
    return encode_bundle([Message(0, 7, None, b"x")] * count)


def partition(folder: Path) -> PartitionFolder:
    """The only partition of a folder made by a test."""
    (topic,) = read_folder(folder)
    (found,) = topic.partitions
    return found


def numbers(part: PartitionFolder, problems: list[FolderProblem]) -> list[tuple[int, int]]:
    """First and last number of every bundle."""
    return [(bundle.first, bundle.last) for bundle in part.bundles(problems.append)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A data folder with topic t of one partition, still empty."""
    (tmp_path / "t" / "0").mkdir(parents=True)
    return tmp_path


def test_real_folders_are_read_complete() -> None:
    """Every topic, partition, configuration and number, nothing reported."""
    topics = {topic.name: topic for topic in read_folder(FOLDER)}
    assert sorted(topics) == ["events", "logs", "orders"]
    events = topics["events"].partitions
    found = [
        message.number
        for bundle in events[0].bundles(pytest.fail)
        for message in decode_bundle(bundle.data, bundle.first)
    ]
    assert found == [
        *range(1, 30),
        *(100, 103, 106, 109, 112, 200, 201, 202, 203, 300, 400, 402, 404, 406),
        *(407, 408, 409, 500, 505),
    ]
    assert numbers(events[1], []) == [(1, 1), (2, 3), (4, 5), (6, 7)]
    assert [each[-1] for each in numbers(topics["orders"].partitions[0], [])][-1] == 90000
    logs = topics["logs"]
    assert logs.config == "retention.segments.count=4\nlog.segment.bytes=4096"
    assert logs.partitions[0].config is not None
    assert "log.segment.bytes=600" in logs.partitions[0].config
    assert len(logs.partitions[0].segments) == 2
    assert len(logs.partitions[1].segments) == 4
    assert [n for n, _ in numbers(logs.partitions[0], [])] == list(range(1, 49, 4))
    assert numbers(logs.partitions[1], [])[-1] == (11, 11)


def test_bundles_are_those_of_the_files() -> None:
    """Length and bytes one behind the other give the file back."""
    for topic in read_folder(FOLDER):
        for part in topic.partitions:
            for segment in part.segments:
                mine = [b.data for b in part.bundles(pytest.fail) if b.path == segment.path]
                assert framed(*mine) == segment.path.read_bytes()


def test_torn_last_bundle_of_the_active_segment_is_reported(tmp_path: Path) -> None:
    """At every byte where it may be cut; what is before it is read."""
    shutil.copytree(FOLDER / "orders", tmp_path / "orders")
    (path,) = (tmp_path / "orders" / "0").glob("*.log")
    data = path.read_bytes()
    part = partition(tmp_path)
    last = list(part.bundles(pytest.fail))[-1]
    for size in range(last.offset + 1, len(data)):
        path.write_bytes(data[:size])
        problems: list[FolderProblem] = []
        assert numbers(part, problems)[-1] == (20, 20)
        (problem,) = problems
        assert (problem.kind, problem.offset) == ("torn", last.offset)
        assert problem.size_bytes == size - last.offset
        assert (problem.first, problem.last) == (21, None)


def test_cut_immutable_segment_is_damage_and_the_next_one_is_read(tmp_path: Path) -> None:
    """The numbers that are missing are told."""
    shutil.copytree(FOLDER / "logs", tmp_path / "logs")
    path = tmp_path / "logs" / "1" / "4-6_1795206606.ilog"
    path.write_bytes(path.read_bytes()[:-1])
    problems: list[FolderProblem] = []
    (topic,) = read_folder(tmp_path)
    found = [first for first, _ in numbers(topic.partitions[1], problems)]
    assert found == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    (problem,) = problems
    assert (problem.kind, problem.first, problem.last) == ("lost", 6, 6)


def test_segment_that_is_shorter_than_its_name_is_reported(base: Path) -> None:
    """A file cut between bundles shows only by its name."""
    (base / "t" / "0" / "1-9_5.ilog").write_bytes(framed(ordinary(3)))
    problems: list[FolderProblem] = []
    assert numbers(partition(base), problems) == [(1, 3)]
    (problem,) = problems
    assert (problem.kind, problem.first, problem.last) == ("short", 4, 9)


def test_bundle_that_nobody_can_read_is_left_out_with_its_numbers(base: Path) -> None:
    """The next ones keep their own: a codec that nobody has and a head that is cut lose only
    themselves, a bundle of no bytes takes no number."""
    unsound = ordinary(2)[:-1] + b"\0\0"
    sparse = encode_bundle([Message(2, 1, None, b"")], sparse=True)
    path = base / "t" / "0" / "1.log"
    odd = b"\x06" + ordinary(1)[1:]
    cut = b"\x48\x00"  # a sparse one of two messages
    bundles = (ordinary(3), unsound, sparse, ordinary(1), b"", odd, ordinary(1), cut, ordinary(1))
    path.write_bytes(framed(*bundles) + b"\xff\xff\xff\xff\xff")
    problems: list[FolderProblem] = []
    assert numbers(partition(base), problems) == [(1, 3), (6, 6), (8, 8), (11, 11)]
    assert [(p.kind, p.first, p.last) for p in problems] == [
        ("unsound", 4, 5),
        ("unsound", 2, 2),
        ("unsound", 7, 7),
        ("unsound", 9, 10),
        ("lost", 12, None),
    ]
    assert ["not certain" in problem.message for problem in problems].count(True) == 1


def test_segments_that_overlap_do_not_repeat_numbers(base: Path) -> None:
    """The later one loses what the earlier one had."""
    (base / "t" / "0" / "1-3.ilog").write_bytes(framed(ordinary(3)))
    (base / "t" / "0" / "3_9.log").write_bytes(framed(ordinary(1), ordinary(1)))
    problems: list[FolderProblem] = []
    assert numbers(partition(base), problems) == [(1, 3), (4, 4)]
    assert [problem.kind for problem in problems] == ["unsound"]


def test_bundles_that_overlap_are_given_where_something_of_them_is_new(base: Path) -> None:
    """What comes after one has the numbers that a broker gives it, also in the next segment."""
    over = encode_bundle([Message(n, 7, None, b"y") for n in (2, 3, 6)], sparse=True)
    low = encode_bundle([Message(n, 7, None, b"y") for n in (2, 5)], sparse=True)
    (base / "t" / "0" / "1-7.ilog").write_bytes(framed(ordinary(3), over, low, ordinary(1)))
    (base / "t" / "0" / "7_9.log").write_bytes(framed(ordinary(2)))
    problems: list[FolderProblem] = []
    assert numbers(partition(base), problems) == [(1, 3), (2, 6), (7, 7), (7, 8)]
    assert [(problem.kind, problem.first, problem.last) for problem in problems] == [
        ("unsound", 2, 5)
    ]


def test_unfinished_compaction_is_read_as_the_broker_would_mend_it(base: Path) -> None:
    """With a `.cleaned` file the old ones count, else the swapped ones."""
    folder = base / "t" / "0"
    (folder / "1-3_5.ilog.old").write_bytes(framed(ordinary(3)))
    (folder / "1-3_6.ilog.swap").write_bytes(framed(ordinary(1), ordinary(2)))
    (folder / "4_9.log").write_bytes(framed(ordinary(1)))
    (folder / "1.index").write_bytes(bytes(8))
    assert numbers(partition(base), []) == [(1, 1), (2, 3), (4, 4)]
    (folder / "1-3_6.ilog.cleaned").write_bytes(b"")
    assert numbers(partition(base), []) == [(1, 3), (4, 4)]


def test_partition_without_active_segment_is_read(base: Path) -> None:
    """And one without any file is empty."""
    assert numbers(partition(base), []) == []
    (base / "t" / "0" / "1-3.ilog").write_bytes(framed(ordinary(3)))
    assert numbers(partition(base), []) == [(1, 3)]


def test_layout_that_cannot_be_stops_that_topic_only(base: Path) -> None:
    """Two active segments, a hole in the partitions, nothing at all."""
    (base / ".new" / "0").mkdir(parents=True)
    (base / ".cleanup.log").write_bytes(b"")
    (base / "t" / "0" / "1_5.log").write_bytes(b"")
    (base / "t" / "0" / "4_6.log").write_bytes(b"")
    (base / "u" / "0").mkdir(parents=True)
    (found, other) = read_folder(base)
    assert "2 active segments" in found.problem
    assert (other.name, other.problem, len(other.partitions)) == ("u", "", 1)
    (base / "t" / "0" / "4_6.log").unlink()
    (base / "t" / "2").mkdir()
    (found, other) = read_folder(base)
    assert (found.partitions, other.problem) == ((), "")
    assert "partition 1 is missing" in found.problem
    shutil.rmtree(base / "t")
    shutil.rmtree(base / "u")
    with pytest.raises(CorruptFile, match="no topic"):
        read_folder(base)
