"""Servers to measure, each a process of its own on loopback: logweir, memcached, Tarantool.

What a process used is read from /proc, and is 0 if there is none.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from logweir.errors import Unreachable
from logweir.tools.bench.tarantool import TarantoolPeer

_START_SECONDS: Final = 30
_QUIET_SECONDS: Final = 0.02
_QUIET_SHARE: Final = 0.2
_SETTLE_SECONDS: Final = 20

_TARANTOOL: Final = """
local uri = '127.0.0.1:0'
box.cfg{listen = uri, wal_mode = '%s', log = 'peer.log', memtx_memory = 2^30,
        checkpoint_interval = 0}
box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
local s = box.schema.space.create('bench', {if_not_exists = true})
s:create_index('primary', {parts = {1, 'unsigned'}, if_not_exists = true})
local text = string.rep('x', 40)
while true do
    require('socket').iowait(0, 'R')  -- io.read alone would stop the whole server
    local line = io.read('*l')
    if line == nil then os.exit(0) end
    local rows = line:match('fill (%%d+)')
    if rows then
        rows = tonumber(rows)
        for first = 1, rows, 1000 do
            box.begin()
            for i = first, math.min(first + 999, rows) do
                s:insert{i, 'customer', text, 12345678, 1.5}
            end
            box.commit()
        end
    end
    print(line == 'port' and box.info.listen:match(':(%%d+)$') or 0)
    io.flush()
end
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves. `ports`: in the order of what it was told to listen for."""

    ports: tuple[int, ...]
    pid: int

    @property
    def port(self) -> int:
        """The first one."""
        return self.ports[0]

    def cpu_seconds(self) -> float:
        """Processor time of its threads so far."""
        try:
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            told = [(one / "schedstat").read_text().split() for one in threads]
        except OSError:
            return 0.0
        return sum(int(words[0]) for words in told) / 1e9

    def memory_bytes(self) -> int:
        """Memory of its own: without files, the state's map among them."""
        return status_bytes(self.pid, "RssAnon")

    def resident_bytes(self) -> int:
        """Its memory, with the pages of files."""
        return status_bytes(self.pid, "VmRSS")

    def settle(self) -> None:
        """Wait until it does no more work in the background; 20 seconds at most."""
        end = time.monotonic() + _SETTLE_SECONDS
        before = self.cpu_seconds()
        while time.monotonic() < end:
            time.sleep(_QUIET_SECONDS)
            now = self.cpu_seconds()
            if now - before < _QUIET_SHARE * _QUIET_SECONDS:
                return
            before = now


def status_bytes(pid: int, name: str) -> int:
    """A line of a process's status in bytes, 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[:1] == [f"{name}:"])


def exchange(peer: socket.socket, requests: bytes, expected_bytes: int) -> float:
    """Send requests without waiting while so many bytes of answers are read. Returns the seconds.
    Raises `Unreachable` if the connection ends before."""
    started = time.perf_counter()
    sender = threading.Thread(target=peer.sendall, args=(requests,))
    sender.start()
    while expected_bytes > 0:
        data = peer.recv(1 << 18)
        if not data:
            raise Unreachable("bench", "the server closed the connection.")
        expected_bytes -= len(data)
    seconds = time.perf_counter() - started
    sender.join()
    return seconds


@contextmanager
def logweir_server(
    directory: Path,
    listen: Sequence[str],
    *,
    durability: str = "fsync",
    options: Sequence[str] = (),
    program: str = "from logweir.tools.cli.main import run; run()",
) -> Iterator[Server]:
    """`logweir serve` on a folder. `listen`: URLs with port 0; `options`: more of the command;
    `program`: what runs it. Raises `Unreachable`."""
    words = ["serve", str(directory), "--durability", durability, "--allow-guest", "all", *options]
    for url in listen:
        words += ["--listen", url]
    process = subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-P", "-c", program, *words, "--json", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise Unreachable("logweir serve", "the server did not start.")
        urls = json.loads(line)["listen"]
        ports = tuple(urlsplit(url).port or 0 for url in urls)
        yield Server(ports, process.pid)
    finally:
        process.terminate()
        process.wait(_START_SECONDS)
        process.stdout.close()


@contextmanager
def tarantool_server(directory: Path, wal_mode: str) -> Iterator[tuple[TarantoolPeer, Server]]:
    """A Tarantool with the space `bench` in a fresh folder. Raises `Unreachable`.

    But for `wal_mode`, memory and checkpoints, which there are none of, its settings are its own.
    Told `fill N` it inserts N tuples.
    """
    directory.mkdir()
    with TarantoolPeer(directory, _TARANTOOL % wal_mode) as peer:
        yield peer, Server((int(peer.ask("port")),), peer.pid)


@contextmanager
def memcached_server() -> Iterator[Server]:
    """Debian's memcached, which keeps nothing. Raises `Unreachable` if it does not start."""
    program = shutil.which("memcached")
    if program is None:
        raise Unreachable("memcached", "the program is not installed.")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    options = ["-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "256"]
    if os.getuid() == 0:
        options += ["-u", "root"]
    process = subprocess.Popen(  # noqa: S603 - a program of the system
        [program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield Server((port,), process.pid)
    finally:
        process.terminate()
        process.wait(_START_SECONDS)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise Unreachable("memcached", "the server did not start.") from None
            time.sleep(0.02)


def version_of(program: str) -> str | None:
    """The first line of what a program says it is, None if it is not installed."""
    path = shutil.which(program)
    if path is None:
        return None
    told = subprocess.run([path, "-V"], capture_output=True, text=True, check=False)  # noqa: S603
    return (told.stdout.strip().splitlines() or [program])[0]
