"""`store.state.base`: misuse of LMDB in both bindings; what threads and forks may do."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logweir.store.state import base
from logweir.store.state.memtable import Memtable
from logweir.testing.forking import in_child

NAMES = [
    name for name in ("logweir.store.state.lmdbkernel", "lmdb") if importlib.util.find_spec(name)
]
compiled_only = pytest.mark.skipif(
    "logweir.store.state.lmdbkernel" not in NAMES, reason="LMDB is called by py-lmdb"
)
ENTRIES = [(b"%06d" % number, b"v" * 100) for number in range(3000)]


@pytest.fixture(params=NAMES)
def binding(request: pytest.FixtureRequest) -> Any:
    """One of the two, whichever `store.state.base` has chosen."""
    return importlib.import_module(request.param)


@pytest.fixture
def env(binding: Any, tmp_path: Path) -> Iterator[Any]:
    made = binding.Environment(str(tmp_path / "e"), map_size=2**26, max_dbs=4, max_spare_txns=2)
    yield made
    made.close()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Any]:
    """An environment of the compiled binding."""
    kernel = importlib.import_module("logweir.store.state.lmdbkernel")
    with kernel.Environment(tmp_path / "e", map_size=2**26, max_dbs=4, max_spare_txns=2) as made:
        yield made


def test_what_is_used_after_its_end_is_refused(binding: Any, env: Any) -> None:
    """Each method of each thing, after the end of that thing or of what it is of."""
    db = env.open_db(b"a")
    calls = []
    for end in ("commit", "abort"):
        txn = env.begin(write=True)
        txn.put(b"k", b"v", db=db)
        cursor = txn.cursor(db)
        assert cursor.first()
        ahead = cursor.iternext()
        getattr(txn, end)()
        calls += [cursor.key, cursor.item, cursor.first, cursor.next, cursor.iternext]
        calls += [lambda cursor=cursor: cursor.set_range(b"a"), lambda ahead=ahead: next(ahead)]
        calls += [lambda cursor=cursor: cursor.putmulti([(b"k", b"v")]), txn.commit, txn.cursor]
        calls += [lambda txn=txn: txn.get(b"k"), lambda txn=txn: txn.put(b"k", b"v")]
        calls += [lambda txn=txn: txn.drop(db), lambda txn=txn: txn.delete(b"k"), txn.stat]
        cursor.close()
        txn.abort()
    reader = env.begin()
    env.close()
    env.close()
    calls += [lambda: reader.get(b"k", db=db), env.begin, env.stat, env.info, env.sync]
    calls += [lambda: env.open_db(b"a"), lambda: env.set_mapsize(2**27), reader.commit]
    for call in calls:
        with pytest.raises(binding.Error):
            call()
    reader.abort()


def test_a_cursor_tells_what_is_under_it_now(binding: Any, env: Any) -> None:
    """Where others change the entry that it is at, in the same transaction or inside of it."""
    with env.begin(write=True) as txn:
        for key in (b"a", b"b", b"c"):
            txn.put(key, b"old")
        cursor = txn.cursor()
        assert cursor.set_range(b"b")
        txn.delete(b"b")
        assert cursor.item() == (b"c", b"old")
        txn.put(b"c", b"new")
        assert cursor.item() == (b"c", b"new")
        with env.begin(write=True, parent=txn) as inside:
            inside.put(b"c", b"newer")
        assert cursor.set_range(b"c")
        assert cursor.value() == b"newer"
        txn.delete(b"c")
        assert (cursor.key(), cursor.value()) == (b"", b"")


def test_what_is_of_something_keeps_it(binding: Any, tmp_path: Path) -> None:
    """An environment, a transaction and a cursor that nobody names any more but what is of them."""
    env = binding.Environment(str(tmp_path / "e"), map_size=2**26)
    with env.begin(write=True) as txn:
        txn.put(b"k", b"v")
    ahead = env.begin().cursor().iternext()
    del env, txn
    gc.collect()
    assert list(ahead) == [(b"k", b"v")]
    del ahead
    gc.collect()
    with binding.Environment(str(tmp_path / "e"), map_size=2**26) as again:  # it was closed
        assert again.stat()["entries"] == 1
        again.begin(write=True).put(b"l", b"v")  # collected: aborted
        gc.collect()
        with again.begin(write=True) as txn:
            assert txn.get(b"l") is None


def test_one_folder_is_opened_once(binding: Any, env: Any, tmp_path: Path) -> None:
    """LMDB's locks are the process's: closing a second one would free those of the first."""
    os.symlink(tmp_path / "e", tmp_path / "other")
    with pytest.raises(binding.Error, match="already open"):
        binding.Environment(str(tmp_path / "other"))
    env.close()
    binding.Environment(str(tmp_path / "other")).close()


def test_handles_of_another_environment_are_refused(binding: Any, env: Any, tmp_path: Path) -> None:
    """A database's number means another one there."""
    with binding.Environment(str(tmp_path / "f"), max_dbs=2) as other:
        db = other.open_db(b"a")
        with env.begin(write=True) as txn:
            for call in (txn.get, txn.delete):
                with pytest.raises(binding.Error, match="another environment"):
                    call(b"k", db=db)
            with pytest.raises(binding.Error, match="another environment"):
                txn.cursor(db)
            with pytest.raises(binding.Error, match="another environment"):
                other.begin(parent=txn, write=True)


