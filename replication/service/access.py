"""Who may do what, from the rows of `_user` and `_priv`. Pure functions.

Users and roles are rows of `_user`: [id, owner, name, type "user" or "role", auth, …]. Privileges
are rows of `_priv`: [grantor, grantee, object type, object id, bits]. A user has what was granted
to it, to the roles it was granted, and to their roles in turn.

Object types: "universe" (id 0), "space", "function", "sequence", "user", "role"; an empty object id
("") means all objects of the type. Bits: 1 read, 2 write, 4 execute, 8 session, 16 usage, 32
create, 64 drop, 128 alter, 1024 insert, 2048 update, 4096 delete, 8192 grant, 16384 revoke; and one
of ours, which Tarantool keeps and passes over: 16777216 takeover, to change whose a vbucket is.

A request on a space needs *usage*, and read or write: of the universe, of all spaces, of that
space, or to own that space. User 1 (admin) may do everything. What is missing is named as Tarantool
2.6.0 names it (observed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Final

from logweir.errors import ErrorCode, RequestError

__all__ = ["ADMIN_ID", "GUEST_ID", "Access", "Directory", "Grant", "Privilege", "User", "denied"]

GUEST_ID: Final = 0
ADMIN_ID: Final = 1
PUBLIC_ID: Final = 2
REPLICATION_ID: Final = 3
SUPER_ID: Final = 31
ALL_BITS: Final = 0xFFFFFFFF


class Privilege(IntFlag):
    """Bits of a row of `_priv`."""

    READ = 1
    WRITE = 2
    EXECUTE = 4
    SESSION = 8
    USAGE = 16
    CREATE = 32
    DROP = 64
    ALTER = 128
    INSERT = 1024
    UPDATE = 2048
    DELETE = 4096
    GRANT = 8192
    REVOKE = 16384
    TAKEOVER = 1 << 24


_USAGE: Final = int(Privilege.USAGE)
_NAMES: Final = {
    Privilege.READ: "Read",
    Privilege.WRITE: "Write",
    Privilege.EXECUTE: "Execute",
    Privilege.SESSION: "Session",
    Privilege.USAGE: "Usage",
    Privilege.CREATE: "Create",
    Privilege.DROP: "Drop",
    Privilege.ALTER: "Alter",
    Privilege.INSERT: "INSERT",
    Privilege.UPDATE: "UPDATE",
    Privilege.DELETE: "DELETE",
    Privilege.GRANT: "Grant",
    Privilege.REVOKE: "Revoke",
    Privilege.TAKEOVER: "Takeover",
}


_SUPER: Final = int(
    Privilege.READ
    | Privilege.WRITE
    | Privilege.EXECUTE
    | Privilege.CREATE
    | Privilege.DROP
    | Privilege.ALTER
)


@dataclass(frozen=True, slots=True)
class User:
    """One row of `_user`. `kept`: the verifier of its password, "" if it has none."""

    id: int
    owner: int
    name: str
    is_role: bool = False
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """One row of `_priv`. `object_id`: a number, or "" for all objects of the type."""

    grantee: int
    object_type: str
    object_id: int | str
    bits: int


def denied(wanted: Privilege, object_type: str, object_name: str, user: str) -> RequestError:
    """Error 42."""
    return RequestError(
        ErrorCode.ACCESS_DENIED,
        f"{_NAMES[wanted]} access to {object_type} '{object_name}' is denied for user '{user}'",
        details={"privilege": wanted.name, "object_type": object_type, "object": object_name},
    )


@dataclass(frozen=True, slots=True)
class Access:
    """What one user may do. `universe`, `types`, `objects`: bits that it has there."""

    user: User
    universe: int
    types: Mapping[str, int] = field(default_factory=dict)
    objects: Mapping[tuple[str, int | str], int] = field(default_factory=dict)

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""
        return self.user.id == ADMIN_ID

    @property
    def is_super(self) -> bool:
        """Whether it may do everything, as admin, or one who has the role `super`."""
        return self.is_admin or self.universe & _SUPER == _SUPER

    def bits(self, object_type: str, object_id: int | str) -> int:
        """All bits it has on one object, but those of an owner."""
        if self.is_admin:
            return ALL_BITS
        granted = self.objects.get((object_type, object_id), 0)
        return self.universe | self.types.get(object_type, 0) | granted

    def may_see(self, object_type: str, object_id: int | str, owner: int, wanted: int) -> bool:
        """Whether an object shows in a system view: it is owned, or any bit of `wanted` is had."""
        return owner == self.user.id or bool(self.bits(object_type, object_id) & wanted)

    def check_universe(self, wanted: Privilege) -> None:
        """Raises error 42 unless `wanted` is had on everything."""
        if not self.is_admin and self.universe & wanted != wanted:
            raise denied(wanted, "universe", "", self.user.name)

    def check(
        self, wanted: Privilege, object_type: str, object_id: int | str, owner: int, name: str
    ) -> None:
        """Raises error 42 unless the user has usage, and `wanted` on the object or owns it."""
        if self.is_admin:
            return
        wide = self.universe | self.types.get(object_type, 0)
        if not wide & _USAGE:
            raise denied(Privilege.USAGE, "universe", "", self.user.name)
        bit = int(wanted)  # plain numbers: flags are slow, and this is asked for every request
        if wide & bit or owner == self.user.id:
            return
        granted = wide | self.objects.get((object_type, object_id), 0)
        if granted & bit != bit:
            raise denied(wanted, object_type, name, self.user.name)

    def check_definition(
        self, wanted: Privilege, object_type: str, object_id: int | str, owner: int, name: str
    ) -> None:
        """Raises error 42 unless the user may create, alter, drop … an object.

        It needs usage and `wanted`; the owner only usage, but for create.
        """
        if self.is_admin:
            return
        missing = (wanted | Privilege.USAGE) & ~(self.universe | self.types.get(object_type, 0))
        if owner == self.user.id and not missing & (Privilege.USAGE | Privilege.CREATE):
            return
        if not missing & Privilege.USAGE:
            missing &= ~self.objects.get((object_type, object_id), 0)
        if missing & Privilege.USAGE:
            raise denied(Privilege.USAGE, "universe", "", self.user.name)
        if missing:
            raise denied(wanted, object_type, name, self.user.name)


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
