"""The same lines to Debian's memcached and to us: the same answers, byte for byte.

Not compared: CAS values (only whether they are there, equal or changed), VERSION, most of `stats`,
what `me` tells beside the name. Not made: values too large for a command that stores over an item
(memcached then removes it, we keep it), `flush_all` with a delay, `get` with a key that is too long
behind other commands (memcached drops their answers).
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.ports import free_port

from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.protocols import parse_listen_url

pytestmark = pytest.mark.skipif(
    shutil.which("memcached") is None, reason="no `memcached` program on this machine"
)

KEYS = st.sampled_from([b"a", b"b", b"c", b"k" * 250])
VALUES = st.sampled_from([b"", b"1", b"17", b"x", b"12 rest", b"18446744073709551615", b"a\r\nb"])
FLAGS = st.sampled_from([b"0", b"7", b"4294967295", b"4294967296", b"-1", b"x", b"+3"])
EXPIRIES = st.sampled_from(
    [b"0", b"0", b"1000", b"-1", b"2000000000", b"1000000000", b"2592001", b"x", b"1x"]
)
QUIET = st.sampled_from([b"", b"", b" noreply"])
NUMBERS = st.sampled_from([b"0", b"1", b"9", b"18446744073709551615", b"18446744073709551616"])
DELTAS = NUMBERS | st.sampled_from([b"-1", b"x", b"1x", b"1\tx", b"noreply"])
STORES = st.sampled_from([b"set", b"add", b"replace", b"append", b"prepend"])
ENDS = st.sampled_from([b"\r\n", b"\n"])


def stored(
    name: bytes, key: bytes, flags: bytes, expiry: bytes, value: bytes, rest: bytes
) -> bytes:
    """A command with its value."""
    return b"%s %s %s %s %d%s\r\n%s\r\n" % (name, key, flags, expiry, len(value), rest, value)


COMMANDS = st.one_of(
    st.builds(stored, STORES, KEYS, FLAGS, EXPIRIES, VALUES, QUIET),
    st.builds(
        lambda key, value, cas, quiet: stored(b"cas", key, b"5", b"0", value, b" " + cas + quiet),
        KEYS,
        VALUES,
        st.sampled_from([b"CAS", b"CAS", b"1", b"0", b"x", b"-1"]),
        QUIET,
    ),
    st.builds(
        lambda name, keys: b" ".join((name, *keys)) + b"\r\n",
        st.sampled_from([b"get", b"gets", b"gat 0", b"gats 1000", b"gat -1", b"gat x", b"bget"]),
        st.lists(KEYS, max_size=4),
    ),
    st.builds(
        lambda name, key, delta, quiet, end: b"%s %s %s%s%s" % (name, key, delta, quiet, end),
        st.sampled_from([b"incr", b"decr", b"touch"]),
        KEYS,
        DELTAS,
        QUIET,
        ENDS,
    ),
    st.builds(
        lambda key, rest, end: b"delete %s%s%s" % (key, rest, end),
        KEYS,
        st.sampled_from(
            [b"", b"", b" 0", b" noreply", b" 0 noreply", b" 1", b" 0 0", b" 1 noreply"]
        ),
        ENDS,
    ),
    st.sampled_from(
        [
            *(b"flush_all\r\n", b"flush_all noreply\r\n", b"flush_all x\r\n", b"flush_all -1\r\n"),
            *(b"verbosity 1\r\n", b"verbosity\r\n", b"verbosity x\r\n", b"verbosity 1 noreply\r\n"),
            *(b"cache_memlimit 64\r\n", b"cache_memlimit 1\r\n", b"cache_memlimit x\r\n"),
            *(b"cache_memlimit 1000000001\r\n", b"shutdown\r\n", b"stats nothing\r\n"),
            *(b"\r\n", b"\n", b"x\r\n", b" \r\n", b"GET a\r\n", b"gett a\r\n", b"  get   a  \r\n"),
            *(b"get\r\n", b"get a\0b\r\n", b"set a 0 0\r\n", b"set a 0 0 1 2 3\r\n", b"mn x\r\n"),
            *(b"set a 0 0 1\r\nabc\r\n", b"set a 0 0 1 noreply\r\nabc\r\n", b"set a 0 0 -1\r\n"),
            *(b"set a 0 0 2147483646\r\n", b"set a 0 0 4294967296\r\n\r\n", b"incr a\r\n"),
            *(b"get " + b"k" * 251 + b"\r\n", b"get a b " + b"k" * 251 + b"\r\n"),
            *(b"delete " + b"k" * 251 + b"\r\n", b"touch " + b"k" * 251 + b" 0\r\n"),
            *(b"set " + b"k" * 251 + b" 0 0 1\r\n1\r\n", b"incr " + b"k" * 251 + b" 1\r\n"),
            *(b"add new 0 0 1100000\r\n" + bytes(1100000) + b"\r\n", b"delete a 0 noreply x\r\n"),
            *(b"get" + b" a" * 40 + b"\r\n", b"gets" + b" a b" * 700 + b"\r\n", b"reset\r\n"),
        ]
    ),
)


class TextClient:
    """One connection that speaks lines."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, sent: bytes) -> bytes:
        """All that is answered to it, seen by the answer to `mn` behind it."""
        self.socket.sendall(sent + b"mn\r\n")
        said = b""
        while not said.endswith(b"MN\r\n"):
            said += self.more()
        return said[: -len(b"MN\r\n")]

    def more(self) -> bytes:
        """What comes next; not nothing."""
        data = self.socket.recv(1 << 16)
        assert data, "the server has closed the connection"
        return data

    def cas(self, key: bytes) -> bytes:
        """Of an item; b"1": there is none."""
        match = re.match(rb"VALUE \S+ \d+ \d+ (\d+)\r\n", self.ask(b"gets %s\r\n" % key))
        return match[1] if match else b"1"

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


