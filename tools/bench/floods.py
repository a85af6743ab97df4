"""What `logweir bench fair` serves and asks: its listeners, commands, and the store behind them.

Behind the listeners of `LISTEN` come those for rows of streams over HTTP, for the metrics, and the
page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire.codec import Opcode as Green
from logweir.replication.greenstack.wire.messages import Document, encode_get
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.tank.wire import messages as tank
from logweir.replication.tank.wire.codec import encode_request as tank_request
from logweir.store import open as open_store
from logweir.tools.bench import floodcommands as commands

LARGE_BYTES: Final = 900_000
_ITEMS: Final = 100_000
_STEP: Final = 10_000
_ITEM_BYTES: Final = 100
_BUNDLES: Final = 20

LISTEN: Final = (
    "tarantool://127.0.0.1:0",
    "tank://127.0.0.1:0",
    "synapse://127.0.0.1:0",
    "memcached://127.0.0.1:0",
    "greenstack://127.0.0.1:0",
    "redis://127.0.0.1:0",
)

TARANTOOL: Final = f"""
box.cfg{{listen = '127.0.0.1:0', wal_mode = 'write', log = 'peer.log', memtx_memory = 2^30,
        checkpoint_interval = 0}}
box.schema.user.grant('guest', 'super', nil, nil, {{if_not_exists = true}})
local s = box.schema.space.create('t', {{id = 512}})
s:create_index('primary', {{parts = {{1, 'string'}}}})
s:insert{{'big', string.rep('x', {LARGE_BYTES})}}
local many = box.schema.space.create('many', {{id = 513}})
many:create_index('primary', {{parts = {{1, 'unsigned'}}}})
for first = 0, {commands.ROWS - 1}, {_STEP} do
    box.begin()
    for number = first, first + {_STEP - 1} do many:insert{{number, 'row ' .. number}} end
    box.commit()
end
function quick() return 1 end
function slow()
    local sum = 0
    for number = 0, 1000000 do sum = sum + bit.band(number, 3) end
    return sum
end
while true do
    require('socket').iowait(0, 'R')  -- io.read alone would stop the whole server
    local line = io.read('*l')
    if line == nil then os.exit(0) end
    print(line == 'port' and box.info.listen:match(':(%d+)$') or 0)
    io.flush()
