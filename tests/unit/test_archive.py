"""An archive in a folder: what it restores, what it refuses, and what it says of damage."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.archives import (
    DEFINITION,
    archived,
    catalog_of,
    contents,
    damage,
    fill,
    opened,
    rows,
    run,
    with_snapshots,
)
from support.icu import needs_icu

import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.fetch import drill, restore_archive
from logweir.archive.objects import FolderObjects
from logweir.errors import (
    ConfigError,
    CorruptFile,
    PositionUnavailable,
    WalError,
)
from logweir.recovery.faults.faulty import KINDS, WRITING, Fault, FaultyFileSystem
from logweir.wal.filesystem import OS

SAMPLES = Path(__file__).parents[1] / "data" / "tarantool"


def test_a_store_in_use_is_archived_to_the_last_row(tmp_path: Path) -> None:
    """Closed logs, the tail and the snapshot; what comes later with the next look."""
    with opened(tmp_path / "s") as log:
        fill(log, 100)
        archived(tmp_path / "s", tmp_path / "a")
        first = log.vclock
        fill(log, 7)
        assert archived(tmp_path / "s", tmp_path / "a").progress.objects > 0
        assert archived(tmp_path / "s", tmp_path / "a").progress.objects == 0
        last = log.vclock
    found = restore_archive(str(tmp_path / "a"), tmp_path / "r", verify=True)
    assert (found.vclock, found.verified) == (last, True)
    assert contents(tmp_path / "r") == rows(107)
    restore_archive(str(tmp_path / "a"), tmp_path / "older", at=first)
    assert contents(tmp_path / "older") == rows(100)


def test_every_transaction_is_a_restore_point(tmp_path: Path) -> None:
    """By its vclock, and by its time; also of what came in several tails."""
    points = []
    clock = [1_000_000.0]
    with opened(tmp_path / "s", clock=lambda: clock[0]) as log:
        for count in range(0, 40, 2):
            clock[0] += 10
            with log.transaction() as tx:
                tx.insert("t", (count, f"value {count}"))
                tx.insert("t", (count + 1, f"value {count + 1}"))
            points.append((log.vclock, clock[0], count + 2))
            if count % 8 == 0:
                archived(tmp_path / "s", tmp_path / "a")
            if count == 20:
                log.snapshot()
        archived(tmp_path / "s", tmp_path / "a")
    for vclock, time, count in points:
        for number, at in enumerate((vclock, time, time + 9.5)):
            to = tmp_path / f"{count}-{number}"
            found = restore_archive(str(tmp_path / "a"), to, at=at)
            assert (found.vclock, contents(to)) == (vclock, rows(count))
    inside = points[3][0].with_lsn(1, points[3][0].lsn(1) - 1)
    found = restore_archive(str(tmp_path / "a"), tmp_path / "in", at=inside)
    assert (found.vclock, found.is_exact) == (points[2][0], False)


def test_a_second_store_is_refused_by_name(tmp_path: Path) -> None:
    """Both instances are told, and nothing of the second is written."""
    for name in ("one", "two"):
        opened(tmp_path / name).close()
    archived(tmp_path / "one", tmp_path / "a")
    before = sorted(tmp_path.glob("a/*/*"))
    with pytest.raises(ConfigError, match=r"is of instance .*, not of .*"):
        archived(tmp_path / "two", tmp_path / "a")
    assert sorted(tmp_path.glob("a/*/*")) == before
    done = run("archive", tmp_path / "two", "--to", tmp_path / "a")
    assert done.exit_code == 2
    assert "a place of its own" in done.stderr


def test_a_store_that_was_set_back_is_refused(tmp_path: Path) -> None:
    """Its rows are other ones than those that are archived, and neither is lost."""
    with opened(tmp_path / "s") as log:
        fill(log, 5)
    shutil.copytree(tmp_path / "s", tmp_path / "back")
    with opened(tmp_path / "s") as log:
        fill(log, 5)
    archived(tmp_path / "s", tmp_path / "a")
    with pytest.raises(ConfigError, match="was set back"):
        archived(tmp_path / "back", tmp_path / "a")
    with opened(tmp_path / "back") as log:
        log.insert("t", (99, "another row"))
        fill(log, 60)
    with pytest.raises(ConfigError, match="was set back"):
        archived(tmp_path / "back", tmp_path / "a")
    restore_archive(str(tmp_path / "a"), tmp_path / "r")
    assert contents(tmp_path / "r") == rows(10)


def test_a_damaged_log_is_told_and_not_archived(tmp_path: Path) -> None:
    """Exit code 3, once; a later snapshot begins a new range of restore points."""
    with opened(tmp_path / "s") as log:
        fill(log, 200)
    logs = sorted((tmp_path / "s").glob("*.xlog"))
    damage(logs[1])
    done = run("archive", tmp_path / "s", "--to", tmp_path / "a")
    assert done.exit_code == 3
    assert f"{logs[1].name} at byte" in done.stderr
    assert logs[1].name not in catalog_of(tmp_path / "a").entries
    found = restore_archive(str(tmp_path / "a"), tmp_path / "r")
    assert contents(tmp_path / "r") == rows(found.vclock.lsn(1) - DEFINITION)
    shutil.rmtree(tmp_path / "r")
    with logweir.open(tmp_path / "s", force_recovery=True) as log:
        log.delete("t", 0)
        log.snapshot()
        left = log.select("t")
    assert run("archive", tmp_path / "s", "--to", tmp_path / "a").exit_code == 3
    assert len(catalog_of(tmp_path / "a").points()) == 2
    restore_archive(str(tmp_path / "a"), tmp_path / "r")
    assert contents(tmp_path / "r") == left
    wanted = found.vclock.with_lsn(1, found.vclock.lsn(1) + 1)
    with pytest.raises(PositionUnavailable, match="restores"):
        restore_archive(str(tmp_path / "a"), tmp_path / "no", at=wanted)


def test_damage_in_the_newest_log_is_told_by_a_single_look(tmp_path: Path) -> None:
    """It is not taken for a write that is under way."""
    with opened(tmp_path / "s") as log:
        fill(log, 20)
    (path,) = (tmp_path / "s").glob("*.xlog")
    damage(path, path.stat().st_size // 2)
    done = run("archive", tmp_path / "s", "--to", tmp_path / "a")
    assert done.exit_code == 3
    assert f"{path.name} at byte" in done.stderr


@pytest.mark.parametrize("how", ["damaged", "missing", "short"])
def test_an_object_that_is_not_whole_is_named_with_what_is_lost(how: str, tmp_path: Path) -> None:
    """A snapshot is passed over for an older one, which is told; a log ends what can be had."""
    with_snapshots(tmp_path / "s", tmp_path / "a", 2)
    data = tmp_path / "a" / "data"

    def spoil(path: Path) -> None:
        if how == "damaged":
            damage(path)
        elif how == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1])

    newest = sorted(data.glob("*.snap"))[-1]
    spoil(newest)
    told: list[str] = []
    restore_archive(str(tmp_path / "a"), tmp_path / "r", tell=told.append)
    assert contents(tmp_path / "r") == rows(105)
    assert newest.name in told[0]
    assert not drill(str(tmp_path / "a"), tmp_path / "s").ok
    log = sorted(data.glob("*.xlog*"))[1]
    spoil(log)
    with pytest.raises(CorruptFile) as caught:
        restore_archive(str(tmp_path / "a"), tmp_path / "no")
    assert log.name in caught.value.path
    assert "rows between {" in str(caught.value)
    before = catalog_of(tmp_path / "a").entries[log.name].start
    found = restore_archive(str(tmp_path / "a"), tmp_path / "before", at=before)
    assert found.vclock == before
    assert not any(tmp_path.glob("no/*"))


def test_status_names_missing_objects_and_damaged_entries(tmp_path: Path) -> None:
    """Exit code 3; 1 where there is no archive."""
    assert run("archive", "status", tmp_path / "nowhere").exit_code == 1
    with_snapshots(tmp_path / "s", tmp_path / "a", 2)
    whole = run("archive", "status", tmp_path / "a", "--against", tmp_path / "s", "--json")
    assert whole.exit_code == 0
    told = json.loads(whole.stdout)
    assert (told["damage"], told["lag"]["rows"], told["snapshots"]) == ([], 0, 2)
    object_, *_ = sorted((tmp_path / "a" / "data").glob("*.snap"))
    object_.unlink()
    entry = sorted((tmp_path / "a" / "entries").glob("*.snap"))[-1]
    damage(entry, 40)
    done = run("archive", "status", tmp_path / "a", "--json")
    assert done.exit_code == 3
    first, second = json.loads(done.stdout)["damage"]
    assert entry.name in first
    assert object_.name in second


def test_lag_is_what_is_not_archived(tmp_path: Path) -> None:
    """In rows, bytes and seconds, across logs."""
    clock = [1_000_000.0]
    with opened(tmp_path / "s", clock=lambda: clock[0]) as log:
        archived(tmp_path / "s", tmp_path / "a")
        fill(log, 100)
        done = run("archive", "status", tmp_path / "a", "--against", tmp_path / "s", "--json")
        lag = json.loads(done.stdout)["lag"]
        assert lag["rows"] == 100
        assert lag["bytes"] > 1000
        assert lag["seconds"] > 1_000_000
        archived(tmp_path / "s", tmp_path / "a")
        done = run("archive", "status", tmp_path / "a", "--against", tmp_path / "s", "--json")
        assert json.loads(done.stdout)["lag"] == {"rows": 0, "bytes": 0, "seconds": 0.0}


def test_objects_may_be_replaced_while_they_are_fetched(tmp_path: Path) -> None:
    """A restore goes on with what took their place, and takes nothing for damage."""
    with opened(tmp_path / "s") as log:
        for _ in range(3):
            fill(log, 3)
            archived(tmp_path / "s", tmp_path / "a")
        fetched: list[int] = []

        def replace_tails(done: int) -> None:
            if not fetched:
                fill(log, 60)
                assert archived(tmp_path / "s", tmp_path / "a").progress.removed == 3
            fetched.append(done)

        told: list[str] = []
        place = str(tmp_path / "a")
        restore_archive(place, tmp_path / "r", tell=told.append, progress=replace_tails)
    assert told == []
    assert contents(tmp_path / "r") == rows(69)


def test_a_time_behind_the_newest_row_is_restored_with_a_warning(tmp_path: Path) -> None:
    """What was committed between the two is not known to the archive."""
    with opened(tmp_path / "s") as log:
        fill(log, 3)
    archived(tmp_path / "s", tmp_path / "a")
    told: list[str] = []
    restore_archive(str(tmp_path / "a"), tmp_path / "r", at=4e9, tell=told.append)
    assert contents(tmp_path / "r") == rows(3)
    assert "is not known" in told[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param("02-spaces", marks=needs_icu), "03-replicaset/instance-1", "04-crashed"],
)
def test_the_folder_of_a_tarantool_is_archived(name: str, tmp_path: Path) -> None:
    """What Tarantool 2.6 wrote is restored tuple by tuple; its folder is only read."""
    folder = SAMPLES / name
    before = sorted(folder.iterdir())
    archived(folder, tmp_path / "a")
    assert archived(folder, tmp_path / "a").progress.objects == 0
    found = drill(str(tmp_path / "a"), folder)
    assert found.ok
    assert found.tuples > 0
    assert sorted(folder.iterdir()) == before


def test_without_pyarrow_folders_are_archived_and_urls_refused(tmp_path: Path) -> None:
    """The extra that is missing is named."""
    opened(tmp_path / "s").close()
    program = "import sys; sys.modules['pyarrow'] = None; from logweir.tools.cli.main import run"
    for place, code in ((str(tmp_path / "a"), 0), ("s3://bucket/a", 2)):
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-c", f"{program}; run()"),
                *("archive", str(tmp_path / "s"), "--to", place),
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
    assert "logweir[archive]" in done.stderr


class Spoiling(FolderObjects):
    """A place that stores one byte of data otherwise than it was sent."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `Objects`."""
        data = bytearray(b"".join(pieces))
        if name.startswith("data/"):
            data[-20] ^= 1
        super().put(name, [bytes(data)])