def test_an_interrupt_while_entries_are_given_leaves_nothing(binding: Any, env: Any) -> None:
    """Those before it were put, and go with the transaction; the next one can begin."""

    def given() -> Iterator[tuple[bytes, bytes]]:
        yield from ENTRIES[:1500]
        raise KeyboardInterrupt

    def put() -> None:
        with env.begin(write=True) as txn:
            try:
                txn.cursor().putmulti(given())
            finally:
                counts.append(txn.stat()["entries"])

    counts: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        put()
    assert counts == [1500]
    with env.begin(write=True) as txn:
        assert txn.stat()["entries"] == 0


@pytest.mark.parametrize("bad", [(b"k",), [b"k", b"v"], ("k", b"v"), (b"k", 5), (b"k", None)])
def test_entries_of_another_shape_are_refused(binding: Any, env: Any, bad: Any) -> None:
    """Those before are in the transaction."""
    with env.begin(write=True) as txn, txn.cursor() as cursor:
        with pytest.raises(TypeError):
            cursor.putmulti([*ENTRIES[:10], bad])
        assert txn.stat()["entries"] == 10


def test_a_map_that_is_full_says_so_and_grows(binding: Any, tmp_path: Path) -> None:
    """The transaction is aborted, the map grown, and all is put again."""
    with binding.Environment(str(tmp_path / "e"), map_size=40960, max_spare_txns=1) as env:
        with env.begin() as reader:
            assert reader.get(b"k") is None
        txn = env.begin(write=True)
        with pytest.raises(binding.Error, match="active"):
            env.set_mapsize(2**22)
        with pytest.raises(binding.MapFullError, match="map_size"):
            txn.cursor().putmulti(ENTRIES)
        txn.abort()
        reader = env.begin()
        env.set_mapsize(2**22)
        with pytest.raises(binding.Error):
            reader.get(b"k")
        with env.begin(write=True) as txn:
            assert txn.cursor().putmulti(ENTRIES, append=True) == (3000, 3000)


def test_a_second_writer_waits_and_others_go_on(binding: Any, env: Any) -> None:
    """A thread that waits to write holds up none that does not."""
    begun, order = threading.Event(), []

    def write() -> None:
        begun.set()
        with env.begin(write=True) as txn:
            order.append(txn.get(b"k"))

    with env.begin(write=True) as txn:
        thread = threading.Thread(target=write)
        thread.start()
        begun.wait()
        txn.put(b"k", b"v")
        order.append(b"first")
    thread.join(60)
    assert order == [b"first", b"v"]
    with env.begin(write=True), pytest.raises(binding.Error, match="deadlock"):
        env.begin(write=True)


@compiled_only
def test_long_work_is_done_without_the_interpreters_lock(ours: Any) -> None:
    """Another thread runs meanwhile, though nobody is made to give the lock up."""
    turns, is_over = 0, threading.Event()

    def turn() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=turn)
    entries = [(b"%06d" % number, b"v" * 50) for number in range(100_000)]
    db, kernel = ours.open_db(b"a"), importlib.import_module("logweir.store.state.applykernel")
    table, whole = Memtable(), Memtable()
    for key, value in entries:
        table.put(key, value)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        with ours.begin(write=True) as txn:
            seen = []
            for call in (
                lambda: txn.cursor(db).putmulti(entries),
                lambda: kernel.apply(txn, db, table, 510, 0xC1),
                lambda: whole.merge(table),
                txn.commit,
            ):
                seen.append(-turns)
                call()
                seen[-1] += turns
    finally:
        is_over.set()
        sys.setswitchinterval(before)
        thread.join(60)
    assert all(seen), seen


