"""Lanes, fence, quiet and transactions against a model; documents of any content."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logweir.replication.greenstack.serve.lanes import Batch, BatchKind, Lanes, Pending
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    Opcode,
    encode_frame,
)
from logweir.replication.greenstack.wire.flat import Kind
from logweir.replication.greenstack.wire.messages import TABLES, Document, Operation

LANES = st.sampled_from([None, b"", b"a", b"b"])
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=40)
DOCUMENTS = st.builds(
    Document,
    id=st.binary(max_size=250),
    value=st.binary(max_size=300),
    flags=U32,
    expiration=TEXT,
    compression=st.integers(-128, 127),
    datatype=st.integers(-128, 127),
    cas=U64,
)
FRAMES = st.builds(
    Frame,
    opcode=st.integers(0, 0xFFFF),
    opaque=U32,
    payload=st.binary(max_size=60),
    status=st.none() | st.integers(0, 0xFFFF),
    flags=st.sampled_from([0, 4, 8, 16, 28]),
    flex=st.dictionaries(st.integers(0, 0xFFFF), st.binary(max_size=20), max_size=4),
)


@given(DOCUMENTS, st.sampled_from(Operation))
def test_any_document_survives(document: Document, operation: Operation) -> None:
    """Written and read it is the same, as a change and as an answer."""
    assert messages.decode_mutation(document.encode(operation)) == (operation, document)
    assert messages.decode_get_answer(document.encode_answer()) == document


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(1, 50), max_size=10))
def test_any_frames_survive_in_any_portions(frames: list[Frame], sizes: list[int]) -> None:
    """Cut wherever it may be."""
    data = b"".join(map(encode_frame, frames))
    buffer = FrameBuffer()
    found: list[Frame] = []
    for size in [*sizes, len(data) + 1]:
        found += buffer.feed(data[:size])[0]
        data = data[size:]
    assert found == frames
    assert len(buffer) == 0


@given(st.data(), st.sampled_from(TABLES))
@settings(max_examples=60)
def test_garbage_never_raises_anything_else(data: st.DataObject, table: Any) -> None:
    """Random bytes behind a plausible begin."""
    from logweir.errors import DecodeError
    from logweir.replication.greenstack.wire.flat import read

    noise = data.draw(st.binary(max_size=80))
    try:
        values = read(table, b"\x08\0\0\0" + noise)
    except DecodeError:
        return
    assert len(values) == len(table.slots)
    assert all(slot.kind in Kind for slot in table.slots)


class LanesMachine(RuleBasedStateMachine):
    """Requests come, batches are started and end in any order that a store may choose.

    The model: per lane the requests that are not answered, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[str] = Lanes("")
        self.asked: dict[bytes | None, list[Pending]] = defaultdict(list)
        self.started: dict[bytes | None, list[Batch[str]]] = defaultdict(list)
        self.open: dict[bytes | None, int] = defaultdict(int)  # parts of an open transaction
        self.number = 0

    def put(self, opcode: int, lane: bytes | None, flags: int, priority: int | None) -> None:
        self.number += 1
        flex: dict[int, bytes] = {} if lane is None else {FlexKey.LANE.value: lane}
        if priority is not None:
            flex[FlexKey.PRIORITY] = bytes((priority,))
        pending = Pending(Frame(opcode, self.number, flags=flags, flex=flex))
        assert self.lanes.put(pending)
        if opcode != Opcode.MUTATION:  # refused before the transaction, if one is open
            self.asked[lane].insert(len(self.asked[lane]) - self.open[lane], pending)
            return
        self.asked[lane].append(pending)
        self.open[lane] = self.open[lane] + 1 if flags & Flag.MORE else 0

    @rule(
        opcode=st.sampled_from([Opcode.MUTATION, Opcode.MUTATION, Opcode.GET, Opcode.NOOP]),
        lane=LANES,
        flags=st.sampled_from([0, 0, Flag.FENCE, Flag.QUIET, Flag.FENCE | Flag.QUIET]),
        priority=st.none() | st.integers(0, 255),
    )
    def ask(self, opcode: int, lane: bytes | None, flags: int, priority: int | None) -> None:
        """A request outside or, if one is open, inside a transaction."""
        self.put(opcode, lane, flags, priority)

    @rule(lane=LANES, flags=st.sampled_from([Flag.MORE, Flag.MORE | Flag.FENCE]))
    def bind(self, lane: bytes | None, flags: int) -> None:
        """A part of a transaction that goes on."""
        self.put(Opcode.MUTATION, lane, flags, None)

    @rule()
    def start(self) -> None:
        """What may be started is: nothing of a lane that a fence or a single request blocks."""
        batches = self.lanes.take()
        for batch in batches:
            name = batch.lane.id
            before = self.started[name]
            assert not any(blocks(one) for one in before), "something was started behind a fence"
            if batch.kind == BatchKind.SINGLE:
                assert not before, "a single request was started before all before were answered"
            running = [one.frame.opaque for each in before for one in each.requests]
            expected = [one.frame.opaque for one in self.asked[name]][len(running) :]
            found = [one.frame.opaque for one in batch.requests]
            assert found == expected[: len(found)], "out of order in a lane"
            check(batch)
            before.append(batch)

    @precondition(lambda self: any(self.started.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """The first batch of some lane is answered."""
        name = data.draw(st.sampled_from([key for key, value in self.started.items() if value]))
        batch = self.started[name].pop(0)
        del self.asked[name][: len(batch.requests)]
        self.lanes.done(batch)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """Once all that can be is answered, only open transactions wait."""
        for name, pendings in self.asked.items():
            running = sum(len(batch.requests) for batch in self.started[name])
            assert running <= len(pendings)

    def teardown(self) -> None:
        """Let everything end: what is left is bound to a part that has not come."""
        while True:
            for batch in self.lanes.take():
                self.started[batch.lane.id].append(batch)
            waiting = [one for one in self.started.values() if one]
            if not waiting:
                break
            for each in waiting:
                batch = each.pop(0)
                del self.asked[batch.lane.id][: len(batch.requests)]
                self.lanes.done(batch)
        for pendings in self.asked.values():
            assert not pendings or pendings[0].frame.flags & Flag.MORE
            ends = [
                one
                for one in pendings
                if one.frame.opcode == Opcode.MUTATION and not one.frame.flags & Flag.MORE
            ]
            assert not ends


def blocks(batch: Batch[str]) -> bool:
    """Whether nothing of its lane may start before it is answered."""
    fenced = any(one.frame.flags & Flag.FENCE for one in batch.requests)
    return fenced or batch.kind == BatchKind.SINGLE


def check(batch: Batch[str]) -> None:
    """A batch is what its kind says."""
    flags = [one.frame.flags for one in batch.requests]
    if batch.kind == BatchKind.TRANSACTION:
        assert flags[0] & Flag.MORE
        assert not flags[-1] & Flag.MORE
        for one in batch.requests:
            assert (one.frame.opcode, one.refusal) == (Opcode.MUTATION, None)
    else:
        assert not any(flag & Flag.MORE for flag in flags)
        assert not any(flag & Flag.FENCE for flag in flags[:-1])


LanesTest = LanesMachine.TestCase
LanesTest.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
