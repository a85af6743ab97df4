# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of typed columns: fields of tuples → buffers of Arrow, without an object per cell.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `typedkernel.pxd`. `COMPILED` says which one runs. `pipeline.jobs.typed` is its face: it
says what each column holds.

A *span* is a value's place in a buffer, as in `pipeline.kernel`. A *table* has a line of spans for
each field, one for each tuple: that of field f of tuple i is number f x tuples + i. It is 0 where
the tuple has no such field, and `NOWHERE` where a key stands for the tuple and the field is none of
its parts, which counts as nil. Behind the last field stands a line for what follows it in the
tuple. Where a value is not one of its column, the column is null there, the span gets the bit
`MISFIT`, and `odd` a 1 for the tuple.

Nothing here believes a span or a length: each is checked against the ends of its buffer before
anything is read or written, since the compiled one would not notice. Of Arrow's bits (`valid`, and
`out` of booleans) the first row has bit 0; they come as zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import logweir.pipeline.jsonkernel as texts
import logweir.wal.kernel as rows

if TYPE_CHECKING:
    from array import array

    from logweir.pipeline.jsonkernel import Texts

    Spans = array[int] | memoryview
    Offsets = array[int] | memoryview

KINDS = ("long", "decimal", "double", "string", "binary", "json", "decimal text", "uuid text")

# Numbers of kinds; C does not see them in the tuple above.
LONG, DECIMAL, DOUBLE, STRING, BINARY, JSON, DECIMAL_TEXT, UUID_TEXT = range(8)

HALF = 2**32 - 1
ONES = 2**64 - 1
MISFIT = 2**63
NOWHERE = 2**32 + 1
STOP = 2**31 - 1
NIL, FALSE, TRUE = 0xC0, 0xC2, 0xC3
EXT_DECIMAL, EXT_UUID = 1, 2


def split(
    data: bytes, tuples: Spans, keys: Spans, parts: Spans, keyed: int, width: int, table: Spans
) -> int:
    """Write the table of `width` fields. Returns how many tuples there are; -1 - i where tuple i,
    or its key, is no whole array, or, after the last one, where buffers are not of one length.

    `keys`: what stands for a tuple that is not there (a span of 0): its values are those of the
    fields `parts`, but for parts from `keyed` on; the other fields in front of `keyed` are nil.
    """
    raw = data
    owed = [0] * 512
    count = len(tuples)
    if len(keys) != count or not 0 <= keyed <= width or (count and width > len(table)):
        return -1 - count
    if len(table) != (width + 1) * count:
        return -1 - count
    for i in range(count):
        is_key = tuples[i] == 0
        span = keys[i] if is_key else tuples[i]
        for field in range(width + 1):
            table[field * count + i] = NOWHERE if is_key and span and field < keyed else 0
        if span == 0:
            continue
        at = span & HALF
        end = span >> 32
        if end > len(data) or end > STOP or at >= end or not rows.is_array(raw, at):
            return -1 - i
        head = texts.head_end(raw, at)
        if head > end:
            return -1 - i
        items = rows.map_count(raw, at, head)
        if items > end - head:
            return -1 - i
        at = head
        for number in range(items):
            stop = rows.skip_value(raw, at, end, owed, 0)
            if stop < 0:
                return -1 - i
            if is_key:
                if number < len(parts) and parts[number] < keyed:
                    table[parts[number] * count + i] = at | stop << 32
            elif number < width:
                table[number * count + i] = at | stop << 32
            elif number == width:
                table[width * count + i] = at | end << 32
            at = stop
        if at != end:
            return -1 - i
    return count


