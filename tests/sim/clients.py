"""Clients of a store under a scheduler: what they do is drawn from dice and noted in a ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sim.ledger import REFUSED, SPACE, Content, Look, Operation, Statement

import logweir
from logweir import aio
from logweir.errors import ErrorCode, LogweirError, RequestError, WriteFailed
from logweir.store.engine.request import Request
from logweir.testing.loop import ScheduledLoop
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from sim.wholestore import World

    from logweir.testing.scheduler import Scheduler

__all__ = ["Client", "Keeper", "Reader", "Tasks"]

KEYS: Final = 12
_CHANGES: Final = ("insert", "replace", "update", "upsert", "delete")
_REFUSALS: Final = (ErrorCode.TUPLE_FOUND, ErrorCode.MEMORY_ISSUE)


class Undo(Exception):
    """What a client raises in a transaction that it does not want."""


class Client:
    """One that changes and reads. `name`: in reports; `count`: of its operations."""

    def __init__(self, world: World, log: logweir.Log, name: str, count: int) -> None:
        self.world, self.log, self.name, self.count = world, log, name, count
        self.dice = random.Random(world.dice.getrandbits(64))
        self.scheduler: Scheduler = world.scheduler
        self.ledger = world.ledger

    @property
    def step(self) -> int:
        """The time by which the ledger orders."""
        return len(self.scheduler.history)

    def live(self) -> None:
        """Do all of it; a store that has failed ends it."""
        for _ in range(self.count):
            if self.world.may_skip():
                continue
            try:
                self.act()
            except LogweirError as error:
                if not self.world.is_excused(error):
                    raise
                if self.log.failure is not None:
                    return
            self.scheduler.got_on()

    def act(self) -> None:
        """One thing."""
        chosen = self.dice.choices(
            (
                self.change,
                self.transact,
                self.append,
                self.submit,
                self.get,
                self.select,
                self.view,
            ),
            (8, 4, 2, 2, 3, 2, 2),
        )[0]
        chosen()

    # --- changes ----------------------------------------------------------------------------------

    def statement(self, kind: str | None = None) -> Statement:
        """A statement by chance."""
        kind = kind or self.dice.choice(_CHANGES)
        text = self.dice.choice(("a", "b", "c" * 40, "d" * self.dice.choice((200, 900, 3000))))
        return Statement(kind, self.dice.randrange(KEYS), self.ledger.token(), text)

    def begin(self, statements: Sequence[Statement], *, units: bool = False) -> Operation:
        """Note that they begin."""
        operation = Operation(self.name, list(statements), self.step, units)
        self.ledger.operations.append(operation)
        return operation

    def finish(self, operation: Operation, error: BaseException | None) -> None:
        """Note how they ended."""
        operation.end = self.step
        if error is None:
            operation.outcome = "made"
        elif isinstance(error, RequestError | Undo):
            operation.outcome = "refused"
        elif isinstance(error, WriteFailed):
            operation.outcome = "failed"

    def run(self, operation: Operation, call: Callable[[], Any]) -> None:
        """Make one. Raises what is no refusal."""
        try:
            call()
        except BaseException as error:
            self.finish(operation, error)
            if isinstance(error, RequestError) and error.code in _REFUSALS:
                self.refused(operation, error)
                return
            if not isinstance(error, Undo):
                raise
        else:
            self.finish(operation, None)

    def refused(self, operation: Operation, error: RequestError) -> None:
        """What was refused tells what it has seen, of a single statement."""
        if error.code == ErrorCode.TUPLE_FOUND and len(operation.statements) == 1:
            key = operation.statements[0].key
            self.saw(f"{key} taken", operation.begin, lambda content: key in content)

    def saw(
        self,
        what: str,
        begin: int,
        holds: Callable[[Content], bool],
        signature: int | None = None,
    ) -> None:
        """Note it."""
        look = Look(self.name, what, begin, self.step, holds, signature)
        self.ledger.looks.append(look)

    def change(self) -> None:
        """One statement."""
        one = self.statement()
        operation = self.begin([one])
        self.run(operation, lambda: make(self.log, one))

    def transact(self) -> None:
        """Several, together or not at all."""
        kinds = [self.dice.choice((*_CHANGES, "get")) for _ in range(self.dice.randint(1, 5))]
        statements = [self.statement(kind) for kind in kinds]
        operation = self.begin(statements)
        is_unwanted = self.dice.random() < 0.15

        def call() -> None:
            with self.log.transaction() as tx:
                for one in statements:
                    try:
                        make(tx, one)
                    except RequestError as error:
                        if error.code != ErrorCode.TUPLE_FOUND:
                            raise
                        one.told = REFUSED
                if is_unwanted:
                    raise Undo

        self.run(operation, call)

    def append(self) -> None:
        """Many new ones."""
        keys = self.dice.sample(range(KEYS, 3 * KEYS), self.dice.randint(1, 5))
        statements = [self.statement("insert") for _ in keys]
        for key, one in zip(keys, statements, strict=True):
            one.key = key
        is_one = self.dice.random() < 0.5
        tuples = [one.tuple for one in statements]
        operation = self.begin(statements, units=not is_one)
        self.run(operation, lambda: self.log.append(SPACE, tuples, one_transaction=is_one))

    def submit(self) -> None:
        """Some, without waiting for each."""
        made: list[tuple[Operation, Future[bytes | None]]] = []
        done = self.world.event()
        left = [self.dice.randint(1, 3)]

        def finished(operation: Operation, future: Future[bytes | None]) -> None:
            self.finish(operation, future.exception())
            left[0] -= 1
            if not left[0]:
                done.set()

        for _ in range(left[0]):
            one = self.statement("replace")
            operation = self.begin([one])
            request = Request(
                RowType.REPLACE, self.log.schema.space(SPACE).id, tuple=pack(one.tuple)
            )
            future = self.log.inner.submit(request)
            made.append((operation, future))
            future.add_done_callback(partial(finished, operation))
        done.wait()
        for _, future in made:
            future.result()

    # --- reads ------------------------------------------------------------------------------------

    def get(self) -> None:
        """One tuple."""
        key, begin = self.dice.randrange(KEYS), self.step
        found = self.log.get(SPACE, key)
        self.saw(f"{key}: {found}", begin, lambda content: content.get(key) == found)

    def select(self) -> None:
        """Some tuples, or how many there are."""
        begin = self.step
        if self.dice.random() < 0.3:
            count = self.log.count(SPACE)
            self.saw(f"{count} tuples", begin, lambda content: len(content) == count)
            return
        least = self.dice.randrange(KEYS)
        found = self.log.select(SPACE, least, iterator="GE")

        def holds(content: Content) -> bool:
            return [content[key] for key in sorted(content) if key >= least] == found

        self.saw(f"from {least} on {found}", begin, holds)

    def view(self) -> None:
        """All, twice, in one view, by two indexes, while others go on."""
        begin = self.step
        with self.log.read_view() as view:
            found = view.select(SPACE)
            for _ in range(self.dice.randrange(30)):
                self.scheduler.pause("view")
            by_text = view.select(SPACE, index="text")
            assert view.select(SPACE) == found
            assert view.count(SPACE) == len(found)
            signature = view.vclock.signature
        assert sorted(by_text) == found

        def holds(content: Content) -> bool:
            return [content[key] for key in sorted(content)] == found

        self.saw(f"in a view at {signature}: {found}", begin, holds, signature)


class Keeper(Client):
    """One that keeps house: snapshots, old files, positions of followers, backups, definitions."""

    def act(self) -> None:
        """One thing."""
        log, dice = self.log, self.dice
        chosen = dice.randrange(8)
        if chosen == 0:
            self.world.is_safe(log.snapshot())
        elif chosen == 1:
            log.inner.collect()
        elif chosen == 2:
            log.retain(f"f{dice.randrange(2)}", log.vclock)
        elif chosen == 3:
            log.release(f"f{dice.randrange(2)}")
        elif chosen == 4:
            self.back_up()
        elif chosen == 5:
            log.inner.reserve_state(dice.choice((1, 2**21)))
        elif chosen == 6:
            assert log.status()["state"] in ("running", "failed")
        else:
            self.define()

    def back_up(self) -> None:
        """The files stay while it lasts."""
        with self.log.backup() as files:
            for _ in range(self.dice.randrange(20)):
                self.scheduler.pause("backup")
            names = set(self.world.disk.list_directory(self.log.path))
            assert {file.name for file in files} <= names

    def define(self) -> None:
        """Make a space, or drop one."""
        spaces = self.ledger.spaces
        there = [name for name in spaces if name != SPACE and spaces[name] == {True}]
        name = self.dice.choice(there) if there and self.dice.random() < 0.5 else ""
        if name:
            spaces[name] = {True, False}
            try:
                self.log.drop_space(name)
            except WriteFailed:
                spaces[name] = {True}
                raise
            spaces[name] = {False}
            return
        name = f"s{self.ledger.token()}"
        spaces[name] = {True, False}
        try:
            self.log.create_space(name, [("id", "unsigned")])
        except WriteFailed:
            spaces[name] = {False}
            raise
        spaces[name] = {True}


class Reader(Client):
    """One that follows the log, and keeps its files until it has read them."""

    def act(self) -> None:
        """Read on for a while."""
        stop = self.world.stop()
        left = self.dice.randint(1, 6)
        rows = self.log.rows(self.ledger.position, follow=self.dice.random() < 0.5, stop=stop)
        with closing(rows):  # type: ignore[type-var]
            for transaction in rows:
                for row in transaction.rows:
                    self.ledger.followed[row.lsn] = row.body
                self.scheduler.got_on()
                left -= 1
                if not left:
                    return


class Tasks(Client):
    """Tasks of an event loop."""

    def live(self) -> None:
        """All of them."""
        loop = ScheduledLoop(self.scheduler)
        log = aio.AsyncLog(self.log)
        try:
            for error in loop.run_until_complete(self.gather(log)):
                if error is not None and not self.world.is_excused(error):
                    raise error
        finally:
            loop.let_go()

    async def gather(self, log: aio.AsyncLog) -> list[BaseException | None]:
        """Two tasks, side by side."""
        tasks = [self.task(log, f"{self.name}.{number}") for number in range(2)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def task(self, log: aio.AsyncLog, name: str) -> None:
        """Statements and transactions, one after the other."""
        for _ in range(self.count):
            if self.world.may_skip():
                continue
            statements = [self.statement() for _ in range(self.dice.randint(1, 3))]
            operation = self.begin(statements)
            operation.client = name
            try:
                await self.make(log, statements)
            except BaseException as error:
                self.finish(operation, error)
                if not (isinstance(error, RequestError) and error.code in _REFUSALS):
                    raise
            else:
                self.finish(operation, None)
            self.scheduler.got_on()

    async def make(self, log: aio.AsyncLog, statements: list[Statement]) -> None:
        """One alone by itself, several in a transaction."""
        if len(statements) == 1:
            statements[0].told = await getattr(log, statements[0].kind)(*given(statements[0]))
            return
        async with log.transaction() as tx:
            for one in statements:
                try:
                    one.told = await getattr(tx, one.kind)(*given(one))
                except RequestError as error:
                    if error.code != ErrorCode.TUPLE_FOUND:
                        raise
                    one.told = REFUSED


def given(one: Statement) -> tuple[Any, ...]:
    """The arguments of a statement."""
    if one.kind in ("delete", "get"):
        return SPACE, one.key
    if one.kind == "update":
        return SPACE, one.key, one.ops
    if one.kind == "upsert":
        return SPACE, one.tuple, one.ops
    return SPACE, one.tuple


def make(store: Any, one: Statement) -> None:
    """Make a statement in a log or a transaction, and note what it answered."""
    one.told = getattr(store, one.kind)(*given(one))
