"""`logweir.capture`: chosen changes with their tokens, of folders, servers and a real Tarantool."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.icu import needs_icu

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.errors import (
    CallbackFailed,
    ConfigError,
    LogweirError,
    PositionUnavailable,
    RequestError,
    WrongHistory,
)
from logweir.replication.capture.running import StoreKept, TokenFile, load_function, run
from logweir.replication.capture.stream import Captured
from logweir.replication.capture.token import Token
from logweir.replication.protocols import parse_listen_url
from logweir.wal.vclock import VClock

FORMAT = [("region", "string"), ("id", "unsigned"), ("text", "string")]


def changed(captured: Captured) -> list[tuple[Any, ...]]:
    """What a transaction tells, without positions."""
    return [(one.space, one.type_name, one.key, one.tuple) for one in captured.changes]


def fill(log: logweir.Log) -> None:
    """Two spaces, and every kind of change."""
    log.create_space("orders", FORMAT, primary=["region", "id"])
    log.create_space("other", [("id", "unsigned")])
    with log.transaction() as tx:
        tx.insert("orders", ("eu", 1, "a"))
        tx.insert("other", (1,))
        tx.insert("orders", ("us", 1, "b"))
    log.insert("other", (2,))
    log.update("orders", ("eu", 1), [["=", "text", "c"]])
    log.update("orders", ("eu", 1), [[":", 2, 0, 1, "d"]])
    log.upsert("orders", ("us", 2, "new"), [["=", 2, "old"]])
    log.delete("orders", ("us", 1))
    log.replace("orders", ("eu", 2, "e"))
    log.truncate("orders")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """A logweir server with all that."""
    listen = [parse_listen_url("tarantool://127.0.0.1:0")]
    with Serving(tmp_path / "served", listen=listen, guest="all") as serving:
        fill(serving.log)
        yield serving


def both(server: Serving) -> list[str]:
    """The two ways to the same log."""
    return [str(server.folder), str(server.url)]


@needs_icu
def test_a_part_with_a_collation_has_no_beginning(tmp_path: Path) -> None:
    with logweir.open(tmp_path) as log:
        fields = [{"name": "name", "type": "string", "collation": "unicode_ci"}]
        log.create_space("s", fields, primary=["name"])
        with pytest.raises(ConfigError, match="collation"):
            next(logweir.capture(tmp_path, spaces="s", key={"begins": "a"}))


def test_the_last_part_of_a_key_may_be_a_beginning(tmp_path: Path) -> None:
    """Of a string or of bytes, alone or behind whole parts, with zeros in it; of nothing else."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("users", [("name", "string"), ("n", "unsigned")])
        log.create_space("two", [("a", "unsigned"), ("b", "varbinary")], primary=["a", "b"])
        log.create_space("numbers", [("id", "unsigned")])
        names = ["user:1", "user:2", "user:", "user", "users", "user:\0\xff", "\0a", "\0", ""]
        for name in names:
            log.insert("users", (name, 1))
            log.insert("two", (len(name) % 2, name.encode()))
        log.update("users", "user:1", [["+", "n", 1]])
        log.delete("users", "user")
        log.insert("numbers", (1,))

        def keys(space: str, key: Any) -> list[Any]:
            found = logweir.capture(log.path, spaces=space, key=key, once=True)
            return [change.key for one in found for change in one.changes]

        for begins in ("user:", "user", "\0", "", "x", "user:\0"):
            wanted = [name for name in [*names, "user:1", "user"] if name.startswith(begins)]
            assert keys("users", {"begins": begins}) == [(name,) for name in wanted]
            assert keys("users", [{"begins": begins}]) == [(name,) for name in wanted]
            for odd in (0, 1):
                assert keys("two", [odd, {"begins": begins.encode()}]) == [
                    (odd, name.encode())
                    for name in names
                    if name.startswith(begins) and len(name) % 2 == odd
                ]
        for space, key, error in (
            ("numbers", {"begins": "1"}, RequestError),
            ("users", {"begins": 1}, RequestError),
            ("users", {"begins": "\ud800"}, RequestError),
            ("users", "\ud800", RequestError),
            ("users", {"begins": "a", "ends": "b"}, RequestError),
            ("two", [{"begins": b"a"}, 1], RequestError),
        ):
            with pytest.raises(error):
                keys(space, key)
        token = next(logweir.capture(log.path, spaces="users", key="user", once=True)).token
        with pytest.raises(ConfigError, match="another key"):
            next(logweir.capture(log.path, token, spaces="users", key={"begins": "user"}))


