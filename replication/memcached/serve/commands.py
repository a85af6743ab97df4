"""What memcached's binary commands do: request and items in, answer and changes out. No I/O.

=========  ==========  ==================  =========================================================
opcode     extras      value               answer; a quiet form (Q) leaves out what is marked
=========  ==========  ==================  =========================================================
GET(K)     –           –                   flags u32, value, CAS; K: with the key. Q: a miss is
                                           silent. A miss of GETK has the key for its text
SET ADD    flags u32,  yes                 CAS. Q: silent
REPLACE    expiry u32
DELETE     –           –                   Q: silent
INCREMENT  delta u64,  –                   result u64, CAS. Q: silent
DECREMENT  first u64,
           expiry u32
APPEND     –           yes                 CAS. Q: silent
PREPEND
TOUCH      expiry u32  –                   flags u32
GAT(K)     expiry u32  –                   as GET
FLUSH      – or u32    –                   Q: silent
STAT       –           –                   one packet for each, the last without key and value
VBUCKET    state u32   –                   SET: empty; GET: state u32; DEL: empty
GETM       –           –                   as GETK, with expiry u32 after the flags. Data type: 1
GATM GETR  below                           stale, 2 somebody was told to make another value, 4 you
PEEKM      –                               are. PEEKM tells nobody to
INCREMENTM as          –                   expiry u32, result u64, CAS. Data type 1: the item gets
DECREMENTM INCREMENT                       the expiry; 2: it is not created
MARKM      expiry u32  –                   CAS. The item is stale; data type 1: it gets the expiry
SETM       as SET      yes                 as SET, but a lower CAS makes the item stale
=========  ==========  ==================  =========================================================

Errors are always sent, but misses of quiet reads. SET, ADD and REPLACE with a CAS all mean "if it
still has that CAS": 01 if nothing is there, 02 if it has another. ADD of what is there: 02;
REPLACE of what is not: 01; APPEND: 05; INCREMENT: creates, unless expiry is ffffffff: 01. A number
is decimal text up to the first blank; the result is stored with blanks after it up to the old
length; DECREMENT stops at 0, INCREMENT wraps at 2^64. FLUSH with a delay is done when its time has
come, unless there is another FLUSH before. TOUCH keeps the CAS. Keys of 1 … 250 bytes,
otherwise, and for extras or a value that the command has not: 04 and the connection ends. An
unknown opcode: 81. A vbucket that is not active: 07; pending: the request waits until it is not.
Source: memcached 1.6.18 and 1.8.1, ep-engine 1.8.1, observed. Not as there: what is too large (03)
leaves the item as it was. The commands from e0 on are our own: what meta commands of the text
protocol need; what they make of items is in `replication.bucket.change`. Extras of GATM, which may
set the expiry, and GETR: u32 the RECACHE time, u32 the expiry of what is created, u32 bits RETIME,
FIRST_RETIME, RECACHE and CREATE, u32 the expiry.

TAP_MUTATION and its like do to the bucket what a consumer does with them, whoever sends them:
unconditional; the CAS of the producer is kept if it is given. Any vbucket that is here and not
dead takes them, others: 07. A TTL of 0: 04; else it is kept, less one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from logweir.errors import DecodeError
from logweir.limits import TAP_KEY_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket.change import BURY, TAKE, TAKEN
from logweir.replication.bucket.item import (
    Held,
    Item,
    VbucketState,
    absolute_expiry,
)
from logweir.replication.memcached.wire.codec import (
    SERVER_VERSION,
    TAP_OPCODES,
    Opcode,
    Packet,
    Status,
    encode_ack,
    encode_answer,
)
from logweir.replication.memcached.wire.messages import Opaque, PacketFlag, TapMessage, decode_tap

if TYPE_CHECKING:
    from logweir.replication.bucket.store import GroupItems, ViewItems

_QUIET: Final = {one: Opcode[one.name[:-1]] for one in Opcode if one.name.endswith("Q")}
"""Quiet forms to the loud ones."""

READS: Final = frozenset(
    (
        Opcode.GET,
        Opcode.GETQ,
        Opcode.GETK,
        Opcode.GETKQ,
        Opcode.GETM,
        Opcode.PEEKM,
        Opcode.STAT,
        Opcode.NOOP,
        Opcode.VERSION,
        Opcode.GET_VBUCKET,
    )
)
"""Commands that change nothing."""

# (allowed sizes of the extras, needs a key, may have a value)
_SHAPES: Final = {
    **dict.fromkeys((Opcode.QUIT, Opcode.NOOP, Opcode.VERSION), ((0,), False, False)),
    Opcode.SASL_LIST_MECHS: ((0,), False, False),
    Opcode.FLUSH: ((0, 4), False, False),
    Opcode.VERBOSITY: ((4,), False, False),
    **dict.fromkeys((Opcode.GET, Opcode.GETK, Opcode.GETM, Opcode.PEEKM), ((0,), True, False)),
    Opcode.DELETE: ((0,), True, False),
    **dict.fromkeys((Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.SETM), ((8,), True, True)),
    **dict.fromkeys((Opcode.APPEND, Opcode.PREPEND), ((0,), True, True)),
    **dict.fromkeys((Opcode.INCREMENT, Opcode.DECREMENT), ((20,), True, False)),
    **dict.fromkeys((Opcode.INCREMENTM, Opcode.DECREMENTM), ((20,), True, False)),
    **dict.fromkeys((Opcode.TOUCH, Opcode.GAT, Opcode.GATK, Opcode.MARKM), ((4,), True, False)),
    **dict.fromkeys((Opcode.GATM, Opcode.GETR), ((16,), True, False)),
}
_ITEMS: Final = [opcode for opcode, (_, needs_key, _) in _SHAPES.items() if needs_key]


def is_malformed(packet: Packet) -> bool:
    """Whether a request has not the parts that its opcode needs: 04, and the connection ends."""
    opcode = plain_opcode(packet.opcode)
    shape = None if opcode is None else _SHAPES.get(opcode)
    if shape is None or packet.too_big:
        return False
    sizes, needs_key, may_have_value = shape
    if len(packet.extras) not in sizes or (packet.value and not may_have_value):
        return True
    if not needs_key:
        return bool(packet.key)
    return not 0 < len(packet.key) <= TAP_KEY_BYTES


def plain_opcode(opcode: int) -> Opcode | None:
    """The loud form of an opcode; None: it is not known."""
    try:
        known = Opcode(opcode)
    except ValueError:
        return None
    return _QUIET.get(known, known)


def simple_answer(request: Packet) -> bytes:
    """The answer to NOOP or VERSION."""
    is_asked = request.opcode == Opcode.VERSION
    return encode_answer(request, value=SERVER_VERSION if is_asked else b"")


class Failed(Exception):
    """A command has failed with that status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


