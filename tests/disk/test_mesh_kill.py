"""A set of three writers, Tarantool - ours - Tarantool, whose servers are killed at random."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from support.nursery import LOGWEIR, Program
from support.ports import free_port

from interop.kvclient import KvClient, store
from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.bucket.item import Item, pack_item
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_listen_url, parse_url

pytestmark = [pytest.mark.tarantool, pytest.mark.kill]

KILLS = 12
SEED = 20261122
SPACES = ("t", "u")
SETUP = """
box.schema.user.grant('guest', 'super')
for _, name in ipairs{...} do
    box.schema.space.create(name, {format = {{'writer', 'unsigned'}, {'id', 'unsigned'}}})
    box.space[name]:create_index('p', {parts = {1, 'unsigned', 2, 'unsigned'}})
end
"""
WRITE = """
local writer, first = ...
writing = require('fiber').create(function()
    for id = first, first + 1000000 do
        box.space.t:replace{writer, id, 'row'}
        if id % 3 == 0 then
            box.begin() box.space.u:replace{writer, id} box.space.u:replace{writer, id + 1}
            box.commit()
        end
        require('fiber').sleep(0.002)
    end
end)
"""
STOP = "writing:cancel()"
ID = "return box.space[...].id"
ALL = "return box.space[...]:select({}, {limit = 10000000})"


class Ours:
    """`logweir serve` in a process of its own, and a client that writes to it all the time."""

    def __init__(self, folder: Path, port: int, upstreams: list[int]) -> None:
        self.folder, self.port = folder, port
        self.tap, self.greenstack = free_port(), free_port()
        words = [f"--follow=tarantool://127.0.0.1:{upstream}" for upstream in upstreams]
        words += [f"--listen=tarantool://127.0.0.1:{port}", f"--listen={self.url('tap')}"]
        words += [f"--listen={self.url('greenstack')}"]
        self._words = ["serve", str(folder), *words, "--allow-guest=all", "--json"]
        self._process: Program | None = None
        self._writer: threading.Thread | None = None
        self._stopped = threading.Event()
        self.acknowledged: set[int] = set()

    def url(self, scheme: str) -> str:
        """Where bucket b is served."""
        bucket = "/b" if scheme == "tap" else ""
        return f"{scheme}://127.0.0.1:{getattr(self, scheme)}{bucket}"

    def start(self) -> None:
        self._process = LOGWEIR.begin(*self._words, stdout=PIPE, stderr=DEVNULL)
        assert self._process.stdout is not None
        json.loads(self._process.stdout.readline())

    def write(self, first: int) -> None:
        """Rows from a number on, each a commit, until told to stop or killed."""
        self._stopped.clear()
        self._writer = threading.Thread(target=self._write, args=(first,), daemon=True)
        self._writer.start()

    def _write(self, first: int) -> None:
        with contextlib.suppress(OSError, EOFError), RawClient(self.port) as client:
            (space,) = client.ask(1, select(281, 2, ["t"])).body[0x30]
            for number in range(first, first + 1_000_000):
                if self._stopped.wait(0.002):
                    return
                answer = client.ask(3, {0x10: space[0], 0x21: [2, number, "row"]})
                assert not answer.is_error
                self.acknowledged.add(number)

    def rest(self) -> None:
        self._stopped.set()
        if self._writer is not None:
            self._writer.join(20)

    def eval(self, code: str, words: list[Any]) -> list[Any]:
        """As of `RealTarantool`, for `ALL`, `ID` and the vclock."""
        with RawClient(self.port) as client:
            if code not in (ALL, ID):
                return [client.ask(68).body[0x29][0x02]]
            (space,) = client.ask(1, select(281, 2, words)).body[0x30]
            if code is ID:
                return [space[0]]
            return [client.ask(1, select(space[0], 0, [])).body[0x30]]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        self.rest()


def select(space: int, index: int, key: list[Any]) -> dict[int, Any]:
    return {0x10: space, 0x11: index, 0x12: 10_000_000, 0x13: 0, 0x14: 0 if key else 2, 0x20: key}


def clock(server: Any) -> dict[int, int]:
    """The vclock without local rows."""
    found = server.eval("return box.info.vclock", [])[0]
    return {number: lsn for number, lsn in found.items() if number and lsn}


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Until it holds. What is asked stands in another process, so it is looked at repeatedly."""
    end, paused = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < end, f"it did not come about in {seconds} s"
        paused.wait(0.05)


