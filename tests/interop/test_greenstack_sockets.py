"""Notices, priorities, credit and restarts of streams, each on a socket of the real server."""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

import logweir
from interop.gsraw import RawClient, get, mutation, vbucket
from interop.serving import Serving
from interop.test_greenstack_streams import BEGIN, CAUGHT_UP, END, NAME, open_stream, take, tell
from logweir.recovery.faults.faulty import Fault, FaultyFileSystem
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.serve import endpoint
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    Opcode,
    Status,
    encode_answer,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Document,
    Feature,
    HelloAnswer,
    Mark,
    MarkKind,
    MutationAnswer,
    NoticeCode,
    encode_opened,
)
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.wal import failpoint
from logweir.wal.filesystem import OS
from logweir.wal.vclock import VClock

EVERY = tuple(Feature)


def serve(folder: Path, **options: Any) -> Serving:
    """A server of buckets that lets guests do everything."""
    options.setdefault("guest", "all")
    return Serving(folder, listen=[parse_listen_url("greenstack://:0")], **options)


def notice(client: RawClient) -> tuple[int, str]:
    """The next notice; other pushes are passed over."""
    while (frame := client.push()).opcode != Opcode.NOTICE:
        pass
    assert frame.flags == Flag.QUIET
    return messages.decode_notice(frame.payload)[:2]


# --- answers ----------------------------------------------------------------------------------


@pytest.fixture
def at_failpoint() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Arms failpoints of this process, and disarms them."""
    yield failpoint.arm
    failpoint.disarm()


@pytest.mark.parametrize("count", [1, 50])
def test_a_change_is_answered_when_it_is_on_disk(
    tmp_path: Path, count: int, at_failpoint: Callable[[str, Callable[[], None]], None]
) -> None:
    """While the log's sync waits, a single one, a run and a transaction wait for it."""
    waits, may_sync = threading.Event(), threading.Event()

    def hold() -> None:
        waits.set()
        may_sync.wait(20)

    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        at_failpoint("wal.after_write_before_sync", hold)
        client.send(*(mutation(b"k%d" % n, opaque=n) for n in range(count)))
        client.send(mutation(b"a", opaque=90, flags=Flag.MORE), mutation(b"b", opaque=91))
        assert waits.wait(20)
        assert not select.select([client.socket], [], [], 0)[0], "answered before it was synced"
        may_sync.set()
        answers = [client.answer() for _ in range(count + 2)]
        assert [answer.opaque for answer in answers] == [*range(count), 90, 91]
        assert {answer.status for answer in answers} == {Status.SUCCESS}


def test_a_full_disk_is_a_temporary_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TmpFailure to a change, a quiet one, a run and a transaction, each with a line in the log;
    then nothing of them is there, and it goes on."""
    disk = FaultyFileSystem(OS)
    with (
        serve(tmp_path / "s", open_options={"filesystem": disk}) as server,
        RawClient(server.port) as client,
    ):
        client.ask(mutation(b"old"))
        disk.fault = Fault(1, {"write"}, errno.ENOSPC, part=0.5, lasts=True)
        assert client.ask(mutation(b"k")).status == Status.TMP_FAILURE
        assert client.ask(mutation(b"k", flags=Flag.QUIET)).status == Status.TMP_FAILURE
        client.send(*(mutation(b"k%d" % n, opaque=n, flags=Flag.QUIET) for n in range(9)))
        assert [one.status for one in client.barrier()] == [Status.TMP_FAILURE] * 9
        client.send(mutation(b"k", flags=Flag.MORE), mutation(b"k"))
        assert [one.status for one in client.barrier()] == [Status.TMP_FAILURE] * 2
        disk.fault = None
        assert caplog.text.count("commit.failed") == 4
        assert client.ask(get(b"k")).status == Status.NOT_FOUND
        assert client.ask(mutation(b"k")).status == Status.SUCCESS
    with logweir.open(tmp_path / "s") as log:
        assert [row[0] for row in log.select("default")] == [b"k", b"old"]


def test_what_has_no_meaning_here_is_answered_as_such(tmp_path: Path) -> None:
    """ASSUME_ROLE, and a KEEPALIVE that lasts; an opcode that nobody knows ends nothing."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        role = Frame(Opcode.ASSUME_ROLE, payload=messages.encode_role("admin"))
        assert client.ask(role).status == Status.NOT_IMPLEMENTED
        alive = Frame(Opcode.KEEPALIVE, payload=messages.encode_keepalive(5))
        assert client.ask(alive).status == Status.SUCCESS
        assert client.ask(Frame(0x0BEE)).status == Status.UNKNOWN_COMMAND
        assert client.ask(Frame(Opcode.NOOP)).status == Status.SUCCESS


