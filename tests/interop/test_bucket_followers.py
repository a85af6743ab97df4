"""What holds for followers of a bucket besides what all followers keep to: the copy in chunks,
where it goes on, and what a server keeps for it. Tests take a scheme wherever they can."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop import gsraw
from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.tapserver import Peer, TapServer
from interop.test_memcached_source import mutation, opaque
from logweir.limits import BACKFILL_CHUNK_ITEMS
from logweir.replication.bucket.feed import Backfill, BucketFeed
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import STATES_SPACE, Buckets
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
)
from logweir.replication.greenstack.wire.codec import Opcode as GsOpcode
from logweir.replication.greenstack.wire.messages import StreamOpen
from logweir.replication.memcached.serve import endpoint
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option, TapMessage
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.stream import positions
from logweir.wal.vclock import VClock

BOTH = pytest.mark.parametrize("scheme", ["tap", "greenstack"])
ACK = Option.SUPPORT_ACK


def serve(folder: Path, scheme: str = "tap", port: int = 0, **options: object) -> Serving:
    """A server of bucket b."""
    path = "/b" if scheme == "tap" else ""
    listen = [parse_listen_url(f"{scheme}://:{port}{path}")]
    return Serving(folder, listen=listen, guest="all", **options)  # type: ignore[arg-type]


def following(folder: Path, scheme: str, port: int, options: str = "") -> Serving:
    """A server that follows bucket b there."""
    return serve(folder, follow=[parse_url(f"{scheme}://127.0.0.1:{port}/b{options}")])


def held(server: Serving) -> dict[bytes, bytes]:
    """Keys and values of the bucket."""
    return {row[0]: row[2] for row in server.log.select("b")} if "b" in names(server) else {}


def names(server: Serving) -> set[str]:
    """Of the spaces."""
    return {space.name for space in server.log.schema}


def fill(server: Serving, keys: range, value: bytes = b"v") -> None:
    """Items of the bucket, which is made if need be."""
    Buckets(server.log).make("b")
    with server.log.transaction() as tx:
        for number in keys:
            tx.replace("b", (b"k%06d" % number, 0, value, 0, 0, number + 1, 0, 0, "", b""))


# --- the copy -------------------------------------------------------------------------------------


@BOTH
def test_a_copy_larger_than_one_chunk_loses_what_is_gone(tmp_path: Path, scheme: str) -> None:
    """All of it, behind the first chunk too, when the follower has to copy anew."""
    count = 2 * BACKFILL_CHUNK_ITEMS + 100
    with serve(tmp_path / "a", scheme) as upstream:
        fill(upstream, range(count))
        with following(tmp_path / "f", scheme, upstream.port) as follower:
            follower.wait(lambda: len(held(follower)) == count)
            forget_position(follower)
            name = f"logweir-{follower.log.instance}".encode()
        if scheme == "tap":  # the server knows where that name stands
            with KvClient(upstream.port) as client:
                client.ask(Packet(Opcode.DEREGISTER_TAP_CLIENT, name))
        with upstream.log.transaction() as tx:
            for number in range(0, count, 2):
                tx.delete("b", b"k%06d" % number)
        with following(tmp_path / "f", scheme, upstream.port) as follower:
            follower.wait(lambda: len(held(follower)) == count // 2)
            assert held(follower) == held(upstream)


@BOTH
@pytest.mark.parametrize(("of", "step"), [(BucketFeed, "backfill"), (Backfill, "take_tuples")])
def test_a_vbucket_that_is_made_during_the_copy_is_copied(
    tmp_path: Path, scheme: str, of: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was put into it before the copy came there, of whose vbuckets it is none."""
    go_on = getattr(of, step)

    def late(*given: Any) -> Any:
        if upstream.log.get("b", b"late") is None:
            with upstream.log.transaction() as tx:
                tx.replace(STATES_SPACE, ("b", 1, VbucketState.ACTIVE))
                tx.replace("b", (b"late", 1, b"v", 0, 0, 77, 0, 0, "", b""))
        return go_on(*given)

    monkeypatch.setattr(of, step, late)
    with serve(tmp_path / "a", scheme) as upstream:
        fill(upstream, range(3))
        with following(tmp_path / "b", scheme, upstream.port) as follower:
            follower.wait(lambda: len(held(follower)) >= 3 and follower.server.is_caught_up)
            assert held(follower) == held(upstream)
            assert b"late" in held(follower)


