"""A lane's requests as transactions of a group of the store, each of its own or all together, and
GETs as of what is published. What several lanes and clients ask for goes together, see
`replication.bucket.joint`. A GET_MANY is many GETs, which are a run, whose answers are put into
one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final, cast

from logweir.errors import DecodeError, RequestError
from logweir.replication.bucket.batch import Changes, Looks, Paused
from logweir.replication.bucket.item import Held
from logweir.replication.bucket.joint import Part, change_all, look_all
from logweir.replication.bucket.requests import Asker, Said
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.greenstack.serve.commands import Answer, Executor
from logweir.replication.greenstack.serve.lanes import Batch, BatchKind, Bound, Pending
from logweir.replication.greenstack.serve.runs import (
    Asked,
    Joined,
    RequestRun,
    encode,
    run_of,
    take_run,
)
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.many import decode_get_many, encode_found, gets
from logweir.replication.logs import get_logger
from logweir.store.commit.group import Group

_log = get_logger("logweir.replication.greenstack")
_HEAD: Final = struct.Struct(">I7xH")  # of an answer without entries: its length and status


class Work(Part):
    """A batch of a lane, of `asker`. `requests`: as they are judged; `failed`: how many of those
    that are answered have failed; `uuid`: first 8 bytes of the instance's."""

    __slots__ = ("batch", "bucket", "failed", "uuid")

    def __init__(
        self,
        batch: Batch[str],
        bucket: Bucket,
        requests: Sequence[Pending],
        uuid: int,
        asker: Asker,
    ) -> None:
        binds = batch.kind == BatchKind.TRANSACTION
        self.batch = batch
        rest = [Bound(list(requests), batch.size_bytes)] if binds else requests
        super().__init__(rest, asker)
        self.bucket = bucket
        self.uuid = uuid

    @staticmethod
    def run_count(request: Pending | Bound) -> int:
        if isinstance(request, Bound) or request.refusal is not None:
            return 0
        frame = request.frame
        return frame.count if isinstance(frame, RequestRun) else 0

    @staticmethod
    def joined(parts: Sequence[Any], runs: Sequence[Any]) -> JoinedRuns:
        return JoinedRuns(runs, parts)

    def begin(self) -> None:
        super().begin()
        self.failed = 0
        if self.batch.lane.left_from is self.batch:  # what it left before is in `rest`
            self.batch.lane.left_from = None

    @property
    def is_behind(self) -> bool:
        return self.batch.lane.left_from is not None

    def leave(self, request: Pending | Bound) -> None:
        super().leave(request)
        self.batch.lane.left_from = self.batch

    def fail(self, status: Status) -> None:
        """Nothing of it was made: that is the answer to all."""
        self.begin()
        self.say(self.answer(chain(*[one.frames for one in self.batch.requests]), status))

    def answer(self, frames: Iterable[Frame], status: Status, payload: bytes = b"") -> bytes:
        """That to each of these, which is noted as failed if it is."""
        said = [encode(frame, status, payload) for frame in frames]
        self.failed += len(said) * (status != Status.SUCCESS)
        return b"".join(said)


class JoinedRuns(Joined):
    """Those of the requests of batches."""

    def __init__(self, runs: Sequence[Pending], works: Sequence[Work]) -> None:
        super().__init__([cast(RequestRun, one.frame) for one in runs], works, works[0].uuid)
        self._pending = runs

    def request(self, at: int) -> tuple[Pending, int]:
        return replace(self._pending[self.number(at)], frame=self.frame(at)), at + 1

    def behind(self, at: int) -> Sequence[Pending]:
        return (replace(self._pending[self.number(at)], frame=self.rest(at)),)


def change_works(works: Sequence[Work], group: Group, now: float) -> None:
    """Run what clients of one bucket ask for. `now`: Unix seconds."""
    uuid = works[0].uuid
    items = GroupItems(works[0].bucket, group, now)
    executor = Executor(items, now, uuid=uuid, lsn=lambda: group.last_lsn)

    def together(work: Work, bound: Bound) -> bytes:
        items.divides = False
        answers = _execute_together(group, executor, bound.requests, now)
        items.divides = True
        each = zip(bound.requests, answers, strict=True)
        return b"".join([work.answer(one.frames, *answer) for one, answer in each])

    def ordinary(work: Work, request: Pending | Bound) -> bytes:
        if isinstance(request, Bound):
            return together(work, request)

        def alone(frame: Frame) -> bytes:
            answer = execute_alone(group, executor, replace(request, frame=frame), now)
            return work.answer((frame,), *answer)

        def execute(asked: Asked, run: RequestRun) -> bytes:
            joined = Joined((run,), (asked,), uuid)

            def one(at: int) -> Said:
                return at + 1, alone(joined.frame(at))

            return _said_by(Changes(joined, items, now, group, one))

        return _answer(work, request, now, alone, execute)

    change_all(works, items, now, ordinary, group)


