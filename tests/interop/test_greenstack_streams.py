"""Change streams of our server on sockets: snapshots, rows, resuming, credit, ends."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest
from support.leaks import SERVER
from support.waiting import until

from interop.gsraw import RawClient, get, mutation, vbucket
from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.replication.bucket import feed
from logweir.replication.bucket.feed import Backfill
from logweir.replication.bucket.item import Item, VbucketState, pack_item
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.push.stream import Outgoing
from logweir.replication.greenstack.push.streaming import OURS
from logweir.replication.greenstack.serve.protocol import GreenstackProtocol
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import MarkKind, MutationAnswer, StreamOpen
from logweir.replication.memcached.wire.codec import Opcode as Tap
from logweir.replication.memcached.wire.codec import Packet
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option
from logweir.replication.protocols import parse_listen_url
from logweir.store import open as open_store
from logweir.store.recover.checkpoint import Checkpoints
from logweir.store.state import layers
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

NAME = b"feed-1"
Told = tuple[Any, ...]


def serve(folder: Path, **options: Any) -> Serving:
    """A server of buckets that lets guests do everything, and speaks TAP on its second port."""
    options.setdefault("guest", "all")
    listen = [parse_listen_url("greenstack://:0"), parse_listen_url("tap://:0/default")]
    return Serving(folder, listen=listen, **options)


def open_stream(client: RawClient, *, name: bytes = NAME, **asked: Any) -> Frame:
    """Ask for a stream; returns the answer."""
    flex = {FlexKey.DCP_ID.value: name}
    return client.ask(Frame(Opcode.STREAM_OPEN, payload=StreamOpen(**asked).encode(), flex=flex))


def tell(frame: Frame) -> Told:
    """A pushed frame in short."""
    if frame.opcode == Opcode.STREAM_MARK:
        return ("mark", messages.Mark.decode(frame.payload).kind)
    more = "+" if frame.flags & Flag.MORE else ""
    if frame.opcode == Opcode.MUTATION:
        operation, document = messages.decode_mutation(frame.payload)
        assert operation == messages.Operation.SET
        return ("set" + more, document.id, document.value)
    if frame.opcode == Opcode.REMOVE:
        return ("remove" + more, messages.decode_remove(frame.payload)[0])
    if frame.opcode == Opcode.TRUNCATE:
        return ("truncate" + more, messages.decode_bucket(frame.payload))
    assert frame.opcode == Opcode.STREAM_CLOSE, frame
    return ("close", messages.decode_close(frame.payload)[0])


def take(client: RawClient, until: Told) -> list[Told]:
    """What is pushed, with acknowledgements, up to and with one thing."""
    told: list[Told] = []
    while not told or told[-1] != until:
        frame = client.push()
        assert frame.flex[FlexKey.DCP_ID] == NAME
        told.append(tell(frame))
    return told


CAUGHT_UP = ("mark", MarkKind.CAUGHT_UP)
BEGIN = ("mark", MarkKind.SNAPSHOT_BEGINS)
END = ("mark", MarkKind.SNAPSHOT_ENDS)


def test_snapshot_then_changes(tmp_path: Path) -> None:
    """What exists between the marks, then each change once, with its place in the log."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.ask(mutation(b"a", b"1"))
        client.ask(mutation(b"b", b"2"))
        assert open_stream(client, snapshot=True).status == Status.SUCCESS
        begin = take(client, CAUGHT_UP)
        assert begin == [BEGIN, ("set", b"a", b"1"), ("set", b"b", b"2"), END, CAUGHT_UP]
        client.ask(mutation(b"c", b"3"))
        frame = client.push()
        assert tell(frame) == ("set", b"c", b"3")
        assert frame.flags == Flag.QUIET
        assert int.from_bytes(frame.flex[FlexKey.LSN], "big") == server.log.vclock.lsn(1)
        assert frame.flex[FlexKey.ORIGIN] == (1).to_bytes(4, "big")
        assert frame.flex[FlexKey.BUCKET] == b"default"
        client.ask(Frame(Opcode.REMOVE, payload=messages.encode_remove(b"a", 0), flex=vbucket(0)))
        assert tell(client.push()) == ("remove", b"a")
        server.log.truncate("default")
        assert tell(client.push()) == ("truncate", "default")


