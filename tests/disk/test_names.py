"""Names on the real disk: folders that are renamed while they are open, links, rights, syncs."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.errors import DirectoryLocked, WalError, WriteFailed
from logweir.recovery import repair, restore
from logweir.store.state.state import State
from logweir.wal.filesystem import OS, FileSystem, OsFileSystem

FORMAT = [("id", "unsigned"), ("value", "string")]
FILE_BYTES = 8192


def filled(folder: Path, first: int = 0, **options: object) -> logweir.Log:
    """A store with a few log files."""
    log = logweir.open(folder, wal_max_size=FILE_BYTES, checkpoint_interval=0.0, **options)  # type: ignore[arg-type]
    if first == 0:
        log.create_space("t", FORMAT)
    insert(log, first, first + 300)
    return log


def insert(log: logweir.Log, first: int, end: int) -> int:
    """Insert until the disk refuses. Returns the first number that was not acknowledged."""
    for number in range(first, end):
        try:
            log.insert("t", (number, "x" * 50))
        except WriteFailed:
            return number
    return end


def snapshot_of(folder: Path) -> dict[str, bytes]:
    """Names and contents of a folder's logs and snapshots."""
    return {one.name: one.read_bytes() for one in folder.glob("0*")}


@pytest.fixture(params=["replaced", "gone", "link"])
def moved(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[logweir.Log, Path]]:
    """An open store whose folder was renamed, and perhaps replaced; and where it is now."""
    folder, place = tmp_path / "g", tmp_path / "moved"
    log = filled(folder, checkpoint_count=1)
    folder.rename(place)
    if request.param == "replaced":
        filled(folder).close()
    elif request.param == "link":
        filled(tmp_path / "third").close()
        folder.symlink_to(tmp_path / "third")
    yield log, place
    log.close()


def test_a_renamed_folder_takes_nothing_into_a_new_file(moved: tuple[logweir.Log, Path]) -> None:
    """A typed error that says why, and never a file in the folder that has its name now."""
    log, place = moved
    folder = log.path
    before = snapshot_of(folder)
    stopped = insert(log, 300, 900)
    assert 300 < stopped < 600
    with pytest.raises(WriteFailed, match="renamed, removed or replaced") as caught:
        log.insert("t", (stopped, "x"))
    assert caught.value.errno == errno.ESTALE
    assert "bring the folder back" in caught.value.hint
    for call in (log.snapshot, lambda: log.retain("somebody", log.vclock)):
        with pytest.raises(WriteFailed, match="renamed, removed or replaced"):
            call()
    assert log.get("t", 5) == (5, "x" * 50)
    assert len(list(log.rows())) >= stopped
    log.close()
    assert snapshot_of(folder) == before
    assert not (folder / "logweir.followers").exists()
    with logweir.open(place) as again:
        assert again.count("t") == stopped
    if folder.exists():
        with logweir.open(folder) as other:
            assert other.count("t") == 300


def test_old_files_are_removed_in_the_folder_that_was_opened(tmp_path: Path) -> None:
    """Files of the same names in a folder that took its name stay."""
    folder, place = tmp_path / "g", tmp_path / "moved"
    with filled(folder, checkpoint_count=1) as log:
        shutil.copytree(folder, tmp_path / "twin")
        with log.backup():
            log.snapshot()  # everything stays for the backup
        folder.rename(place)
        (tmp_path / "twin").rename(folder)
        before = snapshot_of(folder)
        assert log.inner.collect()
        assert snapshot_of(folder) == before
        names = set(before) - set(snapshot_of(place))
        assert len(names) > 2


def test_a_folder_that_comes_back_is_gone_on_with(tmp_path: Path) -> None:
    """Nothing was lost by the refusal: writing goes on behind it."""
    folder, place = tmp_path / "g", tmp_path / "moved"
    with filled(folder) as log:
        folder.rename(place)
        stopped = insert(log, 300, 900)
        assert stopped < 900
        place.rename(folder)
        assert insert(log, stopped, 900) == 900
    with logweir.open(folder) as log:
        assert log.count("t") == 900


