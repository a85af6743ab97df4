"""A follower in a process of its own, that can be held, asked and killed: `Follower`.

`follow` is what that process runs. It takes commands, a line each, and tells with lines of JSON
what its source's state is, what was asked for, and when it has come to where it is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self

from support.nursery import Nursery, Program

SECONDS = 60.0


class Followers:
    """Where followers come from: for each choice of limits a process that has imported all."""

    def __init__(self) -> None:
        self._nurseries: dict[str, Nursery] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._nurseries:
            self._nurseries.popitem()[1].__exit__()

    def begin(self, limits: Mapping[str, float], words: Sequence[str]) -> Program:
        """A follower with these instead of `logweir.limits`."""
        chosen = json.dumps({**BACKOFF, **limits})
        if chosen not in self._nurseries:
            prepare = f"from support import followprocess\nfollowprocess.prepare({chosen})"
            self._nurseries[chosen] = Nursery(prepare).__enter__()
        code = "import sys\nfrom support import followprocess\nfollowprocess.follow(*sys.argv[1:])"
        return self._nurseries[chosen].start(code, words, stdin=PIPE, stdout=PIPE)


BACKOFF = {"BACKOFF_FIRST_SECONDS": 0.02, "BACKOFF_MAX_SECONDS": 0.05}


class Follower:
    """One that follows `url` into `folder`. `limits`: what it has instead of `logweir.limits`;
    `hold`: where it stops from the beginning on, see `hold`."""

    def __init__(
        self,
        followers: Followers,
        folder: Path,
        url: str,
        spaces: Sequence[str],
        limits: Mapping[str, float] | None = None,
        hold: str = "",
    ) -> None:
        self.folder = folder
        words = [str(folder), url, json.dumps(list(spaces)), hold]
        self._process = followers.begin(limits or {}, words)
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.status: dict[str, Any] = {"state": "", "error": "", "parts": {}}

    def _read(self) -> None:
        with contextlib.suppress(json.JSONDecodeError):  # killed within a line
            for line in self._process.stdout:
                self._told.put(json.loads(line))
        self._told.put({"ended": True})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _next(self) -> dict[str, Any]:
        """The next thing it tells that is no status."""
        while True:
            told = self._told.get(timeout=SECONDS)
            if "state" not in told:
                assert "ended" not in told, f"it ended; last seen: {self.status}"
                return told
            self.status = told

    def _say(self, command: str) -> None:
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def wait(self, state: str) -> None:
        """Until its source is in that state."""
        while self.status["state"] != state:
            told = self._told.get(timeout=SECONDS)
            assert "ended" not in told, f"it ended; last seen: {self.status}"
            if "state" in told:
                self.status = told

    def trouble(self) -> str:
        """What its source told last of errors."""
        self.content()
        return " ".join([self.status["error"], *self.status["parts"].values()])

    def hold(self, place: str) -> None:
        """Stop at the next `store` or `sync`."""
        self._say(f"hold {place}")
        assert self._next() == {"holds": place}

    def held(self) -> dict[str, Any]:
        """Wait until it stands there, and everything that it sent before has left it."""
        told = self._next()
        assert "held" in told, told
        self._say("turn")
        assert self._next() == {"turned": True}
        return told

    def release(self) -> None:
        """Go on."""
        self._say("release")
        assert self._next() == {"released": True}

    def content(self) -> dict[str, str]:
        """What it has, as text, by space."""
        self._say("content")
        found: dict[str, str] = self._next()["content"]
        return found

    def until(self, wanted: Callable[[], dict[str, str]]) -> None:
        """Wait until it has that."""
        end = time.monotonic() + SECONDS
        pause = threading.Event()
        while time.monotonic() < end:
            began = time.monotonic()
            if self.content() == wanted():
                return
            pause.wait(max(0.02, time.monotonic() - began))  # leave time to the others
        raise AssertionError(f"{self.status}: {self.content()} here, {wanted()} there")

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._reader.join(SECONDS)
            self._process.close()


def digest(rows: Sequence[Sequence[Any]]) -> str:
    """How many tuples there are, and a digest. What comes after ten fields is how far an item of a
    bucket has come, and differs from place to place."""
    whole = repr([tuple(row[:10]) for row in rows]).encode()
    return f"{len(rows)}: {hashlib.sha256(whole).hexdigest()}"


def content_of(log: Any, spaces: Sequence[str]) -> dict[str, str]:
    """The `digest` of each of these spaces that there is."""
    there = {space.name for space in log.schema}
    return {name: digest(log.select(name)) for name in spaces if name in there}


class _Gate:
    """Where threads wait while it is shut."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._open = threading.Event()
        self._open.set()
        self.place = ""

    def shut(self, place: str) -> None:
        self.place = place
        self._open.clear()

    def release(self) -> None:
        self.place = ""
        self._open.set()

    def pass_through(self, place: str, **more: Any) -> None:
        if self.place == place:
            self._tell(held=place, **more)
            self._open.wait()


