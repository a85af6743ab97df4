"""Users, roles and grants of a store, changed as Tarantool's `box.schema.user` changes them.

A new user gets id (highest + 1, from 32 on), the role `public`, the right to alter itself, and
session and usage of everything, so that it may connect. A new role gets nothing. Passwords are kept
as verifiers only: `chap-sha1` in `_user`, others as `logweir.replication.service.verifiers` says.
What can
be granted: a role; or read, write, execute, create, drop, alter, session, usage, takeover on the
universe, on all spaces, functions or sequences, or on one of these.
Source: rows that Tarantool 2.6.0 makes, observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logweir.errors import ErrorCode, RequestError
from logweir.replication.service import verifiers
from logweir.replication.service.access import Directory, read_directory
from logweir.store.schema.access import ADMIN_ID, GUEST_ID, PUBLIC_ID, SUPER_ID, Privilege, User
from logweir.store.schema.definition import LOGIN_METHOD
from logweir.store.schema.row import check_name

if TYPE_CHECKING:
    from logweir.store.log import Log
    from logweir.store.transaction import Transaction

_USER: Final = "_user"
_PRIV: Final = "_priv"

_UNNAMED: Final = (
    Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE | Privilege.GRANT | Privilege.REVOKE
)
PRIVILEGES: Final = {
    name.lower(): one for name, one in Privilege.__members__.items() if one not in _UNNAMED
}
OBJECT_SPACES: Final = {"space": "_space", "function": "_func", "sequence": "_sequence"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a grant is about. `type`: "universe", "space", "function", "sequence" or "role";
    `name`: of one object, "" for all of that type."""

    type: str = "universe"
    name: str = ""


def _find(directory: Directory, name: str) -> User:
    for user in directory.users():
        if user.name == name:
            return user
    raise RequestError(
        ErrorCode.NO_SUCH_USER,
        f"User '{name}' is not found",
        hint="`logweir user list` shows all",
    )


def add_user(log: Log, name: str, *, password: str | None = None, role: bool = False) -> int:
    """Make a user, or a role. Returns its id. Raises USER_EXISTS, IDENTIFIER,
    CREATE_USER."""
    check_name(name, "user", ErrorCode.CREATE_USER)
    directory = read_directory(log)
    if any(user.name == name for user in directory.users()):
        raise RequestError(ErrorCode.USER_EXISTS, f"User '{name}' already exists")
    user_id = max(user.id for user in directory.users()) + 1
    user_id = max(user_id, SUPER_ID + 1)
    auth = {LOGIN_METHOD: verifiers.verifier(password)} if password is not None else {}
    with log.transaction() as tx:
        tx.insert(_USER, (user_id, ADMIN_ID, name, "role" if role else "user", auth))
        if not role:
            tx.insert(_PRIV, (ADMIN_ID, user_id, "role", PUBLIC_ID, int(Privilege.EXECUTE)))
            tx.insert(_PRIV, (ADMIN_ID, user_id, "user", user_id, int(Privilege.ALTER)))
            connect = int(Privilege.SESSION | Privilege.USAGE)
            tx.insert(_PRIV, (ADMIN_ID, user_id, "universe", 0, connect))
    if password is not None:
        _keep_verifiers(log, name, password)
    return user_id


def _keep_verifiers(log: Log, name: str, password: str) -> None:
    verifiers.make_space(log)
    with log.transaction() as tx:
        for request in verifiers.keep(log, name, password, verifiers.verifier(password)):
            tx.execute(request)


def change_password(log: Log, name: str, password: str) -> None:
    """Give a user another password. Raises NO_SUCH_USER; a role and guest have none."""
    user = _find(read_directory(log), name)
    if user.is_role or user.id == GUEST_ID:
        text = f"Setting password for {'role' if user.is_role else 'guest user'} has no effect"
        raise RequestError(ErrorCode.ILLEGAL_PARAMS, text, hint="give it to a user")
    log.update(_USER, user.id, [["=", 4, {LOGIN_METHOD: verifiers.verifier(password)}]])
    _keep_verifiers(log, name, password)


def drop_user(log: Log, name: str) -> None:
    """Remove a user or role and everything that was granted to it, or, a role, of it."""
    directory = read_directory(log)
    user = _find(directory, name)
    if user.id <= SUPER_ID:
        kind = "role" if user.is_role else "user"
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS, f"the {kind} '{name}' is one of the system's and stays"
        )
    with log.transaction() as tx:
        for other in directory.users():
            for one in directory.grants(other.id):
                if other.id == user.id or (one.object_type, one.object_id) == ("role", user.id):
                    tx.delete(_PRIV, (other.id, one.object_type, one.object_id))
        tx.delete(_USER, user.id)
    with log.transaction() as tx:
        for request in verifiers.forget(log, name):
            tx.execute(request)


def _object_id(log: Log, target: Target) -> int | str:
    if target.type == "universe":
        return 0
    if target.type == "role":
        return _find(read_directory(log), target.name).id
    if target.type not in OBJECT_SPACES:
        known = ", ".join(("universe", "role", *OBJECT_SPACES))
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS, f"nothing is granted on {target.type!r}", hint=f"{known}"
        )
    if not target.name:
        return ""
    if target.type == "space":
        return log.schema.space(target.name).id
    found = log.get(OBJECT_SPACES[target.type], target.name, index="name")
    if found is None:
        text = f"{target.type.capitalize()} '{target.name}' does not exist"
        raise RequestError(ErrorCode.NO_SUCH_FUNCTION, text)
    number: int = found[0]
    return number


def _bits_now(tx: Log | Transaction, user_id: int, kind: str, number: int | str) -> int:
    row = tx.get(_PRIV, (user_id, kind, number))
    return row[4] if row is not None else 0


def grant(log: Log, name: str, bits: Privilege, target: Target) -> None:
    """Give a user or role more rights; of a role the right to act as it."""
    user = _find(read_directory(log), name)
    number = _object_id(log, target)
    wanted = int(Privilege.EXECUTE if target.type == "role" else bits)
    have = _bits_now(log, user.id, target.type, number)
    log.replace(_PRIV, (ADMIN_ID, user.id, target.type, number, have | wanted))


def revoke(log: Log, name: str, bits: Privilege, target: Target) -> None:
    """Take rights back; what was not granted is not missed."""
    user = _find(read_directory(log), name)
    number = _object_id(log, target)
    gone = int(Privilege.EXECUTE if target.type == "role" else bits)
    have = _bits_now(log, user.id, target.type, number)
    left = have & ~gone
    if left:
        log.replace(_PRIV, (ADMIN_ID, user.id, target.type, number, left))
    elif have:
        log.delete(_PRIV, (user.id, target.type, number))