end
"""
"""A Tarantool that holds the same."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One listener. `floods`: name → one request; `floods_anew`: name → what a new connection asks
    for each time, and reads until nothing more comes; `large`: a request with a large answer;
    `part`: of a frame of 32 MiB; `opening`: sent first; `question`: what is asked, each `answer` to
    which has that in it, on a new connection each time if it `asks_anew`; `peer`: which program can
    be compared with, and what it `lacks`."""

    place: int
    floods: dict[str, bytes]
    question: bytes
    answer: bytes
    large: bytes = b""
    part: bytes = b""
    opening: bytes = b""
    asks_anew: bool = False
    floods_anew: dict[str, bytes] = field(default_factory=dict)
    peer: str = ""
    lacks: frozenset[str] = frozenset()


_GET: Final = commands.packet(Opcode.GET, b"none")

PROTOCOLS: Final = {
    "tarantool": Protocol(
        0,
        commands.TARANTOOL,
        commands.iproto(RequestType.PING),
        b"\xce",
        commands.select(512, ["big"]),
        b"\xce" + (32 << 20).to_bytes(4, "big"),
        floods_anew=commands.TARANTOOL_ANEW,
        peer="Tarantool",
        lacks=frozenset(
            (
                *("ID", "CALL status", "BEGIN … COMMIT", "BEGIN … ROLLBACK", "WATCH"),
                *("WATCH … UNWATCH", "EVENT", "WATCH_ONCE", "RAFT", "REGISTER"),
            )
        ),
    ),
    "tank": Protocol(
        1,
        commands.TANK,
        tank_request(tank.Partitions(1, "none")),
        b"",
        commands.tank_fetch(1 << 20),
        b"\x01" + (32 << 20).to_bytes(4, "little"),
    ),
    "synapse": Protocol(
        2,
        commands.SYNAPSE,
        b"REPLICATE t NOW\n",
        b"POSITION",
        b"REPLICATE t 0\n",
        b"NAME ",
        asks_anew=True,
        floods_anew=commands.SYNAPSE_ANEW,
    ),
    "memcached": Protocol(
        3,
        commands.MEMCACHED,
        _GET,
        b"\x81",
        commands.packet(Opcode.GET, b"big"),
        commands.packet(Opcode.SET, b"x", bytes(1_000_000), bytes(8))[:24],
        floods_anew=commands.MEMCACHED_ANEW,
        peer="memcached",
        lacks=frozenset(
            (
                *("GETM", "PEEKM", "SETM", "INCREMENTM", "DECREMENTM", "MARKM", "GATM", "GETR"),
                *("STAT vbucket", "STAT tap", "SASL_LIST_MECHS", "SASL_STEP", "SASL_AUTH"),
                *("SELECT_BUCKET", "SET_VBUCKET", "GET_VBUCKET", "DEL_VBUCKET", "TAP_MUTATION"),
                *("TAP_DELETE", "TAP_OPAQUE", "TAP_VBUCKET_SET", "TAP_CHECKPOINT_START"),
                *("TAP_CHECKPOINT_END", "DEREGISTER_TAP_CLIENT", "CHANGE_VB_FILTER", "TAP_FLUSH"),
                *("TAP_CONNECT dump", "TAP_CONNECT backfill"),
            )
        ),
    ),
    "memcached lines": Protocol(
        3,
        commands.LINES,
        b"get none\r\n",
        b"END",
        floods_anew=commands.LINES_ANEW,
        peer="memcached",
        lacks=frozenset(("stats vbucket", "stats tap")),
    ),
    "greenstack": Protocol(
        4,
        commands.GREENSTACK,
        commands.green(Green.GET, encode_get(b"none")),
        b"",
        commands.green(Green.GET, encode_get(b"big")),
        (32 << 20).to_bytes(4, "big"),
        opening=commands.HELLO,
        floods_anew=commands.GREENSTACK_ANEW,
    ),
    "redis": Protocol(
        5,
        commands.REDIS,
        b"PING\r\n",
        b"+PONG",
        commands.REDIS["get large"],
        b"*2\r\n$4\r\nECHO\r\n$30000000\r\n",
        floods_anew=commands.REDIS_ANEW,
    ),
    "updates": Protocol(
        6,
        commands.UPDATES,
        commands.UPDATES["/nothing"],
        b"HTTP",
        commands.UPDATES["many"],
        b"GET ",
    ),
    "metrics": Protocol(
        7,
        commands.METRICS,
        commands.METRICS["/nothing"],
        b"HTTP",
        commands.METRICS["/metrics"],
        b"GET ",
    ),
    "web": Protocol(
        8,
        commands.WEB,
        commands.WEB["/nothing"],
        b"HTTP",
        commands.WEB["/page.js"],
        b"GET ",
        floods_anew=commands.WEB_ANEW,
    ),
}


def fill(folder: Path) -> None:
    """Make the store that is served."""
    with open_store(folder) as log:
        log.create_space("t", format=[("id", "string"), ("value", "string")])
        log.insert("t", ("big", "x" * LARGE_BYTES))
        log.create_space("many", format=[("id", "unsigned"), ("text", "string")])
        for first in range(0, commands.ROWS, _STEP):
            rows = [(number, f"row {number}") for number in range(first, first + _STEP)]
            log.append("many", rows, one_transaction=False)
        Buckets(log).make("default")
        value = b"v" * _ITEM_BYTES
        items = [(b"key%07d" % n, 0, value, 0, 0, n + 1, 0, 0, "", b"") for n in range(_ITEMS)]
        log.append("default", items, one_transaction=False)


def preparations() -> dict[str, tuple[bytes, ...]]:
    """What is sent to each protocol before the measuring begins."""
    large = b"x" * LARGE_BYTES
    topic = tank_request(tank.Create(1, "t", 1))
    document = Document(b"big", large).encode()
    return {
        "tank": (topic, *(commands.publish(LARGE_BYTES) for _ in range(_BUNDLES))),
        "memcached": (commands.packet(Opcode.SET, b"big", large, bytes(8)),),
        "greenstack": (commands.green(Green.MUTATION, document),),
        "redis": (b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n%s\r\n" % (LARGE_BYTES, large),),
    }
