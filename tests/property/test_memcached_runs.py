"""Runs of commands: the same answers and the same rows as one command after the other."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tapcommands import Model, StoredItems
from support.tapmodel import asked, oldest_opaque

import logweir
from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket import joint, store
from logweir.replication.bucket.feed import Puts
from logweir.replication.bucket.item import Item, VbucketState, pack_item, unpack_item
from logweir.replication.bucket.joint import change_all, look_all
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems, ViewItems
from logweir.replication.bucket.sweep import removal
from logweir.replication.memcached.push.stream import Producer, StreamOptions, mutation_of
from logweir.replication.memcached.serve import runs
from logweir.replication.memcached.serve.commands import READS, Executor, Viewer
from logweir.replication.memcached.serve.runs import (
    Commands,
    RequestRun,
    execute_one,
    packets_of,
    take_run,
)
from logweir.replication.memcached.wire import kernel, pushkernel
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_request,
)
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option, encode_tap
from logweir.replication.memcached.wire.mutations import encode_mutations, touched_vbuckets
from logweir.replication.session import Outbox
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.log import Log
from logweir.store.schema.bulk import interpreted
from logweir.wal.vclock import VClock

NOW = 1_795_000_000.0

PLAIN = interpreted(kernel)
PLAIN_PUSH = interpreted(pushkernel)

KEYS = st.sampled_from(
    [b"a", b"a", b"b", b"b", b"with\x00zero", b"with\x00zero", bytes(250), b"k" * 250]
)
FAST = (
    *(Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.SET, Opcode.SETQ, Opcode.ADD),
    *(Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ, Opcode.DELETE, Opcode.DELETEQ, Opcode.NOOP),
)
COUNTERS = (Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT, Opcode.DECREMENTQ)
EXTENDING = (Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ)
TOUCHING = (Opcode.TOUCH, Opcode.GAT, Opcode.GATQ, Opcode.GATK, Opcode.GATKQ)
OTHERS = (Opcode.FLUSH, Opcode.VERBOSITY)
STORES = frozenset(FAST[4:10])
OPCODES = st.sampled_from(
    (*FAST, *FAST, *COUNTERS, *EXTENDING, *TOUCHING, *OTHERS, *(Opcode.SET, Opcode.DELETE) * 8)
)
VALUES = st.binary(max_size=40) | st.sampled_from(
    [b"7", b" 18446744073709551615 ", b"9" * 26, bytes(255), b"x" * 256, b"y" * 70_000]
)
# Relative, absolute and past, a year from now.
EXPIRIES = st.sampled_from(
    [0, 0, 0, 1, 60, 2592000, 2592001, int(NOW) - 5, int(NOW) + 5, 2**32 - 1]
)


@st.composite
def requests(draw: st.DrawFn) -> Packet:
    """One command, mostly of those that come in runs."""
    opcode = draw(OPCODES)
    key, value, extras = draw(KEYS), b"", b""
    if opcode in STORES:
        extras = struct.pack(">II", draw(st.sampled_from([0, 1, 300, 2**32 - 1])), draw(EXPIRIES))
        value = draw(VALUES)
    elif opcode in EXTENDING:
        value = draw(VALUES)
    elif opcode in COUNTERS:
        step, first = (
            draw(st.sampled_from([0, 3, 2**64 - 1])),
            draw(st.sampled_from([5, 2**64 - 1])),
        )
        extras = struct.pack(">QQI", step, first, draw(EXPIRIES))
    elif opcode in (*TOUCHING, Opcode.VERBOSITY):
        extras = struct.pack(">I", draw(EXPIRIES))
    if opcode in (Opcode.NOOP, Opcode.FLUSH, Opcode.VERBOSITY):
        key = b""
    return Packet(
        opcode,
        key,
        value,
        extras,
        vbucket=draw(st.sampled_from([0] * 20 + [1, 1, 2, 3, 4])),
        opaque=draw(st.sampled_from([0, 1, 2**32 - 1])),
        cas=draw(st.sampled_from([0] * 15 + [1, int(NOW * 1e6), int(NOW * 1e6) + 1])),
        datatype=draw(st.sampled_from([0, 0, 1, 255])),
    )


CLIENTS = st.lists(st.lists(requests(), max_size=8), min_size=1, max_size=4)
READINGS = st.lists(
    st.tuples(CLIENTS, st.sampled_from([0.0, 0.25, 2.0, 90])),
    min_size=2,
    max_size=4,
)


class Side:
    """A store with a bucket, to which what comes in one read is given at once."""

    def __init__(self, folder: Path, *, in_runs: bool) -> None:
        self.now = NOW
        self.log: Log = logweir.open(folder, clock=lambda: self.now, durability="write")
        self.in_runs = in_runs
        self.runs = self.buckets = 0

    def begin(self) -> None:
        """Begin anew, with another bucket, and with CAS values that know of no later time."""
        self.now = NOW
        store._clocks.pop(self.log, None)
        self.buckets += 1
        self.all = Buckets(self.log, lambda: self.now)
        self.bucket: Bucket = self.all.make(f"b{self.buckets}")
        self.buffer = PacketBuffer()
        self.log.inner.run_job(Job(self._set_states))
        self.start = self.log.vclock

    def _set_states(self, group: Group) -> None:
        items = GroupItems(self.bucket, group, self.now)
        for vbucket, state in ((1, VbucketState.ACTIVE), (2, VbucketState.REPLICA)):
            items.set_state(vbucket, state)
        items.set_state(3, VbucketState.DEAD)

    def feed(self, sent: list[bytes]) -> list[bytes]:
        """The answers to what came of each client in one turn."""
        answers: list[bytes] = []
        waiting: list[Commands] = []
        for data in sent:
            pieces, problem = PacketBuffer().feed(data, take_run)
            assert problem is None
            self.runs += sum(isinstance(piece, RequestRun) for piece in pieces)
            if not self.in_runs:
                pieces = list(packets_of(pieces))
            if self.in_runs and all(packet.opcode in READS for packet in packets_of(pieces)):
                answers += [*self._change(waiting), self._look(pieces)]
                waiting = []
            else:
                waiting.append(asked(pieces))
        return answers + self._change(waiting)

    def _change(self, parts: list[Commands]) -> list[bytes]:
        self.log.inner.run_job(Job(partial(self._apply, parts)))
        assert not any(part.left for part in parts)
        return [b"".join(part.fresh) for part in parts]

    def _look(self, pieces: list[Packet | RequestRun]) -> bytes:
        """As a connection answers what changes nothing."""
        expired: list[tuple[bytes, int]] = []

        def ordinary(part: Commands, packet: Packet) -> bytes:
            with self.log.read_view() as view:
                return Viewer(ViewItems(self.bucket, view)).execute(packet)

        part = asked(pieces)
        look_all([part], self.all, self.bucket, self.now, ordinary, expired)
        self.log.inner.run_job(removal(self.bucket, expired, lambda: self.now))
        return b"".join(part.fresh) + b"".join(self._change([asked(part.left)]))

    def _apply(self, parts: list[Commands], group: Group) -> None:
        items = GroupItems(self.bucket, group, self.now)
        executor = Executor(items, self.now)
        if not self.in_runs:
            executor = Model(items, self.now, StoredItems(items, group, self.now))

        def ordinary(part: Commands, request: Packet) -> bytes:
            return execute_one(group, executor, request)

        change_all(parts, items, self.now, ordinary, group)

    def rows(self) -> list[tuple[object, ...]]:
        """Everything that came into the log since `begin`: rows of transactions."""
        return [transaction.rows for transaction in self.log.rows(self.start)]

    def state(self) -> list[object]:
        """What the bucket holds, in the order of both its indexes."""
        return [self.log.select(self.bucket.name, index=index) for index in (0, 1)]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """One that takes runs, and one that does not."""
    folder = tmp_path_factory.mktemp("sides")
    fast, slow = Side(folder / "fast", in_runs=True), Side(folder / "slow", in_runs=False)
    with fast.log, slow.log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "_JOB_SECONDS", math.inf)  # neither is divided by how long it takes
        patch.setattr(joint, "TURN_SECONDS", math.inf)
        yield fast, slow
    assert fast.runs > 10


@settings(deadline=None, max_examples=150)
@given(READINGS)
def test_runs_do_what_single_commands_do(
    sides: tuple[Side, Side], readings: list[tuple[list[list[Packet]], float]]
) -> None:
    """Byte for byte the same answers to each client, the same rows in the log, the same state."""
    fast, slow = sides
    for side in sides:
        side.begin()
    for clients, seconds in readings:
        sent = [b"".join(map(encode_request, made)) for made in clients]
        assert fast.feed(sent) == slow.feed(sent)
        fast.now += seconds
        slow.now += seconds
    assert fast.rows() == slow.rows()
    assert fast.state() == slow.state()
    assert fast.bucket.cas.next() == slow.bucket.cas.next()


@st.composite
def kernel_cases(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and tuples of items."""
    made = draw(st.lists(requests(), min_size=4, max_size=12))
    there = draw(st.lists(ITEMS, max_size=6))
    return b"".join(map(encode_request, made)), [pack_item(item) for item in there]


