"""Full, read-only and odd disks and files: a typed error with place and hint, nothing lost."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.logs import INSTANCE, SPACE_ROW, insert, transaction, write_snapshot
from support.places import few_files, mounted, remount_read_only

import logweir
from logweir.errors import ConfigError, RecoveryRefused, WalError, WriteFailed
from logweir.recovery import RecoveryReport, examine, plan, repair, replay
from logweir.recovery.faults import SimFileSystem
from logweir.wal.damage import DamageKind
from logweir.wal.filesystem import OS, OsFileSystem
from logweir.wal.newfile import check_output
from logweir.wal.reader import WalReader
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock
from logweir.wal.writer import WalWriter

DISK_BYTES = 512 * 1024
LOG = f"{0:020d}.xlog"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a MiB."""
    with mounted(tmp_path / "small", DISK_BYTES) as folder:
        yield folder


def rows(lsn: int, size: int = 50) -> bytes:
    """A transaction of one row with bytes that do not compress."""
    body = lsn.to_bytes(4, "big") + os.urandom(size - 4)
    return transaction(lsn, [insert(512, [lsn, body])])


def lsns(report: RecoveryReport) -> list[int]:
    """The rows that opening would apply."""
    return [
        batch.block.columns.lsn[i]
        for batch in replay(plan(report))
        for i in range(batch.first, batch.last)
    ]


def open_writer(folder: Path) -> WalWriter:
    """As a store does."""
    opened = plan(examine(folder))
    opened.prepare()
    return WalWriter(folder, INSTANCE, opened.append_point)


def fill(writer: WalWriter, size: int) -> tuple[int, WriteFailed]:
    """Write and sync rows until one fails. Returns the last lsn that did not."""
    lsn = writer.vclock.lsn(1)
    while True:
        try:
            writer.write([rows(lsn + 1, size)], VClock({1: lsn + 1}))
        except WriteFailed as error:
            return lsn, error
        writer.sync()
        lsn += 1


@pytest.mark.parametrize("size", [300, 5000, 60_000])
def test_a_full_disk_loses_nothing_and_writing_goes_on_when_there_is_room(
    small_disk: Path, size: int
) -> None:
    """ENOSPC: the batch is refused whole, the log stays whole, later batches are taken."""
    write_snapshot(small_disk, {280: [SPACE_ROW]})
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(100_000))
    writer = open_writer(small_disk)
    lsn, error = fill(writer, size)
    assert lsn > 3
    assert error.errno == errno.ENOSPC
    assert error.path == str(small_disk / LOG)
    assert "disk is full" in error.hint
    assert not writer.is_poisoned
    assert lsns(examine(small_disk)) == list(range(1, lsn + 1))
    ballast.unlink()
    writer.write([rows(lsn + 1, size)], VClock({1: lsn + 1}))
    writer.sync()
    writer.close()
    report = examine(small_disk)
    assert report.ok
    assert lsns(report) == list(range(1, lsn + 2))


def test_a_full_disk_leaves_no_half_snapshot(small_disk: Path) -> None:
    """The snapshot is refused, its temporary file is gone, the folder opens as before."""
    write_snapshot(small_disk, {280: [SPACE_ROW]})
    writer = SnapshotWriter(small_disk, VClock({1: 5}), INSTANCE, timestamp=0.0)
    much = (b"\xc5\xff\xff" + os.urandom(65535) for _ in range(100))
    with pytest.raises(WalError, match="no space left") as caught:
        writer.write(512, much)
    assert caught.value.hint
    writer.abort()
    report = examine(small_disk)
    assert report.ok
    assert report.others == ()


