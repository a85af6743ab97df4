"""Our consumer for programs, and the choice of a bucket at the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.tapserver import Peer, TapServer
from interop.test_memcached_endpoint import ACK, serve
from logweir.errors import ConfigError, RemoteProtocolError, SourceStopped, Unreachable
from logweir.replication.memcached.client import TapStream
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_answer
from logweir.replication.memcached.wire.messages import Connect, Option, TapMessage
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.store.schema.access import Privilege


def test_a_dump_is_iterated_to_its_end(tmp_path: Path) -> None:
    """With and without acknowledgements, after a login, from the bucket in the address."""
    listen = [parse_listen_url("tap://:0/b"), parse_listen_url("tap://:0/other")]
    with Serving(tmp_path / "s", listen=listen, guest="none") as server:
        users.add_user(server.log, "ada", password="lovelace")
        users.grant(server.log, "ada", Privilege.READ, users.Target())
        for number in range(2500):
            server.log.replace("other", (b"%d" % number, 0, b"v", 0, 0, 1, 0, 0, "", b""))
        for options in (Option.DUMP, Option.DUMP | ACK):
            url = f"tap://ada:lovelace@127.0.0.1:{server.port}/other"
            with TapStream(url, Connect(b"d", options)) as stream:
                keys = [message.key for message in stream if message.key]
            assert len(keys) == len(set(keys)) == 2500
        for who, path, what in (("ada:no", "b", "login"), ("ada:lovelace", "none", "bucket")):
            address = f"tap://{who}@127.0.0.1:{server.port}/{path}"
            with TapStream(address, Connect()) as stream, pytest.raises(SourceStopped, match=what):
                next(stream)


def test_what_was_not_done_comes_again(tmp_path: Path) -> None:
    """A message is acknowledged when the next one is asked for, and not before."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(b"k%d" % n) for n in range(3)))
        url = f"tap://127.0.0.1:{server.port}/b"
        with TapStream(url, Connect(b"n", ACK), idle_seconds=20) as stream:
            while not (message := next(stream)).key:
                pass
            assert message.key == b"k0"
        (service,) = {link._conversation.service for link in server.server.listener.links}
        server.wait(lambda: not service.streams)
        with TapStream(url, Connect(b"n", ACK), idle_seconds=20) as stream:
            while not (message := next(stream)).key:
                pass
            assert message.key == b"k0"


def test_servers_that_are_not_there_or_say_nothing(tmp_path: Path) -> None:
    """Our own errors, with the address."""

    def say_nothing(peer: Peer) -> None:
        while peer.receive() is not None:
            pass

    def say_garbage(peer: Peer) -> None:
        peer.connect()
        peer.socket.sendall(bytes(24))
        say_nothing(peer)

    with TapServer(say_nothing, say_garbage) as upstream:
        url = f"tap://127.0.0.1:{upstream.port}/b"
        with TapStream(url, Connect(), idle_seconds=0.1) as stream, pytest.raises(Unreachable):
            next(stream)
        with TapStream(url, Connect()) as stream, pytest.raises(RemoteProtocolError, match="magic"):
            next(stream)
    with pytest.raises(Unreachable, match="tap://"):
        TapStream(url, Connect())
    with pytest.raises(ConfigError):
        TapStream("tap://", Connect())


@pytest.mark.parametrize(
    ("answer", "is_taken"),
    [
        (Status.SUCCESS, True),
        (Status.UNKNOWN_COMMAND, True),
        (Status.AUTH_ERROR, True),
        (Status.NOT_SUPPORTED, True),
        (Status.NOT_FOUND, False),
    ],
)
def test_only_a_bucket_that_is_not_there_ends_it(
    tmp_path: Path, answer: Status, is_taken: bool
) -> None:
    """Old servers know no SELECT_BUCKET, or let nobody."""

    def give(peer: Peer) -> None:
        choice = peer.receive()
        assert choice is not None
        assert (choice.opcode, choice.key) == (Opcode.SELECT_BUCKET, b"b")
        peer.socket.sendall(encode_answer(Packet(Opcode.SELECT_BUCKET), answer))
        peer.connect()
        peer.send(TapMessage(Opcode.TAP_MUTATION, b"k", b"v"))
        peer.receive()

    with TapServer(give) as upstream:
        follow = [parse_url(f"tap://127.0.0.1:{upstream.port}/b")]
        with serve(tmp_path / "s", follow=follow) as server:
            runner = server.server.runners[0]
            if is_taken:
                server.wait(lambda: server.log.count("b") == 1)
            else:
                server.wait(lambda: "bucket 'b' was refused" in runner.status.last_error)
                assert server.log.count("b") == 0


def test_each_bucket_of_a_server_is_followed_as_itself(tmp_path: Path) -> None:
    """The path names it at both sides, whatever the listener begins with."""
    listen = [parse_listen_url("tap://:0/b"), parse_listen_url("tap://:0/other")]
    with Serving(tmp_path / "a", listen=listen, guest="all") as one, KvClient(one.port) as client:
        client.ask(store(b"in b"))
        client.ask(Packet(Opcode.SELECT_BUCKET, b"other"), store(b"in other"))
        follow = [parse_url(f"tap://127.0.0.1:{one.port}/{name}") for name in ("b", "other")]
        with serve(tmp_path / "b", follow=follow) as two:
            log = two.log
            two.wait(lambda: log.schema.get("other") is not None and log.count("other") == 1)
            two.wait(lambda: log.count("b") == 1)
            assert [row[0] for row in log.select("b")] == [b"in b"]
            assert [row[0] for row in log.select("other")] == [b"in other"]
