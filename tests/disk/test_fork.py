"""A child made by `fork`: the handle is dead there, and its parent's store is as it was."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import logweir
from logweir import aio
from logweir.errors import UsedAfterFork
from logweir.recovery import examine
from logweir.replication.server import Server, ServerOptions
from logweir.store.commit.jobs import Job
from logweir.store.engine.batches import Asked
from logweir.store.engine.engine import Plans
from logweir.store.engine.executing import Executor
from logweir.store.engine.request import Request
from logweir.store.engine.statements import request_for
from logweir.testing.forking import error_of, in_child
from logweir.wal.mp import unpack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

# Since Python 3.12 forking a process with threads warns, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FORMAT = [("id", "unsigned"), ("value", "string")]


class Store:
    """An open store whose parent must be able to go on."""

    def __init__(self, folder: Path, log: logweir.Log) -> None:
        self.folder, self.log = folder, log
        self.written = 0

    def write(self, count: int = 1) -> None:
        """Insert the next rows, each with a sync of its own."""
        for _ in range(count):
            self.log.insert("kv", (self.written, "by the parent"))
            self.written += 1

    def check(self) -> None:
        """The parent writes on, reads all of it, closes; everything is there again, and whole."""
        self.write(48)
        assert self.log.select("kv", limit=1) == [(0, "by the parent")]
        assert self.log.count("kv") == self.written
        self.log.snapshot()
        self.write(3)
        self.log.close()
        check_folder(self.folder, self.written)


def check_folder(folder: Path, count: int) -> None:
    """The folder is whole, closed in order, and holds that many rows."""
    report = examine(folder)
    assert report.ok, report.findings
    with logweir.open(folder) as log:
        assert log.select("kv") == [(number, "by the parent") for number in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with logweir.open(tmp_path / "store") as log:
        log.create_space("kv", FORMAT)
        made = Store(tmp_path / "store", log)
        made.write(20)
        yield made


def calls(log: logweir.Log) -> dict[str, Callable[[], object]]:
    """Every public name of `Log`, and of its inside, used."""
    request = request_for(RowType.INSERT, log.schema, "kv", (10**6, "by a child"))
    job = Job(lambda group: None)
    arguments: dict[str, tuple[object, ...]] = {
        **dict.fromkeys(("count", "drop_space", "select", "space", "truncate"), ("kv",)),
        **dict.fromkeys(("chooser", "set_expiry"), ("kv", None)),
        "alter_space": ("kv",),
        "append": ("kv", [(10**6, "x")]),
        "append_packed": ("kv", request.tuple),
        "change_base": (lambda txn: None,),
        "changes_of": (280,),
        "commit_group": (None, print),
        "create_index": ("kv", "other", ["value"]),
        "create_sequence": ("numbers",),
        "create_space": ("more", FORMAT),
        "delete": ("kv", 0),
        "drop_index": ("kv", 1),
        "execute": (request,),
        **dict.fromkeys(("end_group", "hold_group"), (None,)),
        "get": ("kv", 0),
        "history": ("kv", 0),
        "insert": ("kv", (10**6, "x")),
        "listen": ("kv", print),
        "knows_settled": (VClock(),),
        "on_commit": (print,),
        "trial": (Executor(), Plans()),
        "on_grow": (print,),
        "release": ("somebody",),
        "replace": ("kv", (10**6, "x")),
        "reserve_state": (1000,),
        "retain": ("somebody", {1: 1}),
        "retain_all": ({"somebody": VClock({1: 1})},),
        "run": (lambda group: None,),
        "run_job": (job,),
        "select_batch": (Executor(), Asked(b"", array("Q"), (), 1)),
        "settled": (VClock(),),
        "submit": (request,),
        **dict.fromkeys(("run_if_free", "submit_jobs"), ([job],)),
        "update": ("kv", 0, [["=", 1, "x"]]),
        "upsert": ("kv", (10**6, "x"), [["=", 1, "x"]]),
        "use_sequence": ("kv", "numbers"),
    }
    entered = ("backup", "exclusive", "read_view", "rotated_view")

    def use(of: object, name: str) -> object:
        if name == "end_waiting":
            return log.end_waiting(confirm=True)
        found = getattr(of, name)
        if name in entered:
            with found():
                return "entered"
        found = found(*arguments.get(name, ())) if callable(found) else found
        return next(found) if name in ("blocks", "rows", "turn") else found

    return {
        name: partial(use, of, name)
        for of in (log, log.inner)
        for name in dir(type(of))
        if not name.startswith("_")
    }


PLAIN = {"abandon", "close", "failure", "is_closed", "is_foreign", "refusal"}
"""Names that a child may use: what they tell is true there, or they do nothing."""


def test_everything_that_a_child_asks_of_the_log_is_refused(store: Store) -> None:
    """Each public name of `Log` raises the typed error, or is one that tells nothing untrue."""

    def use_all() -> str:
        wrong = {name: error_of(call) for name, call in used.items() if name not in PLAIN}
        wrong = {name: got for name, got in wrong.items() if got != "UsedAfterFork"}
        assert store.log.is_closed
        store.log.close()
        store.log.inner.abandon()
        return f"wrong: {wrong}"

    used = calls(store.log)
    assert len(used) > 50
    assert in_child(use_all) == "wrong: {}"
    store.check()


def test_a_child_does_not_wait_for_readers_of_its_parent(store: Store) -> None:
    """Also where one was under way, which there will never end."""
    committer = store.log._committer
    with committer._view_guard, committer.state.reading:
        text = in_child(lambda: store.log.get("kv", 1))
    assert text.startswith("UsedAfterFork: the log ")
    store.check()


def test_the_error_says_what_to_do(store: Store) -> None:
    """It is a `RequestError` whose hint says where to open the folder."""
    text = in_child(lambda: store.log.get("kv", 1))
    assert text.startswith("UsedAfterFork: the log ")
    assert str(store.folder) in text
    assert "open the folder in the process that uses it" in text
    assert issubclass(UsedAfterFork, logweir.RequestError)
    store.check()


@pytest.mark.parametrize("durability", ["fsync", "write", "none"])
def test_a_child_that_leaves_the_block_changes_nothing(durability: str, tmp_path: Path) -> None:
    """Its `close` writes no end mark, gives no lock free and closes no LMDB."""
    folder = tmp_path / "store"
    with logweir.open(folder, durability=durability) as log:
        log.create_space("kv", FORMAT)
        store = Store(folder, log)
        store.write(3)

        def leave() -> str:
            with log:
                pass
            return error_of(lambda: logweir.open(folder))

        assert in_child(leave) == "DirectoryLocked"
        assert "is in use by process" in in_child(lambda: logweir.open(folder))
        store.check()


def test_iterators_and_views_that_were_begun_are_dead_in_the_child(store: Store) -> None:
    """What a generator would read next may be anything by then."""
    log = store.log
    rows = log.rows()
    next(rows)
    with log.inner.cursor() as cursor, log.read_view() as view, log.backup():
        ready = cursor.ready()
        next(ready)
        space = view.engine.schema.space("kv")
        tuples, backwards = (
            view.tuples(space),
            view.engine.entries(space, space.primary, b"", None, reverse=True),
        )
        assert next(tuples)
        assert next(backwards)

        def use() -> object:
            steps = [
                lambda: next(rows),
                lambda: next(ready),
                lambda: next(tuples),
                lambda: next(backwards),
                lambda: view.get("kv", 1),
                lambda: view.count("kv"),
                lambda: next(view.tuples(space)),
                lambda: next(cursor.ready()),
            ]
            return sorted({error_of(step) for step in steps})

        assert in_child(use) == "['UsedAfterFork']"
        store.write(200)  # pages that the view sees stay as they are
        assert len(list(tuples)) == 19
        assert view.count("kv") == 20
    rows.close()
    store.check()


def test_a_child_that_leaves_a_view_leaves_its_parents_view_alone(store: Store) -> None:
    """The slot of a reader is memory that both share: were it given up, pages would be reused."""
    reader = store.log.read_view()
    view = reader.__enter__()
    space = view.engine.schema.space("kv")
    assert in_child(lambda: reader.__exit__(None, None, None)) == "False"
    for _ in range(30):
        store.write(20)
    assert [unpack(data)[0] for data in view.tuples(space)] == list(range(20))
    reader.__exit__(None, None, None)
    store.check()


def test_a_transaction_open_over_a_fork_is_the_parents(store: Store) -> None:
    """The child's copy raises, its end undoes nothing, and the parent's commits."""
    log = store.log

    def use(tx: logweir.Transaction) -> object:
        found = {
            error_of(call)
            for call in (
                lambda: tx.insert("kv", (10**6, "x")),
                lambda: tx.get("kv", 1),
                lambda: tx.select("kv"),
                lambda: tx.schema,
                lambda: tx._known_schema,
                tx.rollback,
            )
        }
        tx.__exit__(None, None, None)
        log.close()
        return sorted(found)

    with log.transaction() as tx:
        tx.insert("kv", (store.written, "by the parent"))
        assert in_child(lambda: use(tx)) == "['UsedAfterFork']"
        tx.insert("kv", (store.written + 1, "by the parent"))
    store.written += 2
    store.check()


def test_forks_in_the_middle_of_other_threads_commits(store: Store) -> None:
    """Locks that are held meanwhile neither hang the child nor the parent."""
    stop = threading.Event()
    made: list[list[int]] = [[] for _ in range(4)]

    def write(number: int) -> None:
        while not stop.is_set():
            key = 1000 + 4 * len(made[number]) + number
            store.log.replace("kv", (key, "by the parent"))
            made[number].append(key)
            store.log.get("kv", key)

    def use() -> str:
        got = {error_of(lambda: store.log.insert("kv", (1, "x")))}
        got.add(error_of(lambda: store.log.get("kv", 1)))
        got.add(error_of(store.log.status))
        with store.log:
            pass
        with ThreadPoolExecutor(2) as pool:
            got.add(pool.submit(error_of, lambda: store.log.select("kv")).result())
        return str(got)

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, number) for number in range(4)]
        try:
            for _ in range(25):
                assert in_child(use) == "{'UsedAfterFork'}"
        finally:
            stop.set()
        for writer in writers:
            writer.result()
    keys = sorted(key for keys in made for key in keys)
    assert len(keys) > 25
    for key in keys:
        assert store.log.delete("kv", key) == (key, "by the parent")
    store.check()


def test_a_thread_pool_of_the_child_gets_the_error(store: Store) -> None:
    """Also where the method was looked up before the fork."""
    get, insert = store.log.get, store.log.insert

    def use() -> object:
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(error_of, lambda: get("kv", 1)) for _ in range(8)]
            found += [pool.submit(error_of, lambda: insert("kv", (10**6, "x"))) for _ in range(8)]
            return {one.result() for one in found}

    assert in_child(use) == "{'UsedAfterFork'}"
    store.check()


def test_multiprocessing_with_fork(store: Store) -> None:
    """Processes and pools that inherit an open store leave it alone, and end."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=error_of, args=(store.log.status,))
    process.start()
    store.write(5)
    process.join(60)
    assert process.exitcode == 0
    with context.Pool(2) as pool:
        assert set(pool.map(_get_from_the_parents_log, range(6))) == {"UsedAfterFork"}
        pool.close()
        pool.join()
    store.check()


