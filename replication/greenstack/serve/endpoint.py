"""Serving Greenstack clients: sessions, lanes, connections and buckets together.

What all clients of a bucket have asked for in one turn of the loop is one job of the commit queue,
in which each request is a transaction of its own, or those together that `more` binds; it is
answered once durable. A batch of GETs after nothing unfinished in its lane is answered at once, of
what is durable.

Nobody may do more than the grants of the user say: SASL makes one out of guest. A guest can select
no bucket but `default`, unless guests may do everything. On a read-only server changes get
NoAccess, or ReadOnly if the client has asked for one of our features.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from logweir.errors import ConfigError, LogweirError, RequestError
from logweir.limits import (
    GREENSTACK_ID_BYTES,
    GREENSTACK_PIPELINE_BYTES,
    GREENSTACK_STREAM_NAME_BYTES,
    GREENSTACK_STREAMS,
    OUTPUT_LOW_BYTES,
)
from logweir.replication.bucket.feed import Changes
from logweir.replication.bucket.joint import finish_all
from logweir.replication.bucket.reads import ItemReads
from logweir.replication.bucket.store import Bucket, Buckets
from logweir.replication.bucket.sweep import Sweeper, remove
from logweir.replication.budget import Unanswered
from logweir.replication.greenstack.push.streaming import Streaming
from logweir.replication.greenstack.serve.definitions import Definitions
from logweir.replication.greenstack.serve.lanes import (
    READS,
    Batch,
    BatchKind,
    Bound,
    Lanes,
    Pending,
)
from logweir.replication.greenstack.serve.runs import READ_CODES, GetReader
from logweir.replication.greenstack.serve.statements import Work, change_works, look_work
from logweir.replication.greenstack.server_session import (
    Acknowledged,
    Event,
    Greeted,
    ServerSession,
    Settings,
    StreamOver,
)
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import (
    Feature,
    NoticeCode,
    StreamOpen,
    decode_bucket,
    encode_buckets,
    encode_opened,
)
from logweir.replication.link import UNIX_PEER, Link
from logweir.replication.listener import Service
from logweir.replication.logs import get_logger
from logweir.replication.service.credentials import StoreCredentials
from logweir.replication.service.protocol import Surroundings
from logweir.replication.service.sasl import Authenticated, LoginFailed
from logweir.replication.service.shared import Shared
from logweir.store.commit.jobs import QUICK_BYTES
from logweir.store.schema.access import Privilege
from logweir.wal.vclock import VClock
from logweir.wal.writer import VERSION

_log = get_logger("logweir.replication.greenstack")
_LOOPBACK: Final = ("127.", "::1:", UNIX_PEER)  # how peers begin that need no encryption
_READ: Final = Privilege.READ  # to look for a member of an enumeration takes longer
_QUICK_REQUESTS: Final = 32  # more are left to the log's own thread: each may be executed by itself


class GreenstackService(Service):
    """Buckets of one store, served. `sweep_seconds`: see `logweir.replication.bucket.sweep`;
    `encoding`: of spaces that are no buckets, see `logweir.replication.outgoing.spacefeed`;
    `plain`: passwords may come unencrypted from afar, too."""

    def __init__(
        self,
        shared: Shared,
        around: Surroundings,
        sweep_seconds: float,
        encoding: str,
        plain: bool,
    ) -> None:
        self.shared = shared
        self.buckets = Buckets(shared.log, shared.options.clock)
        self.changes = Changes()
        self.definitions = Definitions(shared, self.buckets, self.changes, encoding)
        self.credentials = StoreCredentials(shared)
        self.uuid = int.from_bytes(shared.log.instance.bytes[:8], "big")
        self.conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()
        self.around = around
        self.plain = plain
        self.reads = ItemReads(shared.log, GetReader(), self.buckets.learn, self.now)
        self.sweeper = Sweeper(shared, self.buckets, sweep_seconds)
        self._committer = shared.log.inner.committer
        self._schema = shared.log.schema
        self._loop = asyncio.get_running_loop()
        self._forget = shared.log.on_commit(self._committed)

    def begin(self, link: Link) -> Conversation:
        return Conversation(self, link)

    def now(self) -> float:
        """Unix seconds."""
        return self.shared.options.clock()

    def close(self) -> None:
        """The server stops: tell everybody who wants to know."""
        self._forget()
        self.sweeper.close()
        for conversation in tuple(self.conversations):
            conversation.session.notice(NoticeCode.SHUTTING_DOWN, "the server stops")
            conversation.link.flush()

    def put_in_line(self, work: Work) -> None:
        """Run a batch after those that came before, and tell its conversation."""
        batch = work.batch
        self.shared.submit_part(
            work.bucket,
            work,
            batch.size_bytes,
            lambda works, group: change_works(works, group, self.now()),
            finish_all,
            quick_bytes=QUICK_BYTES if len(batch.requests) <= _QUICK_REQUESTS else 0,
        )

    def _committed(self, vclock: VClock) -> None:
        """In the committing thread."""
        del vclock
        if self._committer.schema is not self._schema:
            self._loop.call_soon_threadsafe(self._definitions_changed)

    def _definitions_changed(self) -> None:
        schema = self.shared.log.schema
        if schema is self._schema:
            return
        self._schema = schema
        gone, made = self.definitions.news()
        for conversation in tuple(self.conversations):
            conversation.buckets_changed(gone, made)


class Conversation:
    """One connection, as `logweir.replication.link` has conversations."""

    def __init__(self, service: GreenstackService, link: Link) -> None:
        self.service = service
        self.link = link
        settings = Settings(
            credentials=service.credentials,
            random=os.urandom,
            clock=service.now,
            version=VERSION,
            plain=service.plain or link.is_encrypted or link.peer.startswith(_LOOPBACK),
        )
        self.session = ServerSession(settings, link.time())
        self.session.read = self.read
        self.user_id = service.shared.user_id(link.user)
        self.lanes: Lanes[str] = Lanes("")
        self.streams: dict[bytes, Streaming] = {}
        self._taken_bytes = 0  # of requests that are not answered
        self._unanswered = Unanswered(link, GREENSTACK_PIPELINE_BYTES, self._tell_pace)
        self._is_put_off = False
        self._is_over = False  # what was read has taken a turn
        service.conversations.add(self)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        now = self.service.now()
        for event in events:
            match event:
                case Pending():
                    event.user_id, event.received_at = self.user_id, now
                    if self.lanes.put(event):
                        self._take(event.frame.size_bytes)
                    else:
                        for frame in event.frames:
                            self.session.answer(frame, Status.TOO_BUSY)
                case Acknowledged(name, _, credit_bytes) if name in self.streams:
                    self.streams[name].outgoing.credit(credit_bytes, self.link.time())
                    self.streams[name].wake()
                case Greeted():
                    self._greet(event)
                case LoginFailed() if self.service.shared.logins.failed(self.link, event.user):
                    self.session.end("too many failed logins from there")
                case Authenticated():
                    self.link.know()
                    self.user_id = self.service.shared.user(event.user).id
                case StreamOver(name, Status() as status, reason) if name in self.streams:
                    self.streams[name].end(status, reason)
                case StreamOver(name) if name in self.streams:
                    self.streams[name].close()
                    self.stream_over(name)
        if self.session.kept_bytes and self.lanes.are_several:  # the rest is on its way
            self._pump_later()
        elif self._is_over:
            self.link.go_on_later(self._pump)
        else:
            self._pump()

    def read(self, data: bytes) -> int:
        """Answer GETs as far as nothing is to be done before them. Returns where others begin."""
        self._is_over, name, service = False, self.lanes.root.selected, self.service
        if self._taken_bytes or not name or data[8:10] not in READ_CODES or not self.link.writable:
            return 0
        bucket = service.buckets.find(name)
        if bucket is None or not service.definitions.may(self.user_id, bucket, _READ):
            return 0
        reader = service.reads.reader
        reader.has_many = self.session.has_many
        stop = service.reads.read(bucket, data)
        self._is_over = reader.is_over
        if stop:
            self.session.put(reader.take())
            done = reader.count - reader.failed
            service.shared.metrics.answered("greenstack", done, reader.failed)
        if reader.expired:
            remove(service.shared, bucket, reader.expired)
        return stop

    @property
    def kept_bytes(self) -> int:
        """See `Keeps` of `logweir.replication.link`: also of transactions."""
        return self.session.frames.rest.size_bytes + self.lanes.open_bytes

    def closed(self, reason: str) -> None:
        del reason
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self.session.read = lambda data: 0
        self.service.conversations.discard(self)

    def buckets_changed(self, gone: Sequence[str], made: Sequence[str]) -> None:
        """Buckets were removed or made, or other definitions have changed."""
        for name in gone:
            self.session.notice(NoticeCode.BUCKET_REMOVED, name)
            for lane in self.lanes:
                if lane.selected == name and name not in made:
                    lane.selected = ""
        for stream in tuple(self.streams.values()):
            if set(gone) & set(stream.asked.buckets):
                stream.end(Status.NO_BUCKET, "a bucket of this stream was removed")
        self.session.notice(NoticeCode.CONFIGURATION_CHANGED, ", ".join(made))
        self.link.flush()

    def _greet(self, event: Greeted) -> None:
        _log.info("greenstack.hello", peer=self.link.peer, agent=event.agent, version=event.version)
        if self.session.has(Feature.NOTICES):
            if self.service.around.is_caught_up():
                self._say_ready()
            else:
                self.link.spawn(self._warm_up())

    def _say_ready(self) -> None:
        self._pump()
        self.session.notice(NoticeCode.READY, "ready")

    async def _warm_up(self) -> None:
        self.session.notice(NoticeCode.WARMING_UP, "upstreams are being caught up with")
        self.link.flush()
        await self.service.around.caught_up()
        self._say_ready()
        self.link.flush()

    # --- lanes ------------------------------------------------------------------------------------

    def _take(self, size_bytes: int) -> None:
        """So many bytes of requests more have no answer. A transaction whose end has not come waits
        for nothing but that."""
        self._taken_bytes += size_bytes
        self._unanswered.set(self._taken_bytes - self.lanes.open_bytes)

    def _tell_pace(self, is_held: bool) -> None:
        slower = NoticeCode.SLOW_DOWN, "too much is unanswered"
        self.session.notice(*(slower if is_held else (NoticeCode.SPEED_UP, "go on")))

    def _pump(self) -> None:
        """Start what may be started, as far as a turn goes and the client takes the answers."""
        lanes, link, session = self.lanes, self.link, self.session
        turn = None
        while lanes.has_ready:
            turn = turn or link.turn()
            if session.waiting_bytes > OUTPUT_LOW_BYTES:
                link.flush()
            if not link.writable or turn.is_over(link.sent_bytes + session.waiting_bytes):
                link.go_on_later(self._pump)
                return
            for batch in lanes.take():
                self._start(batch)

    def _pump_later(self) -> None:
        """`_pump`, once the rest of a frame had the time to come that it needs if it is there: a
        request of another lane after it goes together with what was read, and does not have to
        wait until that is synced."""
        if not self._is_put_off:
            self._is_put_off = True
            self.link.call_after_next_read(self._pump_now)

    def _pump_now(self) -> None:
        self._is_put_off = False
        self._pump()

    def _done(self, batch: Batch[str], left: Sequence[Pending | Bound] = ()) -> None:
        """A batch is answered, but for what is left of it."""
        self._take(sum([one.size_bytes for one in left]) - batch.size_bytes)
        self.lanes.done(batch, left)

    def _start(self, batch: Batch[str]) -> None:
        if batch.kind == BatchKind.SINGLE:
            self._single(batch)
            return
        bucket = self.service.buckets.find(batch.lane.selected) if batch.lane.selected else None
        if bucket is None:
            self._answer(batch, Status.NO_BUCKET)
            return
        requests, changes = self._judge(batch.requests, bucket)
        work = Work(batch, bucket, requests, self.service.uuid, self)
        if batch.kind == BatchKind.STORE and batch.lane.in_flight == 1 and not changes:
            self._read(work)
        else:
            self.service.put_in_line(work)

    def _judge(self, requests: Sequence[Pending], bucket: Bucket) -> tuple[Sequence[Pending], bool]:
        """Refuse those that their user may not make. Returns them, and whether one of them is for
        a change."""
        refusals: dict[tuple[int, bool], Status | None] = {}
        judged, changes = [], False
        for one in requests:
            key = one.user_id, one.frame.opcode in READS
            changes = changes or not key[1]
            if one.refusal is None:
                if key not in refusals:
                    refusals[key] = self._refusal(bucket, *key)
                if (status := refusals[key]) is not None:
                    one = replace(one, refusal=status)
            judged.append(one)
        return judged, changes

    def _refusal(self, bucket: Bucket, user_id: int, reads: bool) -> Status | None:
        wanted = Privilege.READ if reads else Privilege.WRITE
        if not self.service.definitions.may(user_id, bucket, wanted):
            return Status.NO_ACCESS
        if not reads and self.service.shared.options.read_only:
            return self._read_only_status
        return None

    @property
    def _read_only_status(self) -> Status:
        return Status.READ_ONLY if self.session.features else Status.NO_ACCESS

    def _read(self, work: Work) -> None:
        """Answer GETs at once, as far as that goes."""
        service = self.service
        expired: list[tuple[bytes, int]] = []
        look_work(work, service.buckets, service.now(), expired)
        if work.fresh:
            self._say(work)
        else:
            service.put_in_line(work)
        if expired:
            remove(service.shared, work.bucket, expired)

    def finish(self, work: Work, error: BaseException | None) -> None:
        """What was asked for is durable, or failed."""
        if error is not None:
            work.fail(Status.TMP_FAILURE)
        self._say(work)
        self._pump()
        self.link.flush()

    def _say(self, work: Work) -> None:
        """What was made of a batch is its answer."""
        for data in work.fresh:
            self.session.put(data)
        self._told(work.batch, work.failed, work.left)

    def _answer(self, batch: Batch[str], status: Status, payload: bytes = b"") -> None:
        """Answer all requests of a batch so, but those that are refused already."""
        failed = 0
        for one in batch.requests:
            told = one.refusal or status
            for frame in one.frames:
                self.session.answer(frame, told, payload)
                failed += told != Status.SUCCESS
        self._told(batch, failed)

    def _told(self, batch: Batch[str], failed: int, left: Sequence[Pending | Bound] = ()) -> None:
        """A batch is answered, but for what is left of it."""
        count = sum([one.count for one in batch.requests]) - sum([one.count for one in left])
        self.service.shared.metrics.answered("greenstack", count - failed, failed)
        self._done(batch, left)

    # --- requests that run alone ------------------------------------------------------------------

    def _single(self, batch: Batch[str]) -> None:
        pending = batch.requests[0]
        frame = pending.frame
        assert isinstance(frame, Frame)
        if pending.answer is not None:
            self.session.put(pending.answer)
            self._done(batch)
        elif pending.refusal is not None:
            self._answer(batch, pending.refusal)
        elif frame.opcode in (Opcode.CREATE_BUCKET, Opcode.DELETE_BUCKET):
            self.link.spawn(self._define(batch))
        elif frame.opcode == Opcode.STREAM_OPEN:
            self._open_stream(batch)
        elif frame.opcode == Opcode.SELECT_BUCKET:
            self._answer(batch, self._select(batch))
        elif frame.opcode == Opcode.LIST_BUCKETS:
            names = tuple(self.service.definitions.visible(pending.user_id))
            self._answer(batch, Status.SUCCESS, encode_buckets(names))
        else:
            self._answer(batch, Status.NOT_IMPLEMENTED)

    def _select(self, batch: Batch[str]) -> Status:
        pending = batch.requests[0]
        assert isinstance(pending.frame, Frame)
        try:
            name = decode_bucket(pending.frame.payload)
        except LogweirError:
            return Status.INVALID_ARGUMENTS
        bucket = self.service.buckets.find(name)
        if bucket is None:
            return Status.NOT_FOUND
        if name not in self.service.definitions.visible(pending.user_id):
            return Status.NO_ACCESS
        batch.lane.selected = name
        return Status.SUCCESS

    async def _define(self, batch: Batch[str]) -> None:
        pending = batch.requests[0]
        try:
            status = await self.service.definitions.define(pending, self._read_only_status)
        except (ConfigError, RequestError) as error:
            _log.warning("greenstack.define_failed", peer=self.link.peer, error=str(error))
            status = Status.INTERNAL_ERROR
        self._answer(batch, status)
        self._pump()
        self.link.flush()

    # --- streams ----------------------------------------------------------------------------------

    def _open_stream(self, batch: Batch[str]) -> None:
        frame = batch.requests[0].frame
        assert isinstance(frame, Frame)
        name = frame.flex.get(FlexKey.DCP_ID, b"")
        try:
            asked = StreamOpen.decode(frame.payload)
        except LogweirError:
            self._answer(batch, Status.INVALID_ARGUMENTS)
            return
        status = self._may_open(name, asked)
        if status != Status.SUCCESS:
            self._answer(batch, status)
            return
        position = self.service.shared.log.applied.without_local()
        if asked.now:
            asked = replace(asked, start=position)
        instance = str(self.service.shared.log.instance)
        loud = replace(frame, flags=frame.flags & ~Flag.QUIET)
        self.session.answer(loud, payload=encode_opened(position, instance))
        self._done(batch)
        outgoing = self.session.open_stream(name, frame.lane, asked, self.link.time())
        streaming = Streaming(self, outgoing, asked)
        self.streams[name] = streaming
        streaming.task = self.link.spawn(streaming.run())

    def _may_open(self, name: bytes, asked: StreamOpen) -> Status:
        if not 0 < len(name) <= GREENSTACK_STREAM_NAME_BYTES:
            return Status.INVALID_ARGUMENTS
        if asked.now and (asked.snapshot or asked.start):
            return Status.INVALID_ARGUMENTS
        is_known = self.session.has(Feature.FILTERS) or not asked.is_filtered
        if not is_known or len(asked.prefix) > GREENSTACK_ID_BYTES:
            return Status.INVALID_ARGUMENTS
        if name in self.streams:
            return Status.STREAM_EXISTS
        if len(self.streams) >= GREENSTACK_STREAMS:
            return Status.TOO_BUSY
        definitions = self.service.definitions
        for wanted in asked.buckets:
            feed = definitions.feed(wanted)
            if feed is None:
                return Status.NO_BUCKET
            if not definitions.may(self.user_id, feed, Privilege.READ):
                return Status.NO_ACCESS
        log = self.service.shared.log
        if asked.snapshot or asked.now:
            return Status.SUCCESS
        if asked.instance not in ("", str(log.instance)) or not log.applied.covers(asked.start):
            return Status.ROLLBACK
        is_there = asked.start.covers(log.oldest_position.without_local())
        return Status.SUCCESS if is_there else Status.POSITION_GONE

    def stream_over(self, name: bytes) -> None:
        """A stream has said its last."""
        self.session.streams.pop(name, None)
        stream = self.streams.pop(name, None)
        if stream is not None:
            stream.task = None
            stream.close()
