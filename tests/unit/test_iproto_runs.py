"""Runs of requests: what the kernel finds is what the codec reads, compiled or not."""

from __future__ import annotations

import random
from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import PLAIN_IPROTO

from logweir.errors import ErrorCode, RequestError
from logweir.replication.iproto.wire import codec, kernel, runs
from logweir.replication.iproto.wire.codec import Splitter
from logweir.replication.iproto.wire.requests import Request, decode_request, encode_request
from logweir.store.engine import executing
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.reference import request_of
from logweir.wal.mp import pack

VERSION = 81


def store(sync: int, *row: object, kind: int = 3, space: int = 512) -> bytes:
    return encode_request(kind, sync, {0x10: space, 0x21: list(row)})


def changes(sync: int, space: int = 512) -> list[bytes]:
    """One of each kind, with all that it may have."""
    ops = [["=", 1, "x"]]
    bodies: list[tuple[int, dict[int, object]]] = [
        (2, {0x10: space, 0x21: [sync, "a"]}),
        (3, {0x21: [sync, "b"], 0x10: space}),
        (4, {0x10: space, 0x11: 1, 0x15: 1, 0x20: [sync], 0x21: ops}),
        (5, {0x10: space, 0x20: [sync]}),
        (9, {0x10: space, 0x15: 1, 0x21: [sync, "c"], 0x28: ops}),
        (1, {0x10: space, 0x11: 1, 0x12: 2**40 + 7, 0x13: 3, 0x14: 5, 0x20: [sync]}),
    ]
    return [encode_request(kind, sync + at, body) for at, (kind, body) in enumerate(bodies)]


def newer(sync: int) -> list[bytes]:
    """What came with Tarantool 2.10 and later: streams, positions, names."""
    names: dict[int, object] = {0x5E: "tables", 0x5F: "second"}
    select = {0x12: 9, 0x20: []}
    bodies: list[tuple[int, dict[int, object]]] = [
        (3, {0x5E: "tables", 0x21: [sync, "b"]}),
        (4, {0x15: 1, 0x20: [sync], 0x21: [["=", 1, "x"]]} | names),
        (5, names | {0x20: [sync]}),
        (1, names | select | {0x14: 5}),
        (1, select | {0x10: 513, 0x1F: True, 0x2E: "kgDEAgMF"}),
        (1, select | {0x10: 513, 0x1F: False, 0x2F: [sync, "tuple"], 0x13: 2}),
        (1, select | {0x10: 513, 0x5F: "second" * 9}),
    ]
    return [
        framed({0: kind, 1: sync + at, 10: at % 3}, body) for at, (kind, body) in enumerate(bodies)
    ]


def framed(head: dict[int, int], body: dict[int, object]) -> bytes:
    return codec.frame(msgpack.packb(head) + msgpack.packb(body))


def ids(of: int, name: bytes) -> int:
    """Knows one space and two indexes of two."""
    known = {(-1, "tables"): 514, (514, "second"): 7, (513, "second" * 9): 8}
    return {(one, pack(text)): number for (one, text), number in known.items()}.get((of, name), -1)


def test_a_run_holds_what_the_codec_reads() -> None:
    """Of several kinds and spaces, by ids or names, of streams and behind positions; and where it
    ends."""
    stream = b"".join(
        part
        for sync in (1, 100, 70_000, 2**40)
        for part in (*changes(sync, 512 + sync % 4), *newer(sync))
    )
    run = runs.take_run(b"??" + stream + encode_request(64, 5), 2, VERSION, ids)
    assert run is not None
    assert (run.count, run.stop) == (52, 2 + len(stream))
    assert run.space_ids == (513, 514, 512)
    assert run.uses == (3, 3, 3)
    assert run.named_at == VERSION
    for number, (start, end) in enumerate(Splitter().split(stream)[0]):
        request = Request(-1)
        decode_request(stream, start, end, request)
        if request.space_name is not None:
            request.space_id = ids(-1, pack(request.space_name))
        if request.index_name is not None:
            request.index_id = ids(request.space_id, pack(request.index_name))
        assert run.streams is not None
        assert run.streams[number] == request.stream_id
        found = request_of(Asked(run.data, run.columns, run.space_ids, 0), number)
        is_update = request.type == 4
        assert run.syncs[number] == request.sync
        assert found.type == request.type
        assert (found.space_id, found.index_id) == (request.space_id, request.index_id)
        if request.type == 1:
            at = number * kernel.WIDTH
            start, end = run.columns[at + 4 : at + 6]
            assert run.data[start:end] == request.key
            assert list(run.columns[at + 3 : at + 4]) == [request.iterator]
            assert list(run.columns[at + 10 : at + 13]) == [
                *(request.limit, request.offset, request.fetch_position),
            ]
            assert found.ops == (request.after or None)
            continue
        assert found.index_base == request.index_base
        assert found.key == request.key
        assert found.tuple == (None if is_update else request.tuple)
        assert found.ops == (request.tuple if is_update else request.ops)