ITEMS = st.builds(
    Item,
    key=KEYS,
    vbucket=st.sampled_from([0, 0, 0, 0, 1, 65535]),
    value=VALUES,
    flags=st.integers(0, 2**32 - 1),
    expiry=st.sampled_from([0, 0, 0, 0, int(NOW), int(NOW) + 1, 2**32 - 1]),
    cas=st.sampled_from([0, 1, int(NOW * 1e6), 2**64 - 1]),
    datatype=st.integers(0, 255),
    compression=st.sampled_from([0, 200]),
    expiration=st.sampled_from(["", "tomorrow"]),
    meta=st.sampled_from([b"", b"123456789", b"1234"]),
    ttl=st.sampled_from([255, 255, 254, 1, 0]),
)


def states() -> bytearray:
    """Of vbuckets: some active, one replica, one that is none, others that were not asked yet."""
    return bytearray([1, 1, 2, 255] + [0] * 65532)


def run_kernel(
    module: object, data: bytes, there: list[bytes], room: int, outcomes: list[int]
) -> object:
    """Everything that a kernel says of a run: its statements, and answers to made-up results."""
    table = array("Q", (0,) * 2)
    count = module.take_run(data, 0, 100, TAP_VALUE_BYTES, table)  # type: ignore[attr-defined]
    numbers, given = array("Q", (0, 0, 0, int(NOW))), bytearray(room)
    columns = array("Q", (0,) * (26 * count))
    how = module.statements(  # type: ignore[attr-defined]
        data, table[0], 100, numbers, states(), given, columns
    )
    tuples = there or [pack_item(Item(b"k"))]
    results, made = array("Q"), b"".join(tuples)
    for number in range(numbers[2]):
        one = outcomes[number % len(outcomes)]
        start = sum(map(len, tuples[: one % len(tuples)]))
        span = (start, start + len(tuples[one % len(tuples)]))
        status = (0, 0, 0, 0, 1, 3, 4)[one % 7]
        code = (one // 7) % 8 if status == 4 else 0
        results.extend((status, code, one * 2**40, one, *span, *span, 0, 0))
    said, answers = array("Q", (0, 0, 0)), bytearray(room)
    told = module.answers(data, numbers[0], said, results, made, answers)  # type: ignore[attr-defined]
    return count, table, how, numbers, given, columns, told, said, answers


@settings(deadline=None)
@given(
    kernel_cases(),
    st.sampled_from([500, 900, 200_000]),
    st.lists(st.integers(0, 200), min_size=1, max_size=9),
)
def test_interpreted_kernel_is_the_compiled_one(
    case: tuple[bytes, list[bytes]], room: int, outcomes: list[int]
) -> None:
    """The same counts, statements, answers and places, with much room and with little."""
    data, there = case
    assert run_kernel(kernel, data, there, room, outcomes) == run_kernel(
        PLAIN, data, there, room, outcomes
    )


@settings(deadline=None)
@given(st.lists(requests(), min_size=1, max_size=6), st.binary(max_size=30), st.data())
def test_run_is_what_packets_are(made: list[Packet], tail: bytes, data: st.DataObject) -> None:
    """In any portions, a run holds the packets that stand there, whole and well-formed."""
    stream = b"".join(map(encode_request, made)) + tail
    cut = data.draw(st.integers(0, len(stream)))
    runs_of, plain = PacketBuffer(), PacketBuffer()
    found: list[Packet] = []
    expected: list[Packet] = []
    for part in (stream[:cut], stream[cut:]):
        pieces, problem = runs_of.feed(part, take_run)
        packets, other = plain.feed(part)
        assert str(problem) == str(other) or problem is not None
        found += packets_of(pieces)
        expected += packets
    assert found == expected


@settings(deadline=None)
@given(st.binary(max_size=80), st.integers(0, 100))
def test_run_of_garbage_ends_within_it(data: bytes, value_max: int) -> None:
    """Nothing behind the end is read, compiled or not."""
    data = b"\x80" + data
    tables = [array("Q", (0,) * 2) for _ in range(2)]
    counts = [
        module.take_run(data, 0, 50, value_max, table)
        for module, table in zip((kernel, PLAIN), tables, strict=True)
    ]
    assert counts[0] == counts[1]
    assert tables[0] == tables[1]
    assert tables[0][0] <= len(data)


@settings(deadline=None)
@given(
    st.lists(ITEMS, max_size=8),
    st.integers(0, 7),
    st.sampled_from([0, 5, 2**32 - 3]),
    st.booleans(),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([0, 60, 1 << 40]),
)
def test_mutations_are_those_of_the_codec(
    items: list[Item], form: int, opaque: int, mangled: bool, most: int, room: int
) -> None:
    """Byte for byte, opaques and what is left out included; it stops at what is odd, and where
    there are enough."""
    tuples = [pack_item(item) for item in items]
    if mangled:
        tuples.append(b"\x9a\x01")
    wanted = b"\x01" + bytes(65535)
    found, count, last, row = b"", 0, opaque, 0
    while True:
        run = encode_mutations(
            tuples, row, wanted=wanted, now=NOW, form=form, opaque=last, most=most, room_bytes=room
        )
        out = bytearray(120 * 1024)
        numbers = array("Q", (0, last, 0, most, room))
        ends = array("Q", bytes(16 * 100))
        plain = PLAIN_PUSH.mutations(tuples, row, wanted, int(NOW), form, numbers, out, ends)
        assert plain == run.next
        assert bytes(out[: numbers[0]]) == run.data
        assert ends[: 2 * run.count] == run.ends
        assert run.count <= most
        assert run.count < 3 or run.ends[2 * run.count - 6] < room
        found += run.data
        count += run.count
        if run.next == row:
            break
        last, row = run.opaque, run.next
    assert (row, count) == (len(items), len([one for one in items if is_sent(one)]))
    expected = b""
    for item in filter(is_sent, items):
        opaque = opaque + 1 if opaque + 1 < 2**32 else 1
        message = replace(mutation_of(item), opaque=opaque)
        if form & 1:
            message = replace(message, value=b"", has_value=False)
        if not form & 4:
            message = replace(message, private=b"")
        elif len(item.meta) != 9:
            message = replace(message, private=item.cas.to_bytes(8, "big") + b"\x02")
        expected += encode_tap(message, fix_flags=bool(form & 2))
    assert (found, last) == (expected, opaque)


STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(ITEMS, max_size=12)),
    st.tuples(st.just("answer"), st.integers(0, 15)),
    st.tuples(st.just("answer"), st.integers(0, 15)),
    st.tuples(st.just("busy"), st.integers(0, 15)),
    st.tuples(st.just("ask"), st.just(0)),
    st.tuples(st.just("control"), st.just(0)),
    st.tuples(st.just("wait"), st.just(6)),
    st.tuples(st.just("reach"), st.just(0)),
)
STREAM_OPTIONS = st.builds(
    StreamOptions,
    ack_interval_packets=st.integers(1, 6),
    window_packets=st.integers(1, 9),
    window_bytes=st.sampled_from([1, 45, 120, 300, 100_000]),
    with_private=st.booleans(),
)


