"""Which rows of system spaces may be written by whom: definitions, users, grants.

To write into a system space needs *write* on it, like any other. What the row does is checked
beside that, with the tuple as it was and as it became; the request is undone if it may not be:

===================  ==============================================================================
space                what is needed, on which object
===================  ==============================================================================
276 _collation       create, drop: the collation
280 _space           create, alter, drop: the space
284 _sequence        create, alter, drop: the sequence
288 _index           create, alter, drop of an index: the same on its space
296 _func            create, drop: the function; it cannot be altered (5)
304 _user            create, alter, drop: the user or role; everybody may alter themselves
312 _priv            the grantor is oneself or one has grant (revoke) on the object; and the grantor
                     owns the object, or is admin; everybody may grant the role `public`
330 _truncate        write: the space
364 _ck_constraint   write; what is no SQL for certain is refused (195)
340 _space_sequence  read and write on the sequence (create, drop if it was generated with the
                     space), alter on the space
===================  ==============================================================================

An object's owner needs no privilege but usage, except to create it; of an altered space the owner
is the new one, of an altered sequence the old one. Rows of `_func`, `_user` and `_priv` are
checked for sense, too, by whomever they are written: 43, 84 a user or role that cannot be; 44 one
of the system's is dropped, or one that still has objects; 45, 82 nobody has that id; 49 unknown
type; 50, 100 a function that cannot be; 56 too many users; 71 a function that has grants; 87 roles
in a loop; 88 nothing is granted.
Source: Tarantool 2.6.0, `alter.cc`, `user.cc`, observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine import reads
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request, key_bytes
from logweir.store.engine.select import Select, select
from logweir.store.engine.update import apply_update
from logweir.store.schema.access import (
    ADMIN_ID,
    PUBLIC_ID,
    SUPER_ID,
    Access,
    Privilege,
    denied,
)
from logweir.store.schema.definition import LOGIN_METHOD, SYSTEM_ID_MAX, SystemSpace
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.refused import refused, refusing, unsupported
from logweir.store.schema.row import check_identifier, check_length, check_name
from logweir.store.schema.sqltext import check_expressions
from logweir.wal.mp import Value, pack, unpack
from logweir.wal.xrow import RowType

_USERS_MAX: Final = 32
_FUNCTION_FIELDS: Final = 17  # after them are times
_FUNCTION_VALUES: Final[Mapping[int, tuple[frozenset[str], str]]] = {
    6: (frozenset({"FUNCTION"}), "unsupported routine_type value"),
    10: (frozenset({"NONE"}), "unsupported sql_data_access value"),
    13: (frozenset({"TRUE"}), "unsupported is_null_call value"),
    8: (frozenset(one.name for one in FieldType), "invalid returns value"),
    14: (frozenset({"LUA", "SQL"}), "invalid exports value"),
    9: (frozenset({"NONE", "GROUP"}), "invalid aggregate value"),
    7: (frozenset(one.name for one in FieldType), "invalid argument type"),
}
"""What may stand in a field of `_func`, or in its array, and what is said of anything else; in the
order in which a real one looks."""
_LANGUAGE_BEFORE: Final = 8
_VERIFIER_CHARACTERS: Final = 28
_FUNCTION_MOST: Final = 32_000
_OBJECT_SPACES: Final[Mapping[str, SystemSpace]] = {
    "space": SystemSpace.SPACE,
    "function": SystemSpace.FUNC,
    "sequence": SystemSpace.SEQUENCE,
    "user": SystemSpace.USER,
    "role": SystemSpace.USER,
}
_DEFINES: Final[Mapping[int, str]] = {
    SystemSpace.COLLATION: "collation",
    SystemSpace.SPACE: "space",
    SystemSpace.SEQUENCE: "sequence",
    SystemSpace.FUNC: "function",
}
_OWNER_FIELD: Final[Mapping[int, int]] = {SystemSpace.COLLATION: 2}
_NAME_FIELD: Final[Mapping[int, int]] = {SystemSpace.COLLATION: 1}

_LATE: Final = frozenset(
    (
        ErrorCode.DROP_SPACE,
        ErrorCode.ALTER_SPACE,
        ErrorCode.LAST_DROP,
        ErrorCode.DROP_PRIMARY_KEY,
        ErrorCode.DROP_SEQUENCE,
        ErrorCode.NO_SUCH_INDEX_ID,
        ErrorCode.INDEX_TYPE,
        ErrorCode.MODIFY_INDEX,
        ErrorCode.WRONG_INDEX_RECORD,
        ErrorCode.WRONG_INDEX_PARTS,
        ErrorCode.WRONG_INDEX_OPTIONS,
    )
)
"""What is found out only after the rights were looked at."""

Row = list[Any]


def check_late(engine: Engine, request: Request, access: Access, error: BaseException) -> None:
    """Look at the rights to what was refused with `error` and is undone, if they are looked at
    before that: where both have something against a request, that of the rights is told.

    Where an UPDATE makes no tuple at all, the right to alter the one that is there is looked at.
    """
    if request.space_id > SYSTEM_ID_MAX or getattr(error, "code", None) not in _LATE:
        return
    space = engine.schema.space(request.space_id)
    key = request.key
    if request.tuple is not None:
        row = unpack(request.tuple)
        primary = engine.schema.index(space, 0)
        key = pack([row[part.field_no] for part in primary.parts])
    index = engine.schema.index(space, request.index_id)
    old = reads.one(engine, space, index, key or b"\x90")
    new = request.tuple or old
    if request.type == RowType.DELETE:
        new = None
    elif request.ops is not None and old is not None:
        with contextlib.suppress(RequestError):
            base = request.index_base
            new = apply_update(old, request.ops, index_base=base, space=space)
    check_row(engine, access, space.id, old, new)


def check_row(
    engine: Engine, access: Access, space_id: int, old: bytes | None, new: bytes | None
) -> None:
    """Check what a request has just done to a row of a system space.

    `engine`: the store behind it; `old`, `new`: the tuple before and after, None if there is
    none. Raises `RequestError`; then the request is to be undone.
    """
    if old is None and new is None:
        return
    before: Row | None = None if old is None else unpack(old)
    after: Row | None = None if new is None else unpack(new)
    rows = _Rows(engine, access)
    if space_id == SystemSpace.USER:
        rows.user(before, after)
    elif space_id == SystemSpace.PRIV:
        rows.privilege(before, after)
    elif space_id == SystemSpace.INDEX:
        rows.index(before, after)
    elif space_id == SystemSpace.SPACE_SEQUENCE:
        rows.sequence_use(before, after)
    elif space_id == SystemSpace.TRUNCATE and after is not None:
        rows.truncation(after)
    elif space_id == SystemSpace.CK_CONSTRAINT and after is not None:
        _check_condition(after)
    elif space_id in _DEFINES:
        rows.definition(space_id, before, after)


def _check_condition(row: Row) -> None:
    """Check what a CHECK says, as far as is known here."""
    try:
        check_expressions((row[4],))
    except RequestError as error:
        code = ErrorCode.CREATE_CK_CONSTRAINT
        raise refused(code, error.hint, name=row[1], reason=error.message) from None


def _step(before: object, after: object) -> Privilege:
    if before is None:
        return Privilege.CREATE
    return Privilege.DROP if after is None else Privilege.ALTER


class _Rows:
    """The checks of one request."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    def _row(self, space_id: int, key: Value) -> Row | None:
        space = self.engine.schema.space(space_id)
        index = self.engine.schema.index(space, 0)
        found = reads.one(self.engine, space, index, key_bytes(key))
        return None if found is None else unpack(found)

    def _has(self, space_id: int, key: list[Any], index: int) -> bool:
        wanted = Select.packed(self.engine.schema, space_id, pack(key), 0, index=index, limit=1)
        return next(iter(select(self.engine, wanted)), None) is not None

    # --- definitions ------------------------------------------------------------------------------

    def definition(self, space_id: int, before: Row | None, after: Row | None) -> None:
        if space_id == SystemSpace.FUNC and after is not None:
            _check_function(after)
        if space_id == SystemSpace.FUNC and before is not None and after is not None:
            if _function(before) != _function(after):
                raise unsupported("function does not support alter")
            return
        row = after or before or []
        owning = before if space_id == SystemSpace.SEQUENCE and before is not None else row
        owner = owning[_OWNER_FIELD.get(space_id, 1)]
        name = row[_NAME_FIELD.get(space_id, 2)]
        step = _step(before, after)
        self.access.check_definition(step, _DEFINES[space_id], row[0], owner, name)
        is_dropped = space_id == SystemSpace.FUNC and after is None
        if is_dropped and self._has(SystemSpace.PRIV, ["function", row[0]], 2):
            text = f"Can't drop function {row[0]}: function has grants"
            raise RequestError(ErrorCode.DROP_FUNCTION, text)

    def index(self, before: Row | None, after: Row | None) -> None:
        row = after or before or []
        space = self.engine.schema.space(row[0])
        step = _step(before, after)
        self.access.check_definition(step, "space", space.id, space.owner, space.name)

    def truncation(self, after: Row) -> None:
        space = self.engine.schema.space(after[0])
        self.access.check(Privilege.WRITE, "space", space.id, space.owner, space.name)

    def sequence_use(self, before: Row | None, after: Row | None) -> None:
        row = after or before or []
        space = self.engine.schema.space(row[0])
        sequence = self.engine.schema.sequence(row[1])
        owner = self._row(SystemSpace.SEQUENCE, sequence.id)
        wanted = (
            (_step(before, after),)
            if after is None or row[2]
            else (Privilege.READ, Privilege.WRITE)
        )
        for one in wanted:
            self.access.check_definition(
                one, "sequence", sequence.id, owner[1] if owner else ADMIN_ID, sequence.name
            )
        self.access.check_definition(Privilege.ALTER, "space", space.id, space.owner, space.name)

    # --- users ------------------------------------------------------------------------------------

    def user(self, before: Row | None, after: Row | None) -> None:
        if after is not None:
            _check_user(after)
        row = after or before or []
        user_id, owner, name = row[:3]
        kind = (before or row)[3]
        step = _step(before, after)
        if step == Privilege.ALTER:
            owner = user_id
        self.access.check_definition(step, kind, user_id, owner, name)
        if step == Privilege.CREATE:
            users = self.engine.txn.tree(SystemSpace.USER, 0)
            if users is not None and users.count() > _USERS_MAX:
                text = f"A limit on the total number of users has been reached: {_USERS_MAX}"
                raise RequestError(ErrorCode.USER_MAX, text)
        elif step == Privilege.DROP:
            self._check_drop(user_id, name)

    def _check_drop(self, user_id: int, name: str) -> None:
        reason = ""
        if user_id <= PUBLIC_ID + 1 or user_id == SUPER_ID:
            reason = "the user or the role is a system"
        elif any(
            self._has(space_id, key, index)
            for space_id, key, index in (
                (SystemSpace.SPACE, [user_id], 1),
                (SystemSpace.FUNC, [user_id], 1),
                (SystemSpace.SEQUENCE, [user_id], 1),
                (SystemSpace.PRIV, [user_id], 1),
                (SystemSpace.PRIV, [user_id], 0),
                (SystemSpace.PRIV, ["role", user_id], 2),
            )
        ):
            reason = "the user has objects"
        if reason:
            text = f"Failed to drop user or role '{name}': {reason}"
            raise RequestError(ErrorCode.DROP_USER, text)

    # --- grants -----------------------------------------------------------------------------------

    def privilege(self, before: Row | None, after: Row | None) -> None:
        row = after or before or []
        grantor, grantee, kind, object_id, bits = row[:5]
        if kind not in ("universe", *_OBJECT_SPACES):
            text = f"Unknown object type '{kind}'"
            raise RequestError(ErrorCode.UNKNOWN_SCHEMA_OBJECT, text)
        if after is None and self.access.is_admin and not self._row(SystemSpace.USER, grantor):
            return  # dropped while that was not refused: nobody could revoke it
        wanted = Privilege.REVOKE if after is None else Privilege.GRANT
        grantor_row = self._user(grantor)
        grantee_row = self._user(grantee)
        is_wide = object_id == "" or kind == "universe"
        found = None if is_wide else self._object(kind, object_id)
        name = "" if is_wide else "(nil)" if found is None else found[2]
        self.access.check_definition(wanted, kind, object_id, grantor, name)
        if found is None and not is_wide:
            raise _no_object(kind, object_id)
        is_public = object_id == PUBLIC_ID and kind == "role" and bits == Privilege.EXECUTE
        if grantor != ADMIN_ID and not is_public and (found is None or found[1] != grantor):
            raise denied(wanted, kind, name, grantor_row[2])
        if kind == "role" and found is not None:
            self._check_loop(grantee_row, found)
        if after is not None and bits == 0:
            text = "Incorrect grant arguments: the grant tuple has no privileges"
            raise RequestError(ErrorCode.GRANT, text)

    def _user(self, user_id: int) -> Row:
        row = self._row(SystemSpace.USER, user_id)
        if row is None:
            raise RequestError(ErrorCode.NO_SUCH_USER, f"User '{user_id}' is not found")
        return row

    def _object(self, kind: str, object_id: int) -> Row | None:
        row = self._row(_OBJECT_SPACES[kind], object_id)
        return None if row is None or (kind in ("user", "role") and row[3] != kind) else row

    def _check_loop(self, grantee: Row, role: Row) -> None:
        """A role must not be granted to one that it has itself, over whatever steps."""
        reached, ahead = {role[0]}, [role[0]]
        while ahead:
            one = ahead.pop()
            if one == grantee[0]:
                text = f"Granting role '{role[2]}' to role '{grantee[2]}' would create a loop"
                raise RequestError(ErrorCode.ROLE_LOOP, text)
            wanted = Select.packed(
                self.engine.schema, SystemSpace.PRIV, pack([one, "role"]), 0, index=0, limit=None
            )
            for row in map(unpack, select(self.engine, wanted)):
                if row[3] not in reached:
                    reached.add(row[3])
                    ahead.append(row[3])


