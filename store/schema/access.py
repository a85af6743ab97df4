"""Rights: their bits, and what one user may do with them. Pure functions.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from logweir.errors import ErrorCode, RequestError

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
_DML: Final = Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE
_NAMES: Final = {
    one: name if one in _DML else name.capitalize() for name, one in Privilege.__members__.items()
}
"""As errors tell them."""

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


ADMIN: Final = Access(User(ADMIN_ID, ADMIN_ID, "admin"), ALL_BITS)
"""What the embedded store may do."""