def look_work(work: Work, buckets: Buckets, now: float, expired: list[tuple[bytes, int]]) -> None:
    """Answer GETs as of what is published, as far as that goes. `now`: Unix seconds; `expired`: see
    `Looks`."""

    def ordinary(work: Work, request: Pending | Bound) -> bytes:
        assert isinstance(request, Pending)

        def look(asked: Asked, run: RequestRun) -> bytes:
            joined = Joined((run,), (asked,), work.uuid)
            return _said_by(Looks(joined, buckets, work.bucket, now, expired, _leave))

        return _answer(work, request, now, _hold, look)

    look_all([work], buckets, work.bucket, now, ordinary, expired)


def _answer(
    work: Work,
    request: Pending,
    now: float,
    alone: Callable[[Frame], bytes],
    execute: Callable[[Asked, RequestRun], bytes],
) -> bytes:
    """The answer to what is no part of a run. `alone`: answers anything, `execute` GETs."""
    refusal = refusal_of(request, now)
    if refusal is not None:
        return work.answer(request.frames, refusal)
    frame = request.frame
    assert isinstance(frame, Frame)
    if frame.opcode == Opcode.GET_MANY:
        each = SimpleNamespace(failed=0)  # for those of its parts: it is told as one request
        return work.answer((frame,), *_answer_many(frame, partial(execute, each)))
    run = run_of(frame) if frame.opcode == Opcode.GET else None
    return alone(frame) if run is None else execute(work, run)


def _answer_many(frame: Frame, look: Callable[[RequestRun], bytes]) -> Answer:
    """The answer to a GET_MANY. `look`: answers GETs. What it leaves over is to be asked for again:
    TooBusy."""
    vbucket = frame.flex.get(FlexKey.VBUCKET)
    try:
        ids = decode_get_many(frame.payload)
    except DecodeError:
        return Status.INVALID_ARGUMENTS, b""
    if vbucket is None:
        return Status.INVALID_ARGUMENTS, b""
    if not ids:
        return Status.SUCCESS, encode_found(())
    run = take_run(gets(ids, {FlexKey.VBUCKET: vbucket}))
    if run is None or run.count < len(ids):  # an id that can be none
        return Status.INVALID_ARGUMENTS, b""
    found: list[tuple[int, bytes]] = []
    at, said = 0, look(run)
    while at < len(said):
        size, status = _HEAD.unpack_from(said, at)
        begin, at = at + _HEAD.size, at + 4 + size
        found.append((status, said[begin:at]))
    found += [(Status.TOO_BUSY, b"")] * (len(ids) - len(found))
    return Status.SUCCESS, encode_found(found)


def _said_by(way: Changes | Looks) -> bytes:
    """What a run is answered, as far as it goes. Raises `Held` before the first."""
    try:
        said = way.answer()
    except Paused as paused:
        said = paused.said
        if not said:
            raise Held from None
    return b"".join([data for _, data in said])


def _hold(frame: Frame) -> bytes:
    raise Held


def _leave(at: int) -> Said:
    raise Paused([], at)


def refusal_of(one: Pending, now: float) -> Status | None:
    """Why a request is not executed: it is refused, or came too late; None: it is."""
    if one.refusal is not None:
        return one.refusal
    if not isinstance(one.frame, Frame):  # what has a limit is in no run
        return None
    limit_ms = one.frame.number(FlexKey.EXPIRES_MS) if one.frame.flex else None
    is_late = limit_ms and now - one.received_at > limit_ms / 1000
    return Status.TMP_FAILURE if is_late else None


def _answer_one(executor: Executor, one: Pending, now: float) -> Answer:
    refusal = refusal_of(one, now)
    if refusal is not None:
        return refusal, b""
    assert isinstance(one.frame, Frame)
    try:
        return executor.execute(one.frame)
    except RequestError as error:
        _log.warning("greenstack.request_failed", opcode=one.frame.opcode, error=str(error))
        return Status.INTERNAL_ERROR, b""


def execute_alone(group: Group, executor: Executor, one: Pending, now: float) -> Answer:
    """One request as a transaction of its own."""
    mark = group.mark()
    answer = _answer_one(executor, one, now)
    if answer[0] != Status.SUCCESS and answer[0] != Status.NOT_FOUND:
        group.rollback(mark)
    else:
        group.end_transaction()
    return answer


def _execute_together(
    group: Group, executor: Executor, requests: Sequence[Pending], now: float
) -> list[Answer]:
    """All requests as one transaction, or none."""
    mark = group.mark()
    answers: list[Answer] = []
    for number, one in enumerate(requests):
        answer = _answer_one(executor, one, now)
        answers.append(answer)
        if answer[0] != Status.SUCCESS:
            group.rollback(mark)
            return [
                answer if i == number else (other.refusal or Status.INVALID_STATE, b"")
                for i, other in enumerate(requests)
            ]
    group.end_transaction()
    return answers