class Half:
    """A producer and what waits for it, item by item or in runs."""

    def __init__(self, options: StreamOptions, wanted: Option, opaque: int, in_runs: bool) -> None:
        self.out = Outbox()
        self.producer: Producer[int] = Producer(
            Connect(b"n", wanted), self.out, 0.0, options=options, opaque=opaque
        )
        self.items: list[Item] = []
        self.row = 0
        self.in_runs = in_runs

    def pump(self, now: float) -> None:
        """Give it what it takes."""
        producer = self.producer
        tuples = [pack_item(item) for item in self.items]
        while self.row < len(tuples) and producer.has_room:
            if self.in_runs:
                self.row = producer.put_tuples(
                    tuples,
                    self.row,
                    b"\x01" + bytes(65535),
                    NOW,
                    now,
                    lambda rows: list(rows).__getitem__,
                )
                continue
            item = self.items[self.row]
            if is_sent(item):
                producer.put(mutation_of(item), now, self.row)
            self.row += 1

    def step(self, what: str, value: object, now: float) -> None:
        """One thing that happens."""
        producer = self.producer
        if what == "put":
            self.items += value  # type: ignore[arg-type]
        elif what in ("answer", "busy") and (oldest := oldest_opaque(producer)) is not None:
            status = Status.BUSY if what == "busy" else 0
            opaque = (oldest + value - 1) % (2**32 - 1) + 1  # type: ignore[operator]
            packet = Packet(Opcode.TAP_MUTATION, vbucket=status, opaque=opaque, is_response=True)
            producer.take_answer(packet, now)
        elif what == "ask":
            producer.ask(now)
        elif what == "control" and producer.has_room:
            producer.control(Opcode.TAP_OPAQUE, 0, Opaque.OPEN_CHECKPOINT, now)
        elif what == "wait":
            producer.deadline_passed(now)
        elif what == "reach":
            producer.reach(1000 + self.row)

    def seen(self) -> tuple[object, ...]:
        """What can be told from outside."""
        one = self.producer
        return (
            self.out.take(),
            one.unacknowledged,
            one.unacknowledged_bytes,
            one.has_room,
            one.opaque,
            oldest_opaque(one),
            one.acknowledged if one.connect.options & Option.SUPPORT_ACK else None,
            one.unknown_acks,
            one.sent_packets,
            one.next_deadline(),
            one.close_reason,
        )