def forget_position(server: Serving) -> None:
    """What it follows is to be copied anew."""
    server.wait(lambda: server.log.count(positions.POSITION_SPACE))
    server.log.truncate(positions.POSITION_SPACE)


@BOTH
@pytest.mark.parametrize("options", [("name=one", "name=two"), ("vbuckets=0", "vbuckets=1-9")])
def test_two_sources_of_one_bucket_do_not_displace_each_other(
    tmp_path: Path, scheme: str, options: tuple[str, str]
) -> None:
    """Under names of their own here, or with a part of its vbuckets each."""
    with serve(tmp_path / "a", scheme) as upstream:
        fill(upstream, range(100))
        upstream.log.replace(STATES_SPACE, ("b", 1, VbucketState.ACTIVE))
        follow = [parse_url(f"{scheme}://127.0.0.1:{upstream.port}/b?{one}") for one in options]
        with serve(tmp_path / "f", follow=follow) as follower:
            runners = follower.server.runners
            follower.wait(lambda: all(one.status.state == SourceState.FOLLOWING for one in runners))
            fill(upstream, range(100, 110))
            spaces = ("one_b", "two_b") if "name=one" in options else ("b",)
            follower.wait(lambda: all(follower.log.count(name) == 110 for name in spaces))
            assert [one.status.attempts for one in runners] == [1, 1]


def test_a_checkpoint_inside_a_backfill_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    """TAP: the connection breaks behind it: all is asked for again."""
    checkpoint = (
        TapMessage(Opcode.TAP_CHECKPOINT_START, number=5),
        TapMessage(Opcode.TAP_CHECKPOINT_END, number=5),
    )

    def break_off(peer: Peer) -> None:
        peer.connect()
        peer.send(opaque(Opaque.INITIAL_VBUCKET_STREAM), mutation(b"a"), *checkpoint)
        peer.send(mutation(b"sign", wants_ack=True, opaque=9))
        assert peer.receive() is not None  # all that is durable at the other side

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(opaque(Opaque.INITIAL_VBUCKET_STREAM), mutation(b"a"), mutation(b"b"))
        peer.send(opaque(Opaque.CLOSE_BACKFILL), *checkpoint)
        peer.receive()

    with (
        TapServer(break_off, give) as upstream,
        following(tmp_path / "f", "tap", upstream.port) as follower,
    ):
        follower.wait(lambda: set(held(follower)) == {b"a", b"b"})
        again = upstream.connects[1]
        assert (again.checkpoints, again.backfill) == ((), 0)


# --- what a server keeps while it sends what exists -----------------------------------------------


class Slow:
    """A follower that reads the beginning of what exists, and no more until it is told to."""

    def __init__(self, scheme: str, port: int) -> None:
        self.scheme = scheme
        self.values: dict[bytes, bytes] = {}
        if scheme == "tap":
            self.tap = KvClient(port)
            self.stream = self.tap.stream(Connect(b"slow", ACK | Option.BACKFILL, backfill=0))
            while not self.values:
                self._take_tap()
            self.close = self.tap.close
            return
        self.greenstack = gsraw.RawClient(port, bucket="b")
        asked = StreamOpen(snapshot=True, buckets=("b",), window_bytes=4096)
        flex = {FlexKey.DCP_ID.value: b"slow"}
        open_ = Frame(GsOpcode.STREAM_OPEN, payload=asked.encode(), flex=flex)
        assert self.greenstack.ask(open_).status == 0
        while not self.values:
            self._take_greenstack()
        self.close = self.greenstack.socket.close

    def _take_tap(self) -> None:
        message = next(self.stream)
        if message.opcode == Opcode.TAP_MUTATION:
            self.values[message.key] = message.value
        elif message.opcode == Opcode.TAP_DELETE:
            self.values.pop(message.key, None)

    def _take_greenstack(self) -> None:
        frame = self.greenstack.push()
        assert frame.opcode != GsOpcode.STREAM_CLOSE, messages.decode_close(frame.payload)
        if frame.opcode == GsOpcode.MUTATION:
            _, document = messages.decode_mutation(frame.payload)
            self.values[document.id] = document.value
            credit = messages.encode_ack(VClock(), 1 << 20)
            flex = {FlexKey.DCP_ID.value: b"slow"}
            self.greenstack.send(
                Frame(GsOpcode.STREAM_ACK, payload=credit, flags=Flag.QUIET, flex=flex)
            )
        elif frame.opcode == GsOpcode.REMOVE:
            self.values.pop(messages.decode_remove(frame.payload)[0], None)

    def read_until(self, wanted: dict[bytes, bytes]) -> None:
        """Go on until it has that."""
        while self.values != wanted:
            self._take_tap() if self.scheme == "tap" else self._take_greenstack()


