"""Compiled statements and selections on layers, as tests drive them: requests in, answers out."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

pytest.importorskip("logweir.store.statementkernel")

from logweir.errors import RequestError
from logweir.store import layerkernel, selectkernel, statementkernel
from logweir.store.definition import SpaceDef
from logweir.store.engine import Engine, Plans
from logweir.store.memtable import Memtable
from logweir.store.reference import reference_engine, reference_of
from logweir.store.refusal import refusal
from logweir.store.request import Request
from logweir.store.schema import Schema
from logweir.store.select import Select, select
from logweir.store.spaceplan import plan_of
from logweir.store.statebase import StateBase

COLUMNS, RESULTS = statementkernel.COLUMNS, statementkernel.RESULTS
ALL = 2**64 - 1
Outcome = tuple[object, ...]
Wanted = tuple[int, int, int, int, int, bytes]
"""Space id, index id, iterator, limit, offset, key."""

Condition = tuple[int, int, int, int]
"""The columns EXPECT, FIELD, VALUE and AS_REPLACE of a statement."""


class Compiled:
    """The compiled engine on layers of some spaces.

    `base`: a transaction of the state below; None: nothing is below. `referred`: how many
    statements and selections the reference engine did.
    """

    def __init__(self, spaces: list[SpaceDef], schema: Schema, base: Any = None) -> None:
        self.plans = [plan_of(space) for space in spaces]
        self.schema = schema
        self.base = base
        self.executor = statementkernel.Executor()
        self.selector = selectkernel.Selector()
        self.key_plans = Plans()
        self.layers: list[list[list[Memtable]]] = [[] for _ in spaces]
        self.referred = 0
        self.add_layer()

    def add_layer(self) -> None:
        """Seal the open layer."""
        for plan, layers in zip(self.plans, self.layers, strict=True):
            layers.insert(0, [Memtable() for _ in plan.index_ids])

    def spaces(self) -> list[Any]:
        """The spaces as a batch sees them now."""
        base = layerkernel.Base() if self.base is None else StateBase(self.base)
        return [
            layerkernel.Space(plan, layers, base)
            for plan, layers in zip(self.plans, self.layers, strict=True)
        ]

    def apply_layers(self) -> None:
        """Bring what the layers hold into the base."""
        for plan, layers in zip(self.plans, self.layers, strict=True):
            for place, index_id in enumerate(plan.index_ids):
                tree = self.base.tree(plan.space_id, index_id)
                for layer in reversed(layers):
                    for key, value in list(layer[place].ascending()):
                        if value:
                            tree.put(key, value)
                        elif tree.get(key) is not None:
                            tree.delete(key)
            layers.clear()
        self.add_layer()

    def execute(
        self, requests: list[tuple[Request, bool]], conditions: list[Condition] | None = None
    ) -> list[Outcome]:
        """What comes of requests; each with whether it ends a transaction."""
        data, columns = columns_of(requests, [plan.space_id for plan in self.plans])
        for number, condition in enumerate(conditions or ()):
            end = (number + 1) * COLUMNS
            columns[end - len(condition) : end] = array("Q", condition)
        spaces = self.spaces()
        run = reference_of(data, columns, spaces, self.schema, self.key_plans)

        def refer(number: int) -> object:
            self.referred += 1
            return run(number)

        results, out, failures = self.executor.execute(data, columns, spaces, refer)
        found: list[Outcome] = []
        for number, (request, _) in enumerate(requests):
            row = results[number * RESULTS : (number + 1) * RESULTS]
            status, code, first, second = row[:4]
            spans = [out[row[at] : row[at + 1]] or None for at in (4, 6, 8)]
            if status == 0:
                found.append(("done", *spans))
            elif status == 3:
                found.append(("undone",))
            elif status == 4:
                found.append(("unmet", spans[0]))
            elif number in failures:
                found.append(told(failures[number]))
            else:
                space = self.schema.space(request.space_id)
                found.append(told(refusal(space, code, first, second, request.ops or b"")))
        return found

    def select(self, wanted: list[Wanted]) -> list[Outcome]:
        """What selections give."""
        spaces = self.spaces()
        ids = [space.plan.space_id for space in spaces]
        data, columns = bytearray(), array("Q")
        for space_id, index_id, iterator, limit, offset, key in wanted:
            columns.extend((ids.index(space_id), index_id, iterator, limit, offset))
            columns.extend((len(data), len(data) + len(key)))
            data += key
        results, out = self.selector.select(bytes(data), columns, spaces)
        engine = reference_engine(spaces, self.schema, self.key_plans)
        found: list[Outcome] = []
        for number, one in enumerate(wanted):
            row = results[number * selectkernel.SELECT_RESULTS :][: selectkernel.SELECT_RESULTS]
            status, code, first, second, count, start, end = row[:7]
            if status == 0:
                head, tuples = out[start : start + 5], out[start + 5 : end]
                assert head == b"\xdd" + count.to_bytes(4, "big")
                found.append(("done", count, tuples))
            elif status == 1:
                found.append(told(refusal(self.schema.space(one[0]), code, first, second, b"")))
            else:
                self.referred += 1
                found.append(selected(engine, one))
        return found


def selected(engine: Engine, wanted: Wanted) -> Outcome:
    """What a selection gives in an engine in Python."""
    space_id, index_id, iterator, limit, offset, key = wanted
    try:
        if iterator == selectkernel.GET:
            space = engine.schema.space(space_id)
            index = engine.schema.index(space, index_id)
            if not index.is_unique:
                return told(refusal(space, 41, 0, 0, b""))
            one = engine.get(space, index, key)
            tuples = [] if one is None or offset or not limit else [one]
        else:
            found = Select.packed(
                engine.schema,
                space_id,
                key,
                iterator,
                index=index_id,
                limit=None if limit == ALL else limit,
                offset=offset,
            )
            tuples = list(select(engine, found))
    except RequestError as error:
        return told(error)
    return ("done", len(tuples), b"".join(tuples))


def columns_of(requests: list[tuple[Request, bool]], ids: list[int]) -> tuple[bytes, array[int]]:
    data = bytearray()
    columns = array("Q")
    for request, is_last in requests:
        columns.extend((request.type, ids.index(request.space_id)))
        columns.extend((request.index_id, request.index_base))
        for part in (request.key if request.tuple is None else request.tuple, request.ops):
            columns.extend((len(data), len(data) + len(part)) if part else (0, 0))
            data += part or b""
        columns.append(is_last)
        columns.extend((0, 0, 0, 0))
    return bytes(data), columns


def told(error: RequestError) -> Outcome:
    return ("refused", int(error.code), str(error), error.details)