@pytest.mark.parametrize("is_closed", [True, False])
def test_what_is_stored_otherwise_than_sent_does_not_count(is_closed: bool, tmp_path: Path) -> None:
    """Reading back finds it; the next look stores it again."""
    with opened(tmp_path / "s") as log:
        fill(log, 100 if is_closed else 3)
    with Archiver(tmp_path / "s", Spoiling(tmp_path / "a")) as archiver:
        with pytest.raises(WalError, match="read back"):
            archiver.look()
        assert archiver.catalog.entries == {}
    archived(tmp_path / "s", tmp_path / "a")
    assert drill(str(tmp_path / "a"), tmp_path / "s").ok


def test_every_failing_call_of_the_place_is_told_and_made_up_for(tmp_path: Path) -> None:
    """A full disk or one that fails, at each call: a typed error that names the place, nothing
    half visible, and the next look goes on."""
    with opened(tmp_path / "s") as log:
        fill(log, 60)
        end = log.vclock
    failed: set[str] = set()
    place = tmp_path / "a"
    for kinds_ in (WRITING, KINDS - WRITING):
        for number in itertools.count(1):
            faulty = FaultyFileSystem(OS, Fault(number, kinds_, errno.ENOSPC, part=0.5))
            told = ""
            try:
                with Archiver(tmp_path / "s", FolderObjects(place, faulty)) as archiver:
                    archiver.look()
            except WalError as error:
                told = str(error)
            if not faulty.failed:
                break
            failed.add(faulty.failed.split()[0])
            assert str(place) in told
            assert "no space left" in told
            assert catalog_of(place).missing() == []
            archived(tmp_path / "s", place)
            found = restore_archive(str(place), tmp_path / "dry", dry_run=True)
            assert found.vclock == end
            shutil.rmtree(place)
        shutil.rmtree(place)
    assert {"create", "write", "sync", "rename", "open_read", "read"} <= failed
    assert contents(tmp_path / "s") == rows(60)