def _get_from_the_parents_log(key: int) -> str:
    import gc

    logs = [one for one in gc.get_objects() if isinstance(one, logweir.Log)]
    found = {error_of(lambda log=one: log.get("kv", key)) for one in logs}
    return found.pop() if len(found) == 1 else f"{found}"


def test_a_program_started_with_preexec_fn(store: Store) -> None:
    """`subprocess` forks, calls it, and then becomes another program."""

    def use() -> None:
        os.write(1, error_of(lambda: store.log.insert("kv", (1, "x"))).encode())

    program = [sys.executable, "-c", "print(' started')"]
    done = subprocess.run(
        program,
        preexec_fn=use,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "UsedAfterFork started\n"
    store.check()


@pytest.mark.parametrize(
    "leaving", ["pass", "os._exit(0)", "sys.exit(0)", "raise SystemExit", "log.close()"]
)
def test_a_child_may_end_as_it_likes(leaving: str, tmp_path: Path) -> None:
    """The interpreter's own end collects everything: that does not reach the parent's store."""
    program = f"""
        import os, sys, threading, logweir
        with logweir.open("store") as log:
            log.create_space("kv", [("id", "unsigned"), ("value", "string")])
            for number in range(300):
                log.replace("kv", (number, "by the parent"))
            reader = log.read_view()
            view = reader.__enter__()
            held = threading.Event()

            def stay():
                with log.read_view():
                    held.set()
                    ended.wait()

            ended = threading.Event()
            other = threading.Thread(target=stay)
            other.start()
            held.wait()
            pid = os.fork()
            if pid == 0:
                {leaving}
            else:
                assert os.waitpid(pid, 0)[1] == 0
                for number in range(300, 348):
                    log.insert("kv", (number, "by the parent"))
                    assert log.get("kv", number)
                assert view.count("kv") == 300
                reader.__exit__(None, None, None)
                ended.set()
                other.join()
        if pid:
            print("the parent is done")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the parent is done\n", "")
    check_folder(tmp_path / "store", 348)


def test_a_child_opens_the_folder_once_its_parent_has_closed_it(store: Store) -> None:
    """What the hint says works; nothing that the child inherited stands in the way."""
    (may_open, tell), (has_tried, tried) = os.pipe(), os.pipe()

    def use() -> object:
        first = error_of(lambda: logweir.open(store.folder))
        os.write(tried, b"x")
        os.read(may_open, 1)
        with logweir.open(store.folder) as log:
            log.insert("kv", (store.written, "by the parent"))
            return first, log.count("kv")

    answers: list[str] = []
    child = threading.Thread(target=lambda: answers.append(in_child(use)))
    child.start()
    os.read(has_tried, 1)
    store.log.close()
    os.write(tell, b"x")
    child.join()
    for end in (may_open, tell, has_tried, tried):
        os.close(end)
    assert len(answers) == 1
    assert answers[0].endswith(f", {store.written + 1})")
    check_folder(store.folder, store.written + 1)


def test_the_parent_may_close_and_open_again_while_a_child_lives(store: Store) -> None:
    """A child has no copy of what keeps the folder locked."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(into)
        os.read(out, 1)
        os._exit(0)
    os.close(out)
    try:
        store.log.close()
        for _ in range(3):
            with logweir.open(store.folder) as log:
                assert log.count("kv") == store.written
    finally:
        os.close(into)
        os.waitpid(pid, 0)


def test_a_child_whose_parent_was_killed_opens_the_folder(tmp_path: Path) -> None:
    """A program that becomes a daemon opens it anew, and goes on."""
    program = """
        import os, signal, time, logweir
        log = logweir.open("store")
        log.create_space("kv", [("id", "unsigned"), ("value", "string")])
        for number in range(30):
            log.insert("kv", (number, "by the parent"))
        parent = os.getpid()
        wake, into = os.pipe()
        if os.fork() == 0:
            os.close(into)
            os.read(wake, 1)                      # ends when the parent dies
            end = time.monotonic() + 60
            while True:
                try:
                    mine = logweir.open("store")
                    break
                except logweir.DirectoryLocked:   # it is not wholly dead yet
                    assert time.monotonic() < end
            mine.insert("kv", (30, "by the parent"))
            mine.close()
            print("opened", flush=True)
        else:
            os.kill(parent, signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "opened\n", done.stderr
    assert all("state.rebuilt" in line for line in done.stderr.splitlines()), done.stderr
    check_folder(tmp_path / "store", 31)


def test_the_awaited_store_and_a_server_are_dead_in_the_child(tmp_path: Path) -> None:
    """Nothing of them waits for threads that are not there."""

    async def use(log: aio.AsyncLog, tx: aio.AsyncTransaction, server: Server) -> object:
        async def rows() -> object:
            return [row async for row in log.rows()]

        async def transaction() -> None:
            async with log.transaction():
                pass

        calls = [
            lambda: log.insert("kv", (1, "x")),
            lambda: log.append("kv", [(1, "x")]),
            lambda: log.get("kv", 1),
            lambda: log.select("kv"),
            lambda: log.run(lambda log: log.snapshot()),
            rows,
            transaction,
            lambda: tx.insert("kv", (1, "x")),
            lambda: tx.get("kv", 1),
            lambda: tx.select("kv"),
            tx.rollback,
            server.start,
        ]
        found = set()
        for call in calls:
            try:
                found.add(f"no error but {await call()!r}")
            except Exception as error:
                found.add(type(error).__name__)
        await server.stop()
        await log.close()
        return found

    async def main() -> None:
        async with aio.open(tmp_path / "store") as log:
            await log.run(lambda log: log.create_space("kv", FORMAT))
            await log.insert("kv", (0, "by the parent"))
            server = Server(log.sync, ServerOptions())
            await server.start()
            async with log.transaction() as tx:
                await tx.insert("kv", (1, "by the parent"))
                answer = in_child(lambda: asyncio.run(use(log, tx, server)))
                await tx.insert("kv", (2, "by the parent"))
            assert answer == "{'UsedAfterFork'}"
            await server.stop()
            await log.insert("kv", (3, "by the parent"))

    asyncio.run(main())
    check_folder(tmp_path / "store", 4)


def test_a_writer_and_a_snapshot_that_were_begun_are_dead_in_the_child(
    store: Store, tmp_path: Path
) -> None:
    """The child can neither write to their files nor remove them."""
    writer = store.log._committer.writer
    (tmp_path / "other").mkdir()
    snapshot = SnapshotWriter(tmp_path / "other", VClock(), store.log.instance, timestamp=1.0)

    def use() -> object:
        found = {
            error_of(call)
            for call in (
                lambda: writer.write([b"x"], VClock()),
                writer.begin,
                writer.sync,
                writer.rotate,
                lambda: snapshot.write(512, [b"\x91\x01"]),
                snapshot.finish,
            )
        }
        writer.close()
        writer.abandon()
        writer.sync_in_background()
        snapshot.abort()
        return found

    assert in_child(use) == "{'UsedAfterFork'}"
    snapshot.write(512, [b"\x91\x01"])
    assert snapshot.finish().stat().st_size > 100
    store.check()


def test_requests_made_before_the_fork(store: Store) -> None:
    """A future that the parent waits for is the parent's."""
    request = Request(RowType.REPLACE, 512, tuple=b"\x92\x00\xadby the parent")
    future = store.log.inner.submit(request)
    assert in_child(lambda: store.log.inner.submit(request)).startswith("UsedAfterFork")
    assert future.result(60) is not None
    store.check()
