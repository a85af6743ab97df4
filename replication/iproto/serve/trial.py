"""One transaction of a stream, from BEGIN to COMMIT or ROLLBACK.

Its statements run at once, in a layer of its own over a view of the moment of BEGIN
(`Inner.trial`). COMMIT puts it in line, in one job with all that are committed in the same turn; in
that all run once more, in their order, on what is there by then: docs/tarantool.md says what comes
of that. One that changes nothing is not run again:
it has read one moment.

A view keeps pages of the state from being used again and the state from growing, so one that is not
used for `limits.TRIAL_SECONDS` is given back, and so are those that have rested longest when the
state must grow or there are too many. The next statement then has to `wake` it: the statements
before it run again on a view of that moment, with the same outcome as at COMMIT.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from logweir.errors import ErrorCode, LogweirError, RequestError
from logweir.limits import TRIAL_BYTES, TRIAL_READ_BYTES, TRIAL_SECONDS, TRIALS
from logweir.replication.budget import Budget
from logweir.replication.iproto.serve.statements import (
    Outcome,
    Reading,
    execute,
    execute_run,
    select_body,
)
from logweir.replication.iproto.wire import kernel
from logweir.replication.iproto.wire.codec import encode_answer, encode_error
from logweir.replication.iproto.wire.requests import REQUEST_BYTES, Request
from logweir.replication.iproto.wire.runs import Run
from logweir.replication.link import Link
from logweir.replication.service.shared import Shared, as_request_error
from logweir.store.commit.group import Group
from logweir.store.engine.engine import Plans
from logweir.store.engine.executing import Executor
from logweir.store.schema.access import Access
from logweir.wal.xrow import RowType

_STATEMENT_BYTES: Final = 600  # what one takes beside its request, about
_OF_RUN_BYTES: Final = 740  # and one of a run
_FOREVER_SECONDS: Final = 1e6


@dataclass(slots=True)
class _Statement:
    """One that was run, or several. `outcome`: what stands for the answers, with a version of the
    schema in them."""

    request: Request | Run
    access: Access
    outcome: bytes
    version: int = 0


class Waits(Protocol):
    """A connection whose COMMITs are in line."""

    link: Link

    def go_on(self) -> None:
        """All that came of them together was told."""


@dataclass(slots=True)
class _Commit:
    """One in line. `done`: is told why it was refused, None if it is durable."""

    trial: Trial
    done: Callable[[BaseException | None], None]
    connection: Waits
    error: RequestError | None = None


class Trials:
    """The transactions of one server that have a view. Belongs to the event loop's thread."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.own = Executor(), Plans()  # of the loop's thread
        self._loop = asyncio.get_running_loop()
        self._awake: dict[Trial, float] = {}  # when each was used; who was used last is the last
        self._timer: asyncio.TimerHandle | None = None
        self._forget = shared.log.inner.on_grow(self._must_grow)

    def close(self) -> None:
        """The server has ended."""
        self._forget()
        if self._timer is not None:
            self._timer.cancel()

    def view(self, own: tuple[Executor, Plans]) -> Group:
        """A group that is never committed. `own`: of the thread that uses it. Raises `RequestError`
        if nothing can be changed."""
        try:
            return self.shared.log.inner.trial(*own)
        except LogweirError as error:  # the log has failed
            raise as_request_error(error) from error

    def used(self, trial: Trial) -> None:
        """One has a view, or will, and uses it now."""
        self._awake.pop(trial, None)
        while len(self._awake) >= TRIALS:
            next(iter(self._awake)).rest()
        self._awake[trial] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(TRIAL_SECONDS, self._look)

    def rests(self, trial: Trial) -> None:
        """It has none any more."""
        self._awake.pop(trial, None)

    def _look(self) -> None:
        """Let those rest that were not used for long."""
        self._timer, now = None, self._loop.time()
        for trial, used_at in tuple(self._awake.items()):
            left = used_at + TRIAL_SECONDS - now
            if left > 0:
                self._timer = self._loop.call_later(left, self._look)
                break
            trial.rest()

    def _must_grow(self) -> None:
        """The state must grow, for which it waits for all views; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._rest_all)

    def _rest_all(self) -> None:
        for trial in tuple(self._awake):
            trial.rest()

    def commit(
        self, trial: Trial, done: Callable[[BaseException | None], None], connection: Waits
    ) -> None:
        """Make what one that has ended changes, in one job with all others of this turn. `done`
        is told why it was refused, None when it is durable; then its connection goes on."""
        commit = _Commit(trial, done, connection)
        self.shared.submit_part(self, commit, trial.work_bytes, _repeat_all, _tell_all)


class Trial:
    """See the module's text. `budget`: what its statements take counts there; `timeout_seconds`:
    after that it fails with error 231, never for 0. Begins with a view. Belongs to the event loop's
    thread, but for `repeat`."""

    def __init__(self, trials: Trials, budget: Budget | None, timeout_seconds: float) -> None:
        self.changes = False
        """Whether there is anything to commit."""
        self._trials = trials
        self._budget = budget
        self._statements: list[_Statement] = []
        self._size_bytes = self._said_bytes = 0
        self._read_bytes = 0
        self._failure: RequestError | None = None
        self._is_over = False
        self._must_rest = False
        self._is_reading = False
        self._view: Group | None = trials.view(trials.own)
        self._end: asyncio.TimerHandle | None = None
        trials.used(self)
        if 0 < timeout_seconds < _FOREVER_SECONDS:
            late = _failed(ErrorCode.TRANSACTION_TIMEOUT, "timeout")
            self._end = asyncio.get_running_loop().call_later(timeout_seconds, self._fail, late)

    @property
    def is_awake(self) -> bool:
        """Whether it has a view, so that statements can be run."""
        return self._view is not None

    @property
    def work_bytes(self) -> int:
        """What its statements say and read: how much there is to repeat."""
        return self._said_bytes + self._read_bytes

    def check(self) -> None:
        """Raise errors 97, 231 if it has failed."""
        if self._failure is not None:
            raise self._failure

    @property
    def has_failed(self) -> bool:
        """Whether every statement is refused."""
        return self._failure is not None

    def execute(self, run: Run, access: Access, version: int) -> Outcome:
        """Run statements, those that fail without a trace; it must have a view, unless it has
        failed. What is not done in this turn, and a SELECT that is long, by itself, is left. Where
        they cannot be run all are refused, and it rests. `version`: of the schema, for the
        answers."""
        made, whole = Outcome(), run
        if self._failure is not None:
            return _refuse(made, run, self._failure, version)
        view = self._view
        assert view is not None
        left = self._left_bytes()
        room = max((left - self._size_bytes) * run.count // max(self._size_of(run), 1), 0)
        if self._read_bytes >= TRIAL_READ_BYTES and run.may_read:
            error = _too_much("what it has read", TRIAL_READ_BYTES)
            answers, run = run.refused(error, version, use=kernel.USED_TO_READ)
            made.add(b"".join(answers), len(answers), len(answers))
        if not room:
            return _refuse(made, run, _too_much("its statements", left), version)
        given, told = run if run.count <= room else run.between(0, room), len(made.bound)
        self._trials.used(self)
        try:
            done = execute_run(view, given, lambda schema: version, made, is_inside=True)
            self.changes = self.changes or view.touched
        except LogweirError as error:
            self.rest()
            return _refuse(Outcome(), whole, as_request_error(error), version)
        finally:
            self._used()
        if done:
            part = given if done == given.count else given.between(0, done)
            self._note(part, access, _digest(made.bound[told:]), version)
        if run.may_read:
            self._read_bytes += made.size_bytes
        if done < run.count:
            made.left = run.left(done)
        return made

    def change(self, request: Request, access: Access) -> bytes:
        """Run a statement that is no SELECT. Returns the body of its answer. Raises `RequestError`:
        it has done nothing, and the transaction goes on."""
        view = self._use(request)
        try:
            outcome, body, error = _run(view, request, access)
        finally:
            self._used()
        self._note(request, access, outcome)
        if error is not None:
            raise error
        self.changes = True
        return body

    def select(self, request: Request, access: Access) -> Reading:
        """Run a SELECT. The view is kept until it is done, whatever happens meanwhile. Raises
        `RequestError` as `change`, also if the transaction has failed meanwhile."""
        view = self._use(request)
        self._is_reading = True
        try:
            parts = yield from select_body(view.engine, request, access)
        except LogweirError as error:
            refused = as_request_error(error)
            self._note(request, access, b"%d" % refused.code)
            raise refused from error
        finally:
            self._is_reading = False
            self._used()
        self.check()
        size = sum(map(len, parts))
        if self._read_bytes + size > TRIAL_READ_BYTES:
            raise _too_much("what it has read", TRIAL_READ_BYTES)
        self._read_bytes += size
        self._note(request, access, _digest(parts))
        return parts

    def repeat(self, group: Group) -> None:
        """Run all statements once more, in another group, in any thread. Raises error 97 if one
        is answered otherwise: the group is to be rolled back then."""
        for one in self._statements:
            if isinstance(one.request, Run):
                outcome = _run_again(group, one.request, one.access, one.version)
            else:
                outcome, _, _ = _run(group, one.request, one.access)
            if outcome != one.outcome:
                raise _failed(ErrorCode.TRANSACTION_CONFLICT, "conflict")

    def wake(self, done: Callable[[BaseException | None], None]) -> None:
        """Give it a view again, and call `done` then, unless it is over: with None, also if it
        has failed meanwhile or that way, or with what went wrong otherwise."""
        view = self._trials.view((Executor(), Plans()))
        self._trials.used(self)

        def woken(waking: asyncio.Future[None]) -> None:
            error = waking.exception()
            if isinstance(error, RequestError):
                self._fail(error)
                error = None
            if error is None and self._failure is None and not self._is_over:
                self._view = view
                self._trials.used(self)
            else:
                view.txn.abort()
            if not self._is_over:
                done(error)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self.repeat, view).add_done_callback(woken)

    def rest(self) -> None:
        """Give the view back, until it is woken: at the end of a SELECT that is under way, and of
        what it is being woken for."""
        self._trials.rests(self)
        view = self._view
        self._must_rest = view is None or self._is_reading
        if view is not None and not self._is_reading:
            self._view = None
            view.txn.abort()

    def close(self) -> None:
        """It has ended, one way or the other; `repeat` may go on."""
        self._is_over = True
        self._stop()

    # --- its end ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self.rest()
        self._hold(0)

    def _fail(self, error: RequestError) -> None:
        self._failure = self._failure or error
        self._statements = []
        self._stop()

    def _use(self, request: Request) -> Group:
        """The view, for one statement more."""
        assert self._view is not None
        left = self._left_bytes()
        if self._size_bytes + self._size_of(request) > left:
            raise _too_much("its statements", left)
        self._trials.used(self)
        return self._view

    def _left_bytes(self) -> int:
        """What its statements may take."""
        return TRIAL_BYTES if self._budget is None else min(TRIAL_BYTES, self._budget.left_bytes)

    def _used(self) -> None:
        if self._must_rest:
            self.rest()

    def _note(
        self, request: Request | Run, access: Access, outcome: bytes, version: int = 0
    ) -> None:
        """A statement was run, or several."""
        if not self._failure:
            self._statements.append(_Statement(request, access, outcome, version))
            self._said_bytes += request.size_bytes
            self._hold(self._size_bytes + self._size_of(request))

    def _size_of(self, request: Request | Run) -> int:
        if isinstance(request, Run):
            return 2 * request.size_bytes + _OF_RUN_BYTES * request.count
        rows = 0 if request.type == RowType.SELECT else request.size_bytes - REQUEST_BYTES
        return request.size_bytes + rows + _STATEMENT_BYTES

    def _hold(self, size_bytes: int) -> None:
        if self._budget is not None:
            self._budget.requests_bytes += size_bytes - self._size_bytes
        self._size_bytes = size_bytes


def _repeat_all(commits: Sequence[_Commit], group: Group) -> None:
    """Make several, each a transaction of its own: one that is refused is undone alone."""
    for commit in commits:
        commit.error, mark = None, group.mark()
        try:
            commit.trial.repeat(group)
        except LogweirError as error:
            group.rollback(mark)
            commit.error = as_request_error(error)
        else:
            group.divide()


def _tell_all(commits: Sequence[_Commit], error: BaseException | None) -> None:
    for commit in commits:
        commit.connection.link.attempt(commit.done, error or commit.error)
    for connection in {commit.connection: None for commit in commits}:
        connection.link.attempt(connection.go_on)


def _run(
    group: Group, request: Request, access: Access
) -> tuple[bytes, bytes, RequestError | None]:
    """What stands for the answer to a statement, the answer's body, and its error."""
    try:
        body = execute(group, request, access)
    except LogweirError as error:
        refused = as_request_error(error)
        return b"%d" % refused.code, b"", refused
    return _digest([body]), body, None


