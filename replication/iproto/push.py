"""Serving replicas: JOIN, FETCH_SNAPSHOT, REGISTER, SUBSCRIBE.

JOIN: OK with the start vclock; every tuple of a consistent view as an INSERT without lsn; then the
replica gets its place (lowest free id) in `_cluster`; OK with the vclock after that; the rows of
the log between the two, which hold at least that place; OK. The logs from the start vclock on stay
while this goes on, and after the replica's position afterwards. A replica takes all rows of a join
for confirmed and refuses decisions, so those that were rolled back meanwhile are left out, CONFIRM
and ROLLBACK are NOPs, and it ends before what waits for its CONFIRM. While anything does, a new
replica is told to come again (116).

SUBSCRIBE: OK with our id, vclock and replica set; a heartbeat with our clock; then rows as they
stand in the log, but those of local spaces, of ids that the replica does not want, and of its own
id as far as we did not have them when it subscribed (it must have them). A heartbeat whenever
nothing was sent for the replication timeout; a replica that says nothing for four of them is told
"timed out" (115) and dropped; time in which it was not read, or we stood still, does not count. A
position that is no longer in the log is error 32 and the end.
Source: Tarantool 2.6.0, observed between two servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from array import array
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from logweir.errors import (
    ChainGap,
    ErrorCode,
    LogweirError,
    PositionUnavailable,
    RequestError,
    WalError,
)
from logweir.limits import HUB_STEP_BYTES, JOIN_ROOM_BYTES, VCLOCK_COMPONENTS
from logweir.replication.iproto.serve.instance import FollowerStatus, follower_name
from logweir.replication.iproto.wire.codec import (
    RequestType,
    encode_heartbeat,
    encode_vclock_answer,
)
from logweir.replication.iproto.wire.packets import Packets
from logweir.replication.iproto.wire.requests import Request
from logweir.replication.logs import get_logger
from logweir.replication.service.shared import as_request_error
from logweir.replication.stream.hub import Reader
from logweir.replication.turns import finish
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request as Change
from logweir.store.engine.synchro import DECISIONS, Decision
from logweir.store.schema.access import Privilege
from logweir.store.schema.definition import SpaceDef, SystemSpace
from logweir.store.schema.row import uuid_of
from logweir.store.schema.schema import Schema
from logweir.store.view import ReadView
from logweir.wal.columns import RowColumns
from logweir.wal.mp import encode_uint, pack, unpack
from logweir.wal.snapshot import insert_prefix
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType, encode_row

if TYPE_CHECKING:
    from logweir.replication.iproto.serve.endpoint import Conversation

_log = get_logger("logweir.replication.iproto")

_STEP_BYTES: Final = 256 * 1024
_SILENCE: Final = 4


async def serve(conversation: Conversation, request: Request) -> None:
    """Answer one request that opens a stream; then the connection goes on, or ends. What comes
    after it is not read until then."""
    link, session = conversation.link, conversation.session
    link.hold_reading()
    try:
        if request.type == RequestType.SUBSCRIBE:
            await _subscribe(conversation, request)
            return
        if request.type == RequestType.JOIN:
            await _join(conversation, request)
        elif request.type == RequestType.FETCH_SNAPSHOT:
            await _fetch(conversation, request)
        else:
            await _register(conversation, request)
    except LogweirError as error:
        refusal = _refusal(error)
        _log.warning(
            "iproto.replica_refused",
            peer=link.peer,
            request=RequestType(request.type).name,
            reason=refusal.message,
        )
        session.put_error(request.sync, refusal)
        if request.type == RequestType.SUBSCRIBE:
            session.end(f"the subscription ended: {refusal.message}")
            link.flush()
            return
    link.resume_reading()
    conversation.handle(session.end_stream(link.time()))
    link.flush()


def _refusal(error: LogweirError) -> RequestError:
    """What a replica is told. A gap in the log is error 32, which stops it until it rejoins."""
    if isinstance(error, PositionUnavailable | ChainGap):
        return RequestError(ErrorCode.PROC_LUA, f"Missing .xlog file: {error.message}")
    if isinstance(error, WalError):
        return RequestError(ErrorCode.SYSTEM, error.args[0])
    return as_request_error(error)


# --- checks ---------------------------------------------------------------------------------------


def _check(conversation: Conversation, request: Request) -> None:
    """What every stream needs: read of everything, a log, and another UUID than ours."""
    shared = conversation.shared
    shared.access(conversation.user_id).check_universe(Privilege.READ)
    if shared.log.durability == "none":
        raise RequestError(ErrorCode.UNSUPPORTED, "Replication does not support wal_mode = 'none'")
    if request.instance == shared.log.instance:
        raise RequestError(ErrorCode.CONNECTION_TO_SELF, "Remote and local addresses are the same")
    if request.instance is None and request.type != RequestType.FETCH_SNAPSHOT:
        text = "Invalid UUID: 00000000-0000-0000-0000-000000000000"
        raise RequestError(ErrorCode.INVALID_UUID, text)


def _known_id(conversation: Conversation, instance: uuid.UUID) -> int:
    """The id of a replica in `_cluster`; 0 if it has none."""
    with conversation.shared.log.read_view() as view:
        rows = view.tuples(view.engine.schema.space(SystemSpace.CLUSTER))
        return next((unpack(row)[0] for row in rows if uuid_of(row) == instance), 0)


def _check_may_register(conversation: Conversation, instance: uuid.UUID) -> None:
    """Who has no place in `_cluster` yet is given one."""
    shared = conversation.shared
    if _known_id(conversation, instance):
        return
    if shared.is_read_only:
        text = "Can't modify data because this instance is in read-only mode."
        raise RequestError(ErrorCode.READONLY, text)
    access = shared.access(conversation.user_id)
    access.check(Privilege.WRITE, "space", SystemSpace.CLUSTER, 1, "_cluster")
    if shared.log.waiting:
        raise _undecided()


def _check_history(conversation: Conversation, theirs: VClock, ours: VClock) -> None:
    """A replica that has more of our own rows than we have: we have lost them, with the power
    behind durability "write", or as an older copy of a folder, and what we write next would have
    their numbers. It has to copy anew; from who follows it we get them back, so it tries again.
    Once we have written as many no vclock tells it any more."""
    shared = conversation.shared
    own = shared.log.replica_id
    if not own or theirs.lsn(own) <= ours.lsn(own):
        return
    text = (
        f"this instance has lost rows of its own: replica {own} ends at lsn {ours.lsn(own)} here, "
        f"at {theirs.lsn(own)} there"
    )
    if shared.options.follows:
        text += (
            "; they may come back from its upstreams, else have it follow a member that has them, "
            "such as this replica, or copy the replica anew"
        )
        raise RequestError(ErrorCode.LOADING, text)
    raise RequestError(ErrorCode.PROC_LUA, f"Missing .xlog file: {text}")


def _undecided() -> RequestError:
    text = "Rows of synchronous spaces wait for their CONFIRM: join again when they have it"
    return RequestError(ErrorCode.LOADING, text)


async def _give_place(conversation: Conversation, instance: uuid.UUID) -> None:
    """Insert a replica into `_cluster` with the lowest free id, unless it is there."""

    def apply(group: Group) -> None:
        space = group.schema.space(SystemSpace.CLUSTER)
        assert space.primary is not None
        rows = list(group.engine.entries(space, space.primary, b"", None, reverse=False))
        if instance in map(uuid_of, rows):
            return
        free = sorted(set(range(1, VCLOCK_COMPONENTS)) - {unpack(row)[0] for row in rows})
        if not free:
            text = f"Replica count limit reached: {VCLOCK_COMPONENTS}"
            raise RequestError(ErrorCode.REPLICA_MAX, text)
        row = pack([free[0], str(instance)])
        group.execute(Change(RowType.INSERT, SystemSpace.CLUSTER, tuple=row))

    try:
        await conversation.shared.run(Job(apply, 100))
    except RequestError as error:
        if error.code == ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS:
            raise _undecided() from error
        raise


# --- first and last stage of a join ---------------------------------------------------------------


def _frames(view: ReadView, space: SpaceDef, sync: int) -> Iterator[bytes]:
    """All tuples of a space as INSERT frames, in portions."""
    header = b"\x82\x00\x02\x01" + encode_uint(sync) if sync else b"\x81\x00\x02"
    front = header + insert_prefix(space.id)
    heads: dict[int, bytes] = {}
    parts: list[bytes] = []
    size = 0
    for row in view.tuples(space):
        length = len(row)
        head = heads.get(length)
        if head is None:
            head = b"\xce" + (len(front) + length).to_bytes(4, "big") + front
            if len(heads) < 4096:
                heads[length] = head
        parts += (head, row)
        size += len(head) + length
        if size >= _STEP_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


@contextlib.asynccontextmanager
async def _view(conversation: Conversation) -> AsyncIterator[tuple[ReadView, asyncio.Event]]:
    """A view for as long as a replica takes to read it, and what is set when it must end.

    Room is made for what changes meanwhile (`limits.JOIN_ROOM_BYTES`). If that is not enough the
    changes go first: they would have to wait for the slowest reader.
    """
    shared, loop = conversation.shared, asyncio.get_running_loop()
    await asyncio.to_thread(shared.log.inner.reserve_state, JOIN_ROOM_BYTES)
    must_end = asyncio.Event()
    forget = shared.log.inner.on_grow(lambda: loop.call_soon_threadsafe(must_end.set))
    try:
        with shared.log.read_view() as view:
            yield view, must_end
    finally:
        forget()


async def _send_view(
    conversation: Conversation, view: ReadView, must_end: asyncio.Event, sync: int
) -> None:
    link = conversation.link
    for space in view.snapshot_spaces():
        if space.is_local:
            continue
        for portion in _frames(view, space, sync):
            link.write(portion)
            if link.writable:
                await link.drained()
            else:
                await _first(link.drained(), must_end.wait())
            if must_end.is_set():
                raise RequestError(
                    ErrorCode.LOADING, "The state had to grow while it was sent: join again"
                )
            if not link.is_open:
                return


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for one of several things."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _send_log(conversation: Conversation, after: VClock, upto: VClock, sync: int) -> None:
    """The rows of the log between two positions, but for those that were rolled back there."""
    start = after.with_lsn(0, conversation.shared.log.vclock.lsn(0))
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(2):
            reader = conversation.shared.hub.reader(start, step_bytes=_STEP_BYTES)
            await reader.skip_in_background()  # which closes it, if it does not come to its end
            stack.callback(reader.close)
            readers.append(reader)
        reader, ahead = readers
        work = _last_rows(conversation, reader, ahead, after, upto, sync)
        await finish(work, conversation.link)


def _last_rows(
    conversation: Conversation,
    reader: Reader,
    ahead: Reader,
    after: VClock,
    upto: VClock,
    sync: int,
) -> Generator[None, None, None]:
    """Send what `reader` reads, of the log up to `upto`; stops after each block. `ahead` is where
    `reader` is, and looks for what undoes rows: no further than rows wait for that, so that a
    replica gets something all the time, which may give up a master that says nothing."""
    undone = _Undone(conversation.shared.log.schema)
    limits = {i: upto.lsn(i) for i in range(VCLOCK_COMPONENTS)}
    while not reader.vclock.covers(upto) and (window := reader.take()) is not None:
        while not ahead.vclock.covers(upto) and (
            undone.waits or not ahead.vclock.covers(reader.vclock)
        ):
            if (further := ahead.take()) is None:
                break
            for block in further.blocks:
                undone.learn(block.columns)
                yield
        packets = bytearray()
        for block in window.blocks:
            columns = block.columns
            for first, last in undone.others(columns):
                part = columns
                if columns.type[first] in DECISIONS:
                    nop = replace(columns.row(first), type=RowType.NOP, body=b"")
                    part, first, last = RowColumns.scan(encode_row(nop)), 0, 1
                packets += part.packets(first, last, after=after, upto=limits, sync=sync)
            yield
        conversation.link.write(packets)


class _Undone:
    """The rows of a part of the log that no join has: those that ROLLBACK rows in it undo, which
    are all of that instance in front of it, from the lsn on that it names. The decisions themselves
    are NOPs there: a 2.6.0 replica refuses them, also later, when nothing waits."""

    def __init__(self, schema: Schema) -> None:
        self._synchronous = {space.id for space in schema if space.is_sync}
        self._undecided: list[tuple[int, int]] = []  # replica id, lsn of synchronous rows
        self._has_decisions = False
        self._ranges: list[tuple[int, int, int]] = []  # replica id, first and last lsn
        self._reached = array("Q", bytes(8 * VCLOCK_COMPONENTS))

    @property
    def waits(self) -> bool:
        """Whether it is not known of all rows so far whether they are undone."""
        return bool(self._undecided)

    def learn(self, columns: RowColumns) -> None:
        """Look at the next block."""
        decides = not DECISIONS.isdisjoint(columns.type)
        self._has_decisions = self._has_decisions or decides
        if decides or not self._synchronous.isdisjoint(columns.space_id):
            for row, kind in enumerate(columns.type):
                replica_id, lsn = columns.replica_id[row], columns.lsn[row]
                if kind in DECISIONS:
                    self._decide(Decision.of(columns, row))
                elif columns.space_id[row] in self._synchronous:
                    self._undecided.append((replica_id, lsn))
                self._reached[replica_id] = lsn
        else:
            columns.raise_lsns(self._reached)

    def _decide(self, said: Decision) -> None:
        rolls_back = said.type == RowType.ROLLBACK
        of_owner = [lsn for replica_id, lsn in self._undecided if replica_id == said.owner]
        found = [lsn for lsn in of_owner if (lsn >= said.lsn) == rolls_back or lsn == said.lsn]
        if rolls_back and found:
            self._ranges.append((said.owner, found[0], self._reached[said.owner]))
        gone = {(said.owner, lsn) for lsn in found}
        self._undecided = [each for each in self._undecided if each not in gone]

    def others(self, columns: RowColumns) -> Iterator[tuple[int, int]]:
        """The runs of rows of a block that are not undone, a decision by itself: the first row, and
        the one after the last."""
        first = 0
        for row, kind in enumerate(columns.type if self._has_decisions else ()):
            replica_id, lsn = columns.replica_id[row], columns.lsn[row]
            is_decision = kind in DECISIONS
            if is_decision or any(
                of == replica_id and low <= lsn <= high for of, low, high in self._ranges
            ):
                if first < row:
                    yield first, row
                if is_decision:
                    yield row, row + 1
                first = row + 1
        if first < len(columns):
            yield first, len(columns)


async def _join(conversation: Conversation, request: Request) -> None:
    _check(conversation, request)
    assert request.instance is not None
    _check_may_register(conversation, request.instance)
    shared, link, sync = conversation.shared, conversation.link, request.sync
    served = conversation.instance
    name = follower_name(request.instance)
    served.joining.add(name)
    try:
        await served.keep_here(request.instance)
        async with _view(conversation) as (view, must_end):
            start = view.vclock
            link.write(encode_vclock_answer(start, sync=sync))
            await _send_view(conversation, view, must_end, sync)
        if not link.is_open:
            return
        await _give_place(conversation, request.instance)
    finally:
        served.joining.discard(name)
        served.joins_ended += 1
    end = shared.log.applied
    link.write(encode_vclock_answer(end, sync=sync))
    await _send_log(conversation, start, end, sync)
    link.write(encode_vclock_answer(end, sync=sync))
    _log.info("iproto.joined", peer=link.peer, instance=str(request.instance), vclock=str(end))


async def _fetch(conversation: Conversation, request: Request) -> None:
    _check(conversation, request)
    link, sync = conversation.link, request.sync
    async with _view(conversation) as (view, must_end):
        answer = encode_vclock_answer(view.vclock, sync=sync)
        link.write(answer)
        await _send_view(conversation, view, must_end, sync)
        link.write(answer)


async def _register(conversation: Conversation, request: Request) -> None:
    _check(conversation, request)
    assert request.instance is not None
    _check_may_register(conversation, request.instance)
    shared, link = conversation.shared, conversation.link
    after = request.vclock or VClock()
    await _give_place(conversation, request.instance)
    end = shared.log.applied
    await _send_log(conversation, after, end, request.sync)
    link.write(encode_vclock_answer(end, sync=request.sync))


# --- following ------------------------------------------------------------------------------------


async def _subscribe(conversation: Conversation, request: Request) -> None:
    _check(conversation, request)
    shared, link, session = conversation.shared, conversation.link, conversation.session
    served, instance = conversation.instance, request.instance
    assert instance is not None
    after = request.vclock or VClock()
    ours = shared.log.vclock
    replicaset = shared.replicaset()
    # Who is of another set looks at our answer for that, as with a real one.
    if request.replicaset == replicaset or not (request.anonymous or request.replicaset):
        _check_history(conversation, after, ours)  # first: its place in `_cluster` may be lost, too
    replica_id = 0 if request.anonymous else _known_id(conversation, instance)
    if not replica_id and not request.anonymous:
        raise RequestError(
            ErrorCode.UNKNOWN_REPLICA,
            f"Replica {instance} is not registered with replica set {replicaset}",
        )
    if instance in served.followers:
        raise RequestError(
            ErrorCode.CFG,
            "Incorrect value for option 'replication': duplicate connection with the same "
            "replica UUID",
        )
    upto = {number: 0 for number in request.id_filter}
    if replica_id:
        upto.setdefault(replica_id, ours.lsn(replica_id))
    status = FollowerStatus(
        link.peer,
        instance,
        replica_id,
        follower_name(instance) if replica_id else "",
        sent=after,
        acknowledged=after,
    )
    status.evict = lambda reason: _tell_evicted(conversation, request.sync, reason)
    served.followers[instance] = status
    conversation.follower = status
    try:
        answer = encode_vclock_answer(
            ours, sync=request.sync, replica_id=shared.log.replica_id, replicaset=replicaset
        )
        link.write(answer)
        _beat(conversation, request.sync)
        served.keep(status)
        link.resume_reading()
        conversation.handle(session.begin_relay(link.time()))
        await _relay(conversation, status, upto, request.sync)
    finally:
        conversation.follower = None
        del served.followers[instance]
        shared.metrics.follower_gone("tarantool", str(instance))
        served.keep(status)


def _tell_evicted(conversation: Conversation, sync: int, reason: str) -> None:
    """The logs after a replica's position are given up: error 32, so that it copies anew."""
    text = f"Missing .xlog file: the logs after its position were removed, {reason}"
    conversation.session.put_error(sync, RequestError(ErrorCode.PROC_LUA, text))
    conversation.session.end(f"evicted: {reason}")
    conversation.link.flush()


