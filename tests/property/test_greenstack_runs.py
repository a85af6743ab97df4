"""Runs of requests: what the kernel takes and answers is what the ordinary way does."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logweir
from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from logweir.replication.bucket import batch, change, joint
from logweir.replication.bucket.item import VBUCKETS, Item, pack_item, unpack_item
from logweir.replication.bucket.store import Buckets, GroupItems
from logweir.replication.greenstack.serve import runs
from logweir.replication.greenstack.serve.commands import Executor, item_of
from logweir.replication.greenstack.serve.lanes import Batch, BatchKind, Lane, Pending
from logweir.replication.greenstack.serve.statements import (
    Work,
    change_works,
    execute_alone,
    look_work,
)
from logweir.replication.greenstack.wire import kernel
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    Opcode,
    Status,
    encode_answer,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Document,
    MutationAnswer,
    decode_get,
    decode_mutation,
)
from logweir.replication.protocols import parse_listen_url
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.schema.bulk import interpreted
from logweir.store.state import layers, stacked
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import Row

NOW = 1_795_000_000.0
UUID = 2**63 + 5
ACTIVE = bytearray(b"\1" * VBUCKETS)


def run_bytes(count: int) -> bytes:
    """Plain MUTATIONs."""
    return b"".join(
        encode_frame(mutation(b"k%d" % n, b"v" * n, opaque=n, flags=0, datatype=n % 2))
        for n in range(count)
    )


def given_by(
    module: ModuleType, data: bytes, table: array[int], count: int
) -> list[tuple[int, Item]]:
    """The kinds and the items of a run's statements."""
    numbers, room = array("Q", (0, 0, 0)), bytearray(4096)
    columns = array("Q", [0] * (count * module.COLUMNS))
    how = module.statements(data, table, count, count, numbers, ACTIVE, room, columns)
    assert (how, list(numbers[::2])) == (module.DONE, [count, count])
    rows = [columns[n * module.COLUMNS :][: module.COLUMNS] for n in range(count)]
    return [(row[10], unpack_item(bytes(room[row[4] : row[5]]))) for row in rows]


def test_statements_hold_what_the_frames_do() -> None:
    """Key, value, flags, datatype, vbucket; the lane, the opaques, who is quiet."""
    flex = vbucket(513, lane=b"blue")
    sent = [
        mutation(b"key%d" % n, b"x" * n, opaque=2**31 + n, flex=flex, flags=Flag.QUIET * (n % 2))
        for n in range(9)
    ]
    data = b"??" + b"".join(map(encode_frame, sent)) + b"rest"
    run = runs.take_run(data, 2)
    assert run is not None
    assert (run.count, run.stop, run.lane) == (9, len(data) - 4, b"blue")
    items = [item for _, item in given_by(kernel, run.data, run.table, run.count)]
    assert [item.key for item in items] == [b"key%d" % n for n in range(9)]
    assert [item.value for item in items] == [b"x" * n for n in range(9)]
    assert {item.vbucket for item in items} == {513}
    width = kernel.WIDTH
    assert [run.table[width * n] for n in range(9)] == [2**31 + n for n in range(9)]
    assert run.loud == 5
    assert list(run.frames()) == sent


DOCUMENTS = st.tuples(
    st.binary(min_size=1, max_size=250).map(lambda key: key.replace(b"\0", b"0")),
    st.sampled_from([0, 1, 255, 256, 65_535, 65_536]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 1),
    st.booleans(),
)


PLAIN = interpreted(runs.kernel)


