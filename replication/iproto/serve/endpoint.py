"""Serving iproto: what one connection's requests do to the store.

The requests of one read are handled together, as long as the client takes the answers: above
`limits.OUTPUT_HIGH_BYTES` of them the rest waits. A run of changes becomes one job of the commit
queue, in which each is a transaction of its own: one that fails is undone alone. Where answers may
be much larger than the requests, what comes after the run waits for it. Changes of definitions
are jobs by themselves, for which all that comes after them waits, since it is looked at with what
they define; and so are requests that are merely odd. A SELECT after a change that is
not finished runs inside the job, so that a client which sends both at once reads what it wrote,
and what comes after that job waits for it; any other runs at once, on a view of what is durable.
One that is more than a piece (`store.engine.select.pieces`) is answered piece by piece, on such a
view, in several turns, and what comes after it waits. An answer to a change is sent when it is
durable, and so is that of a SELECT inside its job that saw any of it. The others are *free*: where
the log's thread makes the job they are sent while it writes.

Order of the checks of one request, as in Tarantool 2.6.0: space (36), read-only (7), access (42),
then what the store says.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import (
    IPROTO_PIPELINE_BYTES,
    OUTPUT_LOW_BYTES,
    TURN_ANSWER_BYTES,
)
from logweir.replication.budget import Unanswered
from logweir.replication.iproto import push
from logweir.replication.iproto.serve.instance import FollowerStatus, Instance
from logweir.replication.iproto.serve.selects import Selects
from logweir.replication.iproto.serve.statements import (
    NO_TUPLE,
    SYSTEM_END,
    Reading,
    execute_all,
    refuse_all,
    select_body,
)
from logweir.replication.iproto.serve.streams import Streams
from logweir.replication.iproto.serve.sysview import VIEWS
from logweir.replication.iproto.serve.trial import Trial
from logweir.replication.iproto.serve.watchers import Watchers
from logweir.replication.iproto.server_session import Ack, Event, ServerSession
from logweir.replication.iproto.wire import auth, kernel
from logweir.replication.iproto.wire.codec import (
    EMPTY_BODY,
    RequestType,
    data_body,
)
from logweir.replication.iproto.wire.requests import DML_TYPES, ERROR_VALUES, Request, id_body
from logweir.replication.iproto.wire.runs import MAY_GROW, Run
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.logs import get_logger
from logweir.replication.service.shared import as_request_error
from logweir.store.commit.jobs import QUICK_BYTES, Job
from logweir.store.schema.access import GUEST_ID, Access, Privilege, denied
from logweir.store.schema.definition import SpaceDef
from logweir.wal.mp import unpack
from logweir.wal.xrow import RowType

_log = get_logger("logweir.replication.iproto")
_TOLD_LETTERS: Final = 100  # of what an order is about

_BY_INDEX: Final = (RowType.SELECT, RowType.UPDATE, RowType.DELETE)
_USES: Final = {kernel.USED_TO_READ: Privilege.READ, kernel.USED_TO_WRITE: Privilege.WRITE}


class IprotoService(Service):
    """The protocol, for a `Listener`."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def begin(self, link: Link) -> Conversation:
        return Conversation(self.instance, link)


class _Batch:
    """Requests that are executed in one job. `has_single`: not all are of runs; `may_read`: some
    of runs may be SELECTs; `has_streams`: some of these are of streams; `goes_first`: what comes
    after waits for its end; `is_definition`: it changes a definition, and by that maybe every tuple
    of a space; `is_told`: the answers that are free were sent, or never will be."""

    in_streams: Collection[int] = ()
    has_single = may_read = has_streams = goes_first = is_definition = is_told = False
    size_bytes = 0

    def __init__(self) -> None:
        self.events: list[Request | Run] = []

    def add(self, event: Request | Run, *, goes_first: bool, streams: Collection[int] = ()) -> None:
        """One more."""
        self.events.append(event)
        if streams:
            self.in_streams = {*self.in_streams, *streams}
        if isinstance(event, Request):
            self.has_single = True
        else:
            if event.may_read:
                self.may_read = True
            if event.streams is not None and not streams:
                self.has_streams = True
        self.size_bytes += event.size_bytes
        if goes_first:
            self.goes_first = True


