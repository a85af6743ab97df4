"""What `logweir bench fair` sends: the requests of each protocol, and the store they are about."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire import codec as greenstack
from logweir.replication.greenstack.wire.messages import (
    Document,
    Feature,
    Hello,
    StreamOpen,
    encode_bucket,
    encode_get,
)
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.memcached.wire.messages import Connect, Option, encode_connect
from logweir.replication.tank.wire import messages as tank
from logweir.replication.tank.wire.codec import encode_request as tank_request
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.store import open as open_store
from logweir.wal.mp import pack

__all__ = ["LARGE_BYTES", "LISTEN", "PROTOCOLS", "Protocol", "fill", "preparations"]

LARGE_BYTES: Final = 900_000
ROWS: Final = 1_000_000
ITEMS: Final = 100_000
_STEP: Final = 10_000
_SPACE: Final = 512
_MANY: Final = 513
_INDEXES: Final = 288
_VIEW: Final = 281  # of spaces
_ALL: Final = 2
_ITEM_BYTES: Final = 100
_BUNDLES: Final = 20

LISTEN: Final = (
    "tarantool://127.0.0.1:0",
    "tank://127.0.0.1:0",
    "synapse://127.0.0.1:0",
    "memcached://127.0.0.1:0",
    "greenstack://127.0.0.1:0",
)
"""Behind them come the listeners for rows of streams over HTTP, and for the metrics."""


def _iproto(kind: int, body: dict[int, object], stream: int = 0) -> bytes:
    payload = pack({0: kind, 1: 1, 0x0A: stream} if stream else {0: kind, 1: 1}) + pack(body)
    return b"\xce" + len(payload).to_bytes(4, "big") + payload


def _select(
    space: int, key: list[object], *, limit: int = 1, offset: int = 0, iterator: int = 0
) -> bytes:
    body = {0x10: space, 0x11: 0, 0x12: limit, 0x13: offset, 0x14: iterator, 0x20: key}
    return _iproto(RequestType.SELECT, body)


def _updates(stream: str) -> bytes:
    path = f"/_synapse/replication/get_repl_stream_updates/{stream}/x"
    return f"GET {path}?from_token=0&upto_token=9000000 HTTP/1.1\r\n\r\n".encode()


def _many(**how: int) -> bytes:
    return _select(_MANY, [], iterator=_ALL, **how)


def _index() -> bytes:
    """Make an index on the space of many rows, and drop it."""
    row = [_MANY, 1, "second", "tree", {"unique": False}, [[1, "string"]]]
    return _iproto(RequestType.INSERT, {0x10: _INDEXES, 0x21: row}) + _iproto(
        RequestType.DELETE, {0x10: _INDEXES, 0x11: 0, 0x20: [_MANY, 1]}
    )


def _reading_transaction() -> bytes:
    """A SELECT that passes all rows, in a transaction of a stream."""
    body = {0x10: _MANY, 0x11: 0, 0x12: 1, 0x13: ROWS - 1, 0x14: _ALL, 0x20: []}
    return b"".join(
        _iproto(kind, more, stream=1)
        for kind, more in (
            (RequestType.BEGIN, {}),
            (RequestType.SELECT, body),
            (RequestType.ROLLBACK, {}),
        )
    )


def _joins(kind: int) -> bytes:
    return _iproto(kind, {0x24: str(uuid.UUID(int=1)), 0x26: {}, 0x06: 132608, 0x50: True})


def _tap(opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"") -> bytes:
    return struct.pack(
        ">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0,
        len(key) + len(value) + len(extras), 0, 0,
    ) + extras + key + value  # fmt: skip


def _green(opcode: int, payload: bytes = b"", flags: int = 0, **more: bytes) -> bytes:
    flex = {greenstack.FlexKey.VBUCKET.value: b"\0\0"}
    flex |= {greenstack.FlexKey[name].value: value for name, value in more.items()}
    return greenstack.encode_frame(greenstack.Frame(opcode, 1, payload, flags=flags, flex=flex))


def _green_stream(*, snapshot: bool) -> bytes:
    asked = StreamOpen(buckets=("default",), window_bytes=1 << 24, snapshot=snapshot, follow=False)
    hello = Hello("bench", "1", "", (Feature.CHANGE_STREAM,)).encode()
    return greenstack.encode_frame(
        greenstack.Frame(greenstack.Opcode.HELLO, payload=hello)
    ) + _green(greenstack.Opcode.STREAM_OPEN, asked.encode(), DCP_ID=b"bench")


def _fetch(max_bytes: int) -> bytes:
    part = tank.FetchPart("t", 0, 1, max_bytes)
    return tank_request(tank.Fetch(1, (("t", (part,)),), client="bench"))


def _publish(size: int, count: int = 1) -> bytes:
    bundle = encode_bundle([Message(n + 1, 1, None, b"x" * size) for n in range(count)])
    return tank_request(tank.Publish(1, (("t", (tank.PublishPart("t", 0, bundle),)),)))


_HELLO: Final = greenstack.encode_frame(
    greenstack.Frame(greenstack.Opcode.HELLO, payload=Hello("bench", "1", "", ()).encode())
) + greenstack.encode_frame(
    greenstack.Frame(greenstack.Opcode.SELECT_BUCKET, payload=encode_bucket("default"))
)
_COUNT: Final = struct.pack(">QQI", 1, 1, 0)
_TRANSACTION: Final = b"".join(
    _green(
        greenstack.Opcode.MUTATION,
        Document(b"x%d" % number, b"y" * 20).encode(),
        greenstack.Flag.MORE if number < 999 else 0,
    )
    for number in range(1000)
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One listener. `floods`: name → one request; `streams`: name → what a new connection asks for
    each time, and reads until nothing more comes; `large`: a request with a large answer; `part`:
    of a frame of 32 MiB; `opening`: sent first; `ask`: the question, each `answer` of which begins
    so, on a new connection each time where `anew`."""

    place: int
    floods: dict[str, bytes]
    question: bytes
    answer: bytes
    large: bytes
    part: bytes
    opening: bytes = b""
    anew: bool = False
    streams: dict[str, bytes] = field(default_factory=dict)


