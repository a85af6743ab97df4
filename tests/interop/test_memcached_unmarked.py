"""Servers that end a dump without a mark, as memcached's default engine does, and such as have not
the bucket: what a copy keeps of what they have no more, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logweir
from interop.tapserver import Peer, TapServer
from interop.test_iproto_cli import told
from interop.test_memcached_source import following, keys, mutation, opaque, status
from logweir.errors import ConfigError
from logweir.limits import BACKFILL_CHUNK_ITEMS, TAP_BODY_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import Buckets
from logweir.replication.memcached.wire.codec import Opcode, Status, encode_answer
from logweir.replication.memcached.wire.messages import Opaque, TapMessage
from logweir.replication.runner import SourceState


def engine(*dumps: list[bytes]) -> list[Callable[[Peer], None]]:
    """Servers that send items and close the connection, one list of keys each time."""

    def script(names: list[bytes]) -> Callable[[Peer], None]:
        def play(peer: Peer) -> None:
            peer.connect()
            peer.send(*map(mutation, names))

        return play

    return [script(names) for names in dumps]


def follow(upstream: TapServer, folder: Path, query: str = "") -> tuple[int, str]:
    """One copy from the command line: exit code and what it says."""
    url = f"tap://127.0.0.1:{upstream.port}/b{query}"
    code, out, err = told("follow", url, folder, "--once")
    return code, out + err


def kept(folder: Path) -> set[bytes]:
    """The keys of the copy."""
    with logweir.open(folder) as log:
        return {row[0] for row in log.select("b")}


def test_a_dump_without_an_end_mark_is_told_and_removes_nothing(tmp_path: Path) -> None:
    """Exit code 1 each time, and how to have it otherwise."""
    with TapServer(*engine([b"a", b"b", b"c"], [b"a"])) as upstream:
        for _ in range(2):
            code, said = follow(upstream, tmp_path / "s")
            assert code == 1
            assert "what was deleted there stays here" in said
            assert "eof=whole" in said
            assert kept(tmp_path / "s") == {b"a", b"b", b"c"}


def test_with_eof_whole_the_end_of_the_connection_is_the_end_of_the_dump(tmp_path: Path) -> None:
    """What was not in it is removed; exit code 0."""
    many = [b"k%d" % n for n in range(BACKFILL_CHUNK_ITEMS + 100)]
    with TapServer(*engine(many, many[-2:])) as upstream:
        for wanted in (many, many[-2:]):
            code, said = follow(upstream, tmp_path / "s", "?eof=whole")
            assert (code, kept(tmp_path / "s")) == (0, set(wanted)), said


def test_eof_whole_needs_an_item_and_a_whole_packet(tmp_path: Path) -> None:
    """A server that says nothing, or breaks off inside a packet, has not ended a dump."""

    def give_a_half(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"a"))
        peer.socket.sendall(b"\x80\x41\0")

    first, last = engine([b"a", b"b"], [b"b"])
    with TapServer(first, *engine([]), give_a_half, last) as upstream:
        for wanted in ({b"a", b"b"}, {b"b"}):
            code, said = follow(upstream, tmp_path / "s", "?eof=whole")
            assert (code, kept(tmp_path / "s")) == (0, wanted), said
        assert upstream.connections == 4


def test_eof_whole_leaves_other_vbuckets_than_the_named_ones(tmp_path: Path) -> None:
    """All of them are emptied of what did not come where none is named."""

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"new"))

    for query, left in (("&vbuckets=0", {b"new", b"far"}), ("", {b"new"})):
        folder = tmp_path / str(len(left))
        with logweir.open(folder, create=True) as log:
            Buckets(log).make("b")
            log.replace("logweir_vbucket", ("b", 3, int(VbucketState.ACTIVE)))
            for key, vbucket in ((b"far", 3), (b"near", 0)):
                log.replace("b", (key, vbucket, b"v", 0, 0, 1, 0, 0, "", b""))
        with TapServer(give) as upstream:
            assert follow(upstream, folder, f"?eof=whole{query}")[0] == 0
        assert kept(folder) == left


def test_marks_count_more_than_the_option(tmp_path: Path) -> None:
    """A server that says where its dump begins has not ended it without saying so, too."""

    def give(peer: Peer, *messages: TapMessage) -> None:
        peer.connect()
        peer.send(opaque(Opaque.INITIAL_VBUCKET_STREAM), *messages)

    close = opaque(Opaque.CLOSE_BACKFILL)
    with TapServer(
        lambda peer: give(peer, mutation(b"a"), mutation(b"b"), close),
        lambda peer: give(peer, mutation(b"c")),
        lambda peer: give(peer, mutation(b"d"), close),
    ) as upstream:
        assert follow(upstream, tmp_path / "s", "?eof=whole")[0] == 0
        assert kept(tmp_path / "s") == {b"a", b"b"}
        assert follow(upstream, tmp_path / "s", "?eof=whole")[0] == 0
        assert kept(tmp_path / "s") == {b"d"}
        assert upstream.connections == 3


def test_following_such_a_server_says_why_it_begins_anew(tmp_path: Path) -> None:
    """That it does not stream, what that means, and what can be done."""
    dumps = engine([b"a"])
    with TapServer(*dumps) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: status(server).state == SourceState.WAITING)
        assert keys(server) == {b"a"}
        for part in ("copied anew each time", "--once", "eof=whole"):
            assert part in status(server).last_error


@pytest.mark.parametrize("query", ["?eof=whole", "?eof=none"])
def test_eof_is_for_dumps(tmp_path: Path, query: str) -> None:
    """A stream has no end, and there is one way to take one."""
    once = {"once": True} if query.endswith("none") else {}
    with pytest.raises(ConfigError, match="eof"), following(tmp_path / "s", 1, query, **once):
        pass


def test_a_bucket_that_is_not_there_is_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said to be copied while the server refuses it, nor that it is being copied."""
    caplog.set_level("INFO")

    def refuse(peer: Peer) -> None:
        packet = peer.receive()
        assert packet is not None
        peer.socket.sendall(encode_answer(packet, Status.NOT_FOUND))

    with TapServer(refuse) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: upstream.connections >= 2 and "0x0001" in status(server).last_error)
        assert "there is no such bucket" in status(server).last_error
        assert not [line for line in caplog.messages if "full_copy" in line or "syncing" in line]


@pytest.mark.parametrize("size", [TAP_VALUE_BYTES + 1, TAP_BODY_BYTES + 1])
def test_a_value_above_the_limit_stops_and_the_way_on_is_told(tmp_path: Path, size: int) -> None:
    """Whether its packet was kept or passed over; the server is not asked again."""

    def send(peer: Peer) -> None:
        peer.connect()
        peer.send(TapMessage(Opcode.TAP_MUTATION, b"a", b"1"))
        peer.send(TapMessage(Opcode.TAP_MUTATION, b"large", bytes(size)))
        peer.receive()

    with TapServer(send) as upstream, following(tmp_path / "s", upstream.port) as server:
        server.wait(lambda: status(server).state == SourceState.STOPPED)
        assert f"a value above {TAP_VALUE_BYTES} bytes" in status(server).last_error
        assert "vbuckets=" in status(server).last_error
        if size < TAP_BODY_BYTES:
            assert "b'large'" in status(server).last_error
        assert upstream.connections == 1
