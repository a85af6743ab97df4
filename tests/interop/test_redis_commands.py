"""Answers of our Redis listener and of a real Redis to the same bytes."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest
from support.ports import free_port
from support.waiting import until

from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url

END = b"the-end"
SUBSCRIBE = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n"
SCRIPTS: dict[str, bytes] = {
    "ping": b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nping\r\n$2\r\nhi\r\n",
    "lines": b"PING\r\n\r\n  ping   x \nECHO word\r\n",
    "quotes": (
        b'ECHO "a b"\r\nECHO \'c \\\' \\x41 "\'\r\nECHO "\\x41\\x4\\n\\q\\""\r\nECHO d"e f"\r\n'
        b'ECHO \'\'\r\nSET "" ""\r\nGET \'\'\r\nECHO a\\x41\r\nDEL ""\r\n'
    ),
    "empty": b"*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n",
    "binary": b"*2\r\n$4\r\nECHO\r\n$6\r\n\r\n\x00\xff\r\n\r\n",
    "arguments": (
        b"GET\r\nAUTH a b c\r\nGET a b\r\nPUBLISH a\r\nSUBSCRIBE\r\nSELECT\r\nPING a b\r\nHELLO\r\n"
    ),
    "unknown": b"NOPE\r\nnope a b\r\nCLIENT NOPE\r\nPUBSUB nope x\r\n",
    "select": (
        b"SELECT 3\r\nSELECT 03\r\nSELECT 11000000000000000000\r\nSELECT 16\r\nSELECT -1\r\n"
        b"SELECT x\r\nGET k\r\nSELECT 0\r\n"
    ),
    "values": (
        b"SET k v\r\nGET k\r\nSET k w NX\r\nSET k w XX\r\nGET k\r\nSET l m XX\r\nGET l\r\n"
        b"SET t 1 PX 100000\r\nSET t 1 EX 100\r\nGET t\r\nSET t 1 PX 0\r\nSET t 1 PX x\r\n"
        b"SET t 1 EX 05\r\nSET t 1 PX 9223372036854775807\r\nSET t 1 EX 9223372036854775808\r\n"
        b"SET t 1 EX -5\r\nSET t 1 NX XX\r\nSET t 1 EX\r\nSET t 1 PX 1 EX 1\r\nSET t 1 nope\r\n"
        b"DEL k t k nothing\r\nGET k\r\nSELECT 1\r\nSET k one\r\nSELECT 0\r\nGET k\r\n"
    ),
    "publish": b"PUBLISH nobody hello\r\nPUBSUB NUMSUB\r\nPUBSUB NUMSUB a b\r\nPUBSUB CHANNELS\r\n",
    "subscribe": (
        SUBSCRIBE
        + b"*3\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n$1\r\nb\r\n"
        + b"GET k\r\nPING\r\nPING x\r\nPUBLISH a x\r\nCLIENT GETNAME\r\n"
        + b"UNSUBSCRIBE b\r\nUNSUBSCRIBE nope\r\nUNSUBSCRIBE\r\nUNSUBSCRIBE\r\nPING\r\n"
    ),
    "unsubscribe": b"UNSUBSCRIBE x y\r\n",
    "reset": b"SELECT 2\r\nSET k v\r\n" + SUBSCRIBE + b"RESET\r\nGET k\r\n",
    "version 3": (
        b"GET k\r\nSUBSCRIBE a\r\nGET k\r\nPING\r\nPING x\r\nPUBLISH b x\r\nUNSUBSCRIBE\r\n"
        b"UNSUBSCRIBE\r\nCLIENT GETNAME\r\n"
    ),
    "names": (
        b"CLIENT GETNAME\r\nCLIENT SETNAME me\r\nCLIENT GETNAME\r\nCLIENT\r\nPUBSUB\r\n"
        b"CLIENT SETNAME\r\nHELLO 2 SETNAME other\r\nCLIENT GETNAME\r\n"
    ),
    "hello": b"HELLO 4\r\nHELLO 03\r\nHELLO x\r\nHELLO 2 NOPE\r\nHELLO 3 AUTH x\r\n",
}
"""What is sent, before `PING the-end`."""

BROKEN: dict[str, bytes] = {
    "count": b"*x\r\n",
    "many": b"*2147483648\r\n",
    "no size": b"*1\r\nPING\r\n",
    "size": b"*1\r\n$x\r\n",
    "negative": b"*1\r\n$-1\r\n",
    "large": b"*1\r\n$99999999999\r\n",
    "behind": b"PING\r\n*1\r\n:4\r\nPING\r\n",
    "line": b"x" * 70_000,
    "quotes": b'PING\r\nECHO "a b\r\nPING\r\n',
    "behind quotes": b"ECHO 'a'b\r\n",
    "escaped quote": b"ECHO 'a\\'\r\n",
    "head": b"*" + b"1" * 70_000,
    "quit": b"PING\r\nQUIT\r\nPING\r\n",
}
"""What ends a connection."""


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of a real one, and of ours."""
    folder, program = tmp_path_factory.mktemp("redis"), shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on this machine")
    port = free_port()
    command = [program, "--port", str(port), "--save", ""]
    listen = [parse_listen_url("redis://:0")]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder) as child,
        Serving(folder / "store", listen=listen, guest="all") as ours,
    ):
        try:
            until(lambda: socket_is_open(port))
            yield port, ours.port
        finally:
            child.terminate()


def socket_is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(port: int, script: bytes, portion: int, *, ends: bool) -> bytes:
    """What a server says to a script that comes in portions; until it closes, with `ends`."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = script if ends else script + b"PING " + END + b"\r\n"
        try:
            for at in range(0, len(data), portion):
                peer.sendall(data[at : at + portion])
            while ends or not found.endswith(END + b"\r\n"):
                more = peer.recv(65536)
                if not more:
                    break
                found += more
        except ConnectionError:  # it closed before it had read everything
            pass
    return found


def alike(told: bytes) -> bytes:
    """Without what a server tells of itself."""
    return re.sub(rb"(?s)server\r\n.*?modules\r\n\*0", b"server", told)


@pytest.mark.parametrize("portion", [1, 7, 100_000])
@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_are_answered_as_redis_answers_them(
    ports: tuple[int, int], name: str, portion: int
) -> None:
    """Byte by byte, in both versions of the protocol."""
    real, ours = ports
    for hello in (b"", b"HELLO 3\r\n"):
        script = hello + SCRIPTS[name]
        wanted = alike(answers(real, script, portion, ends=False))
        assert alike(answers(ours, script, portion, ends=False)) == wanted


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_malformed_is_told_and_ends_the_connection(
    ports: tuple[int, int], name: str
) -> None:
    """With an error of the same kind; what came before it is answered."""
    real, ours = ports
    wanted = answers(real, BROKEN[name], 100_000, ends=True)
    found = answers(ours, BROKEN[name], 100_000, ends=True)
    assert found.split(b":")[0] == wanted.split(b":")[0]
