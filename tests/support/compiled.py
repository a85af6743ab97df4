"""Compiled statements and selections on layers, as tests drive them: requests in, answers out."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

pytest.importorskip("logweir.store.engine.statementkernel")

from logweir.errors import RequestError
from logweir.store.commit.group import Group
from logweir.store.engine import executing, statementkernel
from logweir.store.engine.batches import Answers
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.refusal import refusal
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, reference
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.wal.mp import pack, unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

COLUMNS, RESULTS = executing.COLUMNS, executing.RESULTS
ALL = 2**64 - 1
GET = 7
Outcome = tuple[object, ...]
Wanted = tuple[int, int, int, int, int, bytes]
"""Space id, index id, iterator, limit, offset, key."""

Condition = tuple[int, int, int, int]
"""The columns EXPECT, FIELD, VALUE and AS_REPLACE of a statement."""


class NoBase:
    """Below which there is nothing: what a transaction on layers wants of one on the state."""

    trees = bases = None

    class state:
        is_foreign = False

        @staticmethod
        def check_databases(names: object) -> None:
            pass

    def tree(self, space_id: int, index_id: int) -> None:
        return None


class _Counting(Group):
    """Counts what the reference engine does."""

    def __init__(self, owner: Compiled, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = owner

    def _referred(self, *args: Any) -> Any:
        self._owner.referred += 1
        return super()._referred(*args)


class Compiled:
    """The compiled engine on layers of some spaces.

    `base`: a transaction of the state below; None: nothing is below; `executor`: of statements.
    `referred`: how many statements and selections the reference engine did.
    """

    def __init__(
        self, spaces: list[SpaceDef], schema: Schema, base: Any = None, executor: Any = None
    ) -> None:
        self.ids = [space.id for space in spaces]
        self.schema = schema
        self.base = NoBase() if base is None else base
        self.executor = executor or statementkernel.Executor()
        self.plans = Plans()
        self.txn = LayeredTxn((), self.base, write=True)
        self.referred = 0
        self._begin()

    def _begin(self) -> None:
        self.group = _Counting(
            self,
            self.txn,
            self.schema,
            self.plans,
            self.executor,
            vclock=VClock({}),
            replica_id=1,
            now=0.0,
        )

    def add_layer(self) -> None:
        """Seal the open layer."""
        self.txn = LayeredTxn((self.txn.taken(), *self.txn.stack), self.base, write=True)
        self._begin()

    def spaces(self) -> list[Any]:
        """The spaces as a batch sees them now."""
        found = [self.schema.get(space_id) for space_id in self.ids]
        plans = [None if one is None else self.plans.statements(one) for one in found]
        return [self.group._planned(plan) for plan in plans]

    def apply_layers(self) -> None:
        """Bring what the layers hold into the base."""
        for layer in reversed((self.txn.taken(), *self.txn.stack)):
            for name, table in layer.tables.items():
                tree = self.base.tree(*name)
                for key, value in list(table.ascending()):
                    if value:
                        tree.put(key, value)
                    elif tree.get(key) is not None:
                        tree.delete(key)
        self.txn = LayeredTxn((), self.base, write=True)
        self._begin()

    def execute(
        self, requests: list[tuple[Request, bool]], conditions: list[Condition] | None = None
    ) -> list[Outcome]:
        """What comes of requests; each with whether it ends a transaction."""
        data, columns = columns_of(requests, self.ids)
        for number, condition in enumerate(conditions or ()):
            end = (number + 1) * COLUMNS
            columns[end - len(condition) : end] = array("Q", condition)
        answers = self.group.execute_batch(data, columns, self.ids, limit_bytes=ALL >> 1)
        return [outcome(answers, number) for number in range(len(requests))]

    def execute_one(self, request: Request) -> Outcome:
        """What comes of a request by itself."""
        try:
            old, new = self.group.execute(request)
        except RequestError as error:
            return told(error)
        return ("done", old, new, self.group._drafts.rows[-1][1])

    def make_one(self, request: Request) -> Outcome:
        """The same of one whose values were given in Python: the tuple that it tells, packed."""
        first = request.key if request.tuple is None else request.tuple
        ops = None if request.ops is None else unpack(request.ops)
        try:
            told_row = self.group.make(
                request.type, request.space_id, unpack(first or b""), ops, request.index_id
            )
        except RequestError as error:
            return told(error)
        return (
            "done",
            None if told_row is None else pack(told_row),
            self.group._drafts.rows[-1][1],
        )

    def select(self, wanted: list[Wanted]) -> list[Outcome]:
        """What selections give."""
        data, columns = bytearray(), array("Q")
        for space_id, index_id, iterator, limit, offset, key in wanted:
            columns.extend((RowType.SELECT, self.ids.index(space_id), index_id, iterator))
            columns.extend((len(data), len(data) + len(key), 0, 0, 1, 0, limit, offset, 0))
            data += key
        answers = self.group.execute_batch(bytes(data), columns, self.ids, limit_bytes=ALL >> 1)
        found: list[Outcome] = []
        for number in range(len(wanted)):
            if number in answers.refused:
                found.append(told(answers.error(number)))
                continue
            out = answers.changed(number)[1] or b""
            assert out[0] == 0xDD
            found.append(("done", int.from_bytes(out[1:5], "big"), out[5:]))
        return found


def outcome(answers: Answers, number: int) -> Outcome:
    """What came of a statement."""
    status = answers.results[number * RESULTS]
    if status == 0:
        return ("done", *answers.changed(number), answers.body(number) or None)
    if status == 3:
        return ("undone",)
    if status == 4:
        return ("unmet", answers.changed(number)[0])
    return told(answers.error(number))


def selected(engine: Engine, wanted: Wanted) -> Outcome:
    """What a selection gives in an engine in Python."""
    space_id, index_id, iterator, limit, offset, key = wanted
    try:
        if iterator == GET:
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
            tuples = list(reference(engine, found))
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