class Side:
    """A store, in whose buckets runs are made as they are, or each of their requests by itself."""

    def __init__(self, folder: Path, *, in_runs: bool) -> None:
        self.log = logweir.open(folder, clock=lambda: NOW, durability="write")
        self.in_runs = in_runs
        self.buckets = 0

    def begin(self) -> None:
        """Begin anew, with another bucket."""
        self.buckets += 1
        self.bucket = Buckets(self.log, lambda: NOW).make(f"b{self.buckets}")
        self.start = self.log.vclock

    def make(self, data: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Make the runs as one change: the answers to each, and how many have failed."""
        found = [runs.take_run(one) for one in data]
        taken = [run for run in found if run is not None]
        assert len(taken) == len(data)
        if self.in_runs:
            works = [self._work(run) for run in taken]
            self.log.inner.run_job(Job(lambda group: change_works(works, group, NOW)))
            assert not any(work.left for work in works)
            return [(b"".join(work.fresh), work.failed) for work in works]
        job = Job(lambda group: [self._one(group, run) for run in taken])
        self.log.inner.run_job(job)
        return job.result  # type: ignore[no-any-return]

    def _work(self, run: runs.RequestRun) -> Work:
        batch = Batch(BatchKind.STORE, Lane(None, ""), (Pending(run),), run.size_bytes)
        return Work(batch, self.bucket, batch.requests, UUID, asker=None)  # type: ignore[arg-type]

    def _one(self, group: Group, run: runs.RequestRun) -> tuple[bytes, int]:
        items = GroupItems(self.bucket, group, NOW)
        executor = Executor(items, NOW, uuid=UUID, lsn=lambda: group.last_lsn)

        def ordinary(frame: Frame) -> tuple[Status, bytes]:
            return execute_alone(group, executor, Pending(frame), NOW)

        said, failed = b"", 0
        for frame in run.frames():
            status, payload = ordinary(frame)
            failed += status != Status.SUCCESS
            if status != Status.SUCCESS or not frame.is_quiet:
                said += encode_answer(frame, status, payload)
        return said, failed

    def look(self, data: bytes, expired: list[tuple[bytes, int]]) -> tuple[bytes, int]:
        """The answers to a run of GETs as of what is published, and how many have failed."""
        run, said, failed = runs.take_run(data), b"", 0
        buckets = Buckets(self.log, lambda: NOW)
        while run is not None:
            work = self._work(run)
            look_work(work, buckets, NOW, expired)
            said, failed = said + b"".join(work.fresh), failed + work.failed
            run = work.left[0].frame if work.left else None
        return said, failed

    def rows(self) -> list[Sequence[Row]]:
        """Everything that came into the log since `begin`: rows of transactions."""
        return [transaction.rows for transaction in self.log.rows(self.start)]

    def state(self) -> list[object]:
        """What the bucket holds, in the order of both its indexes."""
        return [self.log.select(self.bucket.name, index=index) for index in (0, 1)]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    """One that takes runs by the compiled kernel, one by the plain one, and one that does not."""
    folder = tmp_path_factory.mktemp("sides")
    made = [Side(folder / name, in_runs=name != "single") for name in ("fast", "plain", "single")]
    with made[0].log, made[1].log, made[2].log:
        yield made


@settings(deadline=None)
@given(
    st.lists(DOCUMENTS, min_size=3, max_size=8),
    st.sampled_from([0, 1, 200, 65535]),
    st.sampled_from([None, b"", b"blue"]),
)
def test_a_run_stores_and_answers_what_single_requests_do(
    sides: list[Side],
    drawn: list[tuple[bytes, int, int, int, bool]],
    number: int,
    lane: bytes | None,
) -> None:
    """Tuples as `pack_item` writes them, answers that say so; quiet requests have none. The same
    answers, byte for byte of both kernels, the same rows, the same state."""
    documents = [(key, key[:1] * size, *others) for key, size, *others in drawn]
    flex = vbucket(number) if lane is None else vbucket(number, lane=lane)
    frames = [
        replace(
            mutation(key, value, opaque=n, flags=Flag.QUIET * is_quiet, flex=flex),
            payload=Document(key, value, flags, datatype=datatype).encode(),
        )
        for n, (key, value, flags, datatype, is_quiet) in enumerate(documents)
    ]
    said = []
    for side, module in zip(sides, (runs.kernel, PLAIN, runs.kernel), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "kernel", module)
            side.begin()
            said += side.make([b"".join(map(encode_frame, frames))])
    assert said[0] == said[1]
    fast, plain, single = sides
    assert fast.rows() == plain.rows() == single.rows()
    assert fast.state() == plain.state() == single.state()
    rows = [row for one in fast.rows() for row in one if row.space_id == fast.bucket.space_id]
    tuples = [row.decoded()["tuple"] for row in rows]
    assert [pack(one) for one in tuples] == [
        pack_item(Item(key, number, value, flags, 0, one[5], datatype))
        for one, (key, value, flags, datatype, _) in zip(tuples, documents, strict=True)
    ]
    given = [one[5] for one in tuples]
    assert given == sorted(set(given))
    expected = [
        (n, lane, MutationAnswer(given[n], len(value), rows[n].lsn, UUID))
        for n, (_, value, _, _, is_quiet) in enumerate(documents)
        if not is_quiet
    ]
    for data, failed in said:
        answers, problem = FrameBuffer().feed(data)
        assert (problem, failed) == (None, 0)
        assert all(one.status == 0 and one.opcode == Opcode.MUTATION for one in answers)
        told = [(one.opaque, one.lane, MutationAnswer.decode(one.payload)) for one in answers]
        assert told == expected


CHANGES = st.tuples(
    st.sampled_from([b"a", b"b"]),
    st.sampled_from([(2, 0), (2, 1), (2, "last"), (1, 0), (3, 0), (3, 1), (3, "last")]),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=8), st.lists(CHANGES, min_size=1, max_size=8))
def test_conditions_are_those_of_single_requests(
    sides: list[Side],
    first: list[tuple[bytes, tuple[int, int | str], bool]],
    second: list[tuple[bytes, tuple[int, int | str], bool]],
) -> None:
    """Set, Add and Replace, with the CAS of what is there, with another, with none: the same
    answers, refusals of quiet ones too, the same lsns, rows and state."""
    made: list[object] = []
    for side, module in zip(sides, (runs.kernel, PLAIN, runs.kernel), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "kernel", module)
            side.begin()
            said = []
            for changes in (first, second):
                held = {one[0]: one[5] for one in side.log.select(side.bucket.name)}
                frames = [
                    mutation(
                        key, b"v", operation=operation, opaque=n, flags=Flag.QUIET * is_quiet,
                        cas=held.get(key, 7) if cas == "last" else cas,
                    )
                    for n, (key, (operation, cas), is_quiet) in enumerate(changes)
                ]  # fmt: skip
                said += side.make([b"".join(map(encode_frame, frames))])
            start = side.start.lsn(1)
            lsns = [
                (
                    one.opaque,
                    one.status,
                    one.status or MutationAnswer.decode(one.payload).seqno - start,
                )
                for data, _ in said
                for one in FrameBuffer().feed(data)[0]
            ]
            made.append((lsns, [failed for _, failed in said], side.rows(), side.state()))
    assert made[0] == made[1] == made[2]


LANES = st.sampled_from([None, b"", b"blue"])
RUNS = st.tuples(
    LANES, st.sampled_from([0, 9]), st.booleans(), st.lists(CHANGES, min_size=1, max_size=4)
)


@settings(deadline=None)
@given(st.lists(RUNS, min_size=2, max_size=5), st.sampled_from([60, 1 << 20]))
def test_runs_of_several_are_answered_as_each_by_itself(
    sides: list[Side],
    asked: list[tuple[bytes | None, int, bool, list[tuple[bytes, tuple[int, int | str], bool]]]],
    limit: int,
) -> None:
    """GETs and changes of several lanes, of a vbucket that is there and one that is not yet, also
    where answers are more than are made at a time: the same bytes, counts, rows and state."""
    made: list[object] = []
    for side, module in zip(sides, (runs.kernel, PLAIN, runs.kernel), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "kernel", module)
            patch.setattr(batch, "TAP_ANSWERS_BYTES", limit)
            patch.setattr(joint, "_JOB_SECONDS", math.inf)
            side.begin()
            sent = []
            for lane, number, gets, changes in asked:
                flex = vbucket(number) if lane is None else vbucket(number, lane=lane)
                frames = [
                    get(key, opaque=n, flags=Flag.QUIET * is_quiet, flex=flex)
                    if gets
                    else mutation(
                        key, b"v" * n, operation=operation, opaque=n, flags=Flag.QUIET * is_quiet,
                        cas=7 if cas == "last" else cas, flex=flex,
                    )
                    for n, (key, (operation, cas), is_quiet) in enumerate(changes)
                ]  # fmt: skip
                sent.append(b"".join(map(encode_frame, frames)))
            start = side.start.lsn(1)
            said = [
                (failed, [_content(one, start) for one in FrameBuffer().feed(data)[0]])
                for data, failed in side.make(sent)
            ]
            made.append((said, side.rows(), side.state()))
    assert made[0] == made[1] == made[2]


def _content(answer: Frame, start: int) -> object:
    """What is told, as far as it is the same in every store."""
    if answer.status or answer.opcode == Opcode.GET:
        return answer
    told = MutationAnswer.decode(answer.payload)
    return replace(answer, payload=b""), told.seqno - start, told.size


ITEMS = st.builds(
    Item,
    st.sampled_from([b"a", b"b", b"c", b"key" * 83]),
    st.sampled_from([0, 0, 0, 9]),
    st.sampled_from([b"", b"v", b"{}", b"long" * 100]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0, int(NOW) - 1, int(NOW) + 7, 2**32 - 1]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    st.sampled_from([0, 1, 127, 128]),
    st.sampled_from(["", "2031-04-05T06:07:08.5Z", "2026-11-18T16:26:47Z", "soon"]),
    st.sampled_from([b"", b"meta"]),
    st.sampled_from([0, 254, 255]),
)


@settings(deadline=None)
@given(
    st.lists(ITEMS, max_size=4, unique_by=lambda item: item.key),
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b"key" * 83]), st.booleans())),
    st.sampled_from([None, b"", b"blue"]),
    st.sampled_from([600, 1 << 20]),
)
def test_a_run_of_gets_is_answered_as_single_requests_are(
    sides: list[Side],
    items: list[Item],
    asked: list[tuple[bytes, bool]],
    lane: bytes | None,
    limit: int,
) -> None:
    """Items as any protocol may have stored them, none, expired ones, of another vbucket; in a
    group and of what is published, both kernels, also where answers are more than are made at a
    time: the same bytes and counts, and who is expired is told once."""
    flex = vbucket(0) if lane is None else vbucket(0, lane=lane)
    frames = [
        get(key, opaque=n, flags=Flag.QUIET * quiet, flex=flex)
        for n, (key, quiet) in enumerate([*asked, (b"a", False)])
    ]
    data = b"".join(map(encode_frame, frames))
    looked, made = [], []
    for side, module in zip(sides, (runs.kernel, PLAIN, runs.kernel), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "kernel", module)
            patch.setattr(batch, "TAP_ANSWERS_BYTES", limit)
            side.begin()
            with side.log.transaction() as tx:
                for item in items:
                    tx.replace(side.bucket.name, tuple(unpack(pack_item(item))))
            expired: list[tuple[bytes, int]] = []
            looked.append(side.look(data, expired))
            gone = {item.key for item in items if 0 < item.expiry <= NOW and not item.vbucket}
            assert set(expired) == {
                (key, 0) for key in gone & {one[0] for one in asked} | gone & {b"a"}
            }
            side.in_runs, kept = side.in_runs and limit == 1 << 20, side.in_runs
            made.append(side.make([data])[0])
            side.in_runs = kept
    assert looked[0] == looked[1] == looked[2] == made[0] == made[1] == made[2]


def test_what_does_not_fit_is_not_written() -> None:
    """Rooms one byte too small, compiled and interpreted."""
    run = runs.take_run(run_bytes(5))
    assert run is not None
    for module in (kernel, PLAIN):
        for size in (0, module.ITEM_BYTES, 1000):
            numbers, columns = array("Q", (0, 0, 0)), array("Q", [0] * (5 * module.COLUMNS))
            how = module.statements(
                run.data, run.table, 5, 5, numbers, ACTIVE, bytearray(size), columns
            )
            assert how == (module.DONE if size == 1000 else module.NO_ROOM)
            assert numbers[1] <= size
        with pytest.raises(IndexError):
            given_by(module, run.data[:-1], run.table, 5)


@pytest.mark.parametrize(
    "odd",
    [
        mutation(b"k", operation=1, cas=1),
        mutation(b"k", operation=4),
        mutation(b"k", operation=6),
        mutation(b"k", expiration="2031-04-05T06:07:08Z"),
        mutation(b"k", datatype=2),
        mutation(b"k", compression=1),
        mutation(b""),
        mutation(b"a\0b"),
        mutation(b"k" * 251),
        mutation(b"k", flags=Flag.MORE),
        mutation(b"k", flags=Flag.FENCE),
        mutation(b"k", flex=vbucket(0, lane=b"other")),
        mutation(b"k", flex=vbucket(0, priority=b"\1")),
        mutation(b"k", flex={7: b"\0"}),
        mutation(b"k", flex={}),
        get(b"k"),
        get(b""),
        get(b"a\0b"),
        get(b"k" * 251),
        get(b"k", flags=Flag.FENCE),
        get(b"k", flex=vbucket(0, lane=b"other")),
        get(b"k", flex=vbucket(0, priority=b"\1")),
        get(b"k", flex={}),
        Frame(Opcode.GET, payload=b"\0\0\0\0", flex=vbucket(0)),
    ],
)
@pytest.mark.parametrize("one", [mutation(b"k"), get(b"k")])
def test_what_is_odd_ends_the_run(one: Frame, odd: Frame) -> None:
    """And the run before it is whole; what is behind it is another."""
    data = 4 * encode_frame(one)
    if one.opcode == odd.opcode == Opcode.GET and odd == get(b"k"):
        return
    both = data + encode_frame(odd) + data
    run = runs.take_run(both)
    assert run is not None
    assert (run.count, run.stop, run.opcode) == (4, len(data), one.opcode)
    found, problem = FrameBuffer().feed(both, runs.take_run)
    assert problem is None
    odd_run = runs.take_run(encode_frame(odd))
    assert [frame for each in found for frame in frames_of(each)] == [*[one] * 4, odd, *[one] * 4]
    assert [isinstance(each, runs.RequestRun) for each in found] == [
        True,
        odd_run is not None,
        True,
    ]


def frames_of(found: runs.RequestRun | Frame) -> Sequence[Frame]:
    """As objects."""
    return found.frames() if isinstance(found, runs.RequestRun) else (found,)


def test_broken_frames_are_never_taken_for_others() -> None:
    """Whatever is in a run, the ordinary decoder reads the same of it; compiled and interpreted
    find the same."""
    chance = random.Random(405)
    plain = interpreted(runs.kernel)
    gets = b"".join(encode_frame(get(b"key%d" % n, opaque=n)) for n in range(5))
    for turn in range(600):
        data = bytearray(run_bytes(5) if turn % 2 else gets)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        raw = bytes(data)
        found = []
        for module in (kernel, plain):
            numbers, table = runs._ZERO * module.RUN_NUMBERS, runs._ZERO * (10 * module.WIDTH)
            count = module.take_run(raw, 0, 10, 100, numbers, table)
            found.append((count, numbers, table, given_by(module, raw, table, count)))
        assert found[0] == found[1]
        count, numbers, _, given = found[0]
        frames, _ = FrameBuffer().feed(raw[: numbers[0]])
        assert len(frames) == len(given) == count
        for frame, (kind, item) in zip(frames, given, strict=True):
            if frame.opcode == Opcode.GET:
                assert kind == change.LOOK
                vbucket = frame.number(FlexKey.VBUCKET)
                assert item == Item(decode_get(frame.payload), vbucket)  # type: ignore[arg-type]
                continue
            operation, document = decode_mutation(frame.payload)
            assert frame.opcode == Opcode.MUTATION
            assert kind == {1: change.ADD, 2: change.SET, 3: change.REPLACE}[operation]
            assert (document.expiration, document.compression) == ("", 0)
            vbucket = frame.number(FlexKey.VBUCKET)
            assert vbucket is not None
            assert item == item_of(document, vbucket)


def test_several_runs_are_one_change(tmp_path: Path) -> None:
    """Each answer has the lsn and the CAS of its row; of quiet requests there is none."""
    side = Side(tmp_path / "s", in_runs=True)
    side.begin()
    flags = ([0, Flag.QUIET, 0], [0, 0, 0, 0], [Flag.QUIET] * 3, [Flag.QUIET, 0, 0])
    data = []
    for number, each in enumerate(flags):
        keys = [b"%d%d" % (number, n) for n in range(len(each))]
        pairs = zip(keys, each, strict=True)
        frames = [mutation(key, key, opaque=int(key), flags=f) for key, f in pairs]
        data.append(b"".join(map(encode_frame, frames)))
    commits = side.log.inner.commits
    answered = side.make(data)
    assert side.log.inner.commits == commits + 1
    answered_rows = side.rows()
    side.log.close()
    tuples = [(row.lsn, row.decoded()["tuple"]) for rows in answered_rows for row in rows]
    stored = {int(one[0]): (lsn, one[5]) for lsn, one in tuples}
    assert list(stored) == [10 * i + n for i, each in enumerate(flags) for n in range(len(each))]
    assert len({cas for _, cas in stored.values()}) == len(tuples)
    told = {}
    for said, failed in answered:
        assert failed == 0
        for one in FrameBuffer().feed(said)[0]:
            answer = MutationAnswer.decode(one.payload)
            told[one.opaque] = (answer.seqno, answer.cas)
    loud = [10 * i + n for i, each in enumerate(flags) for n, f in enumerate(each) if not f]
    assert told == {number: stored[number] for number in loud}


def test_runs_are_answered_as_single_requests_are(tmp_path: Path) -> None:
    """Sizes, rising CAS values, the lsn of each row; refusals in their place; rows as documents."""
    listen = [parse_listen_url("greenstack://:0")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        RawClient(server.port) as client,
    ):
        for turn in range(2):  # in the first the vbucket is not there yet
            flex = vbucket(3)
            client.send(
                *(mutation(b"k%d" % n, b"v" * n, opaque=n, flex=flex) for n in range(1, 40)),
                mutation(b"k7", operation=1, opaque=99, flex=flex),
                *(mutation(b"q%d" % n, opaque=n, flex=flex, flags=Flag.QUIET) for n in range(9)),
            )
            answers = [client.answer() for _ in range(40)]
            assert client.barrier() == []
            assert [answer.opaque for answer in answers] == [*range(1, 40), 99]
            assert answers.pop().status == 0x0D
            told = [MutationAnswer.decode(answer.payload) for answer in answers]
            assert [one.size for one in told] == list(range(1, 40))
            assert sorted({one.cas for one in told}) == [one.cas for one in told]
            assert {one.vbucket_uuid for one in told} == {
                int.from_bytes(server.log.instance.bytes[:8], "big")
            }
            rows = {
                row.lsn: row.decoded()
                for transaction in server.log.rows()
                for row in transaction.rows
            }
            for number, one in enumerate(told, 1):
                row = rows[one.seqno]["tuple"]
                assert (row[0], row[2], row[5]) == (b"k%d" % number, b"v" * number, one.cas), turn
        assert server.log.get("default", b"q8") is not None
    with logweir.open(tmp_path / "s") as log:
        assert log.count("default") == 48


def test_the_state_takes_a_burst_behind_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own accord, though nothing comes behind it and what waits is not old."""
    monkeypatch.setattr(stacked, "LAYER_BYTES", 1000)
    monkeypatch.setattr(layers, "LAYER_SECONDS", 3600.0)
    listen = (parse_listen_url("greenstack://127.0.0.1:0"),)
    frames = [mutation(b"k%d" % n, b"v" * 100, flags=Flag.QUIET) for n in range(2000)]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        RawClient(server.port) as client,
    ):
        for _ in range(3):
            client.send(*frames)
            assert client.barrier() == []
        assert server.log.vclock.lsn(1) >= 6000
        for _ in range(5000):
            assert client.barrier() == []
            with server.log._committer.state.read() as txn:
                position = txn.position()
            if position is not None and position.vclock == server.log.vclock:
                return
        raise AssertionError("the state has not taken them")
