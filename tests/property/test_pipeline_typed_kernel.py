"""Typed columns: the kernel, compiled and interpreted, against one Python object per cell.

`feed` is also what runs under the sanitizers (`tests/fuzz/test_pipeline_typed_sanitized.py`).
"""

from __future__ import annotations

import struct
import uuid
from array import array
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import mutate
from support import cells as oracle

from logweir.errors import LogweirError
from logweir.pipeline import cells, typedkernel
from logweir.pipeline.jobs import typed
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.store.schema.bulk import interpreted as plain_twin
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.wal.mp import Ext, MapPairs, pack

PLAIN = plain_twin(typedkernel)
LONG, DECIMAL, STRING, JSON = map(typedkernel.KINDS.index, ("long", "decimal", "string", "json"))
TEXTS = ("", "text", '"\\\n\x00\x1f\x7f', "grüße", "\u2028😀" * 3, "\udcff\udc80x", "a" * 40)
KEYS = (*TEXTS, "$bin", 1, 1.0, None, b"k", "a", "b")


def value_of(random: Random, depth: int = 0) -> Any:
    """Any value that `pack` takes; strings are not always UTF-8, maps not always objects."""
    kind = random.randrange(16 if depth < 3 else 13)
    if kind < 3:
        bits = random.choice((1, 5, 7, 8, 15, 16, 31, 32, 62, 63, 64))
        number = random.getrandbits(bits)
        return number if random.random() < 0.6 or number > 2**63 else -number
    simple: dict[int, Any] = {
        3: None,
        4: random.random() < 0.5,
        5: random.choice((0.0, -0.0, 1.5, 1e300, 5e-324, float("inf"), float("-inf"), 0.1)),
        6: float("nan"),
        7: random.choice(TEXTS),
        8: "".join(chr(random.randrange(0x250)) for _ in range(random.randrange(20))),
        9: random.randbytes(random.randrange(40)),
        10: uuid.UUID(int=random.getrandbits(128)),
        11: Ext(random.choice((0, 3, 2, -1, 77, -128)), random.randbytes(random.randrange(20))),
        12: Decimal((random.getrandbits(1), _digits(random), random.randint(-76, 76))),
    }
    if kind in simple:
        return simple[kind]
    items = [value_of(random, depth + 1) for _ in range(random.choice((0, 1, 2, 5, 17)))]
    if kind == 13:
        return items
    return MapPairs(
        (random.choice(KEYS) if kind == 14 else str(i), one) for i, one in enumerate(items)
    )


def _digits(random: Random) -> tuple[int, ...]:
    return tuple(random.randrange(10) for _ in range(random.choice((1, 2, 7, 37, 38))))


def fitting(random: Random, kind: FieldType) -> Any:
    """A value that its column takes."""
    for _ in range(200):
        value = value_of(random)
        if kind not in oracle._FITS or oracle._FITS[kind](value):
            return value
    return None


def packed_value(random: Random, value: Any) -> bytes:
    """A value in MsgPack, integers and floats at times in a longer form."""
    if type(value) is int and random.random() < 0.3:
        if value >= 0:
            return b"\xcf" + value.to_bytes(8, "big")
        return b"\xd3" + value.to_bytes(8, "big", signed=True)
    if type(value) is float and random.random() < 0.3 and not abs(value) > 1e38:
        return b"\xca" + struct.pack(">f", value)
    if isinstance(value, Decimal) and random.random() < 0.2:
        return b"\xc7\x03\x01\xd0\x02" + random.choice((b"\x1c", b"\x1d", b"\x0b", b"\x1f"))
    return pack(value)


def space_of(random: Random) -> SpaceDef:
    """A space with fields of some types and a primary key on some of them, or beyond them."""
    kinds = [random.choice(list(FieldType)) for _ in range(random.choice((0, 1, 3, 13)))]
    fields = tuple(FieldDef(f"f{n}", kind, is_nullable=True) for n, kind in enumerate(kinds))
    reached = random.sample(range(len(kinds) + 3), random.randrange(4))
    parts = tuple(_part(random, number, kinds) for number in reached)
    space = SpaceDef(600, 1, "typed", fields=fields)
    return space.with_indexes((IndexDef(600, 0, "pk", IndexType.TREE, parts),)) if parts else space