def _run_again(group: Group, run: Run, access: Access, version: int) -> bytes:
    """What stands for the answers to statements that were one run."""
    made = Outcome()
    left: list[Request | Run] = [run]
    while left:
        rest = left.pop(0)
        if isinstance(rest, Run):
            done = execute_run(group, rest, lambda schema: version, made, is_inside=True)
            left = rest.left(done) if done < rest.count else left
            continue
        try:
            answer = encode_answer(rest.sync, version, execute(group, rest, access))
        except LogweirError as error:
            answer = encode_error(rest.sync, version, as_request_error(error))
        made.add(answer, 1, 0)
    return _digest(made.bound)


def _refuse(made: Outcome, run: Run, error: RequestError, version: int) -> Outcome:
    """All of a run."""
    for use in (kernel.USED_TO_READ, kernel.USED_TO_WRITE):
        answers, run = run.refused(error, version, use=use)
        made.add(b"".join(answers), len(answers), len(answers))
    return made


def _digest(parts: Iterable[bytes | bytearray]) -> bytes:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.digest()


def _failed(code: ErrorCode, why: str) -> RequestError:
    return RequestError(code, f"Transaction has been aborted by {why}")


def _too_much(what: str, limit_bytes: int) -> RequestError:
    return RequestError(
        ErrorCode.MEMORY_ISSUE, f"The transaction is too large: {what} may take {limit_bytes} bytes"
    )
