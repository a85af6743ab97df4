"""`logweir verify --state`: the state of a folder is that of its log, or it says where not."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from support.logs import forget_end
from typer.testing import CliRunner, Result

import logweir
from logweir.errors import RecoveryRefused
from logweir.store.log import Log
from logweir.store.schema.definition import SystemSpace
from logweir.store.state import base
from logweir.tools.cli.main import app
from logweir.wal.mp import pack


def verify(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["verify", "--state", *map(str, arguments)])


def as_json(folder: Path) -> dict[str, Any]:
    """What it says as JSON, of the state."""
    result = CliRunner().invoke(app, ["--json", "verify", "--state", str(folder)])
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 3)
    state: dict[str, Any] = found["state"]
    return state


def busy(folder: Path, **options: Any) -> Log:
    """A store that had changes of every kind, open."""
    log = logweir.open(folder, **options)
    log.create_space("t", format=[("id", "unsigned"), ("v", "string"), ("n", "integer")])
    log.create_index("t", "v", ["v"])
    log.create_index("t", "n", {"parts": ["n"], "unique": False})
    log.create_space("plain", format=[("id", "unsigned"), ("data", "varbinary")])
    log.create_space("gone", format=[("id", "unsigned")])
    log.append("plain", [(i, os.urandom(150_000)) for i in range(5)])
    log.append("gone", [(i,) for i in range(20)])
    rng = random.Random(1)
    for number in range(150):
        key = rng.randrange(40)
        log.upsert("t", (key, f"{key}_" * rng.randrange(1, 300), 0), [("+", 2, 1)])
        log.update("t", key, [("=", 2, rng.randrange(5))])
        if number % 3 == 0:
            log.delete("t", key)
        if number == 70:
            log.snapshot()
        if number == 100:
            log.inner.change_base(
                lambda txn: None
            )  # what comes behind this may not be in the state
    log.drop_space("gone")
    return log


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_state_of_a_busy_store_is_that_of_its_log(
    is_killed: bool, durability: str, tmp_path: Path
) -> None:
    """Every index, long keys, tuples that stand in the log; also where it is behind the log."""
    log = busy(tmp_path, durability=durability, wal_max_size=100_000)
    log.inner.abandon() if is_killed else log.close()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_of(tmp_path)}
    result = verify(tmp_path)
    assert result.exit_code == 0, result.output
    assert "the state is that of the log at" in result.stdout
    assert as_json(tmp_path)["entries"] > 600
    now = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_of(tmp_path)}
    assert now == before


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def changed(folder: Path, database: bytes, put: dict[bytes, bytes], gone: list[bytes]) -> None:
    """Change entries of a state past the store, as of one that was killed."""
    noted = json.loads((folder / "state" / "epoch").read_bytes())
    (folder / "state" / "epoch").write_text(json.dumps({**noted, "clean": False}))
    with base.Environment(str(folder / "state"), map_size=2**30, max_dbs=300) as env:
        handle = env.open_db(database, create=False)
        with env.begin(write=True) as txn:
            for key, value in put.items():
                txn.put(key, value, db=handle)
            for key in gone:
                assert txn.delete(key, db=handle)


def stored(folder: Path, database: bytes) -> dict[bytes, bytes]:
    """The entries of a database of a state."""
    with base.Environment(str(folder / "state"), map_size=2**30, max_dbs=300, lock=False) as env:
        handle = env.open_db(database, create=False)
        with env.begin() as txn:
            return {bytes(key): bytes(value) for key, value in txn.cursor(handle)}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A closed store with ten tuples and a second index."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", format=[("id", "unsigned"), ("v", "string")])
        log.create_index("t", "v", ["v"])
        log.append("t", [(i, f"v{i}") for i in range(10)])
    return tmp_path / "s"


def test_differences_in_the_primary_index_are_named(small: Path) -> None:
    """A tuple that is another one, one that is missing, one that nobody wrote."""
    keys = sorted(stored(small, b"512/0"))
    changed(small, b"512/0", {keys[3]: b"\x92\x03\xa1w", b"\xff": b"\x92\x63\xa1q"}, [keys[5]])
    result = verify(small)
    assert result.exit_code == 3
    assert "changed entry in the state, space t, index primary" in result.stdout
    assert 'by the log: [3, "v3"]' in result.stdout
    assert 'it has:     [3, "w"]' in result.stdout
    found = as_json(small)
    kinds = [(one["kind"], one["index"], one["log"], one["state"]) for one in found["first"]]
    assert kinds == [
        ("changed", "primary", [3, "v3"], [3, "w"]),
        ("missing", "primary", [5, "v5"], None),
        ("surplus", "primary", None, [99, "q"]),
    ]
    assert found["differences"] == 3


def test_differences_in_other_indexes_are_named(small: Path) -> None:
    """An entry that leads to another tuple answers wrong where the primary index does not."""
    entries = stored(small, b"512/1")
    first, second, *_, last = sorted(entries)
    changed(small, b"512/1", {first: entries[second]}, [last])
    kinds = [
        (one["kind"], one["index"], one["log"], one["state"]) for one in as_json(small)["first"]
    ]
    assert kinds == [
        ("changed", "v", [0, "v0"], [1, "v1"]),
        ("missing", "v", [9, "v9"], None),
    ]


def test_only_the_first_of_many_are_named(small: Path) -> None:
    """The rest is counted."""
    changed(small, b"512/0", {}, sorted(stored(small, b"512/0")))
    surplus = {b"\xff" + bytes((i,)): b"\x91\x01" for i in range(30)}
    changed(small, b"512/0", surplus, [])
    found = as_json(small)
    assert (found["differences"], len(found["first"])) == (40, 20)
    assert "... and 20 more" in verify(small).stdout


def test_what_the_next_opening_throws_away_is_said(small: Path, tmp_path: Path) -> None:
    """Damage, and the state of another store; it is not touched."""
    data = bytearray((small / "state" / "data.mdb").read_bytes())
    data[-100] ^= 1
    (small / "state" / "data.mdb").write_bytes(data)
    result = verify(small)
    assert result.exit_code == 3
    assert "is rebuilt at the next opening" in result.stdout
    assert "its checksum differs" in result.stdout
    logweir.open(tmp_path / "other").close()
    (small / "state").rename(tmp_path / "away")
    (tmp_path / "other" / "state").rename(small / "state")
    assert "it is of instance" in as_json(small)["unusable"]


def test_state_that_has_what_the_log_lacks_is_said(small: Path) -> None:
    """Nothing but the state knows of the newest rows, and the next opening refuses."""
    forget_end(small)
    (path,) = small.glob("*.xlog")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(bytes.fromhex("d5ba0bab"))])
    result = verify(small)
    assert result.exit_code == 3
    assert "whose newest rows are gone: opening is refused" in result.stdout
    with pytest.raises(RecoveryRefused, match="the newest rows are gone"):
        logweir.open(small)


def test_what_cannot_be_compared_is_said(small: Path, tmp_path: Path) -> None:
    """No state, a damaged log, rows that were never logged: nothing is called wrong for that."""
    log = logweir.open(small, "none")
    log.insert("t", (10, "v10"))
    log.inner.change_base(lambda txn: None)  # the state has it, and nothing else does
    log.inner.abandon()
    assert "never logged" in as_json(small)["unknown"]
    (small / "state").rename(tmp_path / "away")
    assert "there is none" in verify(small).stdout
    assert verify(small).exit_code == 0
    (tmp_path / "away").rename(small / "state")
    (path,) = small.glob("*.xlog")
    damaged = bytearray(path.read_bytes())
    damaged[-30] ^= 1
    path.write_bytes(damaged)
    assert as_json(small)["unknown"] == "the log is damaged"


def test_numbers_that_temporary_rows_took_are_in_no_log(tmp_path: Path) -> None:
    """Whether their space is still there, has no other, or shares the sequence; and what the log
    does know of a sequence is compared."""
    folder = tmp_path / "s"
    names = ("alone", "shared", "gone")
    with logweir.open(folder) as log:
        for name in names:
            log.create_sequence(name)
            log.create_space(f"t_{name}", [("id", "unsigned")], temporary=True)
            log.use_sequence(f"t_{name}", name)
            for _ in range(5):
                log.insert(f"t_{name}", (None,))
        log.create_space("kept", [("id", "unsigned")])
        log.use_sequence("kept", "shared")
        log.insert("kept", (None,))
        log.drop_space("t_gone")
        (number,) = log.select("kept")
        log.create_sequence("own")
        log.create_space("logged", [("id", "unsigned")])
        log.use_sequence("logged", "own")
        log.insert("logged", (None,))
    assert number == (6,)
    assert as_json(folder)["differences"] == 0
    data = f"{SystemSpace.SEQUENCE_DATA:d}/0".encode()
    entries = stored(folder, data)
    assert len(entries) == 4
    _, shared, _, own = sorted(entries)
    changed(folder, data, {own: pack([4, 9])}, [shared])
    wrong, missing = sorted(as_json(folder)["first"], key=lambda one: str(one["kind"]))
    assert (wrong["kind"], wrong["log"], wrong["state"]) == ("changed", [4, 1], [4, 9])
    assert (missing["kind"], missing["space"]) == ("missing", "_sequence_data")
    assert missing["log"] == [2, 6]


def test_numbers_that_began_anew_are_in_no_log_either(tmp_path: Path) -> None:
    """A temporary space has taken them of a sequence that cycles, and is gone."""
    folder = tmp_path / "s"
    with logweir.open(folder) as log:
        log.insert("_sequence", (9, 1, "cycles", 1, 1, 5, 1, 0, True))
        log.create_space("t", [("id", "unsigned")], temporary=True)
        log.use_sequence("t", "cycles")
        log.replace("_sequence_data", (9, 4))
        for _ in range(2):
            log.insert("t", (None,))
        assert log.select("t") == [(1,), (5,)]
        log.drop_space("t")
    assert as_json(folder)["differences"] == 0


def test_an_open_folder_is_refused(small: Path) -> None:
    """What it holds changes; nobody can open it meanwhile either."""
    with logweir.open(small):
        result = verify(small)
        assert result.exit_code not in (0, 3)
        assert "in use" in result.output
    (file, *_) = small.glob("*.snap")
    assert "name the folder" in verify(file).output