class Viewer:
    """Runs the commands of a bucket that change nothing, but those that are parts of runs
    (`memcached.serve.runs`).

    `states`: of its vbuckets; `stats`: name and text of the statistics of a group, None: there is
    none.
    """

    def __init__(
        self,
        states: GroupItems | ViewItems,
        *,
        stats: Callable[[bytes], list[tuple[bytes, bytes]] | None] = lambda group: None,
    ) -> None:
        self._states = states
        self._stats = stats
        self._commands: dict[Opcode, Callable[[Packet], bytes]] = {
            **dict.fromkeys(_ITEMS, self._item),
            Opcode.STAT: self._stat,
            Opcode.NOOP: simple_answer,
            Opcode.VERSION: simple_answer,
            Opcode.GET_VBUCKET: self._get_vbucket,
        }

    def execute(self, request: Packet) -> bytes:
        """Run one request. Returns its answer, b"" if a quiet one has none.

        Raises `Held` if it is to be run again once the state of its vbucket has changed.
        """
        opcode = plain_opcode(request.opcode)
        command = None if opcode is None else self._commands.get(opcode)
        if command is None:
            return encode_answer(request, Status.UNKNOWN_COMMAND, value=b"")
        if request.too_big:
            return encode_answer(request, Status.TOO_BIG)
        try:
            answer = command(request)
        except Failed as failed:
            return encode_answer(request, failed.status)
        return answer if opcode == request.opcode else b""

    def _active(self, request: Packet) -> None:
        state = self._states.state(request.vbucket)
        if state == VbucketState.ACTIVE:
            return
        if state == VbucketState.PENDING:
            raise Held
        raise Failed(Status.NOT_MY_VBUCKET)

    def _item(self, request: Packet) -> bytes:
        """What is no part of a run (`memcached.serve.runs`): a value that is too long, a vbucket
        that is not active."""
        if len(request.value) <= TAP_VALUE_BYTES:
            self._active(request)
        raise Failed(Status.TOO_BIG)

    def _stat(self, request: Packet) -> bytes:
        rows = self._stats(request.key)
        if rows is None:
            raise Failed(Status.NOT_FOUND)
        packets = [encode_answer(request, key=name, value=text) for name, text in rows]
        return b"".join(packets) + encode_answer(request)

    def _get_vbucket(self, request: Packet) -> bytes:
        state = self._states.state(request.vbucket)
        if state is None:
            raise Failed(Status.NOT_MY_VBUCKET)
        return encode_answer(request, value=int(state).to_bytes(4, "big"))


