"""STAT: the groups that programs ask for. Counts: see `test_memcached_real`."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import bmemcached
import pytest

from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.limits import TAP_VALUE_BYTES
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import users
from logweir.wal.filesystem import OS


def state(vbucket: int, wanted: VbucketState) -> Packet:
    """The request that gives a vbucket a state."""
    return Packet(Opcode.SET_VBUCKET, extras=struct.pack(">I", int(wanted)), vbucket=vbucket)


def test_groups_are_those_that_are_known(tmp_path: Path) -> None:
    """`settings`, `items`, `slabs`, `vbucket`, `tap`; 01 for another, as memcached says. One
    connection more than is told is refused."""
    listen = [parse_listen_url("tap://:0/b")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all", connections=2) as server,
        KvClient(server.port) as client,
        KvClient(server.port) as consumer,
    ):
        settings = client.statistics(b"settings")
        assert (settings["maxconns"], settings["evictions"]) == ("2", "off")
        with KvClient(server.port) as third:
            refused = third.receive()
            assert refused is not None
            assert refused.status == Status.BUSY
        assert (settings["cas_enabled"], settings["flush_enabled"]) == ("yes", "yes")
        assert settings["item_size_max"] == str(TAP_VALUE_BYTES)
        assert client.ask(store(b"k"), Packet(Opcode.GET, b"k"))[1].status == 0
        assert client.statistics(b"items") == {"items:1:number": "1", "items:1:evicted": "0"}
        slabs = client.statistics(b"slabs")
        assert (slabs["active_slabs"], slabs["1:get_hits"], slabs["1:cmd_set"]) == ("1", "1", "1")
        assert client.ask(state(7, VbucketState.DEAD))[0].status == 0
        assert client.statistics(b"vbucket") == {"vb_0": "active", "vb_7": "dead"}
        assert client.statistics(b"tap") == {"ep_tap_count": "0"}
        stream = consumer.stream(Connect(b"feed", Option.SUPPORT_ACK))
        next(stream)
        told = client.statistics(b"tap")
        assert (told["ep_tap_count"], told["eq_tapq:feed:type"]) == ("1", "producer")
        assert told["eq_tapq:feed:connected"] == "true"
        assert int(told["eq_tapq:feed:rec_fetched"]) > 0
        assert client.statistics()["curr_connections"] == "2"
        assert client.statistics(b"detail on") == client.statistics(b"detail dump") == {}
        for group in (b"sizes", b"foo", b"settingsx", b"detail", b"Reset"):
            (answer,) = client.ask(Packet(Opcode.STAT, group))
            assert answer.status == Status.NOT_FOUND, group


@pytest.mark.parametrize("guest", ["read", "write"])
def test_counts_begin_anew_for_who_may_write(tmp_path: Path, guest: str) -> None:
    """And for nobody else. Logins are counted, failed ones too."""
    listen = [parse_listen_url("tap://:0/b")]
    with Serving(tmp_path / "s", listen=listen, guest=guest) as server:
        users.add_user(server.log, "ada", password="lovelace")
        with KvClient(server.port) as client:
            (reset,) = client.ask(Packet(Opcode.STAT, b"reset"))
            assert reset.status == (0 if guest == "write" else Status.AUTH_ERROR)
            for password in (b"wrong", b"lovelace"):
                client.ask(Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ada\0" + password))
        with KvClient(server.port) as client:
            told = client.statistics()
            assert (told["auth_cmds"], told["auth_errors"]) == ("2", "1")


def test_a_real_python_client_finds_what_it_asks_for(tmp_path: Path) -> None:
    """What the own tests of python-binary-memcached look for, and those of memcached."""
    listen = [parse_listen_url("tap://:0/b")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        place = f"127.0.0.1:{server.port}"
        client = bmemcached.Client((place,))
        try:
            assert client.set("k", "v")
            wanted = {"": "pid", "settings": "verbosity", "slabs": "1:get_hits"}
            for group, name in wanted.items():
                assert name in client.stats(group or None)[place]
            assert client.flush_all()
            assert client.stats()[place]["cmd_flush"] == b"1"
        finally:
            client.disconnect_all()


def test_a_server_whose_log_has_failed_still_tells(tmp_path: Path) -> None:
    """What changes nothing is answered behind nobody: STAT, GET_VBUCKET and GET go on where every
    change gets 0x86."""
    disk = FaultyFileSystem(OS)
    listen = [parse_listen_url("tap://:0/b")]
    with (
        Serving(
            tmp_path / "s", listen=listen, guest="all", open_options={"filesystem": disk}
        ) as server,
        KvClient(server.port) as client,
    ):
        assert client.ask(store(b"k"))[0].status == 0
        disk.fault = Fault(1, {"sync"}, errno.EIO, lasts=True)
        assert client.ask(store(b"k"))[0].status == Status.TEMPORARY_FAILURE
        assert client.ask(Packet(Opcode.GET, b"k"))[0].value == b"v"
        assert client.statistics(b"vbucket") == {"vb_0": "active"}
        (state,) = client.ask(Packet(Opcode.GET_VBUCKET))
        assert (state.status, state.value) == (0, struct.pack(">I", 1))
        (state,) = client.ask(Packet(Opcode.GET_VBUCKET, vbucket=9))
        assert state.status == Status.NOT_MY_VBUCKET
        assert client.ask(store(b"k"))[0].status == Status.TEMPORARY_FAILURE


@pytest.mark.parametrize("scheme", ["tap", "memcached"])
def test_requests_are_counted_by_the_scheme_of_their_listener(tmp_path: Path, scheme: str) -> None:
    """As its connections are, under either name."""
    listen = [parse_listen_url(f"{scheme}://:0/b")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        KvClient(server.port) as client,
    ):
        assert client.ask(store(b"k"), Packet(Opcode.GET, b"k"))[1].status == 0
        told = server.server.metrics.render().decode()
    assert f'logweir_request_total{{outcome="done",scheme="{scheme}"}} 2.0' in told
    assert f'logweir_link_accepted_total{{scheme="{scheme}"}} 1.0' in told


def test_clients_that_ask_for_nothing_are_disconnected(tmp_path: Path) -> None:
    """Not those who are given a stream, or wait for an answer, however long they say nothing."""
    listen = [parse_listen_url("memcached://:0/b?idle=0.4")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        KvClient(server.port) as consumer,
        KvClient(server.port) as waiter,
        KvClient(server.port) as client,
    ):
        stream = consumer.stream(Connect(b"", Option.SUPPORT_ACK))
        next(stream)
        assert waiter.ask(state(7, VbucketState.PENDING))[0].status == 0
        waiter.send(Packet(Opcode.GET, b"k", vbucket=7))
        assert client.ask(Packet(Opcode.NOOP))[0].status == 0
        assert client.receive() is None
        with KvClient(server.port) as another:
            assert another.ask(state(7, VbucketState.ACTIVE), store(b"k"))[1].status == 0
        answer = waiter.receive()
        assert answer is not None
        assert answer.status == Status.NOT_FOUND
        assert next(one for one in stream if one.key == b"k").opcode == Opcode.TAP_MUTATION