class Both:
    """One connection to each."""

    def __init__(self, theirs: int, ours: int) -> None:
        self.clients = (TextClient(theirs), TextClient(ours))

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def ask(self, sent: bytes) -> list[bytes]:
        """What both answer, in what can be compared."""
        said = []
        for client in self.clients:
            key = sent.split(b" ")[1] if b"CAS" in sent else b""
            answer = client.ask(sent.replace(b"CAS", client.cas(key)) if key else sent)
            said.append(re.sub(rb"(VALUE \S+ \d+ \d+) \d+\r\n", rb"\1 CAS\r\n", answer))
        return said


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a memcached and of a server of ours."""
    port = free_port()
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root"]
    process = subprocess.Popen([*command, "-o", "no_modern,no_lru_maintainer,no_lru_crawler"])
    folder: Path = tmp_path_factory.mktemp("tap")
    try:
        listen = [parse_listen_url("memcached://:0")]
        with Serving(
            folder / "s", listen=listen, guest="all", open_options={"durability": "write"}
        ) as server:
            for _ in range(1_000_000):
                try:
                    TextClient(port).close()
                    break
                except ConnectionRefusedError:
                    assert process.poll() is None
            yield port, server.port
    finally:
        process.terminate()
        process.wait(20)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(COMMANDS, max_size=25))
@example([b"set a 0 0 2\r\n10\r\n", b"decr a 1\r\n", b"get a\r\n", b"incr a 1\r\n", b"get a\r\n"])
@example([b"set a 0 0 1\r\n1\r\n", b"cas a 0 0 1 0\r\n2\r\n", b"cas b 0 0 1 0\r\n2\r\n"])
def test_memcached_and_we_tell_the_same(both: tuple[int, int], steps: list[bytes]) -> None:
    """One command after the other, right ones and wrong ones."""
    pair = Both(*both)
    try:
        assert pair.ask(b"flush_all\r\n") == [b"OK\r\n"] * 2
        for sent in steps:
            theirs, ours = pair.ask(sent)
            assert ours == theirs, sent
        for key in (b"a", b"b", b"c", b"k" * 250):
            theirs, ours = pair.ask(b"get %s\r\n" % key)
            assert ours == theirs, key
    finally:
        pair.close()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(COMMANDS.filter(lambda sent: b"CAS" not in sent and b"k" * 251 not in sent)))
def test_pipelined_lines_are_answered_in_order(both: tuple[int, int], steps: list[bytes]) -> None:
    """All commands in one write."""
    pair = Both(*both)
    try:
        assert pair.ask(b"flush_all\r\n") == [b"OK\r\n"] * 2
        theirs, ours = pair.ask(b"".join(steps))
        assert ours == theirs
    finally:
        pair.close()


def test_a_port_that_requires_a_login_refuses_lines(tmp_path: Path) -> None:
    """`version` is told; anything else is one line, and the end."""
    listen = [parse_listen_url("memcached://:0?sasl=required")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        for sent in (b"get a\r\n", b"set a 0 0 1\r\n1\r\n", b"stats\r\n", b"nonsense\r\n"):
            client = TextClient(server.port)
            client.socket.sendall(b"version\r\n" + sent + b"mn\r\n")
            said = b""
            while data := client.socket.recv(1000):
                said += data
            version, _, rest = said.partition(b"\r\n")
            assert version.startswith(b"VERSION 1.6.18-logweir-")
            assert rest == b"CLIENT_ERROR unauthenticated\r\n"
            client.close()


def test_lines_and_packets_are_about_the_same_items(both: tuple[int, int]) -> None:
    """What one protocol stores the other finds, with its flags and CAS."""
    _, port = both
    client = TextClient(port)
    with KvClient(port) as packets:
        assert client.ask(b"set shared 77 0 5\r\nlines\r\n") == b"STORED\r\n"
        (answer,) = packets.ask(Packet(Opcode.GET, b"shared"))
        assert (answer.value, answer.extras) == (b"lines", (77).to_bytes(4, "big"))
        assert client.cas(b"shared") == b"%d" % answer.cas
        assert packets.ask(store(b"shared", b"packets", cas=answer.cas))[0].status == 0
        assert client.ask(b"get shared\r\n") == b"VALUE shared 0 7\r\npackets\r\nEND\r\n"
    client.close()


def test_lines_need_the_same_rights(tmp_path: Path) -> None:
    """A guest that may read may not write."""
    listen = [parse_listen_url("memcached://:0")]
    with Serving(tmp_path / "s", listen=listen, guest="read") as server:
        client = TextClient(server.port)
        assert client.ask(b"get a\r\n") == b"END\r\n"
        for sent in (b"set a 0 0 1\r\n1\r\n", b"flush_all\r\n", b"incr a 1\r\n", b"touch a 0\r\n"):
            assert client.ask(sent) == b"CLIENT_ERROR unauthenticated\r\n"
        assert client.ask(b"stats reset\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        client.close()
