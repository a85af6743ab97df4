"""The producer's side of a TAP stream: changes in, packets out, acknowledgements in. No I/O.

The owner calls, in this order: `begin`; for what exists `open_backfill`, `put` for each item,
`close_backfill`; then `put` for each live change; `end` when the stream is over. It may do so only
while `has_room`; what it gives then is packets at once.

With option SUPPORT_ACK: packets carry the ACK flag if they are OPAQUE, VBUCKET_SET or a checkpoint,
each `limits.TAP_ACK_INTERVAL_PACKETS`-th, and the last before the owner waits (`ask`). After a
flagged control packet nothing is sent until it is acknowledged, and nothing while
`limits.TAP_WINDOW_PACKETS` or `limits.TAP_WINDOW_BYTES` are not. An acknowledgement covers its
packet and all before; one for an opaque that is not known is counted and passed over. Busy (85, 86)
covers those before, and sends the packet and those after it again under new opaques after
`limits.TAP_BACKOFF_SECONDS`. Any other status ends the stream, and so does a full window without
an acknowledgement for `limits.TAP_GRACE_SECONDS`.

`acknowledged` is the position of the last change that is: what a stream of that name goes on from.
Without SUPPORT_ACK a change counts as soon as it is sent. Opaques count from 1 through 2^32 - 1 and
again, without 0. An idle stream sends NOOP, which need not be answered; a consumer that has
answered one and then says nothing for `limits.TAP_NOOPS_UNANSWERED` of them is gone. In the 2.x
form a mutation has as private bytes its revision (the item's own if it came with one, else its CAS)
and an age of 2, a deletion its CAS. Source: ep-engine 1.8.1, observed; private bytes: couchbase's
headers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar

from logweir.limits import (
    TAP_ACK_INTERVAL_PACKETS,
    TAP_BACKOFF_SECONDS,
    TAP_GRACE_SECONDS,
    TAP_NOOP_SECONDS,
    TAP_NOOPS_UNANSWERED,
    TAP_WINDOW_BYTES,
    TAP_WINDOW_PACKETS,
)
from logweir.replication.bucket.item import VBUCKETS, Item, VbucketState, unpack_item
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
    TapMessage,
    decode_tap,
    encode_tap,
)
from logweir.replication.memcached.wire.mutations import (
    LATEST,
    MutationRun,
    check_item,
    encode_mutations,
)
from logweir.replication.session import Outbox

Position = TypeVar("Position")
_MUTATION_PRIVATE_BYTES: Final = 9
_AGE: Final = b"\x02"
_OPAQUE_END: Final = 1 << 32
_CONTROL: Final = frozenset(
    (
        Opcode.TAP_OPAQUE,
        Opcode.TAP_VBUCKET_SET,
        Opcode.TAP_CHECKPOINT_START,
        Opcode.TAP_CHECKPOINT_END,
    )
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Settings of streams; see `logweir.limits`. `with_private`: send private bytes (2.x form)."""

    ack_interval_packets: int = TAP_ACK_INTERVAL_PACKETS
    window_packets: int = TAP_WINDOW_PACKETS
    window_bytes: int = TAP_WINDOW_BYTES
    grace_seconds: float = TAP_GRACE_SECONDS
    backoff_seconds: float = TAP_BACKOFF_SECONDS
    noop_seconds: float = TAP_NOOP_SECONDS
    with_private: bool = False


@dataclass(slots=True)
class _Sent(Generic[Position]):
    message: TapMessage
    size_bytes: int
    position: Position | None

    @property
    def opaque(self) -> int:
        return self.message.opaque

    def reached(self) -> Position | None:
        return self.position


