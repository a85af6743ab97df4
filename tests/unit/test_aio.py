"""`logweir.aio`: each method does what its namesake of `Log` or `Transaction` does."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir import aio
from logweir.errors import RequestError

FIELDS = [("id", "unsigned"), ("n", "unsigned")]
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("insert", ("t", (1, 10))),
    ("insert", ("t", (1, 11))),
    ("replace", ("t", (2, 20))),
    ("update", ("t", 1, [["+", "n", 5]])),
    ("upsert", ("t", (3, 30), [["=", "n", 0]])),
    ("append", ("t", [(4, 40), (5, 50)])),
    ("delete", ("t", 2)),
    ("get", ("t", 1)),
    ("select", ("t",)),
    ("count", ("t",)),
    ("count", ("none",)),
]


def outcome(call: Any, arguments: tuple[Any, ...]) -> object:
    """What a call gives, or the number of its error."""
    try:
        return call(*arguments)
    except RequestError as error:
        return error.code


async def awaited(call: Any, arguments: tuple[Any, ...]) -> object:
    """The same of one that is awaited."""
    try:
        return await call(*arguments)
    except RequestError as error:
        return error.code


@pytest.mark.parametrize("in_transaction", [False, True])
def test_the_same_calls_give_the_same(tmp_path: Path, in_transaction: bool) -> None:
    """One by one, and in a transaction, which has no `count`."""
    calls = [one for one in CALLS if not (in_transaction and one[0] == "count")]
    with logweir.open(tmp_path / "a") as log:
        log.create_space("t", FIELDS)
        if in_transaction:
            with log.transaction() as tx:
                expected = [outcome(getattr(tx, name), given) for name, given in calls]
        else:
            expected = [outcome(getattr(log, name), given) for name, given in calls]
        contents = log.select("t")

    async def main() -> tuple[list[object], list[Any]]:
        async with aio.open(tmp_path / "b") as log:
            await log.run(lambda sync: sync.create_space("t", FIELDS))
            if in_transaction:
                async with log.transaction() as tx:
                    found = [await awaited(getattr(tx, name), given) for name, given in calls]
            else:
                found = [await awaited(getattr(log, name), given) for name, given in calls]
            return found, await log.select("t")

    assert asyncio.run(main()) == (expected, contents)
    assert len(contents) == 4


def test_methods_have_the_parameters_of_their_namesakes() -> None:
    """So that what is read of the one holds for the other; `**options` passes all on. Not those of
    the iterators, which end by themselves here and are told to there."""
    for kind, model in ((aio.AsyncLog, logweir.Log), (aio.AsyncTransaction, logweir.Transaction)):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            namesake = getattr(model, name, None)
            if (
                name.startswith("_")
                or name in ("listen", "rows")
                or not inspect.isfunction(namesake)
            ):
                continue
            own = inspect.signature(method).parameters
            if not any(one.kind is one.VAR_KEYWORD for one in own.values()):
                assert list(own) == list(inspect.signature(namesake).parameters), name
