"""Why the compiled statements refused something, as the error that the reference engine raises.

The kernel gives a code and two numbers: see `refusal`. Texts are made when somebody wants them.
"""

from __future__ import annotations

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.engine import duplicate_key
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.refused import refused

_WANTED = ("", "a number", "a positive integer", "a string")


def refusal(space: SpaceDef, code: int, first: int, second: int, ops: bytes) -> RequestError:
    """The error of a statement on `space`.

    `first`, `second`: of 3 the place of the index among those that are kept; of 18, 19, 23, 31,
    38, 39 what stands in the text; of errors in operations as `_operation_refusal` has it. `ops`:
    the statement's operations.
    """
    kind = ErrorCode(code)
    match kind:
        case ErrorCode.TUPLE_FOUND:
            usable = [index for index in space.indexes if index.is_usable]
            return duplicate_key(space, usable[first])
        case ErrorCode.KEY_PART_TYPE:
            return refused(kind, part=first, type=FieldType(second).label)
        case ErrorCode.EXACT_MATCH | ErrorCode.KEY_PART_COUNT:
            return refused(kind, wanted=first, count=second)
        case ErrorCode.EXACT_FIELD_COUNT:
            return refused(kind, count=first, wanted=second)
        case ErrorCode.FIELD_MISSING:
            return refused(kind, field=str(first))
        case ErrorCode.FIELD_TYPE:
            return refused(kind, field=str(first), type=FieldType(second).label)
        case ErrorCode.MORE_THAN_ONE_TUPLE:
            return refused(kind)
        case ErrorCode.CANT_UPDATE_PRIMARY_KEY:
            return refused(kind, index=space.indexes[0].name, space=space.name)
    return _operation_refusal(kind, first, second, ops)


def _operation_refusal(kind: ErrorCode, first: int, second: int, ops: bytes) -> RequestError:
    """`first`: 1 if the field was named, 2^8 x operator, 2^16 x what type was wanted; `second`:
    the field from 0 or negative, or where in `ops` the name begins x 2^32 + its length."""
    if first & 1:
        begin, size = divmod(second, 2**32)
        label = f"'{ops[begin : begin + size].decode('utf-8', 'surrogateescape')}'"
    else:
        number = second - 2**64 if second >> 63 else second
        label = str(number + 1 if number >= 0 else number)
    match kind:
        case ErrorCode.UPDATE_ARG_TYPE:
            op = chr(first >> 8 & 0xFF)
            return refused(kind, op=op, field=label, type=_WANTED[first >> 16])
        case ErrorCode.UPDATE_INTEGER_OVERFLOW:
            return refused(kind, op=chr(first >> 8 & 0xFF), field=label)
        case ErrorCode.UPDATE_FIELD:
            return refused(kind, field=label, reason="double update of the same field")
    return refused(kind, field=label)  # it is not there, or has no such place
