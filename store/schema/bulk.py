"""Many tuples at once: where each begins, whether each fits its space, and their keys.

A run of tuples is one `bytes` and an array of boundaries ("Q"): tuple r stands in
`packed[bounds[r]:bounds[r + 1]]`. Keys come the same way. The work is done by
`store.schema.kernel`; tuples that it does not understand (decimals, collations, JSON paths) and
those that fail a check go the ordinary way, one by one, through `store.schema.format` and
`store.schema.keys`. Both give the same keys.
"""

from __future__ import annotations

import importlib.util
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

from logweir.errors import RequestError
from logweir.store.schema import kernel, largekernel
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.fieldtype import EXT_MASKS, PLAIN_MASKS, MpType
from logweir.store.schema.format import HEADER_BYTES, TupleFormat
from logweir.store.schema.keys import index_keys
from logweir.store.schema.values import LargeTuple, invalid_msgpack, read_array
from logweir.wal.mp import Value, packer

try:
    from logweir.store.schema.packkernel import pack_rows
except ImportError:
    COMPILED = False
else:
    COMPILED = True

Bounds: TypeAlias = "array[int]"
"""Boundaries in a buffer, format "Q": one number more than there are items."""

_FIRST_ROOM: Final = 1024
_PART_BYTES: Final = 20
_ZERO: Final = array("Q", (0,))


