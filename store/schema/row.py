"""Fields and options of rows of the system spaces, each checked for its kind. No I/O."""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Mapping
from typing import Any, Final

from logweir.errors import DecodeError, ErrorCode, LimitExceeded, RequestError
from logweir.limits import IDENTIFIER_BYTES
from logweir.store.schema.fieldtype import MP_TYPE_NAMES, MpType
from logweir.store.schema.refused import Fail, no_array, refused
from logweir.store.schema.values import invalid_msgpack
from logweir.wal.meta import parse_uuid
from logweir.wal.mp import MapPairs, unpack

_NAME_SHOWN: Final = 64
"""Of a name that is too long, in what is told of it."""

_VARIANTS: Final = 0xE0  # the ninth byte of an UUID is below it, for a Tarantool
_KIND_OF: Final = (
    (bool, MpType.BOOL),
    (str, MpType.STR),
    (bytes, MpType.BIN),
    (float, MpType.DOUBLE),
    ((list, tuple), MpType.ARRAY),
    ((dict, MapPairs), MpType.MAP),
)


def kind_of(value: Any) -> MpType:
    """As which kind of MsgPack a value came."""
    if value is None:
        return MpType.NIL
    for kinds, kind in _KIND_OF:
        if isinstance(value, kinds):
            return kind
    if isinstance(value, int):
        return MpType.INT if value < 0 else MpType.UINT
    return MpType.EXT


def read_row(data: bytes) -> list[Any]:
    """A tuple as values. Raises `RequestError` 20 for what is no MsgPack, 22 for no array."""
    try:
        row = unpack(data)
    except (DecodeError, LimitExceeded):
        raise invalid_msgpack() from None
    if not isinstance(row, list):
        raise no_array()
    return row


def row_numbers(data: bytes, count: int) -> list[int]:
    """The first fields of a tuple, which must be ids. Raises as `read_row`, and 37, 23."""
    row = read_row(data)
    return [u32(row, number) for number in range(count)]


def field(row: list[Any], number: int, wanted: MpType) -> Any:
    """A field of a row, of that kind. Raises 37, 23."""
    if number >= len(row):
        raise refused(ErrorCode.NO_SUCH_FIELD_NO, field=number + 1)
    if kind_of(row[number]) is not wanted:
        raise refused(ErrorCode.FIELD_TYPE, field=number + 1, type=MP_TYPE_NAMES[wanted])
    return row[number]


def u32(row: list[Any], number: int) -> int:
    """A field of a row that is below 2^32. Raises 37, 23."""
    value: int = field(row, number, MpType.UINT)
    if value > 0xFFFFFFFF:
        raise refused(ErrorCode.FIELD_TYPE, field=number + 1, type="unsigned")
    return value


def i64(row: list[Any], number: int) -> int:
    """A field of a row that is an integer below 2^63. Raises 23."""
    value = row[number] if number < len(row) else None
    if not isinstance(value, int) or isinstance(value, bool) or value > 2**63 - 1:
        raise refused(ErrorCode.FIELD_TYPE, field=number + 1, type="integer")
    return value


def encoded(text: str) -> bytes:
    """The bytes of a text, as they came."""
    return text.encode("utf-8", "surrogateescape")


def is_too_long(name: str) -> bool:
    """Whether the name of a space, index, field, sequence, user or other thing is."""
    return len(encoded(name)) > IDENTIFIER_BYTES


def check_identifier(name: str) -> None:
    """Check the name of a space, index, field, sequence or user. Raises 70."""
    forbidden = ("Cn", "Zl", "Zp", "Cc", "Cs")
    if not name or "\ufffd" in name or any(unicodedata.category(one) in forbidden for one in name):
        raise refused(ErrorCode.IDENTIFIER, name=name)


def check_length(name: str, what: str, code: ErrorCode, **details: object) -> None:
    """Check the name of a `what`, such as a space. Raises the error of that code."""
    if is_too_long(name):
        details[what] = name[:_NAME_SHOWN]
        raise refused(code, reason=f"{what} name is too long", **details)


def check_name(name: str, what: str, code: ErrorCode, **details: object) -> None:
    """`check_length`, then `check_identifier`."""
    check_length(name, what, code, **details)
    check_identifier(name)


def pairs(options: Any) -> list[tuple[Any, Any]]:
    """The keys and values of a map, whatever its keys are."""
    return list(options.pairs if isinstance(options, MapPairs) else options.items())


class Options:
    """The options of a map, taken one by one: type checked, defaults kept.

    `specs`: name → kind ("boolean", "unsigned", "integer", "float", "string", "enum", "legacy").
    `refuse`: raises with the reason. Unknown options are refused, or left out with `lenient`.
    """

    def __init__(
        self, given: Any, specs: Mapping[str, str], refuse: Fail, *, lenient: bool = False
    ) -> None:
        self.values: dict[str, Any] = {}
        for key, value in pairs(given):
            if not isinstance(key, str):
                refuse("key must be a string")
            kind = specs.get(key)
            if kind is None:
                if lenient:
                    continue
                refuse(f"unexpected option '{key}'")
            if not _fits(kind, value):
                refuse(f"'{key}' must be {kind}")
            if kind == "string" and not value:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option, or its default."""
        return self.values.get(name, default)


def _fits(kind: str, value: Any) -> bool:
    found = kind_of(value)
    if kind == "boolean":
        return found is MpType.BOOL
    if kind == "unsigned":
        return found is MpType.UINT and value <= 0xFFFFFFFF
    if kind == "integer":
        return found in (MpType.UINT, MpType.INT) and value < 2**63
    if kind == "float":
        return found in (MpType.UINT, MpType.INT, MpType.DOUBLE)
    return kind == "legacy" or found is MpType.STR


def choose(value: str, known: tuple[str, ...]) -> str | None:
    """One of the known words, in whatever case it came."""
    low = value.lower()
    return low if low in known else None


def need_uuid(data: bytes) -> uuid.UUID:
    """That of a row of `_cluster` or `_schema`. Raises 64 for one that no Tarantool would read."""
    found = uuid_of(data)
    if found is None or not found.int or found.bytes[8] >= _VARIANTS:
        shown = read_row(data)[1:2]
        raise RequestError(ErrorCode.INVALID_UUID, f"Invalid UUID: {''.join(map(str, shown))}")
    return found


def uuid_of(data: bytes) -> uuid.UUID | None:
    """The second field of a row, None if it is no UUID."""
    row = read_row(data)
    return parse_uuid(row[1]) if len(row) > 1 and isinstance(row[1], str) else None