@dataclass(slots=True)
class _Run(Generic[Position]):
    """Mutations that were sent one after the other. `ends`: as in `MutationRun`; `done`: how many
    of them are acknowledged; `first`: the opaque of the first of all; `position`: after the last;
    `behind`: returns that of any, counted from 0."""

    data: bytes
    ends: array[int]
    first: int
    behind: Callable[[int], Position] | None
    position: Position | None = None
    done: int = 0

    @property
    def opaque(self) -> int:
        """Of the first that is not acknowledged."""
        return (self.first + self.done - 1) % (_OPAQUE_END - 1) + 1

    @property
    def left(self) -> int:
        return len(self.ends) // 2 - self.done

    def bytes_of(self, count: int) -> int:
        """Of the next packets."""
        start = self.ends[2 * self.done - 2] if self.done else 0
        return self.ends[2 * (self.done + count) - 2] - start

    def reached(self) -> Position | None:
        """Behind the last that is acknowledged."""
        if not self.left and self.position is not None:
            return self.position
        return None if self.behind is None else self.behind(self.done - 1)

    def singles(self) -> Iterator[_Sent[Position]]:
        """What is not acknowledged, as packets of their own."""
        found, problem = PacketBuffer().feed(self.data[len(self.data) - self.bytes_of(self.left) :])
        assert problem is None
        for number, packet in enumerate(found, self.done):
            position = None if self.behind is None else self.behind(number)
            if number == len(self.ends) // 2 - 1 and self.position is not None:
                position = self.position
            yield _Sent(decode_tap(packet), 0, position)