def interpreted(module: ModuleType) -> ModuleType:
    """The same kernel as plain Python, and those that it calls: the source of each stands beside
    the compiled one. The C functions of a compiled kernel can only be called by another."""
    package, _, name = module.__name__.rpartition(".")
    source = Path(sys.modules[package].__path__[0], f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_interpreted", source)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    for name, called in _called(plain).items():
        vars(plain)[name] = interpreted(called)
    return plain


def _called(module: ModuleType) -> dict[str, ModuleType]:
    """The kernels that one calls, by the names that it has for them."""
    found = vars(module).items()
    return {k: v for k, v in found if isinstance(v, ModuleType) and hasattr(v, "COMPILED")}


def interpret_calls(*modules: ModuleType) -> None:
    """Let those of them that are not compiled call plain Python, too: see `interpreted`."""
    for module in modules:
        called = _called(module)
        if not module.COMPILED and any(one.COMPILED for one in called.values()):
            vars(module).update((name, interpreted(one)) for name, one in called.items())


interpret_calls(kernel)


def pack_tuples(tuples: Sequence[Sequence[Value]]) -> tuple[bytes, Bounds]:
    """Tuples in MsgPack, as a run.

    Raises what `wal.mp.pack` raises for a value that has no form, and `RequestError` 20 for one
    that is nested too deep.
    """
    if COMPILED:
        return pack_rows(list(tuples))
    packed = _pack_any(list(tuples))
    bounds = split_tuples(packed, is_array=True)
    start = bounds[0]
    return packed[start:], array("Q", [bound - start for bound in bounds])


def _pack_any(value: Value) -> bytes:
    try:
        return packer(strict_text=True)(value)
    except UnicodeEncodeError:  # text that came as bytes which are not UTF-8
        return packer()(value)


def split_tuples(packed: bytes, *, is_array: bool = False) -> Bounds:
    """Where each of the values in `packed` begins, and behind the last one where it ends.

    `packed`: values one behind the other; or, with `is_array`, one MsgPack array of them. Raises
    `RequestError` 20 if one is cut short or malformed, 22 if there is no array.
    """
    at = 0
    wanted = None
    if is_array:
        wanted, at = read_array(packed, 0)
    bounds = array("Q", (at,))
    end = len(packed)
    while at < end:
        room = max(_FIRST_ROOM, 2 * len(bounds))
        found = array("Q", bytes(8 * (room + 1)))
        count = kernel.split(packed, at, end, found)
        bounds.extend(found[1 : count + 1])
        at = bounds[-1]
        if count < room and at < end:
            raise invalid_msgpack()
    if wanted is not None and wanted != len(bounds) - 1:
        raise invalid_msgpack()
    return bounds


@dataclass(slots=True)
class Keys:
    """The keys of a run of tuples.

    `data`: the keys one behind the other; `bounds`: their boundaries; `rows`: None where each
    tuple has one key, else boundaries in the keys: those of tuple r are rows[r] … rows[r + 1] - 1.
    """

    data: bytes
    bounds: Bounds
    rows: Bounds | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.data[self.bounds[number] : self.bounds[number + 1]]

    def parts(self) -> list[bytes]:
        """All of them."""
        found: list[bytes] = kernel.parts(self.data, self.bounds)
        return found


class KeyPlan:
    """What the kernel must know to make the keys of one index. Make it once per definition.

    The keys are those of `keys.index_keys`. With `check` each tuple is checked against the
    space's format first; without, tuples are trusted to fit it (rows of the log).
    """

    __slots__ = (
        "_check",
        "_format",
        "_index",
        "_last_part",
        "_limit_bytes",
        "_one",
        "_room",
        "_table",
    )

    def __init__(self, space: SpaceDef, index: IndexDef, *, check: bool = True) -> None:
        self._check = check
        self._format = space.format
        self._index = index
        self._table = _table(space.format, index, check)
        self._limit_bytes = _limit_bytes(space.format)
        self._last_part = max((part.field_no for part in index.sort_parts), default=-1)
        self._room = bytearray(256)
        self._one = (array("Q", (0, 0)), array("Q", (0, 0)))

    @property
    def table(self) -> Bounds | None:
        """What the kernel reads; None if it is not used at all."""
        return self._table

    def key(self, data: bytes) -> list[bytes]:
        """The keys of one tuple. Raises `RequestError` as `TupleFormat.check`."""
        if self._table is None:
            return self._ordinary(data)
        bounds, ends = self._one
        bounds[1] = len(data)
        while True:
            how = kernel.keys(data, bounds, 0, 1, self._table, self._room, ends) & 3
            if how == kernel.DONE:
                return [bytes(self._room[: ends[1]])]
            if how != kernel.NO_ROOM:
                return self._ordinary(data)
            self._room = bytearray(4 * len(data) + 2 * len(self._room))

    def keys(self, packed: bytes, bounds: Bounds) -> Keys:
        """The keys of a run of tuples.

        Raises the `RequestError` of the first tuple that fails, with its number as
        `details["row"]`.
        """
        count = len(bounds) - 1
        if self._table is None:
            return self._one_by_one(packed, bounds)
        # What the kernel wants to see free before a row, of the last too; else it asks for more.
        free = 2 * len(packed) // max(count, 1) + _PART_BYTES * len(self._index.sort_parts)
        out = bytearray(len(packed) + 32 * count + free)
        ends = _ZERO * (count + 1)
        row = 0
        while row < count:
            row, how = divmod(kernel.keys(packed, bounds, row, count, self._table, out, ends), 4)
            if how == kernel.DONE:
                break
            if how == kernel.NO_ROOM:
                out.extend(bytes(len(out) + 4 * (bounds[row + 1] - bounds[row]) + 1024))
                continue
            (key,) = self._row(packed, bounds, row)
            ends[row + 1] = ends[row] + len(key)
            out[ends[row] : ends[row + 1]] = key
            row += 1
        return Keys(bytes(memoryview(out)[: ends[count]]), ends)

    def large_keys(self, tuples: Sequence[LargeTuple]) -> Keys | None:
        """The keys of large tuples. None if a key is made of the
        last field of one: what is checked, and the key is made of, is the tuple without that.

        Raises `RequestError` as `keys`.
        """
        last_field = (tuples[0].head[0] & 0x0F) - 1
        if self._last_part >= last_field:
            return None
        checked: list[bytes] = []
        largekernel.heads(tuples, self._limit_bytes, checked)
        bounds = array("Q", accumulate(map(len, checked), initial=0))
        return self.keys(b"".join(checked), bounds)

    def _one_by_one(self, packed: bytes, bounds: Bounds) -> Keys:
        out = bytearray()
        ends = array("Q", (0,))
        rows = array("Q", (0,))
        for row in range(len(bounds) - 1):
            for key in self._row(packed, bounds, row):
                out += key
                ends.append(len(out))
            rows.append(len(ends) - 1)
        return Keys(bytes(out), ends, rows if self._index.is_multikey else None)

    def _row(self, packed: bytes, bounds: Bounds, row: int) -> list[bytes]:
        try:
            return self._ordinary(packed[bounds[row] : bounds[row + 1]])
        except RequestError as error:
            error.details["row"] = row
            raise

    def _ordinary(self, data: bytes) -> list[bytes]:
        if self._check:
            self._format.check(data)
        return index_keys(data, self._index)


def _limit_bytes(format_: TupleFormat) -> int:
    """Of a tuple of a space."""
    return max(format_.max_bytes - HEADER_BYTES - format_.offsets_bytes, 0)


def _table(format_: TupleFormat, index: IndexDef, check: bool) -> Bounds | None:
    """The plan as the kernel takes it; None if the kernel can do nothing for this index."""
    is_far = any(part.path or part.field_no >= kernel.PLACES for part in index.sort_parts)
    if is_far or (check and format_.has_paths):
        return None
    own, all_parts = len(index.parts), len(index.sort_parts)
    used = all_parts if index.is_nullable or not index.is_unique else own
    head = [
        format_.exact_count if check else 0,
        len(format_.top),
        _limit_bytes(format_) if check else 2**63 - 1,
        used,
        own if index.is_unique else all_parts,
    ]
    fields: list[int] = []
    for node in format_.top:
        nil = (1 << MpType.NIL) if node.is_nullable else 0
        absent = 1 << kernel.ABSENT_BIT if node.is_nullable or node.children else 0
        fields += (PLAIN_MASKS[node.type] | nil, EXT_MASKS[node.type] | absent)
    parts: list[int] = []
    for part in index.sort_parts[:used]:
        ordered = kernel.COLLATED if part.order is not None else 0
        parts += (part.field_no, part.type + ordered)
    return array("Q", (*head, *fields, *parts))