def test_a_full_disk_stops_a_repair_with_an_error(small_disk: Path, tmp_path: Path) -> None:
    """What it wrote so far is no store that anybody could take for whole."""
    folder = tmp_path / "log"
    folder.mkdir()
    write_snapshot(folder, {280: [SPACE_ROW]})
    writer = open_writer(folder)
    for lsn in range(1, 30):
        writer.write([rows(lsn, 60_000)], VClock({1: lsn}))
    writer.close()
    with pytest.raises(WriteFailed, match="no space left"):
        repair(folder, small_disk / "new")
    assert examine(small_disk / "new").snapshot is None
    assert lsns(examine(folder)) == list(range(1, 30))


SHORT_WRITE = """
import sys
import tempfile
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from disk.test_bad_places import VClock, fill, open_writer, rows
writer = open_writer(Path(sys.argv[1]))
for number in range(1, 9):
    writer.write([rows(number, 5000)], VClock({1: number}))
lsn, error = fill(writer, 60_000)
assert error.errno == 27, error
assert not writer.is_poisoned
writer.close()
print(lsn, error.hint)
"""


def test_a_write_that_the_system_cuts_short_is_taken_back(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the kernel writes a part, then refuses; the part is cut off again, also in the
    file that is begun for it."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        [sys.executable, "-c", SHORT_WRITE, str(tmp_path), *filter(None, sys.path)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    last, hint = done.stdout.split(" ", 1)
    assert "ulimit" in hint
    assert int(last) == 8
    assert lsns(examine(tmp_path)) == list(range(1, 9))
    assert (tmp_path / LOG).stat().st_size > 8 * 5000
    assert max(one.stat().st_size for one in tmp_path.iterdir()) <= 50_000


def test_a_read_only_folder_can_be_examined_and_not_written(small_disk: Path) -> None:
    """Reading needs no right to write; opening for writing names the folder and says why not."""
    write_snapshot(small_disk, {280: [SPACE_ROW]})
    writer = open_writer(small_disk)
    writer.write([rows(1)], VClock({1: 1}))
    writer.abandon()
    remount_read_only(small_disk)
    report = examine(small_disk)
    assert report.ok
    assert lsns(report) == [1]
    with pytest.raises(WalError, match="read-only") as caught:
        WalWriter(small_disk, INSTANCE, report.append_point)
    assert caught.value.path == str(small_disk / LOG)
    assert caught.value.hint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a snapshot and a log of five rows."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    writer = open_writer(tmp_path)
    for lsn in range(1, 6):
        writer.write([rows(lsn)], VClock({1: lsn}))
    writer.close()
    return tmp_path


ODD = {
    "zero length": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("Dear reader,\n\nthis is a letter.\n"),
    "other binary": lambda path: path.write_bytes(b"\x7fELF" + os.urandom(5000)),
    "zeros": lambda path: path.write_bytes(bytes(5000)),
    "xlog that is a snapshot": lambda path: path.write_bytes(
        (path.parent / f"{0:020d}.snap").read_bytes()
    ),
    "directory": lambda path: path.mkdir(),
    "symbolic link to itself": lambda path: path.symlink_to(path.name),
    "symbolic link to nothing": lambda path: path.symlink_to("absent"),
    "named pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("what", ODD)
def test_anything_else_in_the_place_of_a_log_is_named_and_refused(folder: Path, what: str) -> None:
    """Never a traceback, never a hang, never taken for an empty log."""
    path = folder / f"{5:020d}.xlog"
    ODD[what](path)
    if what == "symbolic link to nothing":
        assert lsns(examine(folder)) == [1, 2, 3, 4, 5]
        return
    report = examine(folder)
    (damage,) = report.blocking
    assert damage.file == str(path)
    assert damage.kind in (DamageKind.HEADER, DamageKind.UNREADABLE)
    assert damage.hint
    with pytest.raises(RecoveryRefused) as caught:
        plan(report)
    assert str(path) in str(caught.value)
    if what != "xlog that is a snapshot":
        with pytest.raises(WalError) as alone:
            WalReader(path)
        assert alone.value.path == str(path)
        assert alone.value.hint


def test_a_log_that_may_not_be_read_is_refused_even_with_force(folder: Path) -> None:
    """Forcing would give up rows that a `chmod` brings back."""
    path = folder / LOG
    path.chmod(0)
    if os.access(path, os.R_OK):
        pid = os.fork()
        if pid == 0:  # root reads everything, so somebody else looks
            code = 1
            try:
                for place in (folder, *folder.parents[:3]):
                    place.chmod(0o755)
                os.setuid(65534)
                code = 0 if refused_with_permission(folder) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    else:
        assert refused_with_permission(folder)


def refused_with_permission(folder: Path) -> bool:
    """Whether the folder is refused for a file that may not be read."""
    report = examine(folder)
    with pytest.raises(RecoveryRefused, match="permission denied") as caught:
        plan(report, force=True)
    return "right" in caught.value.hint


def test_too_many_open_files_is_an_error_with_a_hint(folder: Path) -> None:
    """EMFILE while examining: nothing is taken for missing or empty."""
    with few_files(0), pytest.raises(WalError, match="too many open files") as caught:
        plan(examine(folder))
    assert "ulimit" in caught.value.hint
    assert lsns(examine(folder)) == [1, 2, 3, 4, 5]


def test_a_folder_that_is_a_file_or_a_loop_is_an_error(tmp_path: Path) -> None:
    """The path, and what to do."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "loop", "absent"):
        with pytest.raises(WalError) as caught:
            examine(tmp_path / name)
        assert caught.value.path == str(tmp_path / name)
        assert caught.value.hint


def test_the_simulated_disk_behaves_as_the_real_one(tmp_path: Path) -> None:
    """Same errors and same contents for the calls that the log makes."""
    logs = []
    for disk, root in ((OS, tmp_path / "real"), (SimFileSystem(), Path("/sim"))):
        logs.append(script(disk, root))
    assert logs[0] == logs[1]


def script(disk, root: Path) -> list[object]:  # type: ignore[no-untyped-def]
    """Calls of every kind; what they returned or raised."""
    said: list[object] = []

    def attempt(call, *args):  # type: ignore[no-untyped-def]
        try:
            result = call(*args)
        except OSError as error:
            said.append(errno.errorcode[error.errno or 0])
            return None
        said.append(result if isinstance(result, int | bytes | list | None) else "ok")
        return result

    attempt(disk.list_directory, root)
    attempt(disk.create, root / "a")
    attempt(disk.make_directory, root / "sub")
    attempt(disk.make_directory, root)
    attempt(disk.make_directory, root / "sub")
    attempt(disk.make_directory, root)
    file = attempt(disk.create, root / "a")
    attempt(file.write, [b"hello", b" ", b"world"])
    attempt(file.truncate, 7)
    attempt(file.write, [b"!"])
    attempt(file.size)
    attempt(file.sync)
    attempt(file.close)
    attempt(file.close)
    attempt(disk.create, root / "a")
    attempt(disk.open_append, root / "absent")
    again = attempt(disk.open_append, root / "a")
    attempt(again.write, [b"?"])
    attempt(again.close)
    reader = attempt(disk.open_read, root / "a")
    for count, offset in ((100, 0), (3, 2), (5, 100), (0, 0)):
        attempt(reader.read, count, offset)
    attempt(reader.size)
    attempt(disk.rename, root / "absent", root / "b")
    attempt(disk.rename, root / "a", root / "b")
    attempt(reader.read, 5, 0)
    attempt(reader.close)
    attempt(disk.create, root / "c").close()
    attempt(disk.rename, root / "b", root / "c")
    attempt(disk.list_directory, root)
    attempt(disk.sync_directory, root)
    attempt(disk.sync_directory, root / "absent")
    attempt(disk.open_read, root)
    attempt(disk.list_directory, root / "c")
    attempt(disk.remove, root / "c")
    attempt(disk.remove, root / "c")
    attempt(disk.list_directory, root)
    folder_script(disk, root, attempt)
    return said


def folder_script(disk, root: Path, attempt) -> None:  # type: ignore[no-untyped-def]
    """Calls about folders, also of who holds one that is renamed and replaced."""
    sub, other = root / "sub", root / "other"
    attempt(disk.create, sub / "x").close()
    attempt(disk.make_directory, sub / "x")
    attempt(disk.make_directory, sub / "x" / "y")
    attempt(disk.remove, sub)
    attempt(disk.remove_directory, sub)
    attempt(disk.remove_directory, sub / "x")
    attempt(disk.remove_directory, root / "absent")
    attempt(disk.remove_tree, root / "absent")
    attempt(disk.make_directory, other)
    attempt(disk.rename, sub, other)
    attempt(disk.rename, other / "x", sub)
    attempt(disk.list_directory, other)
    attempt(disk.list_directory, sub)
    with disk.lock(other / "lock") as held:
        attempt(held.make_directory, other / "deep")
        attempt(held.create, other / "deep" / "one").close()
        attempt(disk.rename, other, root / "moved")
        attempt(held.create, other / "new")
        attempt(held.list_directory, other / "deep")
        attempt(disk.make_directory, other)
        attempt(held.create, other / "new")
        attempt(held.create, other / "deep" / "new")
        attempt(held.rename, other / "deep" / "one", other / "two")
        attempt(held.sync_directory, other)
        attempt(disk.list_directory, other)
        attempt(disk.remove_directory, other)
        attempt(disk.rename, root / "moved", other)
        attempt(held.create, other / "new").close()
        attempt(held.remove, other / "two")
        attempt(disk.remove_tree, other)
        attempt(held.create, other / "late")
    attempt(disk.list_directory, root)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder above which others may look: each run of pytest takes that from its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["report", "changes"])
def test_a_file_is_made_in_a_folder_that_may_not_be_listed(name: str, outside: Path) -> None:
    """Such as one where others drop what they have; a name that is taken is refused there, too."""
    store, place = outside / "store", outside / "place"
    with logweir.open(store) as log:
        log.create_space("s", [("id", "unsigned")])
        log.insert("s", [1])
    place.mkdir()
    place.chmod(0o333)
    ending, words = {"report": ("html", ()), "changes": ("csv", ("--space", "s"))}[name]
    arguments = [name, str(store), *words, "-o", str(place / f"a.{ending}")]
    code = (
        "import os, sys\n"
        "from typer.testing import CliRunner\n"
        "from logweir.pipeline import onefile\n"
        "from logweir.tools.cli import main\n"
        "main.load_command(sys.argv[1])\n"
        "CliRunner().invoke(main.app, [*sys.argv[1:-1], os.devnull + '/no'])\n"  # imports all
        "if os.geteuid() == 0:\n    os.seteuid(65534)\n"
        "assert not os.access(os.path.dirname(sys.argv[-1]), os.R_OK, effective_ids=True)\n"
        "for expected in (0, 2):\n"
        "    done = CliRunner().invoke(main.app, sys.argv[1:])\n"
        "    assert done.exit_code == expected, done.output\n"
        "assert 'is there already' in done.output"
    )
    outside.chmod(0o755)
    for one in (store, *store.rglob("*")):
        one.chmod(0o777)
    program = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    place.chmod(0o755)
    assert [one.name for one in place.iterdir()] == [f"a.{ending}"]


class Folding(OsFileSystem):
    """A disk that takes letters of both cases for the same, and keeps the name that was given
    first."""

    def _at(self, path: Path) -> tuple[Path, int | None]:
        found = (one for one in path.parent.iterdir() if one.name.lower() == path.name.lower())
        return super()._at(next(found, path))


def test_a_name_that_the_disk_takes_for_anothers_is_taken(tmp_path: Path) -> None:
    """The other's file is not replaced."""
    check_output(tmp_path / "Report.html", Folding())
    (tmp_path / "report.HTML").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        check_output(tmp_path / "Report.html", Folding())
    check_output(tmp_path / "Report.html")  # this disk tells them apart