def test_a_removed_folder_takes_nothing_into_a_new_file(tmp_path: Path) -> None:
    """Until the open file is full what is written goes there, then it is refused."""
    folder = tmp_path / "g"
    log = filled(folder)
    shutil.rmtree(folder)
    assert insert(log, 300, 900) < 600
    with pytest.raises(WriteFailed, match="renamed, removed or replaced"):
        log.snapshot()
    log.close()
    assert not folder.exists()


def test_a_store_opened_by_a_relative_name_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another current folder, as a daemon takes one, is none of the store's business."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with filled(Path("g")) as log:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert insert(log, 300, 900) == 900
        log.snapshot()
        log.retain("somebody", log.vclock)
        for number in range(200):  # the state is opened again where it must have more databases
            log.create_space(f"s{number}", FORMAT)
    assert not any((tmp_path / "elsewhere").iterdir())
    with logweir.open(tmp_path / "g") as log:
        assert log.count("t") == 900


def test_a_state_in_a_renamed_folder_is_not_opened_anew(tmp_path: Path) -> None:
    """Making room for more databases opens LMDB again, by name."""
    folder = tmp_path / "g"
    log = filled(folder)
    folder.rename(tmp_path / "moved")
    filled(folder).close()
    with pytest.raises(WriteFailed, match="renamed, removed or replaced"):  # noqa: PT012
        for number in range(200):
            log.create_space(f"s{number}", FORMAT)
    assert log.count("t") == 300
    log.close()
    with logweir.open(folder) as other:
        assert other.count("t") == 300
        assert not any(space.name.startswith("s0") for space in other.schema if space.id >= 512)


# --- links and other files in the place of ours ---------------------------------------------------


def victim_linked(place: Path) -> Path:
    """A file of somebody else that `place` is a link to."""
    victim = place.parent.parent / "victim"
    victim.write_text("secret")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(victim)
    return victim


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """The file that it leads to is left as it is."""
    victim = victim_linked(tmp_path / "g" / "logweir.lock")
    with pytest.raises(WalError, match="symbolic link"):
        logweir.open(tmp_path / "g")
    assert victim.read_text() == "secret"
    victim.unlink()
    with pytest.raises(WalError, match="symbolic link"):  # nor is a new one made
        logweir.open(tmp_path / "g")
    assert not victim.exists()


