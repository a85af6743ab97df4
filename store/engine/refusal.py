"""Why the compiled statements refused something, as the error that the reference engine raises.

The kernel gives a code and two numbers: see `refusal`. Texts are made when somebody wants them.
"""

from __future__ import annotations

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.engine import duplicate_key
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import FieldType

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
            label = FieldType(second).label
            return RequestError(
                kind,
                f"Supplied key type of part {first} does not match index part type: "
                f"expected {label}",
                details={"part": first, "type": label},
            )
        case ErrorCode.EXACT_MATCH:
            text = "Invalid key part count in an exact match"
            return RequestError(kind, f"{text} (expected {first}, got {second})")
        case ErrorCode.KEY_PART_COUNT:
            text = f"Invalid key part count (expected [0..{first}], got {second})"
            return RequestError(kind, text)
        case ErrorCode.FIELD_TYPE | ErrorCode.FIELD_MISSING | ErrorCode.EXACT_FIELD_COUNT:
            return _tuple_refusal(kind, first, second)
        case ErrorCode.MORE_THAN_ONE_TUPLE:
            text = "Get() doesn't support partial keys and non-unique indexes"
            return RequestError(kind, text)
        case ErrorCode.CANT_UPDATE_PRIMARY_KEY:
            text = "Attempt to modify a tuple field which is part of index"
            name = space.indexes[0].name
            return RequestError(kind, f"{text} '{name}' in space '{space.name}'")
    return _operation_refusal(kind, first, second, ops)


def _tuple_refusal(kind: ErrorCode, first: int, second: int) -> RequestError:
    if kind is ErrorCode.EXACT_FIELD_COUNT:
        text = f"Tuple field count {first} does not match space field count {second}"
        return RequestError(kind, text)
    if kind is ErrorCode.FIELD_MISSING:
        text = f"Tuple field {first} required by space format is missing"
        return RequestError(kind, text, details={"field": str(first)})
    label = FieldType(second).label
    return RequestError(
        kind,
        f"Tuple field {first} type does not match one required by operation: expected {label}",
        details={"field": str(first), "type": label},
    )


def _operation_refusal(kind: ErrorCode, first: int, second: int, ops: bytes) -> RequestError:
    """`first`: 1 if the field was named, 2^8 x operator, 2^16 x what type was wanted; `second`:
    the field from 0 or negative, or where in `ops` the name begins x 2^32 + its length."""
    sign = chr(first >> 8 & 0xFF)
    if first & 1:
        begin, size = divmod(second, 2**32)
        label = f"'{ops[begin : begin + size].decode('utf-8', 'surrogateescape')}'"
    else:
        number = second - 2**64 if second >> 63 else second
        label = str(number + 1 if number >= 0 else number)
    match kind:
        case ErrorCode.NO_SUCH_FIELD_NAME:
            return RequestError(kind, f"Field '{label}' was not found in the tuple")
        case ErrorCode.NO_SUCH_FIELD_NO:
            return RequestError(kind, f"Field {label} was not found in the tuple")
        case ErrorCode.UPDATE_ARG_TYPE:
            text = f"Argument type in operation '{sign}' on field {label} does not match field type"
            return RequestError(kind, f"{text}: expected {_WANTED[first >> 16]}")
        case ErrorCode.UPDATE_INTEGER_OVERFLOW:
            text = f"Integer overflow when performing '{sign}' operation on field {label}"
            return RequestError(kind, text)
        case ErrorCode.UPDATE_SPLICE:
            return RequestError(kind, f"SPLICE error on field {label}: offset is out of bound")
    assert kind is ErrorCode.UPDATE_FIELD
    text = f"Field {label} UPDATE error: double update of the same field"
    return RequestError(kind, text)
