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


@pytest.mark.parametrize("kind", [2, 3])
def test_short_run_is_none(kind: int) -> None:
    """It is not worth it, whatever stands before and behind it; one more, and it is a run."""
    least = runs.RUN_MIN
    stream = b"".join(store(sync, sync, kind=kind) for sync in range(least))
    first = len(store(0, 0, kind=kind))
    run = runs.take_run(stream)
    assert run is not None
    assert (run.count, run.stop) == (least, len(stream))
    assert runs.take_run(stream, first) is None
    assert runs.take_run(stream[first:]) is None
    assert runs.take_run(stream[first:] + encode_request(64, 5)) is None
    assert runs.take_run(stream[:-1]) is None
    assert runs.take_run(encode_request(64, 5) + stream) is None
    assert runs.take_run(store(1, 1, kind=kind) + b"\xce") is None
    assert runs.take_run(b"") is None


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
