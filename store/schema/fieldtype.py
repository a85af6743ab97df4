"""Types of fields and index parts, and which MsgPack values they admit. No I/O.

==========  ==========================================  =========================================
type        admits                                      a field of this type can hold values of
==========  ==========================================  =========================================
any         everything; ext types 1 … 31 only           every type
unsigned    uint                                        unsigned
string      str                                         string
number      uint, int, float32, float64, decimal        unsigned, number, double, integer, decimal
double      float64 only                                double
integer     uint, int                                   unsigned, integer
boolean     bool                                        boolean
varbinary   bin                                         varbinary
scalar      all of the above but any; no uuid           unsigned … scalar, decimal; no uuid
decimal     decimal (ext 1)                             decimal
uuid        uuid (ext 2)                                uuid
array, map  array; map                                  the same
==========  ==========================================  =========================================

nil passes where the field is nullable, and always for `any`. A number that is an integer but was
sent as a float is not an integer. Old spellings are read: `num` (or a beginning of it) is
unsigned, `str` string, `*` any; letter case does not matter.
Source: Tarantool 2.6.0, `field_def.c`, observed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class MpType(IntEnum):
    """Kinds of MsgPack values, told by the first byte. The order is Tarantool's."""

    NIL = 0
    UINT = 1
    INT = 2
    STR = 3
    BIN = 4
    ARRAY = 5
    MAP = 6
    BOOL = 7
    FLOAT = 8
    DOUBLE = 9
    EXT = 10


MP_TYPE_NAMES: Final = (
    *("nil", "unsigned", "integer", "string", "blob", "array", "map", "boolean", "float"),
    *("double", "extension"),
)
"""What Tarantool calls them in messages, by `MpType`."""


class FieldType(IntEnum):
    """Types of fields. The numbers are Tarantool's and ours inside the compiled kernel."""

    ANY = 0
    UNSIGNED = 1
    STRING = 2
    NUMBER = 3
    DOUBLE = 4
    INTEGER = 5
    BOOLEAN = 6
    VARBINARY = 7
    SCALAR = 8
    DECIMAL = 9
    UUID = 10
    ARRAY = 11
    MAP = 12

    @property
    def label(self) -> str:
        """The name in definitions and messages: "unsigned" …"""
        return self.name.lower()

    @classmethod
    def parse(cls, name: str) -> FieldType | None:
        """The type of that name, old spellings included; None for a name that is no type."""
        low = name.lower()
        found = _BY_LABEL.get(low)
        if found is not None:
            return found
        if "num".startswith(low):
            return cls.UNSIGNED
        if "str".startswith(low):
            return cls.STRING
        return cls.ANY if name == "*" else None


_BY_LABEL: Final = {kind.label: kind for kind in FieldType}

EXT_DECIMAL: Final = 1
EXT_UUID: Final = 2


def _mask(*kinds: MpType) -> int:
    return sum(1 << kind for kind in kinds)


_ANY_INT: Final = (MpType.UINT, MpType.INT)
_ANY_NUMBER: Final = (*_ANY_INT, MpType.FLOAT, MpType.DOUBLE)

_ADMITTED: Final = {
    FieldType.ANY: (_mask(*MpType) & ~_mask(MpType.EXT), 0xFFFFFFFE),
    FieldType.UNSIGNED: (_mask(MpType.UINT), 0),
    FieldType.STRING: (_mask(MpType.STR), 0),
    FieldType.NUMBER: (_mask(*_ANY_NUMBER), 1 << EXT_DECIMAL),
    FieldType.DOUBLE: (_mask(MpType.DOUBLE), 0),
    FieldType.INTEGER: (_mask(*_ANY_INT), 0),
    FieldType.BOOLEAN: (_mask(MpType.BOOL), 0),
    FieldType.VARBINARY: (_mask(MpType.BIN), 0),
    FieldType.SCALAR: (
        _mask(*_ANY_NUMBER, MpType.STR, MpType.BIN, MpType.BOOL),
        1 << EXT_DECIMAL,
    ),
    FieldType.DECIMAL: (0, 1 << EXT_DECIMAL),
    FieldType.UUID: (0, 1 << EXT_UUID),
    FieldType.ARRAY: (_mask(MpType.ARRAY), 0),
    FieldType.MAP: (_mask(MpType.MAP), 0),
}

PLAIN_MASKS: Final = tuple(_ADMITTED[kind][0] for kind in FieldType)
"""By `FieldType`: bit set of the `MpType`s it admits, extensions left out."""

EXT_MASKS: Final = tuple(_ADMITTED[kind][1] for kind in FieldType)
"""By `FieldType`: bit set of the extension types it admits. Negative ones are never admitted."""

_HOLDS: Final[dict[FieldType, frozenset[FieldType]]] = {
    FieldType.ANY: frozenset(FieldType),
    FieldType.NUMBER: frozenset(
        FieldType[name] for name in ("UNSIGNED", "NUMBER", "DOUBLE", "INTEGER", "DECIMAL")
    ),
    FieldType.INTEGER: frozenset((FieldType.UNSIGNED, FieldType.INTEGER)),
    FieldType.SCALAR: frozenset(FieldType)
    - {FieldType.ANY, FieldType.UUID, FieldType.ARRAY, FieldType.MAP},
}


def can_hold(outer: FieldType, inner: FieldType) -> bool:
    """Whether every value of type `inner` can stand in a field of type `outer`."""
    return inner in _HOLDS.get(outer, (outer,))


_BY_FIRST_BYTE: Final = (
    *(MpType.UINT,) * 128,
    *(MpType.MAP,) * 16,
    *(MpType.ARRAY,) * 16,
    *(MpType.STR,) * 32,
    *(MpType.NIL, MpType.EXT, MpType.BOOL, MpType.BOOL),
    *(MpType.BIN,) * 3,
    *(MpType.EXT,) * 3,
    *(MpType.FLOAT, MpType.DOUBLE),
    *(MpType.UINT,) * 4,
    *(MpType.INT,) * 4,
    *(MpType.EXT,) * 5,
    *(MpType.STR,) * 3,
    *(MpType.ARRAY,) * 2,
    *(MpType.MAP,) * 2,
    *(MpType.INT,) * 32,
)


def mp_type(data: bytes | memoryview, at: int) -> MpType:
    """The kind of the value that begins at `at`. The byte must be there."""
    return _BY_FIRST_BYTE[data[at]]


def ext_type(data: bytes | memoryview, at: int) -> int:
    """The extension type (-128 … 127) of the extension value at `at`, which must be whole."""
    first = data[at]
    code = data[at + 1 + (1 << first - 0xC7)] if first < 0xD0 else data[at + 1]
    return code - 256 if code > 127 else code


def admits(kind: FieldType, data: bytes | memoryview, at: int, is_nullable: bool) -> bool:
    """Whether the value at `at` may stand in a field or key part of type `kind`."""
    value = _BY_FIRST_BYTE[data[at]]
    if value is not MpType.EXT:
        return bool(PLAIN_MASKS[kind] >> value & 1) or (is_nullable and value is MpType.NIL)
    code = ext_type(data, at)
    return code >= 0 and bool(EXT_MASKS[kind] >> (code & 31) & 1)