@compiled_only
def test_a_write_transaction_belongs_to_its_thread(ours: Any) -> None:
    """LMDB's lock can be given up by no other: not by hand, nor where it is collected elsewhere."""
    made: list[Any] = []
    begun, may_end = threading.Event(), threading.Event()

    def other() -> None:
        made.append(ours.begin(write=True))
        made[0].put(b"k", b"lost")
        begun.set()
        may_end.wait(60)
        with ours.begin(write=True) as txn:  # ends the one that was collected
            made.append(txn.get(b"k"))

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(60)
    for end in (made[0].commit, made[0].abort):
        with pytest.raises(base.Error if base.BINDING == "compiled" else Exception, match="thread"):
            end()
    del end
    made.clear()
    gc.collect()
    with pytest.raises(Exception, match="has not ended it"):
        ours.begin(write=True)
    may_end.set()
    thread.join(60)
    assert made == [None]
    with ours.begin(write=True) as txn:
        txn.put(b"k", b"v")


@compiled_only
def test_a_database_whose_opening_was_aborted_is_refused(ours: Any) -> None:
    """Its number is given to the next one."""
    txn = ours.begin(write=True)
    lost = ours.open_db(b"lost", txn)
    txn.abort()
    with ours.begin(write=True) as txn:
        db = ours.open_db(b"other", txn)
        txn.put(b"k", b"v", db=db)
        with pytest.raises(Exception, match="closed"):
            txn.get(b"k", db=lost)
        txn.drop(db)
        with pytest.raises(Exception, match="closed"):
            txn.put(b"k", b"v", db=db)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@compiled_only
def test_a_child_can_do_its_parents_environment_no_harm(ours: Any) -> None:
    """Everything but an end is refused there; what it collects, or closes, stays the parent's."""
    db = ours.open_db(b"a")
    reader, txn = ours.begin(), ours.begin(write=True)
    txn.put(b"k", b"v", db=db)
    cursor = txn.cursor(db)
    readers = ours.info()["num_readers"]
    things = [reader, txn, cursor, ours]

    def use() -> str:
        refused = []
        for call in (ours.begin, ours.info, txn.commit, cursor.first, lambda: reader.get(b"k")):
            try:
                call()
            except Exception as error:
                refused.append(type(error).__name__)
        for thing in things[:3]:
            getattr(thing, "abort", getattr(thing, "close", None))()
        ours.close()
        things.clear()
        gc.collect()
        return ",".join(refused)

    assert in_child(use) == "Error,Error,Error,Error,Error"
    assert ours.info()["num_readers"] == readers
    assert cursor.set_range(b"k")
    txn.commit()
    assert reader.get(b"k", db=db) is None  # its view of before
    reader.abort()
    with ours.begin() as again:
        assert again.get(b"k", db=db) == b"v"


TORTURE = """
import gc, importlib, random, sys, tempfile, threading, time
sys.setswitchinterval(1e-5)
kernel = importlib.import_module(sys.argv[1])
entries = [(b"%05d" % i, b"v" * 60) for i in range(400)]
def use(env, db, number, until):
    rng, held = random.Random(number), []
    while time.monotonic() < until:
        try:
            what = rng.randrange(8)
            if what < 2:
                with env.begin(write=True) as txn, txn.cursor(db) as cursor:
                    cursor.putmulti(entries[rng.randrange(400):])
                    if what:
                        with env.begin(write=True, parent=txn) as inside:
                            held.append(inside.cursor(db))
                            inside.delete(entries[rng.randrange(400)][0], db=db)
            elif what < 5:
                txn = env.begin()
                cursor = txn.cursor(db)
                held += [txn, cursor, cursor.iternext()]
            elif what == 5 and held:
                one = rng.choice(held)
                getattr(one, "first", getattr(one, "commit", lambda: list(one)))()
            elif what == 6:
                del held[: rng.randrange(len(held) + 1)]
            elif not number:
                env.set_mapsize(rng.randrange(2**24, 2**25) // 4096 * 4096)
        except kernel.Error:
            pass
        if len(held) > 50:
            held.clear()
for turn in range(6):
    env = kernel.Environment(tempfile.mkdtemp(dir=sys.argv[2]), map_size=2**24, max_dbs=2,
                             max_spare_txns=2, sync=False, metasync=False)
    db = env.open_db(b"a")
    until = time.monotonic() + 0.5
    threads = [threading.Thread(target=use, args=(env, db, i, until)) for i in range(4)]
    for thread in threads: thread.start()
    if turn % 2:
        threads[0].join(0.2)
        env.close()
    for thread in threads: thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    env.close()
"""


