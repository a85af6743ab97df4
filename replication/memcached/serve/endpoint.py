"""Serving memcached clients and TAP consumers: sessions, connections and buckets together.

Commands of one read that need the store are one job of the commit queue, in which each is a
transaction of its own; they are answered together once durable. Reads after no unfinished change
are answered at once, of what is durable. An expired item that a read finds is removed by a job of
its own.

A client begins as guest in the listener's bucket; SASL makes it another user, and puts it into the
bucket of that name if there is one; SELECT_BUCKET changes it. Reading, writing and takeover (to
change states of vbuckets) need privileges on the bucket's space: status 20 without. Where guest may
not even read the listener's bucket, or the listener says so, SASL is required: see
`memcached.server_session`. If it is not, and no user has a password, it is not known (81):
clients that are configured with a user carry on then.

Any other space can be chosen as ``space:NAME``, where the listener begins or by SELECT_BUCKET: its
changes are streamed; every command on it gets status 83.

Commands on a pending vbucket wait, and with them whatever comes after them on their connection,
until the state of the vbucket has changed. In the same way commands wait after answers of
`limits.TAP_ANSWERS_BYTES` until the client takes them: so much, one value more and what the
connection holds unsent (`limits.OUTPUT_HIGH_BYTES`) is what it may cost at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from logweir.errors import RemoteProtocolError
from logweir.limits import TAP_PIPELINE_BYTES
from logweir.replication.bucket.feed import BucketFeed, Changes, Feed
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.joint import change_all, finish_all
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems, ViewItems
from logweir.replication.bucket.sweep import Sweeper
from logweir.replication.budget import Unanswered
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.logs import get_logger
from logweir.replication.memcached.push.names import NamedStreams
from logweir.replication.memcached.push.streaming import Streaming
from logweir.replication.memcached.serve.commands import (
    READS,
    Executor,
    Failed,
)
from logweir.replication.memcached.serve.flushes import Flushes
from logweir.replication.memcached.serve.idle import IdleClients
from logweir.replication.memcached.serve.options import ListenOptions
from logweir.replication.memcached.serve.reads import Reads
from logweir.replication.memcached.serve.runs import (
    Commands,
    Teller,
    execute_one,
    packets_of,
    refusals,
)
from logweir.replication.memcached.serve.statistics import Statistics, Stats
from logweir.replication.memcached.server_session import (
    Acknowledged,
    Connected,
    Event,
    Named,
    ServerSession,
    Settings,
)
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_answer
from logweir.replication.memcached.wire.messages import Connect, Option, decode_filter
from logweir.replication.outgoing.spacefeed import SpaceFeeds
from logweir.replication.service.credentials import StoreCredentials
from logweir.replication.service.sasl import Authenticated, LoginFailed
from logweir.replication.service.shared import Shared
from logweir.replication.topic.views import SPACE_PREFIX
from logweir.store.commit.group import Group
from logweir.store.schema.access import GUEST_ID, Privilege
from logweir.wal.vclock import VClock

_log = get_logger("logweir.replication.memcached")
_READS: Final = frozenset([bytes((opcode,)) for opcode in READS])


class TapService(Service):
    """Buckets of one store, served. `bucket`: the one that clients begin with, which is there;
    ``space:NAME``: that space is streamed instead. `names`: those of all listeners of the store."""

    def __init__(
        self, shared: Shared, bucket: str, options: ListenOptions, names: NamedStreams
    ) -> None:
        self.shared = shared
        self.buckets = Buckets(shared.log, shared.options.clock)
        self.space = bucket.removeprefix(SPACE_PREFIX) if bucket.startswith(SPACE_PREFIX) else ""
        self.bucket = None if self.space else self.buckets.find(bucket)
        self.options = options.stream
        self.changes = Changes()
        self.names = names
        self.credentials = StoreCredentials(shared)
        self.settings = Settings(os.urandom, self.credentials, self.now)
        self.must_login = options.must_login
        self.statistics = Statistics(shared.log, shared.options)
        self.streams: dict[Conversation, Streaming] = {}
        self.flushes = Flushes(shared, self.buckets)
        self.sweeper = Sweeper(shared, self.buckets, options.sweep_seconds)
        self.feeds = SpaceFeeds(shared.log, options.encoding)
        self.reads = Reads(shared, self.buckets, self.statistics)
        self._waiting: set[Conversation] = set()
        served = lambda: {one.link for one in (*self.streams, *self._waiting)}  # noqa: E731
        self.idle = IdleClients(options.idle_seconds, self.statistics.links, served)
        self._forget_commits: Callable[[], None] | None = None

    def begin(self, link: Link) -> Conversation:
        self.statistics.opened(link)
        self.idle.watch()
        return Conversation(self, link)

    def refusal(self, reason: str) -> bytes:
        del reason
        return encode_answer(Packet(Opcode.NOOP), Status.BUSY)

    def close(self) -> None:
        """Stop what runs beside the connections."""
        self.idle.close()
        self.sweeper.close()
        self.flushes.close()
        if self._forget_commits is not None:
            self._forget_commits()
            self._forget_commits = None

    def status(self, *, with_away: bool = True) -> list[dict[str, Any]]:
        """The streams of this listener, and the names of the store that nobody uses now, in the
        same shape."""
        away = self.names.away() if with_away else ()
        return [one.status() for one in (*self.streams.values(), *away)]

    def now(self) -> float:
        """Unix seconds."""
        return self.shared.options.clock()

    # --- changes ----------------------------------------------------------------------------------

    def put_in_line(self, run: Commands) -> None:
        """Run commands after those that came before, and tell the conversation."""
        if run.takes_over:
            run.may_take_over = run.asker.may(Privilege.TAKEOVER)
        self.shared.submit_part(run.bucket, run, run.size_bytes, self._apply, finish_all)

    def _apply(self, runs: Sequence[Commands], group: Group) -> None:
        """Run commands in a group, in the thread that commits."""
        now = self.now()
        items = GroupItems(runs[0].bucket, group, now)
        executors: dict[Teller, Executor] = {}

        def ordinary(run: Commands, request: Packet) -> bytes:
            executor = executors.get(run.asker)
            if executor is None:
                executor = executors[run.asker] = run.asker.executor(items, now, group)
            executor.may_take_over = run.may_take_over
            return execute_one(group, executor, request)

        change_all(runs, items, now, ordinary, group)
        for conversation, executor in executors.items():
            conversation.auto_nack = executor.auto_nack

    # --- pending vbuckets -------------------------------------------------------------------------

    def wait(self, conversation: Conversation) -> None:
        """Call `look` of a conversation after each commit, until `wait_no_more`."""
        self._waiting.add(conversation)
        if self._forget_commits is None:
            loop = asyncio.get_running_loop()

            def committed(vclock: VClock) -> None:
                del vclock
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(self._look)

            self._forget_commits = self.shared.log.on_commit(committed)

    def wait_no_more(self, conversation: Conversation) -> None:
        """See `wait`."""
        self._waiting.discard(conversation)
        if not self._waiting and self._forget_commits is not None:
            self._forget_commits()
            self._forget_commits = None

    def _look(self) -> None:
        for conversation in tuple(self._waiting):
            conversation.look()


class Conversation:
    """One connection, as `logweir.replication.link` has conversations."""

    def __init__(self, service: TapService, link: Link) -> None:
        self.service = service
        self.link = link
        self._bucket = service.bucket
        self.space = service.space
        self.user_id = GUEST_ID
        self._judged: object = None  # what was allowed when it was asked what this client may do
        self._may_read = self._may_write = False
        if link.user:
            self._login(link.user)
        is_there = service.shared.log.schema.get(self.space or self.bucket.space_id) is not None
        is_closed = is_there and not self.may(Privilege.READ)
        must_login = (service.must_login or is_closed) and not link.user
        settings = service.settings
        if not must_login and not service.credentials.users():
            settings = replace(settings, credentials=None)
        self.session = ServerSession(settings, link.time(), must_login=must_login)
        self.session.read = self.read
        self.streaming: Streaming | None = None
        self._unfinished = 0
        self._unanswered = Unanswered(link, TAP_PIPELINE_BYTES)
        self.auto_nack = False
        self.waits = False  # nothing more is run until what waits goes on
        self._is_looking = False
        self._waiting: deque[Commands] = deque()
        self._connecting: Connected | None = None

    @property
    def bucket(self) -> Bucket:
        """The bucket of this client, which has not chosen another space."""
        assert self._bucket is not None
        return self._bucket

    def feed(self) -> Feed:
        """What its streams are fed with. Raises `RequestError`."""
        if self.space:
            return self.service.feeds.get(self.space)
        return BucketFeed(self.service.shared.log, self.bucket, self.service.changes)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Commands():
                    self._run(event)
                case Acknowledged():
                    if self.streaming is not None:
                        self.streaming.answered()
                case Authenticated():
                    self.link.know()
                    self.service.statistics.login(failed=False)
                    self._login(event.user)
                case LoginFailed():
                    self.service.statistics.login(failed=True)
                    if self.service.shared.logins.failed(self.link, event.user):
                        self.session.end("too many failed logins from there")
                case Connected():
                    self._connect(event)
                case Named(slot, request):
                    self.session.answer(slot, encode_answer(request, self._named(request)))

    def closed(self, reason: str) -> None:
        self._waiting.clear()
        self.session.read = lambda data: 0
        self.service.statistics.closed(self.link)
        self.service.wait_no_more(self)
        self._end_stream(reason)

    def _end_stream(self, reason: str) -> None:
        if self.streaming is not None:
            self.streaming.closed(reason)
            self.streaming = None
            self.service.streams.pop(self, None)

    @property
    def place(self) -> str:
        """Of what its streams are, in their names."""
        return SPACE_PREFIX + self.space if self.space else self.bucket.name

    def _named(self, request: Packet) -> Status:
        """Do what is asked of a stream or a bucket."""
        if request.opcode == Opcode.SELECT_BUCKET:
            return self._select(request.key.decode("utf-8", "replace"))
        if request.opcode == Opcode.CHANGE_VB_FILTER:
            return self._change_filter(request)
        if not self.may(Privilege.READ):
            return Status.AUTH_ERROR
        self.service.names.forget(self.place, request.key)
        return Status.SUCCESS

    def _change_filter(self, request: Packet) -> Status:
        try:
            vbuckets = [vbucket for vbucket, _ in decode_filter(request)]
        except RemoteProtocolError:
            return Status.INVALID
        if not self.may(Privilege.READ):
            return Status.AUTH_ERROR
        known = self.service.names.find(self.place, request.key)
        streaming = None
        if known is not None and isinstance(known.owner, Conversation):
            streaming = known.owner.streaming
        if streaming is None:
            return Status.NOT_FOUND
        if streaming.connect.options & (Option.TAKEOVER_VBUCKETS | Option.DUMP):
            return Status.NOT_SUPPORTED
        streaming.change_filter(vbuckets)
        return Status.SUCCESS

    def _login(self, name: str) -> None:
        self.user_id, self._judged = self.service.shared.user(name).id, None
        if not self.space:
            self._bucket = self.service.buckets.find(name) or self._bucket

    def _select(self, name: str) -> Status:
        self._judged = None
        if name.startswith(SPACE_PREFIX):
            space = self.service.shared.log.schema.get(name.removeprefix(SPACE_PREFIX))
            if space is None or space.primary is None:
                return Status.NOT_FOUND
            self.space = space.name
        elif (found := self.service.buckets.find(name)) is not None:
            self._bucket, self.space = found, ""
        else:
            return Status.NOT_FOUND
        return Status.SUCCESS

    def may(self, *wanted: Privilege) -> bool:
        """Whether this client has these privileges on its bucket."""
        shared, space = self.service.shared, self.space or self.bucket.space_id
        if self.user_id == GUEST_ID and self.service.must_login:
            return False
        return shared.may(self.user_id, space, *wanted, is_there=True)

    # --- commands ---------------------------------------------------------------------------------

    def _judge(self) -> None:
        """See what this client may do, if that may have changed."""
        if self._judged is not (judged := self.service.shared.let_in):
            self._may_write = self.may(Privilege.READ, Privilege.WRITE)
            self._may_read = self._may_write or self.may(Privilege.READ)
            self._judged = judged

    def read(self, data: bytes) -> int:
        """Answer the GETs with which `data` begins, unless there is something to be done before
        them. Returns where others begin."""
        if self._unfinished or self.space or data[1:2] not in _READS or not self.link.writable:
            return 0
        service = self.service
        if self._judged is not service.shared.let_in:
            self._judge()
        if not self._may_read:
            return 0
        stop, answers = service.reads.answer(self.bucket, data, self.link.scheme)
        if answers:
            self.session.say(answers)
        return stop

    def _run(self, run: Commands) -> None:
        service = self.service
        shared = service.shared
        if self._judged is not shared.let_in:
            self._judge()
        is_read_only = shared.options.read_only
        if self.space or (run.changes and is_read_only):
            self._refuse(run, Status.NOT_SUPPORTED)
            return
        if not (self._may_write if run.changes else self._may_read):
            self._refuse(run, Status.AUTH_ERROR)
            return
        if self._is_looking:
            service.reads.look_now()  # else what comes after could overtake it
        self._is_looking = not (run.changes or self._unfinished)
        self._unfinished += 1
        self._unanswered.add(run.size_bytes)
        run.asker, run.bucket = self, self._bucket
        run.may_change = self._may_write and not is_read_only
        if self._is_looking:
            service.reads.look(run)
        else:
            service.put_in_line(run)

    def _refuse(self, run: Commands, status: Status) -> None:
        self.session.answer(run.slot, b"".join(refusals(run.requests, status)))

    def executor(self, items: GroupItems, now: float, group: Group) -> Executor:
        """Of the requests that are no part of a run, in a group."""
        later = partial(self.service.flushes.keep, group, self.bucket)
        executor = Executor(items, now, stats=self.stats, flush_later=later)
        executor.auto_nack = self.auto_nack
        return executor

    def finish(self, run: Commands, error: BaseException | None) -> None:
        """What was asked for is durable, waits, or failed."""
        self._is_looking = False
        if error is None:
            if run.left:
                self._go_on(run)
                return
            run.advance()
        self._unfinished -= 1
        self._unanswered.add(-run.size_bytes)
        link, service, failed = self.link, self.service, 0
        if not link.is_open:
            return
        if error is not None:
            _log.warning("memcached.request_failed", peer=link.peer, error=str(error))
            refused = refusals(run.rest, Status.TEMPORARY_FAILURE)
            failed = len(refused)
            run.answers += b"".join(refused)
        service.shared.metrics.answered(link.scheme, run.count - failed, failed)
        run.tally(service.statistics.counts)
        self.session.answer(run.slot, run.answers)
        if self._waiting:
            self.look()
        if self._connecting is not None and self.session.is_first(self._connecting.slot):
            connecting, self._connecting = self._connecting, None
            link.resume_reading()
            self._connect(connecting)
        link.flush()

    def _go_on(self, run: Commands) -> None:
        """Send what is answered, and go on with the rest of this run, and with those after it,
        when that has gone out and no vbucket is pending for it."""
        run.advance()
        if not self.link.is_open:
            return
        if run.answers:
            self.service.statistics.tally_answers(run.answers)
            self.session.answer_part(run.slot, run.answers)
            run.answers = b""
            self.link.flush()
        self.waits = True
        self._waiting.append(run)
        self.service.wait(self)
        self.link.go_on_later(self.look)

    def look(self) -> None:
        """Go on with what waits, if it need not wait any more."""
        if len(self._waiting) < self._unfinished:
            return  # some are still in line: they wait, too
        if not self._waiting:
            return
        if not self.link.writable:
            self.link.go_on_later(self.look)
            return
        first = self._waiting[0]
        if first.is_held:
            request = packets_of(first.rest[:1])[0]
            with self.service.shared.log.read_view() as view:
                state = ViewItems(first.bucket, view).state(request.vbucket)
            if state == VbucketState.PENDING:
                return
        self.service.wait_no_more(self)
        waiting, self._waiting = self._waiting, deque()
        self.waits = False
        for run in waiting:
            self.service.put_in_line(run)

    def stats(self, group: bytes) -> Stats | None:
        """See `Viewer`."""
        if group == b"reset" and not self.may(Privilege.WRITE):
            raise Failed(Status.AUTH_ERROR)
        own = [one for one in self.service.status() if one["of"] == self.place]
        return self.service.statistics.tell(group, self.bucket, own, self.link)

    # --- streams ----------------------------------------------------------------------------------

    def _connect(self, event: Connected) -> None:
        """Begin a stream, once everything that was asked before it is answered."""
        if not self.session.is_first(event.slot):
            self._connecting = event
            self.link.hold_reading()  # its answers to what follows are kept until then
            return
        connect = event.connect
        status = self._may_stream(connect)
        if status is not None:
            self.session.refuse_connect(event.slot, connect, status)
            return
        self.streaming = Streaming(self, event.slot, connect)
        self.service.streams[self] = self.streaming
        self.streaming.task = self.link.spawn(self.streaming.run())

    def _may_stream(self, connect: Connect) -> Status | None:
        takes_over = bool(connect.options & Option.TAKEOVER_VBUCKETS and connect.vbuckets)
        if not self.may(Privilege.READ) or (takes_over and not self.may(Privilege.TAKEOVER)):
            return Status.AUTH_ERROR
        if self.space and connect.options & Option.TAKEOVER_VBUCKETS:
            return Status.NOT_SUPPORTED
        known = self.service.names.find(self.place, connect.name) if connect.name else None
        if known is not None and isinstance(known.owner, Conversation):
            if known.is_registered:
                return Status.NOT_SUPPORTED
            older, known.owner = known.owner, None
            older.replaced()
        return None

    def replaced(self) -> None:
        """Another connection uses our stream's name now."""
        self._end_stream("another connection took its name")
        self.link.close("another connection took the name of this stream")