@settings(deadline=None, max_examples=200)
@given(
    STREAM_OPTIONS,
    st.sampled_from([Option.SUPPORT_ACK, Option.SUPPORT_ACK, Option(0)]),
    st.sampled_from([Option(0), Option.REQUEST_KEYS_ONLY, Option.FIX_FLAG_BYTEORDER]),
    st.sampled_from([0, 7, 2**32 - 4]),
    st.lists(STEPS, max_size=30),
)
def test_streams_in_runs_are_those_packet_by_packet(
    options: StreamOptions,
    acks: Option,
    more: Option,
    opaque: int,
    steps: list[tuple[str, object]],
) -> None:
    """The same bytes, the same window in packets and bytes, the same position, after each step:
    acknowledgements in the middle of a run, refusals, pauses, control packets, opaques that wrap.
    """
    sides = [Half(options, acks | more, opaque, in_runs) for in_runs in (True, False)]
    now = 0.0
    for what, value in (*steps, ("ask", 0)):
        now += value if what == "wait" else 0  # type: ignore[operator]
        for side in sides:
            side.step(what, value, now)
            side.pump(now)
        assert sides[0].seen() == sides[1].seen(), what


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_a_run_that_is_acknowledged_bit_by_bit(step: int) -> None:
    """Of each packet, or of every so many: the window is as that of packets, and when the consumer
    is busy the same ones come again."""
    sizes = (0, 9, 1, 30, 4, 100, 2, 50, 3, 20)
    for busy_at in range(0, len(sizes), step):
        sides = [Half(StreamOptions(), Option.SUPPORT_ACK, 0, in_runs) for in_runs in (True, False)]
        for side in sides:
            side.items = [
                Item(b"k%d" % n, cas=1, value=b"v" * size) for n, size in enumerate(sizes)
            ]
            side.pump(0.0)
            side.step("ask", 0, 0.0)
        for at in range(step - 1, len(sizes), step):
            what = "busy" if at // step * step == busy_at else "answer"
            for side in sides:
                side.step(what, step - 1, 0.0)
            assert sides[0].seen() == sides[1].seen()
        for side in sides:
            side.step("wait", 0, 3600.0)
            side.pump(3600.0)
        assert sides[0].seen() == sides[1].seen()


