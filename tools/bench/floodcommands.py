"""Every command of every protocol, as `logweir bench fair` floods it.

For each protocol two tables: what is sent again and again over one connection, and what is asked
for over a new connection each time, since it begins a stream or ends the connection. A name that
begins with the command's own says which command it is; words behind it say how it is used. What
changes much, or slows logins of this address down, stands last.

`tests/unit/test_bench_floods.py` compares them with the protocols' own tables.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

from logweir.replication.greenstack.wire import codec as greenstack
from logweir.replication.greenstack.wire import messages as documents
from logweir.replication.greenstack.wire.many import encode_get_many
from logweir.replication.iproto.wire.codec import IprotoKey, RequestType
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_request
from logweir.replication.memcached.wire.messages import (
    Connect,
    Option,
    TapMessage,
    encode_connect,
    encode_tap,
)
from logweir.replication.tank.wire import messages as tank
from logweir.replication.tank.wire.codec import encode_request as tank_request
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock

ROWS: Final = 1_000_000
_SPACE: Final = 512
_MANY: Final = 513
_INDEXES: Final = 288
_VIEW: Final = 281  # of spaces
_ALL: Final = 2
_NO_LIMIT: Final = 2**32 - 1

FUNCTIONS: Final = """
def quick():
    return 1


def slow():
    return sum(number & 3 for number in range(20_000))
