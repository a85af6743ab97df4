"""Three servers that all follow one another and all take changes, on loopback: their processes are
killed, the network between them stops and breaks. Rows of docs/reliability.md."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import logweir
from logweir.errors import LogweirError
from logweir.replication.iproto.client.spaces import ServerSpace
from logweir.replication.protocols import parse_url
from logweir.store.engine.request import Request
from logweir.testing.measuring import Measured
from logweir.testing.valve import Valve
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

_MEMBERS: Final = 3
_PAUSE_SECONDS: Final = 0.3
_SCATTER_SECONDS: Final = 0.05
_SETTLE_SECONDS: Final = 60.0
_PROGRAM: Final = "from logweir.tools.cli.main import run; run()"


class Member:
    """A `logweir serve` in `folder`, and a thread that inserts rows there while it runs. The others
    reach it through `valves`, each through its own."""

    def __init__(self, number: int, folder: Path, valves: list[Valve]) -> None:
        self.number, self.folder = number, folder
        self.valves = valves
        self.acknowledged: set[int] = set()
        self.upstreams: list[int] = []
        self._next = 0
        self.port = 0
        self._stopped = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._writer = threading.Thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGTERM)

    def start(self) -> None:
        """Start the server, and let the others reach it."""
        words = [f"--follow=tarantool://127.0.0.1:{port}" for port in self.upstreams]
        words += ["--listen=tarantool://127.0.0.1:0", "--allow-guest=all", "--json"]
        command = [sys.executable, "-P", "-c", _PROGRAM, "serve", str(self.folder), *words]
        self._process = subprocess.Popen(  # noqa: S603
            [*command, "--replication-timeout=0.2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        self.port = parse_url(told["listen"][0]).port
        for valve in self.valves:
            valve.target = self.port

    def write(self) -> None:
        """Insert rows until `rest`, or the end of the server."""
        self._stopped.clear()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        with contextlib.suppress(LogweirError), self.space() as space:
            while not self._stopped.wait(0.002):
                number = _MEMBERS * self._next + self.number
                self._next += 1
                row = pack([number, "x" * 40])
                space.execute(Request(RowType.INSERT, space.space.id, tuple=row))
                self.acknowledged.add(number)

    def rest(self) -> None:
        """Let the writer come to its end."""
        self._stopped.set()
        if self._writer.ident is not None:
            self._writer.join(_SETTLE_SECONDS)

    def space(self) -> ServerSpace:
        """A client of the space."""
        return ServerSpace(parse_url(f"tarantool://127.0.0.1:{self.port}"), "t")

    def rows(self) -> list[int]:
        """The keys of all rows that the server has."""
        try:
            with self.space() as space:
                return [int(str(row[0])) for row in space.rows()]
        except LogweirError:
            return []

    def end(self, how: signal.Signals) -> None:
        """End the server."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(_SETTLE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        self.rest()


@contextlib.contextmanager
def _members(folder: Path) -> Iterator[list[Member]]:
    """All three, running, with a valve on each of the six ways."""
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(_MEMBERS):
            ways = range(2 * number, 2 * number + _MEMBERS - 1)
            valves = [stack.enter_context(Valve(seed=way)) for way in ways]
            members.append(Member(number, folder / str(number), valves))
            stack.enter_context(members[-1])
        with logweir.open(members[0].folder) as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")])
        members[0].start()
        for number, member in enumerate(members):
            others = [other for other in members if other is not member]
            own = [number - (other.number < number) for other in others]
            member.upstreams = [
                other.valves[at].port for other, at in zip(others, own, strict=True)
            ]
        for member in members[1:]:
            member.start()
        members[0].end(signal.SIGTERM)  # to follow the others, which were not there at its start
        members[0].start()
        yield members


def mesh(states: int, seed: int, *, kills: bool) -> Measured:
    """While all three take rows, `states` times one is killed and started again, or the ways to it
    are held or broken, while connections overtake one another on all ways; in the end all three
    hold every row that one of them acknowledged, once, and the same."""
    dice, pause = random.Random(seed), threading.Event()  # noqa: S311
    with (
        tempfile.TemporaryDirectory(prefix="logweir-mesh-") as scratch,
        _members(Path(scratch)) as members,
    ):
        for member in members:
            for valve in () if kills else member.valves:
                valve.scatter_seconds = _SCATTER_SECONDS
            member.write()
        for _ in range(states):
            pause.wait(dice.random() * _PAUSE_SECONDS)
            victim = dice.choice(members)
            if kills:
                victim.end(signal.SIGKILL)
                pause.wait(dice.random() * _PAUSE_SECONDS)  # the others go on
                victim.start()
                victim.write()
                continue
            for valve in victim.valves:
                valve.hold() if dice.random() < 0.5 else valve.cut()
            pause.wait(dice.random() * 2 * _PAUSE_SECONDS)
            for valve in victim.valves:
                valve.hold(False)
        for member in members:
            member.rest()
        promised = set().union(*(member.acknowledged for member in members))
        missing = _missing(members, promised)
    found = "in all three the same" if not any(missing) else f"missing after a minute: {missing}"
    rows = f"{len(promised)} acknowledged rows, {found}"
    return Measured(states, sum(map(bool, missing)), rows)


def _missing(members: list[Member], promised: set[int]) -> list[int]:
    """How many rows each of the members has too few or too many, once that is none, or after a
    minute: of what was promised, and of what another one has."""
    end, pause = time.monotonic() + _SETTLE_SECONDS, threading.Event()
    while True:
        found = [member.rows() for member in members]
        every = promised.union(*found)
        missing = [len(every) - len(set(rows)) + len(rows) - len(set(rows)) for rows in found]
        if not any(missing) or time.monotonic() > end:
            return missing
        pause.wait(0.1)
