"""Lanes without a store: what a new lane begins with, and transactions that grow too large."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from struct import pack

import pytest

from logweir.limits import GREENSTACK_TRANSACTION_BYTES, GREENSTACK_TRANSACTION_FRAMES
from logweir.replication.greenstack.serve.lanes import Batch, Lanes, Pending
from logweir.replication.greenstack.serve.statements import refusal_of
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, Status

MEBIBYTE = bytes(1024 * 1024)


def pending(
    opcode: int, opaque: int, lane: bytes | None = None, *, flags: int = 0, payload: bytes = b""
) -> Pending:
    """A request."""
    flex: dict[int, bytes] = {} if lane is None else {FlexKey.LANE: lane}
    return Pending(Frame(opcode, opaque, payload, flags=flags, flex=flex))


def part(opaque: int, lane: bytes | None = None, payload: bytes = b"") -> Pending:
    """A part of a transaction that goes on."""
    return pending(Opcode.MUTATION, opaque, lane, flags=Flag.MORE, payload=payload)


def opaques(batches: Iterable[Batch[str]]) -> list[int]:
    """Of all requests."""
    return [one.frame.opaque for batch in batches for one in batch.requests]  # type: ignore[union-attr]


def answered(lanes: Lanes[str]) -> list[tuple[int, Status | None]]:
    """Let all run that can: opaque and refusal of each, in order."""
    found: list[tuple[int, Status | None]] = []
    while batches := lanes.take():
        for batch in batches:
            for one in batch.requests:
                assert isinstance(one.frame, Frame)
                found.append((one.frame.opaque, one.refusal))
            lanes.done(batch)
    return found


def test_a_new_lane_begins_with_what_the_root_lane_has_when_its_turn_comes() -> None:
    """After SELECT_BUCKET that came before it, before one that came behind it."""
    lanes: Lanes[str] = Lanes("first")
    lanes.put(pending(Opcode.SELECT_BUCKET, 1))
    lanes.put(pending(Opcode.MUTATION, 2, b"new"))
    lanes.put(pending(Opcode.SELECT_BUCKET, 3))
    (select,) = lanes.take()
    assert opaques((select,)) == [1]
    assert not lanes.take()
    select.lane.selected = "second"
    lanes.done(select)
    begun = lanes.take()
    assert sorted(opaques(begun)) == [2, 3]
    (of_lane,) = (batch for batch in begun if batch.lane.id == b"new")
    assert of_lane.lane.selected == "second"


def test_a_new_lane_waits_for_all_that_runs_alone_before_it() -> None:
    """Not for the first of them only."""
    lanes: Lanes[str] = Lanes("first")
    lanes.put(pending(Opcode.SELECT_BUCKET, 1))
    lanes.put(pending(Opcode.SELECT_BUCKET, 2))
    lanes.put(pending(Opcode.MUTATION, 3, b"new"))
    for opaque in (1, 2, 3):
        (batch,) = lanes.take()
        assert opaques((batch,)) == [opaque]
        lanes.done(batch)


def test_a_lane_waits_for_no_change_and_no_transaction_of_the_root_lane() -> None:
    """Only for what can change what it begins with; and only at its beginning."""
    lanes: Lanes[str] = Lanes("first")
    lanes.put(pending(Opcode.MUTATION, 1))
    lanes.put(part(2))
    lanes.put(pending(Opcode.MUTATION, 3, b"new"))
    assert opaques(lanes.take()) == [1, 3]
    lanes.put(pending(Opcode.SELECT_BUCKET, 4))
    lanes.put(pending(Opcode.MUTATION, 5, b"new"))
    assert opaques(lanes.take()) == [5]


def test_what_follows_a_fenced_request_waits_for_its_answer() -> None:
    """In its own lane; the fenced one goes with those before it."""
    lanes: Lanes[str] = Lanes("first")
    lanes.put(pending(Opcode.MUTATION, 1))
    lanes.put(pending(Opcode.MUTATION, 2, flags=Flag.FENCE))
    lanes.put(pending(Opcode.MUTATION, 3))
    (batch,) = lanes.take()
    assert opaques((batch,)) == [1, 2]
    lanes.done(batch)
    assert opaques(lanes.take()) == [3]


@pytest.mark.parametrize("how", ["frames", "bytes"])
def test_a_transaction_over_the_limits_is_refused_at_once(how: str) -> None:
    """All before with the one that is too much, which alone is TooBusy; each that follows as it
    comes; what comes after its end is done."""
    lanes: Lanes[str] = Lanes("b")
    count = GREENSTACK_TRANSACTION_FRAMES if how == "frames" else 16
    payload = b"" if how == "frames" else MEBIBYTE
    for number in range(count - (how == "bytes")):
        lanes.put(part(number, payload=payload))
        assert not answered(lanes)
    first = count - (how == "bytes")
    lanes.put(part(first, payload=payload))
    assert answered(lanes) == [
        *((number, Status.INVALID_STATE) for number in range(first)),
        (first, Status.TOO_BUSY),
    ]
    assert lanes.open_bytes == 0
    lanes.put(part(first + 1))
    lanes.put(pending(Opcode.GET, first + 2))
    lanes.put(pending(Opcode.MUTATION, first + 3))
    assert answered(lanes) == [(first + n, Status.INVALID_STATE) for n in (1, 2, 3)]
    lanes.put(pending(Opcode.MUTATION, first + 4))
    assert answered(lanes) == [(first + 4, None)]


def test_open_transactions_of_all_lanes_share_one_bound() -> None:
    """So a connection holds no more by opening one in each of its lanes."""
    lanes: Lanes[str] = Lanes("b")
    half = bytes(GREENSTACK_TRANSACTION_BYTES // 2)
    lanes.put(part(1, b"x", half[:-100]))
    lanes.put(part(2, b"y", half[: len(half) // 2]))
    assert not answered(lanes)
    lanes.put(part(3, b"y", half[: len(half) // 2]))
    assert answered(lanes) == [(2, Status.INVALID_STATE), (3, Status.TOO_BUSY)]
    lanes.put(pending(Opcode.MUTATION, 4, b"x"))
    assert answered(lanes) == [(1, None), (4, None)]
    assert lanes.open_bytes == 0


def test_what_comes_inside_a_transaction_is_refused_before_it_ends() -> None:
    """Before the transaction, behind what came before that; what is answered already, as it is."""
    lanes: Lanes[str] = Lanes("b")
    lanes.put(pending(Opcode.MUTATION, 1))
    lanes.put(part(2))
    lanes.put(Pending(Frame(Opcode.NOOP, 3), answer=b"all is well"))
    lanes.put(Pending(Frame(Opcode.SASL_AUTH, 4), answer=b"welcome"))
    lanes.put(pending(Opcode.SELECT_BUCKET, 5))
    found: list[tuple[int, Status | None, bytes | None]] = []
    while batches := lanes.take():
        for batch in batches:
            found += [(one.frame.opaque, one.refusal, one.answer) for one in batch.requests]  # type: ignore[union-attr]
            lanes.done(batch)
    assert found == [
        (1, None, None),
        (3, Status.INVALID_STATE, None),
        (4, None, b"welcome"),
        (5, Status.INVALID_STATE, None),
    ]


def test_a_part_whose_failure_is_known_is_bound_with_it() -> None:
    """As the first one, too: its transaction is not made without it."""
    lanes: Lanes[str] = Lanes("b")
    lanes.put(
        Pending(
            Frame(Opcode.MUTATION, 1, flags=Flag.MORE),
            refusal=Status.INVALID_ARGUMENTS,
            answer=b"wrong",
        )
    )
    assert not answered(lanes)
    lanes.put(pending(Opcode.MUTATION, 2))
    (batch,) = lanes.take()
    assert [(one.refusal, one.answer) for one in batch.requests] == [
        (Status.INVALID_ARGUMENTS, None),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("limit_ms", "waited", "wanted"),
    [
        (None, 1000.0, None),
        (0, 1000.0, None),
        (500, 0.25, None),
        (500, 0.5, None),
        (500, 0.75, Status.TMP_FAILURE),
    ],
)
def test_who_comes_too_late_is_refused(
    limit_ms: int | None, waited: float, wanted: Status | None
) -> None:
    """Behind the time that it may wait, if it has one; refused before, it is refused for that."""
    flex: dict[int, bytes] = {} if limit_ms is None else {FlexKey.EXPIRES_MS: pack(">I", limit_ms)}
    one = Pending(Frame(Opcode.GET, 1, flex=flex), received_at=100.0)
    assert refusal_of(one, 100.0 + waited) is wanted
    refused = replace(one, refusal=Status.NO_ACCESS)
    assert refusal_of(refused, 100.0 + waited) is Status.NO_ACCESS
