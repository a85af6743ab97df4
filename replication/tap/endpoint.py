"""Serving memcached clients and TAP consumers: sessions, connections and buckets together.

Commands of one read that need the store are one job of the commit queue, in which each is a
transaction of its own; they are answered together once durable. Reads behind no unfinished change
are answered at once, from a view of what is durable. An expired item that a read finds is removed
by a job of its own.

A client begins as guest in the listener's bucket; SASL makes it another user, and puts it into the
bucket of that name where there is one; SELECT_BUCKET changes it. Reading and writing need the
privileges on the bucket's space: status 20 without.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from logweir.errors import LimitExceeded, LogweirError, RequestError
from logweir.limits import TAP_PIPELINE_BYTES
from logweir.replication.bucketfeed import Changes
from logweir.replication.bucketstore import Bucket, Buckets, GroupItems, ViewItems
from logweir.replication.iproto.access import GUEST_ID, Privilege
from logweir.replication.iproto.auth import verifier
from logweir.replication.iproto.service import Shared
from logweir.replication.link import Link
from logweir.replication.logs import get_logger
from logweir.replication.tap.codec import (
    Connect,
    Opcode,
    Option,
    Packet,
    Status,
    encode_answer,
)
from logweir.replication.tap.commands import READS, Executor
from logweir.replication.tap.names import NamedStreams
from logweir.replication.tap.runs import RequestRun, execute_all, packets_of
from logweir.replication.tap.sasl import ScramVerifier
from logweir.replication.tap.session import (
    Acknowledged,
    Authenticated,
    Commands,
    Connected,
    Deregister,
    Event,
    SelectBucket,
    ServerSession,
    Settings,
)
from logweir.replication.tap.stream import StreamOptions
from logweir.replication.tap.streaming import Streaming
from logweir.store.commit import Job
from logweir.store.group import Group
from logweir.wal.writer import VERSION

__all__ = ["DEFAULT_BUCKET", "TapService"]

_log = get_logger("logweir.replication.tap")

DEFAULT_BUCKET: Final = "default"


class _Credentials:
    """Users of the store. Only what is kept of their passwords is there, so only PLAIN works."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def mechanisms(self) -> Sequence[str]:
        return ("PLAIN",)

    def check_password(self, user: str, password: str) -> bool:
        try:
            kept = self._shared.user(user).kept
        except RequestError:
            return False
        return bool(kept) and kept == verifier(password)

    def cram_key(self, user: str) -> bytes | None:
        del user
        return None

    def scram(self, user: str, mechanism: str) -> ScramVerifier | None:
        del user, mechanism
        return None


class TapService:
    """Buckets of one store, served. `bucket`: the one that clients begin with, made if need be."""

    def __init__(
        self,
        shared: Shared,
        bucket: str = DEFAULT_BUCKET,
        *,
        options: StreamOptions | None = None,
        must_login: bool = False,
    ) -> None:
        self.shared = shared
        self.buckets = Buckets(shared.log, shared.options.clock)
        self.bucket = self.buckets.make(bucket or DEFAULT_BUCKET)
        self.options = options or StreamOptions()
        self.changes = Changes()
        self.names = NamedStreams(shared.log, shared.options.clock)
        self.settings = Settings(
            version=f"1.6.18-logweir-{VERSION}".encode(),
            random=os.urandom,
            credentials=_Credentials(shared),
            must_login=must_login,
        )
        self.streams: dict[Conversation, Streaming] = {}

    def begin(self, link: Link) -> Conversation:
        """See `logweir.replication.listener.Service`."""
        return Conversation(self, link)

    def refusal(self, reason: str) -> bytes:
        """See `logweir.replication.listener.Service`."""
        del reason
        return encode_answer(Packet(Opcode.NOOP), Status.BUSY)

    def now(self) -> float:
        """Unix seconds."""
        return self.shared.options.clock()


def _report(job: Job) -> None:
    if job.error is not None:
        _log.warning("tap.change_failed", error=str(job.error))


