"""The same lines to Debian's memcached and to us: the same answers, byte for byte.

Not compared: CAS values (only whether they are there, equal or changed), how many seconds are left,
VERSION, most of `stats`, what `me` tells beside the name. Not made: values too large for a command
that stores over an item (memcached then removes it, we keep it), `flush_all` with a delay, `get`
with a key that is too long behind other commands (memcached drops their answers), and flags h and l
of meta commands, which are about what is not kept here.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymemcache.client.base import Client as PymemcacheClient
from support.memcached import memcached

from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
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
            *(b"verbosity -1\r\n", b"verbosity 2147483648\r\n", b"verbosity 1 2 noreply\r\n"),
            *(b"verbosity x noreply\r\n", b"  verbosity   +1 x\r\n", b"verbosity 1x\r\n"),
            *(b"cache_memlimit 64\r\n", b"cache_memlimit 1\r\n", b"cache_memlimit x\r\n"),
            *(b"cache_memlimit 1000000001\r\n", b"shutdown\r\n", b"stats nothing\r\n"),
            *(b"stats detail\r\n", b"stats detail on\r\n", b"stats detail off\r\n"),
            *(b"stats detail dump\r\n", b"stats detail x\r\n"),
            *(b"\r\n", b"\n", b"x\r\n", b" \r\n", b"GET a\r\n", b"gett a\r\n", b"  get   a  \r\n"),
            *(b"get\r\n", b"get a\0b\r\n", b"set a 0 0\r\n", b"set a 0 0 1 2 3\r\n"),
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


def comparable(name: bytes, flags: list[bytes]) -> list[bytes]:
    """Flags without those that mean something else here: what stands beside N in `ma`, and an
    opaque of `ma` that is too long, which memcached looks at last (docs/tap.md)."""
    creates = any(flag.startswith(b"N") for flag in flags)
    left_out = b"qT" if creates and name == b"ma" else b""
    is_looked_at = 32 if name == b"ma" else 1000
    return [flag for flag in flags if flag[:1] not in left_out and len(flag) <= is_looked_at]


FLAGS_OF_META = st.lists(
    st.sampled_from(
        [
            *(b"k", b"O123", b"q", b"s", b"v", b"c", b"f", b"T0", b"T-1", b"T2000000000", b"Tx"),
            *(b"R0", b"R-1", b"R1500", b"R30", b"Rx", b"I", b"I", b"N100", b"T1000"),
            *(b"N0", b"N-1", b"CCAS", b"CCAS", b"C1", b"C0", b"Cx", b"F5", b"F4294967296", b"Fx"),
            *(b"MS", b"ME", b"MA", b"MP", b"MR", b"MI", b"MD", b"M+", b"M-", b"Mx", b"M", b"MSS"),
            *(b"J0", b"J13", b"Jx", b"D0", b"D7", b"D18446744073709551615", b"Dx", b"P1", b"L2"),
            *(b"O" + b"1" * 31, b"O" + b"1" * 32, b"x", b"E5", b"u", b"\xff", b"k2"),
        ]
    ),
    max_size=5,
)
METAS = st.one_of(
    st.builds(
        lambda name, key, flags: b" ".join((name, key, *comparable(name, flags))) + b"\r\n",
        st.sampled_from([b"mg", b"mg", b"md", b"ma", b"ma"]),
        KEYS,
        FLAGS_OF_META,
    ),
    st.builds(
        lambda key, value, flags: (
            b"%s\r\n%s\r\n" % (b" ".join((b"ms", key, b"%d" % len(value), *flags)), value)
        ),
        KEYS,
        VALUES,
        FLAGS_OF_META,
    ),
    st.sampled_from(
        [
            *(
                b"mg\r\n",
                b"ms\r\n",
                b"ms a\r\n",
                b"ms a x\r\n",
                b"ms a -1\r\n",
                b"md\r\n",
                b"ma\r\n",
            ),
            *(b"me\r\n", b"me missing\r\n", b"mx a\r\n", b"m\r\n", b"mg missing k O1\r\n"),
            *(b"mg " + b"k" * 251 + b" v\r\n", b"ms " + b"k" * 251 + b" 1\r\n", b"me a\0b\r\n"),
            *(b"mg a" + b" k" * 19 + b"\r\n", b"ms a 1" + b" k" * 18 + b"\r\n1\r\n"),
            *(b"md a" + b" k" * 19 + b"\r\n", b"ma a" + b" k" * 19 + b"\r\n"),
            *(b"ms YWJj 2 b c\r\nbb\r\n", b"mg YWJj b k v\r\n", b"get abc\r\n", b"md YWJj b k\r\n"),
            *(b"mg YW b v\r\n", b"mg !! b v\r\n", b"ms YW 2 b\r\nbb\r\n", b"mg Y=== b v\r\n"),
            *(
                b"ms eg== 1 b k\r\n1\r\n",
                b"ma eg== b k v\r\n",
                b"mg eg== b k v\r\n",
                b"me YW b\r\n",
            ),
            *(
                b"ms a 1\r\nabc\r\n",
                b"ms a 1 q\r\nabc\r\n",
                b"ms new 1100000 ME\r\n" + bytes(1100002),
            ),
            *(b"ma a N0 J5 v c t\r\n", b"mg a t\r\n", b"mg a T0 t v\r\n"),
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
            answer = re.sub(rb"(VALUE \S+ \d+ \d+) \d+\r\n", rb"\1 CAS\r\n", answer)
            answer = re.sub(rb"^(ME [^ ]*) exp=.*", rb"\1 META\r", answer)
            answer = re.sub(rb"^((?:HD|VA)\b.*) t[1-9]\d*", rb"\1 tTIME", answer)
            said.append(re.sub(rb"^((?:HD|VA)\b.*) c[1-9]\d*", rb"\1 cCAS", answer))
        return said


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a memcached and of a server of ours."""
    listen = [parse_listen_url("memcached://:0")]
    folder = tmp_path_factory.mktemp("tap")
    with (
        memcached("-o", "no_modern,no_lru_maintainer,no_lru_crawler") as port,
        Serving(
            folder / "s", listen=listen, guest="all", open_options={"durability": "write"}
        ) as server,
    ):
        yield port, server.port


