# cython: boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""What is done for each published bundle and each message in it. Compiled where possible.

`walk` follows one message set from its first byte to its last. The layout is in
`logweir.replication.topic.bundle`. It checks what a reader depends on: that there are as many
messages as announced, that each field lies within the bytes, that the numbers of a sparse set rise
from the first to the last announced, and that nothing is left over. `publish` reads a request that
publishes. `place` does what nearly all bundles need, and leaves everything else, also whatever is
wrong, to the ordinary way. `chunk` makes an answer of stored bundles. It takes types from
`kernel.pxd`; without a compiler it runs as it stands.
"""

from __future__ import annotations

from array import array
from typing import Any

import logweir.wal.kernel as rows

_new: Any = tuple.__new__

_HAS_KEY = 1
_SAME_TIME = 2
_NEXT_NUMBER = 4

OK = 0
TRUNCATED = 1
BAD_VARINT = 2
LEFT_OVER = 3
BAD_NUMBER = 4

HIGHEST = 0xFFFFFFFFFFFFFFFE
_VIEWED_BYTES = 4096  # to copy less costs less than to send one part more
_BUFFER_BYTES = 65536  # of such small ones; what is left of one is held in vain


def compiled() -> bool:
    """Whether this module runs as machine code."""
    return not __file__.endswith(".py")


def varint(source: bytes | memoryview, position: int, end: int) -> int:
    """The varint at `position`: its value and, above 32 bits, its length; or minus a reason."""
    value = 0
    size = 0
    while size < 5:
        if position + size >= end:
            return -TRUNCATED
        byte = source[position + size]
        value |= (byte & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            return -BAD_VARINT if value >> 32 else size << 32 | value
    return -BAD_VARINT


def frames(view: memoryview, position: int, limit: int, out: list[Any]) -> int:
    """Put (type, payload) of each whole frame from `position` on into `out`; a frame of more than
    `limit` bytes ends them. Returns where the rest begins."""
    source = view
    end = len(source)
    if position < 0:
        raise IndexError("frames: a place before the bytes")
    while end - position >= 5:
        size = fixed(source, position + 1, 4)
        start = position + 5
        if size > limit or size > end - start:
            break
        position = start + size
        out.append((source[start - 5], view[start:position]))
    return position


def publish(
    payload: bytes | memoryview,
    source: bytes | memoryview,
    at_numbers: bool,
    viewed: int,
    make: Any,
) -> tuple[Any, ...]:
    """The fields of a publish: version, request id, client, acks, ack timeout, and its topics, each
    a name and a tuple of parts. Where it is malformed: a reason, and the byte at which it was seen.

    `payload`: of its frame; `source`: the same again (the compiled code reads the one, cuts the
    other); `at_numbers`: it is a message 05, each bundle with its first number; `make`:
    `PublishPart`, a tuple with names. Bundles of less than `viewed` bytes are copied, others are
    cut from `payload`.
    """
    end = len(source)
    if end < 7:
        return TRUNCATED, 0
    client_end = 7 + source[6]
    if end - client_end < 6:
        return TRUNCATED, 7
    client = str(payload[7:client_end], "utf-8", "surrogateescape")
    at = client_end + 6
    topics_left = source[at - 1]
    topics = []
    while topics_left > 0:
        topics_left -= 1
        if end - at < 1 or end - at < 2 + source[at]:
            return TRUNCATED, at
        name_end = at + 1 + source[at]
        name = str(payload[at + 1 : name_end], "utf-8", "surrogateescape")
        left = source[name_end]
        at = name_end + 1
        parts = []
        while left > 0:
            left -= 1
            if end - at < 2:
                return TRUNCATED, at
            found = varint(source, at + 2, end)
            if found < 0:
                return -found, at + 2
            size = found - (found >> 32 << 32)
            start = at + 2 + (found >> 32)
            first = None
            if at_numbers:
                if end - start < 8:
                    return TRUNCATED, start
                first = fixed(source, start, 8)
                start += 8
            if end - start < size:
                return TRUNCATED, start
            bundle = payload[start : start + size]
            if size < viewed:
                bundle = bytes(bundle)
            parts.append(_new(make, (name, fixed(source, at, 2), bundle, first)))
            at = start + size
        topics.append((name, tuple(parts)))
    if at != end:
        return LEFT_OVER, at
    return (
        fixed(source, 0, 2),
        fixed(source, 2, 4),
        client,
        source[client_end],
        fixed(source, client_end + 1, 4),
        tuple(topics),
    )


def spans(appends: list[Any]) -> list[int]:
    """Where each run of bundles of one partition ends: one behind its last. `appends`: some."""
    ends = []
    at = 1
    count = len(appends)
    if count == 0:
        raise IndexError("spans: there are no bundles")
    # To unpack a tuple that has names costs less than to take two of its items.
    _, _, topic, partition, _, _, _, _ = appends[0]
    while at < count:
        _, _, other, number, _, _, _, _ = appends[at]
        if number != partition or other != topic:
            ends.append(at)
            topic = other
            partition = number
        at += 1
    ends.append(count)
    return ends


def size_of(appends: list[Any]) -> int:
    """Bytes of the bundles."""
    size = 0
    for _, _, _, _, bundle, _, _, _ in appends:
        size += len(bundle)
    return size


def place(
    appends: list[Any],
    at: int,
    end: int,
    last: int,
    most: int,
    stored: Any,
    make: Any,
    tuples: list[Any],
    outcome: Any,
    outcomes: list[Any],
) -> tuple[int, int]:
    """Give numbers to the bundles of one partition from `at` to before `end`, behind number
    `last`, up to the first that needs more than that: one that is refused, of more than `most`
    bytes, or that jumps ahead. Returns where that is, and the last number then.

    `make`: `LargeTuple`, of which one per bundle goes into `tuples`; `outcome`: `Outcome`, of which
    one goes into `outcomes`, with result `stored`.
    """
    if at < 0 or end > len(appends):
        raise IndexError("place: a place that is not among the bundles")
    while at < end:
        _, _, _, partition, bundle, head, time, wanted = appends[at]
        _, messages, is_sparse, from_number, to_number, _ = head
        size = len(bundle)
        if size > most:
            break
        if is_sparse:
            first = from_number
            until = to_number
            if first <= last:
                break
        else:
            count = messages
            if last >= HIGHEST or count > HIGHEST - last:
                break
            first = last + 1
            until = last + count
            if wanted is not None and wanted != first:
                break
        tuples.append(_new(make, (tuple_head(partition, first, until, time, size), bundle)))
        framed = size + varint_size(size)
        outcomes.append(_new(outcome, (stored, first, until, framed, bundle)))
        last = until
        at += 1
    return at, last


def varint_size(value: int) -> int:
    """Bytes of a varint."""
    size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


def fixed(source: bytes | memoryview, position: int, size: int) -> int:
    """The little-endian number in `size` bytes from `position` on, which are there."""
    value = 0
    while size > 0:
        size -= 1
        value = value << 8 | source[position + size]
    return value


def sound(
    source: bytes | memoryview,
) -> tuple[tuple[int, int, bool, int, int, int], int] | None:
    """The head of a bundle that is not compressed, as in `BundleHead`, and the time of its first
    message. None where it is compressed or anything is wrong with it."""
    end = len(source)
    if end < 1:
        return None
    flags = source[0]
    if flags & 0x83:
        return None
    position = 1
    count = flags >> 2 & 15
    if count == 0:
        found = varint(source, position, end)
        if found < 0:
            return None
        count = found - (found >> 32 << 32)
        position += found >> 32
        if count == 0:
            return None
    first = 0
    last = 0
    sparse = flags & 0x40 != 0
    base = 1
    until = count
    if sparse:
        if end - position < 8:
            return None
        first = fixed(source, position, 8)
        position += 8
        last = first
        if count > 1:
            found = varint(source, position, end)
            if found < 0:
                return None
            last = first + (found - (found >> 32 << 32)) + 1
            position += found >> 32
        if first < 1 or last < first or last > HIGHEST or last - first < count - 1:
            return None
        base = first
        until = last
    if end - position < count * 2:
        return None
    reason, _, time = walk(b"", source, position, count, sparse, base, until, None)
    if reason:
        return None
    return (0, count, sparse, first, last, position), time


def tuple_head(partition: int, first: int, last: int, time: int, size: int) -> bytes:
    """What stands before the `size` bytes (less than 2^32) of a bundle in its tuple, in MsgPack:
    the header of an array of five, the four numbers (below 2^64), the header of the bundle."""
    out = bytearray(42)
    to = out
    to[0] = 0x95
    at = rows.put_uint(to, 1, partition)
    at = rows.put_uint(to, at, first)
    at = rows.put_uint(to, at, last)
    at = rows.put_uint(to, at, time)
    width = 1 if size < 0x100 else 2 if size < 0x10000 else 4
    to[at] = 0xC4 if width == 1 else 0xC5 if width == 2 else 0xC6
    return bytes(out[: rows.put_number(to, at + 1, size, width)])


def stored(data: bytes) -> tuple[int, int, int, int]:
    """Partition, first and last number of the tuple of a bundle, and where in it the bundle begins.
    Raises ValueError for what no consumer could read, see `fields`."""
    found = array("Q", bytes(40))
    if not fields(data, 0, len(data), found):
        raise ValueError("no tuple of a bundle")
    return found[0], found[1], found[2], found[3]


def fields(raw: bytes, at: int, end: int, out: Any) -> bool:
    """Put what `stored` returns into `out`, and behind it where the bundle ends. Returns whether
    what stands from `at` on is a tuple of the format of topics, with a bundle that has its numbers,
    see `agrees`."""
    if at < end and raw[at] >= 0xDC:
        at += 2 if raw[at] == 0xDC else 4
    at += 1
    field = 0
    while field < 4:
        value = raw[at] if at < end else 0xC1
        at += 1
        if value >= 0x80:
            width = 1 << (value - 0xCC) if 0xCC <= value <= 0xCF else 0
            if width == 0 or width > end - at:
                return False
            value = rows.load(raw, at, width)
            at += width
        if field < 3:
            out[field] = value
        field += 1
    value = raw[at] if at < end else 0xC1
    if value < 0xC4 or value > 0xC6:
        return False
    width = 1 if value == 0xC4 else 2 if value == 0xC5 else 4
    if width > end - at - 1:
        return False
    value = rows.load(raw, at + 1, width)
    at += 1 + width
    if value > end - at:
        return False
    out[3] = at
    out[4] = at + value
    return agrees(raw, at, at + value, out[1], out[2])


def agrees(raw: bytes, at: int, end: int, first: int, last: int) -> bool:
    """Whether there are such numbers, and the bundle from `at` to `end` says in its head that it
    takes them, or as many; not of a head that no client reads."""
    flags = raw[at] if at < end else 0x80
    if flags & 0x80 or flags & 3 > 1 or first < 1 or last < first or last > HIGHEST:
        return False
    count = flags >> 2 & 15
    at += 1
    if count == 0:
        found = pointed(raw, at, end)
        if found < 0:
            return False
        count = found - (found >> 32 << 32)
        at += found >> 32
    if not flags & 0x40:
        return last - first + 1 == count
    if count == 0 or end - at < 8:
        return False
    value = 0
    size = 8
    while size > 0:
        size -= 1
        value = value << 8 | raw[at + size]
    step = 0
    if count > 1:
        found = pointed(raw, at + 8, end)
        if found < 0:
            return False
        step = found - (found >> 32 << 32) + 1
    return value == first and step == last - first and step >= count - 1


def pointed(raw: bytes, position: int, end: int) -> int:
    """`varint`, of bytes that the compiled code has no view of."""
    value = 0
    size = 0
    while size < 5 and position + size < end:
        byte = raw[position + size]
        value |= (byte & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            return -BAD_VARINT if value >> 32 else size << 32 | value
    return -BAD_VARINT


def chunk(
    data: bytes, count: int, partition: int, highest: int, size: int, limit: int, out: list[Any]
) -> tuple[int, int, bool, int, int, bool]:
    """Put the bundles of `count` stored tuples of one partition, which stand one behind the other,
    into `out`, each behind its length, as long as all are `limit` bytes at most; the first of all
    in any case. `highest`: none begins behind that number; `size`: of what is there.

    Small ones are put one behind the other into buffers, others are views of `data`. A tuple that
    no consumer could read is left out before the first bundle, and ends the chunk behind it, since
    consumers count on. Returns the bytes of all then; the first number of the one that did not fit,
    0 if all did; whether no more are to come, as that one, or one of another partition, was seen;
    how many were left out; and of the first bundle that was put its first number, 0 for none, and
    whether it is sparse. Raises ValueError for what is no MsgPack.
    """
    found = array("Q", bytes(40))
    raw = data
    stop = len(data)
    buffer = bytearray(0)
    view = memoryview(buffer)
    room = buffer
    unreadable = start = at = held = after = following = base = 0
    sparse = is_over = False
    while count > 0 and not is_over:
        count -= 1
        place = after
        is_sound = fields(raw, place, stop, found)
        if is_sound and raw[place] == 0x95:
            after = found[4]
        else:
            after = rows.skip(data, place)
            if after < 0:
                raise ValueError("a tuple is malformed")
        if not is_sound:
            is_over = size > 0
            unreadable += 0 if is_over else 1
            continue
        if found[0] != partition or found[1] > highest:
            is_over = True
            continue
        begin = found[3]
        end = found[4]
        rest = end - begin
        framed = end - begin + varint_size(end - begin)
        if size > 0 and framed > limit - size:
            following = found[1]
            is_over = True
            continue
        if base == 0:
            base = found[1]
            sparse = raw[begin] & 0x40 != 0
        size += framed
        is_viewed = after - place >= _VIEWED_BYTES
        if at > start and (is_viewed or framed > held - at):
            out.append(view[start:at])
            start = at
        if is_viewed:
            head = bytearray(framed - (end - begin))
            put_varint(head, 0, rest)
            out.append(bytes(head))
            out.append(memoryview(data)[begin:end])
            continue
        if framed > held - at:
            held = min(stop - place, _BUFFER_BYTES)  # before a bundle stands more in its tuple
            buffer = bytearray(held)
            view = memoryview(buffer)
            room = buffer
            start = at = 0
        at = put_varint(room, at, rest)
        while begin < end:
            room[at] = raw[begin]
            at += 1
            begin += 1
    if at > start:
        out.append(view[start:at])
    return size, following, is_over, unreadable, base, sparse


def put_varint(out: bytearray, at: int, value: int) -> int:
    """Write `value` as a varint; returns where it ends."""
    while value >= 0x80:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


def walk(
    data: bytes | memoryview,
    source: bytes | memoryview,
    position: int,
    count: int,
    sparse: bool,
    first: int,
    last: int,
    out: list[Any] | None,
) -> tuple[int, int, int]:
    """Follow `count` messages from byte `position` to the end of `source`.

    `data`: what parts are cut from, `source` again (the compiled code reads the one, cuts the
    other).
    `first`, `last`: the numbers announced (for an ordinary set: the base, and what the count
    makes of it). `out`: where (number, timestamp in ms, key or None, content) tuples go, or None
    to check only. Returns (0 or a reason, byte where it stopped, time of the first message).
    """
    end = len(source)
    if position < 0:
        raise IndexError("walk: a place before the bytes")
    number = first
    time = 0
    first_time = 0
    index = 0
    while index < count:
        if index != 0 and out is None and not sparse:
            # What most messages are: without a key, of the same time, short.
            while (
                index < count
                and end - position >= 2
                and source[position] == _SAME_TIME
                and source[position + 1] < 0x80
                and end - position - 2 >= source[position + 1]
            ):
                position += 2 + source[position + 1]
                number += 1
                index += 1
            if index == count:
                break
        if position >= end:
            return TRUNCATED, position, first_time
        flags = source[position]
        position += 1
        if index != 0:
            if not sparse:
                number += 1
            elif number >= last:
                return BAD_NUMBER, position, first_time
            elif index == count - 1:
                if flags & _NEXT_NUMBER:
                    return BAD_NUMBER, position, first_time
                number = last
            elif flags & _NEXT_NUMBER:
                number += 1
            else:
                found = varint(source, position, end)
                if found < 0:
                    return -found, position, first_time
                value = found - (found >> 32 << 32)
                position += found >> 32
                if value >= last - number:
                    return BAD_NUMBER, position, first_time
                number += value + 1
        elif sparse and flags & _NEXT_NUMBER:
            return BAD_NUMBER, position, first_time
        if not flags & _SAME_TIME:
            if end - position < 8:
                return TRUNCATED, position, first_time
            time = 0
            shift = 0
            while shift < 64:
                byte = source[position]
                time |= byte << shift
                position += 1
                shift += 8
        if index == 0:
            first_time = time
        key_start = -1
        key_end = -1
        if flags & _HAS_KEY:
            if position >= end:
                return TRUNCATED, position, first_time
            key_start = position + 1
            key_end = key_start + source[position]
            if key_end > end:
                return TRUNCATED, position, first_time
            position = key_end
        if position < end and source[position] < 0x80:
            value = source[position]
            position += 1
        else:
            found = varint(source, position, end)
            if found < 0:
                return -found, position, first_time
            value = found - (found >> 32 << 32)
            position += found >> 32
        if value > end - position:
            return TRUNCATED, position, first_time
        size = value
        if out is not None:
            key = None
            if key_start >= 0:
                key = bytes(data[key_start:key_end])
            out.append((number, time, key, bytes(data[position : position + size])))
        position += size
        index += 1
    if position != end:
        return LEFT_OVER, position, first_time
    return OK, position, first_time
