"""A hub: five upstreams, one server that follows them all, and followers of all five protocols.

Each upstream fills one space of the hub:

==========  =========  ============================================================  ===============
upstream    here       program                                                       written with
==========  =========  ============================================================  ===============
tarantool   orders     Tarantool 2.6, of which the hub is a replica                  its own console
tank        events     `logweir serve`: no package has a Tank broker                 our client
tap         sessions   `logweir serve`: memcached has no TAP since 2012              binary protocol
greenstack  carts      `logweir serve`: no complete server was ever published        binary protocol
synapse     presence   `logweir serve`, by lines; `test_real_synapse` has the        binary protocol
                       homeserver
==========  =========  ============================================================  ===============
"""

from __future__ import annotations

import json
import select
from collections.abc import Iterable, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from support.nursery import LOGWEIR
from support.nursery import Program as Running
from support.ports import free_port
from support.synapseclient import Client as SynapseClient

from interop.kvclient import KvClient, store
from interop.realtarantool import RealTarantool, TarantoolDied, TarantoolError
from logweir.errors import LogweirError
from logweir.replication.memcached.client import TapStream
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.tank.client.sync import Client as TankClient

KINDS = ("tarantool", "tank", "tap", "greenstack", "synapse")
SPACES = {
    "tarantool": "orders",
    "tank": "events",
    "tap": "sessions",
    "greenstack": "carts",
    "synapse": "synapse_presence",
}
STREAM = "presence"
PARTITIONS = 2
Contents = dict[str, Any]
"""What a source holds, or a follower was told of it, by key."""

LOST = (OSError, EOFError, AssertionError, LogweirError, TarantoolDied, TarantoolError)
"""What a peer that is killed raises."""


class Program:
    """`logweir serve`. `words`: its options; killed and started again as often as one likes."""

    def __init__(self, folder: Path, listen: Sequence[str], *words: str) -> None:
        self.folder = folder
        addresses = [word for address in listen for word in ("--listen", address)]
        self._words = [str(folder), *addresses, *words, "--allow-guest", "all"]
        self._process: Running | None = None

    def start(self, *, wait: bool = True) -> None:
        """Until it listens, or just begin."""
        words = ["--json", "serve", *self._words]
        with open(self.folder.with_suffix(".log"), "ab") as log:
            self._process = LOGWEIR.begin(*words, stdin=DEVNULL, stdout=PIPE, stderr=log.fileno())
        self._told = ""
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until it listens."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._told:
            ready, _, _ = select.select([self._process.stdout], [], [], 60)
            self._told = self._process.stdout.readline() if ready else ""
        assert self._told, self.folder.with_suffix(".log").read_text()[-2000:]

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None