def differences(both: tuple[int, int], steps: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    """What is asked and told otherwise, one command after the other, and what is there then."""
    pair = Both(*both)
    found = []
    keys = (b"a", b"b", b"c", b"abc", b"k" * 250)
    for sent in (b"flush_all\r\n", *steps, *(b"get %s\r\n" % key for key in keys)):
        theirs, ours = pair.ask(sent)
        if theirs != ours:
            found.append((sent, theirs, ours))
    pair.close()
    return found


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(COMMANDS, max_size=25))
@example([b"set a 0 0 2\r\n10\r\n", b"decr a 1\r\n", b"get a\r\n", b"incr a 1\r\n", b"get a\r\n"])
@example([b"set a 0 0 1\r\n1\r\n", b"cas a 0 0 1 0\r\n2\r\n", b"cas b 0 0 1 0\r\n2\r\n"])
@example(
    [
        *(b"set a 0 0 1\r\n1\r\n", b"set b 0 0 1\r\n1\r\n", b"set c 0 0 1\r\n1\r\n"),
        *(
            b"gats 1000 a none b %s c\r\n" % (b"k" * 251),
            b"mg a t\r\n",
            b"mg b t\r\n",
            b"mg c t\r\n",
        ),
    ]
)
def test_memcached_and_we_tell_the_same(both: tuple[int, int], steps: list[bytes]) -> None:
    """Classic commands, right ones and wrong ones."""
    assert differences(both, steps) == []


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(METAS | COMMANDS, max_size=25))
@example([b"ms a 1\r\n1\r\n", b"md a I T30\r\n", b"mg a v c\r\n", b"mg a v\r\n", b"get a\r\n"])
@example([b"ms a 1 T30\r\n1\r\n", b"mg a R60\r\n", b"mg a\r\n", b"mg a R60 T90\r\n"])
@example([b"mg a N30 v\r\n", b"mg a N30 v\r\n", b"ms a 1\r\n1\r\n", b"mg a v\r\n"])
@example([b"ms a 1\r\n1\r\n", b"ms a 1 I C1\r\n2\r\n", b"mg a v\r\n", b"ms a 1 I CCAS\r\n3\r\n"])
@example([b"ms a 2\r\n10\r\n", b"md a I\r\n", b"incr a 1\r\n", b"mg a v\r\n", b"incr a 90\r\n"])
@example([b"ms a 0\r\n\r\n", b"me a\0b\r\n"])
@example([b"mg a M b v\r\n", b"mg YW b C\r\n", b"mg YW Cx b\r\n", b"ms YW 1 b Fx\r\n1\r\n"])
@example([b"ma c ME b\r\n", b"md c b O%s\r\n" % (b"1" * 32), b"ms a 1 MZ b k\r\n1\r\n"])
@example([b"mg YQ==YWJj b\r\n", b"mg Y=== b\r\n", b"mg YQ==Y=== b\r\n", b"me Y=== b\r\n"])
@example([b"mg a Cx Fx\r\n", b"mg a O%s Fx\r\n" % (b"1" * 32), b"mg a Fx O%s\r\n" % (b"1" * 32)])
def test_meta_commands_are_told_the_same(both: tuple[int, int], steps: list[bytes]) -> None:
    """Their flags, right ones and wrong ones, between classic commands."""
    assert differences(both, steps) == []


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


