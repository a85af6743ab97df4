"""memcached's binary packets and those of TAP: bytes ↔ messages. No I/O, no clock.

All numbers are big-endian. One packet:

======  ====  ===========================================  =================================
offset  size  request, magic 80                            response, magic 81
======  ====  ===========================================  =================================
0       1     magic                                        magic
1       1     opcode                                       opcode of the request
2       2     K, length of the key                         the same
4       1     X, length of the extras                      the same
5       1     data type, carried as it is                  the same
6       2     vbucket                                      status
8       4     B = X + E + K + length of the value          the same, E = 0
12      4     opaque, repeated in the answer               opaque of the request
16      8     CAS, 0 for none                              CAS
24      X     extras                                       extras
24+X    E     private bytes, opcodes 41 … 47 only          –
…       K     key                                          key
…       rest  value                                        value, or text of an error
======  ====  ===========================================  =================================

E is the first u16 of the extras of opcodes 41 … 47; it is part of B, not of X. A magic other than
80 and 81, X + E + K > B, or B > `limits.TAP_BODY_MAX_BYTES` end a connection. A body above
`limits.TAP_BODY_BYTES` is passed over and the packet given as `too_big`.

Extras of TAP: E u16, flags u16 (1 wants an answer, 2 value left out, 4 item flags in network
order), TTL u8, three zeros; opcodes 41, 46 and 47 go on with item flags u32 and expiry u32 (Unix
seconds, 0 never). Private bytes: 41: none, or revision u64 and one byte; 42: none or revision u64;
44: subtype u32 (absent: a sign of life); 45: state u32; 46: none or u64. Values of 46 and 47: the
id, u64. Without packet flag 4 the item flags are byte-reversed, which every producer on x86 sends.

TAP_CONNECT: extras of 4 bytes (options) or none (no options); the value holds, in this order, each
for its option bit:

=====  =================  ==========================================================
bit    name               body
=====  =================  ==========================================================
001    BACKFILL           date u64
002    DUMP               –
004    LIST_VBUCKETS      n u16, n times vbucket u16; n = 0 means all
008    TAKEOVER_VBUCKETS  –
010    SUPPORT_ACK        –
020    REQUEST_KEYS_ONLY  –
040    CHECKPOINT         none, or n u16, n times (vbucket u16, id u64)
080    REGISTERED_CLIENT  none, or u8: not zero: only closed checkpoints
100    FIX_FLAG_BYTEORDER –
=====  =================  ==========================================================

CHANGE_VB_FILTER (b0): the key is a stream's name, the value a list as that of CHECKPOINT: the
vbuckets that are wanted from now on, each with the id of the last checkpoint had, 0 for none.

Undefined bits and what is left over are ignored. If 040 and 080 are set and one byte is left, it
belongs to 080. Sources: ep-engine 1.8.1 and memcached 1.8.1 and 1.6.18 (observed), gomemcached,
spymemcached 2.12.3; forms with private bytes from couchbase's headers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TAP_BODY_BYTES, TAP_BODY_MAX_BYTES
from logweir.replication.packing import U16_HIGH, U32_HIGH
from logweir.replication.session import InputBuffer
from logweir.wal.writer import VERSION

HEADER_BYTES: Final = 24
REQUEST: Final = 0x80
RESPONSE: Final = 0x81
SERVER_VERSION: Final = f"1.6.18-logweir-{VERSION}".encode()
"""What VERSION is answered; `kernel` takes 64 bytes of it."""

HEADER: Final = struct.Struct(">BBHBBHIIQ")


class Opcode(IntEnum):
    """Requests that are known by name."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    GATK = 0x23
    GATKQ = 0x24
    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    TAP_CONNECT = 0x40
    TAP_MUTATION = 0x41
    TAP_DELETE = 0x42
    TAP_FLUSH = 0x43
    TAP_OPAQUE = 0x44
    TAP_VBUCKET_SET = 0x45
    TAP_CHECKPOINT_START = 0x46
    TAP_CHECKPOINT_END = 0x47
    SELECT_BUCKET = 0x89
    DEREGISTER_TAP_CLIENT = 0x9E
    CHANGE_VB_FILTER = 0xB0
    GETM = 0xE0
    GATM = 0xE1
    INCREMENTM = 0xE2
    DECREMENTM = 0xE3
    GETR = 0xE4
    MARKM = 0xE5
    SETM = 0xE6
    PEEKM = 0xE7


