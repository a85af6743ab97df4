"""What is pushed by the kernel: the frames that are made of the same changes one by one."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutation import mutate

from logweir.replication.bucket.feed import transaction_changes
from logweir.replication.bucket.item import Item, pack_item, pack_key, tombstone, unpack_item
from logweir.replication.greenstack.push import pushing
from logweir.replication.greenstack.push.pushing import (
    Choice,
    Names,
    Pushes,
    lsns_of,
)
from logweir.replication.greenstack.push.stream import Outgoing
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire import pushkernel as kernel
from logweir.replication.greenstack.wire.codec import Flag, Frame, FrameBuffer, Opcode, encode_frame
from logweir.replication.greenstack.wire.messages import StreamOpen, StreamRow
from logweir.store.schema.bulk import interpreted
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.xrow import Row, RowType, encode_rows

PLAIN = interpreted(kernel)

NOW = 1_800_000_000.0
BUCKETS = {512: "default", 600: "orders"}
OTHER = 700
WINDOW = 1 << 24
DATES = {
    0: ["", "tomorrow"],
    951_826_272: ["", "2000-02-29T12:11:12Z", "2000-02-29T14:11:12+02:00", "junk"],
    4_102_444_800: ["", "2100-01-01T00:00:00Z"],
    2**32 - 1: [""],
}
EXPIRIES = st.sampled_from([(s, text) for s, texts in DATES.items() for text in texts])
KEYS = st.one_of(st.sampled_from([b"a", b"b"]), st.binary(min_size=1, max_size=40))


@st.composite
def documents(draw: st.DrawFn) -> Item:
    """An item; rarely one that no kernel takes."""
    expiry, expiration = draw(EXPIRIES)
    return Item(
        draw(KEYS),
        draw(st.sampled_from([0, 0, 1, 65535])),
        draw(st.one_of(st.binary(max_size=40), st.binary(min_size=250, max_size=300))),
        draw(st.sampled_from([0, 7, 2**32 - 1])),
        expiry,
        draw(st.sampled_from([1, 2**63, 2**64 - 1])),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([0, 0, 1, 3])),
        expiration,
        draw(st.sampled_from([b"", b"private"])),
        draw(st.sampled_from([255, 255, 3])),
    )


SPACES = st.sampled_from([512, 512, 600, OTHER])


@st.composite
def transactions(draw: st.DrawFn) -> list[tuple[RowType, bytes]]:
    """Kinds and bodies of the rows of one transaction."""
    rows: list[tuple[RowType, bytes]] = []
    for _ in range(draw(st.integers(1, 4))):
        space, item = draw(SPACES), draw(documents())
        put = b"\x82\x10" + pack(space) + b"\x21"
        key = b"\x82\x10" + pack(space) + b"\x20" + pack_key(item.key)
        match draw(st.sampled_from(["put", "put", "put", "remove", "bare", "update", "truncate"])):
            case "put":
                rows.append((RowType.REPLACE, put + pack_item(item)))
            case "remove":
                rows.append((RowType.REPLACE, put + pack_item(tombstone(item, 9))))
                rows.append((RowType.DELETE, key))
            case "bare":
                rows.append((RowType.DELETE, key))
            case "update":
                rows.append((RowType.UPDATE, b"\x83" + key[1:] + b"\x21\x91\x93\xa1=\x03\x01"))
            case "truncate":
                rows.append((RowType.REPLACE, b"\x82\x10" + pack(330) + b"\x21" + pack([space, 1])))
    return rows


LSNS = st.sampled_from([0, 125, 252, 65_533])


def block(made: list[list[tuple[RowType, bytes]]], before: int = 0) -> RowColumns:
    """The transactions as a block, behind lsn `before`, all of one time but the first."""
    rows, lsn = [], before
    for transaction in made:
        first = lsn + 1
        for number, (kind, body) in enumerate(transaction):
            lsn += 1
            is_last = number == len(transaction) - 1
            rows.append(
                Row(
                    type=kind, replica_id=1, lsn=lsn, timestamp=NOW + (lsn == before + 1) / 7,
                    tsn=first, commit=is_last, group_id=0, flags=0, body=body,
                )
            )  # fmt: skip
    return RowColumns.scan(encode_rows(rows))


class Sink:
    """Takes what a stream sends, as a session does."""

    def __init__(self) -> None:
        self.data = b""
        self.opaque = 0x80000001

    def push(self, frame: Frame, stream: bytes) -> int:
        """See `Pusher`."""
        whole = Frame(frame.opcode, self.opaque, frame.payload, None, frame.flags, frame.flex)
        self.push_all(encode_frame(whole), 1)
        return len(encode_frame(whole))

    def next_opaque(self, stream: bytes) -> int:
        """See `Pusher`."""
        return self.opaque

    def push_all(self, data: bytes, count: int) -> None:
        """See `Pusher`."""
        self.data += data
        self.opaque += count


FILTERS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {},
        {"prefix": b"a"},
        {"vbuckets": (1, 65535)},
        {"keys_only": True},
        {"prefix": b"b", "vbuckets": (0,), "keys_only": True},
    ]
)


def outgoing(
    lane: bytes | None = None, window: int = WINDOW, **asked: Any
) -> tuple[Outgoing, Sink]:
    """A stream and where it sends."""
    sink = Sink()
    return Outgoing(b"feed", lane, StreamOpen(window_bytes=window, **asked), sink, 0.0), sink


def is_given(stream: Outgoing, item: Item | None, *, is_removal: bool = False) -> bool:
    """Whether a stream is given that: of a removal that has no CAS nobody knows the vbucket."""
    asked = stream.choice
    if item is None or not item.key.startswith(asked.prefix):
        return item is None
    return bool(asked.wanted[item.vbucket]) or (is_removal and not item.cas)


def put_one_by_one(
    stream: Outgoing, columns: RowColumns, first: int, last: int, reached: dict[int, int]
) -> None:
    """A transaction in the ordinary way, one row after the other."""
    rows, after = [], dict(reached)
    for space_id, name in BUCKETS.items():
        after = dict(reached)
        for one in transaction_changes(columns, first, last, after, space_id):
            row = StreamRow(name, one.item, one.is_removal, one.lsn, one.origin, one.timestamp)
            if is_given(stream, one.item, is_removal=one.is_removal):
                rows.append((one.signature, row))
    reached.update(after)
    rows.sort(key=lambda pair: pair[0])
    for number, (_, row) in enumerate(rows):
        stream.row(row, 0.0, has_more=number < len(rows) - 1)


def put_all(stream: Outgoing, columns: RowColumns, had: dict[int, int]) -> tuple[int, list[int]]:
    """Everything by the kernel, what is odd in the ordinary way. How many were odd; the lsns."""
    names, lsns, at, odd = Names(BUCKETS), lsns_of(had.items()), 0, 0
    ends = columns.transaction_ends().tolist()
    starts = [0, *(columns.end_offset[end - 1] for end in ends)]
    while at < len(columns.data):
        assert stream.has_room
        pushed = stream.put_rows(columns.data, at, lsns, names, 0.0)
        at = pushed.at
        assert at in starts
        if pushed.how == kernel.ODD:
            odd += 1
            first = columns.row_offset.tolist().index(at)
            last = next(end for end in ends if end > first)
            reached = dict(enumerate(lsns))
            put_one_by_one(stream, columns, first, last, reached)
            lsns = lsns_of(reached.items())
            at = columns.end_offset[last - 1]
    return odd, list(lsns)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(transactions(), min_size=1, max_size=6),
    st.sampled_from([None, b"", b"blue"]),
    st.integers(0, 5),
    LSNS,
    FILTERS,
)
def test_rows_are_pushed_as_one_by_one(
    made: list[list[tuple[RowType, bytes]]],
    lane: bytes | None,
    had: int,
    before: int,
    asked: dict[str, Any],
) -> None:
    """Byte for byte: transactions, removals, several buckets, what was had before, filters."""
    columns = block(made, before=before)
    fast, slow, whole = (outgoing(lane, **asked) for _ in range(3))
    reached = {1: before + had}
    given = columns.above(lsns_of(reached.items()))
    _, lsns = put_all(fast[0], given, reached)
    for first, last in given.transactions():
        put_one_by_one(slow[0], given, first, last, reached)
    assert fast[1].data == slow[1].data
    assert (fast[0].owed_bytes, fast[0].rows) == (slow[0].owed_bytes, slow[0].rows)
    assert lsns[1] == before + max(len(columns), had)
    reached = {1: before + had}
    if push_whole(whole[0], [columns.data], reached):
        assert whole[1].data == slow[1].data
        assert (whole[0].owed_bytes, whole[0].rows) == (slow[0].owed_bytes, slow[0].rows)
        assert reached[1] == lsns[1]


def push_whole(stream: Outgoing, blocks: list[bytes], reached: dict[int, int]) -> bool:
    """Blocks that are pushed whole or not at all. Whether they were; raises `reached`."""
    lsns = lsns_of(reached.items())
    before = lsns[:]

    def pack(made: Pushes) -> bool:
        made.begin(lsns)
        done = all(map(made.add, blocks))
        raised = enumerate(zip(made.lsns, before, strict=True))
        assert made.last_lsns() == {number: lsn for number, (lsn, had) in raised if lsn > had}
        lsns[:] = made.lsns
        return done

    done = stream.put_packed(pack, Names(BUCKETS), 0.0)
    assert done or len(blocks) > 1 or (lsns == before and not stream.rows)
    reached.update({number: lsn for number, lsn in enumerate(lsns) if lsn})
    return done


def kernels_agree(
    data: bytes, at: int, limit: int, room: int, had: int = 0, asked: dict[str, Any] | None = None
) -> tuple[int, array[int], array[int], bytes]:
    """What both kernels make of a block: how it ended, numbers, lsns, frames."""
    names, results = Names(BUCKETS), []
    choice = Choice(**(asked or {}))
    for module in (kernel, PLAIN):
        numbers, lsns, out = array("Q", (at, 0, 5, 0)), lsns_of([(1, had)]), bytearray(room)
        how = module.pushes(
            data, lsns, names.spaces, names.bounds, names.entries, choice.wanted, choice.prefix,
            choice.keys_only, b"\0\6\0\1x", limit, numbers, out,
        )  # fmt: skip
        results.append((how, numbers, lsns, bytes(out[: numbers[1]])))
    assert results[0] == results[1]
    return results[0]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(transactions(), min_size=1, max_size=5),
    st.sampled_from([0, 300, 900, 1 << 18]),
    LSNS,
    FILTERS,
)
def test_rows_compiled_are_rows_interpreted(
    made: list[list[tuple[RowType, bytes]]], limit: int, before: int, asked: dict[str, Any]
) -> None:
    """How it ends, numbers and bytes, with much room and with little."""
    columns = block(made, before=before)
    for room in (400, 1500, 1 << 16):
        kernels_agree(columns.data, 0, limit, room, asked=asked)


@settings(deadline=None, max_examples=200)
@example(
    [[(RowType.REPLACE, bytes.fromhex("8210cd0200219ac4016100c4000000010000a0c400"))]], 2, 0
)  # the row loses its lsn
@given(st.lists(transactions(), min_size=1, max_size=5), st.integers(0, 2**32), LSNS)
def test_what_is_taken_of_broken_blocks_is_what_columns_take(
    made: list[list[tuple[RowType, bytes]]], seed: int, before: int
) -> None:
    """Bytes changed anywhere: the kernel takes no block whole that is not rows and transactions,
    and of one that is, pushes what the ordinary way does."""
    random = Random(seed)
    data = mutate(random, block(made, before=before).data)
    how, _, lsns, _ = kernels_agree(data, 0, 1 << 20, 1 << 16)
    reached: dict[int, int] = {}
    whole, slow = outgoing(), outgoing()
    if not push_whole(whole[0], [data], reached):
        return
    assert how == kernel.DONE
    columns = RowColumns.scan(data).above(lsns_of([]))  # a broken row may have no lsn
    position: dict[int, int] = {}
    for first, last in columns.transactions():
        put_one_by_one(slow[0], columns, first, last, position)
    assert whole[1].data == slow[1].data
    assert reached == {number: lsn for number, lsn in enumerate(lsns) if lsn} == position


def test_rows_alike_but_for_lsn_and_tuple_are_read_as_if_they_were_not() -> None:
    """Values of all lengths behind one head, lsns that grow by a byte, rows that were had, of other
    spaces and of other times between: each as one by one."""
    random = Random(5)
    heads = [b"\x82\x10" + pack(space) + b"\x21" for space in (512, 600, OTHER)]
    for start in (100, 250, 65_500, 2**32 - 40):
        rows, put = [], heads[0]
        for lsn in range(start, start + 120):
            if random.random() < 0.1:
                put = random.choice(heads)
            item = Item(
                random.randbytes(random.choice((1, 3, 10, 10, 10))),
                random.choice((0, 0, 300)),
                random.randbytes(random.choice((0, 60, 60, 60, 255, 256))),
                random.choice((0, 0, 2**31)),
                random.choice((0, 0, 0, 4_102_444_800)),
                random.choice((lsn, 2**60)),
                random.choice((0, 0, 1, 3)),
            )
            kind, time = random.choice(
                ((2, 3.5), (3, 1.25)) if random.random() < 0.1 else ((3, 3.5),)
            )
            rows.append(
                Row(
                    type=RowType(kind), replica_id=1, lsn=lsn, timestamp=time, tsn=lsn,
                    commit=True, group_id=0, flags=0, body=put + pack_item(item),
                )
            )  # fmt: skip
        columns = RowColumns.scan(encode_rows(rows))
        fast, slow, reached, other = outgoing(), outgoing(), {1: start + 7}, {1: start + 7}
        assert push_whole(fast[0], [columns.data], reached)
        given = columns.above(lsns_of(other.items()))
        for first, last in given.transactions():
            put_one_by_one(slow[0], given, first, last, other)
        assert fast[1].data == slow[1].data
        assert reached == other
        kernels_agree(columns.data, 0, 1 << 20, 1 << 17, start)


def test_blocks_are_taken_whole_or_not_at_all() -> None:
    """A block that is odd, or for which the window has no room, leaves what was taken before."""
    put = b"\x82\x10" + pack(512) + b"\x21"
    good = [[(RowType.REPLACE, put + pack_item(Item(b"k", 0, b"v" * 500, cas=1)))]] * 4
    odd = [
        *good,
        [(RowType.UPDATE, b"\x83\x10\xcd\x02\x00\x20\x91\xc4\x01k\x21\x91\x93\xa1=\x03\x01")],
    ]
    one, two, bad = block(good).data, block(good, before=4).data, block(odd, before=8).data
    stream, sink = outgoing()
    reached: dict[int, int] = {}
    assert not push_whole(stream, [one, two, bad], reached)
    assert reached == {1: 8}
    assert len(FrameBuffer().feed(sink.data)[0]) == stream.rows == 8
    small = Pushes(lsns_of(()), Names(BUCKETS), Choice(), b"", 1, 3000)
    assert small.add(one)
    assert 0 < small.written_bytes < 3000
    assert not small.add(two)
    assert (small.last_lsns(), small.take().count) == ({1: 4}, 4)
    full, sink = outgoing(window=4096)
    assert not push_whole(full, [one], {})
    assert not sink.data
    assert not push_whole(outgoing()[0], [b""], {})


@settings(deadline=None, max_examples=100)
@given(st.lists(documents(), max_size=8), st.booleans(), FILTERS)
def test_documents_are_pushed_as_one_by_one(
    items: list[Item], mangled: bool, asked: dict[str, Any]
) -> None:
    """Of the wanted vbuckets, what is not expired; both kernels and the ordinary way."""
    tuples = [pack_item(item) for item in items]
    if mangled:
        tuples.append(pack([b"k", 0, b"v", 0, 0, 5, 0, 200, "", b""]))
    wanted = b"\1\1" + bytes(65534)
    (fast, sink), (slow, other), row = outgoing(**asked), outgoing(**asked), 0
    choice = fast.choice
    wanted = bytes(map(min, wanted, choice.wanted))
    while row < len(tuples):
        pushed = fast.put_documents(tuples, row, "default", wanted, NOW, 0.0)
        numbers, out = array("Q", (row, 0, sink.opaque - pushed.count, 0)), bytearray(1 << 16)
        named = b"\x80\x04\0\7default"
        how = PLAIN.documents(
            tuples, wanted, choice.prefix, choice.keys_only, int(NOW), named, b"\0\6\0\4feed",
            1 << 20, numbers, out,
        )  # fmt: skip
        assert (how, numbers[0], bytes(out[: numbers[1]])) == (pushed.how, pushed.at, pushed.data)
        row = pushed.at
        if pushed.how == kernel.ODD:
            item = unpack_item(tuples[row])
            is_kept = wanted[item.vbucket] and is_given(fast, item)
            if item.compression < 128 and is_kept and not item.is_expired(NOW):
                fast.row(StreamRow("default", item), 0.0, has_more=False)
            row += 1
    for item in items:
        if wanted[item.vbucket] and is_given(slow, item) and not item.is_expired(NOW):
            slow.row(StreamRow("default", item), 0.0, has_more=False)
    assert sink.data == other.data
    assert fast.owed_bytes == slow.owed_bytes == len(sink.data)


def test_ordinary_rows_are_not_odd() -> None:
    """Puts, removals with their tombstones and dates take the fast way: else nothing is gained."""
    item = Item(b"k", 3, b"v" * 300, 1, 4_102_444_800, 5, 1, 0, "2100-01-01T00:00:00Z")
    put = b"\x82\x10" + pack(512) + b"\x21"
    key = b"\x82\x10" + pack(512) + b"\x20" + pack_key(b"k")
    made = [
        [(RowType.INSERT, put + pack_item(item))],
        [(RowType.REPLACE, put + pack_item(tombstone(item, 9))), (RowType.DELETE, key)],
        [(RowType.REPLACE, b"\x82\x10" + pack(OTHER) + b"\x21\x91\x01")],
        [(RowType.REPLACE, put + pack_item(item))] * 3,
    ]
    stream, sink = outgoing()
    assert put_all(stream, block(made), {})[0] == 0
    frames, problem = FrameBuffer().feed(sink.data)
    assert problem is None
    kinds = [Opcode.MUTATION, Opcode.REMOVE] + [Opcode.MUTATION] * 3
    assert [frame.opcode for frame in frames] == kinds
    more = Flag.QUIET | Flag.MORE
    assert [frame.flags for frame in frames] == [Flag.QUIET, Flag.QUIET, more, more, Flag.QUIET]
    assert messages.decode_remove(frames[1].payload) == (b"k", 9)
    operation, document = messages.decode_mutation(frames[0].payload)
    assert (operation, document.id, document.value) == (messages.Operation.SET, b"k", b"v" * 300)
    assert document.expiration == "2100-01-01T00:00:00Z"


def test_what_is_left_out_is_not_odd() -> None:
    """Nor is its removal: a stream of few keys would read everything row by row."""
    item = Item(b"k", 3, b"v" * 300, 1, 0, 5)
    put = b"\x82\x10" + pack(512) + b"\x21"
    key = b"\x82\x10" + pack(512) + b"\x20" + pack_key(b"k")
    made = [
        [(RowType.REPLACE, put + pack_item(item))],
        [(RowType.REPLACE, put + pack_item(tombstone(item, 9))), (RowType.DELETE, key)],
        [(RowType.REPLACE, put + pack_item(Item(b"order", 3, b"v", cas=7)))],
    ]
    for asked in ({"prefix": b"or"}, {"vbuckets": (3,), "prefix": b"o"}):
        stream, sink = outgoing(**asked)
        assert put_all(stream, block(made), {})[0] == 0
        (frame,), _ = FrameBuffer().feed(sink.data)
        assert messages.decode_mutation(frame.payload)[1].id == b"order"
    stream, sink = outgoing(vbuckets=(4,))
    assert put_all(stream, block(made), {})[0] == 0
    assert not sink.data


def test_a_window_is_overrun_by_one_transaction_at_most() -> None:
    """Nothing is begun once the window is used up; credit lets exactly so much more come."""
    put = b"\x82\x10" + pack(512) + b"\x21"
    made = [
        [(RowType.REPLACE, put + pack_item(Item(b"%d" % n, 0, b"v" * 500, cas=1)))] * 2
        for n in range(40)
    ]
    columns = block(made)
    stream, sink = outgoing(window=4096)
    lsns, at, names = lsns_of(()), 0, Names(BUCKETS)
    each = 0
    while at < len(columns.data):
        before = stream.owed_bytes
        pushed = stream.put_rows(columns.data, at, lsns, names, 0.0)
        each = each or len(pushed.data) // pushed.count * 2
        assert stream.owed_bytes == before + len(pushed.data)
        assert stream.owed_bytes - each - 8 <= stream.window_bytes
        assert not stream.has_room or pushed.how == kernel.DONE
        at = pushed.at
        stream.credit(1500, 0.0)
        while not stream.has_room:
            assert stream.put_rows(columns.data, at, lsns, names, 0.0).count == 0
            stream.credit(100, 0.0)
    assert len(FrameBuffer().feed(sink.data)[0]) == 80


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=120), st.data())
def test_broken_tuples_are_odd(garbage: bytes, data: st.DataObject) -> None:
    """Cut, flipped or made up: both kernels say the same and nothing is written behind the end."""
    whole = pack_item(data.draw(documents()))
    cut = data.draw(st.integers(0, len(whole)))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for one in (garbage, whole[:cut], flipped):
        results: list[Any] = []
        for module in (kernel, PLAIN):
            numbers, out = array("Q", (0, 0, 1, 0)), bytearray(2000)
            how = module.documents(
                [one], b"\1" * 65536, b"k", True, 0, b"", b"", 9999, numbers, out
            )
            results.append((how, numbers, out))
        assert results[0] == results[1]
    assert pushing.kernel is kernel