def _part(random: Random, number: int, kinds: list[FieldType]) -> PartDef:
    kind = kinds[number] if number < len(kinds) else FieldType.ANY
    if kind not in (FieldType.ANY, FieldType.MAP):
        return PartDef(number, kind)
    path = "a" if kind is FieldType.MAP or random.random() < 0.3 else None
    return PartDef(number, FieldType.SCALAR, path=path)


def rows_of(random: Random, space: SpaceDef) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and tuples of some rows: most as the format says, others shorter, longer or odd."""
    for _ in range(random.choice((0, 1, 7, 8, 9, 30))):
        values = [
            fitting(random, one.type) if random.random() < 0.8 else value_of(random)
            for one in space.fields
        ]
        values = values[: random.randrange(len(values) + 1)] if random.random() < 0.2 else values
        if random.random() < 0.2:
            values += [value_of(random) for _ in range(random.randrange(3))]
        body = b"".join(packed_value(random, one) for one in values)
        data = b"\xdd" + len(values).to_bytes(4, "big") + body
        if len(values) < 16 and random.random() < 0.7:
            data = bytes([0x90 + len(values)]) + body
        key = pack([value_of(random) for _ in range(random.randrange(4))])
        yield (
            key if random.random() < 0.7 else None,
            data if random.random() < 0.7 else None,
        )


def outcome(run: Any, *arguments: Any) -> Any:
    """What comes of it: the columns' buffers as values, or the error's words."""
    try:
        return [(one.type, one.to_pylist(), one.validate(full=True)) for one in run(*arguments)]
    except LogweirError as error:
        return type(error), str(error)


def made(
    columns: TypedColumns, keys: list[bytes | None], tuples: list[bytes | None]
) -> list[pa.Array]:
    """The columns of rows as a scan makes them: all values in one buffer."""
    data, spans = cells.placed(tuples)
    more, key_spans = cells.placed(keys)
    moved = key_spans + np.uint64(len(data) << 32 | len(data))
    return columns.of_spans(data + more, spans, np.where(key_spans, moved, key_spans))


def damage(random: Random, data: bytes) -> bytes:
    """An array with damage; what became another value is none that a log has for a tuple."""
    while True:
        found = mutate(random, data)
        if found and (0x90 <= found[0] < 0xA0 or found[0] in (0xDC, 0xDD)):
            return found


def feed(seed: int, damaged: bool) -> str:
    """One run of both ways. Returns what came of it: "columns" or "error"."""
    random = Random(seed)
    space = space_of(random)
    decimals = random.choice(("string", str(random.randrange(39))))
    columns = TypedColumns(space, random.choice(("decimal", "long")), decimals)
    rows = list(rows_of(random, space))
    if damaged:
        for at in range(len(rows)):
            if random.random() < 0.3:
                key, data = rows[at]
                rows[at] = key and damage(random, key), data and damage(random, data)
    keys, tuples = [one for one, _ in rows], [one for _, one in rows]
    wanted = outcome(oracle.of_keys, columns, keys, tuples)
    found = outcome(made, columns, keys, tuples)
    assert repr(found) == repr(wanted), (space, rows)
    return "error" if isinstance(wanted, tuple) else "columns"


RUNS = pytest.mark.parametrize("run", [typedkernel, PLAIN], ids=["installed", "interpreted"])


@pytest.fixture
def using(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has typed columns made by a kernel."""

    def use(run: Any) -> None:
        for module in (cells, typed):
            monkeypatch.setattr(module, "typedkernel", run)
        if run is PLAIN:
            monkeypatch.setattr(cells, "jsonkernel", PLAIN.texts)

    return use


def test_compiled_kernels_run_where_they_can() -> None:
    """Where the log's kernel is compiled, these are too."""
    from logweir.pipeline import jsonkernel
    from logweir.wal import kernel as rows

    assert not PLAIN.COMPILED
    assert typedkernel.COMPILED == jsonkernel.COMPILED == rows.COMPILED


