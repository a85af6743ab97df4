"""UPSERTs whose operations change the key, as a real Tarantool answers and keeps them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.realtarantool import RealTarantool
from logweir.errors import RequestError
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

pytestmark = pytest.mark.tarantool

CHANGES = 5000
SPACES = (512, 513, 514)


def definitions() -> list[tuple[str, int, bytes]]:
    unsigned, string = [0, "unsigned"], [1, "string"]
    found: list[tuple[str, int, bytes]] = []
    for space, kind, parts, second in (
        (512, "tree", [unsigned], None),
        (513, "tree", [unsigned, string], [string]),
        (514, "hash", [string], [unsigned]),
    ):
        found.append(("insert", 280, pack([space, 1, f"s{space}", "memtx", 0, {}, []])))
        found.append(("insert", 288, pack([space, 0, "p", kind, {"unique": True}, parts])))
        if second is not None:
            found.append(("insert", 288, pack([space, 1, "s", "tree", {"unique": True}, second])))
    return found


def changes(dice: random.Random) -> list[tuple[Any, ...]]:
    def operation() -> list[Any]:
        kind = dice.choice("=+-!#=!")
        field = dice.choice([0, 1, 2, 3, 5, 7, -1, -2, -3, -4, -9])
        if kind == "#":
            return [kind, field, dice.choice([1, 2])]
        if kind in "+-":
            return [kind, field, dice.choice([1, 2, 255])]
        return [kind, field, dice.choice([1, 2, 3, "a", "b", "c"])]

    found: list[tuple[Any, ...]] = []
    for _ in range(CHANGES):
        space = dice.choice(SPACES)
        row = [dice.randrange(5), dice.choice("abc"), dice.randrange(9)][: dice.choice([2, 2, 3])]
        if dice.random() < 0.2:
            found.append(("replace", space, pack(row)))
        else:
            ops = [operation() for _ in range(dice.randrange(1, 4))]
            found.append(("upsert", space, pack(row), pack(ops), 0))
    return found


def our_answer(log: logweir.Log, change: tuple[Any, ...]) -> bytes | int | None:
    ops = change[3] if len(change) > 3 else None
    try:
        return log.execute(Request(RowType[change[0].upper()], change[1], tuple=change[2], ops=ops))
    except RequestError as error:
        return int(error.code)


@pytest.mark.parametrize("seed", [1, 2])
def test_upserts_that_change_the_key(tmp_path: Path, seed: int) -> None:
    """Ignored, refused as duplicates or moved to the other key: all as there; the log says the
    same when it is read anew."""
    print("seed", seed)
    made = [*definitions(), *changes(random.Random(seed))]
    with RealTarantool(tmp_path / "real") as box:
        theirs = [one[0] if isinstance(one, tuple) else one for one in box.dml(made)]
        held = [box.eval("return box.space[...]:select()", [space])[0] for space in SPACES]
    with logweir.open(tmp_path / "ours", durability="write") as log:
        for change, answer in zip(made, theirs, strict=True):
            assert our_answer(log, change) == answer, change
        log.inner.abandon()
    assert theirs.count(3) > 10
    for folder in ("ours", "real"):
        with logweir.open(tmp_path / folder) as log:
            for space, rows in zip(SPACES, held, strict=True):
                assert sorted(map(list, log.select(space)), key=str) == sorted(rows, key=str)