def test_the_numbers_are_those_of_statements() -> None:
    """What the kernel writes is what the executor reads."""
    assert (kernel.WIDTH, kernel.RESULTS) == (executing.COLUMNS, executing.RESULTS)


def executed(run: runs.Run, tuples: list[tuple[bytes, bytes]], refused: list[int]) -> Answers:
    """A result of each statement: its old and its new tuple."""
    results, out = array("Q"), bytearray()
    for number, pair in enumerate(tuples):
        row = [int(number in refused), 0, 0, 0]
        for one in (*pair, b""):
            row += (len(out), len(out) + len(one)) if one else (0, 0)
            out += one
        results.extend(row)
    failures = {number: RequestError(ErrorCode.TUPLE_FOUND, f"no {number}") for number in refused}
    return Answers(run.data, run.columns, results, bytes(out), refused, failures, [None])


@pytest.mark.parametrize("refused", [[], [0], [4], [1, 2, 11], list(range(12))])
def test_answers_are_those_of_the_codec(refused: list[int]) -> None:
    """Byte for byte: the new tuple, of a DELETE the old one, of an UPSERT none; errors between."""
    run = runs.take_run(b"".join(changes(3) + changes(2**63)), 0, VERSION)
    assert run is not None
    tuples = [(pack([number, "old" * 60]), pack([number, "new" * number])) for number in range(11)]
    tuples[5] = b"", b"\xdd\x00\x00\x00\x02" + pack([1]) + pack([2, "two"])
    tuples.append((b"", b"\xdd\x00\x00\x00\x00"))
    expected = []
    for number, (old, new) in enumerate(tuples):
        sync, kind = run.syncs[number], run.columns[number * kernel.WIDTH]
        if number in refused:
            error = RequestError(ErrorCode.TUPLE_FOUND, f"no {number}")
            expected.append(codec.encode_error(sync, VERSION, error))
            continue
        if kind == 1:
            expected.append(codec.encode_answer(sync, VERSION, b"\x81\x30" + new))
            continue
        found = b"" if kind == 9 else old if kind == 5 else new
        expected.append(codec.encode_answer(sync, VERSION, codec.data_body((found,) * bool(found))))
    assert run.answers(executed(run, tuples, refused), VERSION) == b"".join(expected)


@pytest.mark.parametrize("module", [kernel, PLAIN_IPROTO], ids=["compiled", "plain"])
def test_answers_are_divided_by_what_is_free(module: Any) -> None:
    """SELECTs that are done with code 1, and all others, also where a change has that code."""
    kinds, codes = (1, 1, 3, 1), (1, 0, 1, 1)
    columns, results, syncs = array("Q"), array("Q"), array("Q", range(4))
    for kind, code in zip(kinds, codes, strict=True):
        columns.extend((kind, *[0] * (module.WIDTH - 1)))
        results.extend((0, code, *[0] * (module.RESULTS - 2)))

    def said(first: int, last: int, which: int) -> bytes:
        out = bytearray(4 * module.ANSWER_BYTES)
        size = module.answers(columns, syncs, results, b"", first, last, VERSION, out, which)
        return bytes(out[:size])

    each = [said(number, number + 1, 0) for number in range(4)]
    assert said(0, 4, 0) == b"".join(each)
    assert said(0, 4, module.FREE) == each[0] + each[3]
    assert said(0, 4, module.BOUND) == each[1] + each[2]


def test_parts_of_a_run() -> None:
    """Those behind one, those of other spaces, and errors for the rest."""
    stream = b"".join(store(sync, sync, space=512 + sync % 2) for sync in range(1, 6))
    run = runs.take_run(stream, 0, VERSION)
    assert run is not None
    assert not run.may_grow
    assert list(run.behind(3).syncs) == [4, 5]
    assert stream[run.behind(3).at :] == store(4, 4) + store(5, 5, space=513)
    assert not run.is_read_only
    assert run.without([(513, kernel.USED_TO_READ)]).syncs == run.syncs
    left = run.without([(512, kernel.USED_TO_WRITE)])
    assert list(left.syncs) == [1, 3, 5]
    for number in range(3):
        request = request_of(Asked(left.data, left.columns, left.space_ids, 0), number)
        assert (request.space_id, request.tuple) == (513, pack([2 * number + 1]))
    error = RequestError(ErrorCode.READONLY, "no")
    assert run.errors({(512, kernel.USED_TO_WRITE): error}, VERSION) == [
        codec.encode_error(sync, VERSION, error) for sync in (2, 4)
    ]
    refused, reads = run.refused(error, VERSION, ())
    assert refused == [codec.encode_error(sync, VERSION, error) for sync in range(1, 6)]
    assert (reads.count, reads.is_read_only) == (0, True)
    for place in (2, 3, 5):
        grown = runs.take_run(changes(1)[place], 0, VERSION)
        assert grown is not None
        assert grown.may_grow
        assert grown.is_read_only == (place == 5)