def test_chosen_changes_of_a_folder_and_a_server(server: Serving) -> None:
    """Transactions that have some, each with what was chosen; every kind taken apart."""
    for where in both(server):
        found = [one for one in logweir.capture(where, spaces=["orders"], once=True) if one.changes]
        assert list(map(changed, found)) == [
            [
                ("orders", "INSERT", ("eu", 1), ("eu", 1, "a")),
                ("orders", "INSERT", ("us", 1), ("us", 1, "b")),
            ],
            [("orders", "UPDATE", ("eu", 1), None)],
            [("orders", "UPDATE", ("eu", 1), None)],
            [("orders", "UPSERT", ("us", 2), None)],
            [("orders", "DELETE", ("us", 1), None)],
            [("orders", "REPLACE", ("eu", 2), ("eu", 2, "e"))],
            [("orders", "TRUNCATE", None, None)],
        ]
        changes = [change for one in found for change in one.changes]
        assert [one.is_known for one in changes] == [True, True, *[False] * 3, True, True, True]
        assert (changes[2].ops, changes[3].ops) == ((["=", "text", "c"],), ([":", 2, 0, 1, "d"],))
        assert (changes[4].given, changes[4].ops) == (("us", 2, "new"), (["=", 2, "old"],))
        everything = [change for one in logweir.capture(where, once=True) for change in one.changes]
        assert {one.space for one in everything} == {"orders", "other"}


def test_the_first_parts_of_a_key(server: Serving) -> None:
    """Changes of other keys are passed over; what concerns the whole space is told."""
    for where in both(server):
        found = logweir.capture(where, spaces="orders", key="us", once=True)
        changes = [change for one in found for change in one.changes]
        assert [(one.type_name, one.key) for one in changes] == [
            ("INSERT", ("us", 1)),
            ("UPSERT", ("us", 2)),
            ("DELETE", ("us", 1)),
            ("TRUNCATE", None),
        ]
        found = logweir.capture(where, spaces=["orders"], key=["eu", 2], once=True)
        assert [change.type_name for one in found for change in one.changes] == [
            "REPLACE",
            "TRUNCATE",
        ]


def test_a_token_goes_on_behind_its_transaction(server: Serving) -> None:
    """Each by each, through a new call every time, of folder and server in turn: all, once."""
    wanted = [one for one in logweir.capture(server.folder, once=True) if one.changes]
    found: list[Captured] = []
    token: str | None = None
    for turn in range(100):
        where = both(server)[turn % 2]
        with closing(logweir.capture(where, token, once=True)) as changes:
            captured = next(changes, None)
            if captured is None:
                break
            token = captured.token
            if captured.changes:
                found.append(captured)
    assert list(map(changed, found)) == list(map(changed, wanted))
    server.log.insert("other", (9,))
    (last,) = [one for one in logweir.capture(server.folder, token, once=True) if one.changes]
    assert changed(last) == [("other", "INSERT", (9,), (9,))]


def test_what_is_passed_over_moves_the_token(server: Serving) -> None:
    """Who wants little is not held to the last change that it wanted."""
    for where in both(server):
        *_, last = logweir.capture(where, spaces=["other"], once=True)
        assert last.vclock == server.log.vclock
        assert not last.changes