class Conversation:
    """One connection."""

    def __init__(self, instance: Instance, link: Link) -> None:
        self.instance = instance
        self.shared = shared = instance.shared
        self.link = link
        self.session = ServerSession(shared.log.instance, os.urandom(32), instance.schema_version)
        self.user_id = shared.user_id(link.user)
        self.follower: FollowerStatus | None = None
        self._batch = _Batch()
        self._unfinished = 0
        self._unanswered = Unanswered(link, IPROTO_PIPELINE_BYTES)
        self._postponed: deque[Request | Run] = deque()
        self._behind: _Batch | None = None  # under way: what comes next waits for its end
        self._settled: asyncio.Event | None = None  # that CALLs wait for
        self._streams = Streams(self, instance.trials)
        self._watchers = Watchers(instance.events, self._send, link.hold_beside)
        self._streamed = 0  # batches under way with runs of streams
        self._selects = Selects(instance)
        self._is_over = False  # what came before has taken a turn
        self._reads_errors = False  # see `ERROR_VALUES`
        self.session.read, self.session.ids = self.read, instance.ids

    # --- events -----------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        size = 0
        for event in events:
            if isinstance(event, Ack):
                if self.follower is not None:
                    self.instance.acknowledged(self.follower, event.vclock)
            else:
                size += event.size_bytes
                self._postponed.append(event)
        if size:
            self._unanswered.add(size)
            if self._is_over:
                self.link.go_on_later(self._go_on)
            else:
                self._go_on()

    def _go_on(self) -> None:
        """Handle what waits, as far as a turn goes and the client takes the answers."""
        link, session, turn = self.link, self.session, self.link.turn()
        while self._postponed and self._behind is None:
            waiting_bytes = session.waiting_bytes
            if waiting_bytes > OUTPUT_LOW_BYTES:
                link.flush()
                waiting_bytes = session.waiting_bytes
            if not link.writable or turn.is_over(link.sent_bytes + waiting_bytes):
                link.go_on_later(self._go_on)
                break
            event = self._postponed[0]
            if isinstance(event, Request) and not _joins_batch(event):
                if self._batch.events:
                    self._submit()
                    continue
                if self._streamed and self._streams.is_free(event.stream_id):
                    break  # it may be behind one of those
            self._postponed.popleft()
            if isinstance(event, Run):
                self._take_runs(event)
                continue
            try:
                if not (event.stream_id and self._streams.take(event)):
                    self._dispatch(event)
            except RequestError as error:
                self.answer_error(event, error)
        if self._batch.events:
            self._submit()

    def go_on(self) -> None:
        """Handle what waits, and send the answers."""
        if self.link.is_open:
            self._go_on()
            self.link.flush()

    def take_again(self, *events: Request | Run) -> None:
        """Handle what has waited next."""
        self._postponed.extendleft(reversed(events))

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        self._streams.close()
        self._watchers.close()
        self.session.read = lambda data: 0
        if self.session.malformed:
            _log.warning(
                "iproto.malformed",
                peer=self.link.peer,
                requests=self.session.malformed,
                reason=reason,
            )

    def _dispatch(self, request: Request) -> None:
        kind = request.type
        if kind in DML_TYPES:
            self._take_dml(request)
            return
        if kind == RequestType.AUTH:
            self._authenticate(request)
        elif kind == RequestType.ID:
            self._reads_errors = ERROR_VALUES in request.features
            self.answer(request, id_body())
        elif kind in (RequestType.WATCH, RequestType.UNWATCH):
            if kind == RequestType.WATCH:
                self._watchers.watch(request.name, request.sync)
            else:
                self._watchers.unwatch(request.name)
            self._unanswered.add(-request.size_bytes)
        elif kind == RequestType.WATCH_ONCE:
            value = self.instance.events.value(request.name)
            self.answer(request, data_body(() if value is None else (value,)))
        elif kind == RequestType.VOTE:
            self.answer(request, self.instance.ballot().body())
        elif kind in (RequestType.CALL, RequestType.CALL_16):
            access = self.shared.access(self.user_id)
            self._check_call(access, request.name)
            self.instance.functions.check(request.name)
            self.link.spawn(self._call(request))
        elif kind == RequestType.EVAL:
            raise RequestError(
                ErrorCode.ACCESS_DENIED, "EVAL is switched off: no code of clients is run here"
            )
        else:
            self._unanswered.add(-request.size_bytes)
            self.link.spawn(push.serve(self, request))

    # --- changes and reads ------------------------------------------------------------------------

    def check_statement(self, request: Request) -> Access:
        """The rights of who asks, and the ids in the place of names. Raises `RequestError` if a
        statement may not be run."""
        is_select = request.type == RowType.SELECT
        schema = self.shared.log.schema
        if request.space_name is not None:
            request.space_id = schema.space(request.space_name).id
        if is_select and request.iterator > 11:
            text = "Illegal parameters, Invalid iterator type"
            raise RequestError(ErrorCode.ILLEGAL_PARAMS, text)
        self._check_space(request.space_id, Privilege.READ if is_select else Privilege.WRITE)
        if request.index_name is not None and request.type in _BY_INDEX:
            space = schema.space(request.space_id)
            request.index_id = schema.index(space, request.index_name).id
        return self.shared.access(self.user_id)

    def _take_dml(self, request: Request) -> None:
        access = self.check_statement(request)
        is_select = request.type == RowType.SELECT
        if is_select and not self._batch.events and not self._unfinished:
            self.select(request, self._read(request, access))
            return
        streams = (request.stream_id,) if request.stream_id else ()
        defines = not is_select and request.space_id < SYSTEM_END
        goes_first = is_select or defines or request.type in MAY_GROW
        self._batch.add(request, goes_first=goes_first, streams=streams)
        if defines:
            self._batch.is_definition = True
            self._submit()

    def select(self, request: Request, reading: Reading) -> None:
        """Answer a SELECT as `reading` finds what it asks for; nothing else is handled until then,
        other connections have their turns."""
        if not self.link.in_turns(self._select(request, reading), self._selected):
            self._behind = _Batch()

    def _read(self, request: Request, access: Access) -> Reading:
        with self.shared.log.read_view() as view:
            return (yield from select_body(view.engine, request, access))

    def _select(self, request: Request, reading: Reading) -> Generator[None, None, None]:
        try:
            parts = yield from reading
        except RequestError as error:
            self.answer_error(request, error)
            return
        size = sum(map(len, parts))
        if size <= TURN_ANSWER_BYTES:
            self.answer(request, b"".join(parts))
            return
        self.link.flush()
        self.link.send(self.session.begin_answer(request.sync, size))
        for part in parts:
            self.link.send(part)
            yield
        self.session.end_answer()
        self._count_answer(request, 1, 0)

    def _selected(self) -> None:
        self._behind = None
        self.go_on()

    def _check_space(self, space_id: int, wanted: Privilege) -> None:
        """Raise errors 36, 7, 42 if the user may not use a space so."""
        space = self.shared.log.schema.space(space_id)
        if wanted == Privilege.WRITE and self.shared.is_read_only and not _is_private(space):
            text = "Can't modify data because this instance is in read-only mode."
            raise RequestError(ErrorCode.READONLY, text)
        self.shared.check(self.user_id, space_id, wanted)
        if wanted == Privilege.WRITE and space.id in VIEWS:
            raise RequestError(ErrorCode.VIEW_IS_RO, f"View '{space.name}' is read-only")

    def _take_runs(self, run: Run) -> None:
        """Requests, one after the other: those of no transaction of a stream are checked once for
        each space, executed and answered together."""
        if run.named_at >= 0 and run.named_at != self.instance.schema_version():
            self._read_again(run)
            return
        parts = ((run, ()),) if run.streams is None else self._streams.take_run(run)
        for part, streams in parts:
            allowed = self.check_run(part)
            is_alone = not self._batch.events and not self._unfinished
            if not allowed.count or (allowed.is_read_only and is_alone):
                self._read_run(allowed, streams)
            else:
                self._batch.add(allowed, goes_first=allowed.may_grow, streams=streams)

    def _read_again(self, run: Run) -> None:
        """The names of a run may mean others by now: handle its requests anew."""
        events = self.session.again(run)
        self._unanswered.add(sum([one.size_bytes for one in events]) - run.size_bytes)
        self.take_again(*self._streams.answered(self._streams.whose(run), events))

    def check_run(self, run: Run) -> Run:
        """The requests of a run that may be made, itself where all may; others are refused."""
        known, asked = self.shared.let_in, (self.user_id, run.space_ids, run.uses)
        if asked in known:
            return run
        refused: dict[tuple[int, int], RequestError] = {}
        for space_id, uses in zip(run.space_ids, run.uses, strict=True):
            for use, wanted in _USES.items():
                try:
                    if uses & use:
                        self._check_space(space_id, wanted)
                except RequestError as error:
                    refused[space_id, use] = error
        if not refused:
            known.add(asked)
            return run
        errors = run.errors(refused, self.instance.schema_version())
        allowed = run.without(refused)
        self.answer_run(errors, 0, run, allowed)
        return allowed

    def answer_run(
        self, answers: Sequence[bytes | bytearray], done: int, run: Run, *left: Request | Run
    ) -> None:
        """Answer a run, but for what is left of it. `done`: how many of the answers are good."""
        parts = run.count - sum([one.count if isinstance(one, Run) else 1 for one in left])
        if parts:
            self.session.put(b"".join(answers))
            self.shared.metrics.answered("tarantool", done, parts - done)
        self._unanswered.add(sum([one.size_bytes for one in left]) - run.size_bytes)

    def _read_run(self, run: Run, streams: Collection[int]) -> None:
        """Answer SELECTs at once, if there are any; what is left of them comes next."""
        done = 0
        if run.count:
            self._answer_reads(run.data, run.at, has_streams=False)
            done = self.instance.reader.count
        left = run.left(done) if done < run.count else ()
        self._unanswered.add(sum([one.size_bytes for one in left]) - run.size_bytes)
        self.take_again(*self._streams.answered(streams, left))

    def read(self, data: bytes) -> int:
        """Answer the SELECTs with which `data` begins, unless there is something to be done before
        them. Returns where others begin."""
        self._is_over = False
        if not kernel.may_select(data):
            return 0
        if self._postponed or self._unfinished or self._behind or not self.link.writable:
            return 0
        at = self._answer_reads(data, 0, has_streams=self._streams.are_held)
        self._is_over = self.instance.reader.is_over
        return at

    def _answer_reads(self, data: bytes, at: int, *, has_streams: bool) -> int:
        """Answer the SELECTs that begin at `at`, as many as a turn lets, of streams only if not
        `has_streams`. Returns where it stopped."""
        reader = self.instance.reader
        stop = self._selects.read(self.user_id, data, at, has_streams=has_streams)
        if reader.count:
            self._send_answers(reader.take(), reader.count, 0)
        return stop

    def _send_answers(self, answers: bytes | bytearray, done: int, refused: int) -> None:
        self.shared.metrics.answered("tarantool", done, refused)
        if self.session.is_held:  # a long answer is under way
            self.session.put(bytes(answers))
        elif self.session.waiting_bytes:
            self.link.write(answers)
        else:
            self.link.send(answers)

    def _submit(self) -> None:
        batch = self._batch
        if not batch.events:
            return
        self._batch = _Batch()
        self._streamed += batch.has_streams
        if batch.goes_first:
            self._behind = batch
        access = self.shared.access(self.user_id) if batch.has_single else None
        version_of, made, is_aside = self.instance.version_of, None, None
        if batch.may_read:
            made = partial(self.link.attempt, self._tell_free, batch)
            is_aside = self.shared.is_aside
        job = Job(
            lambda group: execute_all(group, batch.events, access, version_of, is_aside),
            batch.size_bytes,
            quick_bytes=0 if batch.is_definition else QUICK_BYTES,
        )
        self._unfinished += 1
        self.shared.submit(job, partial(self.link.attempt, self._deliver, batch), made)

    def commit(self, trial: Trial, request: Request) -> None:
        """Have a transaction made, and answer COMMIT when it is durable, or refused."""
        self._unfinished += 1
        self.instance.trials.commit(trial, partial(self._committed, request), self)

    def _committed(self, request: Request, error: BaseException | None) -> None:
        self._settle(0)
        if self.link.is_open:
            if error is None:
                self.answer(request, EMPTY_BODY)
            else:
                self.answer_error(request, as_request_error(error))

    def _settle(self, size_bytes: int) -> None:
        self._unfinished -= 1
        if not self._unfinished and self._settled is not None:
            self._settled.set()
            self._settled = None
        self._unanswered.add(-size_bytes)

    def _tell_free(self, batch: _Batch, job: Job) -> None:
        """Answer the SELECTs of a batch that saw nothing of what is being written; once."""
        if not batch.is_told and self.link.is_open:
            batch.is_told = True
            free = job.result.free
            if free:
                self._send(free[0] if len(free) == 1 else b"".join(free))

    def _deliver(self, batch: _Batch, job: Job) -> None:
        """Answer a batch that is durable, or whose changes were refused; what is left of it comes
        next."""
        outcome = job.result
        if job.error is None:
            if batch.may_read:
                self._tell_free(batch, job)
        else:
            told = outcome if batch.is_told else None
            batch.is_told = True  # `_tell_free` may be called behind this
            version = self.instance.schema_version()
            outcome = refuse_all(batch.events, as_request_error(job.error), version, told)
        left: Sequence[Request | Run] = outcome.left
        size_bytes = batch.size_bytes
        if left:
            size_bytes -= sum([one.size_bytes for one in left])
        if left or batch.in_streams:
            self.take_again(*self._streams.answered(batch.in_streams, left))
        self._streamed -= batch.has_streams
        if self._behind is batch:
            self._behind = None
        self._settle(size_bytes)
        if not self.link.is_open:
            return
        bound = outcome.bound
        answers = bound[0] if len(bound) == 1 else b"".join(bound)
        self._send_answers(answers, outcome.count - outcome.refused, outcome.refused)
        if self._postponed:
            self._go_on()
            self.link.flush()

    # --- other requests ---------------------------------------------------------------------------

    def _authenticate(self, request: Request) -> None:
        proof = auth.read_scramble(request.tuple or NO_TUPLE)
        try:
            user = self.shared.user(request.name)
        except RequestError:
            self._fail_login(request.name)
            raise
        is_guest = user.id == GUEST_ID and not proof
        if not is_guest and not auth.check(user.kept, self.session.salt, proof or bytes(20)):
            self._fail_login(user.name)
            raise RequestError(
                ErrorCode.PASSWORD_MISMATCH, f"Incorrect password supplied for user '{user.name}'"
            )
        self.shared.access(user.id).check_universe(Privilege.SESSION)
        self.user_id = user.id
        self._selects.forget()
        if user.id != GUEST_ID:
            self.link.know()
        self.answer(request, EMPTY_BODY)

    def _fail_login(self, user: str) -> None:
        if self.shared.logins.failed(self.link, user):
            self._postponed.clear()
            self.link.call_after_next_read(
                lambda: self.link.close("too many failed logins from there")
            )

    def _check_call(self, access: Access, name: str) -> None:
        """`Shared.check_call`; an operator's calls are for those who may do everything."""
        if name in self.instance.functions.guarded and not access.is_super:
            raise denied(Privilege.EXECUTE, "function", name, access.user.name)
        self.shared.check_call(access, name)

    async def _call(self, request: Request) -> None:
        if self._unfinished:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()
        arguments = unpack(request.tuple) if request.tuple is not None else []
        as_tuples = request.type == RequestType.CALL_16
        functions, name = self.instance.functions, request.name
        # Of an order the name that it is about is told, and no more: passwords are behind it.
        order = {"order": name, "about": str(arguments[0])[:_TOLD_LETTERS] if arguments else ""}
        try:
            order["user"] = self.shared.access(self.user_id).user.name
            call = partial(
                functions.call,
                name,
                arguments,
                as_tuples=as_tuples,
                reads_errors=self._reads_errors,
            )
            values = await self.instance.calls.run(call)
        except RequestError as error:
            order["refused"] = error.message
            self.answer_error(request, error)
        else:
            self.answer(request, data_body(values))
        if name in functions.guarded:
            _log.info("operator.order", peer=self.link.peer, **order)
        self.go_on()

    def _send(self, data: bytes) -> None:
        """What no request is answered with."""
        self.session.put(data)
        self.link.flush()

    # --- answers and back-pressure ----------------------------------------------------------------

    def answer(self, request: Request, body: bytes) -> None:
        """Answer well. `body`: encoded."""
        self.session.put_answer(request.sync, body)
        self._count_answer(request, 1, 0)

    def _count_answer(self, request: Request, done: int, refused: int) -> None:
        """A request has its answer."""
        self._unanswered.add(-request.size_bytes)
        self.shared.metrics.answered("tarantool", done, refused)
        if request.stream_id:
            self._streams.answered((request.stream_id,))

    def answer_error(self, request: Request, error: RequestError) -> None:
        """Answer with an error."""
        self.session.put_error(request.sync, error)
        self._count_answer(request, 0, 1)


def _joins_batch(event: Request) -> bool:
    """Whether a request may be one of several in a job: not so a change of definitions, or what a
    stream may answer by itself, and let all that comes next wait for."""
    if event.type == RowType.SELECT:
        return not event.stream_id
    return event.type in DML_TYPES and event.space_id >= SYSTEM_END


def _is_private(space: SpaceDef) -> bool:
    """Whether a space may be written on a read-only instance."""
    return space.is_temporary or space.is_local
