"""Random histories of a store, put through thousands of faults, and counted: rows of
docs/reliability.md, as those of `measuring`.

A `History` is a program that follows from a seed: changes, transactions, snapshots, positions of
followers, removals, rotation, closing and opening, in a folder that is new at the beginning. It
knows at each moment what the store may hold: what was acknowledged, or that and the change under
way. Behind a fault the store has to hold exactly one of those, each row once, and to be examined
without a complaint.

Each row is measured history by history. What was done is kept in a file, so that a long run that
was ended goes on where it stood.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import logweir
from logweir.errors import LogweirError, StateFailed, WriteFailed
from logweir.recovery import examine
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem
from logweir.recovery.faults.cuts import Image, Recorder
from logweir.store.workload import FAILPOINTS
from logweir.testing.measuring import Measured
from logweir.wal.failpoint import kill_at
from logweir.wal.filesystem import OS, FileSystem, make_folders

_FORMAT: Final = [("id", "unsigned"), ("value", "string")]
_OPTIONS: Final[dict[str, Any]] = {
    "wal_max_size": 700,
    "checkpoint_count": 1,
    "checkpoint_interval": 0.0,
}
_RATE: Final = 0.12
"""Of the calls of a history at which power is cut."""
_STEPS: Final = 40
_SHORT_STEPS: Final = 8
_BEHIND_STEPS: Final = 2
_LIVES: Final = 10
_KILL_SECONDS: Final = 0.004
_CHILD_SECONDS: Final = 60.0
_NEW_KEY: Final = 1_000_000

Rows = dict[int, str]


@dataclass(frozen=True)
class Content:
    """What a store holds. `rows`: None before the space is made; `followers`: their signatures."""

    rows: Rows | None = None
    followers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """What a program knew. `may_be`: what the store may hold; `state`: number of the close whose
    state LMDB may have left on the disk by then."""

    may_be: tuple[Content, ...]
    state: int


class History:
    """A program that uses a store in `folder`, which holds `content`, on `disk`. `steps`: how many
    changes; `tell`: is called with what is known, before and behind each."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        disk: FileSystem | None = None,
        *,
        content: Content | None = None,
        steps: int = _STEPS,
        tell: Callable[[Known], object] = lambda known: None,
    ) -> None:
        self.folder = folder
        self.content = content or Content()
        self.coming: Content | None = None
        self.steps = steps
        self.log: logweir.Log | None = None
        """The one that it opened last."""
        self._tell = tell
        self._dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        self._close_number = 0
        self._is_opening = False
        self._keeps_states = disk is None
        self._next_key = max(self.content.rows or (), default=-1) + 1
        self._cuts = Recorder(SimFileSystem(seed=seed), self.known, seed=seed, rate=_RATE)
        self.disk: FileSystem = disk or self._cuts

    def known(self) -> Known:
        """What is known now."""
        coming = () if self.coming is None else (self.coming,)
        return Known((self.content, *coming), self._close_number - self._is_opening)

    def images(self) -> list[Image[Known]]:
        """Live to the end. Returns the disks that power cuts meanwhile would have left."""
        for _ in self.live():
            if self._dice.random() < _RATE:
                self._cuts.cut("after the answer")
        self._cuts.cut("after the end")
        return self._cuts.images

    def live(self) -> Iterator[None]:
        """Open, work, close, several times. Yields behind each step."""
        log = self._open()
        rows = self.content.rows
        with self._changing(Content(rows or {}, self.content.followers)):
            log.create_space("t", _FORMAT, if_not_exists=True)
        for _ in range(self.steps):
            choice = self._dice.random()
            if choice < 0.08:
                self._close(log)
                log = self._open()
            elif choice < 0.16:
                log.snapshot()
            elif choice < 0.3:
                self._follow(log)
            else:
                self._change(log)
            yield
        self._close(log)

    @contextmanager
    def _changing(self, coming: Content) -> Iterator[None]:
        """Around what makes the content `coming`; where that fails it is not known."""
        self.coming = coming
        self._tell(self.known())
        yield
        self.content, self.coming = coming, None
        self._tell(self.known())

    def _open(self) -> logweir.Log:
        """Open the store."""
        self._is_opening = True
        self.log = _opened(self.folder, self.disk)
        self._is_opening = False
        return self.log

    def abandon(self) -> None:
        """Leave the store as if the process were killed."""
        if self.log is not None and not self.log.is_closed:
            self.log.inner.abandon()

    def settle(self, error: LogweirError) -> None:
        """What is known behind an error of a change; half of the stores are closed then."""
        if self.coming is not None and isinstance(error, StateFailed):
            self.content = self.coming
        if isinstance(error, (StateFailed, WriteFailed)):
            self.coming = None
        if self.log is not None and not self.log.is_closed and self._dice.random() < 0.5:
            with suppress(LogweirError):
                self.log.close()

    def _close(self, log: logweir.Log) -> None:
        """Close it, and keep the state that it leaves, if that is wanted."""
        log.close()
        if self._keeps_states:
            shutil.copytree(self.folder / "state", self.state_of(self._close_number))
        self._close_number += 1

    def state_of(self, number: int) -> Path:
        """The folder of the state that a close left."""
        return self.folder.parent / f"state-{number}"

    def _follow(self, log: logweir.Log) -> None:
        """A follower comes, goes on, or goes."""
        name = f"follower-{self._dice.randrange(3)}"
        followers = {**self.content.followers}
        if name in followers and self._dice.random() < 0.4:
            del followers[name]
            with self._changing(Content(self.content.rows, followers)):
                log.release(name)
            return
        followers[name] = log.vclock.signature
        with self._changing(Content(self.content.rows, followers)):
            log.retain(name, log.vclock)

    def _change(self, log: logweir.Log) -> None:
        """Change rows: one, several in a transaction, a run of new ones."""
        rows = {**(self.content.rows or {})}
        text = f"{self._dice.random()} " * self._dice.choice((1, 5, 30))
        how = self._dice.choice(("insert", "replace", "delete", "transaction", "append"))
        keys = sorted(rows)
        new = [self._next_key + number for number in range(self._dice.randint(1, 6))]
        self._next_key = new[-1] + 1
        if how in ("replace", "delete") and not keys:
            how = "insert"
        if how == "insert":
            self._apply(rows | {new[0]: text}, lambda: log.insert("t", (new[0], text)))
        elif how == "replace":
            key = self._dice.choice(keys)
            self._apply(rows | {key: text}, lambda: log.replace("t", (key, text)))
        elif how == "delete":
            key = self._dice.choice(keys)
            del rows[key]
            self._apply(rows, lambda: log.delete("t", key))
        elif how == "append":
            self._apply(
                rows | dict.fromkeys(new, text), lambda: log.append("t", [(k, text) for k in new])
            )
        else:
            gone = keys[: self._dice.randrange(3)]
            after = {key: value for key, value in rows.items() if key not in gone}

            def transact() -> None:
                with log.transaction() as tx:
                    for key in new:
                        tx.insert("t", (key, text))
                    for key in gone:
                        tx.delete("t", key)

            self._apply(after | dict.fromkeys(new, text), transact)

    def _apply(self, rows: Rows, change: Callable[[], object]) -> None:
        """Make a change that leaves these rows."""
        with self._changing(Content(rows, self.content.followers)):
            change()