class Conversation:
    """One connection."""

    def __init__(self, service: TapService, link: Link) -> None:
        self.service = service
        self.link = link
        self.bucket: Bucket = service.bucket
        self.session = ServerSession(service.settings, link.time())
        self.user_id = GUEST_ID
        self.streaming: Streaming | None = None
        self._unfinished = 0
        self._unanswered_bytes = 0
        self._held = False
        self._auto_nack = False

    # --- events -----------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        for event in events:
            match event:
                case Commands():
                    self._run(event)
                case Acknowledged():
                    if self.streaming is not None:
                        self.streaming.answered()
                case Authenticated():
                    self._login(event.user)
                case Connected():
                    self._connect(event)
                case Deregister():
                    self.service.names.forget(self.bucket.name, event.request.key)
                    self.session.answer(event.slot, encode_answer(event.request))
                case SelectBucket():
                    self._select(event)

    def closed(self, reason: str) -> None:
        """See `Conversation` of `logweir.replication.link`."""
        if self.streaming is not None:
            self.streaming.closed(reason)
            self.service.streams.pop(self, None)

    def _login(self, name: str) -> None:
        self.user_id = self.service.shared.user(name).id
        self.bucket = self.service.buckets.find(name) or self.bucket

    def _select(self, event: SelectBucket) -> None:
        name = event.request.key.decode("utf-8", "replace")
        found = self.service.buckets.find(name)
        if found is not None:
            self.bucket = found
        status = Status.NOT_FOUND if found is None else Status.SUCCESS
        self.session.answer(event.slot, encode_answer(event.request, status))

    def may(self, *wanted: Privilege) -> bool:
        """Whether this client has these privileges on its bucket."""
        space = self.service.shared.log.schema.get(self.bucket.space_id)
        if space is None:
            return False
        try:
            access = self.service.shared.access(self.user_id)
            for one in wanted:
                access.check(one, "space", space.id, space.owner, space.name)
        except RequestError:
            return False
        return True

    # --- commands ---------------------------------------------------------------------------------

    def _run(self, event: Commands) -> None:
        reads_only = all(
            not request.changes if isinstance(request, RequestRun) else request.opcode in READS
            for request in event.requests
        )
        wanted = (Privilege.READ,) if reads_only else (Privilege.READ, Privilege.WRITE)
        if not reads_only and self.service.shared.options.read_only:
            self._answer_all(event, Status.NOT_SUPPORTED)
        elif not self.may(*wanted):
            self._answer_all(event, Status.AUTH_ERROR)
        elif reads_only and not self._unfinished:
            self._read(event)
        else:
            self._submit(event)

    def _answer_all(self, event: Commands, status: Status) -> None:
        """NOOP is harmless, everything else gets that status."""
        self.session.answer(
            event.slot,
            b"".join(
                encode_answer(request)
                if request.opcode == Opcode.NOOP
                else encode_answer(request, status)
                for request in packets_of(event.requests)
            ),
        )

    def _read(self, event: Commands) -> None:
        with self.service.shared.log.read_view() as view:
            items = ViewItems(self.bucket, view, self.service.now())
            now = self.service.now()
            executor = Executor(items, now, stats=self._stats)
            answers = execute_all(event.requests, items, now, executor.execute)
        self.service.shared.metrics.answered("tap", _count(event), 0)
        self.session.answer(event.slot, answers)
        if items.expired:
            self._remove_expired(items.expired)

    def _remove_expired(self, keys: Sequence[tuple[bytes, int]]) -> None:
        service, bucket = self.service, self.bucket

        def apply(group: Group) -> None:
            items = GroupItems(bucket, group, service.now())
            for key, vbucket in keys:
                items.get(key, vbucket)

        service.shared.submit(Job(apply, 512 * len(keys)), _report)

    def _submit(self, event: Commands) -> None:
        service, bucket = self.service, self.bucket
        self._unfinished += 1
        self._unanswered_bytes += event.size_bytes
        if self._unanswered_bytes > TAP_PIPELINE_BYTES and not self._held:
            self._held = True
            self.link.hold_reading()

        def apply(group: Group) -> bytes:
            now = service.now()
            items = GroupItems(bucket, group, now)
            executor = Executor(items, now, stats=self._stats, flush_later=self._flush_later)
            executor.auto_nack = self._auto_nack
            one = partial(execute_one, group, executor)
            answers = execute_all(event.requests, items, now, one, group)
            self._auto_nack = executor.auto_nack
            return answers

        def done(job: Job) -> None:
            self._finish(event, job)

        try:
            service.shared.submit(Job(apply, event.size_bytes, sees_batch=True), done)
        except LogweirError as error:
            failed = Job(apply)
            failed.error = error
            self._finish(event, failed)

    def _finish(self, event: Commands, job: Job) -> None:
        self._unfinished -= 1
        self._unanswered_bytes -= event.size_bytes
        if self._held and self._unanswered_bytes <= TAP_PIPELINE_BYTES // 2:
            self._held = False
            self.link.resume_reading()
        if not self.link.is_open:
            return
        metrics = self.service.shared.metrics
        if job.error is not None:
            _log.warning("tap.commit_failed", peer=self.link.peer, error=str(job.error))
            metrics.answered("tap", 0, _count(event))
            self._answer_all(event, Status.TEMPORARY_FAILURE)
        else:
            metrics.answered("tap", _count(event), 0)
            self.session.answer(event.slot, job.result)
        self.link.flush()

    def _flush_later(self, seconds: float) -> None:
        service, bucket = self.service, self.bucket

        def apply(group: Group) -> None:
            GroupItems(bucket, group, service.now()).flush()

        def flush() -> None:
            service.shared.submit(Job(apply), _report)

        loop = self.link.gone.get_loop()
        loop.call_soon_threadsafe(loop.call_later, seconds, flush)

    def _stats(self, group: bytes) -> list[tuple[bytes, bytes]]:
        if group:
            return []
        log = self.service.shared.log
        space = log.schema.space(self.bucket.space_id)
        return [
            (b"pid", b"%d" % os.getpid()),
            (b"time", b"%d" % self.service.now()),
            (b"version", self.service.settings.version),
            (b"bucket", self.bucket.name.encode()),
            (b"space_id", b"%d" % space.id),
            (b"signature", b"%d" % log.vclock.signature),
            (b"tap_streams", b"%d" % len(self.service.streams)),
        ]

    # --- streams ----------------------------------------------------------------------------------

    def _connect(self, event: Connected) -> None:
        connect = event.connect
        status = self._may_stream(connect)
        if status is not None:
            self.session.refuse_connect(event.slot, connect, status)
            return
        self.streaming = Streaming(self, event.slot, connect)
        self.service.streams[self] = self.streaming
        self.link.spawn(self.streaming.run())

    def _may_stream(self, connect: Connect) -> Status | None:
        takes_over = bool(connect.options & Option.TAKEOVER_VBUCKETS and connect.vbuckets)
        if not self.may(Privilege.READ) or (takes_over and not self.may(Privilege.WRITE)):
            return Status.AUTH_ERROR
        known = self.service.names.find(self.bucket.name, connect.name) if connect.name else None
        if known is not None and isinstance(known.owner, Conversation):
            if known.is_registered:
                return Status.NOT_SUPPORTED
            older, known.owner = known.owner, None
            older.replaced()
        return None

    def replaced(self) -> None:
        """Another connection uses our stream's name now."""
        if self.streaming is not None:
            self.streaming.closed("another connection took its name")
            self.streaming = None
        self.link.close("another connection took the name of this stream")


def _count(event: Commands) -> int:
    return sum(
        request.count if isinstance(request, RequestRun) else 1 for request in event.requests
    )


def execute_one(group: Group, executor: Executor, request: Packet) -> bytes:
    """One request as a transaction of its own."""
    group.run_deferred()
    mark = group.mark()
    try:
        answer = executor.execute(request)
    except LimitExceeded:
        group.rollback(mark)
        return encode_answer(request, Status.TOO_BIG)
    except RequestError as error:
        group.rollback(mark)
        _log.warning("tap.request_failed", opcode=request.opcode, error=str(error))
        return encode_answer(request, Status.INTERNAL)
    group.end_transaction()
    return answer
