"""Wrong arguments of the embedded API: a typed error each, and nothing happened."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir import Log
from logweir.errors import ConfigError, DirectoryLocked, ErrorCode, RequestError, WalError

CASES: dict[str, tuple[Callable[[Log], Any], ErrorCode]] = {
    "no space": (lambda log: log.insert("nope", (1,)), ErrorCode.NO_SUCH_SPACE),
    "not a tuple": (lambda log: log.insert("kv", 5), ErrorCode.TUPLE_NOT_ARRAY),
    "object": (lambda log: log.insert("kv", (object(),)), ErrorCode.ILLEGAL_PARAMS),
    "integer": (lambda log: log.insert("kv", (2**70, "a")), ErrorCode.ILLEGAL_PARAMS),
    "type": (lambda log: log.insert("kv", ("x", "a")), ErrorCode.FIELD_TYPE),
    "missing": (lambda log: log.insert("kv", (2,)), ErrorCode.FIELD_MISSING),
    "big": (lambda log: log.insert("kv", (2, "x" * 2**21)), ErrorCode.MEMTX_MAX_TUPLE_SIZE),
    "ops": (lambda log: log.update("kv", 1, 5), ErrorCode.ILLEGAL_PARAMS),
    "op": (lambda log: log.update("kv", 1, [5]), ErrorCode.ILLEGAL_PARAMS),
    "limit": (lambda log: log.select("kv", limit="x"), ErrorCode.ILLEGAL_PARAMS),
    "offset": (lambda log: log.select("kv", offset=-1), ErrorCode.ILLEGAL_PARAMS),
    "iterator": (lambda log: log.select("kv", iterator=5), ErrorCode.ITERATOR_TYPE),
    "vclock": (lambda log: list(log.rows(after={99: 1})), ErrorCode.ILLEGAL_PARAMS),
    "retain": (lambda log: log.retain("a", "x"), ErrorCode.ILLEGAL_PARAMS),
    "append": (lambda log: log.append("kv", 5), ErrorCode.ILLEGAL_PARAMS),
    "sequence": (lambda log: log.create_sequence("s", step="x"), ErrorCode.ILLEGAL_PARAMS),
    "format": (lambda log: log.create_space("a", [5]), ErrorCode.ILLEGAL_PARAMS),
    "format 5": (lambda log: log.create_space("a", 5), ErrorCode.ILLEGAL_PARAMS),
    "format map": (lambda log: log.create_space("a", {"id": "str"}), ErrorCode.ILLEGAL_PARAMS),
    "format object": (lambda log: log.create_space("a", [("x", set())]), ErrorCode.ILLEGAL_PARAMS),
    "name": (lambda log: log.create_space(["a"]), ErrorCode.ILLEGAL_PARAMS),
    "indexes": (lambda log: log.create_space("a", indexes=["id"]), ErrorCode.ILLEGAL_PARAMS),
    "part": (lambda log: log.create_index("kv", "i", [1.5]), ErrorCode.ILLEGAL_PARAMS),
    "alter format": (lambda log: log.alter_space("kv", format=5), ErrorCode.ILLEGAL_PARAMS),
    "alter object": (lambda log: log.alter_space("kv", name=set()), ErrorCode.ILLEGAL_PARAMS),
    "packed text": (lambda log: log.inner.append_packed("kv", "abc"), ErrorCode.ILLEGAL_PARAMS),
    "packed None": (lambda log: log.inner.append_packed("kv", None), ErrorCode.ILLEGAL_PARAMS),
    "packed bytes": (lambda log: log.inner.append_packed("kv", b"\xc1"), ErrorCode.INVALID_MSGPACK),
    "space": (lambda log: log.insert(["kv"], (2, "a")), ErrorCode.NO_SUCH_SPACE),
    "space to append": (lambda log: log.append(["kv"], [(2, "a")]), ErrorCode.NO_SUCH_SPACE),
    "space to drop": (lambda log: log.drop_space(["kv"]), ErrorCode.NO_SUCH_SPACE),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_argument_is_a_request_error_and_changes_nothing(name: str, tmp_path: Path) -> None:
    """The error says which number Tarantool gives it; the log goes on."""
    call, code = CASES[name]
    with logweir.open(tmp_path / "store", "write") as log:
        log.create_space("kv", [("id", "unsigned"), ("value", "string")])
        log.insert("kv", (1, "a"))
        before = log.vclock
        with pytest.raises(RequestError) as caught:
            call(log)
        assert caught.value.code == code
        assert log.vclock == before
        assert log.select("kv", limit=2**70) == [(1, "a")]


@pytest.mark.parametrize("as_good", [float, lambda number: [number]])
def test_what_is_no_id_is_none_though_the_id_was_just_asked_for(
    as_good: Callable[[int], Any], tmp_path: Path
) -> None:
    """A number that is equal to it finds what is kept under it in a map."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("kv")
        number = log.schema.space("kv").id
        log.insert(number, (1,))
        with pytest.raises(RequestError) as caught:
            log.insert(as_good(number), (2,))
        assert caught.value.code == ErrorCode.NO_SUCH_SPACE
        assert log.select("kv") == [(1,)]