def test_logs_of_a_snapshot_are_kept_beside_the_loop_and_not_for_a_killed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such write is synced, which others need not wait for."""
    with open_store(tmp_path / "s") as log:
        log.inner.retain_all({"greenstack:7f00": log.vclock, "mine": log.vclock})
    kept: list[tuple[str, str]] = []
    retain, release = Checkpoints.retain, Checkpoints.release

    def retained(self: Checkpoints, positions: dict[str, VClock]) -> None:
        kept.extend((name.partition(":")[0], current_thread().name) for name in positions)
        retain(self, positions)

    def released(self: Checkpoints, name: str) -> None:
        kept.append((name.partition(":")[0], current_thread().name))
        release(self, name)

    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        until(lambda: server.log.inner.pinned_bytes().keys() == {"mine"})
        client.ask(mutation(b"a", b"1"))
        client.ask(mutation(b"b", b"2"))
        monkeypatch.setattr(feed, "BACKFILL_CHUNK_ITEMS", 1)
        monkeypatch.setattr(Checkpoints, "retain", retained)
        monkeypatch.setattr(Checkpoints, "release", released)
        open_stream(client, snapshot=True)
        assert take(client, CAUGHT_UP)[1:3] == [("set", b"a", b"1"), ("set", b"b", b"2")]
        until(lambda: server.log.inner.pinned_bytes().keys() == {"mine"})
    assert {name for name, _ in kept} == {"greenstack"}
    assert SERVER not in {thread for _, thread in kept}


def test_a_server_that_begins_writes_nothing_and_leaves_logs_to_others_of_its_process(
    tmp_path: Path,
) -> None:
    """It would not begin on a full disk, and a snapshot that another one gives lost its logs."""
    with open_store(tmp_path / "s") as log:
        log.inner.retain_all(
            {name: log.vclock for name in ("greenstack:7f00", f"{OURS}7f", "mine")}
        )
        forgotten: list[str] = []
        shared: Any = SimpleNamespace(log=log, retention=SimpleNamespace(forget=forgotten.append))
        around: Any = None
        GreenstackProtocol(shared, around)
        assert forgotten == ["greenstack:7f00"]
        assert len(log.inner.pinned_bytes()) == 3


def test_a_stream_begins_behind_what_there_is(tmp_path: Path) -> None:
    """At the position that its answer tells; what comes then is given once."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.ask(mutation(b"old", b"1"))
        opened = open_stream(client, now=True)
        position, instance = messages.decode_opened(opened.payload)
        assert position == server.log.vclock.without_local()
        assert take(client, CAUGHT_UP) == [CAUGHT_UP]
        client.ask(mutation(b"new", b"2"))
        assert tell(client.push()) == ("set", b"new", b"2")
        for wrong in ({"snapshot": True}, {"start": position}):
            assert open_stream(client, name=b"2", now=True, **wrong).status == (
                Status.INVALID_ARGUMENTS
            )
        again = open_stream(client, name=b"2", start=position, instance=instance)
        assert again.status == Status.SUCCESS