def _opened(folder: Path, disk: FileSystem) -> logweir.Log:
    return logweir.open(folder, filesystem=disk, **_OPTIONS)


def _content_of(log: logweir.Log) -> Content:
    """What an open store holds."""
    named = {space.name for space in log.schema}
    rows = {row[0]: row[1] for row in log.select("t")} if "t" in named else None
    followers = log.status()["followers"]
    return Content(rows, {name: sum(at.values()) for name, at in followers.items()})


class _Broken(Exception):
    """What is there is not what was promised."""


def _looked(folder: Path, disk: FileSystem, may_be: tuple[Content, ...]) -> Content:
    """Open the store and return what it holds. Raises `_Broken` if that is none of `may_be`, or the
    rows of the log do not follow one another."""
    with suppress(FileNotFoundError):  # before the folder's name was durable
        disk.list_directory(folder)
        if damage := examine(folder, filesystem=disk).damage:
            raise _Broken(f"damaged: {damage[0]}")
    with _opened(folder, disk) as log:
        found = _content_of(log)
        if found not in may_be:
            raise _Broken(f"there is {found}, and none of {may_be}")
        lsns = [row.lsn for transaction in log.rows() for row in transaction.rows]
        if lsns and lsns != list(range(lsns[0], lsns[0] + len(lsns))):
            raise _Broken(f"lsns {lsns}")
    return found