def fill(
    kind: int,
    data: bytes,
    table: Spans,
    at: int,
    out: Spans,
    valid: bytearray,
    odd: bytearray,
) -> bool:
    """Write a column of numbers: `LONG`, `DOUBLE`, or `DECIMAL`, of two 64-bit numbers a row.

    `at`: where its line begins in the table; one row for each byte of `odd`. False where a buffer
    is of another length, and then nothing is written.
    """
    raw, bits = data, valid
    count = len(odd)
    wide = 2 if kind == DECIMAL else 1
    if at < 0 or len(table) - at < count or len(out) != wide * count or len(valid) * 8 < count:
        return False
    for i in range(count):
        span = table[at + i]
        start = span & HALF
        stop = span >> 32
        value = 0
        above = 0
        found = False
        if start < stop <= len(data) and raw[start] != NIL:
            first = raw[start]
            size = stop - start - 1
            if kind == DOUBLE:
                found = (first == 0xCB and size == 8) or (first == 0xCA and size == 4)
                if found:
                    value = rows.load(raw, start + 1, size)
                    if size == 4:
                        value = texts.widened(value)  # type: ignore[attr-defined]
            elif first < 0x80 or first >= 0xE0:
                found = True
                value = first
                if first >= 0xE0:
                    above = ONES
                    value = ONES - 0xFF + first
            elif 0xCC <= first <= 0xD3 and size == 1 << (first & 3):
                value = rows.load(raw, start + 1, size)
                if first >= 0xD0 and value >> (8 * size - 1):
                    above = ONES
                    value = value | (ONES << (8 * size) if size < 8 else 0) & ONES
                found = kind == DECIMAL or above > 0 or value >> 63 == 0
                if not found:
                    value = 0
            if found:
                bits[i >> 3] |= 1 << (i & 7)
            else:
                table[at + i] = span | MISFIT
                odd[i] = 1
        out[wide * i] = value
        if wide == 2:
            out[2 * i + 1] = above
    return True


def fixed(
    scale: int, data: bytes, table: Spans, at: int, out: Spans, valid: bytearray, odd: bytearray
) -> int:
    """Write a column of decimals with `scale` digits behind the point, as `fill` writes `DECIMAL`:
    those that have more digits there, or more than 38 in all, are none of the column.

    Returns how many rows there are; -1 - i where decimal i is malformed, or, after the last one,
    where a buffer is of another length.
    """
    raw, bits = data, valid
    count = len(odd)
    if at < 0 or len(table) - at < count or len(out) != 2 * count or len(valid) * 8 < count:
        return -1 - count
    for i in range(count):
        span = table[at + i]
        start = span & HALF
        stop = span >> 32
        low = 0
        high = 0
        if start < stop <= len(data) and raw[start] != NIL:
            head = texts.extension_head(raw, start, stop)
            found = head > 0 and raw[head - 1] == EXT_DECIMAL
            if found:
                digits = texts.decimal_digits(raw, head, stop)
                if digits < 0:
                    return -1 - i
                end = texts.integer_end(raw, head, stop)
                more = scale - texts.small_integer(raw, head, end)
                last = 2 * (stop - end) - 1
                found = digits == 0 or digits + more <= texts.DIGITS
                if found and digits:
                    for k in range(last - digits, last + more if more > 0 else last):
                        digit = 0
                        if k < last:
                            digit = raw[end + (k >> 1)] >> (0 if k & 1 else 4) & 0x0F
                        if more < 0 and k >= last + more:
                            found = found and digit == 0
                        else:
                            part = (low & HALF) * 10 + digit
                            over = (low >> 32) * 10 + (part >> 32)
                            low = (over & HALF) << 32 | part & HALF
                            high = high * 10 + (over >> 32)
                    sign = raw[stop - 1] & 0x0F
                    if sign == 11 or sign == 13:
                        low = (ONES - low + 1) & ONES
                        high = (ONES - high + (1 if low == 0 else 0)) & ONES
            if found:
                bits[i >> 3] |= 1 << (i & 7)
            else:
                low = 0
                high = 0
                table[at + i] = span | MISFIT
                odd[i] = 1
        out[2 * i] = low
        out[2 * i + 1] = high
    return count


def booleans(
    data: bytes, table: Spans, at: int, out: bytearray, valid: bytearray, odd: bytearray
) -> bool:
    """Write a column of booleans, a bit each. Otherwise as `fill`."""
    raw, bits, to = data, valid, out
    count = len(odd)
    if at < 0 or len(table) - at < count or len(out) * 8 < count or len(valid) * 8 < count:
        return False
    for i in range(count):
        span = table[at + i]
        start = span & HALF
        stop = span >> 32
        if start < stop <= len(data) and raw[start] != NIL:
            if raw[start] == FALSE or raw[start] == TRUE:
                bits[i >> 3] |= 1 << (i & 7)
                to[i >> 3] |= (raw[start] & 1) << (i & 7)
            else:
                table[at + i] = span | MISFIT
                odd[i] = 1
    return True