class Producer(Generic[Position]):
    """One stream. `out`: where packets go; `now`: seconds; `opaque`: the last one of the name."""

    def __init__(
        self,
        connect: Connect,
        out: Outbox,
        now: float,
        *,
        options: StreamOptions,
        opaque: int = 0,
        acknowledged: Position | None = None,
    ) -> None:
        self.connect = connect
        self.close_reason = ""
        self.opaque = opaque
        self.acknowledged = acknowledged
        self.sent_packets = 0
        self.unknown_acks = 0
        self.refused: dict[int, int] = {}
        self._out = out
        self._options = options
        self._acks = bool(connect.options & Option.SUPPORT_ACK)
        self._fix_flags = bool(connect.options & Option.FIX_FLAG_BYTEORDER)
        self._keys_only = bool(connect.options & Option.REQUEST_KEYS_ONLY)
        self._unacked: deque[_Sent[Position] | _Run[Position]] = deque()
        self._unacked_packets = 0
        self._unacked_bytes = 0
        self._since_ask = 0
        self._held: _Sent[Position] | None = None
        self._gates: set[int] = set()
        self._again: deque[_Sent[Position]] = deque()
        self._again_bytes = 0
        self._resume_at: float | None = None
        self._last_ack = now
        self._last_sent = now
        self._ended = False
        self._answers_noop = False
        self._noops_unanswered = 0

    # --- what the owner asks ----------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether `put` and its like may be called."""
        return not (
            self.close_reason
            or self._ended
            or self._again
            or self._resume_at is not None
            or self._gates
            or self._unacked_packets >= self._options.window_packets
            or self._unacked_bytes >= self._options.window_bytes
        )

    @property
    def unacknowledged(self) -> int:
        """Packets that are sent and not acknowledged."""
        return self._unacked_packets + len(self._again) + (self._held is not None)

    @property
    def unacknowledged_bytes(self) -> int:
        """Their bytes, of those that a busy consumer is sent again, too."""
        return self._unacked_bytes + self._again_bytes

    # --- what the owner gives ---------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The first packets of a stream."""
        if self._acks:
            self.control(Opcode.TAP_OPAQUE, 0, Opaque.ENABLE_AUTO_NACK, now)
        if self.connect.options & Option.CHECKPOINT:
            self.control(Opcode.TAP_OPAQUE, 0, Opaque.ENABLE_CHECKPOINT_SYNC, now)

    def open_backfill(self, vbuckets: Iterable[int], now: float) -> None:
        """What exists follows, of these vbuckets."""
        if self.connect.options & Option.TAKEOVER_VBUCKETS and self.connect.vbuckets:
            for vbucket in self.connect.vbuckets:
                self.control(Opcode.TAP_VBUCKET_SET, vbucket, VbucketState.PENDING, now)
        for vbucket in vbuckets:
            self.control(Opcode.TAP_OPAQUE, vbucket, Opaque.INITIAL_VBUCKET_STREAM, now)

    def close_backfill(
        self, vbuckets: Iterable[int], now: float, position: Position | None = None
    ) -> None:
        """What exists was sent; it holds everything up to `position`."""
        wanted = list(vbuckets)
        for i, vbucket in enumerate(wanted):
            last = position if i == len(wanted) - 1 else None
            self.control(Opcode.TAP_OPAQUE, vbucket, Opaque.CLOSE_BACKFILL, now, last)
        if not wanted:
            self.reach(position)

    def put(self, message: TapMessage, now: float, position: Position | None = None) -> None:
        """One item or change. `position`: where the log stands after it, if that is a place to go
        on from; TTL, ACK flag and opaque of `message` are set here, but a TTL below 255."""
        if self._keys_only and message.opcode == Opcode.TAP_MUTATION:
            message = replace(message, value=b"", has_value=False)
        private = _private(message) if self._options.with_private else b""
        if private != message.private:
            message = replace(message, private=private)
        self._send(_Sent(message, 0, position), now)

    def put_tuples(
        self,
        tuples: list[bytes],
        first: int,
        wanted: bytes,
        unix_now: float,
        now: float,
        places: Callable[[Sequence[int]], Callable[[int], Position]] | None = None,
    ) -> int:
        """Items from number `first` on, as many as make one piece and as there is room for; the
        same packets as by `put`. Returns the number of the next. `wanted`, `unix_now`: see
        `mutations.encode_mutations`; `places`: returns the positions after items, by number. Of one
        that no packet can tell: with `places` `first` is returned, else raises `DecodeError`."""
        form = self._keys_only | self._fix_flags << 1 | self._options.with_private << 2
        begin = partial(encode_mutations, tuples, first, wanted=wanted, now=unix_now, form=form)
        run = self._begin_run(begin) if self._acks else begin(opaque=self.opaque)
        if run.count and self._acks:
            rows = run.ends[1::2]
            behind = None if places is None else places(rows)
            self._put_run(run, now, behind)
            position = None if behind is None else behind(run.count - 1)
            self.put(mutation_of(unpack_item(tuples[rows[-1]])), now, position)
        elif run.count:
            self._emitted(run.data, run.count, run.opaque, now)
        if run.next > first:
            return run.next
        item = unpack_item(tuples[first])
        is_wanted = item.vbucket < VBUCKETS and wanted[item.vbucket]
        if is_wanted and item.ttl and not item.is_expired(unix_now):
            if not item.fits and places is not None:
                return first
            self.put(mutation_of(item), now, None if places is None else places((first,))(0))
        return first + 1

    def checkpoint(self, opcode: Opcode, vbucket: int, number: int, now: float) -> None:
        """TAP_CHECKPOINT_START or _END of one vbucket."""
        key = private = b""
        if self._options.with_private:
            is_start = opcode == Opcode.TAP_CHECKPOINT_START
            key = b"checkpoint_start" if is_start else b"checkpoint_end"
            private = bytes(8) if is_start else b""
        message = TapMessage(opcode, key, vbucket=vbucket, number=number, private=private)
        self._send(_Sent(message, 0, None), now)

    def control(
        self,
        opcode: Opcode,
        vbucket: int,
        number: int,
        now: float,
        position: Position | None = None,
    ) -> None:
        """TAP_OPAQUE or TAP_VBUCKET_SET of one vbucket. `position`: as of `put`."""
        self._send(_Sent(TapMessage(opcode, vbucket=vbucket, number=number), 0, position), now)

    def reach(self, position: Position | None) -> None:
        """Everything up to `position` is sent, and concerns this stream no further."""
        if position is None:
            return
        if self._held is not None:
            self._held.position = position
        elif self._unacked:
            self._unacked[-1].position = position
        elif self._again:
            self._again[-1].position = position
        else:
            self.acknowledged = position

    def ask(self, now: float) -> None:
        """Nothing more follows for now: send what was held back, to be acknowledged."""
        self._release(now, wants_ack=True)

    def end(self, now: float) -> None:
        """The stream is over; it closes once everything is acknowledged."""
        if not self._ended and not self.close_reason:
            self.ask(now)
            message = TapMessage(Opcode.TAP_OPAQUE, number=Opaque.CLOSE_TAP_STREAM)
            self._emit(message, now, wants_ack=False)
            self._ended = True
            self._look_ended()

    # --- what the peer says -----------------------------------------------------------------------

    def take_answer(self, packet: Packet, now: float) -> None:
        """A response of the consumer."""
        self._noops_unanswered = 0
        if packet.opcode == Opcode.NOOP:
            self._answers_noop = True
            return
        place = self._place(packet.opaque)
        if place is None:
            self.unknown_acks += 1
            return
        self._last_ack = now
        status = packet.status
        busy = status in (Status.BUSY, Status.TEMPORARY_FAILURE)
        if status != Status.SUCCESS and not busy:
            self.refused[status] = self.refused.get(status, 0) + 1
            self.close_reason = f"the consumer refused a packet with status {status:#06x}"
            return
        self._forget(place if busy else place + 1)
        if busy:
            for sent in self._unacked:
                self._again.extend(sent.singles() if isinstance(sent, _Run) else (sent,))
            if self._held is not None:
                self._again.append(self._held)
                self._held = None
            self._unacked.clear()
            self._again_bytes = self._unacked_bytes
            self._unacked_bytes = self._unacked_packets = 0
            self._gates.clear()
            self._resume_at = now + self._options.backoff_seconds
        self._look_ended()

    def next_deadline(self) -> float:
        """When `deadline_passed` is to be called."""
        if self._resume_at is not None:
            return self._resume_at
        deadline = self._last_sent + self._options.noop_seconds
        if self._is_stuck:
            deadline = min(deadline, self._last_ack + self._options.grace_seconds)
        return deadline

    def deadline_passed(self, now: float) -> None:
        """The time has come, or not yet."""
        if self._resume_at is not None:
            if now >= self._resume_at:
                self._resume_at = None
                again, self._again, self._again_bytes = self._again, deque(), 0
                for sent in again:
                    self._send(sent, now)
                self.ask(now)
                self._last_ack = now
            return
        if self._is_stuck and now >= self._last_ack + self._options.grace_seconds:
            self.close_reason = (
                f"the consumer acknowledged nothing for {self._options.grace_seconds:g} seconds"
            )
        elif now >= self._last_sent + self._options.noop_seconds:
            if self._answers_noop and self._noops_unanswered >= TAP_NOOPS_UNANSWERED:
                self.close_reason = (
                    f"the consumer, which answers NOOP, answered {self._noops_unanswered} no more"
                )
                return
            self._noops_unanswered += 1
            self._last_sent = now
            self._out.put(encode_request(Packet(Opcode.NOOP)))

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _is_stuck(self) -> bool:
        return bool(self._unacked) and not self.has_room

    def _send(self, sent: _Sent[Position], now: float) -> None:
        """Send a packet; if acknowledgements are given, one that could be the last before a
        pause is held back until the next one or `ask` tells."""
        self._release(now, wants_ack=False)
        self._held = sent
        is_control = sent.message.opcode in _CONTROL
        due = self._since_ask + 1 >= self._options.ack_interval_packets
        if not self._acks or is_control or due:
            self._release(now, wants_ack=self._acks)

    def _release(self, now: float, *, wants_ack: bool) -> None:
        sent, self._held = self._held, None
        if sent is None:
            return
        sent.message, sent.size_bytes = self._emit(sent.message, now, wants_ack=wants_ack)
        if not self._acks:
            if sent.position is not None:
                self.acknowledged = sent.position
            return
        self._since_ask = 0 if wants_ack else self._since_ask + 1
        if sent.message.opcode in _CONTROL:
            self._gates.add(sent.message.opaque)
        if not self._unacked:
            self._last_ack = now
        self._unacked.append(sent)
        self._unacked_packets += 1
        self._unacked_bytes += sent.size_bytes

    def _begin_run(self, begin: Callable[..., MutationRun]) -> MutationRun:
        """As many mutations as may be sent before the next one that wants an acknowledgement, or
        that has no room, that one included. `begin`: makes them."""
        options, ahead, ahead_bytes = self._options, 0, 0
        if self._held is not None:
            ahead, ahead_bytes = 1, len(encode_tap(self._held.message, fix_flags=self._fix_flags))
        due = options.ack_interval_packets - self._since_ask - ahead
        room = options.window_packets - self._unacked_packets - ahead + 1
        room_bytes = options.window_bytes - self._unacked_bytes - ahead_bytes
        opaque = self._opaque_after(ahead)
        return begin(opaque=opaque, most=max(1, min(due, room)), room_bytes=max(0, room_bytes))

    def _put_run(
        self, run: MutationRun, now: float, behind: Callable[[int], Position] | None
    ) -> None:
        """Send all of a run but its last packet, which may be the last before a pause."""
        self._release(now, wants_ack=False)
        count = run.count - 1
        if not count:
            return
        size = run.ends[2 * count - 2]
        first = self._opaque_after(1)
        sent = _Run(run.data[:size], run.ends[: 2 * count], first, behind)
        self._emitted(sent.data, count, self._opaque_after(count), now)
        self._since_ask += count
        if not self._unacked:
            self._last_ack = now
        self._unacked.append(sent)
        self._unacked_packets += count
        self._unacked_bytes += size

    def _opaque_after(self, count: int) -> int:
        """The opaque of so many packets later; 0 only before the first of all."""
        return (self.opaque + count - 1) % (_OPAQUE_END - 1) + 1 if count else self.opaque

    def _emit(self, message: TapMessage, now: float, *, wants_ack: bool) -> tuple[TapMessage, int]:
        message = replace(message, opaque=self._opaque_after(1), wants_ack=wants_ack)
        data = encode_tap(message, fix_flags=self._fix_flags)
        self._emitted(data, 1, message.opaque, now)
        return message, len(data)

    def _emitted(self, data: bytes, count: int, opaque: int, now: float) -> None:
        self._out.put(data)
        self.opaque = opaque
        self.sent_packets += count
        self._last_sent = now

    def _place(self, opaque: int) -> int | None:
        """Where in the window a packet stands. Opaques there are consecutive."""
        if not self._unacked:
            return None
        place = (opaque - self._unacked[0].opaque) % (_OPAQUE_END - 1)
        return place if 0 < opaque < _OPAQUE_END and place < self._unacked_packets else None

    def _forget(self, count: int) -> None:
        """The oldest `count` packets are acknowledged."""
        passed: list[_Sent[Position] | _Run[Position]] = []
        self._unacked_packets -= count
        while count:
            sent = self._unacked[0]
            passed.append(sent)
            if isinstance(sent, _Run):
                taken = min(count, sent.left)
                self._unacked_bytes -= sent.bytes_of(taken)
                sent.done += taken
                count -= taken
                if sent.left:
                    break
            else:
                self._unacked_bytes -= sent.size_bytes
                self._gates.discard(sent.opaque)
                count -= 1
            self._unacked.popleft()
        for sent in reversed(passed):
            if (reached := sent.reached()) is not None:
                self.acknowledged = reached
                return

    def _look_ended(self) -> None:
        if self._ended and not self._unacked and not self._again:
            self.close_reason = self.close_reason or "the stream has ended"


def _private(message: TapMessage) -> bytes:
    """The private bytes of the 2.x form."""
    if message.opcode == Opcode.TAP_MUTATION and len(message.private) == _MUTATION_PRIVATE_BYTES:
        return message.private
    if message.opcode not in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE):
        return b""
    return message.cas.to_bytes(8, "big") + (_AGE if message.opcode == Opcode.TAP_MUTATION else b"")


def mutation_of(item: Item) -> TapMessage:
    """An item as a message. Raises `DecodeError` for one that no packet can tell."""
    check_item(item)
    return TapMessage(
        Opcode.TAP_MUTATION,
        item.key,
        item.value,
        item.vbucket,
        item.cas,
        item.flags,
        min(item.expiry, LATEST),
        item.datatype,
        item.meta,
        ttl=item.ttl,
    )
