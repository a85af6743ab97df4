"""Tuples as objects of a dataclass, by the names of the format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import logweir
from logweir.errors import ErrorCode, RequestError


@dataclass
class User:
    """In another order than the format, and without one of its fields."""

    name: str
    id: int
    tags: list[str] = field(default_factory=list)
    seen: int = field(init=False, default=7)


@dataclass
class Age:
    """Of a field that may not be there."""

    id: int
    age: int | None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store with users."""
    nullable = [{"name": name, "type": "any", "is_nullable": True} for name in ("age", "tags")]
    with logweir.open(tmp_path / "store", "write") as log:
        log.create_space(
            "users",
            format=[("id", "unsigned"), ("name", "string"), *nullable],
            indexes={"name": ["name"]},
        )
        log.append("users", [(1, "ada"), (2, "bob", 20, ["x"]), (3, "cy", 30, [], "behind")])
        yield log


def test_objects_are_the_tuples(log: logweir.Log) -> None:
    """By names, with defaults for what a tuple lacks; as `select` and `get` find them."""
    users = log.space("users")
    found = users.rows(User)
    assert found == [User("ada", 1), User("bob", 2, ["x"]), User("cy", 3)]
    assert [one.seen for one in found] == [7, 7, 7]
    assert found[0].tags is not users.rows(User)[0].tags
    assert users.rows(Age, "bob", index="name") == [Age(2, 20)]
    assert users.rows(Age, 3, iterator="LT", limit=1, offset=1) == [Age(1, None)]
    assert users.get(User, "cy", index="name") == User("cy", 3)
    assert users.get(User, 9) is None


def test_an_object_goes_back_as_a_tuple(log: logweir.Log) -> None:
    """Nil where the dataclass has no field, nothing where it has None at the end."""
    users = log.space("users")
    for row, wanted in (
        (User("dee", 4, ["y"]), (4, "dee", None, ["y"])),
        (Age(5, None), (5, None)),
        (Age(5, 50), (5, None, 50)),
    ):
        assert users.tuple(row) == wanted
    assert users.insert(User("dee", 4, ["y"])) == User("dee", 4, ["y"])
    assert users.get(User, 4) == User("dee", 4, ["y"])
    with pytest.raises(RequestError) as caught:
        users.insert(User("dee", 4))
    assert caught.value.code == ErrorCode.TUPLE_FOUND
    assert users.replace(User("eve", 4)) == User("eve", 4)
    assert log.get("users", 4) == (4, "eve", None, [])


def test_structs_of_msgspec(log: logweir.Log) -> None:
    """As dataclasses: names, defaults, what a tuple lacks, and the way back."""
    msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed")
    fields = [
        ("name", str),
        ("id", int),
        ("age", int | None),
        ("tags", list, msgspec.field(default_factory=list)),
    ]
    struct = msgspec.defstruct("Struct", fields)
    users = log.space("users")
    assert users.rows(struct) == [
        struct("ada", 1, None),
        struct("bob", 2, 20, ["x"]),
        struct("cy", 3, 30),
    ]
    assert users.tuple(struct("dee", 4, None, ["y"])) == (4, "dee", None, ["y"])
    assert users.insert(struct("dee", 4, 5)) == struct("dee", 4, 5)
    assert log.get("users", 4) == (4, "dee", 5, [])
    odd = msgspec.defstruct("Odd", [("nick", str)], kw_only=True, forbid_unknown_fields=True)
    with pytest.raises(RequestError, match=r"Odd\.nick is no field"):
        users.rows(odd)


def test_what_does_not_fit_is_refused(log: logweir.Log) -> None:
    """No space, no dataclass, a field that is not of the format: also once that was altered."""
    with pytest.raises(RequestError) as caught:
        log.space("none")
    assert caught.value.code == ErrorCode.NO_SUCH_SPACE
    users = log.space("users")
    for wrong in (dict, int, User("ada", 1)):
        with pytest.raises(RequestError, match="is no dataclass"):
            users.rows(wrong)
    with pytest.raises(RequestError, match="is no dataclass"):
        users.tuple((1, "ada"))
    log.alter_space("users", format=[("id", "unsigned"), ("nick", "string")])
    with pytest.raises(RequestError, match=r"User\.name is no field of space 'users'"):
        users.get(User, 1)
