"""Update operations: `[op, field, argument…]` ↔ what they do to one value. Bytes in, bytes out.

============  =====================  =============================================================
op            arguments              effect on the value
============  =====================  =============================================================
`=` `!`       value                  set; insert before it
`#`           count                  delete so many from it on
`+` `-`       number                 integers: -2^63 … 2^64-1, else 95. With a decimal: decimal of
                                     38 digits, half up, else 160 (a float counts as its 15
                                     digits). Else float: 32 bits where that is exact and the
                                     field is not of type `double`, 64 bits otherwise
`&` `|` `^`   unsigned               unsigned integers only
`:`           position, cut length,  bytes of a string: cut so many at the position, paste there.
              string                 Position from the index base; -1 is behind the last byte;
                                     beyond the end is the end. Negative cut length: all but so
                                     many of the rest
============  =====================  =============================================================

The field is a number (from the index base; negative from the end, -1 the last) or a string: a
name of the format, else a JSON path that begins with a name or `[number]`, always from 1.

Malformed operations: 1 (no array, no name, a field that is neither number nor string, more than
4000), 28 (unknown operator, wrong count of arguments), 26 (an argument of the wrong type), 29
(count 0, bad path), 25 (position 0 from base 1), 37 (field 0 from base 1), 201 (unknown name).
Field numbers, positions and lengths in 64-bit form (cf, d3) are of the wrong type.
Source: Tarantool 2.6.0, `xrow_update.c`, `xrow_update_field.c`, observed.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from logweir.errors import DecodeError, ErrorCode, RequestError
from logweir.limits import DECIMAL_DIGITS, UPDATE_OPERATIONS
from logweir.store.schema import jsonpath
from logweir.store.schema.fieldtype import FieldType, MpType, ext_type, mp_type
from logweir.store.schema.refused import illegal, refused, refusing
from logweir.store.schema.values import read_array, read_bytes, read_int, skip, string
from logweir.wal.mp import pack, unpack_at

_ARGUMENTS: Final = {"=": 3, "!": 3, "#": 3, "+": 3, "-": 3, "&": 3, "|": 3, "^": 3, ":": 5}
_FLOAT32_MAX: Final = struct.unpack(">f", bytes.fromhex("7f7fffff"))[0]
_INT_MIN: Final = -(2**63)
_UINT_END: Final = 2**64
_WIDE: Final = b"\xcf\xd3"
_FLOAT_DIGITS: Final = 15

_DECIMALS: Final = decimal.Context(
    prec=DECIMAL_DIGITS,
    rounding=decimal.ROUND_HALF_UP,
    Emin=-1,
    Emax=DECIMAL_DIGITS - 1,
    clamp=0,
    traps=[decimal.Overflow, decimal.InvalidOperation],
)

Number = int | float | Decimal


_ALL_COLUMNS: Final = 2**64 - 1


@dataclass(slots=True, eq=False)
class Operation:
    """One operation, decoded. It changes while it is applied: use it once.

    `code`: its sign; `field_no`: top-level field, from 0, or negative from the end. `step` is the
    step at hand, `is_taken` whether it has been used up and the next one is to be read.
    """

    code: str
    field_no: int = 0
    step: jsonpath.Step = 0
    is_taken: bool = False
    argument: bytes | Number = 0
    position: int = 0
    cut: int = 0
    _path: jsonpath.Tokenizer | None = None

    # --- where ------------------------------------------------------------------------------------
    @property
    def is_last_step(self) -> bool:
        """Whether the step at hand leads to the value itself."""
        return self._path is None or self._path.at >= len(self._path.path)

    @property
    def label(self) -> str:
        """How messages call the field: path in quotes, number from 1, or negative."""
        if self._path is not None:
            return f"'{self._path.path.decode('utf-8', 'surrogateescape')}'"
        return str(self.field_no + 1 if self.field_no >= 0 else self.field_no)

    def read_step(self) -> jsonpath.Step | None:
        """The next step of the path, None at its end. Raises 29."""
        if self._path is None:
            return None
        try:
            return self._path.next()
        except jsonpath.PathError as error:
            raise self.error(str(error)) from None

    def take_step(self) -> None:
        """Make the next step the one at hand. Raises 29, 201."""
        step = self.read_step()
        if step is None:
            raise self.no_such_field()
        self.step = step
        self.is_taken = False
        if isinstance(step, int):
            self.field_no = step

    def goes_along(self, steps: tuple[jsonpath.Step, ...]) -> bool:
        """Whether the path goes on with these steps; if so they are read.

        They do not count in the position that a later error tells: Tarantool jumps over them.
        """
        assert self._path is not None
        at, characters = self._path.at, self._path.characters
        goes = all(self.read_step() == step for step in steps)
        self._path.at = self._path.at if goes else at
        self._path.characters = characters
        return goes

    @property
    def characters(self) -> int:
        """How many characters of the path have been read."""
        return 0 if self._path is None else self._path.characters

    # --- errors -----------------------------------------------------------------------------------
    def error(self, reason: str) -> RequestError:
        """Error 29 with a reason."""
        return refused(ErrorCode.UPDATE_FIELD, field=self.label, reason=reason)

    def double_update(self) -> RequestError:
        """Error 29 for a field that an earlier operation has changed."""
        return self.error("double update of the same field")

    def inside_changed(self) -> RequestError:
        """Error 29 for a place inside of what an earlier operation has changed as a whole."""
        return self.error("it is inside of a value that an earlier operation changes")

    def no_such_field(self) -> RequestError:
        """Error 37, or 201 where the field was given as a string."""
        is_named = self._path is not None
        code = ErrorCode.NO_SUCH_FIELD_NAME if is_named else ErrorCode.NO_SUCH_FIELD_NO
        return refused(code, field=self.label)

    def wrong_type(self, wanted: str) -> RequestError:
        """Error 26: the argument or the field is not what the operator works on."""
        return refused(ErrorCode.UPDATE_ARG_TYPE, op=self.code, field=self.label, type=wanted)

    # --- decoding ---------------------------------------------------------------------------------
    def read_field(self, data: bytes, at: int, names: Mapping[bytes, int], base: int) -> int:
        """Read the field. `names`: name → number; `base`: index base. Returns where it ends."""
        kind = mp_type(data, at)
        if kind in (MpType.UINT, MpType.INT):
            number = self._int32(data, at)
            if 0 <= number < base:
                raise refused(ErrorCode.NO_SUCH_FIELD_NO, field=number)
            self.field_no = number if number < 0 else number - base
        elif kind is MpType.STR:
            begin, end = read_bytes(data, at)
            self._read_path(data[begin:end], names)
        else:
            raise _illegal("field id must be a number or a string")
        self.step = self.field_no
        return skip(data, at)

    def _read_path(self, path: bytes, names: Mapping[bytes, int]) -> None:
        self._path = jsonpath.Tokenizer(path)
        if path in names:
            self.field_no = names[path]
            self._path.at = len(path)
            return
        step = self.read_step()
        if isinstance(step, int):
            self.field_no = step
        elif isinstance(step, bytes) and step in names:
            self.field_no = names[step]
        else:
            shown = path.decode("utf-8", "surrogateescape")
            raise refused(ErrorCode.NO_SUCH_FIELD_NAME, field=shown)

    def read_argument(self, data: bytes, at: int, base: int) -> int:
        """Read what stands behind the field. Returns where it ends."""
        if self.code in "=!":
            end = skip(data, at)
            self.argument = data[at:end]
            return end
        if self.code in "+-":
            self.argument = self._number(data, at)
        elif self.code in "&|^":
            self.argument = self._unsigned(data, at)
        elif self.code == "#":
            self.argument = self._unsigned(data, at) & 0xFFFFFFFF
            if self.argument == 0:
                raise self.error("cannot delete 0 fields")
        else:
            return self._read_splice(data, at, base)
        return skip(data, at)

    def _read_splice(self, data: bytes, at: int, base: int) -> int:
        self.position = self._int32(data, at)
        if self.position >= 0:
            if self.position < base:
                raise refused(ErrorCode.UPDATE_SPLICE, field=self.label)
            self.position -= base
        at = skip(data, at)
        self.cut = self._int32(data, at)
        at = skip(data, at)
        self.argument = self._string(data, at)
        return skip(data, at)

    def _int32(self, data: bytes, at: int) -> int:
        if mp_type(data, at) in (MpType.UINT, MpType.INT) and data[at] not in _WIDE:
            value = read_int(data, at)
            if value < 2**31:
                return value
        raise self.wrong_type("an integer")

    def _unsigned(self, data: bytes, at: int) -> int:
        if mp_type(data, at) is not MpType.UINT:
            raise self.wrong_type("a positive integer")
        return read_int(data, at)

    def _string(self, data: bytes, at: int) -> bytes:
        if mp_type(data, at) is not MpType.STR:
            raise self.wrong_type("a string")
        begin, end = read_bytes(data, at)
        return data[begin:end]

    def _number(self, data: bytes, at: int) -> Number:
        kind = mp_type(data, at)
        if kind in (MpType.UINT, MpType.INT):
            return read_int(data, at)
        if kind in (MpType.FLOAT, MpType.DOUBLE) or (
            kind is MpType.EXT and ext_type(data, at) == 1
        ):
            try:
                value: Number = unpack_at(data, at)[0]
            except DecodeError:
                raise self.wrong_type("a number") from None
            return value
        raise self.wrong_type("a number")

    # --- effect -----------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """How many to delete."""
        assert isinstance(self.argument, int)
        return self.argument

    @property
    def value(self) -> bytes:
        """What to set or insert, as MsgPack."""
        assert isinstance(self.argument, bytes)
        return self.argument

    def compute(self, data: bytes, at: int) -> None:
        """Apply `+ - & | ^ :` to the value at `at`; `result` then gives the new one.

        Raises 26, 95, 160, 25, and then nothing has changed.
        """
        if self.code in "+-":
            self.argument = self._sum(self._number(data, at))
        elif self.code == ":":
            self.argument = self._splice(self._string(data, at))
        else:
            old, new = self._unsigned(data, at), self.count
            self.argument = (
                old & new if self.code == "&" else old | new if self.code == "|" else old ^ new
            )

    def result(self, field: FieldType | None) -> bytes:
        """The new value as MsgPack. `field`: the type of the place where it will stand."""
        if self.code in "=!":
            return self.value
        if isinstance(self.argument, bytes):
            return string(self.argument)
        if isinstance(self.argument, float):
            return _encode_float(self.argument, is_wide=field is FieldType.DOUBLE)
        return pack(self.argument)

    def _splice(self, old: bytes) -> bytes:
        position = self.position
        if position < 0:
            if -position > len(old) + 1:
                raise refused(ErrorCode.UPDATE_SPLICE, field=self.label)
            position += len(old) + 1
        position = min(position, len(old))
        rest = len(old) - position
        cut = max(rest + self.cut, 0) if self.cut < 0 else min(self.cut, rest)
        if self.cut < 0 and -self.cut > rest:
            cut = 0
        return old[:position] + self.value + old[position + cut :]

    def _sum(self, left: Number) -> Number:
        right = self.argument
        assert not isinstance(right, bytes)
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            return self._decimal_sum(left, right)
        if isinstance(left, float) or isinstance(right, float):
            a, b = float(left), float(right)
            return a + b if self.code == "+" else a - b
        total = left + right if self.code == "+" else left - right
        if not _INT_MIN <= total < _UINT_END:
            raise refused(ErrorCode.UPDATE_INTEGER_OVERFLOW, op=self.code, field=self.label)
        return total

    def _decimal_sum(self, left: Number, right: Number) -> Decimal:
        try:
            a, b = _to_decimal(left), _to_decimal(right)
        except (decimal.DecimalException, ValueError):
            raise self.wrong_type("a number convertible to decimal") from None
        try:
            return _DECIMALS.add(a, b) if self.code == "+" else _DECIMALS.subtract(a, b)
        except decimal.DecimalException:
            code = ErrorCode.UPDATE_DECIMAL_OVERFLOW
            raise refused(code, op=self.code, field=self.label) from None


def _to_decimal(value: Number) -> Decimal:
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("not a finite number")
        return _DECIMALS.create_decimal(f"{value:.{_FLOAT_DIGITS}g}")
    return Decimal(value)


def _encode_float(value: float, *, is_wide: bool) -> bytes:
    if not is_wide and -_FLOAT32_MAX <= value <= _FLOAT32_MAX:
        narrow = struct.pack(">f", value)
        if struct.unpack(">f", narrow)[0] == value:
            return b"\xca" + narrow
    return b"\xcb" + struct.pack(">d", value)


def _illegal(reason: str) -> RequestError:
    return illegal(f"Illegal parameters, {reason}")


def decode_operations(data: bytes, names: Mapping[bytes, int], base: int) -> list[Operation]:
    """All operations of an update or upsert, checked for form.

    `data`: MsgPack array of operations; `names`: field name → number, from 0; `base`: from what
    field numbers and positions count, 0 or 1. Raises `RequestError` as told above.
    """
    if not data or mp_type(data, 0) is not MpType.ARRAY:
        raise _illegal("update operations must be an array {{op,..}, {op,..}}")
    if skip(data, 0) != len(data):
        raise _illegal("can't unpack update operations")
    count, at = read_array(data, 0)
    if count > UPDATE_OPERATIONS:
        raise _illegal("too many operations for update")
    operations = []
    for number in range(1, count + 1):
        refuse = refusing(ErrorCode.UNKNOWN_UPDATE_OP, number=number)
        if mp_type(data, at) is not MpType.ARRAY:
            raise _illegal("update operation must be an array {op,..}")
        arguments, at = read_array(data, at)
        if arguments < 1:
            raise _illegal("update operation must be an array {op,..}, got empty array")
        if mp_type(data, at) is not MpType.STR:
            raise _illegal("update operation name must be a string")
        begin, at = read_bytes(data, at)
        code = data[begin:at].decode("utf-8", "surrogateescape")
        wanted = _ARGUMENTS.get(code)
        if wanted is None:
            refuse(f'"{code}"')
        if arguments != wanted:
            refuse(f"wrong number of arguments, expected {wanted}, got {arguments}")
        operation = Operation(code)
        at = operation.read_field(data, at, names, base)
        at = operation.read_argument(data, at, base)
        operations.append(operation)
    return operations


def changed_columns(operations: Iterable[Operation], field_count: int) -> int:
    """Which fields operations on a tuple of that many fields change, as Tarantool 2.6.0 reckons: a
    bit for each field number, 63 for all from there on.

    That is a guess made before any of them is applied: one that is left out, as of a field that is
    not there, still counts, and moves what negative numbers mean for those after it. Source:
    `xrow_update_read_ops`, observed.
    """
    mask = 0
    for op in operations:
        number = op.field_no
        if number < 0:
            number += field_count + (op.code == "!")
        if number < 0:
            return _ALL_COLUMNS
        if op.code == "!":
            field_count += 1
        elif op.code == "#":
            assert isinstance(op.argument, int)
            field_count -= op.argument
        bit = 1 << min(number, 63)
        mask |= (_ALL_COLUMNS & -bit) if op.code in "!#" else bit
    return mask