def test_definitions_that_change_meanwhile(server: Serving) -> None:
    """A space that is made later has its name, one that is dropped keeps it; what was gone before
    anybody asked has its id."""
    start = server.log.vclock
    for where in both(server):
        with closing(logweir.capture(where, server.log.vclock)) as changes:
            server.log.create_space("late", [("id", "unsigned")])
            server.log.insert("late", (1,))
            found = next(one for one in changes if one.changes)
            assert changed(found) == [("late", "INSERT", (1,), (1,))]
            server.log.drop_space("late")
            found = next(one for one in changes if one.changes)
            assert changed(found) == [("late", "DROP", None, None)]
        found = next(one for one in logweir.capture(where, start) if one.changes)
        (change,) = found.changes
        assert (change.space, change.key, change.tuple) == (str(change.space_id), None, (1,))


def test_a_place_of_another_log_is_refused(server: Serving, tmp_path: Path) -> None:
    """By name: another replica set, a log that ends before it, other spaces, no token at all."""
    for captured in logweir.capture(server.folder, once=True):
        token = captured.token
    with logweir.open(tmp_path / "another") as another:
        fill(another)
        another.insert("other", (5,))
        with pytest.raises(WrongHistory, match="replica set"):
            next(logweir.capture(another.path, token))
    parsed = Token.parse(token)
    ahead = str(Token(parsed.replicaset, VClock({1: 10**6}), parsed.chosen))
    for where in both(server):
        with pytest.raises(WrongHistory):
            next(logweir.capture(where, str(Token(uuid.uuid4(), parsed.vclock))))
        with pytest.raises(PositionUnavailable, match="lost its newest"):
            next(logweir.capture(where, ahead))
        with pytest.raises(ConfigError, match="other spaces"):
            next(logweir.capture(where, token, spaces=["orders"]))
        with pytest.raises(RequestError, match="does not exist"):
            next(logweir.capture(where, spaces=["none"]))
        with pytest.raises(ConfigError, match="for one space"):
            next(logweir.capture(where, key=1))
        with pytest.raises(RequestError, match="is no vclock"):
            next(logweir.capture(where, 5))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="without a store"):
        next(logweir.capture(f"tank://127.0.0.1:{server.port}"))
    for wrong in ("", "nonsense", token[:-1], token[:-3] + "AAA", token + "=", "lw1", "lw1AAAA"):
        with pytest.raises(ConfigError, match="is no token"):
            next(logweir.capture(server.folder, wrong))


@given(st.binary(max_size=200))
def test_any_text_is_a_token_or_refused(data: bytes) -> None:
    """What is read is written again as it was."""
    for text in (data.decode("latin-1"), "lw1" + data.hex(), "lw1" + data.decode("latin-1")):
        try:
            token = Token.parse(text)
        except LogweirError:
            continue
        assert str(token) == text


@given(
    st.uuids(),
    st.dictionaries(st.integers(0, 31), st.integers(1, 2**63 - 1)),
    st.integers(0, 2**32 - 1),
)
def test_tokens_are_read_back(replicaset: uuid.UUID, lsns: dict[int, int], what: int) -> None:
    """Every place has a text, no other text is one."""
    token = Token(replicaset, VClock(lsns), what)
    text = str(token)
    assert Token.parse(text) == token
    for at in range(len(text)):
        with pytest.raises(ConfigError):
            Token.parse(text[:at])
        other = "A" if text[at] != "A" else "B"
        with pytest.raises(ConfigError):
            Token.parse(text[:at] + other + text[at + 1 :])


