"""What to do about what a store or a server refuses: its own words say only what is wrong."""

from __future__ import annotations

from logweir.errors import ErrorCode, RequestError
from logweir.store.schema.definition import IndexDef, SpaceDef

_OF_KEYS = (ErrorCode.KEY_PART_TYPE, ErrorCode.KEY_PART_COUNT, ErrorCode.EXACT_MATCH)
_OF_INDEXES = (ErrorCode.NO_SUCH_INDEX_ID, ErrorCode.NO_SUCH_INDEX_NAME)
_OF_LOGINS = (ErrorCode.PASSWORD_MISMATCH, ErrorCode.NO_SUCH_USER)
_OF_FIELDS = (
    ErrorCode.FIELD_TYPE,
    ErrorCode.FIELD_MISSING,
    ErrorCode.EXACT_FIELD_COUNT,
    ErrorCode.NO_SUCH_FIELD_NO,
    ErrorCode.NO_SUCH_FIELD_NAME,
)
LOGIN_HINT = "look at the user and the password: in the address, a file or LOGWEIR_PASSWORD"
"""Where a server does not let somebody in."""


def with_hint(error: RequestError, where: str, space: SpaceDef | None) -> RequestError:
    """The same with what to do. `where`: the folder, or an address without its password; `space`:
    of which it speaks, where that is known. One that has a hint stays as it is, but that of a
    server names it."""
    hint, message = "" if "://" in where else error.hint, error.message
    if not hint and "://" in where and error.code in (*_OF_LOGINS, ErrorCode.ACCESS_DENIED):
        message = f"{where}: {message}"
    hint = hint or _hint(error.code, where, space) or error.hint
    return RequestError(error.code, message, hint=hint, details=error.details)


def _hint(code: ErrorCode, where: str, space: SpaceDef | None) -> str:
    if code in _OF_LOGINS:
        return LOGIN_HINT
    if code == ErrorCode.ACCESS_DENIED:
        return "`logweir user grant` gives rights; log in as who may do it, or ask an administrator"
    if code == ErrorCode.NO_SUCH_SPACE:
        seen = ", of those that its user may know" if "://" in where else ""
        return f"`logweir space list {where}` shows those that there are{seen}"
    if code == ErrorCode.TUPLE_FOUND:
        return "`logweir replace` stores a tuple in the place of the one with its key"
    if space is None:
        return ""
    if code == ErrorCode.MORE_THAN_ONE_TUPLE:
        unique = " ".join(_index_text(space, one) for one in space.indexes if one.is_unique)
        return f"give the whole key of a unique index: {unique}; `logweir select` has all of others"
    if code in (*_OF_KEYS, *_OF_INDEXES):
        return (
            f"indexes of {space.name}: {' '.join(_index_text(space, one) for one in space.indexes)}"
        )
    if code in _OF_FIELDS and space.fields:
        fields = " ".join(field_text(one.to_map()) for one in space.fields)
        return f"fields of {space.name}, of which the message counts the first as 1: {fields}"
    return ""


def field_name(space: SpaceDef, number: int) -> str | int:
    """Of a field, or its number from 0 where it has none."""
    return space.fields[number].name if number < len(space.fields) else number


def field_text(field: dict[str, object]) -> str:
    """Name and type of a field, as `--field` takes them."""
    return f"{field['name']}:{field['type']}{'?' if field.get('is_nullable') else ''}"


def _index_text(space: SpaceDef, index: IndexDef) -> str:
    """Name and fields of an index, with their types."""
    parts = (f"{field_name(space, one.field_no)}:{one.type.label}" for one in index.parts)
    return f"{index.name}={','.join(parts)}"
