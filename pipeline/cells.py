"""Values in a buffer as Arrow arrays: the face of the kernels, without an object per cell.

Arrays are made of buffers: `pa.array` imports pandas when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.errors import DecodeError, LimitExceeded
from logweir.pipeline import jsonkernel, kernel, typedkernel
from logweir.wal.render import value_json

Spans = np.ndarray[Any, np.dtype[np.uint64]]
"""Of each row a value's first byte and, 2^32 times, its end; 0 if there is none."""

Numbers = Any  # a numpy array

_KIND: Final = {name: number for number, name in enumerate(typedkernel.KINDS)}
_OFFSET_MAX: Final = 2**31 - 1
_HALF: Final = 2**32 - 1


def packed(column: pa.Array) -> tuple[bytes, Numbers]:
    """The values of a binary column one after the other, and their boundaries."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    first = int(offsets[0]) if len(offsets) else 0
    last = int(offsets[-1]) if len(offsets) else 0
    data = column.buffers()[2]
    raw = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return raw, offsets - first


def placed(values: Iterable[bytes | None]) -> tuple[bytes, Spans]:
    """Values one after the other, and where each is."""
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    data, bounds = packed(column)
    bounds = bounds.astype(np.uint64)
    spans = bounds[:-1] | bounds[1:] << np.uint64(32)
    if column.null_count:
        spans[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return data, spans


def numbers(
    values: Numbers, kind: pa.DataType | None = None, absent: Numbers | None = None
) -> pa.Array:
    """Numbers as they are. `kind`: what Arrow is to take them for, of the same width; `absent`:
    which are null."""
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    of = pa.from_numpy_dtype(values.dtype) if kind is None else kind
    whole = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(of, len(values), [valid, whole])


def texts(values: Iterable[str | None]) -> pa.Array:
    """Strings. Raises `LimitExceeded` for more than an array can hold."""
    given = list(values)
    parts = [b"" if value is None else value.encode() for value in given]
    bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    _check_offset(int(bounds[-1]))
    offsets = bounds.astype(np.int32)
    valid = np.packbits(np.array([one is not None for one in given], bool), bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers)


def repeated(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """One value many times. `kind`: string, boolean or of integers."""
    if isinstance(value, str):
        one = texts((value,))
    elif kind == pa.bool_():
        one = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes((value,)))])
    else:
        one = numbers(np.array([value], f"i{kind.bit_width // 8}"))
    return one.take(numbers(np.zeros(count, np.int32)))


def gathered(data: bytes, spans: Spans, kind: pa.DataType) -> pa.Array:
    """The bytes at these places. `kind`: binary or string."""
    offsets, valid = np.empty(len(spans) + 1, np.int32), bytearray((len(spans) + 7) // 8)
    out = kernel.gather(data, np.ascontiguousarray(spans).data, offsets.data, valid)
    return _array(kind, len(spans), out is not None, valid, offsets, out)


def json_texts(data: bytes, spans: Spans) -> pa.Array:
    """The values at these places as JSON (`wal.render`). Raises `DecodeError`."""
    try:
        return Cells(data, np.array(spans), len(spans)).column(0, "json", pa.string())
    except DecodeError:
        for span in spans.tolist():  # the whole value says it in its own words
            value_json(data[span & 0xFFFFFFFF : span >> 32] if span else b"\xc0")
        raise


class Cells:
    """The columns of some rows, from a table of their values in `data` (`typedkernel`).

    Whoever makes columns makes `rest` last: it holds what the columns before could not.
    """

    def __init__(self, data: bytes, table: Spans, count: int) -> None:
        self.data = data
        self.table = table.data
        self.count = count
        self.odd = bytearray(count)

    def column(self, number: int, kind: str, arrow: pa.DataType) -> pa.Array:
        """The column of a field. `kind`: one of `typedkernel.KINDS`, boolean, or fixed with the
        scale of `arrow`. Raises `DecodeError`."""
        data, table, at, count = self.data, self.table, number * self.count, self.count
        valid = bytearray((count + 7) // 8)
        if kind == "boolean":
            bits = bytearray(len(valid))
            done = typedkernel.booleans(data, table, at, bits, valid, self.odd)
            return _array(arrow, count, done, valid, bits)
        if kind in ("string", "binary"):
            spans = np.empty(count, np.uint64)
            done = typedkernel.contents(_KIND[kind], data, table, at, spans.data, self.odd)
            assert done
            return gathered(data, spans, arrow)
        if arrow == pa.string():
            return self._texts(
                lambda texts, *more: typedkernel.write(_KIND[kind], texts, data, table, at, *more)
            )
        numbers = np.empty(count * arrow.bit_width // 64, np.uint64)
        if kind.startswith("fixed "):
            found = typedkernel.fixed(arrow.scale, data, table, at, numbers.data, valid, self.odd)
            if -count <= found < 0:
                span = int(table[at - 1 - found])
                _shown(data[span & _HALF : span >> 32])  # says what is wrong with it
            return _array(arrow, count, found == count, valid, numbers)
        done = typedkernel.fill(_KIND[kind], data, table, at, numbers.data, valid, self.odd)
        return _array(arrow, count, done, valid, numbers)

    def rest(self, columns: int, width: int) -> pa.Array:
        """What is in none of the columns, which were made before."""
        return self._texts(
            lambda texts, *more: typedkernel.write_rest(
                texts, self.data, self.table, columns, width, *more
            )
        )

    def _texts(self, write: Callable[..., bool]) -> pa.Array:
        texts = jsonkernel.Texts(self.data, 16 * self.count, _shown)
        valid, offsets = bytearray((self.count + 7) // 8), np.empty(self.count + 1, np.int32)
        done = write(texts, offsets.data, valid, self.odd)
        _check_offset(texts.at)
        return _array(pa.string(), self.count, done, valid, offsets, texts.written())


def _check_offset(size: int) -> None:
    if size > _OFFSET_MAX:
        raise LimitExceeded("ARROW_OFFSET", _OFFSET_MAX, size, hint="smaller batches")


def _array(kind: pa.DataType, count: int, done: bool, *buffers: Any) -> pa.Array:
    if not done:
        raise AssertionError("the kernel does not take the buffers that were made for it")
    return pa.Array.from_buffers(kind, count, [pa.py_buffer(one) for one in buffers])


def _shown(data: bytes) -> bytes:
    shown: bytes = value_json(data).encode()
    return shown