def test_a_drill_finds_a_tuple_that_differs(tmp_path: Path) -> None:
    """Positions are the same, contents are not: exit code 3, and the space is named."""
    with opened(tmp_path / "s") as log:
        fill(log, 10)
        before = log.vclock
        fill(log, 1)
    archived(tmp_path / "s", tmp_path / "a")
    assert run("archive", "drill", tmp_path / "a", "--against", tmp_path / "s").exit_code == 0
    restore_archive(str(tmp_path / "a"), tmp_path / "other", at=before)
    with opened(tmp_path / "other") as log:
        log.insert("t", (10, "another value"))
    done = run("archive", "drill", tmp_path / "a", "--against", tmp_path / "other", "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["differing"]) == (3, False, {"t": 1})


def test_the_command_restores(tmp_path: Path) -> None:
    """`restore --from`, with its options; a folder and an archive are not both given."""
    with opened(tmp_path / "s") as log:
        fill(log, 5)
        middle = log.vclock
        fill(log, 5)
    assert run("archive", tmp_path / "s", "--to", f"file://{tmp_path}/a").exit_code == 0
    source = ("restore", "--from", f"file://{tmp_path}/a")
    done = run(*source, "--to", tmp_path / "r", "--at-vclock", middle, "--verify", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["verified"] is True
    assert contents(tmp_path / "r") == rows(5)
    done = run(*source, "--to", tmp_path / "dry", "--dry-run")
    assert (done.exit_code, (tmp_path / "dry").exists()) == (0, False)
    done = run(*source, "--to", tmp_path / "no", "--at-vclock", "{1: 1000}")
    assert done.exit_code == 1
    assert f"restores {{}} to {middle.with_lsn(1, middle.lsn(1) + 5)}" in done.stderr
    assert run(*source, tmp_path / "s", "--to", tmp_path / "no").exit_code == 2
    assert run("restore", "--to", tmp_path / "no").exit_code == 2
    assert run("archive", "drill", tmp_path / "nowhere").exit_code == 1
    assert run("archive", "look", tmp_path / "a").exit_code == 2
    assert run("archive", tmp_path / "s").exit_code == 2
