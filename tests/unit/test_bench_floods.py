"""`logweir bench fair` floods every command that a protocol knows: none can be forgotten."""

from __future__ import annotations

import ast
import inspect
import shutil
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path

import pytest

from logweir.errors import ConfigError
from logweir.replication.greenstack.wire import codec as greenstack
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.memcached.serve.statistics import Statistics
from logweir.replication.memcached.wire import linekernel, text
from logweir.replication.memcached.wire.codec import HEADER, Opcode
from logweir.replication.metrics import Metrics
from logweir.replication.metricsport import MetricsService
from logweir.replication.redis.serve import endpoint as redis
from logweir.replication.synapse.wire.codec import CLIENT_WORDS, SERVER_WORDS
from logweir.replication.tank.wire.messages import MessageType
from logweir.replication.web import service as web
from logweir.store.schema.bulk import interpreted
from logweir.tools.bench import fairpage
from logweir.tools.bench.fair import OURS, Waits
from logweir.tools.bench.floods import PROTOCOLS

ROOT = Path(__file__).resolve().parents[2]


def flooded(protocol: str) -> list[bytes]:
    """All that is sent in floods of a protocol."""
    found = PROTOCOLS[protocol]
    return [*found.floods.values(), *found.floods_anew.values()]


def of_iproto(data: bytes) -> Iterator[int]:
    """The types of requests: the first value of their heads."""
    at = 0
    while at < len(data):
        yield data[at + 7]
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")


def of_memcached(data: bytes) -> Iterator[int]:
    """The opcodes of binary requests."""
    at = 0
    while at < len(data):
        parts = HEADER.unpack_from(data, at)
        yield parts[1]
        at += HEADER.size + parts[6]


def of_greenstack(data: bytes) -> Iterator[int]:
    """The opcodes of frames."""
    frames, problem = greenstack.FrameBuffer().feed(data)
    assert problem is None
    yield from (frame.opcode for frame in frames)


BINARY = {
    "tarantool": (of_iproto, RequestType),
    "memcached": (of_memcached, Opcode),
    "greenstack": (of_greenstack, greenstack.Opcode),
    "tank": (lambda data: iter(data[:1]), MessageType),
}


@pytest.mark.parametrize("protocol", BINARY)
def test_every_binary_command_is_flooded(protocol: str) -> None:
    """Those of the protocol's own table."""
    numbers, table = BINARY[protocol]
    found = {number for data in flooded(protocol) for number in numbers(data)}
    known: Iterable[IntEnum] = table
    assert [one.name for one in known if one not in found] == []


def cases_of(function: object) -> set[bytes]:
    """The first words that a `match` in a function is about."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))  # type: ignore[arg-type]
    found = set()
    for case in (
        one for node in ast.walk(tree) if isinstance(node, ast.Match) for one in node.cases
    ):
        constants = [one.value for one in ast.walk(case.pattern) if isinstance(one, ast.Constant)]
        if constants and isinstance(constants[0], bytes):
            found.add(constants[0])
    return found


def test_every_line_of_memcached_is_flooded() -> None:
    """Those that the kernel knows by name, meta commands, and those of `text`."""
    kernel = interpreted(linekernel)
    slots, step = kernel.NAMES, kernel._NAME_BYTES
    names = {bytes(slots[at + 1 : at + 1 + slots[at]]) for at in range(step, len(slots), step)}
    letters = (b"m%c" % letter for letter in range(0x61, 0x7B))
    metas = {one for one in letters if kernel.command_of(one, 0, 2)}
    words = {data.split()[0] for data in flooded("memcached lines")}
    assert (names | metas | cases_of(text._other)) - {b""} - words == set()


@pytest.mark.parametrize("protocol", ["memcached", "memcached lines"])
def test_every_group_of_statistics_is_flooded(protocol: str) -> None:
    """Those of `Statistics.tell`."""
    sent = b"\n".join(flooded(protocol))
    assert [group for group in cases_of(Statistics.tell) if group not in sent] == []


def test_every_word_of_synapse_is_flooded() -> None:
    """Of followers and of servers."""
    words = {data.split()[0].decode() for data in flooded("synapse")}
    assert (CLIENT_WORDS | SERVER_WORDS) - words == set()


def test_every_command_of_redis_is_flooded() -> None:
    """Also those with a second word."""
    sent = b"".join(flooded("redis")).lower().replace(b"\r\n", b" ")
    missing = []
    for name in redis._COMMANDS:
        words = (b"$%d %s" % (len(word), word) for word in name.split(b"|"))
        if b" ".join(words) not in sent:
            missing.append(name)
    assert missing == []


def test_every_page_is_flooded() -> None:
    """Of the metrics and of the browser's page."""
    pages = set(MetricsService(Metrics())._pages)
    assert pages - PROTOCOLS["metrics"].floods.keys() == set()
    routes = {
        node.args[0].value
        for node in ast.walk(ast.parse(inspect.getsource(web)))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "Route"
        and isinstance(node.args[0], ast.Constant)
    }
    assert routes
    assert routes - PROTOCOLS["web"].floods.keys() - PROTOCOLS["web"].floods_anew.keys() == set()


def test_what_a_peer_lacks_is_flooded_here() -> None:
    """A name that is misspelt would be compared."""
    for protocol in PROTOCOLS.values():
        assert protocol.lacks <= {*protocol.floods, *protocol.floods_anew}


def test_page_has_a_table_for_each_protocol(tmp_path: Path) -> None:
    """With a dash for what the peer was not asked."""
    waits = [
        Waits(OURS, "tarantool", "PING", 1.0, 2.0, 3.0, 9, 1e6, 0.5),
        Waits(OURS, "tarantool", "ID", 1.5, 2.0, 3.0, 9, 1e6, 0.5),
        Waits(OURS, "tank", "PING", 4.0, 5.0, 6.0, 9, 1e6, 2.5),
        Waits("Tarantool", "tarantool", "PING", 7.0, 8.0, 9.0, 9, 1e6, 0.5),
    ]
    page = tmp_path / "page.md"
    page.write_text("no marks", "utf-8")
    with pytest.raises(ConfigError, match="has no place"):
        fairpage.PAGE.check(page)
    shutil.copy(ROOT / "docs" / "fairness.md", page)
    fairpage.PAGE.check(page)
    fairpage.PAGE.write(page, fairpage.section(waits))
    text = page.read_text("utf-8")
    assert "Load average 0.5 … 0.5." in text
    assert "Load average 2.5 … 2.5." in text
    assert "| `PING` | 1.0 | 2.0 | 3.0 | 7.0 | 8.0 | 9.0 |" in text
    assert "| `ID` | 1.5 | 2.0 | 3.0 | – | – | – |" in text
    assert "| `PING` | 4.0 | 5.0 | 6.0 |" in text