def test_a_stream_is_given_what_it_asked_for(tmp_path: Path) -> None:
    """By prefix, by vbucket and without values: in the snapshot and of what changes, also of what
    another protocol did to the tuples; that the bucket was emptied is told to all."""
    every = tuple(messages.Feature)
    asked: dict[bytes, dict[str, Any]] = {
        b"prefix": {"prefix": b"order:"},
        b"vbucket": {"vbuckets": (3, 9)},
        b"keys": {"keys_only": True, "prefix": b"u"},
    }
    with serve(tmp_path / "s") as server, RawClient(server.port, features=every) as client:
        for number, key in enumerate((b"a", b"order:1", b"order:2", b"orderly", b"user:1", b"z")):
            client.ask(mutation(key, b"old", flags=0, flex=vbucket(3 * (number % 2))))
        for name, words in asked.items():
            opened = open_stream(client, name=name, snapshot=True, **words)
            assert opened.status == Status.SUCCESS
        told: dict[bytes, list[Told]] = {name: [] for name in asked}

        def hear(last: Told) -> None:
            while not all(last in one for one in told.values()):
                frame = client.push()
                if frame.opcode != Opcode.NOTICE:
                    told[frame.flex[FlexKey.DCP_ID]].append(tell(frame))

        hear(("mark", MarkKind.SNAPSHOT_ENDS))
        with server.log.transaction() as tx:
            for key, number in ((b"order:3", 3), (b"b", 9), (b"user:2", 0)):
                tx.replace("default", (key, number, b"new", 0, 0, 1, 0, 0, "", b""))
        for key, number in ((b"order:1", 3), (b"orderly", 3), (b"user:1", 0)):
            gone = messages.encode_remove(key, 0)
            client.ask(Frame(Opcode.REMOVE, payload=gone, flex=vbucket(number)))
        server.log.delete("default", (b"z",))  # without a tombstone: of no known vbucket
        server.log.truncate("default")
        hear(("truncate", "default"))
    rows = {name: [one for one in said if one[0] != "mark"] for name, said in told.items()}
    assert rows[b"prefix"] == [
        ("set", b"order:1", b"old"),
        ("set", b"order:2", b"old"),
        ("set", b"order:3", b"new"),
        ("remove", b"order:1"),
        ("truncate", "default"),
    ]
    assert rows[b"vbucket"] == [
        ("set", b"order:1", b"old"),
        ("set", b"orderly", b"old"),
        ("set", b"z", b"old"),
        ("set+", b"order:3", b"new"),
        ("set", b"b", b"new"),
        ("remove", b"order:1"),
        ("remove", b"orderly"),
        ("remove", b"z"),
        ("truncate", "default"),
    ]
    assert rows[b"keys"] == [
        ("set", b"user:1", b""),
        ("set", b"user:2", b""),
        ("remove", b"user:1"),
        ("truncate", "default"),
    ]


def test_filters_need_their_feature_and_an_id_s_length(tmp_path: Path) -> None:
    """A client that has not asked for them does not think that it has them."""
    with serve(tmp_path / "s") as server:
        with RawClient(server.port) as client:
            for words in ({"prefix": b"a"}, {"vbuckets": (1,)}, {"keys_only": True}):
                assert open_stream(client, now=True, **words).status == Status.INVALID_ARGUMENTS
        with RawClient(server.port, features=tuple(messages.Feature)) as client:
            assert open_stream(client, now=True, prefix=b"a" * 251).status == (
                Status.INVALID_ARGUMENTS
            )
            assert open_stream(client, now=True, prefix=b"a" * 250).status == Status.SUCCESS


def test_a_snapshot_by_prefix_reads_what_begins_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several chunks, from the first such key to the one behind the last; spaces too."""
    read: list[int] = []
    take_tuples = Backfill.take_tuples

    def counted(self: Backfill) -> list[bytes]:
        found = take_tuples(self)
        read.append(len(found))
        return found

    monkeypatch.setattr(Backfill, "take_tuples", counted)
    monkeypatch.setattr(feed, "BACKFILL_CHUNK_ITEMS", 8)
    wanted = (messages.Feature.CHANGE_STREAM, messages.Feature.FILTERS)
    with serve(tmp_path / "s") as server, RawClient(server.port, features=wanted) as client:
        client.send(*(mutation(b"%03d" % n, flags=Flag.QUIET) for n in range(400)))
        client.barrier()
        server.log.create_space("names", format=[("name", "string")])
        server.log.append("names", [("ada",), ("alan",), ("grace",)])
        answer = open_stream(client, snapshot=True, prefix=b"12", follow=False)
        assert answer.status == Status.SUCCESS
        told = take(client, ("close", Status.SUCCESS))
        assert [one[1] for one in told if one[0] == "set"] == [b"12%d" % n for n in range(10)]
        assert read == [8, 8]
        words = {"buckets": ("space:names",), "prefix": b'["a', "keys_only": True}
        assert open_stream(client, snapshot=True, follow=False, **words).status == 0
        told = take(client, ("close", Status.SUCCESS))
        assert [one for one in told if one[0] == "set"] == [
            ("set", b'["ada"]', b""),
            ("set", b'["alan"]', b""),
        ]


def test_the_position_of_another_log_is_refused(tmp_path: Path) -> None:
    """By the server, also where its own log is further than that position."""
    with serve(tmp_path / "one") as server, RawClient(server.port) as client:
        position, instance = messages.decode_opened(open_stream(client, now=True).payload)
    with serve(tmp_path / "other") as server, RawClient(server.port) as client:
        for number in range(20):
            client.ask(mutation(b"k", b"%d" % number))
        assert server.log.vclock.covers(position)
        refused = open_stream(client, start=position, instance=instance)
        assert refused.status == Status.ROLLBACK
        assert open_stream(client, snapshot=True, instance=instance).status == Status.SUCCESS


def test_a_tap_client_s_changes_are_streamed_and_the_reverse(tmp_path: Path) -> None:
    """A set, a removal and a flush by memcached's protocol; a document read back by it."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        assert open_stream(client, snapshot=True).status == Status.SUCCESS
        take(client, CAUGHT_UP)
        with KvClient(server.urls[1].port) as tap:
            tap.ask(store(b"k", b"from tap", flags=5))
            assert tell(client.push()) == ("set", b"k", b"from tap")
            tap.ask(Packet(Tap.DELETE, b"k"))
            assert tell(client.push()) == ("remove", b"k")
            client.ask(mutation(b"g", b"from greenstack"))
            (answer,) = tap.ask(Packet(Tap.GET, b"g"))
            assert answer.value == b"from greenstack"
            tap.ask(Packet(Tap.FLUSH))
        assert take(client, ("truncate", "default"))[-1] == ("truncate", "default")