def _beat(conversation: Conversation, sync: int) -> None:
    shared = conversation.shared
    beat = encode_heartbeat(shared.log.replica_id, shared.options.clock(), sync=sync)
    conversation.link.write(beat)


def next_packets(reader: Reader, upto: dict[int, int], sync: int) -> bytes | bytearray | None:
    """What comes next, maybe nothing that this replica wants; None at the end of the log."""
    if reader.is_ahead:
        made = Packets(upto, sync, HUB_STEP_BYTES + HUB_STEP_BYTES // 4)
        if reader.pack(made):
            return made.take()
    window = reader.take()
    return None if window is None else window.packets(upto, sync)


async def _relay(
    conversation: Conversation, status: FollowerStatus, upto: dict[int, int], sync: int
) -> None:
    shared, link = conversation.shared, conversation.link
    pause = shared.options.replication_timeout_seconds
    start = status.sent.with_lsn(0, shared.log.vclock.lsn(0))
    reader = shared.hub.reader(start, step_bytes=_STEP_BYTES)
    await _skip(conversation, reader, sync)
    sent_at = read_at = link.time()
    try:
        while link.is_open:
            now = link.time()
            if now - max(link.last_received, read_at) > _SILENCE * pause:
                conversation.session.put_error(sync, RequestError(ErrorCode.SYSTEM, "timed out"))
                conversation.session.end("the replica said nothing for too long")
                link.flush()
                return
            packets = next_packets(reader, upto, sync)
            if packets is not None:
                status.sent = reader.vclock
                if packets:
                    link.write(packets)
                    sent_at = now
                is_read = link.writable
                await link.drained()
                if not is_read:  # so nobody knows what it said until it took what was sent
                    read_at = link.time()
                continue
            if now - sent_at >= pause:
                _beat(conversation, sync)
                sent_at = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(sent_at + pause - now):
                    await reader.wait()
            if link.time() > sent_at + 2 * pause:  # all stood still here, and maybe there, too
                read_at = link.time()
    finally:
        reader.close()


async def _skip(conversation: Conversation, reader: Reader, sync: int) -> None:
    """Pass over what a replica has already. Of a large log that may take longer than the replica
    waits for a word, so it is sent heartbeats meanwhile: else it would begin anew for ever."""
    pause = conversation.shared.options.replication_timeout_seconds
    work = asyncio.ensure_future(reader.skip_in_background())
    try:
        while not (await asyncio.wait((work,), timeout=pause))[0]:
            _beat(conversation, sync)
    finally:
        work.cancel()  # nothing, once it is done
    await work