@pytest.mark.parametrize(
    ("make", "said"), [(os.mkfifo, "not a regular file"), (os.mkdir, "is a directory")]
)
def test_a_lock_file_that_is_no_file_is_refused(
    make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    """At once: nobody waits for the other end of a pipe, and nothing is cut or written."""
    make(tmp_path / "logweir.lock")
    with pytest.raises(WalError, match=rf"logweir\.lock: {said}") as caught:
        logweir.open(tmp_path)
    assert caught.value.hint


def test_who_holds_the_folder_is_not_read_through_a_link(tmp_path: Path) -> None:
    """Nor from a pipe: the folder is locked all the same."""
    with OS.lock(tmp_path / "logweir.lock"):
        (tmp_path / "logweir.lock").unlink()
        os.mkfifo(tmp_path / "logweir.lock")
        with pytest.raises(DirectoryLocked) as caught, OS.lock(tmp_path / "logweir.lock"):
            pass
        assert caught.value.pid == 0
        (tmp_path / "logweir.lock").unlink()


def test_a_log_that_is_a_link_is_read_but_not_written(tmp_path: Path) -> None:
    """Going on in it would write into a file of another folder."""
    folder = tmp_path / "g"
    log = filled(folder)
    log.inner.abandon()
    newest = max(folder.glob("*.xlog"))
    newest.rename(tmp_path / "elsewhere")
    newest.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    assert sum(1 for _ in logweir.read(folder))
    with pytest.raises(WalError, match="symbolic link"):
        logweir.open(folder)
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb", "epoch", "epoch.new"])
def test_a_link_in_the_state_leads_nobody_to_write(name: str, tmp_path: Path) -> None:
    """LMDB follows links, so it is not let near one: the state is made anew."""
    with filled(tmp_path / "g"):
        pass
    victim = tmp_path / "victim"
    place = tmp_path / "g" / "state" / name
    data = place.read_bytes() if place.exists() else b"secret"
    victim.write_bytes(data)
    place.unlink(missing_ok=True)
    place.symlink_to(victim)
    with logweir.open(tmp_path / "g") as log:
        assert log.count("t") == 300
        log.insert("t", (10_000, "new"))
    assert victim.read_bytes() == data
    assert not place.is_symlink()


@pytest.mark.parametrize("name", ["logweir.followers.new", "00000000000000000302.snap.inprogress"])
def test_a_link_in_the_place_of_a_new_file_is_replaced(name: str, tmp_path: Path) -> None:
    """A temporary name is nobody's: what is there goes, not what it leads to."""
    with filled(tmp_path / "g") as log:
        victim = victim_linked(tmp_path / "g" / name)
        log.retain("somebody", log.vclock)
        log.snapshot()
        assert victim.read_text() == "secret"


# --- rights ---------------------------------------------------------------------------------------

MODES = """
import os, sys
from pathlib import Path
from typing import Any
os.umask(int(sys.argv[1], 8))
import logweir
from logweir.recovery import repair, restore
root = Path(sys.argv[2])
with logweir.open(root / "new" / "store") as log:
    log.create_space("t", [("id", "unsigned")])
    log.insert("t", (1,))
    log.retain("somebody", log.vclock)
    log.snapshot()
    log.insert("t", (2,))
restore(root / "new" / "store", root / "restored")
repair(root / "new" / "store", root / "repaired")
"""


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_files_and_folders_have_the_same_rights_whatever_the_umask(
    umask: str, tmp_path: Path
) -> None:
    """0640 and 0750: of logs, snapshots, lock, followers, the state, of copies."""
    subprocess.run([sys.executable, "-c", MODES, umask, str(tmp_path)], check=True)
    found = {
        str(one.relative_to(tmp_path)): one.stat().st_mode & 0o777 for one in tmp_path.rglob("*")
    }
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (0o750 if (tmp_path / name).is_dir() else 0o640)
    }
    assert not wrong
    assert {"new", "new/store/state/epoch", "new/store/state/data.mdb"} <= set(found)
    assert {"new/store/logweir.lock", "new/store/logweir.followers"} <= set(found)
    assert {name.split("/")[0] for name in found} == {"new", "restored", "repaired"}


def test_a_folder_keeps_the_bit_that_hands_its_group_down(tmp_path: Path) -> None:
    """What a folder takes over from its parent is not of the umask."""
    tmp_path.chmod(0o2775)
    OS.make_directory(tmp_path / "sub")
    assert (tmp_path / "sub").stat().st_mode & 0o7777 == 0o2750


# --- the file layer -------------------------------------------------------------------------------