@pytest.mark.parametrize("is_in_base", [False, True])
def test_runs_are_seen_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_base: bool
) -> None:
    """By a GET of each protocol, by a condition, and where another protocol has moved a key: its
    old vbucket is told. No CAS is given twice. Wherever what was changed stands by now."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 3600.0)
    given: list[int] = []
    with (
        serve(tmp_path / "s") as server,
        RawClient(server.port) as client,
        KvClient(server.urls[1].port) as tap,
    ):
        for turn in range(6):
            value = b"%d" % turn
            client.send(*(mutation(b"k%d" % n, value, opaque=n) for n in range(40)))
            answers = [MutationAnswer.decode(client.answer().payload) for _ in range(40)]
            if is_in_base:
                server.log.inner.change_base(lambda txn: None)
            steps = [two.seqno - one.seqno for one, two in pairwise(answers)]
            assert steps == [3 if turn == 4 and n == 7 else 1 for n in range(1, 40)]
            given += [one.cas for one in answers]
            if turn == 3:
                state = int(VbucketState.ACTIVE).to_bytes(4, "big")
                tap.ask(Packet(Tap.SET_VBUCKET, extras=state, vbucket=9))
                given += [one.cas for one in tap.ask(store(b"k7", b"moved", vbucket=9))]
            else:
                given += [one.cas for one in tap.ask(store(b"k8", b"tap"))]
            (found,) = tap.ask(Packet(Tap.GET, b"k5"))
            assert (found.value, found.cas) == (value, answers[5].cas)
            document = messages.decode_get_answer(client.ask(get(b"k6")).payload)
            assert (document.value, document.cas) == (value, answers[6].cas)
            refused = client.ask(mutation(b"k6", b"no", cas=found.cas))
            assert refused.status == Status.ALREADY_EXISTS
        dead = int(VbucketState.DEAD).to_bytes(4, "big")
        tap.ask(Packet(Tap.SET_VBUCKET, extras=dead, vbucket=0))
        client.send(*(mutation(b"k%d" % n, b"dead", opaque=n) for n in range(40)))
        assert {client.answer().status for _ in range(40)} == {Status.NOT_MY_VBUCKET}
        assert sorted(set(given)) == given
        space = server.log.schema.space("default").id
        rows = [row for one in server.log.rows() for row in one.rows if row.body]
        tuples = [row.decoded().get("tuple") for row in rows if row.space_id == space]
        graves = [tuple(row[:2]) for row in tuples if row and not row[2]]
        assert graves == [(b"k7", 0), (b"k7", 9)]
        assert server.log.count("default") == 40
        assert len(server.log.select("default", 0, index="vbucket")) == 40


def test_a_greenstack_change_comes_out_of_a_tap_stream(tmp_path: Path) -> None:
    """A consumer that follows by TAP is given what a Greenstack client writes and removes."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.ask(mutation(b"old", b"1"))
        with KvClient(server.urls[1].port) as consumer:
            stream = consumer.stream(Connect(b"n", Option.SUPPORT_ACK))
            while next(stream).number != Opaque.CLOSE_BACKFILL:
                pass
            client.ask(mutation(b"new", b"2"))
            gone = messages.encode_remove(b"old", 0)
            client.ask(Frame(Opcode.REMOVE, payload=gone, flex=vbucket(0)))
            seen = []
            for message in stream:
                if message.opcode in (Tap.TAP_MUTATION, Tap.TAP_DELETE):
                    seen.append((message.opcode, message.key, message.value))
                if message.opcode == Tap.TAP_DELETE:
                    break
        assert seen == [(Tap.TAP_MUTATION, b"new", b"2"), (Tap.TAP_DELETE, b"old", b"")]


