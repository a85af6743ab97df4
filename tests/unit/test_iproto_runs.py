"""Runs of requests: what the kernel finds is what the codec reads, compiled or not."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import PLAIN_IPROTO

from logweir.replication.iproto import codec, kernel, runs
from logweir.replication.iproto.codec import Splitter
from logweir.replication.iproto.requests import Request, decode_request, encode_request


def store(sync: int, *row: object, kind: int = 3, space: int = 512) -> bytes:
    return encode_request(kind, sync, {0x10: space, 0x21: list(row)})


def test_run_holds_what_the_codec_reads() -> None:
    """Type, space, syncs, tuples; and where it ends."""
    stream = b"".join(store(sync, sync, "x" * sync) for sync in range(1, 40))
    run = runs.take_run(stream + store(99, 1, kind=2))
    assert run is not None
    assert (run.type, run.space_id, run.count, run.stop) == (3, 512, 39, len(stream))
    assert run.schema_version == 0
    for number in range(39):
        assert run.sync(number) == number + 1
        assert msgpack.unpackb(run.tuple_bytes(number)) == [number + 1, "x" * (number + 1)]
    assert run.bounds[0] == 0
    assert run.bounds[-1] == len(run.packed)


def test_answers_are_those_of_the_codec() -> None:
    """Byte for byte, also for syncs and tuples of every width."""
    syncs = [1, 127, 128, 65536, 2**32, 2**64 - 1]
    stream = b"".join(store(sync, sync, "x" * (i * 60)) for i, sync in enumerate(syncs))
    run = runs.take_run(stream)
    assert run is not None
    expected = b"".join(
        codec.encode_answer(run.sync(i), 81, codec.data_body((run.tuple_bytes(i),)))
        for i in range(run.count)
    )
    assert run.answers(81) == expected


@pytest.mark.parametrize(
    "odd",
    [
        store(5, 1, space=513),
        store(5, 1, kind=2),
        encode_request(64, 5),
        encode_request(3, 5, {0x10: 512}),
        encode_request(3, 5, {0x10: 512, 0x21: {}}),
        encode_request(3, 5, {0x10: -1, 0x21: []}),
        encode_request(3, 5, {0x10: 512, 0x21: [], 0x11: 0}),
        codec.frame(msgpack.packb({0: 3, 1: 5, 5: 80}) + msgpack.packb({0x10: 512, 0x21: [1]})),
        codec.frame(b"\x82\x00\x03\x00\x03" + msgpack.packb({0x10: 512, 0x21: [1]})),
        codec.frame(b"\x82\x00\x03\x01\x05" + b"\x82\x10\x01\x21\x91"),
        codec.frame(b"\x82\x00\x03\x01\x05" + b"\x82\x10\x01\x21\x91\x01\x02"),
        codec.frame(b""),
        b"\xa1x",
    ],
)
def test_run_ends_before_what_is_not_of_its_form(odd: bytes) -> None:
    """The odd one goes the ordinary way."""
    stream = b"".join(store(sync, sync) for sync in range(1, 9))
    run = runs.take_run(stream + odd)
    assert run is not None
    assert (run.count, run.stop) == (8, len(stream))


def test_short_run_is_none_where_something_came_with_it() -> None:
    """It is not worth it: other kinds, other requests before it, large ones."""
    assert runs.take_run(store(1, 1) * 3 + encode_request(64, 5)) is None
    assert runs.take_run(encode_request(64, 5) + store(1, 1)) is None
    assert runs.take_run(store(1, 1) + b"\xce") is None
    assert runs.take_run(store(1, 1) + store(2, 1), len(store(1, 1))) is None
    assert runs.take_run(store(1, 1, kind=2) * 3) is None
    assert runs.take_run(store(1, "x" * runs.ALONE_BYTES)) is None
    assert runs.take_run(b"") is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_replaces_alone_are_a_run(count: int) -> None:
    """So that a single change, too, goes the short way."""
    stream = b"".join(store(sync, sync) for sync in range(count))
    run = runs.take_run(stream)
    assert run is not None
    assert (run.count, run.stop) == (count, len(stream))


def both(data: bytes) -> None:
    """The compiled and the plain kernel agree on everything that they write."""
    capacity = 16
    results = []
    for module in (kernel, PLAIN_IPROTO):
        table = runs._ZERO * (module.RUN_HEAD + 2 * capacity + 1)
        out = bytearray(len(data))
        count = module.take_run(data, 0, table, capacity, out)
        size = table[module.RUN_BYTES]
        answers = bytearray(size + module.ANSWER_BYTES * count)
        written = module.answers(table, capacity, count, bytes(out[:size]), 80, answers)
        assert written == len(answers)
        results.append((count, table, bytes(out[:size]), answers))
    assert results[0] == results[1]
    count, table, _, _ = results[0]
    for start, end in Splitter().split(data[: table[kernel.RUN_STOP]])[0]:
        decode_request(data, start, end, Request(-1))
    lone = kernel.take_lone(data)
    assert lone == PLAIN_IPROTO.take_lone(data)
    is_lone = count == 1 and table[kernel.RUN_STOP] == len(data)
    if lone is None:
        assert not is_lone or table[kernel.RUN_TYPE] != 3 or table[kernel.RUN_VERSION]
    else:
        assert is_lone
        sync, space_id, packed = lone
        assert (sync, space_id) == (table[kernel.RUN_HEAD], table[kernel.RUN_SPACE])
        assert packed == results[0][2]
        answer = kernel.answer(sync, 80, packed)
        assert answer == PLAIN_IPROTO.answer(sync, 80, packed) == results[0][3]


def test_a_lone_replace_is_what_a_run_of_one_is() -> None:
    """And nothing else is one: two of them, an insert, a schema version, a part."""
    one = store(2**40, 7, "x" * 300)
    run = runs.take_run(one)
    assert run is not None
    assert runs.take_lone(one) == (2**40, 512, run.packed)
    assert runs.answer_lone(2**40, 81, run.packed) == run.answers(81)
    wanted = msgpack.packb({0: 3, 1: 5, 5: 80}) + msgpack.packb({0x10: 512, 0x21: [1]})
    others = (b"", one * 2, one[:-1], one + b"\0", store(1, 1, kind=2), codec.frame(wanted))
    assert [runs.take_lone(other) for other in others] == [None] * len(others)


def test_kernels_agree_on_damaged_runs() -> None:
    """Whatever the kernel takes, the codec takes too."""
    chance = random.Random(7)
    stream = b"".join(store(sync, sync, "abc", [1.5, None]) for sync in (1, 200, 70000, 2**40))
    for _ in range(3000):
        damaged = bytearray(stream)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        both(bytes(damaged[: chance.randint(0, len(damaged))]))
    single = store(70000, 5, "abc", [1.5, None])
    for _ in range(3000):
        damaged = bytearray(single)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        both(bytes(damaged[: chance.choice([len(damaged)] * 3 + [chance.randrange(len(damaged))])]))
    both(single)


@given(st.binary(max_size=120))
def test_kernels_agree_on_garbage(data: bytes) -> None:
    """Also where nothing is a request."""
    both(data)
