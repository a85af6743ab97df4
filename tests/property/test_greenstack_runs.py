"""Runs of MUTATIONs: what the kernel takes and answers is what the ordinary way does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gsmodel import spellings, vectors

import logweir
from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from logweir.replication.bucket import Item, pack_item
from logweir.replication.bucketstore import Buckets
from logweir.replication.greenstack import kernel, runs
from logweir.replication.greenstack.codec import (
    Flag,
    FrameBuffer,
    Opcode,
    encode_frame,
)
from logweir.replication.greenstack.messages import Document, MutationAnswer, decode_mutation
from logweir.replication.tap.codec import PacketBuffer
from logweir.replication.urls import parse_listen_url
from logweir.store import late
from logweir.store.commit import Job


def run_bytes(count: int) -> bytes:
    """Plain MUTATIONs."""
    return b"".join(
        encode_frame(mutation(b"k%d" % n, b"v" * n, opaque=n, flags=0, datatype=n % 2))
        for n in range(count)
    )


def test_sets_hold_what_the_frames_do() -> None:
    """Key, value, flags, datatype, vbucket, number; the lane, the opaques, who is quiet."""
    flex = vbucket(513, lane=b"blue")
    sent = [
        mutation(b"key%d" % n, b"x" * n, opaque=2**31 + n, flex=flex, flags=Flag.QUIET * (n % 2))
        for n in range(9)
    ]
    data = b"??" + b"".join(map(encode_frame, sent)) + b"rest"
    run = runs.take_run(data, 2)
    assert run is not None
    assert (run.count, run.stop, run.lane) == (9, len(data) - 4, b"blue")
    packets, _ = PacketBuffer().feed(run.sets())
    assert [packet.key for packet in packets] == [b"key%d" % n for n in range(9)]
    assert [packet.value for packet in packets] == [b"x" * n for n in range(9)]
    assert {packet.vbucket for packet in packets} == {513}
    assert [packet.opaque for packet in packets] == list(range(9))
    width = kernel.WIDTH
    assert [run.table[width * n] for n in range(9)] == [2**31 + n for n in range(9)]
    assert (run.vbucket, run.loud) == (513, 5)
    assert list(run.frames()) == sent


DOCUMENTS = st.tuples(
    st.binary(min_size=1, max_size=250).map(lambda key: key.replace(b"\0", b"0")),
    st.sampled_from([0, 1, 255, 256, 65_535, 65_536]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 1),
    st.booleans(),
)


PLAIN = runs.interpreted_kernel()


@settings(deadline=None)
@given(
    st.lists(DOCUMENTS, min_size=3, max_size=8),
    st.sampled_from([0, 1, 200, 65535]),
    st.sampled_from([None, b"", b"blue"]),
    st.sampled_from([1, 2**31, 2**50]),
)
def test_a_run_stores_and_answers_what_single_requests_do(
    drawn: list[tuple[bytes, int, int, int, bool]], number: int, lane: bytes | None, cas: int
) -> None:
    """Tuples as `pack_item` writes them, answers that say so; quiet requests have none."""
    documents = [(key, key[:1] * size, *others) for key, size, *others in drawn]
    flex = vbucket(number) if lane is None else vbucket(number, lane=lane)
    frames = [
        replace(
            mutation(key, value, opaque=n, flags=Flag.QUIET * is_quiet, flex=flex),
            payload=Document(key, value, flags, datatype=datatype).encode(),
        )
        for n, (key, value, flags, datatype, is_quiet) in enumerate(documents)
    ]
    run = runs.take_run(b"".join(map(encode_frame, frames)))
    assert run is not None
    assert (run.count, run.vbucket) == (len(documents), number)
    items = [
        Item(key, number, value, flags, 0, cas + n, datatype)
        for n, (key, value, flags, datatype, _) in enumerate(documents)
    ]
    packed = list(map(pack_item, items))
    expected = [
        (n, lane, MutationAnswer(cas + n, len(value), 70 + n, 2**63 + 5))
        for n, (_, value, _, _, is_quiet) in enumerate(documents)
        if not is_quiet
    ]
    for module in (kernel, PLAIN):
        out = bytearray(run.tuple_bytes + 2)
        entries = bytearray(3 + sum(2 * len(item.key) + 3 for item in items))
        bounds, ends = runs._ZERO * (run.count + 2), runs._ZERO * (run.count + 2)
        bounds[1], ends[1] = 2, 3
        what = run.data, run.table, run.count, cas
        used = module.tuples(*what, out, bounds, entries, ends, 1)
        assert out[2:used] == b"".join(packed)
        assert list(bounds[2:]) == [2 + end for end in accumulate(map(len, packed))]
        keys = [b"\x50" + item.key + b"\0\0" for item in items]
        assert entries[3 : ends[-1]] == b"".join(keys)
        assert list(ends[2:]) == [3 + end for end in accumulate(map(len, keys))]
        assert module.tuples(*what, out[:9], bounds, entries, ends, 1) == -1
        assert module.tuples(*what, out, bounds, entries[:3], ends, 1) == -1
        assert module.tuples(*what, out, bounds, entries, ends, 2) == -1
    answers, problem = FrameBuffer().feed(run.successes(2**63 + 5, 70, cas))
    assert problem is None
    assert all(one.status == 0 and one.opcode == Opcode.MUTATION for one in answers)
    assert [
        (one.opaque, one.lane, MutationAnswer.decode(one.payload)) for one in answers
    ] == expected


def taken(module: ModuleType, data: bytes) -> tuple[int, list[int], list[int]]:
    """How many requests there are in the run at the begin, what is said of all, and of each."""
    found, table = runs._ZERO * module.RUN_NUMBERS, runs._ZERO * (8 * module.WIDTH)
    count = module.take_run(data, 0, 8, 1 << 20, found, table)
    return count, list(found), list(table[: count * module.WIDTH])


def one_by_one(module: ModuleType, frames: Sequence[bytes]) -> tuple[int, list[int], list[int]]:
    """The same from looking at each request by itself; all have the lane of the first, or none."""
    found = [0] * module.RUN_NUMBERS
    table: list[int] = []
    at = count = 0
    for frame in frames:
        is_taken, one, row = taken(module, frame)
        lane = module.RUN_HAS_LANE
        if not is_taken or (count and one[lane] != found[lane]):
            break
        for place in (module.KEY_AT, module.VALUE_AT):
            row[place] += at
        table += row
        at += len(frame)
        if count == 0:
            found = one
        else:
            for number in (module.RUN_KEYS, module.RUN_VALUES, module.RUN_LOUD):
                found[number] += one[number]
            if one[module.RUN_VBUCKET] != found[module.RUN_VBUCKET]:
                found[module.RUN_VBUCKET] = module.MIXED
            found[module.RUN_STOP] = at
        count += 1
    return count, found, table


def test_a_request_like_the_one_before_it_is_read_as_it_would_be_alone() -> None:
    """Each bit that may be turned in one, and then each in the next: also where an offset then
    leads into what was a key or a value."""
    frame = encode_frame(mutation(b"k1", b"value", opaque=7))
    kinds = [frame]
    for at in range(4, len(frame)):
        for bit in range(8):
            turned = bytearray(frame)
            turned[at] ^= 1 << bit
            if taken(kernel, bytes(turned))[0]:
                kinds.append(bytes(turned))
    assert len(kinds) > 100
    for first in kinds:
        for at in range(4, len(frame)):
            second = bytearray(first)
            second[at] ^= 1 << at % 8
            pair = (first, bytes(second))
            assert taken(kernel, b"".join(pair)) == one_by_one(kernel, pair)


def test_a_value_that_says_where_things_stand_is_read_again() -> None:
    """A vtable inside the value, and another one there in the next request."""
    names = bytes.fromhex("10001c000c0010001400180019000400")
    others = bytes.fromhex("10001c000c000c001400180019000400")
    frames = []
    for inside in (names, others):
        frame = bytearray(encode_frame(mutation(b"k", inside)))
        table = frame.index(names) + len(names)
        back = table - frame.rindex(inside)
        frame[table : table + 4] = back.to_bytes(4, "little", signed=True)
        frames.append(bytes(frame))
    for module in (kernel, PLAIN):
        found = taken(module, b"".join(frames))
        assert found == one_by_one(module, frames)
        assert found[0] == 2
        assert found[2][module.TRAITS] != found[2][module.WIDTH + module.TRAITS]


@settings(deadline=None)
@given(
    st.sampled_from([b"", b"v", b"a value"]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_requests_that_are_nearly_alike(value: bytes, changes: list[tuple[int, int]]) -> None:
    """Each has one more byte that is another; compiled and interpreted."""
    frames = [encode_frame(mutation(b"key", value, opaque=1))]
    for place, byte in changes:
        changed = bytearray(frames[-1])
        changed[4 + place % (len(changed) - 4)] = byte
        frames.append(bytes(changed))
    expected = one_by_one(PLAIN, frames)
    for module in (kernel, PLAIN):
        assert taken(module, b"".join(frames)) == expected


def test_what_does_not_fit_is_not_written() -> None:
    """Rooms one byte too small, compiled and interpreted."""
    run = runs.take_run(run_bytes(5))
    assert run is not None
    sets = run.sets()
    head = bytes(69)
    for module in (kernel, PLAIN):
        assert module.sets(run.data, run.table, 5, bytearray(len(sets))) == len(sets)
        assert module.sets(run.data, run.table, 5, bytearray(len(sets) - 1)) == -1
        assert module.sets(run.data[:-1], run.table, 5, bytearray(len(sets))) == -1
        assert module.successes(run.table, 5, head, 1, 1, bytearray(5 * 69)) == 5 * 69
        assert module.successes(run.table, 5, head, 1, 1, bytearray(5 * 69 - 1)) == -1
        assert module.successes(run.table, 5, head[:60], 1, 1, bytearray(5 * 69)) == -1


def test_the_libraries_frames_are_taken_too() -> None:
    """What each library writes for a plain Set."""
    for name in ("mutation_set_minimal", "mutation_set_quiet_lane"):
        for data in spellings(vectors()[name]):
            run = runs.take_run(data * 3)
            assert run is not None
            assert run.count == 3


@pytest.mark.parametrize(
    "odd",
    [
        mutation(b"k", operation=1),
        mutation(b"k", cas=1),
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
    ],
)
def test_what_is_odd_ends_the_run(odd: object) -> None:
    """And the run before it is whole."""
    data = run_bytes(4)
    run = runs.take_run(data + encode_frame(odd) + data)  # type: ignore[arg-type]
    assert run is not None
    assert (run.count, run.stop) == (4, len(data))


def test_broken_frames_are_never_taken_for_others() -> None:
    """Whatever is in a run, the ordinary decoder reads the same of it; compiled and interpreted
    find the same."""
    chance = random.Random(405)
    plain = runs.interpreted_kernel()
    for _ in range(300):
        data = bytearray(run_bytes(5))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        raw = bytes(data)
        found = []
        for module in (kernel, plain):
            numbers, table = runs._ZERO * module.RUN_NUMBERS, runs._ZERO * (10 * module.WIDTH)
            sets = bytearray(1000)
            count = module.take_run(raw, 0, 10, 100, numbers, table)
            used = module.sets(raw, table, count, sets)
            found.append((count, numbers, table, bytes(sets[:used])))
        assert found[0] == found[1]
        count, numbers, _, sets = found[0]
        frames, _ = FrameBuffer().feed(raw[: numbers[0]])
        packets, _ = PacketBuffer().feed(sets)
        assert len(frames) == len(packets) == count
        for frame, packet in zip(frames, packets, strict=True):
            operation, document = decode_mutation(frame.payload)
            assert (frame.opcode, operation, document.cas) == (Opcode.MUTATION, 2, 0)
            assert (document.expiration, document.compression) == ("", 0)
            assert (document.id, document.value) == (packet.key, packet.value)
            assert document.flags == int.from_bytes(packet.extras[:4], "big")
            assert document.datatype == packet.datatype


def test_several_runs_are_one_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has the lsn and the CAS of its row; of quiet requests there is none."""
    monkeypatch.setattr(late, "LATE_AFTER", 0)
    with logweir.open(tmp_path / "s") as log:
        bucket = Buckets(log).make("b")
        flags = ([0, Flag.QUIET, 0], [0, 0, 0, 0], [Flag.QUIET] * 3, [Flag.QUIET, 0, 0])
        taken = []
        for number, each in enumerate(flags):
            keys = [b"%d%d" % (number, n) for n in range(len(each))]
            pairs = zip(keys, each, strict=True)
            frames = [mutation(key, key, opaque=int(key), flags=f) for key, f in pairs]
            taken.append(runs.take_run(b"".join(map(encode_frame, frames))))
        puts = runs.Puts(bucket, [run for run in taken if run is not None], 0)
        start = log.vclock
        log.run_job(Job(lambda group: None, run=puts))
        assert puts.are_made
        rows = [row for one in log.rows(start) for row in one.rows]
        tuples = [(row.lsn, row.decoded()["tuple"]) for row in rows]
        stored = {int(one[0]): (lsn, one[5]) for lsn, one in tuples}
        assert list(stored) == [
            10 * i + n for i, each in enumerate(flags) for n in range(len(each))
        ]
        told = {}
        for data, failed in puts.answers(7):
            assert failed == 0
            for one in FrameBuffer().feed(data)[0]:
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
    monkeypatch.setattr(late, "LATE_ROWS", 2)
    monkeypatch.setattr(late, "LATE_SECONDS", 3600)
    monkeypatch.setattr(late, "LATE_AFTER", 0)
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
            with server.log._state.read() as txn:
                position = txn.position()
            if position is not None and position.vclock == server.log.vclock:
                return
        raise AssertionError("the state has not taken them")