@contextlib.contextmanager
def mesh(folder: Path) -> Iterator[tuple[RealTarantool, Ours, RealTarantool, RealTarantool]]:
    """M <-> ours <-> R, and a replica of ours without a place in the set."""
    one, ours, two = free_port(), free_port(), free_port()
    quick = {
        "replication_timeout": 0.2,
        "replication_connect_quorum": 0,
        "replication": [f"127.0.0.1:{ours}"],
    }
    first = RealTarantool(folder / "m", listen=f"127.0.0.1:{one}", cfg=quick)
    third = RealTarantool(folder / "r", listen=f"127.0.0.1:{two}", cfg=quick)
    guest = RealTarantool(
        folder / "a", listen=None, cfg={**quick, "replication_anon": True, "read_only": True}
    )
    second = Ours(folder / "l", ours, [one, two])
    try:
        with RealTarantool(folder / "m", listen=f"127.0.0.1:{one}") as alone:
            alone.eval(SETUP, list(SPACES))
            asyncio.run(join(parse_url(f"tarantool://127.0.0.1:{one}"), folder / "l"))
        second.start()
        for box in (first, third, guest):
            box.start()
        yield first, second, third, guest
    finally:
        for server in (first, third, guest, second):
            server.stop()


def items(server: Any) -> set[tuple[bytes, bytes]]:
    """What a replica or a follower has in bucket b."""
    rows = server.log.select("b") if isinstance(server, Serving) else server.eval(ALL, ["b"])[0]
    return {(row[0], row[2]) for row in rows}


def test_followers_of_a_bucket_have_every_item_after_kills(tmp_path: Path) -> None:
    """The Tarantools write items of a bucket of ours, also while we are down; what follows us by
    TAP and by Greenstack has them all, whoever of the set comes back first."""
    dice, pause = random.Random(SEED), threading.Event()
    with mesh(tmp_path) as (first, second, third, guest):
        with KvClient(second.tap) as client:
            assert client.ask(store(b"first"))[0].status == 0
        until(lambda: clock(first) == clock(second) == clock(third) == clock(guest))
        space_id = second.eval(ID, ["b"])[0]
        wanted = {(b"first", b"v")}

        def put(box: RealTarantool, name: str) -> None:
            new = [b"%s-%d" % (name.encode(), number) for number in range(100)]
            changes = [
                ("replace", space_id, pack_item(Item(key, value=b"v", cas=1))) for key in new
            ]
            assert all(isinstance(answer, bytes) for answer in box.dml(changes))
            wanted.update((key, b"v") for key in new)

        listen = [parse_listen_url("tarantool://:0")]
        follow = [second.url("tap"), second.url("greenstack") + "/b"]
        with contextlib.ExitStack() as stack:
            followers = [
                stack.enter_context(
                    Serving(tmp_path / f"f{number}", listen=listen, follow=[parse_url(url)])
                )
                for number, url in enumerate(follow)
            ]
            for kill in range(6):
                put(first, f"m{kill}")
                put(third, f"r{kill}")
                pause.wait(dice.uniform(0, 0.2))
                second.kill()
                put(first, f"M{kill}")
                put(third, f"R{kill}")
                second.start()
            for server in (first, second, third, guest, *followers):
                until(lambda server=server: len(items(server)) >= len(wanted))  # type: ignore[misc]
                assert items(server) == wanted


def test_every_replica_has_every_tuple_after_kills_of_all(tmp_path: Path) -> None:
    """Three write while one after the other is killed and comes again. In the end all hold the
    same tuples, what we acknowledged among them: the contents are compared, for equal vclocks say
    nothing of rows passed over."""
    dice = random.Random(SEED)
    with mesh(tmp_path) as (first, second, third, guest):
        boxes: dict[int, Any] = {1: first, 2: second, 3: third}
        pause = threading.Event()

        def begin(number: int, at: int) -> None:
            if number == 2:
                second.write(at)
            else:
                boxes[number].eval(WRITE, [number, at])

        for number in boxes:
            begin(number, 0)
        victims = [2, 1, 2, 3] * (KILLS // 4)
        for kill, victim in enumerate(victims, 1):
            pause.wait(dice.uniform(0.1, 0.5))
            boxes[victim].kill()
            pause.wait(dice.uniform(0.1, 0.4))  # the others go on
            boxes[victim].start()
            begin(victim, kill * 1_000_000)
        pause.wait(0.5)
        for box in (first, third):
            box.eval(STOP)
        second.rest()
        until(lambda: clock(first) == clock(second) == clock(third) == clock(guest))
        for space in SPACES:
            wanted = first.eval(ALL, [space])[0]
            assert {row[0] for row in wanted} == ({1, 2, 3} if space == "t" else {1, 3})
            ours = {row[1] for row in wanted if row[0] == 2}
            assert space == "u" or ours >= second.acknowledged, "acknowledged and gone"
            for other in (second, third, guest):
                found = other.eval(ALL, [space])[0]
                missing = [row for row in wanted if row not in found] if found != wanted else []
                assert not missing, f"{space}: {len(missing)} missing, as {missing[:5]}"
                assert len(found) == len(wanted), space
