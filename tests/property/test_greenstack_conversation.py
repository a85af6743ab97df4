"""Lanes, fence, quiet and more on a socket of the real server, against a model of each lane.

The model knows, for each lane, what every request has to be answered, or that it is to be answered
nothing: lanes have keys of their own, so what one does cannot change what another sees.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    Opcode,
    Status,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    MutationAnswer,
    Operation,
    decode_get_answer,
    encode_remove,
)
from logweir.replication.protocols import parse_listen_url
from logweir.store.state import layers, stacked

LANES = st.sampled_from([None, b"", b"blue", b"red"])
KEYS = st.integers(0, 2)
FLAGS = st.sampled_from([0, 0, Flag.QUIET, Flag.QUIET, Flag.FENCE, Flag.FENCE | Flag.QUIET])
CHANGES = st.sampled_from(
    [Operation.SET, Operation.ADD, Operation.REPLACE, Operation.APPEND, Operation.PREPEND, None]
)
_numbers = itertools.count(1)


@dataclass
class Expected:
    """An answer that has to come. `value`: of a GET that finds something; `is_change`: it has a
    CAS, a size and a lsn; `size`: of what is stored then."""

    opaque: int
    opcode: int
    status: int
    value: bytes | None = None
    size: int | None = None


@dataclass
class LaneModel:
    """What one lane has stored and what is owed to it. `open`: a transaction that goes on."""

    stored: dict[bytes, bytes] = field(default_factory=dict)
    owed: list[Expected] = field(default_factory=list)
    open: list[tuple[Frame, Operation | None, bytes, bytes]] = field(default_factory=list)

    def change(
        self, stored: dict[bytes, bytes], operation: Operation | None, key: bytes, value: bytes
    ) -> tuple[int, int]:
        """Do it; status and size. `operation` None: REMOVE."""
        old = stored.get(key)
        match operation:
            case None:
                if old is None:
                    return Status.NOT_FOUND, 0
                del stored[key]
                return Status.SUCCESS, 0
            case Operation.ADD if old is not None:
                return Status.ALREADY_EXISTS, 0
            case Operation.REPLACE if old is None:
                return Status.NOT_FOUND, 0
            case Operation.APPEND | Operation.PREPEND if old is None:
                return Status.NOT_STORED, 0
            case Operation.APPEND:
                value = (old or b"") + value
            case Operation.PREPEND:
                value = value + (old or b"")
        stored[key] = value
        return Status.SUCCESS, len(value)

    def owe(self, frame: Frame, status: int, value: bytes | None, size: int | None) -> None:
        """Note an answer, unless the request is quiet and went well."""
        if not (frame.flags & Flag.QUIET and status == Status.SUCCESS):
            self.owed.append(Expected(frame.opaque, frame.opcode, status, value, size))

    def end_transaction(self) -> None:
        """Do all that was bound together, or nothing of it."""
        after = dict(self.stored)
        outcomes: list[tuple[int, int]] = []
        for _, operation, key, value in self.open:
            outcomes.append(self.change(after, operation, key, value))
            if outcomes[-1][0] != Status.SUCCESS:
                break
        else:
            self.stored = after
            for (frame, *_), (status, size) in zip(self.open, outcomes, strict=True):
                self.owe(frame, status, None, size if status == Status.SUCCESS else None)
            self.open = []
            return
        for number, (frame, *_) in enumerate(self.open):
            failed = number == len(outcomes) - 1
            self.owe(frame, outcomes[-1][0] if failed else Status.INVALID_STATE, None, None)
        self.open = []


class Conversation(RuleBasedStateMachine):
    """Requests go out as they are drawn, now and then cut inside a frame; at times everything that
    is owed is collected."""

    port = 0

    def __init__(self) -> None:
        super().__init__()
        self.client = RawClient(self.port)
        self.turn = next(_numbers)
        self.lanes: dict[bytes | None, LaneModel] = defaultdict(LaneModel)
        self.opaque = 0
        self.kept = b""
        self.held_bytes = 0

    def key(self, lane: bytes | None, number: int) -> bytes:
        """A key that only this lane of this run uses."""
        return b"%d/%s/%d" % (self.turn, repr(lane).encode(), number)

    def request(
        self, lane: bytes | None, operation: Operation | None, number: int, flags: int
    ) -> tuple[Frame, bytes, bytes]:
        """A change; the key and the value in it."""
        self.opaque += 1
        key, value = self.key(lane, number), b"%d." % self.opaque
        flex = vbucket(0) if lane is None else vbucket(0, lane=lane)
        if operation is None:
            frame = Frame(Opcode.REMOVE, self.opaque, encode_remove(key, 0), flags=flags, flex=flex)
        else:
            frame = mutation(key, value, operation, opaque=self.opaque, flags=flags, flex=flex)
        return frame, key, value

    def send(self, *frames: Frame) -> None:
        """Send what was held back and these, but for as many bytes as are to be held back."""
        data = self.kept + b"".join(map(encode_frame, frames))
        self.kept = data[len(data) - self.held_bytes :] if self.held_bytes else b""
        self.held_bytes = 0
        self.client.socket.sendall(data.removesuffix(self.kept))

    @rule(count_bytes=st.integers(1, 60))
    def hold(self, count_bytes: int) -> None:
        """The end of what is sent next comes with what is sent behind it."""
        self.held_bytes = count_bytes

    @rule(lane=LANES, operation=CHANGES, number=KEYS, flags=FLAGS)
    def change(
        self, lane: bytes | None, operation: Operation | None, number: int, flags: int
    ) -> None:
        """A change by itself, or the last one of an open transaction."""
        frame, key, value = self.request(lane, operation, number, flags)
        model = self.lanes[lane]
        self.send(frame)
        if model.open:
            model.open.append((frame, operation, key, value))
            model.end_transaction()
            return
        status, size = model.change(model.stored, operation, key, value)
        model.owe(frame, status, None, size if status == Status.SUCCESS else None)

    @rule(lane=LANES, number=KEYS, count=st.integers(3, 12), flags=FLAGS)
    def flood(self, lane: bytes | None, number: int, count: int, flags: int) -> None:
        """Many plain Sets in one piece, which the server takes as a run."""
        model = self.lanes[lane]
        if model.open:
            return
        frames = []
        for _ in range(count):
            frame, key, value = self.request(lane, Operation.SET, number, flags & Flag.QUIET)
            frames.append(frame)
            _, size = model.change(model.stored, Operation.SET, key, value)
            model.owe(frame, Status.SUCCESS, None, size)
        self.send(*frames)

    @rule(lane=LANES, operation=CHANGES, number=KEYS, flags=FLAGS)
    def bind(
        self, lane: bytes | None, operation: Operation | None, number: int, flags: int
    ) -> None:
        """A part of a transaction that goes on."""
        frame, key, value = self.request(lane, operation, number, flags | Flag.MORE)
        self.send(frame)
        self.lanes[lane].open.append((frame, operation, key, value))

    @rule(lane=LANES, number=KEYS, flags=FLAGS)
    def look(self, lane: bytes | None, number: int, flags: int) -> None:
        """A GET: quiet, only a miss is answered; inside a transaction it is refused."""
        self.opaque += 1
        key = self.key(lane, number)
        flex = vbucket(0) if lane is None else vbucket(0, lane=lane)
        frame = get(key, opaque=self.opaque, flags=flags, flex=flex)
        model = self.lanes[lane]
        self.send(frame)
        if model.open:
            model.owe(frame, Status.INVALID_STATE, None, None)
            return
        value = model.stored.get(key)
        model.owe(frame, Status.NOT_FOUND if value is None else Status.SUCCESS, value, None)

    @rule(lane=LANES, flags=FLAGS)
    def probe(self, lane: bytes | None, flags: int) -> None:
        """A NOOP: answered in its turn, and refused at once inside a transaction."""
        self.opaque += 1
        flex = {} if lane is None else {FlexKey.LANE.value: lane}
        frame = Frame(Opcode.NOOP, self.opaque, flags=flags, flex=flex)
        model = self.lanes[lane]
        self.send(frame)
        model.owe(frame, Status.INVALID_STATE if model.open else Status.SUCCESS, None, None)

    @rule(lane=LANES, flags=FLAGS)
    def wrong(self, lane: bytes | None, flags: int) -> None:
        """A request without a vbucket: its failure is answered, quiet or not."""
        model = self.lanes[lane]
        if model.open:
            return
        self.opaque += 1
        flex = {} if lane is None else {FlexKey.LANE.value: lane}
        frame = get(b"k", opaque=self.opaque, flags=flags, flex=flex)
        self.send(frame)
        model.owe(frame, Status.INVALID_ARGUMENTS, None, None)

    @precondition(lambda self: any(model.owed for model in self.lanes.values()))
    @rule()
    def collect(self) -> None:
        """Everything owed comes, in order in each lane, and nothing else."""
        for lane, model in self.lanes.items():
            if model.open:  # what is sent now would be refused
                frame, key, value = self.request(lane, Operation.SET, 0, 0)
                self.send(frame)
                model.open.append((frame, Operation.SET, key, value))
                model.end_transaction()
            self.opaque += 1
            flex = {} if lane is None else {FlexKey.LANE.value: lane}
            noop = Frame(Opcode.NOOP, self.opaque, flags=Flag.FENCE, flex=flex)
            self.send(noop)
            model.owe(noop, Status.SUCCESS, None, None)
        self.held_bytes = 0
        self.send()
        while any(model.owed for model in self.lanes.values()):
            answer = self.client.answer()
            model = self.lanes[answer.lane]
            assert model.owed, f"{answer} was not to be answered"
            check(answer, model.owed.pop(0))

    @invariant()
    def nothing_is_pushed(self) -> None:
        """Nobody asked for a stream."""
        assert not self.client.pushed

    def teardown(self) -> None:
        """Collect what is left."""
        with self.client:
            if any(model.owed or model.open for model in self.lanes.values()):
                self.collect()
            self.held_bytes = 0
            self.send()
            self.client.barrier()


def check(answer: Frame, expected: Expected) -> None:
    """An answer is the one that was to come."""
    told = (answer.opaque, answer.opcode, answer.status)
    assert told == (expected.opaque, expected.opcode, expected.status)
    assert set(answer.flex) <= {FlexKey.LANE}
    if expected.value is not None:
        assert decode_get_answer(answer.payload).value == expected.value
    elif expected.size is not None:
        assert MutationAnswer.decode(answer.payload).size == expected.size
    elif answer.opcode != Opcode.NOOP:
        assert answer.status != Status.SUCCESS
        assert answer.payload == b""


@pytest.fixture(params=["in layers", "in the base"])
def port(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """Of a server that lets guests do everything. What was changed is read from layers, or the base
    takes them again and again meanwhile, and each change is synced."""
    listen = [parse_listen_url("greenstack://:0")]
    options = {"durability": "write"}
    if request.param == "in the base":
        options = {}
        monkeypatch.setattr(stacked, "LAYER_BYTES", 1)
    else:
        monkeypatch.setattr(layers, "LAYER_SECONDS", 3600.0)
    with Serving(tmp_path / "s", listen=listen, guest="all", open_options=options) as server:
        yield server.port


def test_every_lane_is_answered_as_its_model_says(port: int) -> None:
    """Order, quietness, fences and transactions in four lanes of one connection."""
    machine = type("Machine", (Conversation,), {"port": port})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None)
    )
