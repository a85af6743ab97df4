"""Driving one TAP stream: what exists, then what changes, as its producer has room.

`plan` says where it starts. What exists comes between INITIAL_VBUCKET_STREAM and CLOSE_BACKFILL of
each vbucket, and is exactly the bucket at one position; every later change comes once. With
CHECKPOINT each step of the log is a
checkpoint of each vbucket that it touches, its id the signature at its end. TAKEOVER with a list:
when nothing is left to send, the vbuckets become dead here, what was committed until then is sent,
then VBUCKET_SET active, and the connection ends when that is acknowledged. TAKEOVER without a list
ends when nothing is left. A registered client of closed checkpoints gets OPEN_CHECKPOINT for each
vbucket whenever it has all there is; all our checkpoints are closed.

A flush after the id of one vbucket and not after that of another empties both at the consumer: of
those that had it, what exists comes once more.

CHANGE_VB_FILTER gives a stream other vbuckets: of those that it had not, what exists comes first,
framed as at the beginning; then COMPLETE_VB_FILTER_CHANGE. What may go no further (its TTL is used
up) does not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from logweir.limits import TAP_OUTPUT_HIGH_BYTES
from logweir.replication.bucket.feed import (
    Backfill,
    Change,
    Chunks,
    Feed,
    Puts,
    located,
    vbucket_table,
)
from logweir.replication.bucket.item import VBUCKETS, VbucketState, unpack_item
from logweir.replication.bucket.store import GroupItems
from logweir.replication.memcached.push.names import LABEL, NamedStream
from logweir.replication.memcached.push.plan import Plan, plan_new, plan_resumed
from logweir.replication.memcached.push.stream import Producer, mutation_of
from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option, TapMessage
from logweir.replication.memcached.wire.mutations import is_key, touched_vbuckets
from logweir.replication.stream.hub import Reader, Window
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.replication.memcached.serve.endpoint import Conversation

_STEP_PACKETS: Final = 256
_STEP_BYTES: Final = 256 * 1024
_HANDOVER_PACKETS: Final = 10

_FURTHER: Final = 1000
"""So often the end of a backfill may move on because a value was looked up later than it."""


class Streaming:
    """One stream on one connection."""

    def __init__(self, conversation: Conversation, slot: int, connect: Connect) -> None:
        service = conversation.service
        self.connect = connect
        self.feed: Feed = conversation.feed()
        self.wanted = frozenset(connect.vbuckets) or None
        self._table = vbucket_table(self.wanted)
        self.stream: NamedStream | None = None
        self.task: asyncio.Task[None] | None = None
        self._service = service
        self._log = service.shared.log
        self._link = conversation.link
        self._session = conversation.session
        self._room = asyncio.Event()
        self._is_dump = bool(connect.options & Option.DUMP)
        self._reader: Reader | None = None
        self._pin = ""
        self._unflushed_bytes = self._chunk_bytes = 0  # of items that were read for the consumer
        self._resumes = False
        self._filter: frozenset[int] | None = None
        self._told_open = False
        self._emptied: set[int] = set()  # vbuckets that a flush emptied which they had before
        self._conversation = conversation
        self._keeps = bool(connect.options & Option.SUPPORT_ACK)
        if connect.name and not self._is_dump:
            self._claim(conversation)
        self.producer: Producer[object] = conversation.session.stream(
            slot,
            connect,
            conversation.link.time(),
            options=service.options,
            opaque=self.stream.opaque if self.stream else 0,
            acknowledged=self.stream.position if self.stream else None,
        )

    def _claim(self, conversation: Conversation) -> None:
        connect = self.connect
        stream = self._service.names.claim(self.feed.name, connect.name)
        asked = connect.backfill if connect.options & Option.BACKFILL else None
        is_as_before = asked is None or stream.backfill in (None, asked)
        is_as_before = is_as_before and stream.covers(self.wanted)
        is_as_before = is_as_before and self._is_as_far(stream.position)
        self._resumes = stream.position is not None and self._keeps and is_as_before
        if not self._resumes:
            stream.position = None
        stream.vbuckets = self.wanted
        if asked is not None:
            stream.backfill = asked
        stream.is_registered = bool(connect.options & Option.REGISTERED_CLIENT)
        stream.owner = conversation
        self.stream = stream

    def _is_as_far(self, position: VClock | None) -> bool:
        """Whether a consumer of checkpoints has what its name has acknowledged. One that is older,
        or has none, lost what it had: it gets what comes after those that it has."""
        if position is None or not self.connect.options & Option.CHECKPOINT:
            return True
        ids = (number for _, number in self.connect.checkpoints)
        return max(ids, default=-1) >= position.signature

    # --- what the conversation tells --------------------------------------------------------------

    def answered(self) -> None:
        """The consumer answered, or a deadline passed."""
        self._hold(self._chunk_bytes)
        self._room.set()
        self._keep(at_once=False)

    def status(self) -> dict[str, Any]:
        """What an operator could wonder about."""
        position = self.producer.acknowledged
        return {
            "of": self.feed.name,
            "name": self.connect.name.decode("utf-8", "backslashreplace"),
            "peer": self._link.peer,
            "registered": bool(self.connect.options & Option.REGISTERED_CLIENT),
            "sent_packets": self.producer.sent_packets,
            "unacknowledged": self.producer.unacknowledged,
            "acknowledged": dict(position) if isinstance(position, VClock) else None,
        }

    def change_filter(self, vbuckets: Iterable[int]) -> None:
        """The stream is to be about these vbuckets from now on."""
        self._filter = frozenset(vbuckets)
        self._service.shared.settled.committed()  # it may be waiting for changes

    def closed(self, reason: str) -> None:
        """The connection is gone, or somebody else goes on with the stream."""
        del reason
        if self.task is not None:
            self.task.cancel()
            self.task = None  # which has what ends it, and that us
        self._keep(at_once=True)
        if self.stream is not None:
            self.stream.owner = None
            self.stream = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._unpin()

    def _keep(self, *, at_once: bool) -> None:
        if (stream := self.stream) is None:
            return
        position = self.producer.acknowledged
        stream.opaque = self.producer.opaque
        if self._keeps and isinstance(position, VClock):
            stream.position = position
            self._service.names.save(stream, at_once=at_once)
        else:
            stream.seen_at = self._service.now()

    # --- the stream -------------------------------------------------------------------------------

    async def run(self) -> None:
        """From the first packet to the last. A connection that ends cancels it."""
        self._link.limit_output(TAP_OUTPUT_HIGH_BYTES)
        self.producer.begin(self._link.time())
        plan = self._plan()
        if plan.start is None:
            while (vbuckets := await self._backfill_once()) is None:
                pass
        else:
            vbuckets = self._vbuckets()
            await self._read_from(plan.start)
            if plan.missing:
                await self._add(plan.missing, plan)
            else:
                self.producer.reach(plan.start)
            if self.connect.options & Option.TAKEOVER_VBUCKETS and not plan.missing:
                await self._takes()
                self.producer.open_backfill((), self._link.time())
        if self._is_dump:
            await self._end()
            return
        is_behind = plan.floors or plan.missing  # were told, or have higher ones
        if self.connect.options & Option.CHECKPOINT and not is_behind:
            assert self._reader is not None
            await self._checkpoints(vbuckets, self._reader.vclock, ())
        await self._follow(plan, vbuckets)

    def _plan(self) -> Plan:
        if self._is_dump:
            return Plan()
        resumed = self.stream.position if self._resumes and self.stream is not None else None
        if resumed is not None:
            return plan_resumed(self._log, resumed)
        return plan_new(self._log, self.connect, self._vbuckets(), self._service.now())

    def _vbuckets(self) -> list[int]:
        """Those of this stream that are here."""
        states = self.feed.states()
        wanted = set(states) if self.wanted is None else self.wanted
        if self._is_dump:
            left_out = {VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD}
        elif self.connect.options & Option.TAKEOVER_VBUCKETS and self.wanted is not None:
            left_out = set()  # one that is dead may be given away for the second time
        else:
            left_out = {VbucketState.DEAD}
        return sorted(
            vbucket
            for vbucket, state in states.items()
            if vbucket in wanted and state not in left_out and vbucket < VBUCKETS
        )

    # --- what exists ------------------------------------------------------------------------------

    async def _backfill_once(self) -> Sequence[int] | None:
        """Give what exists. Returns the vbuckets that it is of; None: it has to begin again, the
        bucket was emptied."""
        await self._takes()
        start = self._log.applied  # first: what comes into newer vbuckets is in the log after it
        vbuckets = self._vbuckets()
        self.producer.open_backfill(vbuckets, self._link.time())
        backfill = self.feed.backfill(vbuckets, self._service.now)
        await self._read_from(start)
        await self._put_chunks(backfill, vbuckets)
        assert self._reader is not None
        if await self._catch_up(backfill, frozenset(vbuckets), Plan(), is_first=True):
            return None
        await self._takes()
        self.producer.close_backfill(vbuckets, self._link.time(), self._reader.vclock)
        return vbuckets

    async def _put_chunks(self, backfill: Chunks, vbuckets: Iterable[int]) -> None:
        """Everything that is there; the log is kept from where it is to be followed."""
        wanted = vbucket_table(vbuckets)
        while backfill.end is None:
            if self._pin:  # else what is read first says whether the log is to be kept
                await self._takes()
            await self._put_chunk(backfill, wanted)
            self._hold(0)

    async def _put_chunk(self, backfill: Chunks, wanted: bytes) -> None:
        if isinstance(backfill, Backfill):
            tuples = backfill.take_tuples()
            self._hold(sum(map(len, tuples)))
            await self._keep_log(backfill)
            await self._put_tuples(tuples, wanted, self._service.now())
            return
        items = backfill.take()
        self._hold(sum(len(item.key) + len(item.value) for item in items))
        await self._keep_log(backfill)
        for item in items:
            await self._put(mutation_of(item), None)
        await asyncio.sleep(0)

    async def _keep_log(self, backfill: Chunks) -> None:
        """Keep the log from where it is to be followed, while there is more to be given."""
        if backfill.end is None and not self._pin:
            assert self._reader is not None
            self._pin = f"{LABEL}backfill:{id(self):x}"
            await self._service.shared.retention.keep_now(self._pin, self._reader.vclock)

    async def _catch_up(
        self, backfill: Chunks, new: Collection[int], plan: Plan, *, is_first: bool
    ) -> bool:
        """Follow the log to the end of a backfill. `new`: its vbuckets, of which nothing comes that
        was in it; `plan`: what is left out of the others; `is_first`: nothing was sent before it.
        Returns whether it was in vain: everything was removed meanwhile."""
        reader, end = self._reader, backfill.end
        assert reader is not None
        assert end is not None
        wanted = frozenset(new) if self._is_dump else self.wanted
        emptied, further = False, _FURTHER
        while not emptied and not reader.vclock.covers(end):
            fresh: list[Change] = []
            for change in self._located(await reader.next()):
                is_known = change.item is not None and not change.partial  # of which vbucket it is
                if not ((is_known or is_first) and backfill.was_seen(change)):
                    fresh.append(change)
                    emptied |= change.item is None
            changes, looked_at = self.feed.resolved(fresh)
            if looked_at is not None and further:
                # What was looked up is of then, so what was not has to come that far too.
                end, further = end.merge(looked_at), further - 1
            for change in changes:
                message = None if self._is_had(change, plan) else self._message(change, wanted)
                if message is not None:
                    await self._put(message, None)
        self._unpin()
        return emptied

    async def _read_from(self, position: VClock) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._service.shared.settled.reader(position)
        if not self._log.inner.knows_settled(position):
            await self._reader.skip_in_background()

    def _unpin(self) -> None:
        if self._pin:
            self._service.shared.retention.forget(self._pin)
            self._pin = ""

    # --- what changes -----------------------------------------------------------------------------

    async def _follow(self, plan: Plan, vbuckets: Sequence[int]) -> None:
        reader = self._reader
        assert reader is not None
        takes_over = bool(self.connect.options & Option.TAKEOVER_VBUCKETS)
        while True:
            if self._filter is not None:
                await self._take_filter(plan)
            window = reader.take()
            if window is None:
                if self.connect.closed_only and not self._told_open:
                    await self._tell_open()
                self._rest()
                if takes_over:
                    await self._hand_over(reader, plan, vbuckets)
                    return
                await reader.wait()
                continue
            floor = max(plan.floors.values(), default=0)
            is_mixed = plan.since or floor > window.start.signature
            puts = None if is_mixed else self.feed.puts(window)
            if puts is None:
                changes = self._located(window)
                await self._put_changes(changes, self.wanted, plan, window.end)
            elif puts.tuples:
                await self._put_puts(puts, window.end)
            if self._emptied:
                await self._add((), plan)
            if window.end.without_local() != window.start.without_local():
                self.producer.reach(reader.vclock)

    async def _tell_open(self) -> None:
        await self._takes()
        for vbucket in self._vbuckets():
            self._control(Opcode.TAP_OPAQUE, vbucket, Opaque.OPEN_CHECKPOINT)
        self._told_open = True

    async def _add(self, vbuckets: Iterable[int], plan: Plan) -> None:
        """Give what exists of more vbuckets, and of those that were emptied, and all that has
        changed of any until then."""
        reader = self._reader
        assert reader is not None
        new = set(vbuckets)
        again = bool(new or self._emptied)
        while again:
            new |= self._emptied
            self._emptied.clear()
            for vbucket in new:
                plan.floors.pop(vbucket, None)
            await self._takes()
            self.producer.open_backfill(sorted(new), self._link.time())
            backfill = self.feed.backfill(sorted(new), self._service.now)
            await self._put_chunks(backfill, new)
            again = await self._catch_up(backfill, new, plan, is_first=False)
        await self._takes()
        self.producer.close_backfill(sorted(new), self._link.time(), reader.vclock)
        if self.connect.options & Option.CHECKPOINT:
            await self._checkpoints(self._vbuckets(), reader.vclock, ())

    async def _take_filter(self, plan: Plan) -> None:
        """Go over to the vbuckets that are wanted now."""
        before, self.wanted, self._filter = self.wanted, self._filter, None
        assert self.wanted is not None
        self._table = vbucket_table(self.wanted)
        kept = self.wanted if before is None else self.wanted & before
        new = [vbucket for vbucket in self._vbuckets() if vbucket not in kept]
        if self.stream is not None:
            self.stream.vbuckets = kept  # a consumer that comes back earlier gets all
        await self._add(new, plan)
        await self._takes()
        self._control(Opcode.TAP_OPAQUE, 0, Opaque.COMPLETE_VB_FILTER_CHANGE)
        if self.stream is not None:
            self.stream.vbuckets = self.wanted

    async def _put_changes(
        self,
        changes: Sequence[Change],
        wanted: frozenset[int] | None,
        plan: Plan,
        end: VClock,
    ) -> None:
        chosen: list[tuple[TapMessage, VClock | None]] = []
        for change in self.feed.resolved(changes)[0]:
            message = None if self._is_had(change, plan) else self._message(change, wanted)
            if message is not None:
                chosen.append((message, change.position))
        self._told_open &= not chosen
        if self.connect.options & Option.CHECKPOINT and chosen:
            touched = sorted({message.vbucket for message, _ in chosen})
            await self._checkpoints(touched, end, chosen)
            return
        for message, position in chosen:
            await self._put(message, position)

    async def _put_puts(self, puts: Puts, end: VClock) -> None:
        """As `_put_changes`, if there are only puts of items."""
        touched: list[int] = []
        with_checkpoints = bool(self.connect.options & Option.CHECKPOINT)
        if with_checkpoints or self.connect.closed_only:
            touched = touched_vbuckets(puts.tuples, self._table)
            self._told_open &= not touched
        if with_checkpoints:
            await self._frame(Opcode.TAP_CHECKPOINT_START, touched, end)
        await self._put_tuples(puts.tuples, self._table, 0.0, puts.places)
        if with_checkpoints:
            await self._frame(Opcode.TAP_CHECKPOINT_END, touched, end)

    def _is_had(self, change: Change, plan: Plan) -> bool:
        """Whether the consumer needs no more be told of a change."""
        if change.item is None:
            late = (vb for vb, number in plan.floors.items() if number >= change.signature)
            self._emptied.update(late)
            return change.timestamp < plan.since
        had = plan.floors.get(change.item.vbucket, 0)
        return change.signature <= had or change.timestamp < plan.since

    async def _checkpoints(
        self,
        vbuckets: Iterable[int],
        end: VClock,
        chosen: Sequence[tuple[TapMessage, VClock | None]],
    ) -> None:
        """Changes as a checkpoint of each vbucket, its id the signature of `end`."""
        touched = list(vbuckets)
        await self._frame(Opcode.TAP_CHECKPOINT_START, touched, end)
        for message, position in chosen:
            await self._put(message, position)
        await self._frame(Opcode.TAP_CHECKPOINT_END, touched, end)

    async def _frame(self, opcode: Opcode, vbuckets: Sequence[int], end: VClock) -> None:
        """Where checkpoints begin, or end."""
        await self._takes()
        for vbucket in vbuckets:
            self.producer.checkpoint(opcode, vbucket, end.signature, self._link.time())

    async def _hand_over(self, reader: Reader, plan: Plan, vbuckets: Sequence[int]) -> None:
        """Give the vbuckets away: ours become dead, then the consumer's active."""
        if not self.connect.vbuckets:
            await self._end()
            return
        while self.producer.unacknowledged > _HANDOVER_PACKETS:
            await self._wait()
        bucket, service = self._conversation.bucket, self._service

        def apply(group: Group) -> None:
            items = GroupItems(bucket, group, service.now())
            for vbucket in vbuckets:
                items.set_state(vbucket, VbucketState.DEAD)

        await service.shared.run(Job(apply))
        end = self._log.applied
        while not reader.vclock.covers(end):
            window = await reader.next()
            changes = self._located(window)
            await self._put_changes(changes, frozenset(vbuckets), plan, window.end)
        await self._takes()
        for vbucket in self.connect.vbuckets:
            self._control(Opcode.TAP_VBUCKET_SET, vbucket, VbucketState.ACTIVE)
        await self._end()

    def _located(self, window: Window) -> Sequence[Change]:
        """The changes in a window, each of known vbuckets."""
        changes = self.feed.changes(window)
        return located(changes, self.feed.states) if self.feed.holds_items else changes

    def _message(self, change: Change, wanted: frozenset[int] | None) -> TapMessage | None:
        """A change as a message; None if it does not concern this stream."""
        item = change.item
        if item is None:
            return TapMessage(Opcode.TAP_FLUSH)
        if not item.ttl:
            return None
        if item.vbucket >= VBUCKETS or (wanted is not None and item.vbucket not in wanted):
            return None
        if change.is_removal and not is_key(item.key):
            return None  # nobody was told of it
        if change.is_removal:
            return TapMessage(
                Opcode.TAP_DELETE,
                item.key,
                vbucket=item.vbucket,
                cas=item.cas if self._service.options.with_private else 0,
                ttl=item.ttl,
            )
        return mutation_of(item)

    # --- sending ----------------------------------------------------------------------------------

    def _control(self, opcode: Opcode, vbucket: int, number: int) -> None:
        self.producer.control(opcode, vbucket, number, self._link.time())

    async def _put(self, message: TapMessage, position: VClock | None) -> None:
        if not self.producer.has_room or not self._link.writable:
            await self._takes()
        self.producer.put(message, self._link.time(), position)
        self._unflushed_bytes += len(message.value)
        full = self._unflushed_bytes >= _STEP_BYTES
        if full or not self.producer.sent_packets % _STEP_PACKETS:
            self._unflushed_bytes = 0
            self._link.flush()
            await asyncio.sleep(0)

    async def _put_tuples(
        self,
        tuples: list[bytes],
        wanted: bytes,
        now: float,
        places: Callable[[Sequence[int]], Callable[[int], VClock]] | None = None,
    ) -> None:
        """Items as tuples. `wanted`: one byte for each vbucket, 0: it is left out; `now`: what is
        expired at that Unix time is left out, too; `places`: see `Puts.places`."""
        row = 0
        while row < len(tuples):
            await self._takes()
            begun = row
            row = self.producer.put_tuples(tuples, row, wanted, now, self._link.time(), places)
            self._link.flush()
            if row == begun and places is not None:
                await self._put_present(tuples[row], places((row,))(0))
                row += 1
        await asyncio.sleep(0)

    async def _put_present(self, data: bytes, position: VClock) -> None:
        """Give what stands now in place of a tuple that no packet can tell. Raises `DecodeError`
        if that is one, too."""
        change = Change(unpack_item(data), False, position, 0, 0.0, partial=True)
        for one in self.feed.resolved((change,))[0]:
            if (message := self._message(one, self.wanted)) is not None:
                await self._put(message, position)

    async def _takes(self) -> None:
        """Wait until the consumer takes more."""
        while not self.producer.has_room or not self._link.writable:
            await self._wait()

    async def _wait(self) -> None:
        self._room.clear()
        self._rest()
        if not self._link.is_open:
            await self._link.gone  # which cancels us
        elif not self._link.writable:
            await self._link.drained()
        elif not self.producer.has_room or self.producer.unacknowledged:
            await self._room.wait()

    def _hold(self, chunk_bytes: int) -> None:
        """So much was read for the consumer."""
        self._chunk_bytes = chunk_bytes
        self._link.hold_beside(chunk_bytes + self.producer.unacknowledged_bytes)

    def _rest(self) -> None:
        """Nothing more can be said for now."""
        self._hold(self._chunk_bytes)
        self.producer.ask(self._link.time())
        self._link.flush()
        self._keep(at_once=False)

    async def _end(self) -> None:
        """Send the last packet."""
        await self._takes()
        self.producer.end(self._link.time())
        self._session.settle()
        self._link.flush()