def _no_object(kind: str, object_id: int) -> RequestError:
    code, text = {
        "space": (ErrorCode.NO_SUCH_SPACE, "Space '{}' does not exist"),
        "function": (ErrorCode.NO_SUCH_FUNCTION, "Function '{}' does not exist"),
        "sequence": (ErrorCode.NO_SUCH_SEQUENCE, "Sequence '{}' does not exist"),
        "user": (ErrorCode.NO_SUCH_USER, "User '{}' is not found"),
        "role": (ErrorCode.NO_SUCH_ROLE, "Role '{}' is not found"),
    }[kind]
    return RequestError(code, text.format(object_id))


def _function(row: Row) -> Row:
    """What of a row of `_func` cannot be altered, in one spelling."""
    known = row[:_FUNCTION_FIELDS]
    known[3:5] = [bool(known[3]), *(str(one).upper() for one in known[4:5])]
    return known


def _check_function(row: Row) -> None:
    """What a row of `_func` holds, as far as a real one looks at it. Raises 23, 50, 70, 100."""
    name, language = row[2], str(row[4]).upper() if len(row) > 4 else "LUA"
    check_name(name, "function", ErrorCode.CREATE_FUNCTION)
    refuse = refusing(ErrorCode.CREATE_FUNCTION, function=name)
    for field_no, (known, reason) in _FUNCTION_VALUES.items():
        if field_no == _LANGUAGE_BEFORE and row[0] > _FUNCTION_MOST:
            refuse("function id is too big")
        if field_no == _LANGUAGE_BEFORE and language not in ("LUA", "C", "SQL_BUILTIN"):
            text = f"Unsupported language '{row[4]}' specified for function '{name}'"
            raise RequestError(ErrorCode.FUNCTION_LANGUAGE, text)
        value = row[field_no] if len(row) > field_no else ()
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(value, list | tuple) and not isinstance(one, str):
                raise refused(ErrorCode.FIELD_TYPE, field=field_no + 1, type="string")
            if str(one).upper() not in known:
                refuse(reason)
    if language == "SQL_BUILTIN":
        refuse("given built-in is not predefined")
    if language == "C" and len(row) > 5 and row[5]:
        refuse("function body is not supported for language C")


def _check_user(row: Row) -> None:
    """What a row of `_user` holds. Raises 43, 70, 84."""
    kind, name = row[3], row[2]
    check_length(name, "user", ErrorCode.CREATE_USER)
    refuse = refusing(ErrorCode.CREATE_USER, user=name)
    if kind not in ("user", "role"):
        refuse("unknown user type")
    check_identifier(name)
    auth = row[4] if len(row) > 4 else {}
    if kind == "role" and auth not in ({}, []):
        text = f"Failed to create role '{name}': authentication data can not be set for a role"
        raise RequestError(ErrorCode.CREATE_ROLE, text)
    if auth == []:
        return
    if not isinstance(auth, dict):
        refuse("invalid password format, use box.schema.user.password()")
    kept = auth.get(LOGIN_METHOD, " " * _VERIFIER_CHARACTERS)
    if not isinstance(kept, str) or len(kept) != _VERIFIER_CHARACTERS:
        refuse("invalid user password")