# --- power cuts -----------------------------------------------------------------------------------


def _check(image: Image[Known], history: History, *, goes_on: bool) -> None:
    """The image opens as one of what it may be, is whole, and, where it `goes_on`, takes changes.
    Raises what tells that it does not."""
    folder = history.folder
    shutil.rmtree(folder, ignore_errors=True)
    left = history.state_of(image.noted.state)
    if left.exists():
        shutil.copytree(left, folder / "state")
    found = _looked(folder, image.disk, image.noted.may_be)
    if goes_on and found.rows is not None:
        with _opened(folder, image.disk) as log:
            log.insert("t", (_NEW_KEY, "new"))
        after = Content(found.rows | {_NEW_KEY: "new"}, found.followers)
        _looked(folder, image.disk.crash(seed=1), (after,))


def _cut(seed: int, tally: _Tally, scratch: Path) -> None:
    """A history, and each disk that power cuts at its calls leave."""
    history = History(scratch / "new" / "store", seed)
    for number, image in enumerate(history.images()):
        what = f"history {seed}, cut {image.number} {image.where}"
        tally.see(what, partial(_check, image, history, goes_on=number % 8 == 0))


def power_cuts(states: int, seed: int, kept: Path | None = None) -> Measured:
    """Disks as power cuts at any call of histories leave them."""
    tally = _tallied("power cuts", states, seed, kept, _cut)
    return tally.measured(f"{tally.rounds} histories; all rows and followers as they were")


# --- calls that fail ------------------------------------------------------------------------------


def _fail_each(fault: Fault, seed: int, tally: _Tally, scratch: Path) -> None:
    """A short history, as often as it has calls, each of which fails once."""
    for at in itertools.count(1):
        folder = scratch / str(at)
        disk = SimFileSystem(seed=seed)
        make_folders(disk, scratch)
        calls = FaultyFileSystem(disk, Fault(at, fault.kinds, fault.errno, fault.part, fault.lasts))
        history = History(folder, seed, calls, steps=_SHORT_STEPS)
        tally.see(f"history {seed}, call {at}", partial(_live_on, history, calls, disk, tally))
        shutil.rmtree(folder, ignore_errors=True)
        if not calls.failed:
            tally.tried -= 1
            return


def _live_on(history: History, calls: FaultyFileSystem, disk: SimFileSystem, tally: _Tally) -> None:
    """Live until a call fails, and a little more; look at what is there then: behind a kill or a
    close, or where a sync failed behind a power cut. Raises what tells that something is wrong."""
    left = _BEHIND_STEPS
    try:
        for _ in history.live():
            left -= bool(calls.failed)
            if not left:
                break
    except LogweirError as error:
        if not calls.failed:
            raise
        tally.told += 1
        history.settle(error)
    finally:
        calls.fault = None
        history.abandon()
    if calls.failed.startswith("sync"):
        shutil.rmtree(history.folder, ignore_errors=True)
        disk = disk.crash()
    _looked(history.folder, disk, history.known().may_be)