def test_a_browser_is_hung_up_on(both: tuple[int, int]) -> None:
    """Its request is no line of errors, and what follows it no commands."""
    for port in both:
        client = TextClient(port)
        client.socket.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset evil 0 0 1\r\n1\r\n")
        try:
            assert client.socket.recv(1000) == b""
        except ConnectionResetError:  # memcached does not read the rest
            assert port == both[0]
        client.close()
        client = TextClient(port)
        assert client.ask(b"get evil\r\n") == b"END\r\n"
        client.close()


def test_what_is_told_of_an_item(both: tuple[int, int]) -> None:
    """Whether and when it was asked for is not kept; what a counter's T and `mg` T do is."""
    _, port = both
    client = TextClient(port)
    assert client.ask(b"ms told 3 F7 T500\r\nabc\r\n") == b"HD\r\n"
    cas = client.cas(b"told")
    said = client.ask(b"mg told s t f c h l k O9\r\n")
    left = re.fullmatch(rb"HD s3 t(\d+) f7 c%s h0 l0 ktold O9\r\n" % cas, said)
    assert left is not None
    assert 490 <= int(left[1]) <= 500
    exp = re.fullmatch(
        rb"ME told exp=(\d+) la=0 cas=%s fetch=no cls=1 size=7\r\n" % cas,
        client.ask(b"me told\r\n"),
    )
    assert exp is not None
    assert 490 <= int(exp[1]) <= 500
    assert client.ask(b"mg told T0 t\r\n") == b"HD t-1\r\n"
    assert client.ask(b"me told\r\n").startswith(b"ME told exp=-1 ")
    assert client.ask(b"ms told 1 T0\r\n1\r\n") == b"HD\r\n"
    assert int(client.ask(b"ma told T900 t\r\n")[4:]) in range(890, 901)
    assert client.ask(b"mg told v\r\n") == b"VA 1\r\n2\r\n"
    assert client.ask(b"ma gone T900 t\r\n") == b"NF\r\n"
    assert client.ask(b"ma told T-1\r\n") == b"HD\r\n"
    assert client.ask(b"mg told v\r\n") == b"EN\r\n"
    client.close()