def text(data: bytes | None) -> Any:
    """Bytes as followers by JSON are given them."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def folded(kind: str, key: Any, data: Sequence[Any] | None) -> tuple[str, Any]:
    """A tuple of a space (None: it is gone) as key and value of `Contents`."""
    if kind == "synapse":
        return json.dumps(key[1:]), None if data is None else data[3]
    if kind in ("tap", "greenstack"):
        return text(key[0]), None if data is None else text(data[2])
    return json.dumps(key), None if data is None else list(data)


# --- upstreams ------------------------------------------------------------------------------------


class Upstreams:
    """All five. `ports`: of each, in the protocol that the hub speaks to it."""

    def __init__(self, folder: Path) -> None:
        self.ports = {kind: free_port() for kind in KINDS}
        self._keyed = {kind: free_port() for kind in ("greenstack", "synapse")}
        self._keyed["tap"] = self.ports["tap"]
        self.box = RealTarantool(
            folder / "tarantool",
            listen=f"127.0.0.1:{self.ports['tarantool']}",
            cfg={"replication_timeout": 0.3, "wal_mode": "fsync"},
        )
        self.programs = {
            kind: Program(folder / kind, listen)
            for kind, listen in {
                "tank": [f"tank://127.0.0.1:{self.ports['tank']}"],
                "tap": [f"tap://127.0.0.1:{self.ports['tap']}/sessions"],
                "greenstack": [
                    f"greenstack://127.0.0.1:{self.ports['greenstack']}",
                    f"memcached://127.0.0.1:{self._keyed['greenstack']}/carts",
                ],
                "synapse": [
                    f"synapse://127.0.0.1:{self.ports['synapse']}",
                    f"memcached://127.0.0.1:{self._keyed['synapse']}/{STREAM}",
                ],
            }.items()
        }

    def start(self) -> None:
        """All of them, with what they are to be filled with later."""
        self.box.start()
        self.box.eval(
            "box.schema.user.grant('guest', 'super') "
            "box.schema.space.create('orders'):create_index('pk')"
        )
        for program in self.programs.values():
            program.start()
        with TankClient(f"tank://127.0.0.1:{self.ports['tank']}") as client:
            client.create_topic("events", PARTITIONS)

    def kill(self, kind: str) -> None:
        """SIGKILL one."""
        if kind == "tarantool":
            self.box.kill()
        else:
            self.programs[kind].kill()

    def restart(self, kind: str) -> None:
        """Have one start again, on its port."""
        if kind == "tarantool":
            self.box.start()
        else:
            self.programs[kind].start(wait=False)

    def ready(self) -> None:
        """Wait until all listen that were started again."""
        for program in self.programs.values():
            program.ready()

    def end(self) -> None:
        """Kill all that run."""
        if self.box.is_running:
            self.box.kill()
        for program in self.programs.values():
            program.kill()

    @property
    def urls(self) -> list[str]:
        """What the hub follows."""
        port = self.ports
        return [
            f"tarantool://guest@127.0.0.1:{port['tarantool']}",
            f"tank://127.0.0.1:{port['tank']}/events",
            f"tap://127.0.0.1:{port['tap']}/sessions",
            f"greenstack://127.0.0.1:{port['greenstack']}/carts",
            f"synapse://127.0.0.1:{port['synapse']}?start=all&dialect=D1&streams={STREAM}",
        ]

    def write(self, kind: str, numbers: Iterable[int]) -> None:
        """Make changes, one or some for each number; they may be made twice. Durable then."""
        if kind == "tarantool":
            for number in numbers:
                self.box.eval(_ORDER, [number])
        elif kind == "tank":
            url = f"tank://127.0.0.1:{self.ports['tank']}"
            with TankClient(url) as client, client.producer() as producer:
                for number in numbers:
                    key = b"key %d" % number if number % 3 else None
                    content = b"message %d" % number if number % 10 else b"\xff\x00%d" % number
                    producer.send("events", content, key=key, partition=number % PARTITIONS)
        else:
            with KvClient(self._keyed[kind]) as client:
                for number in numbers:
                    value = b"value %d of %s" % (number, kind.encode())
                    (answer,) = client.ask(store(b"k%d" % (number % 500), value))
                    assert answer.status == 0
                    if number % 7 == 0:
                        client.ask(Packet(Opcode.DELETE, b"k%d" % ((number - 3) % 500)))

    def contents(self, kind: str) -> Contents:
        """What it holds, by its own protocol."""
        if kind == "tarantool":
            (rows,) = self.box.eval("return box.space.orders:select({}, {limit = 1000000})")
            return dict(folded(kind, row[:1], row) for row in rows)
        if kind == "tank":
            return self._messages()
        if kind == "synapse":
            return self._rows()
        url = f"tap://127.0.0.1:{self._keyed[kind]}/{SPACES[kind]}"
        with TapStream(url, Connect(b"", Option.DUMP)) as stream:
            return {
                text(one.key): text(one.value)
                for one in stream
                if one.opcode == Opcode.TAP_MUTATION
            }

    def _rows(self) -> Contents:
        found: Contents = {}
        rows: list[str] = []
        with SynapseClient(self.ports["synapse"]) as client:
            client.send("NAME test", f"REPLICATE {STREAM} 0")
            for line in client.until(f"POSITION {STREAM}"):
                if line.startswith(f"RDATA {STREAM} "):
                    _, _, token, row = line.split(" ", 3)
                    rows.append(row)
                    if token != "batch":
                        for place, one in enumerate(rows):
                            found[json.dumps([int(token), place])] = json.loads(one)
                        rows.clear()
        return found

    def _messages(self) -> Contents:
        found: Contents = {}
        with TankClient(f"tank://127.0.0.1:{self.ports['tank']}") as client:
            for partition, state in enumerate(client.partitions("events")):
                with client.consumer("events", [partition], start="begin") as consumer:
                    number = 0
                    while number < state.last:
                        one = consumer.get()
                        number = one.number
                        found.update([message(partition, one)])
        return found


_ORDER = """
local n = ...
box.begin()
box.space.orders:replace{n % 500, 'order ' .. n}
if n % 5 == 0 then box.space.orders:update((n - 1) % 500, {{'=', 2, 'changed by ' .. n}}) end
if n % 7 == 0 then box.space.orders:delete((n - 3) % 500) end
box.commit()
"""


def message(partition: int, one: Any) -> tuple[str, Any]:
    """A message of Tank as key and value of `Contents`."""
    place = [partition, one.number]
    return json.dumps(place), [*place, one.time_ms, text(one.key), text(one.content)]