class Executor(Viewer):
    """Runs commands on a bucket.

    `now`: Unix seconds; `flush_later`: is told at what Unix time FLUSH is to be done, None: it was
    done at once; `stats`: see `Viewer`.
    """

    def __init__(
        self,
        items: GroupItems,
        now: float,
        *,
        stats: Callable[[bytes], list[tuple[bytes, bytes]] | None] = lambda group: None,
        flush_later: Callable[[float | None], None] = lambda at: None,
    ) -> None:
        super().__init__(items, stats=stats)
        self._items = items
        self._now = now
        self._flush_later = flush_later
        self.auto_nack = False
        """Whether the producer on this connection takes refusals of any packet."""
        self.may_take_over = True
        """Whether states of vbuckets may be changed."""
        self._commands |= {
            Opcode.FLUSH: self._flush,
            Opcode.VERBOSITY: encode_answer,
            Opcode.SET_VBUCKET: self._change_vbucket,
            Opcode.DEL_VBUCKET: self._change_vbucket,
        }

    def execute(self, request: Packet) -> bytes:
        return self._tap(request) if request.opcode in TAP_OPCODES else super().execute(request)

    def _flush(self, request: Packet) -> bytes:
        delay = int.from_bytes(request.extras, "big")
        if delay:
            self._flush_later(absolute_expiry(delay, self._now))
        else:
            self._items.flush()
            self._flush_later(None)
        return encode_answer(request)

    # --- vbuckets ---------------------------------------------------------------------------------

    def _change_vbucket(self, request: Packet) -> bytes:
        if not self.may_take_over:
            raise Failed(Status.AUTH_ERROR)
        wanted = None
        if request.opcode == Opcode.SET_VBUCKET:
            state = request.extras or request.value  # older clients send it as the value
            try:
                wanted = VbucketState(int.from_bytes(state, "big"))
            except ValueError:
                raise Failed(Status.INVALID) from None
        elif self._items.state(request.vbucket) is None:
            raise Failed(Status.NOT_MY_VBUCKET)
        self._items.set_state(request.vbucket, wanted)
        return encode_answer(request)

    # --- a consumer's side ------------------------------------------------------------------------

    def _tap(self, packet: Packet) -> bytes:
        status = Status.TOO_BIG
        wants_ack = False
        if not packet.too_big:
            wants_ack = len(packet.extras) >= 8 and bool(packet.extras[3] & PacketFlag.ACK)
            try:
                message = decode_tap(packet)
            except DecodeError:
                status = Status.INVALID
            else:
                status = self.apply(message)
                if message.opcode == Opcode.TAP_OPAQUE:
                    self.auto_nack |= message.number == Opaque.ENABLE_AUTO_NACK
        if status != Status.SUCCESS and (wants_ack or self.auto_nack):
            return encode_answer(packet, status)
        return encode_ack(packet.opcode, packet.opaque) if wants_ack else b""

    def apply(self, message: TapMessage, kind: int = TAKE) -> Status:
        """Do to the bucket what a message of a stream says. `kind`: what a mutation is."""
        opcode = message.opcode
        if not message.ttl:
            return Status.INVALID
        if opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE):
            if len(message.key) > TAP_KEY_BYTES:
                return Status.INVALID
            if len(message.value) > TAP_VALUE_BYTES:
                return Status.TOO_BIG
            if self._items.state(message.vbucket) in (None, VbucketState.DEAD):
                return Status.NOT_MY_VBUCKET
            if opcode == Opcode.TAP_MUTATION:
                self._items.change(kind, item_of(message))
            else:
                ttl = message.ttl - 1
                gone = Item(message.key, message.vbucket, cas=message.cas, ttl=ttl)
                self._items.change(BURY | TAKEN, gone)
        elif opcode == Opcode.TAP_FLUSH:
            self._items.flush()
        elif opcode == Opcode.TAP_VBUCKET_SET:
            if not self.may_take_over:
                return Status.AUTH_ERROR
            try:
                self._items.set_state(message.vbucket, VbucketState(message.number or 0))
            except ValueError:
                return Status.INVALID
        return Status.SUCCESS


STATE_CHANGES: Final = frozenset((Opcode.SET_VBUCKET, Opcode.DEL_VBUCKET, Opcode.TAP_VBUCKET_SET))
"""They need the right to take vbuckets over, besides that to write."""


def item_of(message: TapMessage) -> Item:
    """The item that a mutation makes; it may go one hop less far than the mutation."""
    return Item(
        message.key,
        message.vbucket,
        message.value,
        message.item_flags,
        message.expiry,
        message.cas,
        message.datatype,
        meta=message.private,
        ttl=message.ttl - 1,
    )
