"""Requests that came with Tarantool 2.11 and 3.0: positions, names instead of ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.replication.service import users
from logweir.replication.service.access import Privilege

SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT, BEGIN, ROLLBACK = 1, 2, 3, 4, 5, 9, 14, 16
SPACE, INDEX, LIMIT, OFFSET, ITERATOR, FETCH = 0x10, 0x11, 0x12, 0x13, 0x14, 0x1F
KEY, TUPLE, OPS, AFTER, AFTER_TUPLE, DATA, POSITION = 0x20, 0x21, 0x28, 0x2E, 0x2F, 0x30, 0x35
SPACE_NAME, INDEX_NAME = 0x5E, 0x5F
ROWS = [[number, number % 3] for number in range(20)]
GE, LE = 5, 4


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
