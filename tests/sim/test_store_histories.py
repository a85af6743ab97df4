"""Whole stores on a disk that loses power before any of its calls.

Random histories of changes, transactions, snapshots, positions of followers, removals, rotation,
closing and opening, in a folder that is new at the beginning. Before calls that write the disk is
looked at as a power cut would leave it then; each of these images must hold exactly what was
acknowledged, or that and the change under way, each row once, and be examined without a complaint.

The state is LMDB on the real disk. A power cut leaves the one of the next close, which is ahead of
the log: it may be used only where the store was closed in order.

`LOGWEIR_POWER_CUTS` says how many images are looked at, 300 unless it is set; a history has about
80. `LOGWEIR_RUN`, 0 unless it is set: others for each number.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import logweir
from logweir.recovery import examine
from logweir.recovery.faults import SimFileSystem
from logweir.recovery.faults.cuts import Image, Recorder
from logweir.wal.filesystem import FileSystem

FORMAT = [("id", "unsigned"), ("value", "string")]
IMAGES = int(os.environ.get("LOGWEIR_POWER_CUTS", "300"))
FIRST = 10_000_000 * int(os.environ.get("LOGWEIR_RUN", "0"))
GROUPS = 6
RATE = 0.12  # of the calls of a history at which power is cut
STEPS = 40

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
    """A program that uses a store in `folder`. `close_number`: of the next close."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.content = Content()
        self.coming: Content | None = None
        self.close_number = 0
        self.is_opening = False
        self.next_key = 0
        self.disk = Recorder(SimFileSystem(seed=seed), self.known, seed=seed, rate=RATE)

    def known(self) -> Known:
        """What is known now."""
        coming = () if self.coming is None else (self.coming,)
        return Known((self.content, *coming), self.close_number - self.is_opening)

    def live(self) -> list[Image[Known]]:
        """Open, work, close, several times. Returns the images."""
        log = self.open()
        with self.changing(Content(rows={})):
            log.create_space("t", FORMAT, if_not_exists=True)
        for _ in range(STEPS):
            choice = self.dice.random()
            if choice < 0.08:
                self.close(log)
                log = self.open()
            elif choice < 0.16:
                log.snapshot()
            elif choice < 0.3:
                self.follow(log)
            else:
                self.change(log)
            if self.dice.random() < RATE:
                self.disk.cut("after the answer")
        self.close(log)
        self.disk.cut("after the end")
        return self.disk.images

    @contextmanager
    def changing(self, coming: Content) -> Iterator[None]:
        """Around what makes the content `coming`."""
        self.coming = coming
        yield
        self.content, self.coming = coming, None

    def open(self) -> logweir.Log:
        """Open the store."""
        self.is_opening = True
        log = opened(self.folder, self.disk)
        self.is_opening = False
        return log

    def close(self, log: logweir.Log) -> None:
        """Close it, and keep the state that it leaves."""
        log.close()
        shutil.copytree(self.folder / "state", self.state_of(self.close_number))
        self.close_number += 1

    def state_of(self, number: int) -> Path:
        """The folder of the state that a close left."""
        return self.folder.parent / f"state-{number}"

    def follow(self, log: logweir.Log) -> None:
        """A follower comes, goes on, or goes."""
        name = f"follower-{self.dice.randrange(3)}"
        followers = {**self.content.followers}
        if name in followers and self.dice.random() < 0.4:
            del followers[name]
            with self.changing(Content(self.content.rows, followers)):
                log.release(name)
            return
        followers[name] = log.vclock.signature
        with self.changing(Content(self.content.rows, followers)):
            log.retain(name, log.vclock)

    def change(self, log: logweir.Log) -> None:
        """Change rows: one, several in a transaction, a run of new ones."""
        rows = {**(self.content.rows or {})}
        text = f"{self.dice.random()} " * self.dice.choice((1, 5, 30))
        how = self.dice.choice(("insert", "replace", "delete", "transaction", "append"))
        keys = sorted(rows)
        new = [self.next_key + number for number in range(self.dice.randint(1, 6))]
        self.next_key = new[-1] + 1
        if how in ("replace", "delete") and not keys:
            how = "insert"
        if how == "insert":
            self.apply(rows | {new[0]: text}, lambda: log.insert("t", (new[0], text)))
        elif how == "replace":
            key = self.dice.choice(keys)
            self.apply(rows | {key: text}, lambda: log.replace("t", (key, text)))
        elif how == "delete":
            key = self.dice.choice(keys)
            del rows[key]
            self.apply(rows, lambda: log.delete("t", key))
        elif how == "append":
            self.apply(
                rows | dict.fromkeys(new, text), lambda: log.append("t", [(k, text) for k in new])
            )
        else:
            gone = keys[: self.dice.randrange(3)]
            after = {key: value for key, value in rows.items() if key not in gone}

            def transact() -> None:
                with log.transaction() as tx:
                    for key in new:
                        tx.insert("t", (key, text))
                    for key in gone:
                        tx.delete("t", key)

            self.apply(after | dict.fromkeys(new, text), transact)

    def apply(self, rows: Rows, change: Callable[[], object]) -> None:
        """Make a change that leaves these rows."""
        with self.changing(Content(rows, self.content.followers)):
            change()


