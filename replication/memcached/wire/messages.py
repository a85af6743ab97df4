"""What TAP's packets say: options of a connect, mutations, checkpoints and the others ↔ packets.

The layout of all of them stands in `codec`. No I/O, no clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from logweir.errors import DecodeError, RemoteProtocolError
from logweir.replication.memcached.wire.codec import (
    HEADER,
    REQUEST,
    Opcode,
    Packet,
    Status,
    encode_request,
)
from logweir.replication.packing import U16_HIGH, U32_HIGH, U64_HIGH

TTL_MAX: Final = 255
_TAP: Final = struct.Struct(">HHBxxx")
_TAP_ITEM: Final = struct.Struct(">HHBxxxII")
_PAIR: Final = struct.Struct(">HQ")


class Option(IntFlag):
    """Bits of TAP_CONNECT."""

    BACKFILL = 0x001
    DUMP = 0x002
    LIST_VBUCKETS = 0x004
    TAKEOVER_VBUCKETS = 0x008
    SUPPORT_ACK = 0x010
    REQUEST_KEYS_ONLY = 0x020
    CHECKPOINT = 0x040
    REGISTERED_CLIENT = 0x080
    FIX_FLAG_BYTEORDER = 0x100


NO_OPTIONS: Final = Option(0)


class PacketFlag(IntFlag):
    """Bits in the extras of opcodes 41 … 47."""

    ACK = 1
    NO_VALUE = 2
    NETWORK_BYTE_ORDER = 4


class Opaque(IntEnum):
    """Subtypes of TAP_OPAQUE."""

    ENABLE_AUTO_NACK = 0
    INITIAL_VBUCKET_STREAM = 1
    ENABLE_CHECKPOINT_SYNC = 2
    OPEN_CHECKPOINT = 3
    COMPLETE_VB_FILTER_CHANGE = 4
    CLOSE_TAP_STREAM = 7
    CLOSE_BACKFILL = 8


@dataclass(frozen=True, slots=True)
class Connect:
    """What a consumer asks for.

    `backfill`: date, with option BACKFILL; `vbuckets`: () for all; `checkpoints`: (vbucket, id);
    `closed_only`: of a registered client, None if it did not say.
    """

    name: bytes = b""
    options: Option = NO_OPTIONS
    backfill: int = 0
    vbuckets: tuple[int, ...] = ()
    checkpoints: tuple[tuple[int, int], ...] = ()
    closed_only: bool | None = None
    opaque: int = 0


def encode_connect(connect: Connect) -> bytes:
    """The bytes of TAP_CONNECT; extras are always there."""
    body = b""
    options = connect.options
    if options & Option.BACKFILL:
        body += U64_HIGH.pack(connect.backfill)
    if options & Option.LIST_VBUCKETS:
        body += U16_HIGH.pack(len(connect.vbuckets))
        body += b"".join(U16_HIGH.pack(vbucket) for vbucket in connect.vbuckets)
    if options & Option.CHECKPOINT and connect.checkpoints:
        body += U16_HIGH.pack(len(connect.checkpoints))
        body += b"".join(_PAIR.pack(*pair) for pair in connect.checkpoints)
    if options & Option.REGISTERED_CLIENT and connect.closed_only is not None:
        body += bytes((connect.closed_only,))
    return encode_request(
        Packet(
            Opcode.TAP_CONNECT,
            connect.name,
            body,
            U32_HIGH.pack(options),
            opaque=connect.opaque,
        )
    )


def decode_connect(packet: Packet) -> Connect:
    """Read TAP_CONNECT.

    Raises `RemoteProtocolError`, whose `reply_hint` is the status to answer before closing, or
    None if a real server closes without an answer.
    """
    if len(packet.extras) not in (0, 4):
        raise RemoteProtocolError(
            f"TAP_CONNECT with {len(packet.extras)} bytes of extras", reply_hint=Status.INVALID
        )
    options = Option(U32_HIGH.unpack(packet.extras)[0] if packet.extras else 0)
    value, at = packet.value, 0
    backfill = 0
    vbuckets: tuple[int, ...] = ()
    checkpoints: tuple[tuple[int, int], ...] = ()
    closed_only: bool | None = None
    if options & Option.BACKFILL:
        if len(value) < 8:
            raise RemoteProtocolError("TAP_CONNECT without the date that it announces")
        (backfill,) = U64_HIGH.unpack_from(value)
        at = 8
    if options & Option.LIST_VBUCKETS:
        count, at = _count(value, at, 2)
        vbuckets = struct.unpack_from(f">{count}H", value, at)
        at += 2 * count
    registered = bool(options & Option.REGISTERED_CLIENT)
    left = len(value) - at
    if options & Option.CHECKPOINT and left and not (registered and left == 1):
        count, at = _count(value, at, 10)
        checkpoints = tuple(_PAIR.iter_unpack(value[at : at + 10 * count]))
        at += 10 * count
    if registered and at < len(value):
        closed_only = value[at] != 0
    return Connect(packet.key, options, backfill, vbuckets, checkpoints, closed_only, packet.opaque)


def decode_filter(packet: Packet) -> tuple[tuple[int, int], ...]:
    """The vbuckets and ids of CHANGE_VB_FILTER. Raises `RemoteProtocolError`."""
    if packet.extras or not packet.key:
        raise RemoteProtocolError(
            "CHANGE_VB_FILTER with extras or without a name", reply_hint=Status.INVALID
        )
    try:
        count, at = _count(packet.value, 0, 10)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(error.message, reply_hint=Status.INVALID) from error
    return tuple(_PAIR.iter_unpack(packet.value[at : at + 10 * count]))


def _count(value: bytes, at: int, item_bytes: int) -> tuple[int, int]:
    """The count of a list at `at`, whose items are all there, and where they begin."""
    if len(value) - at >= 2:
        count: int = U16_HIGH.unpack_from(value, at)[0]
        if len(value) - at - 2 >= count * item_bytes:
            return count, at + 2
    raise RemoteProtocolError(
        f"a list of TAP_CONNECT is shorter than it says (at byte {at} of its value)",
        reply_hint=Status.NOT_SUPPORTED,
    )


@dataclass(frozen=True, slots=True)
class TapMessage:
    """One message of a stream, as it is meant.

    `item_flags`: as the writing client gave them; `number`: subtype of OPAQUE (None: sign of life),
    state of VBUCKET_SET, id of a checkpoint; `private`: what else stood there; `has_value`: False
    if the value was left out.
    """

    opcode: int
    key: bytes = b""
    value: bytes = b""
    vbucket: int = 0
    cas: int = 0
    item_flags: int = 0
    expiry: int = 0
    datatype: int = 0
    private: bytes = b""
    number: int | None = None
    has_value: bool = True
    ttl: int = TTL_MAX
    wants_ack: bool = False
    opaque: int = 0


def decode_tap(packet: Packet, *, big_endian_producer: bool = False) -> TapMessage:
    """Read a packet of opcodes 41 … 47.

    `big_endian_producer`: item flags without packet flag 4 are not reversed. Raises `DecodeError`.
    """
    opcode = packet.opcode
    long = opcode in (
        Opcode.TAP_MUTATION,
        Opcode.TAP_CHECKPOINT_START,
        Opcode.TAP_CHECKPOINT_END,
    )
    extras = packet.extras
    if len(extras) != (16 if long else 8):
        raise DecodeError(f"opcode {opcode:#04x} with {len(extras)} bytes of extras")
    _, bits, ttl = _TAP.unpack_from(extras)
    item_flags = expiry = 0
    number: int | None = None
    private, value = packet.private, packet.value
    if opcode == Opcode.TAP_MUTATION:
        in_order = bits & PacketFlag.NETWORK_BYTE_ORDER or big_endian_producer
        item_flags = int.from_bytes(extras[8:12], "big" if in_order else "little")
        expiry = int.from_bytes(extras[12:16], "big")
        if not packet.key:
            raise DecodeError("a mutation without a key")
    elif opcode == Opcode.TAP_DELETE:
        if not packet.key:
            raise DecodeError("a deletion without a key")
    elif opcode in (Opcode.TAP_OPAQUE, Opcode.TAP_VBUCKET_SET):
        number = _number(private, 4, may_miss=opcode == Opcode.TAP_OPAQUE)
        private = b""
    elif long:
        number = _number(value, 8, may_miss=False)
        value = b""
    return TapMessage(
        opcode,
        packet.key,
        value,
        packet.vbucket,
        packet.cas,
        item_flags,
        expiry,
        packet.datatype,
        private,
        number,
        not bits & PacketFlag.NO_VALUE,
        ttl,
        bool(bits & PacketFlag.ACK),
        packet.opaque,
    )


def _number(data: bytes, size_bytes: int, *, may_miss: bool) -> int | None:
    if len(data) == size_bytes:
        return int.from_bytes(data, "big")
    if may_miss and not data:
        return None
    raise DecodeError(f"{len(data)} bytes where {size_bytes} are needed")


def encode_tap(message: TapMessage, *, fix_flags: bool = False) -> bytes:
    """The bytes of one message of a stream.

    `fix_flags`: item flags in network order, as option FIX_FLAG_BYTEORDER asks; else reversed.
    """
    private, value = message.private, message.value
    opcode = message.opcode
    bits = int(PacketFlag.ACK) if message.wants_ack else 0
    if not message.has_value:
        bits |= PacketFlag.NO_VALUE
        value = b""
    if opcode in (Opcode.TAP_OPAQUE, Opcode.TAP_VBUCKET_SET):
        private = b"" if message.number is None else U32_HIGH.pack(message.number)
        extras = _TAP.pack(len(private), bits, message.ttl)
    elif opcode in (Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END):
        assert message.number is not None
        value = U64_HIGH.pack(message.number)
        extras = _TAP_ITEM.pack(len(private), bits, message.ttl, 0, 0)
    elif opcode == Opcode.TAP_MUTATION:
        item_flags = message.item_flags
        if fix_flags:
            bits |= PacketFlag.NETWORK_BYTE_ORDER
        else:
            item_flags = int.from_bytes(item_flags.to_bytes(4, "big"), "little")
        extras = _TAP_ITEM.pack(len(private), bits, message.ttl, item_flags, message.expiry)
    else:
        extras = _TAP.pack(len(private), bits, message.ttl)
    key = message.key
    return (
        HEADER.pack(
            REQUEST,
            message.opcode,
            len(key),
            len(extras),
            message.datatype,
            message.vbucket,
            len(extras) + len(private) + len(key) + len(value),
            message.opaque,
            message.cas,
        )
        + extras
        + private
        + key
        + value
    )


class Marks:
    """What the marks of a stream tell: which vbuckets are being given, and if a dump was whole: if
    CLOSE_TAP_STREAM came (logweir, and proposed to others), or if the server closed the connection
    (ep-engine) and each INITIAL_VBUCKET_STREAM had its CLOSE_BACKFILL. memcached's default engine
    sends neither, only items, then the end of the connection, which a server that dies looks like,
    too.

    `any`: whether a vbucket's beginning was marked; `open`: vbuckets that are being given; `items`:
    how many messages there were besides."""

    def __init__(self) -> None:
        self.any = False
        self.open: set[int] = set()
        self.items = 0
        self._is_closed = False

    def take(self, message: TapMessage) -> None:
        """A message came."""
        if message.opcode != Opcode.TAP_OPAQUE:
            self.items += 1
        elif message.number == Opaque.CLOSE_TAP_STREAM:
            self._is_closed = True
        elif message.number == Opaque.INITIAL_VBUCKET_STREAM:
            self.any = True
            self.open.add(message.vbucket)
        elif message.number == Opaque.CLOSE_BACKFILL:
            self.open.discard(message.vbucket)

    def is_whole(self, *, ended_whole: bool, eof_is_whole: bool) -> bool:
        """Whether a dump whose connection ended gave everything. `ended_whole`: the server closed
        it, not within a packet; `eof_is_whole`: that is enough if there were items."""
        if self.open or not ended_whole:
            return False
        return self._is_closed or self.any or (eof_is_whole and self.items > 0)