def test_a_long_window_is_kept_as_runs() -> None:
    """Not as a packet each, which would cost what runs save."""
    half = Half(StreamOptions(), Option.SUPPORT_ACK, 0, in_runs=True)
    half.items = [Item(b"k%d" % n, cas=1) for n in range(5000)]
    half.pump(0.0)
    assert half.row == 5000
    assert half.producer.unacknowledged == 5000
    assert len(half.producer._unacked) < 20


@settings(deadline=None)
@given(st.lists(ITEMS, max_size=8), st.booleans())
def test_touched_vbuckets_are_those_of_the_packets(items: list[Item], mangled: bool) -> None:
    """Compiled, interpreted, and item by item."""
    wanted = b"\x01" + bytes(65534) + b"\x01"
    tuples = [pack_item(item) for item in items]
    if mangled:  # a key that is not written as ours are: item by item from there on
        tuples.insert(len(tuples) // 2, b"\x9a\xc5\x00\x01k" + pack_item(Item(b"k"))[4:])
    tables = bytearray(65536), bytearray(65536)
    looked = [
        module.touched(tuples, wanted, table)
        for module, table in zip((pushkernel, PLAIN_PUSH), tables, strict=True)
    ]
    assert looked[0] == looked[1]
    assert tables[0] == tables[1]
    named = {item.vbucket for item in map(unpack_item, tuples) if item.ttl}
    assert touched_vbuckets(tuples, wanted) == sorted(named & {0, 65535})
    tuples.insert(0, pack_item(Item(b"far", 65536)))  # of another protocol
    assert touched_vbuckets(tuples, wanted) == sorted(named & {0, 65535})


def is_sent(item: Item) -> bool:
    """Whether it is of vbucket 0, may go further and is not expired."""
    return bool(not item.vbucket and item.ttl and not item.is_expired(NOW))


def test_one_request_is_a_run() -> None:
    """As two are; what stands behind them that is none is not."""
    one = encode_request(Packet(Opcode.GET, b"k"))
    for count in (1, 2):
        found = runs.take_run(one * count + b"\x80")
        assert found is not None
        assert (found.count, found.stop, found.changes) == (count, count * len(one), 0)
    assert runs.take_run(encode_request(Packet(Opcode.STAT))) is None


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(1, 3), st.integers(0, 9), max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=12),
    st.data(),
)
def test_places_behind_puts_are_what_was_reached(
    start: dict[int, int], origins: list[int], data: st.DataObject
) -> None:
    """Of rows of one origin or several, for any of them that are asked for."""
    reached, lsns, expected = dict(start), [], []
    for origin in origins:
        reached[origin] = reached.get(origin, 0) + data.draw(st.integers(1, 3))
        lsns.append(reached[origin])
        expected.append(VClock(reached))
    puts = Puts([b""] * len(lsns), VClock(start), array("Q", origins), array("Q", lsns))
    numbers = sorted(data.draw(st.sets(st.sampled_from(range(len(lsns))), min_size=1)))
    behind = puts.places(numbers)
    assert [behind(at) for at in range(len(numbers))] == [expected[number] for number in numbers]
