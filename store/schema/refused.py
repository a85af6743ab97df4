"""What a store refuses, in Tarantool's words: errors, and the texts that more than one place has.

Source: Tarantool 2.6.0, `errcode.h`, observed.
"""

from __future__ import annotations

from typing import Final, NoReturn, Protocol

from logweir.errors import ErrorCode as Code
from logweir.errors import RequestError


class Fail(Protocol):
    """Raises the error of the thing at hand with a reason, and what to do about it."""

    def __call__(self, reason: str, hint: str = "", /) -> NoReturn: ...


_TEXTS: Final = {
    Code.TUPLE_FOUND: "Duplicate key exists in unique index '{index}' in space '{space}'",
    Code.CREATE_SPACE: "Failed to create space '{space}': {reason}",
    Code.DROP_SPACE: "Can't drop space '{space}': {reason}",
    Code.ALTER_SPACE: "Can't modify space '{space}': {reason}",
    Code.INDEX_TYPE: "Unsupported index type supplied for index '{index}' in space '{space}'",
    Code.MODIFY_INDEX: "Can't create or modify index '{index}' in space '{space}': {reason}",
    Code.LAST_DROP: "Can't drop the primary key in a system space, space '{space}'",
    Code.DROP_PRIMARY_KEY: "Can't drop primary key in space '{space}' while secondary keys exist",
    Code.KEY_PART_TYPE: "Supplied key type of part {part} does not match index part type: "
    "expected {type}",
    Code.EXACT_MATCH: "Invalid key part count in an exact match (expected {wanted}, got {count})",
    Code.FIELD_TYPE: "Tuple field {field} type does not match one required by operation: "
    "expected {type}",
    Code.INDEX_PART_TYPE_MISMATCH: "Field {field} has type '{type}' in one index, but type "
    "'{wanted}' in another",
    Code.UPDATE_SPLICE: "SPLICE error on field {field}: offset is out of bound",
    Code.UPDATE_ARG_TYPE: "Argument type in operation '{op}' on field {field} does not match field "
    "type: expected {type}",
    Code.FORMAT_MISMATCH_INDEX_PART: "Field {field} has type '{type}' in space format, but type "
    "'{wanted}' in index definition",
    Code.UNKNOWN_UPDATE_OP: "Unknown UPDATE operation #{number}: {reason}",
    Code.UPDATE_FIELD: "Field {field} UPDATE error: {reason}",
    Code.KEY_PART_COUNT: "Invalid key part count (expected [0..{wanted}], got {count})",
    Code.NO_SUCH_SPACE: "Space '{space}' does not exist",
    Code.NO_SUCH_FIELD_NO: "Field {field} was not found in the tuple",
    Code.EXACT_FIELD_COUNT: "Tuple field count {count} does not match space field count {wanted}",
    Code.FIELD_MISSING: "Tuple field {field} required by space format is missing",
    Code.MORE_THAN_ONE_TUPLE: "Get() doesn't support partial keys and non-unique indexes",
    Code.CREATE_USER: "Failed to create user '{user}': {reason}",
    Code.UNKNOWN_REQUEST_TYPE: "Unknown request type {type}",
    Code.CREATE_FUNCTION: "Failed to create function '{function}': {reason}",
    Code.REPLICASET_UUID_IS_RO: "Can't reset replica set UUID: it is already assigned",
    Code.REPLICA_ID_IS_RESERVED: "Can't initialize replica id with a reserved value {replica_id}",
    Code.IDENTIFIER: "Invalid identifier '{name}' (expected printable symbols only or it is too "
    "long)",
    Code.CANT_UPDATE_PRIMARY_KEY: "Attempt to modify a tuple field which is part of index "
    "'{index}' in space '{space}'",
    Code.UPDATE_INTEGER_OVERFLOW: "Integer overflow when performing '{op}' operation on field "
    "{field}",
    Code.WRONG_INDEX_PARTS: "Wrong index parts: {reason}; expected field1 id (number), field1 type "
    "(string), ...",
    Code.WRONG_INDEX_OPTIONS: "Wrong index options (field {field}): {reason}",
    Code.WRONG_SPACE_OPTIONS: "Wrong space options (field 5): {reason}",
    Code.LOCAL_INSTANCE_ID_IS_READ_ONLY: "The local instance id {replica_id} is read-only",
    Code.TRUNCATE_SYSTEM_SPACE: "Can't truncate a system space, space '{space}'",
    Code.WRONG_SPACE_FORMAT: "Wrong space format (field {field}): {reason}",
    Code.CREATE_SEQUENCE: "Failed to create sequence '{sequence}': {reason}",
    Code.ALTER_SEQUENCE: "Can't modify sequence '{sequence}': {reason}",
    Code.DROP_SEQUENCE: "Can't drop sequence '{sequence}': {reason}",
    Code.NO_SUCH_SEQUENCE: "Sequence '{sequence}' does not exist",
    Code.SPACE_FIELD_IS_DUPLICATE: "Space field '{field}' is duplicate",
    Code.CANT_CREATE_COLLATION: "Failed to initialize collation: {reason}.",
    Code.WRONG_COLLATION_OPTIONS: "Wrong collation options (field {field}): {reason}",
    Code.NULLABLE_PRIMARY: "Primary index of space '{space}' can not contain nullable parts",
    Code.UPDATE_DECIMAL_OVERFLOW: "Decimal overflow when performing operation '{op}' on field "
    "{field}",
    Code.VIEW_MISSING_SQL: "Space declared as a view must have SQL statement",
    Code.DROP_COLLATION: "Can't drop collation none : system collation",
    Code.MULTIKEY_INDEX_MISMATCH: "Field {field} is used as multikey in one index and as single "
    "key in another",
    Code.CREATE_CK_CONSTRAINT: "Failed to create check constraint '{name}': {reason}",
    Code.FUNC_INDEX_PARTS: "Wrong functional index definition: key part numbers must be sequential "
    "and first part number must be 1",
    Code.NO_SUCH_FIELD_NAME: "Field '{field}' was not found in the tuple",
    Code.UNCOMMITTED_FOREIGN_SYNC_TXNS: "Found uncommitted sync transactions from other instance "
    "with id {replica_id}",
}
"""With the names of what stands in them."""


def refused(code: Code, hint: str = "", /, **details: object) -> RequestError:
    """The error of that code: its text is made of `details`, which it keeps."""
    return RequestError(code, _TEXTS[code].format_map(details), hint=hint, details=details)


def refusing(code: Code, **details: object) -> Fail:
    """What raises the error of that code with a `reason`."""

    def fail(reason: str, hint: str = "", /) -> NoReturn:
        raise refused(code, hint, reason=reason, **details)

    return fail


def refuse_first(refuse: Fail, *checks: tuple[bool, str]) -> None:
    """Call `refuse` with the first reason that holds, if any does."""
    for is_wrong, reason in checks:
        if is_wrong:
            refuse(reason)


def unsupported(text: str, hint: str = "", **details: object) -> RequestError:
    """Error 5: what the text says is not done here."""
    return RequestError(Code.UNSUPPORTED, text, hint=hint, details=details)


def no_array() -> RequestError:
    """Error 22: a tuple or a key has to be a list."""
    return RequestError(
        Code.TUPLE_NOT_ARRAY,
        "Tuple/Key must be MsgPack array",
        hint='give all fields in one list or tuple: [1, "x"]',
    )


def illegal(text: str, hint: str = "") -> RequestError:
    """Error 1: what was asked for makes no sense."""
    return RequestError(Code.ILLEGAL_PARAMS, text, hint=hint)