def test_one_of_many_is_told_to_make_another_value(both: tuple[int, int]) -> None:
    """Of connections that ask at the same time for a stale item."""
    for port in both:
        clients = [TextClient(port) for _ in range(8)]
        assert clients[0].ask(b"ms many 1\r\n1\r\nmd many I T900\r\n") == b"HD\r\nHD\r\n"
        for client in clients:
            client.socket.sendall(b"mg many v\r\nmn\r\n")
        said = []
        for client in clients:
            answer = b""
            while not answer.endswith(b"MN\r\n"):
                answer += client.more()
            said.append(answer.split(b"\r\n")[0])
        assert clients[0].ask(b"md many\r\n") == b"HD\r\n"
        for client in clients:
            client.close()
        assert sorted(said) == [b"VA 1 X W"] + [b"VA 1 Z X"] * 7


def test_stale_items_outlive_a_restart(tmp_path: Path) -> None:
    """And who was told to make another value."""
    listen = [parse_listen_url("memcached://:0")]
    made = b"ms a 1\r\n1\r\nmd a I\r\nms b 1\r\n1\r\nmd b I\r\nmg b\r\nmg c N900\r\n"
    answers = (
        b"HD\r\nHD\r\nHD\r\nHD\r\nHD X W\r\nHD W\r\n",
        b"VA 1 X W\r\n1\r\nVA 1 Z X\r\n1\r\nVA 0 Z\r\n\r\n",
        b"VA 1 Z X\r\n1\r\nVA 1 Z X\r\n1\r\nVA 0 Z\r\n\r\n",
    )
    said = []
    for sent in (made, b"mg a v\r\nmg b v\r\nmg c v\r\n", b"mg a v\r\nmg b v\r\nmg c v\r\n"):
        with Serving(tmp_path / "s", listen=listen, guest="write") as server:
            client = TextClient(server.port)
            said.append(client.ask(sent))
            client.close()
    assert said == [*answers]