def opened(folder: Path, disk: FileSystem) -> logweir.Log:
    return logweir.open(
        folder, filesystem=disk, wal_max_size=700, checkpoint_count=1, checkpoint_interval=0.0
    )


def content_of(log: logweir.Log) -> Content:
    """What an open store holds."""
    named = {space.name for space in log.schema}
    rows = {row[0]: row[1] for row in log.select("t")} if "t" in named else None
    followers = log.status()["followers"]
    return Content(rows, {name: sum(at.values()) for name, at in followers.items()})


def check(image: Image[Known], history: History, *, goes_on: bool) -> None:
    """The image opens as one of what it may be, is whole, and takes changes."""
    folder = history.folder
    shutil.rmtree(folder, ignore_errors=True)
    left = history.state_of(image.noted.state)
    if left.exists():
        shutil.copytree(left, folder / "state")
    with suppress(FileNotFoundError):  # before the folder's name was durable
        image.disk.list_directory(folder)
        assert not examine(folder, filesystem=image.disk).damage
    with opened(folder, image.disk) as log:
        found = content_of(log)
        assert found in image.noted.may_be
        lsns = [row.lsn for transaction in log.rows() for row in transaction.rows]
        assert lsns == list(range(lsns[0], lsns[0] + len(lsns))) if lsns else True
        if goes_on and found.rows is not None:
            log.insert("t", (1_000_000, "new"))
    if goes_on and found.rows is not None:
        with opened(folder, image.disk.crash(seed=1)) as log:
            assert content_of(log).rows == found.rows | {1_000_000: "new"}


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_power_cut_at_any_call_loses_and_doubles_nothing(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything acknowledged is there, nothing twice, nothing half; a failing one is repeated by
    the number of its history and its cut."""
    boots = [""]
    monkeypatch.setattr("logweir.store.state.epoch.boot_id", lambda: boots[0])
    done = seed = 0
    while done < IMAGES // GROUPS:
        chosen = FIRST + 1000 * seed + group
        history = History(tmp_path / str(seed) / "new" / "store", seed=chosen)
        boots[0] = "the first"
        images = history.live()
        boots[0] = "the next"
        for number, image in enumerate(images):
            try:
                check(image, history, goes_on=number % 8 == 0)
            except Exception as error:
                where = f"history {chosen}, cut {image.seed} {image.where}"
                raise AssertionError(f"{where}: {error}") from error
        done += len(images)
        seed += 1
        shutil.rmtree(tmp_path / str(seed - 1))
    print(f"{done} power cuts")
