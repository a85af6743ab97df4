"""Followers of a hub, one of each protocol; see `hubsides`.

Each keeps what it is told, of all five upstreams, by key; whatever ends its connection it comes
again and goes on where it was. The one of Tarantool's protocol is a Tarantool 2.6.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.ports import free_port
from support.synapseclient import Client as SynapseClient

from interop.hubsides import (
    KINDS,
    LOST,
    SPACES,
    STREAM,
    Contents,
    Program,
    Upstreams,
    folded,
    message,
    text,
)
from interop.realtarantool import RealTarantool
from logweir.errors import PeerRefused
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.greenstack.follow.incoming import Rows, SnapshotBegins
from logweir.replication.memcached.client import TapStream
from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option
from logweir.replication.tank.client.sync import Client as TankClient
from logweir.replication.topic.bundle import decode_bundle
from logweir.wal.mp import unpack
from logweir.wal.render import from_json
from logweir.wal.vclock import VClock


class Follower:
    """One that keeps `contents` up to date in a thread of its own, until `stop`."""

    def __init__(self) -> None:
        self._held: dict[str, Contents] = {kind: {} for kind in KINDS}
        self._guard = threading.Lock()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.connections = 0
        self.told = 0
        self.trouble: Exception | None = None

    def start(self) -> None:
        """Follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self._pause.set()
        if self._thread.ident is not None:
            self.cut()
            self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._pause.is_set()

    def _run(self) -> None:
        while not self._pause.is_set():
            try:
                self.connections += 1
                self.follow()
            except LOST as error:
                self.trouble = error
            self._pause.wait(0.05)

    def follow(self) -> None:
        """One connection, to its end."""
        raise NotImplementedError

    def cut(self) -> None:
        """End the connection, from another thread."""
        raise NotImplementedError

    def contents(self, kind: str) -> Contents:
        """What it was told of a source."""
        with self._guard:
            return dict(self._held[kind])

    def put(self, kind: str, key: str, value: Any) -> None:
        """Note what it was told. `value`: None: it is gone."""
        with self._guard:
            self.told += 1
            if value is None:
                self._held[kind].pop(key, None)
            else:
                self._held[kind][key] = value

    def keep(self, kind: str, keys: set[str] | None = None) -> None:
        """Forget all but these keys."""
        with self._guard:
            old = self._held[kind]
            self._held[kind] = {key: old[key] for key in old if key in (keys or ())}

    def put_json(self, kind: str, key: bytes | str, value: bytes | str | None) -> None:
        """The same, of a tuple of the space as JSON."""
        data = None if value is None else from_json(json.loads(value))
        self.put(kind, *folded(kind, from_json(json.loads(key)), data))


