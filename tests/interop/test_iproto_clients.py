"""The Python clients of the field work with our server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.service import users
from logweir.store.schema.access import Privilege
from logweir.wal.mp import Ext, pack, unpack

asynctnt = pytest.importorskip("asynctnt", reason="asynctnt is not installed")
tarantool = pytest.importorskip("tarantool", reason="tarantool-python is not installed")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "store", functions="interop.functions") as made:
        log = made.log
        log.create_space("orders", format=[("id", "unsigned"), ("what", "string")])
        log.create_space("secret")
        users.add_user(log, "alice", password="wonder")
        both = Privilege.READ | Privilege.WRITE
        users.grant(log, "alice", both, users.Target("space", "orders"))
        users.grant(log, "alice", Privilege.EXECUTE, users.Target("universe"))
        yield made


def test_asynctnt(serving: Serving) -> None:
    """Schema, DML by names, select, call, errors, many requests at once."""

    async def main() -> None:
        connection = asynctnt.Connection(
            host="127.0.0.1", port=serving.port, username="alice", password="wonder"
        )
        async with connection:
            assert connection.schema is not None
            assert "orders" in connection.schema.spaces
            assert "secret" not in connection.schema.spaces
            await connection.insert("orders", [1, "bolts"])
            await connection.insert("orders", {"id": 2, "what": "nuts"})
            await connection.replace("orders", [1, "long bolts"])
            await connection.update("orders", [2], [["=", "what", "wing nuts"]])
            await connection.upsert("orders", [3, "gears"], [["=", 1, "x"]])
            await connection.delete("orders", [1])
            found = await connection.select("orders", [2])
            assert dict(found[0]) == {"id": 2, "what": "wing nuts"}
            assert len(await connection.select("orders")) == 2
            await asyncio.gather(
                *(connection.replace("orders", [n, f"row {n}"]) for n in range(1000))
            )
            with pytest.raises(asynctnt.exceptions.TarantoolDatabaseError) as caught:
                await connection.insert("orders", [5, "again"])
            assert caught.value.code == 3
            with pytest.raises(asynctnt.exceptions.TarantoolDatabaseError) as caught:
                await connection.eval("return 1")
            assert caught.value.code == 42
            answer = await connection.call("add", [2, 3])
            assert answer.body == [5]
            await connection.ping()

    asyncio.run(main())
    assert serving.log.count("orders") == 1000


def test_tarantool_python(serving: Serving) -> None:
    """DML, select, call, wrong password, and what is not granted."""
    connection: Any = tarantool.Connection(
        "127.0.0.1", serving.port, user="alice", password="wonder"
    )
    connection.insert("orders", (1, "bolts"))
    connection.replace("orders", (1, "long bolts"))
    connection.update("orders", 1, [("=", "what", "bolt")])
    connection.upsert("orders", (2, "nuts"), [("=", 1, "x")])
    assert connection.select("orders", 1).data == [[1, "bolt"]]
    assert connection.delete("orders", 2).data == [[2, "nuts"]]
    assert connection.call("add", 1, 2).data == [3]
    assert connection.call("two").data == [1, "two"]
    with pytest.raises(tarantool.error.DatabaseError, match="ValueError: not today"):
        connection.call("fail")
    with pytest.raises(tarantool.error.SchemaError):
        connection.select("secret")
    connection.close()
    with pytest.raises(tarantool.error.DatabaseError, match="Incorrect password"):
        tarantool.Connection("127.0.0.1", serving.port, user="alice", password="bad")


def test_a_pool_of_tarantool_python(tmp_path: Path, serving: Serving) -> None:
    """It tells by `box.info` which of its servers take changes, and which are there to read."""
    with Serving(tmp_path / "other", guest="all", read_only=True) as other:
        addresses = [{"host": "127.0.0.1", "port": one.port} for one in (serving, other)]
        pool: Any = tarantool.ConnectionPool(
            addresses[:1], user="alice", password="wonder", refresh_delay=0.05
        )
        assert pool.insert("orders", (1, "bolts"), mode=tarantool.Mode.RW).data == [[1, "bolts"]]
        with pytest.raises(tarantool.error.PoolTopologyError):
            pool.ping(mode=tarantool.Mode.RO)
        pool.close()
        pool = tarantool.ConnectionPool(addresses[1:], refresh_delay=0.05)
        assert pool.ping(mode=tarantool.Mode.RO, notime=True) == "Success"
        with pytest.raises(tarantool.error.PoolTopologyError):
            pool.ping(mode=tarantool.Mode.RW)
        pool.close()


def test_errors_as_values(serving: Serving) -> None:
    """An error where one is read, else its text; the same kind of error as if it was raised."""
    connection: Any = tarantool.Connection(
        "127.0.0.1", serving.port, user="alice", password="wonder"
    )
    (one, refusal), told, two = connection.call("refusals").data
    connection.close()
    assert (one, two) == (1, 2)
    assert isinstance(refusal, tarantool.BoxError)
    assert (refusal.type, refusal.message, refusal.errcode) == ("AccessDeniedError", "no way", 42)
    assert (told["why"].message, told["why"].errcode) == ("ValueError: not today", 32)
    with RawClient(serving.port, "alice", "wonder") as client:
        texts = [[1, "no way"], {"why": "ValueError: not today"}, 2]
        assert client.ask(0x0A, {0x22: "refusals", 0x21: []}).body[0x30] == texts
        known = client.ask(73, {0x54: 6, 0x55: [0, 1]}).body
        assert 2 in known[0x55]
        assert client.ask(0x0A, {0x22: "refusals", 0x21: []}).body[0x30] == texts
        client.ask(73, {0x54: 6, 0x55: [0, 2]})
        (_, value), _, _ = client.ask(0x0A, {0x22: "refusals", 0x21: []}).body[0x30]
        assert value.code == 3
        assert unpack(value.data)[0][0].keys() == {0, 1, 2, 3, 4, 5}


@pytest.mark.tarantool
def test_errors_as_values_are_what_a_tarantool_tells(tmp_path: Path, serving: Serving) -> None:
    """Text where they were not asked for, and then a value of the same form."""
    with RealTarantool(tmp_path / "box") as box:
        box.eval("box.schema.user.grant('guest', 'super')")
        assert box.port is not None
        call = 0x0A, {0x22: "refusals", 0x21: []}
        with RawClient(box.port) as theirs, RawClient(serving.port, "alice", "wonder") as ours:
            box.eval("function refusals() return {1, box.error.new{code=42, reason='no way'}} end")
            assert theirs.ask(*call).body[0x30][0] == ours.ask(*call).body[0x30][0]
            enable = "box.session.settings.error_marshaling_enabled = true"
            assert not theirs.ask(0x08, {0x27: enable, 0x21: []}).is_error
            ours.ask(73, {0x54: 6, 0x55: [2]})
            told = [side.ask(*call).body[0x30][0][1] for side in (theirs, ours)]
    stacks = [unpack(one.data) for one in told]
    assert [one.code for one in told] == [3, 3]
    assert stacks[0].keys() == stacks[1].keys() == {0}
    (entry,), (own,) = [one[0] for one in stacks]
    assert entry.keys() == own.keys()
    assert (entry[3], entry[5]) == (own[3], own[5])


@pytest.mark.tarantool
def test_box_info_is_what_a_tarantool_says(tmp_path: Path, serving: Serving) -> None:
    """As far as it goes: each key of ours is there with a value of the same type."""
    with RealTarantool(tmp_path / "box") as box:
        box.eval("box.schema.user.grant('guest', 'execute', 'universe')")
        assert box.port is not None
        with RawClient(box.port) as client:
            there = client.ask(10, {0x22: "box.info", 0x21: []}).body[0x30][0]
    serving.log.insert("orders", (1, "bolts"))
    with RawClient(serving.port, "alice", "wonder") as client:
        here = client.ask(10, {0x22: "box.info", 0x21: []}).body[0x30][0]
    assert {key: type(there[key]) for key in here} == {key: type(here[key]) for key in here}
    assert here["cluster"].keys() == there["cluster"].keys()
    log = serving.log
    assert (here["id"], here["uuid"], here["ro"]) == (1, str(log.instance), False)
    assert (here["status"], here["lsn"], here["vclock"]) == ("running", log.vclock[1], log.vclock)
    with RawClient(serving.port) as client:
        assert client.ask(10, {0x22: "box.info", 0x21: []}).error().code == 42


@pytest.mark.tarantool
def test_an_error_as_a_value_is_kept(tmp_path: Path, serving: Serving) -> None:
    """One that a Tarantool made (extension type 3): in a tuple, and there and back by CALL."""
    code = "box.session.settings.error_marshaling_enabled = true return box.error.new(3, 'a', 'b')"
    with RealTarantool(tmp_path / "box") as box:
        box.eval("box.schema.user.grant('guest', 'execute,read,write', 'universe')")
        assert box.port is not None
        with RawClient(box.port) as client:
            (error,) = client.ask(8, {0x27: code, 0x21: []}).body[0x30]
    assert isinstance(error, Ext)
    assert error.code == 3
    (told,) = unpack(error.data)[0]
    assert (told[0], told[5]) == ("ClientError", 3)
    log = serving.log
    log.create_space("kept")
    users.grant(log, "alice", Privilege.READ | Privilege.WRITE, users.Target("space", "kept"))
    with RawClient(serving.port, "alice", "wonder") as client:
        space_id = log.schema.space("kept").id
        client.ask(2, {0x10: space_id, 0x21: [1, error]})
        asked = {0x10: space_id, 0x11: 0, 0x12: 1, 0x13: 0, 0x14: 0, 0x20: [1]}
        assert client.ask(1, asked).body[0x30] == [[1, error]]
        assert client.ask(10, {0x22: "back", 0x21: [error]}).body[0x30] == [error]
        assert client.ask(6, {0x22: "back", 0x21: [error]}).body[0x30] == [[error]]
    assert log.get("kept", 1) == (1, error)


def test_guest_may_ping_and_vote_only(serving: Serving) -> None:
    """Everything else is refused with error 42 until it is granted."""
    with RawClient(serving.port) as client:
        assert not client.ask(64).is_error
        assert not client.ask(68).is_error
        space_id = serving.log.schema.space("orders").id
        refused = [
            client.ask(1, {0x10: space_id, 0x12: 1, 0x20: []}),
            client.ask(2, {0x10: space_id, 0x21: [1, "x"]}),
            client.ask(5, {0x10: 280, 0x20: [space_id]}),
            client.ask(10, {0x22: "add", 0x21: [1, 2]}),
            client.ask(8, {0x27: "return 1"}),
            client.ask(65, {0x24: "11111111-1111-4111-8111-111111111111"}),
            client.ask(69),
        ]
        assert [int(answer.error().code) for answer in refused] == [42] * 7
        run = b"".join(
            encode_request(3, sync, {0x10: space_id, 0x21: [sync, "x"]}) for sync in range(100, 120)
        )
        client.send(run)
        answers = [client.receive() for _ in range(20)]
        assert {int(answer.error().code) for answer in answers} == {42}
    assert serving.log.count("orders") == 0


def test_pipelined_requests_read_what_they_wrote(serving: Serving) -> None:
    """A SELECT sent behind a REPLACE, without waiting, sees it; each is answered by its sync."""
    space_id = serving.log.schema.space("orders").id
    with RawClient(serving.port, "alice", "wonder") as client:
        stream = b""
        for number in range(50):
            stream += encode_request(3, 1000 + number, {0x10: space_id, 0x21: [1, str(number)]})
            stream += encode_request(1, number + 1, {0x10: space_id, 0x12: 9, 0x20: [1]})
        client.send(stream)
        answers = [client.receive() for _ in range(100)]
        found = {one.header.sync: one.body[0x30] for one in answers}
        assert all(found[number + 1] == [[1, str(number)]] for number in range(50))


def test_one_bad_request_of_a_run_fails_alone(serving: Serving) -> None:
    """The others are stored, in order, each a transaction."""
    space_id = serving.log.schema.space("orders").id
    before = serving.log.vclock[1]
    rows: list[list[Any]] = [[n, f"row {n}"] for n in range(20)]
    rows[7] = ["no number", "x"]
    rows[11] = [3, "again"]
    for kind, expected in ((2, {7: 23, 11: 3}), (3, {7: 23})):
        with RawClient(serving.port, "alice", "wonder") as client:
            client.send(
                b"".join(
                    encode_request(kind, n + 1, {0x10: space_id, 0x21: row})
                    for n, row in enumerate(rows)
                )
            )
            answers = {one.header.sync - 1: one for one in (client.receive() for _ in rows)}
        errors = {n: int(one.error().code) for n, one in answers.items() if one.is_error}
        assert errors == expected
        assert answers[5].body[0x30] == [[5, "row 5"]]
    assert serving.log.get("orders", 3) == (3, "again")
    assert serving.log.vclock[1] == before + 18 + 19


def test_what_call_does_otherwise_than_lua(serving: Serving) -> None:
    """Bytes stay bytes, and what a function does not take is refused."""
    users.grant(serving.log, "guest", Privilege.EXECUTE, users.Target("universe"))
    with RawClient(serving.port) as client:
        answer = client.ask_raw(10, pack({0x22: "back", 0x21: [b"\xff"]}))
        assert answer.body[0x30] == [b"\xff"]
        error = client.ask_raw(10, pack({0x22: "back", 0x21: [1, 2]})).error()
        assert error.code == 32
        assert "2 were given" in error.message


def test_eval_says_that_it_is_switched_off(tmp_path: Path) -> None:
    """And nothing of grants, which would not help."""
    with Serving(tmp_path / "store", guest="all") as server, RawClient(server.port) as client:
        error = client.ask_raw(8, pack({0x27: "return 1", 0x21: []})).error()
        assert error.code == 42
        assert "EVAL is switched off" in error.message