def test_transactions_are_bound_by_more(tmp_path: Path) -> None:
    """All rows but the last have it, over several buckets too, in the order of the log."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        Buckets(server.log).make("other")
        assert open_stream(client, start=server.log.vclock.without_local()).status == 0
        take(client, CAUGHT_UP)
        with server.log.transaction() as tx:
            for key, space in ((b"1", "default"), (b"2", "other"), (b"3", "default")):
                tx.replace(space, (key, 0, b"v", 0, 0, 1, 0, 0, "", b""))
        client.ask(mutation(b"alone"))
        told = take(client, ("set", b"alone", b"v"))
        assert told == [
            ("set+", b"1", b"v"),
            ("set+", b"2", b"v"),
            ("set", b"3", b"v"),
            ("set", b"alone", b"v"),
        ]


def test_a_stream_goes_on_where_it_stood(tmp_path: Path) -> None:
    """A position taken from a row gives exactly what comes behind it."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        before = server.log.vclock.without_local()
        for number in range(20):
            client.ask(mutation(b"k%02d" % number))
        position = VClock({1: before.lsn(1) + 7})
        assert open_stream(client, start=position, follow=False).status == 0
        told = take(client, ("close", Status.SUCCESS))
        # vbucket 0 is active from the begin, so each change is one row
        assert [one[1] for one in told if one[0] == "set"] == [b"k%02d" % n for n in range(7, 20)]
        assert told[-2] == CAUGHT_UP


def test_positions_that_we_do_not_have_are_refused(tmp_path: Path) -> None:
    """Rollback for what is ahead of us; the name of an open stream is taken."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        ahead = VClock({1: server.log.vclock.lsn(1) + 1})
        assert open_stream(client, start=ahead).status == Status.ROLLBACK
        assert open_stream(client, start=VClock({9: 1})).status == Status.ROLLBACK
        assert open_stream(client, snapshot=True).status == Status.SUCCESS
        assert open_stream(client, snapshot=True).status == Status.STREAM_EXISTS
        assert open_stream(client, name=b"").status == Status.INVALID_ARGUMENTS
        assert open_stream(client, name=b"x" * 65).status == Status.INVALID_ARGUMENTS
        assert open_stream(client, name=b"y", buckets=("nosuch",)).status == Status.NO_BUCKET


def test_a_window_holds_a_stream_up_until_credit_comes(tmp_path: Path) -> None:
    """It is overshot by one transaction at most, and nothing is lost."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.send(*(mutation(b"k%03d" % n, bytes(1000), flags=Flag.QUIET) for n in range(50)))
        assert client.barrier() == []
        start = server.log.vclock.without_local()
        client.send(*(mutation(b"n%03d" % n, bytes(1000), flags=Flag.QUIET) for n in range(50)))
        client.barrier()
        assert open_stream(client, start=start, window_bytes=5000).status == 0
        frames = [client.push() for _ in range(5)]
        client.barrier()
        assert not client.pushed, "more than the window was sent"
        size = sum(len(frame.payload) + 64 for frame in frames)
        assert size < 7000
        flex = {FlexKey.DCP_ID.value: NAME}
        seen = len(frames)
        while seen < 50:
            credit = messages.encode_ack(VClock(), 5000)
            client.send(Frame(Opcode.STREAM_ACK, payload=credit, flags=Flag.QUIET, flex=flex))
            while seen < 50 and (seen % 4 or client.pushed):
                frame = client.push()
                assert tell(frame)[1] == b"n%03d" % seen
                seen += 1
            if seen < 50:
                frame = client.push()
                assert tell(frame)[1] == b"n%03d" % seen
                seen += 1


