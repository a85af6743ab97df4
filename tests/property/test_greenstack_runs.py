"""Runs of MUTATIONs: what the kernel takes and answers is what the ordinary way does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.gsmodel import spellings, vectors

import logweir
from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from logweir.replication.greenstack import kernel, runs
from logweir.replication.greenstack.codec import Flag, FrameBuffer, Opcode, encode_frame
from logweir.replication.greenstack.messages import MutationAnswer, decode_mutation
from logweir.replication.tap.codec import PacketBuffer
from logweir.replication.urls import parse_listen_url


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
    packets, _ = PacketBuffer().feed(run.sets)
    assert [packet.key for packet in packets] == [b"key%d" % n for n in range(9)]
    assert [packet.value for packet in packets] == [b"x" * n for n in range(9)]
    assert {packet.vbucket for packet in packets} == {513}
    assert [packet.opaque for packet in packets] == list(range(9))
    assert [run.table[3 * n] for n in range(9)] == [2**31 + n for n in range(9)]
    assert list(run.frames()) == sent


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
            numbers, table = runs._ZERO * 6, runs._ZERO * 30
            sets = bytearray(1000)
            count = module.take_run(raw, 0, 10, 100, numbers, table, sets)
            found.append((count, numbers, table, bytes(sets[: numbers[1]])))
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
