"""What the client of a server benchmark sends: requests as bytes, made before the clock starts.

A request's answer has the same length as every other one of its `Requests`, whatever the server;
so while the clock runs, answers are counted by their bytes. Afterwards `Protocol.read` takes each
of them apart: which request it answers, whether it was refused, and what it holds.

Statements work on a space of `MsgPack` tuples of `TUPLE_BYTES` bytes, `[id, name, text, number,
price]`, filled with `rows` of them. In one round every key is used once at most, so that what is in
the space afterwards does not depend on the order in which connections are served.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, Final

from logweir.errors import RemoteProtocolError
from logweir.replication.greenstack.wire import codec as greenstack
from logweir.replication.greenstack.wire.messages import (
    Document,
    Hello,
    decode_get_answer,
    encode_bucket,
    encode_get,
)
from logweir.replication.iproto.wire.codec import GREETING_BYTES, IprotoKey, RequestType
from logweir.replication.memcached.wire import codec as tap
from logweir.wal.mp import packer

STATEMENTS: Final = (
    *("insert", "replace", "update", "upsert", "delete"),
    *("select", "range", "mixed95", "mixed50"),
)
"""`select`: by primary key; `range`: GE, 100 tuples; `mixed95`: one REPLACE after 19 SELECTs;
`mixed50`: REPLACE and SELECT in turn. UPDATE and UPSERT add one to the field `number`."""

TUPLE_BYTES: Final = 100
VALUE_BYTES: Final = 100
RANGE_TUPLES: Final = 100
BUCKET: Final = "bench"

_FIRST_KEY: Final = 1_000_000
_FIRST_NUMBER: Final = 20_000_000
_TUPLES_OF_A_NUMBER: Final = 10
_TEXT: Final = "x" * 69
_SPACES_SPACE: Final = 280
_INDEXES_SPACE: Final = 288
_EQ: Final = 0
_ALL: Final = 2
_GE: Final = 5
_OPS: Final = [["+", 3, 1]]
_VBUCKET: Final = {greenstack.FlexKey.VBUCKET.value: b"\0\0"}


@dataclass(frozen=True, slots=True)
class Requests:
    """Request i, from 0 on, is stream[bounds[i]:bounds[i + 1]]."""

    stream: bytes
    bounds: list[int]

    def __len__(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a connection begins, and how its answers are told apart.

    `size`: the length of the answer that begins with so many bytes, 0 if they are too few;
    `read`: number of the request and what the answer holds; raises `RemoteProtocolError` for
    one that refuses. `greeting_bytes`: what the server says first; `opening`: what it is told
    then, which it answers with `opening_answers` answers.
    """

    size: Callable[[bytes], int]
    read: Callable[[bytes], tuple[int, bytes]]
    greeting_bytes: int = 0
    opening: bytes = b""
    opening_answers: int = 0


def changes(statement: str) -> bool:
    """Whether a statement of `STATEMENTS` changes tuples, at times at least."""
    return statement not in ("select", "range")


def bench_tuple(key: int, number: int) -> tuple[Any, ...]:
    """The tuple with the `key`-th id, counted from 0, and the `number`-th number."""
    return (_FIRST_KEY + key, "customer", _TEXT, _FIRST_NUMBER + number, 1.5)