@pytest.mark.parametrize("window", [1 << 24, 2_000_000])
def test_a_long_log_is_streamed_in_whole_blocks_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Every change once and in order, whether its block is pushed in one pass or not: there is an
    update, rows of a space that is no bucket, and now and then too little credit for a block."""
    random = Random(4)
    told: list[Told] = []
    with open_store(tmp_path / "s") as log:
        buckets = Buckets(log)
        buckets.make("default")
        log.create_space("other", format=[("id", "unsigned"), ("text", "varbinary")])
        for part in range(5):
            items = [
                Item(b"%d-%d" % (part, n), 0, random.randbytes(100), cas=1 + n) for n in range(4000)
            ]
            rows = [unpack(pack_item(item)) for item in items]
            log.append("default", rows, one_transaction=False)
            told += [("set", item.key, item.value) for item in items]
            log.append(
                "other", [(n, random.randbytes(50)) for n in range(part * 9000, part * 9000 + 9000)]
            )
            last = items[-1].key
            if part % 2:
                log.update("default", (last,), [("=", 3, 7)])
                told.append(("set", last, items[-1].value))
    packed: list[bool] = []
    put_packed = Outgoing.put_packed

    def counted(stream: Outgoing, *words: Any) -> bool:
        packed.append(put_packed(stream, *words))
        return packed[-1]

    monkeypatch.setattr(Outgoing, "put_packed", counted)
    flex = {FlexKey.DCP_ID.value: NAME}
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        assert open_stream(client, window_bytes=window, follow=False).status == 0
        got: list[Told] = []
        while not got or got[-1] != ("close", Status.SUCCESS):
            frame = client.push()
            got.append(tell(frame))
            if len(got) % 3000 == 0:
                credit = messages.encode_ack(VClock(), 1_000_000)
                client.send(Frame(Opcode.STREAM_ACK, payload=credit, flags=Flag.QUIET, flex=flex))
    assert got[-2:] == [CAUGHT_UP, ("close", Status.SUCCESS)]
    assert got[:-2] == told
    assert packed.count(True) > 2
    assert packed.count(False) > 0


def test_without_the_feature_nothing_of_ours_is_known(tmp_path: Path) -> None:
    """UnknownCommand to each, and no notice at all."""
    with serve(tmp_path / "s") as server, RawClient(server.port, features=()) as client:
        for opcode in range(0x0C00, 0x0C09):
            flex = {FlexKey.DCP_ID.value: NAME}
            assert client.ask(Frame(opcode, flex=flex)).status == Status.UNKNOWN_COMMAND
        Buckets(server.log).make("other")
        client.barrier()
        assert not client.pushed


def test_a_refused_row_ends_its_stream_only(tmp_path: Path) -> None:
    """The client is told; the connection goes on, and the name is free again."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        assert open_stream(client, snapshot=True).status == 0
        take(client, CAUGHT_UP)
        client.ask(mutation(b"k"))
        row = client.push()
        client.send(Frame(row.opcode, row.opaque, status=Status.UNKNOWN_COMMAND))
        assert take(client, ("close", Status.INVALID_STATE))
        assert client.ask(Frame(Opcode.NOOP)).status == 0
        assert open_stream(client, snapshot=True).status == 0


def test_removing_a_bucket_ends_streams_that_name_it(tmp_path: Path) -> None:
    """With NoBucket, and with a notice."""
    every = tuple(messages.Feature)
    with serve(tmp_path / "s") as server, RawClient(server.port, features=every) as client:
        create = Frame(Opcode.CREATE_BUCKET, payload=messages.encode_create("gone", "", 1))
        assert client.ask(create).status == 0
        client.pushed.clear()
        assert open_stream(client, snapshot=True, buckets=("gone",)).status == 0
        delete = Frame(Opcode.DELETE_BUCKET, payload=messages.encode_delete("gone", False))
        assert client.ask(delete).status == 0
        codes, closed = [], None
        while closed is None or messages.NoticeCode.BUCKET_REMOVED not in codes:
            frame = client.push()
            if frame.opcode == Opcode.NOTICE:
                codes.append(messages.decode_notice(frame.payload)[0])
            elif frame.opcode == Opcode.STREAM_CLOSE:
                closed = messages.decode_close(frame.payload)[0]
        assert closed == Status.NO_BUCKET


def test_an_idle_stream_shows_that_it_lives(tmp_path: Path) -> None:
    """A mark after the heartbeat time, with the position."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        assert open_stream(client, snapshot=True, heartbeat_seconds=1).status == 0
        take(client, CAUGHT_UP)
        frame = client.push()
        mark = messages.Mark.decode(frame.payload)
        assert mark.kind == MarkKind.HEARTBEAT
        assert mark.position == server.log.vclock.without_local()
