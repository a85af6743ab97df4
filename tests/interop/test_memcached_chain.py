"""A chain over three programs: TAP into one server of ours, a real Tarantool replica out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.kvclient import KvClient, store
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.protocols import parse_listen_url, parse_url

pytestmark = pytest.mark.tarantool

COUNT = "return box.space.b ~= nil and box.space.b:count() or -1"
LAST = "local t = box.space.b.index.vbucket:max() return t.key, t.value, t.flags"


def test_what_comes_by_tap_goes_out_to_a_tarantool_replica(tmp_path: Path) -> None:
    """Everything and live changes, with both indexes."""
    listen = [parse_listen_url("tap://:0/b")]
    with (
        Serving(tmp_path / "a", listen=listen, guest="all") as first,
        KvClient(first.port) as client,
    ):
        client.ask(*(store(b"k%d" % n, b"v") for n in range(500)))
        follow = [parse_url(f"tap://127.0.0.1:{first.port}/b")]
        with Serving(tmp_path / "b", follow=follow, guest="replicate") as second:
            log = second.log
            second.wait(lambda: log.schema.get("b") is not None and log.count("b") == 500)
            cfg = {
                "replication": f"127.0.0.1:{second.port}",
                "replication_connect_timeout": 10,
            }
            with RealTarantool(tmp_path / "c", listen=None, cfg=cfg) as replica:
                deletions = (Packet(Opcode.DELETE, b"k%d" % n) for n in range(100))
                client.ask(store(b"z", b"live", flags=7), *deletions)
                second.wait(lambda: replica.eval(COUNT) == [401])
                assert replica.eval(LAST) == ["z", "live", 7]