def test_a_disk_that_takes_no_bytes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying again for ever would hang every writer."""
    file = OS.create(tmp_path / "a")
    real, left = os.pwritev, [3]

    def pwritev(fd: int, parts: list[bytes], offset: int) -> int:
        taken, left[0] = left[0], 0
        return real(fd, [b"".join(parts)[:taken]], offset) if taken else 0

    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(OSError, match="takes no more bytes"):
        file.write([b"abc", b"def"])
    assert file.size() == 0  # what came is overwritten, if it is not cut off
    left[0] = 0
    with pytest.raises(OSError, match="takes no more bytes"):
        file.write([b"x"])
    monkeypatch.undo()
    file.write([])
    file.write([b""])
    file.write([b"defg"])
    file.close()
    assert (tmp_path / "a").read_bytes() == b"defg"


@pytest.mark.parametrize(
    ("opening", "looks"), [("open_read", 1), ("open_append", 1), ("open_append", 2)]
)
def test_a_file_that_cannot_be_looked_at_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: str, looks: int
) -> None:
    """No descriptor is left open behind the error, whichever look at it fails."""
    (tmp_path / "a").write_bytes(b"x")
    real, left = os.fstat, [looks]

    def failing(fd: int) -> os.stat_result:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd)

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", failing)
        with pytest.raises(OSError, match="Input/output"):
            getattr(OS, opening)(tmp_path / "a")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_could_not_be_opened_is_given_free_as_by_a_close(tmp_path: Path) -> None:
    """Its lock file names nobody, and a child that is being forked meanwhile, which has copies of
    what is open, holds up nobody."""
    copies: list[int] = []

    class Forking(OsFileSystem):
        @contextlib.contextmanager
        def lock(self, path: Path) -> Iterator[FileSystem]:
            with super().lock(path) as held:
                for name in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(OSError):
                        if os.path.samefile(f"/proc/self/fd/{name}", path.parent):
                            copies.append(os.dup(int(name)))
                yield held

    logweir.open(tmp_path).close()
    snapshot = min(tmp_path.glob("*.snap"))
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[: len(whole) // 2])
    try:
        with pytest.raises(WalError):
            logweir.open(tmp_path, filesystem=Forking())
        assert copies
        assert (tmp_path / "logweir.lock").read_bytes() == b""
        snapshot.write_bytes(whole)
        logweir.open(tmp_path).close()
    finally:
        for copy in copies:
            os.close(copy)


def test_a_lock_file_that_cannot_be_emptied_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it hide what went wrong while the folder was held, which is free then."""
    lock = tmp_path / "logweir.lock"

    def failing(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def hold(error: Exception | None) -> None:
        with OS.lock(lock):
            monkeypatch.setattr(os, "ftruncate", failing)
            if error is not None:
                raise error

    hold(None)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="first"):
        hold(FileNotFoundError("first"))
    monkeypatch.undo()
    with OS.lock(lock):
        pass


def test_room_is_told_by_the_disk(tmp_path: Path) -> None:
    """What is left for this user; a folder that is not there is an error, which refuses nothing."""
    found = os.statvfs(tmp_path)
    free = OS.free_bytes(tmp_path)
    assert free is not None
    assert abs(free - found.f_bavail * found.f_frsize) < 2**32
    with pytest.raises(FileNotFoundError):
        OS.free_bytes(tmp_path / "absent")
    State(tmp_path / "absent").check_disk(2**80)


def test_copies_of_a_store_are_opened(tmp_path: Path) -> None:
    """Into folders several of whose parents are missing."""
    filled(tmp_path / "g").close()
    for copy in (restore, repair):
        to = tmp_path / copy.__name__ / "deep" / "copy"
        copy(tmp_path / "g", to)
        with logweir.open(to) as log:
            assert log.count("t") == 300


def test_folder_is_given_free_while_a_thread_is_about_to_open_a_file_in_it(tmp_path: Path) -> None:
    """Its descriptor has no other number's meaning then: what is opened is the file that was named,
    and not that of a folder that was opened meanwhile."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    held = OS.lock(ours / "logweir.lock")
    opened: list[int] = []

    class Between(type(Path())):  # type: ignore[misc]
        def is_relative_to(self, *other: Any) -> bool:
            return True

        def relative_to(self, *other: Any) -> Path:
            """What is done between looking the folder up and the call of the system."""
            if not opened:
                held.__exit__(None, None, None)
                while len(opened) < 4:
                    opened.append(os.open(theirs, os.O_RDONLY | os.O_DIRECTORY))
            return ours.joinpath("name").relative_to(*other)

    filesystem = held.__enter__()
    file = filesystem.open_read(Between(ours / "name"))
    try:
        assert file.read(100, 0) == b"ours"
        assert len(opened) == 4
        with OS.lock(ours / "logweir.lock"):
            pass
    finally:
        file.close()
        for fd in opened:
            os.close(fd)
