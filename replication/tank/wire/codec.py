"""Tank messages: bytes ↔ values. No I/O, no clock.

Little-endian. A frame is `type u8, length u32` and `length` bytes of payload, the same in both
directions; a length above 268 435 456 is refused. `str8` is a length u8 and as many bytes (names
are kept as text, bytes that are not UTF-8 survive as surrogates), `varint` as in
`logweir.replication.topic.bundle`, IPv4 addresses are four bytes in dotted order.

====  =========  ===============================================================================
type  name       request
====  =========  ===============================================================================
01    publish    version u16, request id u32, client str8, acks u8, ack timeout u32, topics u8,
                 per topic: name str8, partitions u8, per partition: id u16, bundle length varint,
                 bundle
02    fetch      version u16, request id u32, client str8, max wait u64 (ms), min bytes u32,
                 [version >= 3: flags u8], topics u8, per topic: name str8, partitions u8, per
                 partition: id u16, from u64, fetch size u32
03    ping       none; the broker sends one when a connection begins
05    publish    as 01, with the first number u64 between bundle length and bundle
06    partitions request id, topic str8, then partition ids u16 to the end (none: all)
07    create     request id, topic str8, partitions u16, config length varint, config text
08    reload     request id, topic str8, partition u16
0a    status     request id
0b    topics     request id, flags u8
0c    topology   request id, flags u8
====  =========  ===============================================================================

====  ==========================================================================================
type  answer, each beginning with the request id u32
====  ==========================================================================================
01    result bytes in request order: one per partition, but one for a whole topic with ff (unknown
      topic) or fe (read only); fc is followed by IPv4 and port u16. Also the answer to 05
02    before the request id: header length u32 (not counting itself). Then topics u8, per topic:
      name, partitions u8, then once ffff for an unknown topic, or per partition: id u16, status
      u8 and 00: base u64, high water mark u64, chunk length u32 · fe: high water mark, chunk
      length · 01: 0 u64, high water mark u64, 0 u32, first available u64 · fb, fd, ff: nothing ·
      fc: IPv4, port. The chunks follow the header in the same order
06    topic, count u16 (0: unknown topic), per partition: first u64, last u64 and, if both are
      2^64-1, a reason fb, fd or fc with IPv4 and port
07    topic, error u8
08    topic, partition u16, error u8
0a    flags u8, cluster u8, topics u32, partitions u32, open partitions u32, ms spent opening u32,
      start time u32 (Unix seconds), version u32 (400: 4.0)
0b    count u32, cluster u8, per topic: name, enabled u8, partitions u16
0c    ffff: no cluster
====  ==========================================================================================

04 is dead, 09 is for brokers among themselves, others do not exist.
Source: Tank 4.0 (broker and tank-cli), the Java client 0.6 and a Go client, observed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TANK_FRAME_BYTES
from logweir.replication.packing import U16_LOW, U32_LOW, U64_LOW
from logweir.replication.tank.wire.framing import (
    ADDRESS,
    FRAME,
    VIEWED_BYTES,
    Buffer,
    Reader,
)
from logweir.replication.tank.wire.messages import (
    FROM_END,
    Answer,
    Create,
    CreateAnswer,
    CreateError,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    FetchStatus,
    MessageType,
    Partitions,
    PartitionsAnswer,
    PartitionState,
    Ping,
    Publish,
    PublishAnswer,
    PublishPart,
    PublishResult,
    Reload,
    ReloadAnswer,
    ReloadError,
    Request,
    Status,
    StatusAnswer,
    Topics,
    TopicsAnswer,
    Topology,
    TopologyAnswer,
)
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import encode_varint

_PUBLISH: Final = int(MessageType.PUBLISH)  # to look up members of an enumeration takes time
_PUBLISH_AT: Final = int(MessageType.PUBLISH_AT)
_REASONS: Final = {
    kernel.TRUNCATED: "a field runs past the end of its frame",
    kernel.BAD_VARINT: "a varint of more than 32 bits",
    kernel.LEFT_OVER: "bytes after the last field of a frame",
}
_PUBLISHED: Final = struct.Struct("<BII")
_FETCH_PART: Final = struct.Struct("<HQI")
_STATUS: Final = struct.Struct("<BBIIIIII")
_NO_TOPIC: Final = b"\xff\xff"
_NO_CLUSTER: Final = 0xFFFF
_VERSION_WITH_FLAGS: Final = 3


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    if len(data) > 0xFF:
        raise LimitExceeded("length of a name in bytes", 0xFF, len(data))
    return bytes((len(data),)) + data


def _many(count: int, what: str) -> int:
    """A count of one byte."""
    if count > 0xFF:
        raise LimitExceeded(
            f"the number of {what} in one request", 0xFF, count, hint="spread them over several"
        )
    return count


def _frame(kind: MessageType, payload: bytes) -> bytes:
    if len(payload) > TANK_FRAME_BYTES:
        raise LimitExceeded("TANK_FRAME_BYTES", TANK_FRAME_BYTES, len(payload))
    return FRAME.pack(kind, len(payload)) + payload


def _address(value: tuple[str, int] | None) -> bytes:
    ip, port = value or ("0.0.0.0", 0)  # noqa: S104 - four bytes in a frame, nothing is bound
    return ADDRESS.pack(bytes(map(int, ip.split("."))), port)


PING: Final = _frame(MessageType.PING, b"")


def _decode_publish(payload: Buffer, at_numbers: bool) -> Publish:
    found = kernel.publish(payload, payload, at_numbers, VIEWED_BYTES, PublishPart)
    if len(found) == 2:
        reason, offset = found
        raise DecodeError(_REASONS[reason], offset=offset)
    version, request_id, client, acks, timeout_ms, topics = found
    return Publish(request_id, topics, at_numbers, version, client, acks, timeout_ms)


def _decode_fetch(reader: Reader) -> Fetch:
    version, request_id, client = reader.u16(), reader.u32(), reader.text()
    max_wait_ms, min_bytes = reader.u64(), reader.u32()
    flags = reader.u8() if version >= _VERSION_WITH_FLAGS else 0
    topics = []
    for _ in range(reader.u8()):
        name = reader.text()
        count = reader.u8()
        data = reader.take(count * _FETCH_PART.size)
        topics.append(
            (name, tuple(FetchPart(name, *item) for item in _FETCH_PART.iter_unpack(data)))
        )
    if not topics:
        raise DecodeError("a fetch of no topics", offset=reader.position)
    return Fetch(request_id, tuple(topics), max_wait_ms, min_bytes, flags, version, client)


def _decode_partitions(reader: Reader) -> Partitions:
    request_id, topic = reader.u32(), reader.text()
    data = reader.take(reader.left() // 2 * 2)
    return Partitions(request_id, topic, tuple(item[0] for item in U16_LOW.iter_unpack(data)))


def decode_request(kind: int, payload: Buffer) -> Request:
    """What a client asks. Raises `DecodeError`: unknown type, cut field, bytes left over."""
    if kind in (_PUBLISH, _PUBLISH_AT):
        return _decode_publish(payload, kind == _PUBLISH_AT)
    reader = Reader(payload)
    request: Request
    match kind:
        case MessageType.FETCH:
            request = _decode_fetch(reader)
        case MessageType.PING:
            request = Ping()
        case MessageType.PARTITIONS:
            request = _decode_partitions(reader)
        case MessageType.CREATE:
            head = reader.u32(), reader.text(), reader.u16()
            request = Create(*head, reader.take(reader.varint()))
        case MessageType.RELOAD:
            request = Reload(reader.u32(), reader.text(), reader.u16())
        case MessageType.STATUS:
            request = Status(reader.u32())
        case MessageType.TOPICS:
            request = Topics(reader.u32())
            reader.u8()
        case MessageType.TOPOLOGY:
            request = Topology(reader.u32())
            reader.u8()
        case _:
            raise DecodeError(f"message type {kind:#04x} is not known")
    reader.finish()
    return request


def _encode_publish(request: Publish) -> bytes:
    out = bytearray(U16_LOW.pack(request.version) + U32_LOW.pack(request.request_id))
    out += _text(request.client)
    out.append(request.acks)
    out += U32_LOW.pack(request.ack_timeout_ms)
    out.append(_many(len(request.topics), "topics"))
    for name, parts in request.topics:
        out += _text(name)
        out.append(_many(len(parts), f"bundles of topic {name!r}"))
        for part in parts:
            out += U16_LOW.pack(part.partition)
            out += encode_varint(len(part.bundle))
            if request.at_numbers:
                out += U64_LOW.pack(part.first or 0)
            out += part.bundle
    return bytes(out)


def _encode_fetch(request: Fetch) -> bytes:
    out = bytearray(U16_LOW.pack(request.version) + U32_LOW.pack(request.request_id))
    out += _text(request.client)
    out += U64_LOW.pack(request.max_wait_ms) + U32_LOW.pack(request.min_bytes)
    if request.version >= _VERSION_WITH_FLAGS:
        out.append(request.flags)
    out.append(_many(len(request.topics), "topics"))
    for name, parts in request.topics:
        out += _text(name)
        out.append(_many(len(parts), f"partitions of topic {name!r}"))
        for part in parts:
            out += _FETCH_PART.pack(part.partition, part.start, part.size_bytes)
    return bytes(out)


def encode_request(request: Request) -> bytes:
    """The frame of a request. Raises `LimitExceeded` if a count or length does not fit."""
    match request:
        case Publish():
            kind = MessageType.PUBLISH_AT if request.at_numbers else MessageType.PUBLISH
            return _frame(kind, _encode_publish(request))
        case Fetch():
            return _frame(MessageType.FETCH, _encode_fetch(request))
        case Ping():
            return PING
    head = U32_LOW.pack(request.request_id)
    match request:
        case Partitions():
            chosen = b"".join(map(U16_LOW.pack, request.chosen))
            return _frame(MessageType.PARTITIONS, head + _text(request.topic) + chosen)
        case Create():
            body = _text(request.topic) + U16_LOW.pack(request.partitions)
            body += encode_varint(len(request.config)) + request.config
            return _frame(MessageType.CREATE, head + body)
        case Reload():
            body = _text(request.topic) + U16_LOW.pack(request.partition)
            return _frame(MessageType.RELOAD, head + body)
        case Status():
            return _frame(MessageType.STATUS, head)
        case Topics():
            return _frame(MessageType.TOPICS, head + b"\0")
        case Topology():
            return _frame(MessageType.TOPOLOGY, head + b"\0")


def _encode_fetched(part: FetchedPart, chunk_bytes: int) -> bytes:
    if part.status is None or part.partition is None:
        return _NO_TOPIC
    head = U16_LOW.pack(part.partition) + bytes((part.status,))
    mark = U64_LOW.pack(part.high_water_mark)
    match part.status:
        case FetchStatus.FINE:
            return head + U64_LOW.pack(part.base) + mark + U32_LOW.pack(chunk_bytes)
        case FetchStatus.SPARSE:
            return head + mark + U32_LOW.pack(chunk_bytes)
        case FetchStatus.BOUNDARY:
            return head + bytes(8) + mark + bytes(4) + U64_LOW.pack(part.first_available)
        case FetchStatus.OTHER_LEADER:
            return head + _address(part.leader)
        case _:
            return head


def encode_fetch_header(
    request: Fetch, parts: Sequence[FetchedPart], chunk_bytes: Sequence[int]
) -> bytes:
    """Frame head and header of a fetch answer, to be written in one piece before the chunks.

    `parts`: one per partition asked, in order, a topic that is unknown being one part for all of
    them; `chunk_bytes`: the length of the chunk of each, 0 if it has none.
    """
    body = bytearray(U32_LOW.pack(request.request_id))
    body.append(len(request.topics))
    index = 0
    for name, asked in request.topics:
        body += _text(name)
        body.append(len(asked))
        if asked and parts[index].status is None:
            body += _NO_TOPIC
            index += 1
            continue
        for _ in asked:
            body += _encode_fetched(parts[index], chunk_bytes[index])
            index += 1
    size = U32_LOW.size + len(body) + sum(chunk_bytes)
    if size > TANK_FRAME_BYTES:
        raise LimitExceeded("TANK_FRAME_BYTES", TANK_FRAME_BYTES, size)
    return FRAME.pack(MessageType.FETCH, size) + U32_LOW.pack(len(body)) + bytes(body)


def encode_published(request_id: int, raw: bytes) -> bytes:
    """The frame of a `PublishAnswer` of at most 255 * 255 results."""
    return _PUBLISHED.pack(_PUBLISH, U32_LOW.size + len(raw), request_id) + raw


def encode_answer(answer: Answer) -> bytes:
    """The frame of an answer that is not a `FetchAnswer` (see `encode_fetch_header`)."""
    head = U32_LOW.pack(answer.request_id)
    match answer:
        case PublishAnswer():
            return encode_published(answer.request_id, answer.raw)
        case PartitionsAnswer():
            body = bytearray(_text(answer.topic) + U16_LOW.pack(len(answer.partitions)))
            for state in answer.partitions:
                if state.reason is None:
                    body += U64_LOW.pack(state.first) + U64_LOW.pack(state.last)
                    continue
                body += b"\xff" * 16
                body.append(state.reason)
                if state.reason is FetchStatus.OTHER_LEADER:
                    body += _address(state.leader)
            return _frame(MessageType.PARTITIONS, head + bytes(body))
        case CreateAnswer():
            return _frame(MessageType.CREATE, head + _text(answer.topic) + bytes((answer.error,)))
        case ReloadAnswer():
            payload = head + _text(answer.topic) + U16_LOW.pack(answer.partition)
            return _frame(MessageType.RELOAD, payload + bytes((answer.error,)))
        case StatusAnswer():
            fields = _STATUS.pack(
                0,
                0,
                answer.topics,
                answer.partitions,
                answer.open_partitions,
                answer.opening_ms,
                answer.start_time,
                answer.version,
            )
            return _frame(MessageType.STATUS, head + fields)
        case TopicsAnswer():
            body = bytearray(U32_LOW.pack(len(answer.topics)) + b"\0")
            for name, enabled, partitions in answer.topics:
                body += _text(name) + bytes((enabled,)) + U16_LOW.pack(partitions)
            return _frame(MessageType.TOPICS, head + bytes(body))
        case TopologyAnswer():
            return _frame(MessageType.TOPOLOGY, head + U16_LOW.pack(_NO_CLUSTER))
        case FetchAnswer():
            raise TypeError("a fetch answer is written by encode_fetch_header and its chunks")


def _decode_fetched(reader: Reader, topic: str) -> tuple[FetchedPart, int]:
    """One partition of a fetch answer and the length of its chunk."""
    partition = reader.u16()
    status = reader.known(FetchStatus, "fetch status")
    match status:
        case FetchStatus.FINE:
            base, mark, size = reader.u64(), reader.u64(), reader.u32()
            return FetchedPart(topic, partition, status, base, mark), size
        case FetchStatus.SPARSE:
            mark, size = reader.u64(), reader.u32()
            return FetchedPart(topic, partition, status, 0, mark), size
        case FetchStatus.BOUNDARY:
            base, mark, size, first = reader.u64(), reader.u64(), reader.u32(), reader.u64()
            return FetchedPart(topic, partition, status, base, mark, first), size
        case FetchStatus.OTHER_LEADER:
            leader = reader.address()
            return FetchedPart(topic, partition, status, leader=leader), 0
        case _:
            return FetchedPart(topic, partition, status), 0


def _decode_fetch_answer(payload: Buffer) -> FetchAnswer:
    header_bytes = Reader(payload).u32()
    if U32_LOW.size + header_bytes > len(payload):
        raise DecodeError("the header of a fetch answer runs past its frame")
    reader = Reader(payload[: U32_LOW.size + header_bytes], U32_LOW.size)
    request_id = reader.u32()
    found: list[tuple[FetchedPart, int]] = []
    for _ in range(reader.u8()):
        topic, count = reader.text(), reader.u8()
        if count and reader.data[reader.position : reader.position + 2] == _NO_TOPIC:
            reader.take(2)
            found.append((FetchedPart(topic, None, None), 0))
            continue
        found += [_decode_fetched(reader, topic) for _ in range(count)]
    reader.finish()
    chunks = Reader(payload, U32_LOW.size + header_bytes)
    parts = []
    for part, size in found:
        if size:
            part = replace(part, chunk=chunks.take(size))
        parts.append(part)
    chunks.finish()
    return FetchAnswer(request_id, tuple(parts))


def _decode_state(reader: Reader) -> PartitionState:
    first, last = reader.u64(), reader.u64()
    if first != FROM_END or last != FROM_END:
        return PartitionState(first, last)
    reason = reader.known(FetchStatus, "reason")
    leader = reader.address() if reason is FetchStatus.OTHER_LEADER else None
    return PartitionState(0, 0, reason, leader)


def _decode_status_answer(reader: Reader, request_id: int) -> StatusAnswer:
    flags, cluster, topics, partitions = reader.u8(), reader.u8(), reader.u32(), reader.u32()
    if cluster:
        reader.u8()
        reader.text()
        reader.u32()
    del flags
    return StatusAnswer(
        request_id, topics, partitions, reader.u32(), reader.u32(), reader.u32(), reader.u32()
    )


def _decode_topics_answer(reader: Reader, request_id: int) -> TopicsAnswer:
    count, cluster = reader.u32(), reader.u8()
    topics = []
    for _ in range(count):
        topics.append((reader.text(), bool(reader.u8()), reader.u16()))
        if cluster:
            reader.u8()
    return TopicsAnswer(request_id, tuple(topics))


def decode_answer(kind: int, payload: Buffer) -> Answer | Ping:
    """What a broker says. Raises `DecodeError`: unknown type or status, cut field, left over."""
    if kind == MessageType.FETCH:
        return _decode_fetch_answer(payload)
    if kind == MessageType.PING:
        return Ping()
    reader = Reader(payload)
    answer: Answer
    request_id = reader.u32()
    match kind:
        case MessageType.PUBLISH:
            return PublishAnswer(request_id, bytes(payload[U32_LOW.size :]))
        case MessageType.PARTITIONS:
            topic = reader.text()
            states = tuple(_decode_state(reader) for _ in range(reader.u16()))
            answer = PartitionsAnswer(request_id, topic, states)
        case MessageType.CREATE:
            topic = reader.text()
            error = reader.known(CreateError, "outcome of a creation")
            answer = CreateAnswer(request_id, topic, error)
        case MessageType.RELOAD:
            topic, partition = reader.text(), reader.u16()
            outcome = reader.known(ReloadError, "outcome of a reload")
            answer = ReloadAnswer(request_id, topic, partition, outcome)
        case MessageType.STATUS:
            answer = _decode_status_answer(reader, request_id)
        case MessageType.TOPICS:
            answer = _decode_topics_answer(reader, request_id)
        case MessageType.TOPOLOGY:
            if reader.u16() != _NO_CLUSTER:
                reader.take(reader.left())
            answer = TopologyAnswer(request_id)
        case _:
            raise DecodeError(f"message type {kind:#04x} is not known")
    reader.finish()
    return answer


def publish_results(
    answer: PublishAnswer, topics: Sequence[int]
) -> tuple[tuple[PublishResult, ...], ...]:
    """The results of `answer` per topic, whose numbers of partitions are `topics`.

    A result that stands for a whole topic is repeated for each of its partitions. Raises
    `DecodeError` if the bytes do not fit.
    """
    reader = Reader(answer.raw)
    out: list[tuple[PublishResult, ...]] = []
    for count in topics:
        results: list[PublishResult] = []
        while len(results) < count:
            result = reader.known(PublishResult, "publish result")
            if result in (PublishResult.UNKNOWN_TOPIC, PublishResult.READ_ONLY):
                results = [result] * count
                break
            if result is PublishResult.OTHER_LEADER:
                reader.address()
            results.append(result)
        out.append(tuple(results))
    reader.finish()
    return tuple(out)
