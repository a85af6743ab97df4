"""Who may do what, from the rows of `_user` and `_priv`.

The rights themselves: `logweir.store.schema.access`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logweir.errors import ErrorCode, RequestError
from logweir.store.schema.access import (
    ALL_BITS,
    GUEST_ID,
    REPLICATION_ID,
    Access,
    Privilege,
    User,
)
from logweir.wal.mp import unpack

if TYPE_CHECKING:
    from logweir.store.log import Log


@dataclass(frozen=True, slots=True)
class Grant:
    """One row of `_priv`. `object_id`: a number, or "" for all objects of the type."""

    grantee: int
    object_type: str
    object_id: int | str
    bits: int


class Directory:
    """All users and what they may do, read once from the rows; make a new one when they change.

    `users`, `privileges`: rows of `_user` and `_priv` as lists; `extra`: grants that stand in no
    row.
    """

    def __init__(
        self,
        users: Iterable[Sequence[Any]],
        privileges: Iterable[Sequence[Any]],
        extra: Iterable[Grant] = (),
    ) -> None:
        self._users = {row[0]: _user(row) for row in users}
        self._by_name = {user.name: user for user in self._users.values()}
        self._grants: dict[int, list[Grant]] = {}
        for grant in (*(Grant(*row[1:5]) for row in privileges), *extra):
            self._grants.setdefault(grant.grantee, []).append(grant)
        self._access: dict[int, Access] = {}

    def user(self, name: str) -> User:
        """A user (not a role) by name. Raises error 45."""
        user = self._by_name.get(name)
        if user is None or user.is_role:
            raise RequestError(ErrorCode.NO_SUCH_USER, f"User '{name}' is not found")
        return user

    def users(self) -> Sequence[User]:
        """Every user and role, by id."""
        return tuple(self._users[number] for number in sorted(self._users))

    def grants(self, user_id: int) -> Sequence[Grant]:
        """What was granted to one user or role itself."""
        return tuple(self._grants.get(user_id, ()))

    def access(self, user_id: int) -> Access:
        """What a user may do. Raises error 45 for one that is not there any more."""
        if user_id not in self._users:
            raise RequestError(ErrorCode.NO_SUCH_USER, f"User '{user_id}' is not found")
        if user_id not in self._access:
            self._access[user_id] = self._collect(user_id)
        return self._access[user_id]

    def _collect(self, user_id: int) -> Access:
        universe = 0
        types: dict[str, int] = {}
        objects: dict[tuple[str, int | str], int] = {}
        reached, ahead = {user_id}, [user_id]
        while ahead:
            for grant in self._grants.get(ahead.pop(), ()):
                if grant.object_type == "universe":
                    universe |= grant.bits
                elif grant.object_id == "":
                    types[grant.object_type] = types.get(grant.object_type, 0) | grant.bits
                else:
                    place = (grant.object_type, grant.object_id)
                    objects[place] = objects.get(place, 0) | grant.bits
                    is_role = grant.object_type == "role" and grant.bits & Privilege.EXECUTE
                    if is_role and grant.object_id not in reached:
                        role_id = int(grant.object_id)
                        reached.add(role_id)
                        ahead.append(role_id)
        return Access(self._users[user_id], universe, types, objects)


def _user(row: Sequence[Any]) -> User:
    auth = row[4] if len(row) > 4 and isinstance(row[4], dict) else {}
    kept = auth.get("chap-sha1", "")
    return User(row[0], row[1], row[2], row[3] == "role", kept if isinstance(kept, str) else "")


def guest_grants(allowed: str) -> Sequence[Grant]:
    """What `--allow-guest` adds to what the rows grant to guest.

    `allowed`: "none", "read", "replicate", "write" (read and write) or "all".
    """
    bits = {
        "none": 0,
        "read": Privilege.READ,
        "replicate": Privilege.READ,
        "write": Privilege.READ | Privilege.WRITE | Privilege.EXECUTE,
        "all": ALL_BITS,
    }[allowed]
    grants = [Grant(GUEST_ID, "universe", 0, int(bits))] if bits else []
    if allowed == "replicate":
        grants.append(Grant(GUEST_ID, "role", REPLICATION_ID, int(Privilege.EXECUTE)))
    return grants


def read_directory(log: Log, guest: Sequence[Grant] = ()) -> Directory:
    """All users and grants of a store. `guest`: grants that stand in no row."""
    with log.read_view() as view:
        spaces = map(view.engine.schema.space, ("_user", "_priv"))
        users, privileges = ([unpack(row) for row in view.tuples(space)] for space in spaces)
    return Directory(users, privileges, guest)