def test_a_function_that_raises_skips_nothing(server: Serving, tmp_path: Path) -> None:
    """Typed, with where; neither its changes nor the place are kept; then it goes on there."""
    with logweir.open(tmp_path / "own") as own:
        own.create_space("copy", [("lsn", "unsigned"), ("type", "string")])
        kept, broken = StoreKept(own, "c"), [True]

        def function(captured: Captured, tx: logweir.Transaction) -> None:
            for change in captured.changes:
                tx.insert("copy", (change.lsn, change.type_name))
            if broken[0] and captured.changes[0].type_name == "UPSERT":
                raise ValueError("not today")

        with pytest.raises(
            CallbackFailed, match=r"ValueError: not today.*UPSERT in orders"
        ) as found:
            run(server.folder, kept, function, spaces=["orders"], once=True)
        assert isinstance(found.value.__cause__, ValueError)
        assert own.count("copy") == 4
        broken[0] = False
        assert run(str(server.url), kept, function, spaces=["orders"], once=True) == 4
        types = [row[1] for row in own.select("copy")]
        assert types == [
            *("INSERT", "INSERT", "UPDATE", "UPDATE", "UPSERT", "DELETE", "REPLACE", "TRUNCATE")
        ]
        assert run(server.folder, kept, function, spaces=["orders"], once=True) == 0
        with pytest.raises(ConfigError, match="other spaces"):
            run(server.folder, kept, function, once=True)


def test_images_of_a_folder_and_a_server(server: Serving, tmp_path: Path) -> None:
    """Before and after, of what was there at first and of what came; chosen by key; emptied."""
    log = server.log
    log.append("orders", [("eu", 1, "a"), ("eu", 2, "b"), ("us", 1, "c")])
    log.snapshot()
    with logweir.open(tmp_path / "own") as own:
        found: dict[str, list[tuple[Any, ...]]] = {}
        ways = {
            where: StoreKept(own, str(at), images=True) for at, where in enumerate(both(server))
        }

        def go_on() -> None:
            for where, kept in ways.items():
                seen = found.setdefault(where, [])

                def function(
                    captured: Captured, tx: logweir.Transaction, seen: list[Any] = seen
                ) -> None:
                    for one in captured.changes:
                        assert one.is_known
                        seen.append((one.type_name, one.before, one.tuple))

                run(where, kept, function, spaces=["orders"], key="eu", once=True)

        go_on()
        assert set(map(tuple, found.values())) == {()}
        log.update("orders", ("eu", 1), [["=", "text", "x"]])
        log.upsert("orders", ("eu", 2, "new"), [["=", 2, "y"], ["+", 2, 1]])
        log.upsert("orders", ("eu", 3, "new"), [["=", 2, "z"]])
        log.replace("orders", ("us", 1, "d"))
        log.replace("orders", ("eu", 3, "r"))
        log.delete("orders", ("eu", 1))
        go_on()
        log.truncate("orders")
        log.insert("orders", ("eu", 1, "again"))
        go_on()
        wanted = [
            ("UPDATE", ("eu", 1, "a"), ("eu", 1, "x")),
            ("UPSERT", ("eu", 2, "b"), ("eu", 2, "y")),
            ("UPSERT", None, ("eu", 3, "new")),
            ("REPLACE", ("eu", 3, "new"), ("eu", 3, "r")),
            ("DELETE", ("eu", 1, "x"), None),
            ("TRUNCATE", None, None),
            ("INSERT", None, ("eu", 1, "again")),
        ]
        assert list(found.values()) == [wanted, wanted]
        assert [row[3] for row in own.select("logweir_image")] == [["eu", 1, "again"]] * 2
        with pytest.raises(ConfigError, match="was begun with them"):
            run(server.folder, StoreKept(own, "0"), print, spaces=["orders"], key="eu", once=True)


def test_a_token_file_is_written_after_the_function(server: Serving, tmp_path: Path) -> None:
    """One that raised is given the same transaction again."""
    kept = TokenFile(tmp_path / "token")
    seen: list[str] = []

    def function(captured: Captured) -> None:
        seen.append(captured.changes[0].type_name)
        if len(seen) == 2:
            raise OSError("full")

    with pytest.raises(CallbackFailed):
        run(server.folder, kept, function, spaces=["orders"], once=True)
    assert run(server.folder, kept, function, spaces=["orders"], once=True) == 6
    assert seen == ["INSERT", *["UPDATE"] * 3, "UPSERT", "DELETE", "REPLACE", "TRUNCATE"]
    (tmp_path / "token").write_text("lw1nothing")
    with pytest.raises(ConfigError, match="is no token"):
        run(server.folder, kept, function, spaces=["orders"], once=True)