def prepare(chosen: Mapping[str, float]) -> None:
    """Set limits, and import all that a follower needs."""
    from logweir import limits

    for name, value in chosen.items():
        assert hasattr(limits, name), name
        setattr(limits, name, value)  # before anybody takes it from there

    from logweir.replication import loop, server
    from logweir.replication.protocols import parse_url

    async def begin(log: Any) -> None:
        for url in ("tank://127.0.0.1:1", "tap://127.0.0.1:1/b", "tarantool://127.0.0.1:1"):
            begun = server.Server(log, server.ServerOptions(follow=[parse_url(url)]))
            await begun.start()
            await begun.stop()

    import logweir

    with tempfile.TemporaryDirectory() as folder, logweir.open(folder) as log:
        loop.run(begin(log))  # it imports what it needs when it needs it


def follow(place: str, url: str, names: str, hold: str) -> None:
    """Follow `url` into the folder `place`. `names`: of spaces, as JSON."""
    folder, spaces = Path(place), json.loads(names)

    import logweir
    from logweir.errors import SourceStopped
    from logweir.replication import loop
    from logweir.replication import server as serving
    from logweir.replication.iproto.follow.join import join
    from logweir.replication.protocols import parse_url

    speaking = threading.Lock()

    def tell(**what: Any) -> None:
        with speaking:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()

    gate = _Gate(tell)
    if hold:
        gate.shut(hold)
    _hold_syncs(gate)
    _hold_stores(gate)
    source = parse_url(url)
    if source.scheme == "tarantool" and not list(folder.glob("*.snap")):
        try:
            asyncio.run(join(source, folder))
        except SourceStopped as error:
            tell(state="stopped", error=str(error), parts={})
            return

    async def run(log: logweir.Log) -> None:
        server = serving.Server(log, serving.ServerOptions(follow=[source]))
        await server.start()
        loop = asyncio.get_running_loop()
        threading.Thread(target=obey, args=(log, loop), daemon=True).start()
        (runner,) = server.runners
        shown: tuple[Any, ...] = ()
        while True:
            status = runner.status
            now = str(status.state), status.last_error, dict(status.stopped_parts)
            if now != shown:
                shown = now
                tell(state=now[0], error=now[1], parts=now[2])
            await runner.changed()

    def obey(log: logweir.Log, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            match line.split():
                case ["hold", place]:
                    gate.shut(place)
                    tell(holds=place)
                case ["release"]:
                    gate.release()
                    tell(released=True)
                case ["content"]:
                    tell(content=content_of(log, spaces))
                case ["turn"]:
                    turned = threading.Event()

                    def turn(turned: threading.Event = turned) -> None:
                        loop.call_later(0.01, turned.set)

                    loop.call_soon_threadsafe(turn)
                    turned.wait(0.5)  # no longer: a loop that is held itself sends nothing
                    tell(turned=True)

    with logweir.open(folder) as log:
        loop.run(run(log))


def _hold_syncs(gate: _Gate) -> None:
    """The gate `sync`: before a log is synced. What is told has how much of it was synced."""
    from logweir.wal import filesystem

    synced: dict[str, int] = {}
    kind: Any = filesystem._OsAppendFile
    sync = kind.sync

    def gated(file: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{file._fd}")
        if path.endswith(".xlog"):
            gate.pass_through("sync", path=path, synced=synced.get(path, 0))
        size = os.fstat(file._fd).st_size
        sync(file)
        synced[path] = size

    kind.sync = gated


def _hold_stores(gate: _Gate) -> None:
    """The gate `store`: before anything that came is stored. The event loop goes on meanwhile."""
    from logweir.replication.service.shared import Shared
    from logweir.replication.synapse.follow.ingest import Intake as SynapseIntake
    from logweir.replication.tank.follow.ingest import Intake as TankIntake

    run = Shared.run

    async def gated_run(shared: Shared, job: Any) -> object:
        if gate.place == "store":
            await asyncio.to_thread(gate.pass_through, "store")
        return await run(shared, job)

    def gated_store(kind: Any) -> None:
        store = kind.store

        def gated(intake: Any, changes: Any) -> Any:
            gate.pass_through("store")
            return store(intake, changes)

        kind.store = gated

    Shared.run = gated_run  # type: ignore[method-assign]
    gated_store(SynapseIntake)
    gated_store(TankIntake)
