"""Privileges from rows of `_user` and `_priv`."""

from __future__ import annotations

import pytest

from logweir.errors import ErrorCode, RequestError
from logweir.replication.service.access import Directory, guest_grants
from logweir.store.schema.access import Access, Privilege

USERS = [
    [0, 1, "guest", "user", {"chap-sha1": "x"}],
    [1, 1, "admin", "user", {}],
    [2, 1, "public", "role", {}],
    [3, 1, "replication", "role", {}],
    [32, 1, "alice", "user", []],
    [33, 1, "writers", "role", {}],
    [34, 1, "all_writers", "role", {}],
]
BASIC = [[1, user, "universe", 0, 24] for user in (0, 32)]
PRIVILEGES = [
    *BASIC,
    [1, 3, "universe", 0, 1],
    [1, 3, "space", 320, 2],
    [1, 33, "space", 512, 3],
    [1, 34, "role", 33, 4],
    [1, 33, "role", 34, 4],
]


def directory(*more: list[object], guest: str = "none") -> Directory:
    return Directory(USERS, [*PRIVILEGES, *more], guest_grants(guest))


def message(access: Access, wanted: Privilege, space_id: int = 512, owner: int = 1) -> str:
    try:
        access.check(wanted, "space", space_id, owner, "orders")
    except RequestError as error:
        return error.message if error.code == ErrorCode.ACCESS_DENIED else repr(error)
    return ""


def test_admin_may_do_everything() -> None:
    """No row is needed for that."""
    access = directory().access(1)
    assert message(access, Privilege.WRITE) == ""
    access.check_universe(Privilege.READ)


def test_guest_may_nothing_until_granted() -> None:
    """Words of a real server."""
    access = directory().access(0)
    assert message(access, Privilege.READ) == (
        "Read access to space 'orders' is denied for user 'guest'"
    )
    with pytest.raises(RequestError, match="Read access to universe '' is denied"):
        access.check_universe(Privilege.READ)


@pytest.mark.parametrize(
    "grant",
    [
        [1, 32, "space", 512, 1],
        [1, 32, "space", "", 1],
        [1, 32, "universe", 0, 1],
        [1, 32, "role", 33, 4],
        [1, 32, "role", 34, 4],
    ],
)
def test_read_comes_from_object_type_universe_or_roles(grant: list[object]) -> None:
    """Roles within roles, and circles of them, are followed."""
    access = directory(grant).access(32)
    assert message(access, Privilege.READ) == ""
    assert (
        message(access, Privilege.WRITE) == ""
        if grant[2] == "role"
        else "Write" in message(access, Privilege.WRITE)
    )


def test_owner_needs_no_grant_but_usage() -> None:
    """Ownership is not enough without usage of the universe."""
    assert message(directory().access(32), Privilege.WRITE, owner=32) == ""
    bare = Directory(USERS, []).access(32)
    assert message(bare, Privilege.WRITE, owner=32) == (
        "Usage access to universe '' is denied for user 'alice'"
    )


@pytest.mark.parametrize(
    ("allowed", "read", "write", "join"),
    [
        ("none", False, False, False),
        ("read", True, False, False),
        ("replicate", True, False, True),
        ("write", True, True, True),
        ("all", True, True, True),
    ],
)
def test_allow_guest(allowed: str, read: bool, write: bool, join: bool) -> None:
    """What the option adds, nothing more."""
    access = directory(guest=allowed).access(0)
    assert (message(access, Privilege.READ) == "") == read
    assert (message(access, Privilege.WRITE) == "") == write
    assert (message(access, Privilege.WRITE, space_id=320) == "") == join


def test_user_that_is_not_there_is_error_45() -> None:
    """Neither a name nor an id nor a role's name is a user."""
    for name in ("nobody", "public"):
        with pytest.raises(RequestError, match=f"User '{name}' is not found"):
            directory().user(name)
    with pytest.raises(RequestError) as caught:
        directory().access(99)
    assert caught.value.code == ErrorCode.NO_SUCH_USER
