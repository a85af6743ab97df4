"""The store's decoders against damaged bytes: a value, or RequestError, and nothing else.

LOGWEIR_FUZZ_ROUNDS and LOGWEIR_FUZZ_SEED as in `test_decoders`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from mutation import mutate
from samples import sample

from interop.valuecases import Cases
from logweir.errors import RequestError
from logweir.store.engine.update import apply_update, apply_upsert
from logweir.store.schema import jsonpath
from logweir.store.schema.bulk import KeyPlan, split_tuples
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.keys import exact_key, index_keys, search_key
from logweir.store.schema.schema import Schema, check_cluster_row
from logweir.store.schema.values import invalid_msgpack
from logweir.wal.mp import pack, skip

ROUNDS = int(os.environ.get("LOGWEIR_FUZZ_ROUNDS", "8000"))
SEED = int(os.environ.get("LOGWEIR_FUZZ_SEED", "1"))

SPACE = SpaceDef(
    512,
    1,
    "t",
    fields=(FieldDef("id", FieldType.UNSIGNED), FieldDef("name"), FieldDef("doc")),
).with_indexes(
    (
        IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),)),
        IndexDef(
            512,
            1,
            "x",
            IndexType.TREE,
            (
                PartDef(2, FieldType.SCALAR, True, path="a.b"),
                PartDef(2, FieldType.SCALAR, True, path="l[*].c"),
            ),
            is_unique=False,
        ),
    )
)
KEYED = IndexDef(
    512,
    2,
    "k",
    IndexType.TREE,
    tuple(PartDef(number, kind) for number, kind in enumerate([FieldType.SCALAR] * 3)),
)
OLD = pack([1, "abc", {"a": {"b": 1}, "l": [{"c": 2}, {"c": "x"}], "n": 1.5}, 7])


class Target(NamedTuple):
    """A decoder and what its damaged inputs are made of."""

    decode: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]


def _definitions(space_id: int) -> list[bytes]:
    rows = sample("02-spaces").file("00000000000000001356.snap").rows
    found = [row["body"] for row in rows if row["body"]["space_id"] == space_id]
    return [bytes.fromhex(body["tuple_mp"]) for body in found][-20:]


def _apply(space_id: int) -> Callable[[bytes], object]:
    base = Schema()
    for row in sample("02-spaces").file("00000000000000001356.snap").rows:
        body = row["body"]
        if body["space_id"] in (276, 280, 284, 288):
            base.apply(body["space_id"], None, bytes.fromhex(body["tuple_mp"]), is_insert=True)

    def decode(data: bytes) -> None:
        if space_id == 320:
            check_cluster_row(None, data, 1)
        for old, new in ((None, data), (data, None), (data, data)):
            schema = base.copy()
            try:
                schema.apply(space_id, old, new)
            except RequestError:
                assert schema.version == base.version
                if new is data and old is None:
                    raise

    return decode


def _tuples() -> list[bytes]:
    cases = Cases(Random(3))
    return [OLD, pack([1, 2, {"a": 5}]), *(cases.whole() for _ in range(50))]


def _operations() -> list[bytes]:
    cases = Cases(Random(4))
    found = []
    for _ in range(60):
        cases.whole()
        cases.tuple = OLD
        found.append(cases.operations())
    return found


def _check(data: bytes) -> None:
    SPACE.format.check(data)
    for index in SPACE.indexes:
        assert KeyPlan(SPACE, index).key(data) == index_keys(data, index)


def _update(data: bytes) -> None:
    new = apply_upsert(OLD, data, index_base=1, space=SPACE)
    assert skip(new, 0) == len(new)
    new = apply_update(OLD, data, index_base=0, space=SPACE)
    assert skip(new, 0) == len(new)


def _key(data: bytes) -> None:
    search_key(data, KEYED)
    exact_key(data, KEYED)


def _path(data: bytes) -> None:
    position = 0
    try:
        steps = jsonpath.parse(data)
    except jsonpath.PathError as error:
        position = error.position
    if position:
        assert position <= len(data) + 1
        raise invalid_msgpack()
    if b'"' not in data:
        assert jsonpath.parse(jsonpath.render(steps)) == steps


TARGETS = {
    "tuple": Target(_check, _tuples),
    "operations": Target(_update, _operations),
    "key": Target(_key, lambda: [pack([1, "a", 2.5]), pack([True, b"x", -1])]),
    "run": Target(split_tuples, lambda: [b"".join(_tuples()[:3])]),
    "path": Target(_path, lambda: [b"a.b[3]", b"[1]['x y'].z", b'["q"][*]', "ü.ß".encode()]),
    **{
        f"space {space_id}": Target(_apply(space_id), lambda it=space_id: _definitions(it))
        for space_id in (276, 280, 284, 288, 320, 340)
    },
}


@pytest.mark.parametrize("name", TARGETS)
def test_store_decoder_gives_a_value_or_our_error(name: str) -> None:
    """Only RequestError comes out, and some damage is found and some is none."""
    target = TARGETS[name]
    random = Random(zlib.crc32(name.encode()) + SEED)
    corpus = target.corpus()
    refused = 0
    rounds = ROUNDS if not name.startswith("space") else ROUNDS // 4
    for number in range(rounds):
        data = mutate(random, random.choice(corpus))
        try:
            target.decode(data)
        except RequestError:
            refused += 1
        except Exception as error:
            place = f"{name}, seed {SEED}, round {number}: {data.hex()}"
            raise AssertionError(place) from error
    assert 0 < refused < rounds, name