PROTOCOLS: Final = {
    "tarantool": Protocol(
        0,
        {
            "PING": _iproto(RequestType.PING, {}),
            "VOTE": _iproto(RequestType.VOTE, {}),
            "SELECT": _select(_SPACE, ["none"]),
            "SELECT large": _select(_SPACE, ["big"]),
            "REPLACE": _iproto(RequestType.REPLACE, {0x10: 512, 0x21: ["x", "y"]}),
            "CALL": _iproto(RequestType.CALL, {0x22: "nothing", 0x21: []}),
            "EVAL": _iproto(RequestType.EVAL, {0x27: "", 0x21: []}),
            "CALL status": _iproto(RequestType.CALL, {0x22: "logweir.status", 0x21: []}),
            "type 99": _iproto(99, {}),
            "SELECT all": _many(limit=2**32 - 1),
            "SELECT offset": _many(offset=ROWS - 1),
            "SELECT in stream": _reading_transaction(),
            "SELECT view": _select(_VIEW, [], limit=2**32 - 1, iterator=_ALL),
            "FETCH_SNAPSHOT": _iproto(RequestType.FETCH_SNAPSHOT, {}),
            "JOIN": _joins(RequestType.JOIN),
            "index": _index(),
        },
        _iproto(RequestType.PING, {}),
        b"\xce",
        _select(_SPACE, ["big"]),
        b"\xce" + (32 << 20).to_bytes(4, "big"),
        streams={"SUBSCRIBE": _joins(RequestType.SUBSCRIBE)},
    ),
    "tank": Protocol(
        1,
        {
            "partitions": tank_request(tank.Partitions(1, "t")),
            "topics": tank_request(tank.Topics(1)),
            "status": tank_request(tank.Status(1)),
            "fetch": _fetch(100),
            "fetch large": _fetch(1 << 20),
            "fetch 16 MB": _fetch(16 << 20),
            "publish": _publish(20),
            "publish 10,000": _publish(20, 10_000),
            "publish large": _publish(100_000),
        },
        tank_request(tank.Partitions(1, "none")),
        b"",
        _fetch(1 << 20),
        b"\x01" + (32 << 20).to_bytes(4, "little"),
    ),
    "synapse": Protocol(
        2,
        {
            "PING": b"PING 1\n",
            "NAME": b"NAME x\n",
            "REPLICATE NOW": b"REPLICATE t NOW\n",
            "REPLICATE 0": b"REPLICATE t 0\n",
            "FEDERATION_ACK": b"FEDERATION_ACK 5\n",
            "REMOTE_SERVER_UP": b"REMOTE_SERVER_UP a.b\n",
            "REPLICATE many": b"REPLICATE many 0\n",
        },
        b"REPLICATE t NOW\n",
        b"POSITION",
        b"REPLICATE t 0\n",
        b"NAME ",
        anew=True,
    ),
    "memcached": Protocol(
        3,
        {
            "VERSION": _tap(0x0B),
            "NOOP": _tap(0x0A),
            "GET": _tap(0, b"none"),
            "GET large": _tap(0, b"big"),
            "SET": _tap(1, b"x", b"y" * 20, bytes(8)),
            "INCREMENT": _tap(5, b"n", extras=_COUNT),
            "TOUCH": _tap(0x1C, b"none", extras=bytes(4)),
            "STAT": _tap(0x10),
            "opcode 0x70": _tap(0x70),
            "SASL_LIST_MECHS": _tap(0x20),
            "get": b"get none\r\n",
            "get 100 keys": b"get" + b" key" * 100 + b"\r\n",
            "mg": b"mg none v\r\n",
            "FLUSH": _tap(0x08),
        },
        _tap(0, b"none"),
        b"\x81",
        _tap(0, b"big"),
        struct.pack(">BBHBBHIIQ", 0x80, 1, 1, 8, 0, 0, 1_000_009, 0, 0),
        streams={
            "TAP DUMP": encode_connect(Connect(b"", Option.DUMP)),
            "TAP BACKFILL": encode_connect(Connect(b"", Option.BACKFILL)),
        },
    ),
    "greenstack": Protocol(
        4,
        {
            "NOOP": _green(greenstack.Opcode.NOOP),
            "GET": _green(greenstack.Opcode.GET, encode_get(b"none")),
            "GET large": _green(greenstack.Opcode.GET, encode_get(b"big")),
            "MUTATION": _green(greenstack.Opcode.MUTATION, Document(b"x", b"y" * 20).encode()),
            "LIST_BUCKETS": _green(greenstack.Opcode.LIST_BUCKETS),
            "SELECT_BUCKET": _green(greenstack.Opcode.SELECT_BUCKET, encode_bucket("default")),
            "HELLO": _HELLO,
            "transaction": _TRANSACTION,
        },
        _green(greenstack.Opcode.GET, encode_get(b"none")),
        b"",
        _green(greenstack.Opcode.GET, encode_get(b"big")),
        (32 << 20).to_bytes(4, "big"),
        opening=_HELLO,
        streams={
            "STREAM": _green_stream(snapshot=False),
            "STREAM snapshot": _green_stream(snapshot=True),
        },
    ),
    "updates": Protocol(
        5,
        {"many": _updates("many"), "t": _updates("t")},
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP",
        _updates("many"),
        b"GET ",
    ),
    "metrics": Protocol(
        6,
        {"GET": b"GET /metrics HTTP/1.1\r\n\r\n", "404": b"GET / HTTP/1.1\r\n\r\n"},
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET ",
    ),
}


def fill(folder: Path) -> None:
    """Make the store that is served."""
    with open_store(folder) as log:
        log.create_space("t", format=[("id", "string"), ("value", "string")])
        log.insert("t", ("big", "x" * LARGE_BYTES))
        log.create_space("many", format=[("id", "unsigned"), ("text", "string")])
        for first in range(0, ROWS, _STEP):
            rows = [(number, f"row {number}") for number in range(first, first + _STEP)]
            log.append("many", rows, one_transaction=False)
        Buckets(log).make("default")
        value = b"v" * _ITEM_BYTES
        items = [(b"key%07d" % n, 0, value, 0, 0, n + 1, 0, 0, "", b"") for n in range(ITEMS)]
        log.append("default", items, one_transaction=False)


def preparations() -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    """What is sent to each protocol before the measuring begins."""
    topic = tank_request(tank.Create(1, "t", 1))
    document = Document(b"big", b"x" * LARGE_BYTES).encode()
    return (
        ("tank", (topic, *(_publish(LARGE_BYTES) for _ in range(_BUNDLES)))),
        ("memcached", (_tap(1, b"big", b"x" * LARGE_BYTES, bytes(8)),)),
        ("greenstack", (_green(greenstack.Opcode.MUTATION, document),)),
    )