@pytest.mark.parametrize("path", ["", b"bytes", 5, None, "a\0b"], ids=repr)
def test_what_names_no_folder_is_a_config_error(path: Any) -> None:
    """An empty path, as an unset variable of a shell gives, is not the current folder."""
    with pytest.raises(ConfigError) as caught:
        logweir.open(path)
    assert caught.value.key == "path"


@pytest.mark.parametrize(
    "option",
    [
        {"durability": "often"},
        {"wal_max_size": "x"},
        {"wal_max_size": 0},
        {"compress_threshold": -1},
        {"compress_level": 23},
        {"checkpoint_count": 0},
        {"checkpoint_interval": math.nan},
        {"checkpoint_interval": -1},
        {"checkpoint_wal_threshold": 1.5},
    ],
    ids=str,
)
def test_a_wrong_option_is_a_config_error_and_makes_no_folder(
    option: dict[str, Any], tmp_path: Path
) -> None:
    """Options are looked at before the disk is."""
    with pytest.raises(ConfigError) as caught:
        logweir.open(tmp_path / "store", **option)
    assert caught.value.key in option
    assert not (tmp_path / "store").exists()


def test_paths_that_cannot_be_a_store(tmp_path: Path) -> None:
    """A file, and with create=False an empty or absent folder, are refused and left as they are."""
    file = tmp_path / "file"
    file.write_text("x")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, options in (
        (file, {}),
        (empty, {"create": False}),
        (tmp_path / "no", {"create": False}),
    ):
        with pytest.raises(WalError) as caught:
            logweir.open(path, **options)
        assert caught.value.path == str(path)
    assert file.read_text() == "x"
    assert list(empty.iterdir()) == []
    assert not (tmp_path / "no").exists()


def test_a_folder_in_use_names_the_process(tmp_path: Path) -> None:
    """A second process is told which one has the folder; when that is killed it is free."""
    code = "import logweir, sys, signal; logweir.open(sys.argv[1]); print('open', flush=True); "
    code += "signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryLocked) as caught:
            logweir.open(tmp_path)
        assert caught.value.pid == holder.pid
        os.kill(holder.pid, signal.SIGKILL)
    logweir.open(tmp_path).close()


def test_use_after_close_and_of_nested_transactions(tmp_path: Path) -> None:
    """Each says what is wrong, by number."""
    log = logweir.open(tmp_path)
    log.create_space("kv", [("id", "unsigned")])
    with log.transaction() as tx:
        for call in (log.transaction, lambda: log.insert("kv", (1,)), log.close, log.snapshot):
            with pytest.raises(RequestError) as caught:
                call()
            assert caught.value.code == ErrorCode.ACTIVE_TRANSACTION
        tx.insert("kv", (2,))
    with pytest.raises(RequestError) as caught:
        tx.insert("kv", (3,))
    assert caught.value.code == ErrorCode.NO_TRANSACTION
    assert log.select("kv") == [(2,)]
    log.close()
    log.close()
    for call in (lambda: log.insert("kv", (1,)), log.status, lambda: log.select("kv")):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.code == ErrorCode.SESSION_CLOSED


def test_what_is_no_tuple_and_what_is_no_type_are_told_with_what_to_write(tmp_path: Path) -> None:
    with logweir.open(tmp_path) as log:
        log.create_space("t", [("id", "unsigned")], primary=["id"])
        for given in (5, "abc", {"id": 1}):
            with pytest.raises(RequestError, match=r"MsgPack array\. Hint: .* \[1, "):
                log.insert("t", given)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"unknown field type\. Hint: .* unsigned, string,"):
            log.create_space("u", [("id", "integre")], primary=["id"])
        assert list(log.select("t")) == []