def contents(kind: int, data: bytes, table: Spans, at: int, out: Spans, odd: bytearray) -> bool:
    """Write where the bytes of a column's values stand, for `pipeline.kernel.gather`: of `STRING`,
    if they are UTF-8, or `BINARY`. Otherwise as `fill`."""
    raw = data
    count = len(odd)
    if at < 0 or len(table) - at < count or len(out) != count:
        return False
    for i in range(count):
        span = table[at + i]
        start = span & HALF
        stop = span >> 32
        out[i] = 0
        if start < stop <= len(data) and raw[start] != NIL:
            if kind == STRING:
                head = texts.string_head(raw, start, stop)
                if head >= 0 and not texts.is_text(raw, head, stop):  # type: ignore[attr-defined]
                    head = -1
            else:
                head = texts.binary_head(raw, start, stop)
            if head >= 0:
                out[i] = head | stop << 32
            else:
                table[at + i] = span | MISFIT
                odd[i] = 1
    return True


def write(
    kind: int,
    out: Texts,
    data: bytes,
    table: Spans,
    at: int,
    offsets: Offsets,
    valid: bytearray,
    odd: bytearray,
) -> bool:
    """Write a column of texts: values as `JSON`, or those that are decimals or UUIDs.

    `out`: of the same `data`; `offsets`: where each text begins, signed 32-bit numbers, one more
    than there are rows. False too where the texts are more than that, or a span holds no value.
    Otherwise as `fill`; raises what `Texts` raises.
    """
    raw, bits = data, valid
    owed = [0] * 512
    count = len(odd)
    if at < 0 or len(table) - at < count or len(offsets) != count + 1 or len(valid) * 8 < count:
        return False
    if out.data is not data:
        return False
    for i in range(count):
        offsets[i] = out.at
        span = table[at + i]
        start = span & HALF
        stop = span >> 32
        if start < stop <= len(data) and raw[start] != NIL:
            if rows.skip_value(raw, start, stop, owed, 0) != stop:
                return False
            found = True
            if kind == JSON:
                out.json(start, stop, 0)
            else:
                out.reserve(0)
                head = texts.extension_head(raw, start, stop)
                code = raw[head - 1] if head > 0 else 0
                if kind == UUID_TEXT:
                    found = code == EXT_UUID and stop - head == 16
                    if found:
                        out.uuid(head)
                else:
                    found = code == EXT_DECIMAL
                    if found and not out.decimal(head, stop):
                        out.shown(start, stop)  # says what is wrong with it
            if found:
                bits[i >> 3] |= 1 << (i & 7)
            else:
                table[at + i] = span | MISFIT
                odd[i] = 1
        if out.at > STOP:
            return False
    offsets[count] = out.at
    return True


def write_rest(
    out: Texts,
    data: bytes,
    table: Spans,
    columns: int,
    width: int,
    offsets: Offsets,
    valid: bytearray,
    odd: bytearray,
) -> bool:
    """Write what is in no column as JSON objects, field number → value; null where all is in one.

    `columns`: of so many fields there are columns; `width`: so many stand in the table. Otherwise
    as `write`.
    """
    raw, bits = data, valid
    owed = [0] * 512
    count = len(odd)
    if not 0 <= columns <= width or (count and width > len(table)) or out.data is not data:
        return False
    if len(table) != (width + 1) * count or len(offsets) != count + 1 or len(valid) * 8 < count:
        return False
    for i in range(count):
        offsets[i] = out.at
        began = out.at
        for field in range(0 if odd[i] else columns, width + 1):
            span = table[field * count + i]
            if span == 0 or (field < columns and not span & MISFIT):
                continue
            at = span & HALF
            end = (span >> 32) & STOP
            number = field
            while at < end or span == NOWHERE:
                stop = at
                if span != NOWHERE:
                    stop = rows.skip_value(raw, at, end, owed, 0) if end <= len(data) else -1
                if stop < 0:
                    return False
                out.item(number, at, stop, out.at == began)
                number += 1
                at = stop
                if span == NOWHERE:
                    break
        if out.at > began:
            out.byte(0x7D)
            bits[i >> 3] |= 1 << (i & 7)
        if out.at > STOP:
            return False
    offsets[count] = out.at
    return True


COMPILED = not __file__.endswith(".py")