@pytest.mark.parametrize(
    "odd",
    [
        store(5, 1, space=511),
        encode_request(64, 5),
        encode_request(1, 5, {0x10: 512, 0x20: [1]}),
        encode_request(1, 5, {0x10: 512, 0x12: 1}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x14: 7}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x15: 0}),
        encode_request(1, 5, {0x10: 280, 0x12: 1, 0x20: []}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x13: -1}),
        encode_request(6, 5, {0x22: "f", 0x21: []}),
        encode_request(3, 5, {0x10: 512}),
        encode_request(3, 5, {0x21: [1]}),
        encode_request(3, 5, {0x10: 512, 0x21: {}}),
        encode_request(3, 5, {0x10: -1, 0x21: []}),
        encode_request(3, 5, {0x10: 512, 0x21: [], 0x12: 0}),
        encode_request(3, 5, {0x10: 512, 0x21: [], 0x14: 0}),
        encode_request(3, 5, {0x10: 512, 0x21: [], 0x20: []}),
        encode_request(2, 5, {0x10: 512, 0x21: [], 0x28: []}),
        encode_request(4, 5, {0x10: 512, 0x20: [1], 0x21: [], 0x28: []}),
        encode_request(4, 5, {0x10: 512, 0x20: [1]}),
        encode_request(5, 5, {0x10: 512, 0x20: [1], 0x21: []}),
        encode_request(9, 5, {0x10: 512, 0x21: [1]}),
        codec.frame(msgpack.packb({0: 3, 1: 5, 5: 80}) + msgpack.packb({0x10: 512, 0x21: [1]})),
        codec.frame(b"\x82\x00\x03\x00\x03" + msgpack.packb({0x10: 512, 0x21: [1]})),
        codec.frame(b"\x82\x00\x03\x01\x05" + b"\x82\x10\x01\x21\x91"),
        codec.frame(b"\x82\x00\x03\x01\x05" + b"\x82\x10\xcd\x02\x00\x21\x91\x01\x02"),
        codec.frame(b"\x82\x00\x03\x01\x05" + b"\x82\x10\xcd\x02\x00\x10\xcd\x02\x00"),
        codec.frame(b"\x82\x00\x03\x01\x05" + b"\x82\x5e\xa1\xff\x21\x91\x01"),
        encode_request(3, 5, {0x5E: "tables", 0x10: 512, 0x21: [1]}),
        encode_request(3, 5, {0x5E: "none", 0x21: [1]}),
        encode_request(3, 5, {0x5E: 5, 0x21: [1]}),
        encode_request(3, 5, {0x10: 512, 0x21: [1], 0x1F: True}),
        encode_request(3, 5, {0x10: 512, 0x21: [1], 0x2F: [1]}),
        encode_request(5, 5, {0x10: 512, 0x20: [1], 0x5F: "second"}),
        encode_request(5, 5, {0x10: 514, 0x20: [1], 0x11: 1, 0x5F: "second"}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x1F: 1}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x2E: [1]}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x2E: "\xe4"}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x2F: "x"}),
        encode_request(1, 5, {0x10: 512, 0x12: 1, 0x20: [], 0x2E: "x", 0x2F: [1]}),
        codec.frame(b""),
        b"\xa1x",
        store(5, 1)[:-1],
    ],
)
def test_a_run_ends_before_what_is_not_of_its_form(odd: bytes) -> None:
    """The odd one goes the ordinary way."""
    stream = b"".join(store(sync, sync) for sync in range(1, 9))
    run = runs.take_run(stream + odd, 0, VERSION, ids)
    assert run is not None
    assert (run.count, run.stop) == (8, len(stream))
    assert runs.take_run(odd, 0, VERSION, ids) is None


def test_a_run_has_so_many_spaces() -> None:
    """And ends before the next one; the same ones again are welcome."""
    stream = b"".join(store(1, 1, space=600 + at % kernel.SPACES) for at in range(40))
    run = runs.take_run(stream + store(1, 1, space=700), 0, VERSION)
    assert run is not None
    assert (run.count, run.stop) == (40, len(stream))
    assert run.space_ids == tuple(range(600, 600 + kernel.SPACES))


@pytest.mark.parametrize(("asked", "is_one"), [(0, True), (VERSION, True), (80, False)])
def test_a_run_is_of_the_schema_version_asked_for(asked: int, is_one: bool) -> None:
    """Another one is refused the ordinary way."""
    head = msgpack.packb({0: 3, 1: 5, 5: asked})
    data = codec.frame(head + msgpack.packb({0x10: 512, 0x21: [1]}))
    assert (runs.take_run(data, 0, VERSION) is not None) == is_one


