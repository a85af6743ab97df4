"""An interrupt (Ctrl-C, a timeout's signal) at each place of a read, and of a transaction."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.errors import DirectoryLocked
from logweir.recovery.faults import SimFileSystem
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.store.state import stacked
from logweir.store.state.state import StateError
from logweir.store.state.statetxn import Txn
from logweir.testing.interrupting import Interrupter
from logweir.wal import tail
from logweir.wal.filesystem import OS, FileSystem, make_folders
from logweir.wal.lease import LOCK_NAME
from logweir.wal.mp import pack
from logweir.wal.process import start_thread
from logweir.wal.snapshot import new_snapshot, read_snapshot
from logweir.wal.vclock import VClock
from logweir.wal.writer import file_name
from logweir.wal.xrow import RowType

# One that is raised while a generator is collected is only reported.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.leaves("an interrupt between opening a file and noting it leaves it open"),
]

FORMAT = [("id", "unsigned"), ("value", "string")]
WAIT_SECONDS = 20
STORE = Path(logweir.__file__).parent / "store"
WAL = Path(logweir.__file__).parent / "wal"
ALL = os.environ.get("LOGWEIR_INTERRUPTS") == "all"
OF_A_COMMIT = (
    "(interrupted_change or interrupted_read or interrupted_first or interrupted_close or tail.py)"
    " and not engine and not status and not what_failed"
)
"""Tests that stop in files of the road of a commit."""


def opened(folder: Path) -> logweir.Log:
    log = logweir.open(folder, durability="write")
    log.create_space("kv", FORMAT, if_not_exists=True)
    log.append("kv", [(number, "x") for number in range(log.count("kv"), 20)])
    return log


def outcome(call: Callable[[], object]) -> str:
    """What comes of `call` in another thread: "" or the name of an error; "hangs"."""
    found = ["hangs"]

    def run() -> None:
        try:
            call()
            found[0] = ""
        except Exception as error:
            found[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS)
    return found[0]


def look(log: logweir.Log) -> None:
    with log.read_view() as view:
        view.get("kv", 3)
        assert view.count("kv") == 20


def iterate(log: logweir.Log) -> None:
    with log.read_view() as view:
        for _ in view.tuples(view.engine.schema.space("kv")):
            pass


READS: dict[str, Callable[[logweir.Log], object]] = {
    "get": lambda log: log.get("kv", 3),
    "select": lambda log: log.select("kv", limit=3),
    "count": lambda log: log.count("kv"),
    "view": look,
    "tuples": iterate,
    "status": lambda log: log.status(),
}


def is_open(txn: Txn) -> bool:
    """Whether it has not ended."""
    with contextlib.suppress(StateError):
        txn.raw.stat()
        return True
    return False


@pytest.mark.parametrize("within", ["state/state", "engine"])
def test_an_interrupted_change_keeps_no_transaction_on_the_state(
    within: str, tmp_path: Path
) -> None:
    """Wherever it is stopped in there: what it had ends, or waits for the next change, and needs
    no collector of cycles for that. `within`: how the paths of these files begin."""
    folder, at = tmp_path / "store", 0
    was_interrupted = True
    opened(folder).close()
    gc.collect()
    gc.disable()
    try:
        while was_interrupted:
            at += 1
            log = logweir.open(folder, durability="none")
            for _ in range(2):
                log.replace("kv", (1, "x"))
            interrupter = Interrupter(at, STORE / within)
            was_interrupted = interrupter.run(partial(log.replace, "kv", (2, "x")))
            found = [one for one in gc.get_objects() if isinstance(one, Txn) and is_open(one)]
            state = log.inner.committer.state
            assert [one for one in found if one not in state._spare] == [], interrupter.where
            del found
            outcome(log.close)
    finally:
        gc.enable()
    assert at > 10


@pytest.mark.parametrize("waits", [False, True], ids=["", "layers"])
@pytest.mark.parametrize("name", READS)
def test_an_interrupted_read_leaves_nothing_behind(name: str, waits: bool, tmp_path: Path) -> None:
    """Wherever it is stopped: writers, other readers and a growing state go on. `layers`: what is
    read stands in layers over the state, else in the state alone."""
    log = opened(tmp_path / "store")
    at = 0
    was_interrupted = True
    while was_interrupted:
        at += 1
        if waits:
            for _ in range(8):
                log.replace("kv", (1, "x"))
        else:
            log.inner.change_base(lambda txn: None)
        interrupter = Interrupter(at, STORE)
        was_interrupted = interrupter.run(lambda: READS[name](log))
        log.replace("kv", (1, "x"))
        assert log.count("kv") == 20, interrupter.where
        if at % 8 == 0 or not was_interrupted:
            for call in (lambda: log.replace("kv", (2, "x")), lambda: READS[name](log)):
                assert outcome(call) == "", interrupter.where
        assert not log._committer.viewers._views, interrupter.where
        assert log.status()["state"] == "running", interrupter.where
    assert at > 30
    before = log.status()["state_bytes"]
    assert outcome(lambda: log.inner.reserve_state(before)) == ""
    assert log.status()["state_bytes"] > before  # it grows only where nobody is looking
    log.close()


def change(log: logweir.Log) -> None:
    with log.transaction() as tx:
        tx.replace("kv", (1, "a"))
        tx.get("kv", 1)
        tx.replace("kv", (2, "b"))


def replace(log: logweir.Log) -> None:
    log.replace("kv", (1, "a"))


def replace_if_free(log: logweir.Log) -> None:
    space_id = log.schema.space("kv").id
    request = Request(RowType.REPLACE, space_id, tuple=pack([1, "a"]))
    log.inner.run_if_free([Job(lambda group: group.answer(request))])


def values(log: logweir.Log) -> list[object]:
    """What readers see of what the two change."""
    return [row[1] for row in log.select("kv", limit=3)[1:]]


@pytest.mark.parametrize(
    ("step", "make", "made"),
    [
        (1, change, ["a", "b"]),
        (2, change, ["a", "b"]),
        (1, replace, ["a", "x"]),
        (1, replace_if_free, ["a", "x"]),
    ],
    ids=["", "ahead", "statement", "if-free"],
)
def test_an_interrupted_change_hangs_nobody(
    step: int, make: Callable[[logweir.Log], None], made: list[object], tmp_path: Path
) -> None:
    """It is made whole, or not, and shown at once, or the store says by a typed error that it must
    be opened again. Nothing stays in line for which nobody waits, to be shown with the next one.

    `ahead`: it finds what another has made that nobody has written yet, at every other place.
    """
    log = opened(tmp_path / "store")
    at = reopened = 0
    was_interrupted = True
    wrong: list[str] = []
    while was_interrupted:
        at += step
        with log.transaction() as tx:
            tx.replace("kv", (1, "x"))
            tx.replace("kv", (2, "x"))
        if step > 1:
            before = log.transaction().__enter__()
            before.replace("kv", (1, "x"))
            before._leave(None)
        interrupter = Interrupter(at, STORE)
        was_interrupted = interrupter.run(partial(make, log))
        seen = values(log)
        for found in (outcome(partial(log.replace, "kv", (3, "x"))), here(log)):
            if found.startswith("LogStopped"):
                folder = log.path
                log.close()
                log = opened(folder)
                seen = values(log)
                reopened += 1
                break
            elif found:
                wrong.append(f"{interrupter.where}: {found}")
                log = opened(tmp_path / f"store-{at}")
                seen = values(log)
                break
        if seen not in (["x", "x"], made) or values(log) != seen:
            wrong.append(f"{interrupter.where}: {seen}, then {values(log)}")
    log.close()
    assert wrong == []
    assert at > 40  # fewer where what the last change had on the state is there
    # How many depends on which thread writes. Of what is compiled no line comes behind the write.
    assert reopened > 0 or not str(stacked.__file__).endswith(".py")


def test_an_interrupted_first_change_leaves_a_store_that_can_be_closed(tmp_path: Path) -> None:
    """Of one that was just opened: what it begins with the first change may be half begun."""
    folder = tmp_path / "store"
    opened(folder).close()
    at = 0
    was_interrupted = True
    while was_interrupted:
        at += 1 if ALL else 17
        log = logweir.open(folder, durability="write")
        before = log.select("kv", limit=3)[1:]
        interrupter = Interrupter(at, STORE)
        was_interrupted = interrupter.run(partial(change, log))
        found = outcome(partial(log.replace, "kv", (3, "x")))
        assert not found or found.startswith("LogStopped"), interrupter.where
        assert outcome(log.close) == "", interrupter.where
        log = logweir.open(folder)  # the folder is free
        assert log.select("kv", limit=3)[1:] in (before, [(1, "a"), (2, "b")]), interrupter.where
        log.replace("kv", (1, "x"))
        log.close()
    assert at > 200


def test_an_interrupted_close_is_ended_by_the_next(tmp_path: Path) -> None:
    """Wherever it is stopped: the folder is free behind another one, and nothing is missing."""
    folder = tmp_path / "store"
    at = 0
    was_interrupted = True
    wrong: list[str] = []
    while was_interrupted:
        at += 1 if ALL else 3
        log = opened(folder)
        log.replace("kv", (1, str(at)))
        interrupter = Interrupter(at, STORE)
        was_interrupted = interrupter.run(log.close)
        if found := outcome(log.close):
            wrong.append(f"{interrupter.where}: {found}")
        try:
            with logweir.open(folder) as log:
                assert log.get("kv", 1) == (1, str(at)), interrupter.where
        except logweir.LogweirError as error:
            wrong.append(f"{interrupter.where}: {type(error).__name__}: {error}")
            folder = tmp_path / f"store-{at}"
    assert wrong == []
    assert at > 100


def test_an_opening_that_is_interrupted_as_it_takes_the_lock_holds_none(tmp_path: Path) -> None:
    """At each place up to the first thing that is done under it."""
    opened(tmp_path).close()
    for at in itertools.count(1):
        interrupter = Interrupter(at, STORE / "recover" / "opening.py")
        interrupter.run(lambda: logweir.open(tmp_path))
        try:
            with OS.lock(tmp_path / LOCK_NAME):
                pass
        except DirectoryLocked:
            pytest.fail(f"held behind {interrupter.where}")
        if "_remove_unfinished" in interrupter.where:
            break
    assert at > 50


def test_a_thread_whose_start_is_interrupted_is_noted_or_does_nothing() -> None:
    """At each place: what is noted runs and can be waited for, and what is not never runs."""
    was_interrupted, at = True, 0
    while was_interrupted:
        at += 1
        noted: list[threading.Thread | None] = []
        ran: list[str] = []
        before = set(threading.enumerate())
        interrupter = Interrupter(at, WAL / "process.py")
        was_interrupted = interrupter.run(
            partial(start_thread, "named", partial(ran.append, "it"), noted.append)
        )
        for thread in set(threading.enumerate()) - before:
            if thread.ident is not None:  # else it is only about to be started, and never will be
                thread.join()
        kept = noted[-1] if noted else None
        assert ran == ["it"] * (kept is not None), interrupter.where
    assert ran == ["it"]
    assert at > 20


def test_an_opening_that_is_interrupted_at_its_end_holds_no_lock(tmp_path: Path) -> None:
    """At the last places of `open` itself, and of the contexts that it leaves."""
    opened(tmp_path).close()
    logs: list[logweir.Log] = []

    def interrupted(at: int) -> Interrupter:
        interrupter = Interrupter(at, STORE / "entry.py")
        interrupter.run(lambda: logs.append(logweir.open(tmp_path)))
        return interrupter

    places = interrupted(sys.maxsize).passed
    logs.pop().close()
    for at in range(places - 20, places + 1):
        where = interrupted(at).where
        assert where
        assert not logs
        try:
            with OS.lock(tmp_path / LOCK_NAME):
                pass
        except DirectoryLocked:
            pytest.fail(f"held behind {where}")


@pytest.mark.parametrize("has_state", [True, False], ids=["", "loaded"])
def test_an_interrupted_opening_leaves_a_folder_that_is_opened(
    has_state: bool, tmp_path: Path
) -> None:
    """Wherever it is stopped: the folder is free, and nothing is missing. `loaded`: the state is
    made of snapshot and log first."""
    opened(tmp_path).close()
    at = 0
    was_interrupted = True
    logs: list[logweir.Log] = []
    while was_interrupted:
        at += 1 if ALL else 499
        if not has_state:
            shutil.rmtree(tmp_path / "state")
        interrupter = Interrupter(at, STORE / "recover")
        was_interrupted = interrupter.run(lambda: logs.append(logweir.open(tmp_path)))
        while logs:
            logs.pop().close()
        try:
            with logweir.open(tmp_path) as log:
                assert log.count("kv") == 20, interrupter.where
        except logweir.LogweirError as error:
            pytest.fail(f"{interrupter.where}: {error}")
    assert at > 600


@pytest.mark.parametrize(
    ("work", "options", "within", "step"),
    [
        (change, {}, "writer.py", 3),
        (change, {}, "filesystem.py", 3),
        (change, {"durability": "fsync", "write_ahead": 1}, "writer.py", 5),
        (change, {"wal_max_size": 2}, "writer.py", 19),
        (logweir.Log.close, {}, "writer.py", 7),
        *[(change, {"durability": "fsync"}, "tail.py", 1)] * tail.__file__.endswith(".py"),
    ],
)
def test_an_interrupt_in_the_log_leaves_a_folder_that_is_opened(
    work: Callable[[logweir.Log], object],
    options: dict[str, Any],
    within: str,
    step: int,
    tmp_path: Path,
) -> None:
    """Wherever it writes and closes its files: no mark of an end is in the middle of one."""
    folder, given = tmp_path / "store", {"durability": "write", **options}
    opened(folder).close()
    at = 0
    was_interrupted = True
    wrong: list[str] = []
    while was_interrupted:
        at += 1 if ALL else step
        log = logweir.open(folder, **given)
        log.replace("kv", (1, "x"))
        interrupter = Interrupter(at, WAL / within)
        was_interrupted = interrupter.run(partial(work, log))
        if found := outcome(log.close):
            wrong.append(f"{interrupter.where}: {found}")
        try:
            with logweir.open(folder) as log:
                seen = [row[1] for row in log.select("kv", limit=3)]
                assert seen in (["x", "x", "x"], ["x", "a", "b"]), interrupter.where
                log.replace("kv", (2, "x"))
        except logweir.LogweirError as error:
            wrong.append(f"{interrupter.where}: {type(error).__name__}: {error}")
            folder = tmp_path / f"store-{at}"
            opened(folder).close()
    assert wrong == []
    assert at > step  # how often depends on which thread writes, so on what else runs


def whole(folder: Path, disk: FileSystem = OS) -> list[int]:
    """How many tuples each snapshot has. Raises where one has no end."""
    names = [name for name in disk.list_directory(folder) if name.endswith(".snap")]
    return [
        sum(len(block.columns) for block in read_snapshot(folder / name, disk)) for name in names
    ]


def test_an_interrupted_snapshot_file_is_whole_or_not_there() -> None:
    """Wherever it is stopped: no half of it stays, the one before does, and another is made."""
    folder, disk = Path("/store"), SimFileSystem()
    make_folders(disk, folder)

    def write(vclock: VClock) -> None:
        with new_snapshot(
            folder, vclock, uuid.UUID(int=1), timestamp=0.0, filesystem=disk
        ) as writer:
            writer.write(512, [b"\x91\x01"] * 100)
            writer.finish()

    write(VClock())
    at = 0
    was_interrupted = True
    while was_interrupted:
        at += 1
        vclock = VClock({1: at})
        interrupter = Interrupter(at, WAL / "snapshot.py")
        was_interrupted = interrupter.run(partial(write, vclock))
        assert not disk.open_files, interrupter.where
        unfinished = [one for one in disk.list_directory(folder) if one.endswith(".inprogress")]
        assert not unfinished, interrupter.where
        assert whole(folder, disk) in ([100], [100, 100]), interrupter.where
        write(vclock)
        assert whole(folder, disk.crash(seed=at)) == [100, 100], interrupter.where
        disk.remove(folder / file_name(vclock, "snap"))
    assert at > 60


def test_an_interrupted_snapshot_is_followed_by_another(tmp_path: Path) -> None:
    """Wherever it is stopped: none is half there, the last one still is, changes and the next one
    are made, unless the log says that it has to be opened again; so they are behind that."""
    folder = tmp_path / "store"
    log = opened(folder)
    at = 0
    was_interrupted = True
    wrong: list[str] = []
    while was_interrupted:
        at += 1 if ALL else 41
        last = log.snapshot()
        log.replace("kv", (1, str(at)))
        interrupter = Interrupter(at, STORE / "recover")
        was_interrupted = interrupter.run(log.snapshot)
        assert last.exists(), interrupter.where
        assert all(whole(folder)), interrupter.where
        for call in (lambda log: log.replace("kv", (2, "y")), logweir.Log.snapshot):
            found = outcome(partial(call, log))
            if found.startswith("LogStopped"):
                log.close()
                log = opened(folder)
                found = outcome(partial(call, log))
            if found:
                wrong.append(f"{interrupter.where}: {found}")
        assert log.get("kv", 1) == (1, str(at)), interrupter.where
        assert not list(folder.glob("*.inprogress")), interrupter.where
    log.close()
    assert wrong == []
    assert at > 100


def test_what_failed_behind_an_interrupted_close_is_told_by_the_next(tmp_path: Path) -> None:
    """Who was interrupted has not heard of it; once it is told, nothing comes any more."""
    log = opened(tmp_path / "store")
    ending = log.inner._ending
    work = ending._work

    def fail() -> None:
        work()
        raise OSError("the disk")

    ending._work = fail
    ending._run()  # in its thread, while nobody waits for it any more
    with pytest.raises(OSError, match="the disk"):
        log.close()
    log.close()
    opened(tmp_path / "store").close()


def test_the_same_of_each_line_of_a_commit() -> None:
    """Compiled, no line of it is a place; so what stops within it once more with its files as
    Python. The others have the same places either way."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "support.interpreted", __file__]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", OF_A_COMMIT]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def here(log: logweir.Log) -> str:
    """The same in this thread, which must not be taken for one inside a transaction."""
    try:
        log.replace("kv", (3, "x"))
    except logweir.LogweirError as error:
        return f"{type(error).__name__}: {error}"
    return ""