IN_TURN = """
import importlib, sys, threading
sys.setswitchinterval(1e-5)
kernel = importlib.import_module(sys.argv[1])
env = kernel.Environment(sys.argv[2], sync=False, metasync=False)
refused = []
def write():
    for _ in range(1500):
        with env.begin(write=True) as txn:
            for _ in range(2000): pass  # so that the others run
            try:
                env.begin(write=True)
            except kernel.Error as error:
                refused.append("deadlock" in str(error))
            txn.put(b"k", b"v")
threads = [threading.Thread(target=write) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert refused == [True] * 6000
"""


@compiled_only
def test_writers_in_turn_know_who_writes(tmp_path: Path) -> None:
    """One that ends while the next one has LMDB's lock already does not take its place away; in a
    process of its own, for who asks for that lock twice waits for ever (in py-lmdb, too)."""
    run = subprocess.run(
        [sys.executable, "-c", IN_TURN, "logweir.store.state.lmdbkernel", tmp_path / "e"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (run.returncode, run.stderr) == (0, "")


@compiled_only
def test_threads_that_use_one_environment_at_once_end_in_errors_only(tmp_path: Path) -> None:
    """Also while one closes or resizes it; in a process of its own, for a signal would end it."""
    run = subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-c",
            TORTURE,
            "logweir.store.state.lmdbkernel",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_only_one_lmdb_is_loaded() -> None:
    """The one that `base` says, and py-lmdb where that is wanted."""
    program = (
        "import sys; from logweir.store.state import base\n"
        "ours = 'logweir.store.state.lmdbkernel'\n"
        "print(base.BINDING, 'lmdb' in sys.modules, ours in sys.modules)"
    )
    outputs = []
    for wanted in ("", "py-lmdb"):
        env = {**os.environ, "LOGWEIR_LMDB": wanted}
        run = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True
        )
        outputs.append(run.stdout.strip())
    assert outputs[1] == "py-lmdb True False"
    assert outputs[0] in ("compiled False True", "py-lmdb True False")


REFUSED = """
import json, sys
from logweir.store.state import base
found = {}
for folder in sys.argv[1:]:
    try:
        with base.Environment(folder, max_dbs=4) as env, env.begin() as txn:
            found[folder] = len(list(txn.cursor()))
    except base.Error as error:
        found[folder] = "refused"
print(json.dumps(found))
"""


def test_both_refuse_the_same_files(binding: Any, env: Any, tmp_path: Path) -> None:
    """Also one of LMDB 1.0, which py-lmdb can open; and neither makes such a file."""
    env.open_db(b"a")
    env.close()
    whole = (tmp_path / "e" / "data.mdb").read_bytes()
    page = os.sysconf("SC_PAGE_SIZE")
    files = {
        "whole": whole,
        "empty": b"",
        "noise": b"\xa5" * len(whole),
        "zeros": bytes(len(whole)),
        "short": whole[:100],
        "version": whole.replace(b"\xde\xc0\xef\xbe\1", b"\xde\xc0\xef\xbe\3"),
        "magic": whole.replace(b"\xde\xc0\xef\xbe", b"\xde\xc0\xef\xbf"),
        "no meta": bytes(2 * page) + whole[2 * page :],
    }
    expected = {"whole": 1, "empty": 0}
    found = []
    for wanted in ("", "py-lmdb"):
        folders = {name: tmp_path / (wanted or "chosen") / name for name in files}
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            (folder / "data.mdb").write_bytes(files[name])
        command = [sys.executable, "-c", REFUSED, *map(str, folders.values())]
        changed = {"LOGWEIR_LMDB": wanted, "LMDB_DEFAULT_LIB_VERSION": "1"}
        run = subprocess.run(
            command, env={**os.environ, **changed}, capture_output=True, text=True, check=True
        )
        said = json.loads(run.stdout)
        found.append({name: said[str(folder)] for name, folder in folders.items()})
        assert (folders["empty"] / "data.mdb").read_bytes()[16:24] == b"\xde\xc0\xef\xbe\1\0\0\0"
    assert found[0] == {name: expected.get(name, "refused") for name in files}
    assert found[1] == found[0]