# --- notices ----------------------------------------------------------------------------------


def test_a_vbucket_of_which_nothing_is_known_becomes_active(tmp_path: Path) -> None:
    """With the first document that is stored there, not with what is refused or read: no request
    of the protocol makes one. What has a state keeps it."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        log = server.log

        def state(number: int) -> Any:
            return (log.get("logweir_vbucket", ("default", number)) or (None,))[-1]

        assert client.ask(get(b"k", flex=vbucket(5))).status == Status.NOT_FOUND
        assert client.ask(mutation(b"", flex=vbucket(5))).status == Status.INVALID_ARGUMENTS
        assert state(5) is None
        assert client.ask(mutation(b"k", flex=vbucket(5))).status == Status.SUCCESS
        assert state(5) == VbucketState.ACTIVE
        for kept in (VbucketState.REPLICA, VbucketState.DEAD):
            log.replace("logweir_vbucket", ("default", 6, int(kept)))
            assert client.ask(mutation(b"k", flex=vbucket(6))).status == Status.NOT_MY_VBUCKET
            assert state(6) == kept


def test_ready_comes_at_once_where_nothing_is_followed(tmp_path: Path) -> None:
    """It is the first that a client is told, and only one that asked for notices is."""
    with serve(tmp_path / "s") as server:
        with RawClient(server.port, features=EVERY) as client:
            assert notice(client) == (NoticeCode.READY, "ready")
        with RawClient(server.port, features=(Feature.CHANGE_STREAM,)) as client:
            client.barrier()
            assert not client.pushed


def test_warming_up_lasts_until_the_upstream_is_caught_up_with(tmp_path: Path) -> None:
    """Warming up while the upstream cannot be reached, ready once it was caught up with."""
    port = free_port()
    source = parse_url(f"greenstack://127.0.0.1:{port}/default")
    with (
        serve(tmp_path / "b", follow=[source]) as server,
        RawClient(server.port, features=EVERY) as client,
    ):
        told = [notice(client)[0]]
        while told[-1] == NoticeCode.CONFIGURATION_CHANGED:  # the bucket was made just now
            told.append(notice(client)[0])
        client.barrier()
        told += [messages.decode_notice(frame.payload)[0] for frame in client.pushed]
        client.pushed.clear()
        assert NoticeCode.WARMING_UP in told
        assert NoticeCode.READY not in told
        listen = [parse_listen_url(f"greenstack://:{port}")]
        with Serving(tmp_path / "a", listen=listen, guest="all"):
            while (last := notice(client))[0] == NoticeCode.CONFIGURATION_CHANGED:
                pass
            assert last == (NoticeCode.READY, "ready")
            assert server.server.is_caught_up


def test_shutting_down_is_the_last_that_is_said(tmp_path: Path) -> None:
    """Then the connection ends."""
    with serve(tmp_path / "s") as server:
        client = RawClient(server.port, features=EVERY)
        assert notice(client)[0] == NoticeCode.READY
    assert notice(client)[0] == NoticeCode.SHUTTING_DOWN
    assert client.receive() is None
    client.socket.close()


def test_buckets_made_and_removed_are_told_to_all(tmp_path: Path) -> None:
    """To a client that did nothing: by name, whoever did it."""
    with (
        serve(tmp_path / "s") as server,
        RawClient(server.port, features=EVERY) as client,
    ):
        assert notice(client)[0] == NoticeCode.READY
        Buckets(server.log).make("orders")
        assert notice(client) == (NoticeCode.CONFIGURATION_CHANGED, "orders")
        with RawClient(server.port) as other:
            delete = Frame(Opcode.DELETE_BUCKET, payload=messages.encode_delete("orders", False))
            assert other.ask(delete).status == Status.SUCCESS
        assert notice(client) == (NoticeCode.BUCKET_REMOVED, "orders")
        assert notice(client) == (NoticeCode.CONFIGURATION_CHANGED, "")


def test_a_removed_bucket_is_selected_no_more(tmp_path: Path) -> None:
    """What asks for it afterwards gets NoBucket, in each lane that had selected it."""
    with serve(tmp_path / "s") as server:
        Buckets(server.log).make("gone")
        with RawClient(server.port, features=EVERY, bucket="gone") as client:
            flex = vbucket(0, lane=b"l")
            assert client.ask(mutation(b"k", flex=flex)).status == Status.SUCCESS
            server.log.drop_space("gone")
            while notice(client)[0] != NoticeCode.BUCKET_REMOVED:
                pass
            assert client.ask(get(b"k")).status == Status.NO_BUCKET
            assert client.ask(get(b"k", flex=flex)).status == Status.NO_BUCKET


def test_a_flood_is_told_to_slow_down_and_to_speed_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit of unanswered bytes the one, at half of it the other; nothing is lost."""
    monkeypatch.setattr(endpoint, "GREENSTACK_PIPELINE_BYTES", 64 * 1024)
    count = 400
    with (
        serve(tmp_path / "s") as server,
        RawClient(server.port, features=EVERY) as client,
    ):
        assert notice(client)[0] == NoticeCode.READY
        frames = [mutation(b"k%03d" % n, bytes(4000), opaque=n) for n in range(count)]
        sender = threading.Thread(target=client.send, args=frames)
        sender.start()
        answers = [client.answer() for _ in range(count)]
        sender.join(20)
        assert [answer.opaque for answer in answers] == list(range(count))
        assert {answer.status for answer in answers} == {Status.SUCCESS}
        client.barrier()
        told = [messages.decode_notice(frame.payload)[0] for frame in client.pushed]
        assert told
        assert told == [NoticeCode.SLOW_DOWN, NoticeCode.SPEED_UP] * (len(told) // 2)


def test_what_is_no_frame_is_told_before_the_end(tmp_path: Path) -> None:
    """A protocol error, then the end; a client that asked for no notices is told nothing."""
    with serve(tmp_path / "s") as server:
        with RawClient(server.port, features=EVERY) as client:
            assert notice(client)[0] == NoticeCode.READY
            client.socket.sendall(b"\0\0\0\2ab")
            code, text = notice(client)
            assert (code, "short body" in text) == (NoticeCode.PROTOCOL_ERROR, True)
            assert client.receive() is None
        with RawClient(server.port, features=()) as client:
            client.socket.sendall(b"\0\0\0\2ab")
            assert client.receive() is None


# --- lanes ------------------------------------------------------------------------------------


def in_lane(number: int, priority: int | None) -> dict[int, bytes]:
    """Flex entries of a lane with a priority."""
    flex = vbucket(0, lane=b"lane%d" % number)
    return flex if priority is None else {**flex, FlexKey.PRIORITY: bytes((priority,))}


@pytest.mark.parametrize("make", [get, mutation])
def test_of_what_comes_together_the_more_urgent_lane_is_first(
    tmp_path: Path, make: Callable[..., Frame]
) -> None:
    """In the order of priorities, 128 where there is none; changes are logged in it, too."""
    priorities = [200, 3, None, 255, 0, 127, 129]
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.ask(mutation(b"k"))
        client.send(*(make(b"k", opaque=n, flex=in_lane(n, p)) for n, p in enumerate(priorities)))
        answers = [client.answer() for _ in priorities]
        order = sorted(range(len(priorities)), key=lambda n: (priorities[n] or 0, 128)[
            priorities[n] is None
        ])  # fmt: skip
        assert [answer.opaque for answer in answers] == order
        if make is mutation:
            lsns = [MutationAnswer.decode(answer.payload).seqno for answer in answers]
            assert lsns == sorted(lsns)


def test_a_full_lane_does_not_hold_another_up(tmp_path: Path) -> None:
    """What is asked behind eight megabytes of another lane is answered before they are."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        slow = [mutation(b"s", bytes(100_000), opaque=1, flex=in_lane(1, None)) for _ in range(80)]
        sender = threading.Thread(
            target=client.send, args=(*slow, mutation(b"f", opaque=2, flex=in_lane(2, None)))
        )
        sender.start()
        order = [client.answer().opaque for _ in range(81)]
        sender.join(20)
        assert sorted(order) == [1] * 80 + [2]
        assert order[-1] != 2


def test_one_lane_too_many_is_too_busy(tmp_path: Path) -> None:
    """64 lanes beside the root lane; the others go on."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        lanes = [in_lane(number, None) for number in range(65)]
        answers = [client.ask(get(b"k", flex=flex)).status for flex in lanes]
        assert answers == [Status.NOT_FOUND] * 64 + [Status.TOO_BUSY]
        assert client.ask(get(b"k", flex=lanes[0])).status == Status.NOT_FOUND


# --- credit -----------------------------------------------------------------------------------


def test_a_client_that_gives_no_credit_loses_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TooBusy after the time for that, for the stream alone; another one goes on."""
    monkeypatch.setattr(endpoint, "Settings", partial(endpoint.Settings, credit_seconds=0.3))
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        start = server.log.vclock.without_local()
        client.send(*(mutation(b"k%02d" % n, bytes(1000), flags=Flag.QUIET) for n in range(20)))
        client.barrier()
        assert open_stream(client, start=start, window_bytes=4096).status == 0
        told = take(client, ("close", Status.TOO_BUSY))
        assert [kind for kind, *_ in told] == ["set"] * 4 + ["close"]
        assert open_stream(client, start=start, window_bytes=1 << 20).status == 0
        assert len(take(client, CAUGHT_UP)) == 21


def test_credit_lets_exactly_as_much_more_come(tmp_path: Path) -> None:
    """Frames are counted whole: with n of them given back, n more come, and no other."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        start = server.log.vclock.without_local()
        client.send(*(mutation(b"k%02d" % n, bytes(1000), flags=Flag.QUIET) for n in range(30)))
        client.barrier()
        assert open_stream(client, start=start, window_bytes=4096).status == 0
        first = client.push()
        size = len(encode_frame(first))
        begin = -(-4096 // size)
        assert [tell(client.push())[1] for _ in range(begin - 1)] == [
            b"k%02d" % n for n in range(1, begin)
        ]
        seen = begin
        for count in (1, 2, 3, 1):
            payload = messages.encode_ack(VClock(), count * size)
            flex = {FlexKey.DCP_ID.value: NAME}
            client.send(Frame(Opcode.STREAM_ACK, payload=payload, flags=Flag.QUIET, flex=flex))
            assert [tell(client.push())[1] for _ in range(count)] == [
                b"k%02d" % n for n in range(seen, seen + count)
            ]
            seen += count
            client.barrier()
            assert not client.pushed, "more came than was given back"


@pytest.mark.parametrize(
    "odd", [(b"k", 0, b"v", 1 << 40), (b"k", 70_000, b"v", 0)], ids=["flags", "vbucket"]
)
@pytest.mark.parametrize("snapshot", [False, True])
def test_what_no_document_can_show_ends_the_stream_and_says_so(
    tmp_path: Path, odd: tuple[Any, ...], snapshot: bool
) -> None:
    """A tuple that came by another protocol: the stream ends, the connection goes on."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        start = server.log.vclock.without_local()
        client.ask(mutation(b"a"))
        server.log.replace("logweir_vbucket", ("default", odd[1], 1))
        server.log.replace("default", (*odd, 0, 5, 0, 0, "", b""))
        wanted = {"snapshot": True} if snapshot else {"start": start}
        assert open_stream(client, **wanted).status == Status.SUCCESS
        assert ("set", b"a", b"v") in take(client, ("close", Status.INTERNAL_ERROR))
        if odd[1] == 0:
            assert client.ask(get(b"k")).status == Status.INTERNAL_ERROR
        assert client.ask(get(b"a")).status == Status.SUCCESS


# --- positions that are gone, buckets that are emptied ------------------------------------------


def lose_the_log(server: Serving, client: RawClient, since: VClock) -> None:
    """Write and take snapshots until the log behind `since` is removed."""
    for number in range(3):
        client.ask(mutation(b"more%d" % number))
        server.log.snapshot()
    server.wait(lambda: not since.covers(server.log.oldest_position.without_local()))


def test_a_position_that_the_log_has_lost_is_refused(tmp_path: Path) -> None:
    """PositionGone; with a snapshot the stream begins."""
    options = {"open_options": {"checkpoint_count": 1}}
    with serve(tmp_path / "s", **options) as server, RawClient(server.port) as client:
        client.ask(mutation(b"k"))
        since = server.log.vclock.without_local()
        lose_the_log(server, client, since)
        assert open_stream(client, start=since).status == Status.POSITION_GONE
        assert open_stream(client, snapshot=True).status == Status.SUCCESS
        told = take(client, CAUGHT_UP)
        keys = {b"k", b"more0", b"more1", b"more2"}
        assert {one[1] for one in told if one[0] == "set"} == keys


def held(server: Serving) -> dict[bytes, bytes]:
    """Keys and values of a server's bucket."""
    if server.log.schema.get("default") is None:
        return {}
    return {row[0]: row[2] for row in server.log.select("default")}


def test_a_follower_whose_position_is_gone_copies_anew(tmp_path: Path) -> None:
    """What was removed meanwhile is removed there, too; what it has already makes no row."""
    options = {"open_options": {"checkpoint_count": 1}}
    with serve(tmp_path / "a", **options) as upstream, RawClient(upstream.port) as client:
        source = parse_url(f"greenstack://127.0.0.1:{upstream.port}/default")
        client.ask(mutation(b"stays"))
        client.ask(mutation(b"goes"))
        with serve(tmp_path / "b", follow=[source]) as follower:
            follower.wait(lambda: held(follower) == held(upstream))
        gone = messages.encode_remove(b"goes", 0)
        client.ask(Frame(Opcode.REMOVE, payload=gone, flex=vbucket(0)))
        lose_the_log(upstream, client, upstream.log.vclock.without_local())
        with serve(tmp_path / "b", follow=[source]) as follower:
            follower.wait(lambda: held(follower) == held(upstream))
            assert b"goes" not in held(follower)
    with logweir.open(tmp_path / "b") as log:
        space = log.schema.space("default").id
        rows = [row for one in log.rows() for row in one.rows if row.body]
        told = [row.decoded() for row in rows if row.space_id == space]
        assert [one["tuple"][0] for one in told if "tuple" in one].count(b"stays") == 1


def test_emptying_a_bucket_begins_its_snapshot_anew(tmp_path: Path) -> None:
    """A second mark 1; between it and mark 2 comes what there is then, and nothing else."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        large = bytes(200_000)  # several chunks, each read from a view of its own
        client.send(*(mutation(b"old%02d" % n, large, flags=Flag.QUIET) for n in range(30)))
        client.barrier()
        assert open_stream(client, snapshot=True, window_bytes=4096).status == 0
        assert [tell(client.push())[0] for _ in range(2)] == ["mark", "set"]
        with RawClient(server.port) as other:
            server.log.truncate("default")
            other.ask(mutation(b"new", b"1"))
        payload = messages.encode_ack(VClock(), 1 << 20)
        flex = {FlexKey.DCP_ID.value: NAME}
        for _ in range(20):  # the window is used up time and again
            client.send(Frame(Opcode.STREAM_ACK, payload=payload, flags=Flag.QUIET, flex=flex))
            client.barrier()
        told = take(client, CAUGHT_UP)
        assert BEGIN in told
        assert told[told.index(BEGIN) :] == [BEGIN, ("set", b"new", b"1"), END, CAUGHT_UP]


@contextmanager
def scripted(script: list[Frame]) -> Iterator[int]:
    """A server whose stream is what the script says."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        hello = HelloAnswer("scripted", "1", "", (Feature.CHANGE_STREAM,)).encode()
        opened = encode_opened(VClock(), "d0f7bb0c-6f6a-4a3c-8a5c-0a4a5a0f9b11")
        with listener:
            peer, _ = listener.accept()
            buffer = FrameBuffer()
            with peer:
                while data := peer.recv(65536):
                    for frame in buffer.feed(data)[0]:
                        if frame.opcode == Opcode.STREAM_ACK:
                            continue
                        payload = {Opcode.HELLO: hello, Opcode.STREAM_OPEN: opened}
                        found = payload.get(Opcode(frame.opcode), b"")
                        peer.sendall(encode_answer(frame, 0, found))
                        if frame.opcode == Opcode.STREAM_OPEN:
                            name = {FlexKey.DCP_ID.value: frame.flex[FlexKey.DCP_ID]}
                            for one in script:
                                flex = {**name, **one.flex}
                                whole = Frame(
                                    one.opcode, 0x80000001, one.payload, None, one.flags, flex
                                )
                                peer.sendall(encode_frame(whole))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(10)


def mark(kind: MarkKind, lsn: int) -> Frame:
    """A mark at a position."""
    payload = Mark(kind, VClock({1: lsn})).encode()
    return Frame(Opcode.STREAM_MARK, payload=payload, flags=Flag.QUIET)


def pushed(key: bytes, lsn: int = 0, flags: int = Flag.QUIET) -> Frame:
    """A row, of a snapshot where it has no lsn."""
    flex = vbucket(0, bucket=b"default")
    if lsn:
        place = {FlexKey.LSN: lsn.to_bytes(8, "big"), FlexKey.ORIGIN: (1).to_bytes(4, "big")}
        flex |= {**place, FlexKey.TIME: bytes(8)}
    payload = Document(key, b"v", cas=7).encode()
    return Frame(Opcode.MUTATION, payload=payload, flags=flags, flex=flex)


def test_a_follower_keeps_of_a_snapshot_only_what_came_since_it_began_anew(tmp_path: Path) -> None:
    """What came before the second mark 1 is gone at mark 2."""
    script = [mark(MarkKind.SNAPSHOT_BEGINS, 5), pushed(b"void")]
    script += [mark(MarkKind.SNAPSHOT_BEGINS, 6), pushed(b"a"), pushed(b"b")]
    script += [mark(MarkKind.SNAPSHOT_ENDS, 10), mark(MarkKind.CAUGHT_UP, 10)]
    with scripted(script) as port:
        source = parse_url(f"greenstack://127.0.0.1:{port}/default")
        with serve(tmp_path / "b", follow=[source]) as follower:
            follower.wait(lambda: set(held(follower)) == {b"a", b"b"})
            assert b"void" not in held(follower)


def test_a_follower_empties_its_bucket_where_the_server_s_was(tmp_path: Path) -> None:
    """TRUNCATE in its place among the rows, and as a part of a transaction."""
    flags = Flag.QUIET | Flag.MORE
    payload = messages.encode_bucket("default")
    flex = pushed(b"", 12).flex
    truncate = Frame(Opcode.TRUNCATE, payload=payload, flags=flags, flex=flex)
    script = [mark(MarkKind.SNAPSHOT_BEGINS, 5), pushed(b"a"), mark(MarkKind.SNAPSHOT_ENDS, 10)]
    script += [pushed(b"b", 11), truncate, pushed(b"c", 13)]
    with scripted(script) as port:
        source = parse_url(f"greenstack://127.0.0.1:{port}/default")
        with serve(tmp_path / "b", follow=[source]) as follower:
            follower.wait(lambda: set(held(follower)) == {b"c"})
            assert held(follower) == {b"c": b"v"}