@RUNS
def test_columns_are_those_of_one_object_per_cell(run: Any, using: Any) -> None:
    """Every type, null, missing, misfit, longer and keyed tuples: equal columns and rests."""
    using(run)
    assert {feed(seed, damaged=False) for seed in range(200 if run is typedkernel else 50)} == {
        "columns"
    }


@RUNS
def test_damage_has_the_words_that_unpacking_has(run: Any, using: Any) -> None:
    """Bytes changed, cut and doubled: equal columns, or the same error."""
    using(run)
    told = {feed(seed, damaged=True) for seed in range(300 if run is typedkernel else 80)}
    assert told >= {"columns", "error"}


@given(st.integers(0, 2**64), st.booleans())
def test_columns_of_any_seed(seed: int, damaged: bool) -> None:
    """The same, of other seeds."""
    feed(seed, damaged)


@RUNS
def test_room_of_another_size_is_refused(run: Any) -> None:
    """A buffer that is too short, spans outside of the data: nothing is read or written there."""
    data = b"\x91\x07\x91\xa1x"
    tuples, keys = array("Q", [2 << 32, 2 | 5 << 32]), array("Q", [0, 0])
    parts, table = array("Q"), array("Q", [9] * 4)
    assert run.split(data, tuples, keys, parts, 0, 1, table[:3]) == -3
    assert run.split(data, tuples, keys[:1], parts, 0, 1, table) == -3
    assert run.split(data, tuples, keys, parts, 2, 1, table) == -3
    assert run.split(data, tuples, keys, parts, -1, 1, table) == -3
    assert run.split(data, tuples * 2, keys * 2, parts, 0, 2**62, table) == -5  # four lines too
    assert run.split(data, array("Q", [2 << 32, 2 | 6 << 32]), keys, parts, 0, 1, table) == -2
    assert run.split(data, array("Q", [3 | 2 << 32, 0]), keys, parts, 0, 1, table) == -1
    assert run.split(data, tuples, keys, parts, 0, 1, table) == 2
    assert table.tolist() == [1 | 2 << 32, 3 | 5 << 32, 0, 0]
    numbers, odd = array("Q", [9] * 4), bytearray(2)
    valid = bytearray(1)
    for out, bits, at in (
        (numbers[:1], valid, 0),
        (numbers[:2], bytearray(), 0),
        (numbers[:2], valid, 3),
    ):
        assert not run.fill(LONG, data, table, at, out, bits, odd)
        assert set(out) == {9}
    assert not run.fill(DECIMAL, data, table, 0, numbers[:3], valid, odd)
    for out, bits, at in ((numbers[:3], valid, 0), (numbers, bytearray(), 0), (numbers, valid, 3)):
        assert run.fixed(2, data, table, at, out, bits, odd) == -3
    assert set(numbers) == {9}
    assert not run.booleans(data, table, 0, bytearray(), valid, odd)
    assert not run.contents(STRING, data, table, 0, numbers[:1], odd)
    texts = run.texts.Texts if run is PLAIN else cells.jsonkernel.Texts
    made = texts(data, 0, bytes)
    assert not run.write(JSON, made, data, table, 0, array("i", [0, 0]), valid, odd)
    assert not run.write(
        JSON, made, bytes(bytearray(data)), table, 0, array("i", [0] * 3), valid, odd
    )
    assert not run.write_rest(made, data, table, 2, 1, array("i", [0] * 3), valid, odd)
    assert not any(odd)
    assert not any(valid)
    cut = array("Q", [1 | 2 << 32, 3 | 4 << 32, 0, 3 | 5 << 32])
    assert not run.write(JSON, made, data, cut, 0, array("i", [0] * 3), valid, odd)
    far = array("Q", [1 | 2 << 32, 3 | 9 << 32, 0, 0])
    assert run.fill(LONG, data, far, 0, numbers[:2], bytearray(1), bytearray(2))