def number_of(key: int, rows: int) -> int:
    """The number that the `key`-th tuple of `rows` is filled with: ten tuples have each."""
    return key * 7919 % max(1, rows // _TUPLES_OF_A_NUMBER)


def statement_requests(
    statement: str, space: int, *, rows: int, count: int, round: int
) -> Requests:
    """`count` requests of one of `STATEMENTS`, or `fill`: INSERTs of the tuples it works on.

    `round`: from 0 on; INSERT, DELETE and every other UPSERT use keys of their own in each.
    `fill` has the `count` tuples that round's DELETEs remove; as round -1 the first ones.
    """
    random = Random(f"{statement} {round}")  # noqa: S311 - an order only
    make = packer()
    own = rows * (round + 1)
    keys = list(range(own, own + count))
    if statement == "delete":
        random.shuffle(keys)
    elif statement not in ("insert", "fill"):
        limit = rows - RANGE_TUPLES if statement == "range" else rows
        keys = [key % limit for key in random.sample(range(rows), count)]
    bodies: Iterable[tuple[int, dict[int, Any]]]
    if statement == "upsert":
        mixed = [own + i if i % 2 else key for i, key in enumerate(keys)]
        bodies = (_upsert(key, number_of(key, rows)) for key in mixed)
    elif statement in ("mixed95", "mixed50"):
        every = 20 if statement == "mixed95" else 2
        bodies = (
            _one("select" if (i + 1) % every else "replace", key, number_of(key + round, rows))
            for i, key in enumerate(keys)
        )
    else:
        shift = round + 1 if statement == "replace" else 0
        bodies = (_one(statement, key, number_of(key + shift, rows)) for key in keys)
    return _joined(
        _request(make, kind, sync, space, body) for sync, (kind, body) in enumerate(bodies, 1)
    )


def _one(statement: str, key: int, number: int) -> tuple[int, dict[int, Any]]:
    at = [_FIRST_KEY + key]
    if statement in ("insert", "fill"):
        return RequestType.INSERT, {IprotoKey.TUPLE: bench_tuple(key, number)}
    if statement == "replace":
        return RequestType.REPLACE, {IprotoKey.TUPLE: bench_tuple(key, number)}
    if statement == "update":
        return RequestType.UPDATE, {IprotoKey.KEY: at, IprotoKey.TUPLE: _OPS, 0x11: 0, 0x15: 0}
    if statement == "delete":
        return RequestType.DELETE, {IprotoKey.KEY: at, IprotoKey.INDEX_ID: 0}
    if statement == "select":
        return RequestType.SELECT, _select(at, _EQ, 1)
    return RequestType.SELECT, _select(at, _GE, RANGE_TUPLES)


def _upsert(key: int, number: int) -> tuple[int, dict[int, Any]]:
    tuple_ = bench_tuple(key, number)
    return RequestType.UPSERT, {IprotoKey.TUPLE: tuple_, IprotoKey.OPS: _OPS, 0x15: 0}


def _select(key: list[int], iterator: int, limit: int, index: int = 0) -> dict[int, Any]:
    return {
        IprotoKey.INDEX_ID: index,
        IprotoKey.LIMIT: limit,
        IprotoKey.OFFSET: 0,
        IprotoKey.ITERATOR: iterator,
        IprotoKey.KEY: key,
    }


def definition_requests(space: int, *, index: bool, drop: bool) -> list[Requests]:
    """What makes a space, with an index on the field `number` or without, or drops it."""
    if drop:
        keys = [(_INDEXES_SPACE, [space, number]) for number in range(index, -1, -1)]
        deletes = [*keys, (_SPACES_SPACE, [space])]
        return [
            _joined([_request(packer(), RequestType.DELETE, 1, where, {0x11: 0, 0x20: key})])
            for where, key in deletes
        ]
    fields = ("id", "unsigned"), ("name", "string"), ("text", "string")
    more = ("number", "unsigned"), ("price", "number")
    format = [{"name": name, "type": type} for name, type in (*fields, *more)]
    tuples: list[tuple[int, list[Any]]] = [
        (_SPACES_SPACE, [space, 1, f"bench{space}", "memtx", 0, {}, format]),
        (_INDEXES_SPACE, [space, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
    ]
    if index:
        parts = [[3, "unsigned"]]
        tuples.append((_INDEXES_SPACE, [space, 1, "number", "tree", {"unique": False}, parts]))
    return [
        _joined([_request(packer(), RequestType.INSERT, 1, where, {0x21: one})])
        for where, one in tuples
    ]


def select_request(space: int, index: int) -> Requests:
    """One SELECT of everything, in the order of an index."""
    body = _select([], _ALL, 2**32 - 1, index)
    return _joined([_request(packer(), RequestType.SELECT, 1, space, body)])


def _request(
    make: Callable[[Any], bytes], kind: int, sync: int, space: int, body: dict[int, Any]
) -> bytes:
    whole = {int(key): value for key, value in body.items()}
    payload = make({0: int(kind), 1: sync}) + make({int(IprotoKey.SPACE_ID): space, **whole})
    return b"\xce" + len(payload).to_bytes(4, "big") + payload


def _joined(requests: Iterable[bytes]) -> Requests:
    parts = list(requests)
    return Requests(b"".join(parts), list(accumulate(map(len, parts), initial=0)))


# --- buckets --------------------------------------------------------------------------------------


def bucket_requests(protocol: str, command: str, *, items: int, count: int, round: int) -> Requests:
    """`count` GETs or SETs (`command`: `get`, `set`) of a bucket with `items` items.

    A value is `VALUE_BYTES` bytes that do not compress, others in each round. `protocol`:
    `memcached` or `greenstack`.
    """
    order = list(range(items))
    Random(round).shuffle(order)  # noqa: S311 - an order only
    random = Random(round)  # noqa: S311 - only different
    values = {number: random.randbytes(VALUE_BYTES) for number in order[:count]}
    make = _memcached if protocol == "memcached" else _greenstack
    return _joined(
        make(command, opaque, b"key%07d" % number, values[number])
        for opaque, number in enumerate(order[:count], 1)
    )


def _memcached(command: str, opaque: int, key: bytes, value: bytes) -> bytes:
    if command == "get":
        return tap.encode_request(tap.Packet(tap.Opcode.GET, key, opaque=opaque))
    extras = struct.pack(">II", 0, 0)
    return tap.encode_request(tap.Packet(tap.Opcode.SET, key, value, extras, opaque=opaque))


def _greenstack(command: str, opaque: int, key: bytes, value: bytes) -> bytes:
    if command == "get":
        opcode, payload = greenstack.Opcode.GET, encode_get(key)
    else:
        opcode, payload = greenstack.Opcode.MUTATION, Document(key, value).encode()
    return greenstack.encode_frame(greenstack.Frame(opcode, opaque, payload, flex=_VBUCKET))


# --- answers --------------------------------------------------------------------------------------

_IPROTO_OK: Final = b"\x83\x00\xce\0\0\0\0\x01\xcf"
_IPROTO_HEAD_BYTES: Final = 28


def _iproto_size(data: bytes) -> int:
    return 5 + int.from_bytes(data[1:5], "big") if len(data) >= 5 else 0


def _read_iproto(answer: bytes) -> tuple[int, bytes]:
    if answer[0] != 0xCE or answer[5:14] != _IPROTO_OK:
        raise RemoteProtocolError(f"a request is refused: {answer[5:200]!r}")
    return int.from_bytes(answer[14:22], "big"), answer[_IPROTO_HEAD_BYTES:]


def _memcached_size(data: bytes) -> int:
    return 24 + int.from_bytes(data[8:12], "big") if len(data) >= 12 else 0


def _read_memcached(answer: bytes) -> tuple[int, bytes]:
    if answer[0] != 0x81 or answer[6:8] != b"\0\0":
        raise RemoteProtocolError(f"a command is refused: {answer[:200]!r}")
    return int.from_bytes(answer[12:16], "big"), answer[24 + answer[4] :]


def _greenstack_size(data: bytes) -> int:
    return 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else 0


def _read_greenstack(answer: bytes) -> tuple[int, bytes]:
    frames, _, _, problem = greenstack.decode_frames(answer)
    if problem is not None or frames[0].status != greenstack.Status.SUCCESS:
        raise RemoteProtocolError(f"a request is refused: {answer[:200]!r}")
    frame = frames[0]
    is_get = frame.opcode == greenstack.Opcode.GET
    return frame.opaque, decode_get_answer(frame.payload).value if is_get else b""


def _greenstack_opening() -> bytes:
    hello = Hello("bench", "1", "", ()).encode()
    return greenstack.encode_frame(
        greenstack.Frame(greenstack.Opcode.HELLO, payload=hello)
    ) + greenstack.encode_frame(
        greenstack.Frame(greenstack.Opcode.SELECT_BUCKET, payload=encode_bucket(BUCKET))
    )


PROTOCOLS: Final = {
    "iproto": Protocol(_iproto_size, _read_iproto, greeting_bytes=GREETING_BYTES),
    "memcached": Protocol(_memcached_size, _read_memcached),
    "greenstack": Protocol(
        _greenstack_size, _read_greenstack, opening=_greenstack_opening(), opening_answers=2
    ),
}
