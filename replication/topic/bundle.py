"""Bundles: the unit in which Tank messages are published, stored and sent. Bytes ↔ values.

Little-endian. What a producer sent is what is stored is what a consumer gets.

======================  ======  ==================================================
part                    type    present
======================  ======  ==================================================
flags                   u8      always
message count           varint  if the count in the flags is 0
first number            u64     sparse only
last - first - 1        varint  sparse and more than one message
message set             bytes   the rest; one raw Snappy block if the codec is 1
======================  ======  ==================================================

Flags: bits 0-1 codec (0 none, 1 Snappy, others unassigned), bits 2-5 count 1…15 (0: a varint
follows), bit 6 sparse, bit 7 reserved. The Snappy block is the raw format (varint uncompressed
length, then elements) and covers the message set alone.

======================  ======  ==================================================
message                 type    present
======================  ======  ==================================================
flags                   u8      1 has a key, 2 time of the last one, 4 number = previous + 1
number - previous - 1   varint  sparse, neither first nor last, bit 4 clear
time                    u64     bit 2 clear: milliseconds since 1970, the producer's
key                     str8    bit 1 set: length u8, then 1…255 bytes
content length          varint
content                 bytes
======================  ======  ==================================================

In an ordinary bundle message i has number base + i, and the base is not in the bundle. In a sparse
bundle the first and the last message take the numbers of the header and carry neither a delta nor
bit 4. A first message with bit 2 has time 0. The message set ends where the bundle ends.

A varint has at most 5 bytes, low 7 bits first, and is below 2^32. Numbers are 1 … 2^64-2.

Source: Tank 4.0 (broker, tank-cli), the Java client 0.6 and a Go client, observed.

Written here: the count stands in the flags if it fits, varints are shortest, bit 7 is never set,
a time is explicit if it changes, and a sparse bundle is not compressed unless asked for (the Go
client cannot read such a one).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from logweir.errors import ConfigError, DecodeError, LimitExceeded, LocalProtocolError
from logweir.limits import TANK_BUNDLE_RAW_BYTES
from logweir.replication.packing import U64_LOW
from logweir.replication.topic import kernel

Buffer = bytes | memoryview

NUMBER_MAX: Final = 2**64 - 2
"""Highest number of a message; 0 and 2^64-1 are words of fetch requests."""

CODEC_NONE: Final = 0
CODEC_SNAPPY: Final = 1

_CODEC_MASK: Final = 0x03
_ASSIGNED: Final = 0x7C  # of the flags: count and sparse
_COUNT_SHIFT: Final = 2
_COUNT_MASK: Final = 0x0F
SPARSE: Final = 0x40
"""In the first byte of a bundle that says its numbers."""

_RESERVED: Final = 0x80
_HAS_KEY: Final = 1
_SAME_TIME: Final = 2
_NEXT_NUMBER: Final = 4
_COMPRESS_MESSAGES: Final = 512
_COMPRESS_BYTES: Final = 1024
_VARINT_LIMIT: Final = 2**32
_SNAPPY_RATIO: Final = 22  # an element of 3 bytes makes at most 64
_REASONS: Final = {
    kernel.TRUNCATED: "a message runs past the end of its bundle",
    kernel.BAD_VARINT: "a number of more than 32 bits in a message",
    kernel.LEFT_OVER: "bytes after the last message of the bundle",
    kernel.BAD_NUMBER: "message numbers that do not rise from the first to the last announced",
}


class Message(NamedTuple):
    """One message. `time_ms`: milliseconds since 1970; `key`: 1…255 bytes, or None."""

    number: int
    time_ms: int
    key: bytes | None
    content: bytes


class BundleHead(NamedTuple):
    """What stands in clear before the message set, which begins at byte `body`.

    `first`, `last`: the numbers of a sparse bundle, both 0 for an ordinary one.
    """

    codec: int
    count: int  # type: ignore[assignment]  # what a tuple has of that name is not wanted
    sparse: bool
    first: int
    last: int
    body: int

    def numbers(self, base: int) -> tuple[int, int]:
        """First and last number, with `base` for an ordinary bundle."""
        return (self.first, self.last) if self.sparse else (base, base + self.count - 1)


def encode_varint(value: int) -> bytes:
    """The shortest form of `value`, 0 … 2^32-1."""
    if not 0 <= value < _VARINT_LIMIT:
        raise LocalProtocolError(f"{value} does not fit a varint of 32 bits.")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: Buffer, offset: int) -> tuple[int, int]:
    """The varint at `offset` and the byte after it.

    Raises `DecodeError` if it is cut, has more than 5 bytes or is 2^32 or above.
    """
    value = 0
    for index in range(5):
        if offset + index >= len(data):
            raise DecodeError("a varint is cut", offset=offset)
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= _VARINT_LIMIT:
                break
            return value, offset + index + 1
    raise DecodeError("a varint of more than 32 bits", offset=offset)


def read_head(data: Buffer) -> BundleHead:
    """What stands before the message set. Raises `DecodeError` for what no client writes."""
    if not len(data):
        raise DecodeError("an empty bundle")
    flags = data[0]
    codec = flags & _CODEC_MASK
    if codec > CODEC_SNAPPY or flags & _RESERVED:
        raise DecodeError(f"bundle flags {flags:#04x} are not assigned")
    count = flags >> _COUNT_SHIFT & _COUNT_MASK
    position = 1
    if not count:
        count, position = read_varint(data, position)
        if not count:
            raise DecodeError("a bundle of no messages", offset=1)
    if not flags & SPARSE:
        return BundleHead(codec, count, False, 0, 0, position)
    if len(data) - position < 8:
        raise DecodeError("the first number of a sparse bundle is cut", offset=position)
    first = int(U64_LOW.unpack_from(data, position)[0])
    last = first
    at = position
    position += 8
    if count > 1:
        step, position = read_varint(data, position)
        last = first + step + 1
    if first < 1 or last > NUMBER_MAX or last - first < count - 1:
        raise DecodeError(f"{count} messages cannot have numbers {first} to {last}", offset=at)
    return BundleHead(codec, count, True, first, last, position)


def numbers_of(data: Buffer, base: int) -> tuple[int, int, bool]:
    """First and last number that a bundle takes at a broker, which stores any bytes, and whether
    they are certain. `base`: of an ordinary bundle. The last is `base` - 1 if it takes none.

    A codec or flag that is not assigned leaves the numbers certain; a head that is cut, or says
    what cannot be, does not: then one number for each message that it announces is assumed.
    """
    if not len(data):
        return base, base - 1, True
    for head in (data, bytes((data[0] & _ASSIGNED,)) + bytes(data[1:32])):
        try:
            return (*read_head(head).numbers(base), True)
        except DecodeError:
            continue
    count = data[0] >> _COUNT_SHIFT & _COUNT_MASK
    is_empty = not count and data[1:2] == b"\0"
    return base, base - 1 if is_empty else base + max(count, 1) - 1, is_empty


def _cramjam() -> Any:
    """What packs and unpacks Snappy."""
    try:
        import cramjam
    except ImportError as error:
        raise ConfigError(
            "cramjam",
            "cannot be imported, and bundles with Snappy need it",
            origin="installation",
            hint="pip install 'logweir[tank]'",
        ) from error
    return cramjam


def _message_set(data: Buffer, head: BundleHead) -> tuple[Buffer, int]:
    """The uncompressed message set: the bytes and where it begins in them."""
    size = len(data) - head.body
    if head.codec == CODEC_SNAPPY:
        size, _ = read_varint(data, head.body)
        if size > TANK_BUNDLE_RAW_BYTES:
            raise LimitExceeded("TANK_BUNDLE_RAW_BYTES", TANK_BUNDLE_RAW_BYTES, size)
        if size > (len(data) - head.body) * _SNAPPY_RATIO:
            raise DecodeError("a Snappy block that lies about its length", offset=head.body)
    if size < head.count * 2:
        raise DecodeError(f"{size} bytes cannot hold {head.count} messages", offset=head.body)
    if head.codec == CODEC_NONE:
        return data, head.body
    raw = bytearray(size)
    cramjam = _cramjam()
    try:
        written = cramjam.snappy.decompress_raw_into(memoryview(data)[head.body :], raw)
    except cramjam.DecompressionError as error:
        raise DecodeError(f"a damaged Snappy block: {error}", offset=head.body) from error
    if written != size:
        raise DecodeError("a Snappy block that lies about its length", offset=head.body)
    return memoryview(raw), 0


def _walk(
    data: Buffer,
    head: BundleHead,
    base: int,
    out: list[tuple[int, int, bytes | None, bytes]] | None,
) -> int:
    """Follow a whole bundle; returns the time of its first message. Raises `DecodeError`."""
    first, last = head.numbers(base)
    if last > NUMBER_MAX:
        raise DecodeError(f"numbers {first} to {last} pass the highest number")
    body, start = _message_set(data, head)
    reason, position, time_ms = kernel.walk(
        body, body, start, head.count, head.sparse, first, last, out
    )
    if reason:
        where = "of the bundle" if head.codec == CODEC_NONE else "of the uncompressed message set"
        raise DecodeError(f"{_REASONS[reason]}, byte {position} {where}", offset=head.body)
    return time_ms


def check_bundle(data: Buffer) -> tuple[BundleHead, int]:
    """Everything a consumer depends on: count, Snappy block, numbers, every length.

    Returns the head and the time of the first message in ms. Raises `DecodeError` or
    `LimitExceeded`; the bytes are not changed.
    """
    found = kernel.sound(data)
    if found is not None:
        return BundleHead(*found[0]), found[1]
    head = read_head(data)
    return head, _walk(data, head, 1, None)


def decode_bundle(data: Buffer, base: int = 1) -> list[Message]:
    """The messages. `base`: number of the first one of an ordinary bundle; a sparse one says it.

    Raises `DecodeError` or `LimitExceeded`.
    """
    out: list[tuple[int, int, bytes | None, bytes]] = []
    _walk(data, read_head(data), base, out)
    return [Message._make(item) for item in out]


def _message_set_of(messages: Sequence[Message], sparse: bool) -> bytes:
    out = bytearray()
    time_ms: int | None = None
    end = len(messages) - 1
    for index, message in enumerate(messages):
        flags = 0
        delta = b""
        if message.key:
            if len(message.key) > 0xFF:
                raise LocalProtocolError(f"a key of {len(message.key)} bytes; the most is 255.")
            flags |= _HAS_KEY
        if message.time_ms == time_ms:
            flags |= _SAME_TIME
        if sparse and 0 < index < end:
            step = message.number - messages[index - 1].number - 1
            if step:
                delta = encode_varint(step)
            else:
                flags |= _NEXT_NUMBER
        out.append(flags)
        out += delta
        if message.time_ms != time_ms:
            time_ms = message.time_ms
            out += U64_LOW.pack(time_ms)
        if message.key:
            out.append(len(message.key))
            out += message.key
        out += encode_varint(len(message.content))
        out += message.content
    return bytes(out)


def encode_bundle(
    messages: Sequence[Message], *, sparse: bool = False, compress: bool | None = None
) -> bytes:
    """One bundle of `messages` in order, at least one.

    `sparse`: write their numbers, which must rise; else the reader counts from the base it is
    given. `compress`: None does what the C++ client does (above 512 messages or 1024 bytes of
    keys and contents) for an ordinary bundle and leaves a sparse one as it is. An empty key is
    written as none. Raises `LocalProtocolError`.
    """
    if not messages:
        raise LocalProtocolError("a bundle needs at least one message.")
    numbers = [message.number for message in messages]
    if sparse and (
        numbers[0] < 1 or numbers[-1] > NUMBER_MAX or any(b <= a for a, b in pairwise(numbers))
    ):
        raise LocalProtocolError("the numbers of a sparse bundle must rise, from 1 to 2^64-2.")
    body = _message_set_of(messages, sparse)
    if compress is None:
        compress = not sparse and (
            len(messages) > _COMPRESS_MESSAGES
            or sum(len(m.content) + len(m.key or b"") for m in messages) > _COMPRESS_BYTES
        )
    codec = CODEC_NONE
    if compress:
        codec = CODEC_SNAPPY
        body = bytes(_cramjam().snappy.compress_raw(body))
    return _head_bytes(codec, len(messages), (numbers[0], numbers[-1]) if sparse else None) + body


def _head_bytes(codec: int, count: int, numbers: tuple[int, int] | None) -> bytes:
    flags = codec | (count << _COUNT_SHIFT if count <= _COUNT_MASK else 0)
    out = bytearray((flags if numbers is None else flags | SPARSE,))
    if count > _COUNT_MASK:
        out += encode_varint(count)
    if numbers is not None:
        out += U64_LOW.pack(numbers[0])
        if count > 1:
            out += encode_varint(numbers[1] - numbers[0] - 1)
    return bytes(out)


def make_sparse(data: Buffer, first: int) -> Buffer:
    """The same messages with the numbers `first`, `first` + 1, … written into the bundle.

    A sparse bundle is returned as it is. Raises `DecodeError` for a bundle that is not sound.
    """
    if read_head(data).sparse:
        return data
    return encode_bundle(decode_bundle(data, first), sparse=True)


def split_chunk(chunk: Buffer) -> tuple[list[bytes], int]:
    """The whole bundles of a chunk (varint length, bundle, …) and the bytes they take.

    What is after them is the start of a cut bundle: nothing, from a Tank 2 broker or a newer one.
    """
    view = memoryview(chunk)
    out: list[bytes] = []
    position = 0
    while position < len(view):
        try:
            size, start = read_varint(view, position)
        except DecodeError:
            if len(view) - position < 5:
                break
            raise
        if start + size > len(view):
            break
        out.append(bytes(view[start : start + size]))
        position = start + size
    return out, position
