"""The streams of one connection: requests with a stream id, handled one after the other.

Runs of a stream without a transaction go the way of every run, which keeps their order. Any other
request of a stream is handled when all before it are answered, and what comes after it when it is
itself; the stream is *held* until then. Other streams, and requests of none, go on meanwhile. BEGIN
gives the stream a transaction (`trial`), to which its statements belong until COMMIT or ROLLBACK,
and by which it is held; all other requests go the way of every request. CALL is not part of a
transaction, so it is refused inside of one (5), and so are changes of definitions. A transaction
ends with its connection. One that has failed refuses every statement with the same error, until
COMMIT, which fails so too, or ROLLBACK.

Source: Tarantool 2.11 (read): `iproto.cc`, `txn.c`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from logweir.errors import ErrorCode, RequestError
from logweir.replication.iproto.serve.statements import SYSTEM_END
from logweir.replication.iproto.serve.trial import Trial, Trials
from logweir.replication.iproto.wire.codec import EMPTY_BODY, RequestType
from logweir.replication.iproto.wire.requests import DML_TYPES, Request
from logweir.replication.iproto.wire.runs import Run
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.replication.iproto.serve.endpoint import Conversation

_LINEARIZABLE: Final = 4
_CALLS: Final = (RequestType.CALL, RequestType.CALL_16, RequestType.EVAL)


@dataclass(slots=True)
class _Stream:
    """One that is held. `current`: what is being handled; `waiting`: what came after it."""

    current: Request | Run | None = None
    waiting: deque[Request | Run] = field(default_factory=deque)
    trial: Trial | None = None


class Streams:
    """See the module's text."""

    def __init__(self, connection: Conversation, trials: Trials) -> None:
        self._owner = weakref.ref(connection)  # whose part this is
        self._trials = trials
        self._streams: dict[int, _Stream] = {}

    @property
    def _connection(self) -> Conversation:
        found = self._owner()
        assert found is not None  # somebody has called it
        return found

    @property
    def are_held(self) -> bool:
        """Whether one is held."""
        return bool(self._streams)

    def is_free(self, number: int) -> bool:
        """Whether it is the id of a stream that is not held."""
        return number != 0 and number not in self._streams

    def whose(self, run: Run) -> Collection[int]:
        """The stream that is held until a run is answered, if there is one."""
        first = 0 if run.streams is None else run.streams[0]
        stream = self._streams.get(first)
        return (first,) if stream is not None and stream.current is run else ()

    def take_run(self, run: Run) -> Iterator[tuple[Run, Collection[int]]]:
        """Handle the requests of a run whose streams are held, or let them wait for what is before.
        Yields those that go the way of every run now, with the streams that wait for `answered`."""
        held = () if run.streams is None else self._streams.keys() & set(run.streams)
        if not held:
            yield run, ()
            return
        parts, before, behind = run.by_stream(held)
        if behind is not None:
            self._connection.take_again(behind)
        if before is not None:
            yield before, ()
        for number, part in parts.items():
            stream = self._streams[number]
            if stream.current is None:
                stream.current = part
            if stream.current is not part:
                stream.waiting.append(part)
            elif stream.trial is not None:
                self._run_all(number, stream.trial, part)
            else:
                yield part, (number,)

    def take(self, request: Request) -> bool:
        """Handle a request, or let it wait for the one before; False for one that goes the way of
        every request now. Raises `RequestError`."""
        stream = self._streams.setdefault(request.stream_id, _Stream())
        if stream.current is None:
            stream.current = request
        if stream.current is not request:
            stream.waiting.append(request)
            return True
        kind, trial = request.type, stream.trial
        if kind == RequestType.BEGIN:
            self._begin(stream, request)
        elif kind == RequestType.ROLLBACK:
            self._end(stream)
            self._connection.answer(request, EMPTY_BODY)
        elif kind == RequestType.COMMIT:
            self._commit(stream, request)
        elif trial is None:
            return False
        else:
            self._run(trial, request)
        return True

    def answered(
        self, numbers: Collection[int], left: Sequence[Request | Run] = ()
    ) -> Sequence[Request | Run]:
        """What some streams have waited for has its answers, but for what is `left`: the next of
        each. Returns what is left of other streams, or of none."""
        if not numbers:
            return left
        mine: dict[int, list[Request | Run]] = {number: [] for number in numbers}
        others: list[Request | Run] = []
        for event in left:
            if isinstance(event, Request):
                mine.get(event.stream_id, others).append(event)
            elif event.streams is None:
                others.append(event)
            else:
                parts, *rest = event.by_stream(numbers)
                for number, part in parts.items():
                    mine[number].append(part)
                others += [one for one in rest if one is not None]
        for number in numbers:
            stream = self._streams.get(number)
            if stream is None:
                continue
            stream.waiting.extendleft(reversed(mine[number]))
            stream.current = None
            if stream.waiting:
                stream.current = stream.waiting.popleft()
                self._connection.take_again(stream.current)
            elif stream.trial is None:
                del self._streams[number]
        return others

    def close(self) -> None:
        """The connection has ended."""
        for stream in self._streams.values():
            self._end(stream)
        self._streams.clear()

    def _begin(self, stream: _Stream, request: Request) -> None:
        if stream.trial is not None:
            raise RequestError(
                ErrorCode.ACTIVE_TRANSACTION,
                "Operation is not permitted when there is an active transaction",
            )
        seconds = request.timeout_seconds
        if seconds and not seconds > 0:
            text = "Illegal parameters, timeout must be a number greater than 0"
            raise RequestError(ErrorCode.ILLEGAL_PARAMS, text)
        if request.isolation > _LINEARIZABLE:
            text = "Illegal parameters, unknown isolation level"
            raise RequestError(ErrorCode.ILLEGAL_PARAMS, text)
        if request.isolation == _LINEARIZABLE:
            text = "logweir does not support linearizable transactions"
            raise RequestError(ErrorCode.UNSUPPORTED, text)
        stream.trial = Trial(self._trials, self._connection.link.budget, seconds)
        self._connection.answer(request, EMPTY_BODY)

    def _run(self, trial: Trial, request: Request) -> None:
        """A statement of a transaction."""
        trial.check()
        if request.type in _CALLS:
            text = f"A transaction of a stream does not support {RequestType(request.type).name}"
            raise RequestError(ErrorCode.UNSUPPORTED, text)
        if request.type not in DML_TYPES:
            raise RequestError(
                ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {request.type}"
            )
        connection = self._connection
        access = connection.check_statement(request)
        if request.type != RowType.SELECT and request.space_id < SYSTEM_END:
            text = "A transaction of a stream does not support changes of definitions"
            raise RequestError(ErrorCode.UNSUPPORTED, text)
        if not trial.is_awake:
            trial.wake(lambda error: _woken(connection, request, error))
        elif request.type == RowType.SELECT:
            connection.select(request, trial.select(request, access))
        else:
            connection.answer(request, trial.change(request, access))

    def _run_all(self, number: int, trial: Trial, run: Run) -> None:
        """Statements of a transaction."""
        connection = self._connection
        if trial.is_awake or trial.has_failed:
            given = run if trial.has_failed else connection.check_run(run)
            access = connection.shared.access(connection.user_id)
            done = trial.execute(given, access, connection.instance.schema_version())
            connection.answer_run(done.bound, done.count - done.refused, given, *done.left)
            self.answered((number,), done.left)
        else:
            trial.wake(lambda error: _woken(connection, run, error))

    def _commit(self, stream: _Stream, request: Request) -> None:
        trial, connection = stream.trial, self._connection
        if trial is None:
            connection.answer(request, EMPTY_BODY)
            return
        self._end(stream)
        trial.check()
        if trial.changes:
            connection.commit(trial, request)
        else:
            connection.answer(request, EMPTY_BODY)

    def _end(self, stream: _Stream) -> None:
        trial, stream.trial = stream.trial, None
        if trial is not None:
            trial.close()


def _woken(connection: Conversation, request: Request | Run, error: BaseException | None) -> None:
    with connection.link.guarded():
        if error is not None:
            raise error
        connection.take_again(request)
        connection.go_on()