COUNT, LARGE = 600, bytes(20_000)  # several chunks, more than a follower takes unread


def drop_old_logs(server: Serving) -> None:
    """Write and take snapshots, so that no log of before is needed for a restart."""
    for number in range(3):
        fill(server, range(3 * number, 3 * number + 3), b"new%d" % number)
        server.log.snapshot()
    server.log.inner.collect()


@BOTH
def test_the_log_is_kept_while_what_exists_is_sent(tmp_path: Path, scheme: str) -> None:
    """Changes made meanwhile are given after it, though snapshots were made that need no older
    logs, and collect was asked for."""
    options = {"open_options": {"checkpoint_count": 1}}
    with serve(tmp_path / "a", scheme, **options) as server:
        fill(server, range(COUNT), LARGE)
        begun = server.log.vclock
        slow = Slow(scheme, server.port)
        server.log.delete("b", b"k%06d" % (COUNT - 1))
        drop_old_logs(server)
        assert begun.covers(server.log.oldest_position), "the log from then on is gone"
        slow.read_until(held(server))
        slow.close()


@BOTH
def test_a_follower_that_goes_away_inside_the_copy_keeps_nothing(
    tmp_path: Path, scheme: str
) -> None:
    """The logs that were kept for it may go."""
    options = {"open_options": {"checkpoint_count": 1}}
    with serve(tmp_path / "a", scheme, **options) as server:
        fill(server, range(COUNT), LARGE)
        begun = server.log.vclock
        slow = Slow(scheme, server.port)
        server.wait(lambda: any(kept(server, scheme)))
        slow.close()
        server.wait(lambda: not server.server.listener.links)
        look(server)
        assert kept(server, scheme) == []
        drop_old_logs(server)
        server.wait(lambda: not begun.covers(server.log.oldest_position))


def kept(server: Serving, scheme: str) -> list[str]:
    """Names of copies under way for which the log is kept."""
    word = {"tap": "backfill:", "greenstack": "greenstack:"}[scheme]
    return [name for name in server.log.status()["followers"] if word in name]


def look(server: Serving) -> None:
    """Have the server look after what it keeps, as it does from time to time."""
    work = server.server.shared.retention.look()
    asyncio.run_coroutine_threadsafe(work, server._loop).result(20)


# --- what is waiting ------------------------------------------------------------------------------