def both(data: bytes) -> None:
    """The compiled and the plain kernel agree on everything that they write."""
    results = []
    assert kernel.may_select(data) == PLAIN_IPROTO.may_select(data)
    for module in (kernel, PLAIN_IPROTO):
        capacity = module.frames(data, 0, 16)
        table = array("Q", bytes(8 * (module.RUN_HEAD + (2 + module.WIDTH) * capacity)))
        count = module.take_run(data, 0, VERSION, table, capacity, ids)
        first = module.RUN_HEAD + capacity
        columns, syncs = table[first:], table[module.RUN_HEAD : first]
        spans = array("Q")
        for number in range(count):
            at = number * module.WIDTH
            spans.extend((0, 0, 0, 0, *columns[at + 6 : at + 8], *columns[at + 4 : at + 6], 0, 0))
        out = bytearray(module.ANSWER_BYTES * count + 2 * len(data))
        written = module.answers(columns, syncs, spans, data, 0, count, VERSION, out)
        assert written <= len(out)
        assert module.answers(columns, syncs, spans, data, 0, count, VERSION, bytearray(9)) == (
            written
        )
        results.append((capacity, count, table, out))
    assert results[0] == results[1]
    _, count, table, _ = results[0]
    if count and table[kernel.RUN_HEAD + results[0][0]] == 1:
        assert kernel.may_select(data)
    if count:
        for start, end in Splitter().split(data[: table[kernel.RUN_STOP]])[0]:
            decode_request(data, start, end, Request(-1))


@pytest.mark.parametrize("module", [kernel, PLAIN_IPROTO], ids=["compiled", "plain"])
def test_only_what_may_begin_with_a_select_is_read_as_one(module: Any) -> None:
    """A header whose first key is another one does not show what it is; of what is not whole
    nothing is read."""
    for kind, part in zip((2, 3, 4, 5, 9, 1), changes(5), strict=True):
        assert module.may_select(part + changes(6)[-1]) == (kind == 1)
    late = codec.frame(msgpack.packb({1: 5, 0: 1}) + msgpack.packb({0x10: 512, 0x20: [1]}))
    assert module.may_select(late)
    for short in (b"", b"\xce", b"\x07", b"\x07\x82", b"\x07\x82\x00"):
        assert not module.may_select(short)


def test_kernels_agree_on_damaged_runs() -> None:
    """Whatever the kernel takes, the codec takes too."""
    chance = random.Random(7)
    stream = b"".join(part for sync in (1, 200, 2**40) for part in (*changes(sync), *newer(sync)))
    for single in (stream, *changes(70_000), *newer(70_000)):
        for _ in range(1500):
            damaged = bytearray(single)
            for _ in range(chance.randint(1, 3)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            ends = [len(damaged)] * 3 + [chance.randrange(len(damaged))]
            both(bytes(damaged[: chance.choice(ends)]))
        both(single)


@given(st.binary(max_size=120))
def test_kernels_agree_on_garbage(data: bytes) -> None:
    """Also where nothing is a request."""
    both(data)


def test_no_more_is_read_than_there_is() -> None:
    """Of tables that are too small for what is asked of them."""
    data = store(1, 1)
    assert kernel.take_run(data, 0, VERSION, array("Q", bytes(8 * 36)), 1, ids) == 0
    run = runs.take_run(data, 0, VERSION)
    assert run is not None
    out = bytearray(100)
    nothing = array("Q")
    for columns, syncs, results in (
        (nothing, run.syncs, array("Q", bytes(80))),
        (run.columns, nothing, array("Q", bytes(80))),
        (run.columns, run.syncs, nothing),
    ):
        assert kernel.answers(columns, syncs, results, b"", 0, 1, VERSION, out) == 0


def test_what_is_left_of_a_long_run_is_not_copied_at_each_halt() -> None:
    """Where each SELECT is one to halt at: all come by themselves, in their order."""
    count = 1000
    body: dict[int, object] = {0x10: 512, 0x12: 1, 0x20: [1]}
    data = b"".join([encode_request(1, sync, body) for sync in range(count)])
    run = runs.take_run(data, 0, VERSION)
    assert run is not None
    assert run.count == count
    left: list[Request | runs.Run] = [run]
    syncs: list[int] = []
    copied = size_bytes = 0
    while left:
        first = left.pop(0)
        if isinstance(first, runs.Run):
            made = first.left(0)
            copied += sum([one.count for one in made if isinstance(one, runs.Run)])
            left = [*made, *left]
        else:
            syncs.append(first.sync)
            size_bytes += first.size_bytes
    assert syncs == list(range(count))
    assert size_bytes == run.size_bytes
    assert copied < count * count // 10
