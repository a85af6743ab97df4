"""The store's kernel: compiled, interpreted and ordinary, the same of the same bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate, pairwise
from random import Random
from types import ModuleType
from typing import Any

import pytest
from mutation import mutate

from interop.valuecases import Cases
from interop.valuecases import array as packed_array
from logweir.errors import RequestError
from logweir.store.schema import bulk, kernel
from logweir.store.schema.bulk import KeyPlan, _table, interpreted, pack_tuples
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.keys import index_keys
from logweir.wal import kernel as rows_kernel
from logweir.wal.mp import pack

ROUNDS = 3000
KEYED = [kind for kind in FieldType if kind not in (FieldType.ANY, FieldType.ARRAY, FieldType.MAP)]


plain = interpreted(kernel)
vars(plain)["rows"] = interpreted(rows_kernel)


def spaces(random: Random) -> SpaceDef:
    """A space of random fields with random indexes over its first four."""
    fields = [FieldDef("id", FieldType.UNSIGNED)]
    for number in range(random.randrange(4)):
        kind = random.choice(list(FieldType))
        fields.append(FieldDef(f"f{number}", kind, is_nullable=random.random() < 0.4))
    plain = SpaceDef(512, 1, "t", field_count=random.choice([0, 0, 0, 5]), fields=tuple(fields))
    indexes = [IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),))]
    for number in range(1, 4):
        parts = []
        for at in random.sample(range(4), random.randrange(1, 3)):
            kind = random.choice(KEYED)
            if at < len(fields):
                own = fields[at].type
                kind = own if own in KEYED else FieldType.STRING
            parts.append(PartDef(at, kind, is_nullable=random.random() < 0.4))
        one = IndexDef(
            512, number, f"i{number}", IndexType.TREE, tuple(parts), random.random() < 0.5
        )
        try:
            plain.with_indexes((*indexes, one))
        except RequestError:
            continue
        indexes.append(one)
    return plain.with_indexes(tuple(indexes))


def fitting(cases: Cases, space: SpaceDef) -> bytes:
    """A tuple that mostly fits."""
    makers = {
        FieldType.UNSIGNED: cases.integer,
        FieldType.STRING: cases.text,
        FieldType.NUMBER: cases.number,
        FieldType.DOUBLE: cases.floating,
        FieldType.INTEGER: cases.integer,
        FieldType.BOOLEAN: cases.boolean,
        FieldType.VARBINARY: cases.binary,
        FieldType.SCALAR: cases.scalar,
        FieldType.DECIMAL: cases.decimal,
        FieldType.UUID: cases.uuid,
    }
    values = []
    for node in space.format.top:
        if node.is_nullable and cases.random.random() < 0.2:
            values.append(b"\xc0")
        else:
            values.append(makers.get(node.type, cases.value)())
    values += [cases.value() for _ in range(cases.random.randrange(3))]
    return packed_array(*values[: cases.random.choice([9, 9, 9, 2])])


def run(
    module: ModuleType, packed: bytes, bounds: list[int], table: array[int], room: int
) -> tuple[int, bytes, list[int]]:
    """What a kernel answers, and what it has written up to where it stopped."""
    out = bytearray(room)
    ends = array("Q", bytes(8 * len(bounds)))
    answer = module.keys(packed, array("Q", bounds), 0, len(bounds) - 1, table, out, ends)
    row = answer // 4
    return answer, bytes(out[: ends[row]]), ends[: row + 1].tolist()


def slow_keys(space: SpaceDef, index: IndexDef, data: bytes) -> list[bytes]:
    """What the ordinary path says."""
    space.format.check(data)
    return index_keys(data, index)


def told(call: Callable[..., list[bytes]], *arguments: object) -> list[bytes] | str:
    """What a call returns, or the text of its error."""
    try:
        return call(*arguments)
    except RequestError as error:
        return error.message


@pytest.mark.parametrize("seed", range(4))
def test_compiled_interpreted_and_ordinary_keys_agree(seed: int) -> None:
    """On fitting, odd and damaged tuples, and with too little room, the three agree."""
    random = Random(seed)
    cases = Cases(random)
    space = spaces(random)
    endings = set()
    for number in range(ROUNDS):
        if number % 40 == 0:
            space = spaces(random)
            plans = [(index, KeyPlan(space, index)) for index in space.indexes]
        data = fitting(cases, space)
        if random.random() < 0.4:
            data = mutate(random, data)
        index, plan = random.choice(plans)
        table = _table(space.format, index, True)
        assert table is not None
        room = random.choice([4 * len(data) + 200, 4 * len(data) + 200, random.randrange(80)])
        bounds = [0, len(data)]
        answer = run(kernel, data, bounds, table, room)
        assert answer == run(plain, data, bounds, table, room), data.hex()
        endings.add(answer[0] % 4)
        ordinary = told(slow_keys, space, index, data)
        assert told(plan.key, data) == ordinary, data.hex()
        if answer[0] % 4 == kernel.DONE:
            assert [answer[1]] == ordinary, data.hex()
        elif answer[0] % 4 == kernel.BAD:
            assert isinstance(ordinary, str), data.hex()
    assert endings == {kernel.DONE, kernel.NO_ROOM, kernel.ODD, kernel.BAD}


def test_splitting_agrees() -> None:
    """Both kernels find the same values in fitting and damaged runs."""
    random = Random(5)
    cases = Cases(random)
    refused = 0
    for _ in range(ROUNDS):
        packed = b"".join(cases.value() for _ in range(random.randrange(6)))
        if random.random() < 0.5:
            packed = mutate(random, packed)
        size = random.choice([2, 4, 40])
        answers = []
        for module in (kernel, plain):
            offsets = array("Q", bytes(8 * size))
            count = module.split(packed, 0, len(packed), offsets)
            answers.append((count, offsets[: count + 1].tolist()))
        assert answers[0] == answers[1], packed.hex()
        refused += answers[0][0] < size - 1 and answers[0][1][-1] < len(packed)
    assert 0 < refused < ROUNDS


def value(random: Random, depth: int = 0) -> object:
    """Any value that can be packed, and some that cannot."""
    kinds: list[Callable[[], object]] = [
        lambda: random.choice([None, True, False]),
        lambda: random.getrandbits(random.randrange(1, 65)),
        lambda: -random.getrandbits(random.randrange(1, 65)),
        lambda: (
            random.choice([1, -1]) * 2 ** random.choice([5, 7, 8, 15, 16, 31, 32, 63])
            - random.randrange(2)
        ),
        lambda: random.choice([0.0, -0.0, 1.5, -1e300, float("inf"), random.random()]),
        lambda: "aé€\U0001f600"[: random.randrange(5)] * random.choice([1, 1, 9, 80, 30_000]),
        lambda: random.randbytes(random.choice([0, 1, 31, 255, 256, 70_000])),
    ]
    odd: list[Callable[[], object]] = [
        lambda: [value(random, depth + 1) for _ in range(random.randrange(3))] if depth < 3 else 1,
        lambda: {"a": value(random, depth + 1)} if depth < 3 else {},
        lambda: Decimal(random.randrange(1000)) / 8,
        lambda: "\udc80",
        lambda: random.choice([2**64, -(2**63) - 1, object()]),
    ]
    return random.choice(kinds if depth == 0 and random.random() < 0.99 else odd)()


def test_tuples_are_packed_as_msgpack_packs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, interpreted and by the library: the same bytes and bounds, or the same error."""
    monkeypatch.setattr(plain, "COMPILED", True)
    random = Random(14)
    done = 0
    for _ in range(ROUNDS // 3):
        rows: list[Any] = []
        for _ in range(random.choice([0, 1, 2, 40])):
            fields = [value(random) for _ in range(random.choice([0, 1, 3, 15, 16, 20]))]
            rows.append(tuple(fields) if random.random() < 0.7 else fields)
        expected: object
        try:
            expected = [pack(row) for row in rows]
        except (TypeError, OverflowError) as error:
            expected = type(error)
        else:
            done += 1
        for is_compiled in {bulk.COMPILED, False}:
            monkeypatch.setattr(bulk, "COMPILED", is_compiled)
            found: object
            try:
                packed, bounds = pack_tuples(rows)
            except (TypeError, OverflowError) as error:
                found = type(error)
            else:
                found = [packed[start:end] for start, end in pairwise(bounds)]
            assert found == expected
    assert done > ROUNDS // 6


@pytest.mark.parametrize(
    "bounds", [(0, 4), (2, 1), (5, 5), (2**64 - 1, 2), (0, 2**63), (0, 2**64 - 1)]
)
def test_boundaries_outside_of_their_buffer_are_refused(bounds: tuple[int, int]) -> None:
    """Nothing is read from where no bytes are, neither of keys nor of tuples."""
    bad = array("Q", bounds)
    for module in (kernel, plain):
        with pytest.raises(IndexError):
            module.parts(b"abc", bad)


def test_parts_are_alike() -> None:
    """Both kernels cut a buffer into the same pieces, also into empty ones."""
    random = Random(6)
    for _ in range(500):
        keys = [random.randbytes(random.choice([0, 1, 2, 3])) for _ in range(random.randrange(5))]
        bounds = array("Q", accumulate(map(len, keys), initial=0))
        packed = b"".join(keys)
        assert kernel.parts(packed, bounds) == keys
        assert plain.parts(packed, bounds) == keys
