"""One store of several in a simulated world, with its server, its event loop and its threads."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sim.clients import make
from sim.ledger import SPACE, Statement
from sim.machine import Disk, Machine

import logweir
from logweir.errors import ErrorCode, LogweirError, RequestError, SourceStopped
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_url
from logweir.replication.runner import Runner, SourceState
from logweir.replication.server import Server, ServerOptions
from logweir.replication.urls import Url
from logweir.testing.loop import ScheduledLoop
from logweir.testing.network import Host
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from sim.manystores import Stores

__all__ = ["Node", "Process"]

_KEYS: Final = 10
_CHANGES: Final = ("replace", "update", "upsert", "delete")
_WAITS: Final = ("not registered", "duplicate connection")
"""Refusals behind which a node has to be started again, when the other one knows it."""
_LOST: Final = ("Missing .xlog", "rows between are gone")
"""Those behind which it has to copy everything anew."""


class Process:
    """One life of a node, for `Scheduler.kill`. `is_asked`: to end in order."""

    def __init__(self, node: Node, host: Host) -> None:
        self.node, self.host = node, host
        self.is_asked = False


class Node:
    """One store with what serves it. `number`: 0 is the source; `writes`: whether it takes changes
    of its own; `is_anonymous`: whether it has no place in `_cluster`."""

    def __init__(self, world: Stores, number: int, folder: Path) -> None:
        self.world, self.number = world, number
        dice = world.dice
        self.machine = Machine(folder / f"node{number}" / "new" / "store", number, dice)
        (folder / f"node{number}" / "new").mkdir(parents=True)
        self.port = 3300 + number
        self.uuid = world._uuid()
        self.is_anonymous = False
        self.process: Process | None = None
        self.has_store = False
        self.writes = 0
        self.shown = VClock()
        """What it has published."""
        self.noted: VClock | None = None
        """Up to where its rows were looked at; None: it begins where it is opened."""
        self.replica_id = 0
        self.log: logweir.Log | None = None
        self.server: Server | None = None
        self._loop: ScheduledLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ending = self._is_giving_up = False
        self._has_news = True
        self.writes_at_all = False
        self.durability: Literal["fsync", "write"] = "fsync"
        self._had_power_cut = False

    # --- its lives --------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether it has a process."""
        return self.process is not None

    def start(self) -> None:
        """Begin a life."""
        world = self.world
        self._is_ending, self._has_news = False, True
        self.process = Process(self, world.network.join(self.name))
        world.scheduler.start(self.name, self._run, group=self.process)

    @property
    def name(self) -> str:
        """In reports."""
        return f"node{self.number}"

    def end(self, how: str) -> None:
        """It is killed, its power goes, or it is closed."""
        process, scheduler = self.process, self.world.scheduler
        assert process is not None
        if how == "close":
            process.is_asked = True
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self.world.until(lambda: scheduler.is_gone(process), f"{self.name} does not end")
        else:
            self.machine.cut(is_power_cut=how == "power cut")
            self._had_power_cut |= how == "power cut"
            process.host.stop(is_dark=how == "power cut")
            scheduler.kill(process)
            scheduler.wait("the end", lambda: scheduler.is_gone(process))
        self._over()

    def _over(self) -> None:
        self.process = self.log = self.server = self._loop = self._stop = None
        aside = threading.Thread(target=self.machine.let_go)  # not in the schedule
        aside.start()
        aside.join()
        self.machine.lay()

    def _run(self) -> None:
        world, process = self.world, self.process
        assert process is not None
        self._calls = Disk(self.machine.disk, world.scheduler, world.dice, world.sync_seconds)
        loop = self._loop = ScheduledLoop(world.scheduler, process.host)
        loop.set_exception_handler(world.told)
        self._stop = asyncio.Event()
        if process.is_asked:
            self._stop.set()
        try:
            loop.run_until_complete(self._live())
        finally:
            loop.let_go()
        process.host.stop(is_dark=False)

    async def _live(self) -> None:
        """Until it is to stop."""
        assert self._stop is not None
        asked = asyncio.ensure_future(self._stop.wait())
        living = asyncio.ensure_future(self._lives())
        await asyncio.wait((asked, living), return_when=asyncio.FIRST_COMPLETED)
        if not living.done():
            living.cancel()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await living

    async def _lives(self) -> None:
        """Serve and follow, and copy anew where that has to be."""
        with contextlib.suppress(FileNotFoundError):  # it may have ended just behind its copy
            self.has_store = bool(self.machine.disk.list_directory(self.machine.path))
        while True:
            if not self.has_store:
                await self._join()
            why = await self._serve()
            if _is_lost(why):
                assert self.may_be_lost(why), why
                self._calls.remove_tree(self.machine.path)
                shutil.rmtree(self.machine.path, ignore_errors=True)
                self.has_store = False
                self.shown, self.noted = VClock(), None
            else:
                assert any(part in why for part in _WAITS), f"{self.name} stops: {why}"
                await self._pause()

    async def _pause(self) -> None:
        """Wait before the next try."""
        assert self._stop is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._stop.wait()

    def may_be_lost(self, why: str) -> bool:
        """Whether the logs that it needs may be gone at an upstream: at the source they are kept
        for whoever has a place, within a bound; elsewhere from the first subscription on."""
        is_source = ":3300 " in why
        if "lost rows of its own" in why:
            return is_source and self.world.nodes[0].durability == "write"
        is_loose = self.is_anonymous or self.world.evicts > 0 or self.durability == "write"
        return self.number > 0 and (is_loose or not is_source)

    async def _join(self) -> None:
        """Copy the source, or another node."""
        at = self.world.dice.choice(self.upstreams) if self.is_anonymous else 0
        url = parse_url(f"tarantool://127.0.0.1:{3300 + at}{'?anonymous=1' * self.is_anonymous}")
        while not self.has_store:
            while not self.world.is_told():  # a new place in `_cluster` is a row of the source
                await self._pause()
            try:
                await join(url, self.machine.path, instance=self.uuid, filesystem=self._calls)
                self.has_store = True
            except SourceStopped as error:
                raise AssertionError(f"{self.name} cannot copy: {error}") from error
            except LogweirError:
                await self._pause()

    @property
    def upstreams(self) -> Sequence[int]:
        """Those that it may copy or follow."""
        return range(1 if self.world.is_star else self.number) if self.number else ()

    def _followed(self) -> list[Url]:
        """Those that it follows in this life."""
        world = self.world
        if not self.number:
            return [self._address(3301)] if world.nodes[1].writes_at_all else []
        count = world.dice.choice((1, 1, 2))
        chosen = sorted(world.dice.sample(self.upstreams, min(count, len(self.upstreams))))
        return [self._address(3300 + one) for one in chosen]

    async def _serve(self) -> str:
        """Open, serve and follow, until a source has stopped: the reason."""
        world, dice = self.world, self.world.dice
        log = logweir.open(
            self.machine.path,
            filesystem=self._calls,
            clock=world.now,
            create=False,
            wal_max_size=dice.choice((600, 4000, 100_000)),
            checkpoint_count=1,
            checkpoint_interval=dice.choice((0.0, 5.0)),
            write_ahead=dice.choice((0, 2000)),
            durability=self.durability,
        )
        self._take_up(log)
        server = Server(
            log,
            ServerOptions(
                listen=self._listened(),
                follow=self._followed(),
                guest="all",
                retain_max_bytes=world.evicts if not self.number else 0,
            ),
        )
        server.shared.options = replace(server.shared.options, clock=world.now)
        self.server = server
        try:
            await server.start()
        except asyncio.CancelledError:  # it is to end
            self.log = self.server = None
            log.close()
            raise
        threads = [self._thread(self._observe, log), self._thread(self._keep, log)]
        if self.writes:
            threads.append(self._thread(self._write, log))
        try:
            why = await self._watch(server)
            if self.writes_at_all and _is_lost(why):
                await self._pass_on(log, threads[2:])
            return why
        finally:
            self.log = self.server = None
            self._is_ending = True
            await server.stop()
            self._wake()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            log.close()
            self._is_ending = self._is_giving_up = False

    def _listened(self) -> list[Url]:
        """Where it listens."""
        return [self._address(self.port)]

    def _address(self, port: int) -> Url:
        """Where a node listens, and is followed."""
        return parse_url(f"tarantool://127.0.0.1:{port}")

    def _take_up(self, log: logweir.Log) -> None:
        """It is open: go on where the last life has ended."""
        world = self.world
        if self._had_power_cut and self.durability == "write":
            self._lose(log)
        self._had_power_cut = False
        assert log.vclock.covers(self.shown), f"{self.name} is at {log.vclock}, was at {self.shown}"
        self.shown = log.vclock
        if self.noted is None:
            self.noted = VClock() if not self.number else log.vclock
        log.retain("observer", self.noted)
        self.replica_id = log.replica_id
        world.owners[self.replica_id] = self.number
        log.on_commit(self._committed)
        self.log = log
        if self.writes_at_all and not world.nodes[0].shown.lsn(self.replica_id):
            log.retain("source", self.noted)

    async def _pass_on(self, log: logweir.Log, writers: Sequence[Any]) -> None:
        """Before it copies the source anew, wait until that has all our own rows: they would be
        lost else, and others get their numbers."""
        self._is_giving_up = True
        for thread in writers:
            await asyncio.to_thread(thread.join)
        source, own = self.world.nodes[0], self.replica_id
        assert self.noted is not None
        while source.shown.lsn(own) < log.vclock.lsn(own) or not self.noted.covers(log.vclock):
            await self._pause()

    def _lose(self, log: logweir.Log) -> None:
        """Behind a power cut it may be at an earlier place."""
        if not log.vclock.covers(self.shown):
            self.shown = log.vclock
        if self.noted is not None and not log.vclock.covers(self.noted):
            self.noted = log.vclock
        if not self.number:
            self.world.lose(self, log.vclock)

    async def _watch(self, server: Server) -> str:
        """Until a source has stopped: the reason."""
        waits = [asyncio.ensure_future(_stopped(one)) for one in server.runners]
        if not waits:
            await asyncio.Event().wait()
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return next(one.result() for one in waits if one.done())
        finally:
            for one in waits:
                one.cancel()

    # --- beside the server ------------------------------------------------------------------------

    def _thread(self, work: Callable[[logweir.Log], None], log: logweir.Log) -> Any:
        thread = self.world.modules["threading"].Thread(
            target=work, args=(log,), name=f"{self.name}.{work.__name__}"
        )
        thread.start()
        return thread

    def _committed(self, vclock: VClock) -> None:
        """Behind each commit, in its thread."""
        assert vclock.covers(self.shown), f"{self.name} goes from {self.shown} to {vclock}"
        self.shown = vclock
        self.world.scheduler.got_on()
        self._wake()

    def _wake(self) -> None:
        self._has_news = True

    def _observe(self, log: logweir.Log) -> None:
        """Read along, as a program does that has the store open."""
        world, dice = self.world, random.Random(self.world.dice.getrandbits(64))
        while True:
            self._has_news = False
            is_last = self._is_ending
            assert self.noted is not None
            for made in log.rows(self.noted):
                world.note(self, made)
            if dice.random() < 0.5:
                log.retain("observer", self.noted)
            if self.writes_at_all:  # as it would be kept once the source has subscribed here
                own = world.nodes[0].shown.lsn(self.replica_id)
                log.retain("source", self.noted.with_lsn(self.replica_id, own))
            if dice.random() < 0.4 or is_last:
                with log.read_view() as view:
                    world.look(self, view.vclock, view.select(SPACE))
            if is_last:
                return
            world.scheduler.wait("news", lambda: self._has_news)

    def _keep(self, log: logweir.Log) -> None:
        """Make snapshots, so that old logs go."""
        world, dice = self.world, random.Random(self.world.dice.getrandbits(64))
        for _ in range(dice.randint(0, 3)):
            world.scheduler.wait("pause", lambda: self._is_ending, dice.choice((0.1, 1.0, 10.0)))
            if self._is_ending:
                return
            log.snapshot()

    def _write(self, log: logweir.Log) -> None:
        """Make changes, of keys of its own."""
        world, dice = self.world, random.Random(self.world.dice.getrandbits(64))
        while self.writes and not (self._is_ending or self._is_giving_up):
            if not world.may_skip():
                seconds = dice.choice((0.0, 0.0, 0.01, 0.3, 3.0))
                world.scheduler.wait("pause", lambda: self._is_ending, seconds)
                while not world.is_told() and not self._is_ending:
                    world.scheduler.wait("told", lambda: self._is_ending or world.is_told(), 1.0)
                self._change(log, dice)
            self.writes -= 1

    def _change(self, log: logweir.Log, dice: random.Random) -> None:
        if dice.random() < 0.6:
            made = [self._statement(dice, dice.choice(("insert", *_CHANGES)))]
            try:
                make(log, made[0])
            except RequestError as error:
                if error.code != ErrorCode.TUPLE_FOUND:
                    raise
                return
        else:
            made = [self._statement(dice, dice.choice(_CHANGES)) for _ in range(3)]
            with log.transaction() as tx:
                for one in made:
                    make(tx, one)
        self.world.acknowledged += [(one, log.vclock) for one in made]

    def _statement(self, dice: random.Random, kind: str) -> Statement:
        text = dice.choice(("a", "b" * 40, "c" * dice.choice((200, 900)), "d" * 5000))
        key = 100 * self.number + dice.randrange(_KEYS)
        self.world.tokens += 1
        return Statement(kind, key, self.world.tokens, text)


def _is_lost(why: str) -> bool:
    return any(part in why for part in _LOST)


async def _stopped(runner: Runner) -> str:
    while runner.status.state != SourceState.STOPPED:
        await runner.changed()
    return f"{runner.status.url} : {runner.status.last_error}"
