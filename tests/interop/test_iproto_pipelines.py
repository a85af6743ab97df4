"""Definitions and rights that change in the middle of what a client has sent at once: each request
meets what those before it have left, as with a real Tarantool."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.iproto.wire.codec import Answer
from logweir.replication.service import users
from logweir.store.schema.access import Privilege
from logweir.wal.mp import pack

SELECT, INSERT, REPLACE, UPDATE, DELETE, UPSERT, BEGIN, COMMIT = 1, 2, 3, 4, 5, 9, 14, 15
SPACE, INDEX, USER, PRIV, TRUNCATE = 280, 288, 304, 312, 330
NUMBERED = [{"name": "id", "type": "unsigned"}, {"name": "s", "type": "string"}]
NAMED = [{"name": "id", "type": "string"}, {"name": "n", "type": "unsigned"}]
SECRET = base64.b64encode(hashlib.sha1(hashlib.sha1(b"secret").digest()).digest()).decode()

Asked = tuple[int, dict[int, Any]]
Told = tuple[int, Any]


def insert(space: int, *row: Any) -> Asked:
    return INSERT, {0x10: space, 0x21: list(row)}


def replace(space: int, *row: Any) -> Asked:
    return REPLACE, {0x10: space, 0x21: list(row)}


def update(space: int, key: Any, field: Any, value: Any, index: int = 0) -> Asked:
    return UPDATE, {0x10: space, 0x11: index, 0x20: [key], 0x21: [["=", field, value]]}


def delete(space: int, *key: Any, index: int = 0) -> Asked:
    return DELETE, {0x10: space, 0x11: index, 0x20: list(key)}


def select(space: int, *key: Any, index: int = 0) -> Asked:
    how = 0 if key else 2
    return SELECT, {0x10: space, 0x11: index, 0x12: 100, 0x13: 0, 0x14: how, 0x20: list(key)}


def space(number: int, name: str, fields: Sequence[Any], *, how: int = INSERT) -> Asked:
    return how, {0x10: SPACE, 0x21: [number, 1, name, "memtx", 0, {}, list(fields)]}


def index(of: int, number: int, field: int, kind: str, *, unique: bool, how: str = "tree") -> Asked:
    return insert(INDEX, of, number, f"i{number}", how, {"unique": unique}, [[field, kind]])


def made(number: int, name: str, fields: Sequence[Any] = NUMBERED) -> list[Asked]:
    first, second = (field["type"] for field in fields)
    primary = index(number, 0, 0, first, unique=True)
    return [space(number, name, fields), primary, index(number, 1, 1, second, unique=False)]


def dropped(number: int) -> list[Asked]:
    return [delete(INDEX, number, 1), delete(INDEX, number, 0), delete(SPACE, number)]


def shown(answer: Answer) -> Told:
    if answer.is_error:
        return int(answer.error().code), answer.error().message
    return 0, answer.body.get(0x30)


def told(client: RawClient, asked: Sequence[Asked], stream: int = 0) -> list[Told]:
    """What comes of requests that are sent at once, in their order; each is answered once."""
    frames = [client.frame(kind, pack(body), stream) for kind, body in asked]
    first = client._sync - len(asked) + 1
    client.send(b"".join(frames))
    answers = [client.receive() for _ in asked]
    found = {answer.header.sync: shown(answer) for answer in answers}
    return [found[first + number] for number in range(len(asked))]


def codes(client: RawClient, asked: Sequence[Asked], stream: int = 0) -> list[int]:
    return [code for code, _ in told(client, asked, stream)]


DEFINITIONS = {
    "a space and what is in it": [*made(600, "a"), insert(600, 1, "x"), select(600, "x", index=1)],
    "the same id with another format": [
        *(insert(600, 3, "y"), select(600), *dropped(600), insert(600, 4, "z"), select(600)),
        *(update(600, 1, 1, "q"), *made(600, "a", NAMED), insert(600, 5, "z")),
        *(insert(600, "k", 1), select(600), select(600, 1, index=1), select(600, "x", index=1)),
        select(600, 5),
    ],
    "another id with the same name": [
        *(select(600), *dropped(600), *made(601, "a"), insert(600, 6, "a"), insert(601, 6, "a")),
        *(select(601), select(600), select(601, "a", index=1), delete(600, 6)),
    ],
    "indexes": [
        *(insert(601, 7, "b"), select(601, "b", index=1), delete(INDEX, 601, 1)),
        *(select(601, "b", index=1), delete(601, 7, index=1), update(601, 7, 1, "c", index=1)),
        *(insert(601, 8, "b"), index(601, 1, 1, "string", unique=True)),
        *(select(601, "b", index=1), delete(601, 8), index(601, 1, 1, "string", unique=True)),
        *(select(601, "b", index=1), insert(601, 9, "b"), delete(INDEX, 601, 0)),
        *(delete(INDEX, 601, 1), delete(INDEX, 601, 0), insert(601, 10, "c"), select(601)),
        *(index(601, 0, 1, "string", unique=True), insert(601, 10, "c"), insert(601, 11, "c")),
        *(select(601, "c"), index(601, 1, 0, "unsigned", unique=True, how="hash")),
        *(select(601, 10, index=1), delete(601, "c"), select(601, 10, index=1), *dropped(601)),
    ],
    "truncations": [
        *(*made(602, "t"), *(insert(602, number, "v") for number in range(5)), select(602)),
        *(replace(TRUNCATE, 602, 1), select(602), select(602, "v", index=1), insert(602, 1, "w")),
        *(replace(TRUNCATE, 602, 1), select(602), insert(602, 2, "w"), replace(TRUNCATE, 602, 0)),
        *(select(602), replace(TRUNCATE, 999, 1), update(602, 1, 1, "u"), insert(602, 4, "w")),
        (UPSERT, {0x10: TRUNCATE, 0x21: [602, 1], 0x28: [["+", 1, 1]]}),
        *(select(602), replace(TRUNCATE, 280, 1), insert(602, 3, "x"), delete(TRUNCATE, 602)),
        *(select(602), replace(602, 3, "y"), replace(TRUNCATE, 602, 1), select(602)),
    ],
    "formats": [
        *(insert(602, 1, "a"), insert(602, 2, "a", 3), select(602)),
        space(602, "t", [*NUMBERED, {"name": "more", "type": "integer"}], how=REPLACE),
        *(insert(602, 3, "a"), delete(602, 1), insert(602, 3, "a", -1)),
        space(602, "t", [*NUMBERED, {"name": "more", "type": "integer"}], how=REPLACE),
        *(insert(602, 4, "a"), insert(602, 4, "a", "x"), update(602, 3, "more", 5)),
        *(update(602, 3, "other", 5), update(SPACE, 602, 2, "renamed")),
        space(602, "t", [*NUMBERED, {"name": "other", "type": "integer"}], how=REPLACE),
        *(update(602, 3, "more", 6), update(602, 3, "other", 7), select(602)),
    ],
}
GRANTS = [
    insert(USER, 40, 1, "u", "user", {"chap-sha1": SECRET}),
    insert(PRIV, 1, 40, "universe", 0, 24),
    insert(PRIV, 1, 40, "space", 602, 3),
    insert(PRIV, 1, 40, "space", PRIV, 3),
    *made(603, "other"),
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RawClient, RawClient]]:
    """A real server and ours, of one user who may do everything."""
    with (
        RealTarantool(tmp_path / "real", cfg={"wal_mode": "write"}) as box,
        Serving(tmp_path / "ours", guest="all", open_options={"durability": "write"}) as serving,
    ):
        box.eval("box.schema.user.grant('guest', 'super')")
        assert box.port is not None
        with RawClient(box.port) as real, RawClient(serving.port) as ours:
            yield real, ours


@pytest.mark.tarantool
def test_definitions_in_a_pipeline_are_met_as_by_a_real_server(
    pair: tuple[RawClient, RawClient],
) -> None:
    """Spaces and indexes made, dropped and made anew, formats, truncations."""
    real, ours = pair
    for name, asked in DEFINITIONS.items():
        assert told(ours, asked) == told(real, asked), name


@pytest.mark.tarantool
def test_rights_in_a_pipeline_are_met_as_by_a_real_server(
    pair: tuple[RawClient, RawClient],
) -> None:
    """Revoked by another connection, by the same one, with the space and with the user."""
    base = [*made(602, "t"), *GRANTS]
    own = [insert(602, 52, "a"), select(602, 52), delete(PRIV, 40, "space", 602)]
    own += [insert(602, 53, "a"), select(602, 52), select(999), insert(602, 54, "b")]
    steps = [
        (0, base),
        (1, [insert(602, 50, "a"), select(602, 50), select(603), insert(603, 1, "a")]),
        (0, [replace(PRIV, 1, 40, "space", 602, 1)]),
        (1, [insert(602, 51, "a"), select(602, 50), replace(602, 50, "b"), delete(602, 50)]),
        (0, [replace(PRIV, 1, 40, "space", 602, 3)]),
        (1, own),
        (0, [insert(PRIV, 1, 40, "space", 602, 3)]),
        (1, [insert(602, 55, "a"), select(602, 55)]),
        (0, [delete(PRIV, 40, "space", 602), *dropped(602), *made(602, "t")]),
        (1, [insert(602, 55, "a"), select(602, 55)]),
        (0, [delete(PRIV, 40, "space", PRIV), delete(PRIV, 40, "universe", 0), delete(USER, 40)]),
        (1, [insert(602, 56, "a"), select(602, 55), select(999), (64, {})]),
    ]
    answers: list[list[list[Told]]] = []
    for one in pair:
        with RawClient(one.socket.getpeername()[1]) as user:
            found = []
            for number, (who, asked) in enumerate(steps):
                found.append(told((one, user)[who], asked))
                if not number:
                    user.login("u", "secret")
            answers.append(found)
    for (_, asked), real, ours in zip(steps, *answers, strict=True):
        assert ours == real, asked


def test_who_revokes_is_obeyed_from_some_request_on(tmp_path: Path) -> None:
    """While another connection sends thousands at once: none is done behind one that was refused,
    and what was answered well is there."""
    with Serving(tmp_path / "s", open_options={"durability": "write"}) as serving:
        log = serving.log
        log.create_space("t", [("id", "unsigned"), ("s", "string")], primary=["id"])
        users.grant(log, "guest", Privilege.WRITE, users.Target("space", "t"))
        number, most = log.schema.space("t").id, 2000
        with RawClient(serving.port) as client:
            rows = ({0x10: number, 0x21: [one, "x"]} for one in range(most))
            data = b"".join([client.frame(INSERT, pack(row)) for row in rows])
            client.send(data[: len(data) // 2])
            answers = [client.receive()]
            users.revoke(log, "guest", Privilege.WRITE, users.Target("space", "t"))
            client.send(data[len(data) // 2 :])
            answers += [client.receive() for _ in range(most - 1)]
        # A refusal waits for no disk: it may be told before an answer to a request before it.
        found = [shown(one)[0] for one in sorted(answers, key=lambda one: one.header.sync)]
        done = found.index(42)
        assert set(found[:done]) == {0}
        assert set(found[done:]) == {42}
        assert log.count("t") == done


@pytest.mark.parametrize("fields", [NUMBERED, NAMED])
def test_a_space_made_anew_is_another_one_for_an_open_transaction(
    tmp_path: Path, fields: list[dict[str, str]]
) -> None:
    """Whose statements were on the old one: COMMIT finds that, and leaves the new one alone."""
    with (
        Serving(tmp_path / "s", guest="all", open_options={"durability": "write"}) as serving,
        RawClient(serving.port) as client,
    ):
        assert codes(client, [*made(600, "a"), insert(600, 1, "x")]) == [0] * 4
        opened = [(BEGIN, {}), select(600, 1), insert(600, 2, "y"), update(600, 1, 1, "z")]
        assert codes(client, opened, 1) == [0] * 4
        row = [9, "x"] if fields is NUMBERED else ["x", 9]
        anew = [*dropped(600), *made(600, "a", fields), insert(600, *row)]
        assert codes(client, anew) == [0] * 7
        assert codes(client, [(COMMIT, {})], 1) == [97]
        assert told(client, [select(600)]) == [(0, [row])]
        other = [8, "y"] if fields is NUMBERED else ["y", 8]
        again = [(BEGIN, {}), insert(600, *row), insert(600, *other)]
        assert codes(client, again, 1) == [0, 3, 0]
        assert codes(client, [delete(INDEX, 600, 1)]) == [0]
        assert codes(client, [select(600, row[1], index=1)], 1) == [0]
        assert codes(client, [(COMMIT, {})], 1) == [97]


def test_a_truncation_is_met_by_an_open_transaction(tmp_path: Path) -> None:
    """What it has read is gone: its COMMIT is refused, and nothing of it is there."""
    with (
        Serving(tmp_path / "s", guest="all", open_options={"durability": "write"}) as serving,
        RawClient(serving.port) as client,
    ):
        assert codes(client, [*made(600, "a"), insert(600, 1, "x")]) == [0] * 4
        opened = [(BEGIN, {}), update(600, 1, 1, "z"), insert(600, 2, "y")]
        assert codes(client, opened, 1) == [0] * 3
        assert codes(client, [replace(TRUNCATE, 600, 1), insert(600, 3, "n")]) == [0, 0]
        assert told(client, [select(600), (COMMIT, {})], 1) == [
            (0, [[1, "z"], [2, "y"]]),
            (97, "Transaction has been aborted by conflict"),
        ]
        assert told(client, [select(600)]) == [(0, [[3, "n"]])]
