"""Requests that came with Tarantool 2.11 and 3.0: positions, names instead of ids, watchers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.limits import WATCHED_KEYS
from logweir.replication.service import users
from logweir.store.schema.access import Privilege
from logweir.wal.mp import pack

SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT, BEGIN, ROLLBACK = 1, 2, 3, 4, 5, 9, 14, 16
SPACE, INDEX, LIMIT, OFFSET, ITERATOR, FETCH = 0x10, 0x11, 0x12, 0x13, 0x14, 0x1F
KEY, TUPLE, OPS, AFTER, AFTER_TUPLE, DATA, POSITION = 0x20, 0x21, 0x28, 0x2E, 0x2F, 0x30, 0x35
SPACE_NAME, INDEX_NAME = 0x5E, 0x5F
ROWS = [[number, number % 3] for number in range(20)]
GE, LE = 5, 4
VALUE_BYTES = 16 * 1024  # of a key of a client's own, at most


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "store", guest="all") as made:
        made.log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        made.log.create_index("t", "by n", {"parts": ["n"], "unique": False})
        made.log.append("t", ROWS)
        yield made


@pytest.fixture
def client(serving: Serving) -> Iterator[RawClient]:
    with RawClient(serving.port) as made:
        yield made


def pages(client: RawClient, stream: int = 0, **body: Any) -> list[Any]:
    """All tuples that a selection gives, three at a time."""
    asked = {int(key[1:]): value for key, value in body.items()} | {LIMIT: 3, FETCH: True}
    found: list[Any] = []
    while True:
        answer = client.ask(SELECT, asked, stream)
        assert not answer.is_error, answer.error()
        found += answer.body[DATA]
        if POSITION not in answer.body:
            assert answer.body[DATA] == []
            return found
        asked[AFTER] = answer.body[POSITION]


def test_pages_of_a_server(serving: Serving, client: RawClient) -> None:
    """By each index, of a system view, in a transaction, with what it has changed."""
    space = serving.log.schema.space("t").id
    by_n = sorted(ROWS, key=lambda row: (row[1], row[0]))
    assert pages(client, _16=space, _20=GE, _32=[]) == ROWS
    assert pages(client, _16=space, _17=1, _20=GE, _32=[]) == by_n
    assert pages(client, _16=space, _17=1, _20=LE, _32=[1])[:2] == [[19, 1], [16, 1]]
    assert len(pages(client, _16=281, _20=GE, _32=[])) == len(serving.log.spaces(system=True))
    client.ask(BEGIN, stream=1)
    client.ask(REPLACE, {SPACE: space, TUPLE: [7, 70]}, stream=1)
    changed = [row if row[0] != 7 else [7, 70] for row in ROWS]
    assert pages(client, 1, _16=space, _20=GE, _32=[]) == changed
    assert pages(client, _16=space, _20=GE, _32=[]) == ROWS


def test_positions_that_cannot_be(serving: Serving, client: RawClient) -> None:
    """No position for no tuple, or where none was asked for; the errors of 2.11."""
    space = serving.log.schema.space("t").id
    asked = {SPACE: space, LIMIT: 5, KEY: []}
    assert set(client.ask(SELECT, asked | {FETCH: False}).body) == {DATA}
    assert set(client.ask(SELECT, asked | {FETCH: True, LIMIT: 0}).body) == {DATA}
    behind = client.ask(SELECT, asked | {AFTER_TUPLE: [4, 1], ITERATOR: GE})
    assert behind.body[DATA] == ROWS[5:10]
    behind = client.ask(SELECT, asked | {AFTER: "", AFTER_TUPLE: [4, 1], OFFSET: 2})
    assert behind.body[DATA] == ROWS[2:7]
    for wrong, code in (
        ({AFTER: "?"}, 247),
        ({AFTER: "kgE"}, 247),
        ({AFTER_TUPLE: []}, 247),
        ({AFTER_TUPLE: ["x", 1]}, 247),
        ({AFTER_TUPLE: [3, 0], KEY: [4]}, 247),
        ({AFTER: 7}, 20),
        ({AFTER_TUPLE: "x"}, 20),
        ({FETCH: 1}, 20),
    ):
        assert int(client.ask(SELECT, asked | wrong).error().code) == code, wrong


def test_names_stand_for_ids(serving: Serving, client: RawClient) -> None:
    """In every statement, alone or with an id, which they override; what is not there."""
    t = {SPACE_NAME: "t"}
    assert client.ask(INSERT, t | {TUPLE: [100, 7]}).body[DATA] == [[100, 7]]
    assert client.ask(REPLACE, t | {SPACE: 280, TUPLE: [100, 8]}).body[DATA] == [[100, 8]]
    client.ask(UPSERT, t | {TUPLE: [100, 8], OPS: [["+", 1, 1]]})
    by_n = t | {INDEX_NAME: "by n", INDEX: 99, LIMIT: 9, KEY: [9]}
    assert client.ask(SELECT, by_n).body[DATA] == [[100, 9]]
    by_id = t | {INDEX_NAME: "primary", KEY: [100]}
    assert client.ask(UPDATE, by_id | {TUPLE: [["=", 1, 5]]}).body[DATA] == [[100, 5]]
    assert client.ask(DELETE, by_id).body[DATA] == [[100, 5]]
    for kind, body, code, words in (
        (SELECT, {SPACE_NAME: "no", LIMIT: 1, KEY: []}, 36, "Space 'no' does not exist"),
        (SELECT, t | {INDEX_NAME: "no", LIMIT: 1, KEY: []}, 148, "No index 'no' is defined in"),
        (SELECT, {SPACE_NAME: 5, LIMIT: 1, KEY: []}, 20, "packet body"),
        (SELECT, {INDEX_NAME: "by n", LIMIT: 1, KEY: []}, 69, "space id"),
    ):
        error = client.ask(kind, body).error()
        assert int(error.code) == code
        assert words in error.message


def test_names_are_those_of_the_definitions_before(serving: Serving, client: RawClient) -> None:
    """Behind a change of them in the same write, also where others know the space already."""
    space = serving.log.schema.space("t").id
    assert client.ask(REPLACE, {SPACE_NAME: "t", TUPLE: [50, 1]}).body[DATA] == [[50, 1]]
    asked = [
        (UPDATE, {SPACE: 280, KEY: [space], TUPLE: [["=", 2, "renamed"]]}),
        (REPLACE, {SPACE_NAME: "t", TUPLE: [51, 1]}),
        (REPLACE, {SPACE_NAME: "renamed", TUPLE: [52, 1]}),
        (SELECT, {SPACE_NAME: "t", LIMIT: 9, KEY: [50]}),
        (SELECT, {SPACE_NAME: "renamed", LIMIT: 9, KEY: [50], ITERATOR: GE}),
    ]
    client.send(b"".join([client.frame(kind, pack(body)) for kind, body in asked]))
    answers = sorted((client.receive() for _ in asked), key=lambda one: one.header.sync)
    assert [int(one.error().code) if one.is_error else 0 for one in answers] == [0, 36, 0, 36, 0]
    assert answers[-1].body[DATA] == [[50, 1], [52, 1]]


def test_names_give_no_rights(tmp_path: Path) -> None:
    """A space of another name is refused as by its id."""
    with Serving(tmp_path / "store") as serving:
        for name in ("mine", "other"):
            serving.log.create_space(name)
        users.add_user(serving.log, "ann", password="x")
        users.grant(serving.log, "ann", Privilege.READ, users.Target("space", "mine"))
        with RawClient(serving.port, "ann", "x") as client:
            asked = {LIMIT: 1, KEY: []}
            assert not client.ask(SELECT, asked | {SPACE_NAME: "mine"}).is_error
            mine = serving.log.schema.space("mine").id
            refused = client.ask(SELECT, asked | {SPACE: mine, SPACE_NAME: "other"})
            assert int(refused.error().code) == 42


WATCH, UNWATCH, EVENT, WATCH_ONCE = 74, 75, 76, 77
EVENT_KEY, EVENT_DATA = 0x57, 0x58


def tell(client: RawClient, kind: int, key: str) -> int:
    """A request that has no answer. Returns its sync."""
    client.send(client.frame(kind, pack({EVENT_KEY: key})))
    return client._sync


def event(client: RawClient) -> tuple[int, dict[int, Any]]:
    answer = client.receive()
    assert answer.header.type == EVENT
    return answer.header.sync, answer.body


def test_keys_are_watched(serving: Serving, client: RawClient) -> None:
    """An EVENT at once, and one for each change after it was acknowledged, the newest only."""
    first = tell(client, WATCH, "box.schema")
    sync, body = event(client)
    assert sync == first
    version = body[EVENT_DATA]["version"]
    serving.log.create_space("a")
    second = tell(client, WATCH, "box.schema")
    sync, body = event(client)
    assert (sync, body[EVENT_DATA]["version"] > version) == (second, True)
    third = tell(client, WATCH, "box.schema")
    assert not client.ask(64).is_error  # nothing came before: nothing has changed
    serving.log.create_space("b")
    sync, body = event(client)
    assert sync == third
    newest = body[EVENT_DATA]["version"]
    assert newest == client.ask(WATCH_ONCE, {EVENT_KEY: "box.schema"}).body[DATA][0]["version"]
    serving.log.create_space("c")
    assert not client.ask(64).is_error  # nor now: the EVENT was not acknowledged
    tell(client, UNWATCH, "box.schema")
    serving.log.create_space("d")
    assert not client.ask(64).is_error


def broadcast(client: RawClient, *given: object) -> int:
    """The code of the error of CALL `box.broadcast`; 0: there was none."""
    answer = client.ask(10, {0x22: "box.broadcast", 0x21: list(given)})
    return int(answer.error().code) if answer.is_error else 0


def test_keys_of_one_s_own_are_watched(serving: Serving, client: RawClient) -> None:
    """Who watches a key is told what CALL gives it, another connection too; nil ends that."""
    sync = tell(client, WATCH, "leader")
    assert event(client) == (sync, {EVENT_KEY: "leader"})
    sync = tell(client, WATCH, "leader")
    with RawClient(serving.port) as other:
        assert broadcast(other, "leader", {"host": "one"}) == 0
        told = {EVENT_KEY: "leader", EVENT_DATA: {"host": "one"}}
        assert event(client) == (sync, told)
        assert broadcast(other, "other", 1) == 0
        sync = tell(client, WATCH, "leader")
        assert broadcast(other, "leader", {"host": "one"}) == 0  # the same: no EVENT
        assert broadcast(other, "leader") == 0
        assert event(client) == (sync, {EVENT_KEY: "leader"})
        assert other.ask(WATCH_ONCE, {EVENT_KEY: "other"}).body[DATA] == [1]
        assert other.ask(WATCH_ONCE, {EVENT_KEY: "leader"}).body[DATA] == []


def test_what_cannot_be_broadcast_is_refused(serving: Serving, client: RawClient) -> None:
    """Keys of the server, what is none, and more than there is room for."""
    assert [broadcast(client, key, 1) for key in ("box.id", "internal.ballot", 1)] == [32] * 3
    assert broadcast(client) == broadcast(client, "a", 1, 2) == 32
    assert broadcast(client, "k" * 256, "v" * (VALUE_BYTES - 3)) == 0
    assert broadcast(client, "k" * 256, "v" * (VALUE_BYTES - 2)) == 2
    assert broadcast(client, "k" * 257, 1) == 2
    for number in range(1, WATCHED_KEYS):
        assert broadcast(client, str(number), number) == 0
    assert broadcast(client, "one more", 1) == 2
    assert broadcast(client, "1", "another value") == broadcast(client, "2") == 0
    assert broadcast(client, "one more", 1) == 0


def test_what_can_be_watched_is_honest(serving: Serving, client: RawClient) -> None:
    """Who we are, that nobody is elected, and nothing for what is not there."""

    def once(key: str) -> Any:
        return client.ask(WATCH_ONCE, {EVENT_KEY: key}).body[DATA]

    (known,) = once("box.id")
    assert (known["id"], known["instance_uuid"]) == (1, serving.log.instance)
    assert once("box.status") == [{"is_ro": False, "is_ro_cfg": False, "status": "running"}]
    expected = {"term": 1, "role": "follower", "is_ro": False, "leader": 0}
    assert once("box.election") == [expected]
    assert once("internal.ballot") == [client.ask(68).body]
    assert once("box.shutdown") == []
    sync = tell(client, WATCH, "my.key")
    assert event(client) == (sync, {EVENT_KEY: "my.key"})
    assert client.ask(WATCH_ONCE, {0x7E: 1}).error().code == 69
    assert client.ask(WATCH_ONCE, {EVENT_KEY: 1}).error().code == 20
    assert client.ask(WATCH_ONCE).error().code == 20
    assert client.ask(EVENT, {EVENT_KEY: "x"}).error().code == 48


def test_who_watches_for_it_is_told_that_the_server_ends(tmp_path: Path) -> None:
    """By connectors that then begin nothing more there: an EVENT before the end."""
    with Serving(tmp_path / "store", guest="all") as serving:
        client = RawClient(serving.port)
        sync = tell(client, WATCH, "box.shutdown")
        assert event(client) == (sync, {EVENT_KEY: "box.shutdown"})
        sync = tell(client, WATCH, "box.shutdown")
        assert not client.ask(64).is_error
    with client:
        assert event(client) == (sync, {EVENT_KEY: "box.shutdown", EVENT_DATA: True})
        with pytest.raises(EOFError):
            client.receive()


def test_watched_keys_are_bounded(serving: Serving, client: RawClient) -> None:
    """What is too much is answered; and they are forgotten with the connection."""
    for number in range(WATCHED_KEYS):
        tell(client, WATCH, str(number))
        assert event(client)[1] == {EVENT_KEY: str(number)}
    before = len(serving.log._committer.on_commit)
    tell(client, WATCH, "one more")
    assert int(client.receive().error().code) == 2
    client.socket.close()
    # `wait` has a callback too, in the place of the one that is gone.
    serving.wait(lambda: len(serving.log._committer.on_commit) == before)