def test_signs_of_life_of_an_idle_server_are_not_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TAP: however many there were, what comes next is read."""
    monkeypatch.setattr("logweir.replication.dialer.UPSTREAM_WAITING_BYTES", 1000)

    def idle(peer: Peer) -> None:
        peer.connect()
        for _ in range(40):
            peer.answer(Packet(Opcode.NOOP))
        peer.answer(Packet(Opcode.VERSION))  # which is refused once all before was read
        assert peer.receive() is not None
        peer.send(mutation(b"a"))
        peer.receive()

    with (
        TapServer(idle) as upstream,
        following(tmp_path / "f", "tap", upstream.port) as follower,
    ):
        follower.wait(lambda: set(held(follower)) == {b"a"})


def test_changes_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """memcached: above the limit nothing more is read from a client whose changes are not done;
    then all of them are."""
    monkeypatch.setattr(endpoint, "TAP_PIPELINE_BYTES", 1 << 20)
    count, value = 400, bytes(100_000)
    with serve(tmp_path / "s") as server, KvClient(server.port) as other:
        other.ask(Packet(Opcode.SET_VBUCKET, extras=b"\0\0\0\3", vbucket=7))  # pending
        with KvClient(server.port) as client:
            changes = [store(b"k%d" % n, value, vbucket=7) for n in range(count)]
            sender = threading.Thread(target=client.send, args=changes)
            sender.start()
            listener = server.server.listener  # which may not have taken it yet
            server.wait(lambda: any(link._reading_holds for link in listener.links))
            (link,) = (link for link in listener.links if link._reading_holds)
            sender.join(1)
            assert sender.is_alive(), "all of it was taken"
            assert link.received_bytes < 4 << 20
            other.ask(Packet(Opcode.SET_VBUCKET, extras=b"\0\0\0\1", vbucket=7))
            answers = [client.receive() for _ in range(count)]
            sender.join(20)
        assert {one.status for one in answers if one is not None} == {0}
        assert server.log.count("b") == count


@BOTH
def test_a_plain_delete_reaches_every_vbucket(tmp_path: Path, scheme: str) -> None:
    """One that another protocol made names no vbucket: also behind a copy, and with a filter."""
    rows = [(b"k%d" % number, number, b"v", 0, 0, 7 + number, 0, 0, "", b"") for number in range(5)]
    with serve(tmp_path / "a", scheme) as upstream:
        Buckets(upstream.log).make("b")
        for vbucket in range(1, 5):
            upstream.log.replace(STATES_SPACE, ("b", vbucket, VbucketState.ACTIVE))
        for row in rows:
            upstream.log.replace("b", row)
        with ExitStack() as stack:
            followers = [
                stack.enter_context(following(tmp_path / name, scheme, upstream.port, options))
                for name, options in (("f", ""), ("g", "?vbuckets=2,3"))
            ]
            sizes = (5, 2)
            for follower, size in zip(followers, sizes, strict=True):
                follower.wait(lambda: len(held(follower)) == size)  # noqa: B023
            for key in (b"k0", b"k2", b"k4"):
                upstream.log.delete("b", key)
            for follower, keys in zip(followers, ([b"k1", b"k3"], [b"k3"]), strict=True):
                follower.wait(lambda: [*held(follower)] == keys)  # noqa: B023
            assert [*held(upstream)] == [b"k1", b"k3"]


@pytest.mark.parametrize(
    ("scheme", "row"),
    [
        ("tap", (b"odd", 0, b"v", 1 << 32, 0, 1, 0, 0, "", b"")),
        ("tap", (b"", 0, b"v", 0, 0, 1, 0, 0, "", b"")),
        ("greenstack", (b"odd", 0, b"v", 1 << 32, 0, 1, 0, 0, "", b"")),
    ],
    ids=["tap-flags", "tap-key", "greenstack-flags"],
)
def test_a_tuple_that_cannot_be_told_holds_up_until_it_is_gone(
    tmp_path: Path, scheme: str, row: tuple[object, ...]
) -> None:
    """Another protocol wrote it. Then followers go on, though it stands in the log."""
    with serve(tmp_path / "a", scheme) as upstream:
        fill(upstream, range(2))
        with following(tmp_path / "f", scheme, upstream.port) as follower:
            follower.wait(lambda: len(held(follower)) == 2)
            upstream.log.replace("b", row)
            fill(upstream, range(3))
            follower.wait(lambda: follower.server.status()["sources"][0]["last_error"])
            assert len(held(follower)) == 2
            upstream.log.delete("b", row[0])
            follower.wait(lambda: len(held(follower)) == 3)


@BOTH
def test_the_removal_of_what_cannot_be_told_is_told(tmp_path: Path, scheme: str) -> None:
    """Its tombstone has the same numbers."""
    with serve(tmp_path / "a", scheme) as upstream, ExitStack() as stack:
        fill(upstream, range(1))
        follower = stack.enter_context(following(tmp_path / "f", scheme, upstream.port))
        follower.wait(lambda: len(held(follower)) == 1)
        row = (b"k000000", 0, b"", 1 << 32, 0, 2, 0, 0, "", b"")
        with upstream.log.transaction() as tx:
            tx.replace("b", row)
            tx.delete("b", row[0])
        follower.wait(lambda: not held(follower))
        assert follower.server.status()["sources"][0]["last_error"] == ""
        noted = [row[4] / 1000 for row in follower.log.select(positions.POSITION_SPACE)]
        assert noted
        assert all(abs(seconds - time.time()) < 600 for seconds in noted)