def test_who_may_only_read_is_not_told_to_make_another_value(tmp_path: Path) -> None:
    """It is told that the item is stale, and nothing is changed by that."""
    listen = [parse_listen_url("memcached://:0")]
    with Serving(tmp_path / "s", listen=listen, guest="write") as server:
        client = TextClient(server.port)
        assert client.ask(b"ms a 1\r\n1\r\nmd a I\r\n") == b"HD\r\nHD\r\n"
        client.close()
    with Serving(tmp_path / "s", listen=listen, guest="read") as server:
        client = TextClient(server.port)
        place = server.log.vclock
        assert client.ask(b"mg a v\r\nmg a\r\nme b\r\n") == b"VA 1 X\r\n1\r\nHD X\r\nEN\r\n"
        assert client.ask(b"mg a R9\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        assert server.log.vclock == place
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


def test_a_real_python_client(both: tuple[int, int]) -> None:
    """pymemcache finds at both what it asks for."""
    found = []
    for port in both:
        client = PymemcacheClient(("127.0.0.1", port), timeout=20)
        assert client.flush_all(noreply=False)
        left = int(client.stats()[b"curr_items"])  # memcached counts what it has not reclaimed
        said: list[object] = [
            client.set("one", b"1", flags=5, noreply=False),
            client.set_many({"two": b"2", "three": b"3" * 5000}, noreply=False),
            client.get_many(["one", "two", "three", "four"]),
            client.add("one", b"x", noreply=False),
            client.replace("four", b"x", noreply=False),
            client.append("two", b"2", noreply=False),
            client.prepend("two", b"0"),
            client.get("two"),
            client.incr("one", 41),
            client.decr("two", 1000),
            client.touch("one", 100, noreply=False),
            client.delete("three"),
            client.delete_many(["three", "two"]),
            client.get("two", b"none"),
        ]
        value, cas = client.gets("one")
        said += [value, client.cas("one", b"43", cas), client.cas("one", b"44", cas)]
        said += [client.cas("five", b"44", cas), client.raw_command("mn", b"\r\n")]
        assert int(client.stats()[b"curr_items"]) - left in (1, 1 - left)
        assert client.stats("settings")[b"cas_enabled"] in (b"yes", True)
        assert client.version().startswith(b"1.6.18")
        client.quit()
        found.append(said)
    assert found[0] == found[1]


@pytest.mark.parametrize("group", ["settings", "items", "slabs", "vbucket", "tap"])
def test_groups_of_statistics(both: tuple[int, int], group: str) -> None:
    """Those of STAT."""
    _, port = both
    client = TextClient(port)
    told = re.findall(rb"STAT (\S+) ([^\r]*)\r\n", client.ask(b"stats %s\r\n" % group.encode()))
    with KvClient(port) as packets:
        assert {name.decode() for name, _ in told} == set(packets.statistics(group.encode()))
    assert client.ask(b"stats reset\r\n") == b"RESET\r\n"
    assert b"STAT cmd_get 0\r\n" in client.ask(b"stats\r\n")
    assert client.ask(b"get gone\r\nmg gone\r\n") == b"END\r\nEN\r\n"
    assert b"STAT get_misses 2\r\n" in client.ask(b"stats\r\n")
    client.close()


def test_connections_are_told(both: tuple[int, int]) -> None:
    """Of each the same as memcached tells: addresses, and who asks."""
    found = []
    for port in both:
        idle, client = TextClient(port), TextClient(port)
        addresses = [b"tcp:127.0.0.1:%d" % one.socket.getsockname()[1] for one in (idle, client)]
        assert idle.ask(b"") == b""
        told: dict[bytes, dict[bytes, bytes]] = {}
        for line in client.ask(b"stats conns\r\n").splitlines()[:-1]:
            number, name, text = re.fullmatch(rb"STAT (\d+):(\w+) (.*)", line).groups()  # type: ignore[union-attr]
            told.setdefault(number, {})[name] = text
        by_address = {one[b"addr"]: one for one in told.values()}
        rows = [by_address[address] for address in addresses]
        assert all(int(row.pop(b"secs_since_last_cmd")) < 600 for row in rows)
        assert [row.pop(b"addr") for row in rows] == addresses
        assert all(row.pop(b"listen_addr") == b"tcp:127.0.0.1:%d" % port for row in rows)
        found.append(rows)
        idle.close()
        client.close()
    assert found[0] == found[1]
    assert found[0] == [{b"state": b"conn_read"}, {b"state": b"conn_parse_cmd"}]


def test_packets_of_lines_need_the_rights_of_what_they_do(tmp_path: Path) -> None:
    """What lines become may be sent as packets; who may only read changes nothing by them."""
    listen = [parse_listen_url("memcached://:0")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="write") as server,
        KvClient(server.port) as client,
    ):
        assert client.ask(store(b"n", b"5"))[0].status == 0
    extras = {0xE0: 0, 0xE1: 16, 0xE2: 20, 0xE3: 20, 0xE4: 16, 0xE5: 4, 0xE6: 8, 0xE7: 0}
    with Serving(tmp_path / "s", listen=listen, guest="read") as server:
        place = server.log.vclock
        with KvClient(server.port) as client:
            asked = [Packet(code, b"n", extras=bytes(size)) for code, size in extras.items()]
            answers = [client.ask(one)[0] for one in asked]
        said = {each.opcode: (each.status, each.value) for each in answers}
        reads = {code: said.pop(code) for code in (0xE0, 0xE7)}
        assert reads == dict.fromkeys(reads, (0, b"5"))
        assert {status for status, _ in said.values()} == {Status.AUTH_ERROR}
        assert server.log.vclock == place