def test_functions_by_name() -> None:
    """Found by import; what is none is refused, whatever the module raises."""
    assert load_function("logweir.replication.capture.running:run") is run
    for wrong in ("", "os", "os:", ":x", "os:none", "no_such_module_here:f", "os:sep"):
        with pytest.raises(ConfigError):
            load_function(wrong)


SETUP = """
box.schema.user.create('reader', {password = 'secret'})
box.schema.user.grant('reader', 'replication')
local s = box.schema.space.create('orders', {format = {{'region', 'string'}, {'id', 'unsigned'}}})
s:create_index('p', {parts = {'region', 'id'}})
box.schema.space.create('other'):create_index('p')
"""
CHANGES = """
box.begin()
box.space.orders:insert{'eu', 1, 'x'}
box.space.other:insert{1}
box.space.orders:insert{'us', 1, 'x'}
box.commit()
box.space.orders:update({'eu', 1}, {{'=', 3, 'y'}})
box.space.orders:update({'eu', 1}, {{':', 3, 1, 1, 'zz'}})
box.space.orders:upsert({'eu', 2}, {{'!', 3, 1}})
box.space.orders:delete{'us', 1}
box.space.orders:truncate()
box.space.orders:format({})
box.space.orders:replace{'eu', 3}
box.space.orders:drop()
"""


@pytest.mark.tarantool
def test_a_real_tarantool(tmp_path: Path) -> None:
    """The same of 2.6.0, by its address and of its folder."""
    with RealTarantool(tmp_path / "box") as box:
        box.eval(SETUP)
        url = f"tarantool://reader:secret@127.0.0.1:{box.port}"
        opened = logweir.capture(url, spaces=["orders"], key="eu")
        with closing(opened):
            for captured in opened:
                token = captured.token
                break
        named = closing(logweir.capture(url, token, spaces=["orders"], key="eu"))
        in_all: list[list[tuple[Any, ...]]] = []
        with named as changes:
            box.eval("box.space.other:insert{0}")
            next(changes)  # it is there, and knows the space
            box.eval(CHANGES)
            for captured in changes:
                in_all.append([(o.type_name, o.key, o.tuple, o.ops) for o in captured.changes])
                if captured.changes and captured.changes[-1].type_name == "DROP":
                    break
        assert [one for one in in_all if one] == [
            [("INSERT", ("eu", 1), ("eu", 1, "x"), ())],
            [("UPDATE", ("eu", 1), None, (["=", 2, "y"],))],
            [("UPDATE", ("eu", 1), None, ([":", 2, 0, 1, "zz"],))],
            [("UPSERT", ("eu", 2), None, (["!", 2, 1],))],
            [("TRUNCATE", None, None, ())],
            [("REPLACE", ("eu", 3), ("eu", 3), ())],
            [("DROP", None, None, ())],
        ]
        whole = [one for one in logweir.capture(tmp_path / "box", once=True) if one.changes]
        assert [change.type_name for one in whole for change in one.changes] == [
            *(*["INSERT"] * 4, "UPDATE", "UPDATE", "UPSERT", "DELETE"),
            *("TRUNCATE", "REPLACE", "DROP"),
        ]
        with pytest.raises(WrongHistory):
            next(logweir.capture(url, str(Token(uuid.uuid4(), captured.vclock))))


def test_the_module_is_no_name_of_the_package() -> None:
    """`logweir.capture` is the function, whatever was imported before."""
    assert callable(logweir.capture)
    assert "logweir.capture" not in sys.modules
