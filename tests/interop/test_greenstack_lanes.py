"""Lanes and transactions on sockets: where a new lane works, what is too large, probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.gsraw import RawClient, mutation, vbucket
from interop.test_greenstack_sockets import serve
from logweir.limits import GREENSTACK_PIPELINE_BYTES, GREENSTACK_TRANSACTION_FRAMES
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import Hello, encode_bucket, encode_sasl
from logweir.replication.service import users
from logweir.store.schema.access import Privilege

SELECT_B = Frame(Opcode.SELECT_BUCKET, 1, encode_bucket("b"))


def in_lane(key: bytes, opaque: int, lane: bytes = b"new", flags: int = 0) -> Frame:
    """A Set in a lane."""
    return mutation(key, opaque=opaque, flags=flags, flex=vbucket(0, lane=lane))


@pytest.mark.parametrize("before", ["default", ""])
def test_a_new_lane_works_in_the_bucket_selected_before_it(tmp_path: Path, before: str) -> None:
    """In one write with the selection, whatever was selected before."""
    with serve(tmp_path / "s") as server:
        Buckets(server.log).make("b")
        with RawClient(server.port, bucket=before) as client:
            client.send(SELECT_B, in_lane(b"doc", 2), in_lane(b"doc2", 3, b"other"))
            answers = [client.answer() for _ in range(3)]
        assert answers[0].opaque == 1
        assert {(one.opaque, one.status) for one in answers} == {(1, 0), (2, 0), (3, 0)}
        assert server.log.count("b") == 2
        assert server.log.count("default") == 0


def test_login_selection_and_a_lane_in_one_write(tmp_path: Path) -> None:
    """Answered in this order; the change is made with the rights of the user, in the bucket."""
    with serve(tmp_path / "s", guest="none") as server:
        Buckets(server.log).make("b")
        users.add_user(server.log, "ada", password="lovelace")
        both = Privilege.READ | Privilege.WRITE
        users.grant(server.log, "ada", both, users.Target("space", "b"))
        with RawClient(server.port, hello=False, bucket="") as client:
            client.send(
                Frame(Opcode.HELLO, 10, Hello("test", "1", "", ()).encode()),
                Frame(Opcode.SASL_AUTH, 11, encode_sasl("PLAIN", b"\0ada\0lovelace")),
                SELECT_B,
                in_lane(b"doc", 2),
            )
            answers = [client.answer() for _ in range(4)]
        assert [(one.opaque, one.status) for one in answers] == [(n, 0) for n in (10, 11, 1, 2)]
        assert server.log.count("b") == 1


def test_a_failed_selection_leaves_a_new_lane_what_was_selected_before(tmp_path: Path) -> None:
    """And a lane keeps what it began with."""
    with serve(tmp_path / "s") as server:
        Buckets(server.log).make("b")
        with RawClient(server.port) as client:
            client.send(Frame(Opcode.SELECT_BUCKET, 1, encode_bucket("none")), in_lane(b"k", 2))
            assert [client.answer().status for _ in range(2)] == [Status.NOT_FOUND, 0]
            client.send(SELECT_B, in_lane(b"l", 2))
            assert [client.answer().status for _ in range(2)] == [0, 0]
        assert [row[0] for row in server.log.select("default")] == [b"k", b"l"]


@pytest.mark.parametrize("lane", [None, b"x"])
def test_a_transaction_of_too_many_bytes_is_too_busy_and_what_follows_is_done(
    tmp_path: Path, lane: bytes | None
) -> None:
    """Quiet parts of more than the pipeline holds: nothing of them is made, all are answered, and
    so are later requests, another transaction too."""
    flex = vbucket(0) if lane is None else vbucket(0, lane=lane)
    value = b"x" * 10**6
    count = GREENSTACK_PIPELINE_BYTES // len(value) + 5
    flags = Flag.MORE | Flag.QUIET
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        for _ in range(2):
            for number in range(count):
                part = mutation(b"d%d" % number, value, opaque=number, flags=flags, flex=flex)
                client.send(part)
            client.send(mutation(b"end", opaque=count, flex=flex))
            found = {one.opaque: one.status for one in (client.answer() for _ in range(count + 1))}
            over = [number for number, status in found.items() if status == Status.TOO_BUSY]
            assert over == [16]
            assert set(found.values()) == {Status.TOO_BUSY, Status.INVALID_STATE}
            assert sorted(found) == list(range(count + 1))
        assert server.log.count("default") == 0
        client.send(mutation(b"a", opaque=1, flags=Flag.MORE, flex=flex))
        client.send(mutation(b"b", opaque=2, flex=flex))
        assert [client.answer().status for _ in range(2)] == [0, 0]
        assert server.log.count("default") == 2


def test_a_transaction_that_never_ends_is_refused_as_it_comes(tmp_path: Path) -> None:
    """Nothing of it is kept, and other lanes work meanwhile."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        for number in range(3 * GREENSTACK_TRANSACTION_FRAMES):
            client.send(in_lane(b"k", number, b"x", Flag.MORE))
        statuses = [client.answer().status for _ in range(3 * GREENSTACK_TRANSACTION_FRAMES)]
        assert statuses.count(Status.TOO_BUSY) == 1
        assert statuses.index(Status.TOO_BUSY) == GREENSTACK_TRANSACTION_FRAMES
        client.send(in_lane(b"k", 1, b"y"))
        assert client.answer().status == 0


def test_a_probe_inside_a_transaction_is_answered_at_once(tmp_path: Path) -> None:
    """With InvalidState, quiet or not; the transaction is made when its end comes."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.send(mutation(b"a", opaque=1, flags=Flag.MORE))
        for flags in (0, Flag.QUIET, Flag.FENCE):
            client.send(Frame(Opcode.NOOP, 2, flags=flags))
            answer = client.answer()
            assert (answer.opaque, answer.status) == (2, Status.INVALID_STATE)
        client.send(Frame(Opcode.NOOP, 3, flex={FlexKey.LANE.value: b"other"}))
        assert client.answer().status == 0
        client.send(mutation(b"b", opaque=4))
        assert [(one.opaque, one.status) for one in (client.answer(), client.answer())] == [
            (1, 0),
            (4, 0),
        ]
        assert server.log.count("default") == 2