def failing_calls(states: int, seed: int, fault: Fault, kept: Path | None = None) -> Measured:
    """Each call to the disk of short histories fails in turn."""
    name = f"failing calls {fault.errno}"
    tally = _tallied(name, states, seed, kept, partial(_fail_each, fault))
    went_on = tally.tried - tally.told
    found = f"{tally.rounds} histories; {tally.told} typed errors, {went_on} went on"
    return tally.measured(found)


# --- kills ----------------------------------------------------------------------------------------


def _kill(seed: int, tally: _Tally, scratch: Path) -> None:
    """A store on the real disk, whose process is killed again and again, in half of the lives at a
    named place."""
    dice = random.Random(seed)  # noqa: S311
    folder = scratch / "store"
    content = Content()
    for life in range(_LIVES):
        history = History(folder, seed * _LIVES + life, OS, content=content)
        what = f"history {seed}, life {life}"

        def look() -> None:
            nonlocal content
            content = _looked(folder, OS, _killed(history, dice))  # noqa: B023

        tally.see(what, look)
        if tally.broken:
            return  # what it holds now is not known


def _killed(history: History, dice: random.Random) -> tuple[Content, ...]:
    """Let a child live a history, and kill it. Returns what the store may hold then."""
    messages, seconds = dice.randrange(1, 60), dice.uniform(0, _KILL_SECONDS)
    name, count = dice.choice(FAILPOINTS), dice.randint(1, 20)
    by_place = dice.random() < 0.5
    here, there = multiprocessing.Pipe(duplex=False)
    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            here.close()
            if by_place:
                kill_at(name, count)
            history._tell = there.send
            for _ in history.live():
                pass
        os.kill(os.getpid(), signal.SIGKILL)
    there.close()
    known = history.known()
    is_over = False
    with here:
        while not is_over and (by_place or messages > 0):
            try:
                is_over = not here.poll(_CHILD_SECONDS)
                known = here.recv()
            except (EOFError, OSError):  # killed, it may be within a message
                is_over = True
            messages -= 1
        time.sleep(0 if is_over else seconds)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with suppress(EOFError, OSError):
            while True:
                known = here.recv()
    return known.may_be


def kills(states: int, seed: int, kept: Path | None = None) -> Measured:
    """A process that lives histories on the real disk is killed, at any moment or at a named place,
    ten times in each folder."""
    tally = _tallied("kills", states, seed, kept, _kill)
    return tally.measured(f"{tally.rounds} folders; all rows and followers as they were")


# --- counting -------------------------------------------------------------------------------------


@dataclass
class _Tally:
    """What was done: in so many `rounds`, histories, each with the next seed; `told`: typed errors;
    `first`: the first broken promise, and how it is found again."""

    rounds: int = 0
    tried: int = 0
    broken: int = 0
    told: int = 0
    first: str = ""

    def see(self, what: str, look: Callable[[], object]) -> None:
        """Count one fault, and whether `look` raises."""
        self.tried += 1
        try:
            look()
        except Exception as error:
            self.broken += 1
            self.first = self.first or f"{what}: {type(error).__name__}: {error}"

    def measured(self, found: str) -> Measured:
        """The row of a table."""
        first = f"; the first: {self.first[:400]}" if self.first else ""
        return Measured(self.tried, self.broken, found + first)


def _tallied(
    name: str,
    states: int,
    seed: int,
    kept: Path | None,
    one: Callable[[int, _Tally, Path], None],
) -> _Tally:
    """Do a round with each seed from `seed` on until so many faults were tried. `kept`: a folder in
    which the tally stands behind each round, and from which it is taken first."""
    file = kept / f"{name.replace(' ', '-')}-{seed}.json" if kept else None
    tally = _Tally()
    if file is not None and file.exists():
        tally = _Tally(**json.loads(file.read_text()))
    while tally.tried < states:
        with tempfile.TemporaryDirectory(prefix="logweir-history-") as scratch:
            one(seed + tally.rounds, tally, Path(scratch))
        tally.rounds += 1
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".new").write_text(json.dumps(asdict(tally)))
            file.with_suffix(".new").replace(file)
    return tally