TAP_OPCODES: Final = range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1)


class Status(IntEnum):
    """What a response says."""

    SUCCESS = 0x00
    NOT_FOUND = 0x01
    EXISTS = 0x02
    TOO_BIG = 0x03
    INVALID = 0x04
    NOT_STORED = 0x05
    BAD_DELTA = 0x06
    NOT_MY_VBUCKET = 0x07
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    OUT_OF_RANGE = 0x22
    UNKNOWN_COMMAND = 0x81
    OUT_OF_MEMORY = 0x82
    NOT_SUPPORTED = 0x83
    INTERNAL = 0x84
    BUSY = 0x85
    TEMPORARY_FAILURE = 0x86


TEXTS: Final = {
    Status.NOT_FOUND: b"Not found",
    Status.EXISTS: b"Data exists for key.",
    Status.TOO_BIG: b"Too large.",
    Status.INVALID: b"Invalid arguments",
    Status.NOT_STORED: b"Not stored.",
    Status.BAD_DELTA: b"Non-numeric server-side value for incr or decr",
    Status.NOT_MY_VBUCKET: b"Not responsible for this vbucket",
    Status.AUTH_ERROR: b"Auth failure.",
    Status.OUT_OF_RANGE: b"Out of range",
    Status.UNKNOWN_COMMAND: b"Unknown command",
    Status.OUT_OF_MEMORY: b"Out of memory",
    Status.NOT_SUPPORTED: b"Not supported",
    Status.INTERNAL: b"Internal error",
    Status.BUSY: b"Busy",
    Status.TEMPORARY_FAILURE: b"Temporary failure",
}


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet. `vbucket`: of a response the status; `too_big`: its body was passed over."""

    opcode: int
    key: bytes = b""
    value: bytes = b""
    extras: bytes = b""
    private: bytes = b""
    vbucket: int = 0
    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    is_response: bool = False
    too_big: bool = False

    @property
    def status(self) -> int:
        """The status of a response."""
        return self.vbucket


class PacketBuffer:
    """Finds the packets in what a peer sends, in any portions."""

    def __init__(self, limit_bytes: int = TAP_BODY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.kept = InputBuffer("TAP_BODY_BYTES", limit_bytes + HEADER_BYTES)
        """What has come of a packet that is not whole yet."""
        self.skip_bytes = 0
        """Of one that is too large what is still to come, and is passed over."""
        self._problem: DecodeError | LimitExceeded | None = None

    def __len__(self) -> int:
        """Bytes of a packet that is not whole yet, those still to be passed over included."""
        return self.kept.size_bytes + self.skip_bytes

    def feed(
        self, data: bytes, take_run: Callable[[bytes, int], Any | None] | None = None
    ) -> tuple[list[Any], DecodeError | LimitExceeded | None]:
        """The packets that are whole now, and what ends the connection after them, if anything:
        then there is nothing more to be found. `take_run`: finds what is to be taken in one piece,
        `stop` is where that ends."""
        found: list[Any] = []
        if self._problem is not None:
            return found, self._problem
        if self.skip_bytes:
            skipped = min(self.skip_bytes, len(data))
            self.skip_bytes -= skipped
            data = data[skipped:]
        if self.kept.size_bytes:
            data = self.kept.join(data)
        at = 0
        try:
            at = self._split(data, found, take_run)
        except (DecodeError, LimitExceeded) as problem:
            self._problem = problem
            self.kept.clear()
            return found, problem
        if at < len(data) and not self.skip_bytes:
            needed = HEADER_BYTES
            if len(data) - at >= HEADER_BYTES:
                needed += U32_HIGH.unpack_from(data, at + 8)[0]
            self.kept.keep(data[at:], needed)
        return found, None

    def _split(
        self,
        data: bytes,
        packets: list[Any],
        take_run: Callable[[bytes, int], Any | None] | None,
    ) -> int:
        """Append the whole packets of `data`; returns where the first that is not whole begins."""
        at, end = 0, len(data)
        unpack = HEADER.unpack_from
        while end - at >= HEADER_BYTES:
            if take_run is not None and (run := take_run(data, at)) is not None:
                packets.append(run)
                at = run.stop
                continue
            magic, opcode, key_bytes, extras_bytes, datatype, vbucket, body, opaque, cas = unpack(
                data, at
            )
            if magic != REQUEST and magic != RESPONSE:
                raise DecodeError(f"magic {magic:#04x} is neither 0x80 nor 0x81", offset=at)
            if key_bytes + extras_bytes > body:
                raise DecodeError(
                    f"key of {key_bytes} and extras of {extras_bytes} bytes in a body of {body}",
                    offset=at,
                )
            is_response = magic == RESPONSE
            start = at + HEADER_BYTES
            if body > self._limit_bytes:
                if body > TAP_BODY_MAX_BYTES:
                    raise LimitExceeded("TAP_BODY_MAX_BYTES", TAP_BODY_MAX_BYTES, body)
                packets.append(
                    Packet(
                        opcode,
                        vbucket=vbucket,
                        opaque=opaque,
                        cas=cas,
                        is_response=is_response,
                        too_big=True,
                    )
                )
                self.skip_bytes = max(0, start + body - end)
                at = min(start + body, end)
                continue
            stop = start + body
            if stop > end:
                break
            key_at = start + extras_bytes
            extras = data[start:key_at]
            private = b""
            if 0x41 <= opcode <= 0x47 and not is_response and extras_bytes >= 2:
                private_bytes = U16_HIGH.unpack_from(extras)[0]
                if key_at + private_bytes + key_bytes > stop:
                    raise DecodeError(
                        f"{private_bytes} private bytes do not fit a body of {body}", offset=at
                    )
                private = data[key_at : key_at + private_bytes]
                key_at += private_bytes
            value_at = key_at + key_bytes
            packets.append(
                Packet(
                    opcode,
                    data[key_at:value_at],
                    data[value_at:stop],
                    extras,
                    private,
                    vbucket,
                    opaque,
                    cas,
                    datatype,
                    is_response,
                )
            )
            at = stop
        return at


def encode_request(packet: Packet) -> bytes:
    """The bytes of a request, or of a response if it says that it is one."""
    body = packet.extras + packet.private + packet.key + packet.value
    return (
        HEADER.pack(
            RESPONSE if packet.is_response else REQUEST,
            packet.opcode,
            len(packet.key),
            len(packet.extras),
            packet.datatype,
            packet.vbucket,
            len(body),
            packet.opaque,
            packet.cas,
        )
        + body
    )


def encode_answer(
    request: Packet,
    status: Status = Status.SUCCESS,
    *,
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes | None = None,
    cas: int = 0,
    datatype: int = 0,
) -> bytes:
    """The answer to `request`. `value`: None for the text of the status."""
    if value is None:
        value = TEXTS.get(status, b"")
    extras_bytes, key_bytes = len(extras), len(key)
    return (
        HEADER.pack(
            RESPONSE,
            request.opcode,
            key_bytes,
            extras_bytes,
            datatype,
            status,
            extras_bytes + key_bytes + len(value),
            request.opaque,
            cas,
        )
        + extras
        + key
        + value
    )


def encode_ack(opcode: int, opaque: int, status: int = Status.SUCCESS) -> bytes:
    """What a consumer answers to a packet of the stream."""
    return HEADER.pack(RESPONSE, opcode, 0, 0, 0, status, 0, opaque, 0)