"""
"""What CALL calls."""

# --- Tarantool ------------------------------------------------------------------------------------


def iproto(kind: int, body: dict[int, object] | None = None, stream: int = 0) -> bytes:
    """One request."""
    head = {0: kind, 1: 1, 0x0A: stream} if stream else {0: kind, 1: 1}
    payload = pack(head) + pack(body or {})
    return b"\xce" + len(payload).to_bytes(4, "big") + payload


def select(space: int, key: list[object], **more: int) -> bytes:
    """A SELECT. `more`: `limit`, 1 unless given, `offset`, `iterator`."""
    body: dict[int, object] = {0x10: space, 0x11: 0, 0x20: key, 0x12: more.get("limit", 1)}
    return iproto(
        RequestType.SELECT,
        {**body, 0x13: more.get("offset", 0), 0x14: more.get("iterator", 0)},
    )


def _change(kind: RequestType, **parts: object) -> bytes:
    body = {int(IprotoKey[name.upper()]): value for name, value in parts.items()}
    return iproto(kind, {0x10: _SPACE, **body})


def _call(kind: RequestType, name: str) -> bytes:
    return iproto(kind, {0x22: name, 0x21: []})


def _event(kind: RequestType) -> bytes:
    return iproto(kind, {int(IprotoKey.EVENT_KEY): "box.id"})


def _index() -> bytes:
    """Make an index on the space of many rows, and drop it."""
    row = [_MANY, 1, "second", "tree", {"unique": False}, [[1, "string"]]]
    return iproto(RequestType.INSERT, {0x10: _INDEXES, 0x21: row}) + iproto(
        RequestType.DELETE, {0x10: _INDEXES, 0x11: 0, 0x20: [_MANY, 1]}
    )


def _transaction(end: RequestType, body: dict[int, object], kind: RequestType) -> bytes:
    return b"".join(
        iproto(one, more, stream=1)
        for one, more in ((RequestType.BEGIN, {}), (kind, body), (end, {}))
    )


def _joins(kind: int) -> bytes:
    return iproto(kind, {0x24: str(uuid.UUID(int=1)), 0x26: {}, 0x06: 132608, 0x50: True})


_ROW: Final = {0x10: _SPACE, 0x21: ["x", "y"]}
_PASS_ALL: Final[dict[int, object]] = {
    **{0x10: _MANY, 0x11: 0, 0x12: 1, 0x13: ROWS - 1, 0x14: _ALL, 0x20: []}
}
_OPERATIONS: Final = [["=", 1, "z"]]
_NOTHING: Final = [["!", 2, 1], ["#", 2, 1]]

TARANTOOL: Final = {
    "PING": iproto(RequestType.PING),
    "VOTE": iproto(RequestType.VOTE),
    "ID": iproto(RequestType.ID, {0x54: 3, 0x55: []}),
    "SELECT": select(_SPACE, ["none"]),
    "SELECT large": select(_SPACE, ["big"]),
    "SELECT all": select(_MANY, [], iterator=_ALL, limit=_NO_LIMIT),
    "SELECT offset": select(_MANY, [], iterator=_ALL, offset=ROWS - 1),
    "SELECT view": select(_VIEW, [], limit=_NO_LIMIT, iterator=_ALL),
    "INSERT": _change(RequestType.INSERT, tuple=["big", ""]),
    "REPLACE": _change(RequestType.REPLACE, tuple=["x", "y"]),
    "UPDATE": _change(RequestType.UPDATE, index_id=0, key=["x"], tuple=_OPERATIONS),
    "UPDATE large": _change(RequestType.UPDATE, index_id=0, key=["big"], tuple=_NOTHING),
    "UPSERT": _change(RequestType.UPSERT, tuple=["u", "y"], ops=_OPERATIONS),
    "DELETE": _change(RequestType.DELETE, index_id=0, key=["none"]),
    "CALL": _call(RequestType.CALL, "nothing"),
    "CALL quick": _call(RequestType.CALL, "quick"),
    "CALL slow": _call(RequestType.CALL, "slow"),
    "CALL status": _call(RequestType.CALL, "logweir.status"),
    "CALL_16 quick": _call(RequestType.CALL_16, "quick"),
    "EVAL": iproto(RequestType.EVAL, {0x27: "", 0x21: []}),
    "NOP": iproto(RequestType.NOP),
    "BEGIN … COMMIT": _transaction(RequestType.COMMIT, _ROW, RequestType.REPLACE),
    "BEGIN … ROLLBACK": _transaction(RequestType.ROLLBACK, _PASS_ALL, RequestType.SELECT),
    "RAFT": iproto(RequestType.RAFT),
    "WATCH": _event(RequestType.WATCH),
    "WATCH … UNWATCH": _event(RequestType.WATCH) + _event(RequestType.UNWATCH),
    "EVENT": _event(RequestType.EVENT),
    "WATCH_ONCE": _event(RequestType.WATCH_ONCE),
    "type 0": iproto(0),
    "type 99": iproto(99),
    "REGISTER": _joins(RequestType.REGISTER),
    "FETCH_SNAPSHOT": iproto(RequestType.FETCH_SNAPSHOT),
    "JOIN": _joins(RequestType.JOIN),
    "index": _index(),
    "AUTH": iproto(RequestType.AUTH, {0x23: "nobody", 0x21: ["chap-sha1", b"x" * 20]}),
}
TARANTOOL_ANEW: Final = {"SUBSCRIBE": _joins(RequestType.SUBSCRIBE)}

# --- Tank -----------------------------------------------------------------------------------------


def tank_fetch(max_bytes: int, topic: str = "t") -> bytes:
    """A fetch from the first message on."""
    part = tank.FetchPart(topic, 0, 1, max_bytes)
    return tank_request(tank.Fetch(1, ((topic, (part,)),), client="bench"))


def publish(size: int, count: int = 1, *, first: int | None = None) -> bytes:
    """One bundle of `count` messages of `size` bytes. `first`: its number, for PUBLISH_AT."""
    bundle = encode_bundle([Message(n + 1, 1, None, b"x" * size) for n in range(count)])
    part = tank.PublishPart("t", 0, bundle, first)
    return tank_request(tank.Publish(1, (("t", (part,)),), at_numbers=first is not None))


TANK: Final = {
    "PING": tank_request(tank.Ping()),
    "PARTITIONS": tank_request(tank.Partitions(1, "t")),
    "TOPICS": tank_request(tank.Topics(1)),
    "STATUS": tank_request(tank.Status(1)),
    "TOPOLOGY": tank_request(tank.Topology(1)),
    "CREATE": tank_request(tank.Create(1, "t", 1)),
    "RELOAD": tank_request(tank.Reload(1, "t", 0)),
    "FETCH": tank_fetch(100),
    "FETCH no topic": tank_fetch(100, "none"),
    "FETCH large": tank_fetch(1 << 20),
    "FETCH 16 MB": tank_fetch(16 << 20),
    "PUBLISH": publish(20),
    "PUBLISH 10000": publish(20, 10_000),
    "PUBLISH large": publish(100_000),
    "PUBLISH_AT": publish(20, first=1),
}

# --- memcached, binary ----------------------------------------------------------------------------


def packet(opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"") -> bytes:
    """One binary request."""
    return encode_request(Packet(opcode, key, value, extras))


def _vbucket(opcode: Opcode) -> bytes:
    """A request about vbucket 9, which holds nothing."""
    extras = b"\0\0\0\1" if opcode == Opcode.SET_VBUCKET else b""
    return encode_request(Packet(opcode, extras=extras, vbucket=9))


def _tap(opcode: Opcode, number: int | None = None) -> bytes:
    key = b"tap" if opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE) else b""
    return encode_tap(TapMessage(opcode, key, b"y" * 20 if key else b"", number=number))


_COUNT: Final = struct.pack(">QQI", 1, 1, 0)
_VISIT: Final = bytes(16)
_EXPIRY: Final = bytes(4)
_STORED: Final = {"key": b"x", "value": b"y" * 20, "extras": bytes(8)}

MEMCACHED: Final = {
    **{
        name: packet(Opcode[name], b"none")
        for name in ("GET", "GETQ", "GETK", "GETKQ", "DELETE", "DELETEQ", "GETM", "PEEKM")
    },
    "GET large": packet(Opcode.GET, b"big"),
    **{
        name: packet(Opcode[name], **_STORED)
        for name in ("SET", "SETQ", "ADD", "ADDQ", "REPLACE", "REPLACEQ", "SETM")
    },
    **{
        name: packet(Opcode[name], b"n", extras=_COUNT)
        for name in (
            *("INCREMENT", "INCREMENTQ", "DECREMENT", "DECREMENTQ"),
            *("INCREMENTM", "DECREMENTM"),
        )
    },
    **{
        name: packet(Opcode[name], b"none", b"y")
        for name in ("APPEND", "APPENDQ", "PREPEND", "PREPENDQ")
    },
    "APPEND large": packet(Opcode.APPEND, b"big"),
    **{
        name: packet(Opcode[name], b"x", extras=_EXPIRY)
        for name in ("TOUCH", "GAT", "GATQ", "GATK", "GATKQ", "MARKM")
    },
    **{name: packet(Opcode[name], b"x", extras=_VISIT) for name in ("GATM", "GETR")},
    **{name: packet(Opcode[name]) for name in ("NOOP", "VERSION")},
    "VERBOSITY": packet(Opcode.VERBOSITY, extras=_EXPIRY),
    **{
        " ".join(("STAT", group)).strip(): packet(Opcode.STAT, group.encode())
        for group in ("", "settings", "slabs", "items", "vbucket", "tap", "conns")
    },
    "STAT detail": packet(Opcode.STAT, b"detail on"),
    "SASL_LIST_MECHS": packet(Opcode.SASL_LIST_MECHS),
    "SASL_STEP": packet(Opcode.SASL_STEP, b"PLAIN"),
    "SELECT_BUCKET": packet(Opcode.SELECT_BUCKET, b"default"),
    **{name: _vbucket(Opcode[name]) for name in ("SET_VBUCKET", "GET_VBUCKET", "DEL_VBUCKET")},
    **{name: _tap(Opcode[name]) for name in ("TAP_MUTATION", "TAP_DELETE")},
    "TAP_OPAQUE": _tap(Opcode.TAP_OPAQUE, 0),
    **{
        name: _tap(Opcode[name], 1)
        for name in ("TAP_VBUCKET_SET", "TAP_CHECKPOINT_START", "TAP_CHECKPOINT_END")
    },
    "DEREGISTER_TAP_CLIENT": packet(Opcode.DEREGISTER_TAP_CLIENT, b"nobody"),
    "CHANGE_VB_FILTER": packet(Opcode.CHANGE_VB_FILTER, b"nobody", b"\0\0"),
    "opcode 0x70": packet(0x70),
    "STAT reset": packet(Opcode.STAT, b"reset"),
    "TAP_FLUSH": _tap(Opcode.TAP_FLUSH),
    "FLUSH": packet(Opcode.FLUSH),
    "FLUSHQ": packet(Opcode.FLUSHQ),
    "SASL_AUTH": packet(Opcode.SASL_AUTH, b"PLAIN", b"\0nobody\0x"),
}
MEMCACHED_ANEW: Final = {
    "TAP_CONNECT dump": encode_connect(Connect(b"", Option.DUMP)),
    "TAP_CONNECT backfill": encode_connect(Connect(b"", Option.BACKFILL)),
    "QUIT": packet(Opcode.QUIT),
    "QUITQ": packet(Opcode.QUITQ),
}

# --- memcached, lines -----------------------------------------------------------------------------

_GROUPS: Final = (
    *("", "settings", "slabs", "items", "vbucket", "tap", "conns", "detail on", "reset"),
)

LINES: Final = {
    **{name: f"{name} none\r\n".encode() for name in ("get", "gets", "bget", "mg", "me", "md")},
    "get large": b"get big\r\n",
    "get 100 keys": b"get" + b" key" * 100 + b"\r\n",
    "mg all": b"mg none b c f h k l O1 q s t v N30 R30\r\n",
    **{name: f"{name} 0 x\r\n".encode() for name in ("gat", "gats")},
    **{
        name: f"{name} x 0 0 5\r\nvalue\r\n".encode()
        for name in ("set", "add", "replace", "append", "prepend")
    },
    "cas": b"cas x 0 0 5 1\r\nvalue\r\n",
    "ms": b"ms x 5\r\nvalue\r\n",
    **{name: f"{name} n 1\r\n".encode() for name in ("incr", "decr")},
    "ma": b"ma n N0 J1\r\n",
    "mn": b"mn\r\n",
    "touch": b"touch x 0\r\n",
    "delete": b"delete none\r\n",
    "version": b"version\r\n",
    "shutdown": b"shutdown\r\n",
    "verbosity": b"verbosity 1\r\n",
    "cache_memlimit": b"cache_memlimit 1024\r\n",
    "nonsense": b"nonsense\r\n",
    **{
        " ".join(("stats", group)).strip(): f"stats {group}".strip().encode() + b"\r\n"
        for group in _GROUPS
    },
    "flush_all": b"flush_all\r\n",
}
LINES_ANEW: Final = {"quit": b"quit\r\n"}

# --- Greenstack -----------------------------------------------------------------------------------


def green(opcode: int, payload: bytes = b"", flags: int = 0, **more: bytes) -> bytes:
    """One request. `more`: by name of the flex key."""
    flex = {greenstack.FlexKey.VBUCKET.value: b"\0\0"}
    flex |= {greenstack.FlexKey[name].value: value for name, value in more.items()}
    return greenstack.encode_frame(greenstack.Frame(opcode, 1, payload, flags=flags, flex=flex))


def _bare(opcode: int, payload: bytes = b"") -> bytes:
    return greenstack.encode_frame(greenstack.Frame(opcode, payload=payload))


def _stream(*, snapshot: bool) -> bytes:
    asked = documents.StreamOpen(
        buckets=("default",), window_bytes=1 << 24, snapshot=snapshot, follow=False
    )
    return green(greenstack.Opcode.STREAM_OPEN, asked.encode(), DCP_ID=b"bench")


_FEATURES: Final = tuple(documents.Feature)
HELLO: Final = _bare(
    greenstack.Opcode.HELLO, documents.Hello("bench", "1", "", _FEATURES).encode()
) + _bare(greenstack.Opcode.SELECT_BUCKET, documents.encode_bucket("default"))
_NO_FEATURES: Final = _bare(greenstack.Opcode.HELLO, documents.Hello("bench", "1", "", ()).encode())
_TRANSACTION: Final = b"".join(
    green(
        greenstack.Opcode.MUTATION,
        documents.Document(b"x%d" % number, b"y" * 20).encode(),
        greenstack.Flag.MORE if number < 999 else 0,
    )
    for number in range(1000)
)
_POSITION: Final = VClock({1: 1})

GREENSTACK: Final = {
    "NOOP": green(greenstack.Opcode.NOOP),
    "KEEPALIVE": green(greenstack.Opcode.KEEPALIVE),
    "GET": green(greenstack.Opcode.GET, documents.encode_get(b"none")),
    "GET large": green(greenstack.Opcode.GET, documents.encode_get(b"big")),
    "GET_MANY": green(
        greenstack.Opcode.GET_MANY, encode_get_many([b"key%07d" % n for n in range(1000)])
    ),
    "GET_MANY large": green(greenstack.Opcode.GET_MANY, encode_get_many([b"big"] * 1000)),
    "MUTATION": green(greenstack.Opcode.MUTATION, documents.Document(b"x", b"y" * 20).encode()),
    "MUTATION … transaction": _TRANSACTION,
    "REMOVE": green(greenstack.Opcode.REMOVE, documents.encode_remove(b"none", 0)),
    "LIST_BUCKETS": green(greenstack.Opcode.LIST_BUCKETS),
    "SELECT_BUCKET": green(greenstack.Opcode.SELECT_BUCKET, documents.encode_bucket("default")),
    "CREATE_BUCKET": green(
        greenstack.Opcode.CREATE_BUCKET, documents.encode_create("default", "", 1)
    ),
    "CREATE_BUCKET … DELETE_BUCKET": (
        green(greenstack.Opcode.CREATE_BUCKET, documents.encode_create("second", "", 1))
        + green(greenstack.Opcode.DELETE_BUCKET, documents.encode_delete("second", True))
    ),
    "ASSUME_ROLE": green(greenstack.Opcode.ASSUME_ROLE, documents.encode_role("nobody")),
    "STREAM_CLOSE": green(
        greenstack.Opcode.STREAM_CLOSE, documents.encode_close(0, ""), DCP_ID=b"none"
    ),
    "STREAM_ACK": green(
        greenstack.Opcode.STREAM_ACK, documents.encode_ack(_POSITION, 1), DCP_ID=b"none"
    ),
    "STREAM_MARK": green(greenstack.Opcode.STREAM_MARK),
    "NOTICE": green(greenstack.Opcode.NOTICE, documents.encode_notice(1, "", "")),
    "TRUNCATE": green(greenstack.Opcode.TRUNCATE, documents.encode_bucket("default")),
    "opcode 0x7000": green(0x7000),
    "HELLO": _NO_FEATURES,
    "SASL_AUTH": green(greenstack.Opcode.SASL_AUTH, documents.encode_sasl("PLAIN", b"\0nobody\0x")),
}
GREENSTACK_ANEW: Final = {
    "STREAM_OPEN": _stream(snapshot=False),
    "STREAM_OPEN snapshot": _stream(snapshot=True),
}

# --- Synapse --------------------------------------------------------------------------------------

SYNAPSE: Final = {
    "PING": b"PING 1\n",
    "NAME": b"NAME x\n",
    "ERROR": b"ERROR x\n",
    "REPLICATE NOW": b"REPLICATE t NOW\n",
    "REPLICATE 0": b"REPLICATE t 0\n",
    "REPLICATE many": b"REPLICATE many 0\n",
    "REPLICATE ALL": b"REPLICATE ALL NOW\n",
    "FEDERATION_ACK": b"FEDERATION_ACK 5\n",
    "REMOTE_SERVER_UP": b"REMOTE_SERVER_UP a.b\n",
    "USER_SYNC": b"USER_SYNC @a:b start 1\n",
    "CLEAR_USER_SYNC": b"CLEAR_USER_SYNC x\n",
    "REMOVE_PUSHER": b"REMOVE_PUSHER a b c\n",
    "INVALIDATE_CACHE": b"INVALIDATE_CACHE x []\n",
    "USER_IP": b"USER_IP @a:b []\n",
    "LOCK_RELEASED": b"LOCK_RELEASED []\n",
    "NEW_ACTIVE_TASK": b"NEW_ACTIVE_TASK x\n",
    "CANCEL_TASK": b"CANCEL_TASK x\n",
}
SYNAPSE_ANEW: Final = {
    "POSITION": b"POSITION t 5\n",
    "RDATA": b"RDATA t 5 []\n",
    "SERVER": b"SERVER x\n",
    "SYNC": b"SYNC x\n",
    "REPLICATE none": b"REPLICATE none 0\n",
}

# --- Redis ----------------------------------------------------------------------------------------


def _words(*words: bytes) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


REDIS: Final = {
    "ping": _words(b"PING"),
    "echo": _words(b"ECHO", b"x" * 20),
    "echo large": _words(b"ECHO", b"x" * 100_000),
    "reset": _words(b"RESET"),
    "hello": _words(b"HELLO", b"2"),
    "select": _words(b"SELECT", b"1"),
    "client|id": _words(b"CLIENT", b"ID"),
    "client|getname": _words(b"CLIENT", b"GETNAME"),
    "client|setname": _words(b"CLIENT", b"SETNAME", b"x"),
    "client|setinfo": _words(b"CLIENT", b"SETINFO", b"lib-name", b"x"),
    "subscribe": _words(b"SUBSCRIBE", b"c"),
    "subscribe … unsubscribe": _words(b"SUBSCRIBE", b"d") + _words(b"UNSUBSCRIBE", b"d"),
    "publish": _words(b"PUBLISH", b"c", b"x" * 20),
    "publish … subscribed": (
        _words(b"HELLO", b"3") + _words(b"SUBSCRIBE", b"c") + _words(b"PUBLISH", b"c", b"x" * 20)
    ),
    "pubsub|channels": _words(b"PUBSUB", b"CHANNELS"),
    "pubsub|numsub": _words(b"PUBSUB", b"NUMSUB", b"c"),
    "get": _words(b"GET", b"none"),
    "get large": _words(b"GET", b"big"),
    "set": _words(b"SET", b"x", b"y" * 20, b"PX", b"100000"),
    "del": _words(b"DEL", b"none"),
    "nonsense": _words(b"NONSENSE"),
    "auth": _words(b"AUTH", b"nobody", b"x"),
}
REDIS_ANEW: Final = {"quit": _words(b"QUIT")}

# --- HTTP -----------------------------------------------------------------------------------------


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _updates(stream: str) -> bytes:
    path = f"/_synapse/replication/get_repl_stream_updates/{stream}/x"
    return _get(f"{path}?from_token=0&upto_token=9000000")


UPDATES: Final = {"many": _updates("many"), "t": _updates("t"), "/nothing": _get("/nothing")}
METRICS: Final = {path: _get(path) for path in ("/metrics", "/healthz", "/readyz", "/nothing")}
WEB: Final = {path: _get(path) for path in ("/", "/page.css", "/page.js", "/nothing")}
WEB_ANEW: Final = {"/events": _get("/events")}
