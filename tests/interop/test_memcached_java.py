"""spymemcached, as Debian packages it: its TapClient takes streams from us, and its ordinary client
is answered as by memcached."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.memcached import memcached
from support.tapmodel import DATA

from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.protocols import parse_listen_url

JAR = Path("/usr/share/java/spymemcached.jar")

pytestmark = [
    pytest.mark.skipif(shutil.which("javac") is None, reason="no `javac` on this machine"),
    pytest.mark.skipif(not JAR.exists(), reason="no Debian package libspymemcached-java here"),
]


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path with the compiled program."""
    folder = tmp_path_factory.mktemp("java")
    sources = [str(DATA / name) for name in ("TapDump.java", "Items.java")]
    command = ["javac", "-cp", str(JAR), "-d", str(folder), *sources]
    subprocess.run(command, check=True, capture_output=True)
    return f"{folder}:{JAR}"


@contextlib.contextmanager
def start(
    classpath: str, *arguments: str, program: str = "TapDump"
) -> Iterator[subprocess.Popen[str]]:
    """A program, running; killed if it has not ended."""
    command = ["java", "-cp", classpath, program, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_dump_arrives_with_flags_and_values(tmp_path: Path, classpath: str) -> None:
    """Every item once; option 100 is asked for, so the flags are right."""
    listen = [parse_listen_url("tap://:0/b")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        with KvClient(server.port) as client:
            client.ask(*(store(b"k%d" % n, b"v%d" % n, flags=n) for n in range(1500)))
        with start(classpath, "dump", f"127.0.0.1:{server.port}") as process:
            out, _ = process.communicate(timeout=60)
        lines = [line for line in out.splitlines() if line.startswith("MUTATION")]
        wanted = [f"MUTATION k{n} {n} v{n}" for n in range(1500)]
        assert sorted(lines) == sorted(wanted)


def test_live_changes_arrive(tmp_path: Path, classpath: str) -> None:
    """Future-only: nothing old; a change, a deletion, a change."""
    listen = [parse_listen_url("tap://:0/b")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        with KvClient(server.port) as client:
            client.ask(store(b"old"))
            with start(classpath, "live", f"127.0.0.1:{server.port}") as process:
                server.wait(lambda: server.server.settled.readers == 1)
                client.ask(store(b"k", b"live"), Packet(Opcode.DELETE, b"k"), store(b"end"))
                out, _ = process.communicate(timeout=60)
        lines = [line.split() for line in out.splitlines() if line.split()[0] != "READY"]
        assert [line[:2] for line in lines if line[0] in ("MUTATION", "DELETE")] == [
            ["MUTATION", "k"],
            ["DELETE", "k"],
            ["MUTATION", "end"],
        ]


@pytest.mark.skipif(
    shutil.which("memcached") is None, reason="no `memcached` program on this machine"
)
def test_ordinary_commands_are_answered_as_by_memcached(tmp_path: Path, classpath: str) -> None:
    """By both protocols, on one port: each answer that the client gives is the same."""
    listen = [parse_listen_url("memcached://:0")]
    with memcached() as theirs, Serving(tmp_path / "s", listen=listen, guest="all") as server:
        for protocol in ("text", "binary"):
            with contextlib.ExitStack() as stack:
                running = [
                    stack.enter_context(start(classpath, protocol, str(port), program="Items"))
                    for port in (theirs, server.port)
                ]
                there, here = (one.communicate(timeout=60)[0].splitlines() for one in running)
            assert here == there
            assert there[-1] == "get flushed: null"