class Tap(Follower):
    """A stream of one bucket or space; its name goes on where it has acknowledged."""

    def __init__(self, port: int, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._is_bucket = kind in ("tap", "greenstack")
        name = SPACES[kind]
        self._url = f"tap://127.0.0.1:{port}/{name if self._is_bucket else 'space:' + name}"
        self._stream: TapStream | None = None

    def cut(self) -> None:
        """See `Follower`."""
        if self._stream is not None:
            self._stream.stop()

    def follow(self) -> None:
        """See `Follower`."""
        wanted = Connect(b"hub " + self._kind.encode(), Option.SUPPORT_ACK)
        seen: set[str] | None = None
        with TapStream(self._url, wanted, idle_seconds=20) as self._stream:
            if self.is_stopped:
                return
            for one in self._stream:
                if one.opcode == Opcode.TAP_MUTATION:
                    key = self._put(one.key, one.value)
                    if seen is not None:
                        seen.add(key)
                elif one.opcode == Opcode.TAP_DELETE:
                    self._put(one.key, None)
                elif one.number == Opaque.INITIAL_VBUCKET_STREAM:
                    seen = set()
                elif one.number == Opaque.CLOSE_BACKFILL and seen is not None:
                    self.keep(self._kind, seen)
                    seen = None

    def _put(self, key: bytes, value: bytes | None) -> str:
        if self._is_bucket:
            self.put(self._kind, text(key), text(value))
            return str(text(key))
        self.put_json(self._kind, key, value)
        return folded(self._kind, from_json(json.loads(key)), None)[0]


class Documents(Follower):
    """One Greenstack stream of all five."""

    _NAMES = {  # noqa: RUF012
        f"{'' if kind in ('tap', 'greenstack') else 'space:'}{name}": kind
        for kind, name in SPACES.items()
    }

    def __init__(self, port: int) -> None:
        super().__init__()
        self._url = f"greenstack://127.0.0.1:{port}"
        self._position: VClock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def cut(self) -> None:
        """See `Follower`."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._task.cancel)

    def follow(self) -> None:
        """See `Follower`."""
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._follow())

    async def _follow(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        is_new = self._position is None
        async with (
            GreenstackClient(self._url) as client,
            client.follow(
                b"hub", start=self._position, snapshot=is_new, buckets=list(self._NAMES)
            ) as steps,
        ):
            if self.is_stopped:
                return
            in_snapshot = is_new
            async for step in steps:
                if isinstance(step, Rows):
                    for change in step.changes:
                        self._take(change)
                elif isinstance(step, SnapshotBegins):
                    for kind in KINDS:
                        self.keep(kind)
                else:
                    in_snapshot = False
                position = getattr(step, "position", None)
                if not in_snapshot and position is not None:
                    self._position = position

    def _take(self, change: Any) -> None:
        kind, item = self._NAMES[change.bucket], change.item
        value = None if change.is_removal else item.value
        if change.bucket.startswith("space:"):
            assert change.is_removal or item.datatype == 1
            self.put_json(kind, item.key, value)
        else:
            self.put(kind, text(item.key), text(value))


class Messages(Follower):
    """A consumer of the topic, or of the view of a space."""

    def __init__(self, port: int, kind: str) -> None:
        super().__init__()
        self._url = f"tank://127.0.0.1:{port}"
        self._kind = kind
        self._topic = SPACES[kind] if kind == "tank" else f"space:{SPACES[kind]}"
        self._next: dict[int, int] = {}
        self._is_cut = threading.Event()

    def cut(self) -> None:
        """See `Follower`."""
        self._is_cut.set()

    def follow(self) -> None:
        """See `Follower`."""
        self._is_cut.clear()
        start: Any = self._next or "begin"
        with TankClient(self._url) as client, client.consumer(self._topic, start=start) as one:
            while not (self.is_stopped or self._is_cut.is_set()):
                for record in one.get_many(wait_ms=200):
                    self._take(record)
                    self._next[record.partition] = record.number + 1

    def _take(self, record: Any) -> None:
        if self._kind == "tank":
            self.put(self._kind, *message(record.partition, record))
            return
        row = json.loads(record.content)
        key = unpack(record.key)
        if row["type"] in ("INSERT", "REPLACE"):
            self.put(self._kind, *folded(self._kind, key, from_json(row["tuple"])))
        elif row["type"] == "UPDATE":
            name = folded(self._kind, key, None)[0]
            known = self.contents(self._kind).get(name)  # an update of nothing is logged, too
            ((op, field, new),) = row["ops"]
            assert op == "="
            if known is not None:
                self.put(self._kind, name, [*known[: field - row["index_base"]], new])
        else:
            self.put(self._kind, *folded(self._kind, key, None))


class Lines(Follower):
    """Streams of Synapse's, by lines. `streams`: kind of each by its name."""

    def __init__(self, port: int, streams: Mapping[str, str]) -> None:
        super().__init__()
        self._port = port
        self._kinds = streams
        self._last = dict.fromkeys(streams, 0)
        self._parts: dict[str, list[str]] = {}
        self._client: SynapseClient | None = None

    def cut(self) -> None:
        """See `Follower`."""
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.shut()

    def follow(self) -> None:
        """See `Follower`."""
        for line in self._lines():
            assert line, "the connection has ended"

    def _lines(self) -> Iterator[str]:
        """Every line, once it is worked on."""
        self._parts = {stream: [] for stream in self._kinds}
        with SynapseClient(self._port) as self._client:
            self._client.send("NAME hub")
            for stream, token in self._last.items():
                self._client.send(f"REPLICATE {stream} {token}")
            while not self.is_stopped:
                line = self._client.line()
                self._take(line)
                yield line

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        assert word != "ERROR", line
        stream, _, rest = rest.partition(" ")
        if stream not in self._kinds:
            return
        if word == "POSITION":
            self._last[stream] = max(self._last[stream], int(rest))
        if word != "RDATA":
            return
        token, _, row = rest.partition(" ")
        self._parts[stream].append(row)
        if token != "batch":
            rows, self._parts[stream] = self._parts[stream], []
            for place, one in enumerate(rows):
                self._put(self._kinds[stream], int(token), place, json.loads(one))
            self._last[stream] = int(token)

    def _put(self, kind: str, token: int, place: int, row: Any) -> None:
        if kind == "synapse":
            self.put(kind, json.dumps([token, place]), row)
            return
        _, key, data, *_ = from_json(row)
        self.put(kind, *folded(kind, key, data))


class Replica(Follower):
    """A Tarantool 2.6 that is a replica of the hub."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__()
        self._port = port
        options = {
            "replication": f"127.0.0.1:{port}",
            "replication_connect_timeout": 10,
            "replication_timeout": 0.3,
            "read_only": True,
        }
        self.box = RealTarantool(folder, listen=None, cfg=options)

    def start(self) -> None:
        """See `Follower`."""
        self.connections += 1
        self.box.start()

    def stop(self) -> None:
        """See `Follower`."""
        if self.box.is_running:
            self.box.kill()

    def cut(self) -> None:
        """Kill and start it."""
        self.stop()
        self.start()

    def contents(self, kind: str) -> Contents:
        """See `Follower`."""
        code = "local s = box.space[...] return s and s:select({}, {limit = 1000000}) or {}"
        packed = self.box.eval_raw(code, [SPACES[kind]])
        (rows,) = unpack(packed)
        if kind == "tank":
            return dict(
                message(row[0], one) for row in rows for one in decode_bundle(row[4], row[1])
            )
        size = 3 if kind == "synapse" else 1
        return dict(folded(kind, row[:size], row) for row in rows)


class Hub:
    """The server in the middle, and what follows it. `folder`: of everything."""

    def __init__(self, folder: Path) -> None:
        self.upstreams = Upstreams(folder)
        self.ports = {kind: free_port() for kind in KINDS}
        ports = self.ports.items()
        listen = [f"{kind}://127.0.0.1:{port}" for kind, port in ports]
        follow = [word for url in self.upstreams.urls for word in ("--follow", url)]
        self.program = Program(folder / "hub", listen, *follow)
        streams = {name: kind for kind, name in SPACES.items() if kind != "synapse"}
        each: dict[str, Mapping[str, Follower]] = {
            "tarantool": dict.fromkeys(KINDS, Replica(folder / "replica", self.ports["tarantool"])),
            "tank": {kind: Messages(self.ports["tank"], kind) for kind in KINDS},
            "tap": {kind: Tap(self.ports["tap"], kind) for kind in KINDS},
            "greenstack": dict.fromkeys(KINDS, Documents(self.ports["greenstack"])),
            "synapse": dict.fromkeys(
                KINDS, Lines(self.ports["synapse"], {**streams, STREAM: "synapse"})
            ),
        }
        self.followers = each

    @property
    def all_followers(self) -> list[Follower]:
        """Each once."""
        return list(
            dict.fromkeys(one for by_kind in self.followers.values() for one in by_kind.values())
        )

    def start(self) -> None:
        """Upstreams and hub. What Tarantool has already comes in no view of Tank's, so nothing has
        been written."""
        self.upstreams.start()
        self.program.start()

    def has_spaces(self) -> bool:
        """Whether the hub has a space for each upstream."""
        with TankClient(f"tank://127.0.0.1:{self.ports['tank']}") as client:
            for kind, name in SPACES.items():
                try:
                    client.partitions(name if kind == "tank" else f"space:{name}")
                except PeerRefused:
                    return False
        return True

    def end(self) -> None:
        """Everything."""
        for one in self.all_followers:
            one.stop()
        self.program.kill()
        self.upstreams.end()
