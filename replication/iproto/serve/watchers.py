"""Keys that a client watches (WATCH, UNWATCH, EVENT) or asks for once (WATCH_ONCE).

===============  ===================================================================================
key              its value
===============  ===================================================================================
box.id           id, instance_uuid, replicaset_uuid
box.status       is_ro, is_ro_cfg, status
box.election     term 1, role "follower", leader 0, is_ro: nobody is elected here
box.schema       version: of the definitions
box.shutdown     true as soon as the server ends, nothing before
internal.ballot  what VOTE is answered, for replicas from 2.11 on
===============  ===================================================================================

All others have the value that CALL of `box.broadcast` gave them last, in memory only; without one
they have none. A WATCH is answered with an EVENT at once, and after it with one whenever
the value is another one; between two the client sends WATCH again, so that a slow one is sent the
newest value only. None of the three has an answer. Nobody needs rights for them.

Source: Tarantool 2.11 and 3.x (read): `iproto_constants.h`, `box.cc`, `applier.cc`,
`lua/watcher.c`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import WATCHED_KEYS
from logweir.replication.iproto.wire.codec import encode_event
from logweir.wal.mp import Value, pack
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.replication.iproto.serve.instance import Instance

_KEY_BYTES: Final = 256
_VALUE_BYTES: Final = 16 * 1024
_WATCHED_BYTES: Final = 512  # what a key costs that is watched, about


class Events:
    """The values of one server, and who wants to know when they change. Belongs to the event
    loop's thread."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._watchers: set[Watchers] = set()
        self._forget: Callable[[], None] | None = None
        self._seen = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # where somebody watches
        self._own: dict[str, bytes] = {}
        self._changing = threading.Lock()
        self._is_ending = False
        self._makers: Final[Mapping[str, Callable[[], bytes | None]]] = {
            "box.id": self._id,
            "box.status": self._status,
            "box.election": self._election,
            "box.schema": lambda: pack({"version": instance.schema_version()}),
            "box.shutdown": lambda: pack(True) if self._is_ending else None,
            "internal.ballot": lambda: instance.ballot().body(),
        }

    def value(self, key: str) -> bytes | None:
        """What a key stands for, as MsgPack; None for nothing."""
        maker = self._makers.get(key)
        return self._own.get(key) if maker is None else maker()

    def broadcast(self, key: str, value: Value = None) -> None:
        """What CALL of `box.broadcast` does: from now on `key` stands for `value`, None: nothing;
        who watches it is told. From any thread. Raises `RequestError`: 32 for a key that is not for
        this, 2 for one that is too long, or a value, or for too many."""
        if not isinstance(key, str):
            raise RequestError(ErrorCode.PROC_LUA, "Usage: box.broadcast(key[, value])")
        if key.startswith(("box.", "internal.")):
            raise RequestError(ErrorCode.PROC_LUA, "System event can't be override")
        packed = b"" if value is None else pack(value)
        with self._changing:
            is_one_more = value is not None and key not in self._own
            if len(key) > _KEY_BYTES or len(packed) > _VALUE_BYTES:
                text = f"A key has {_KEY_BYTES} letters at most, its value {_VALUE_BYTES} bytes"
                raise RequestError(ErrorCode.MEMORY_ISSUE, text)
            if is_one_more and len(self._own) >= WATCHED_KEYS:
                text = f"At most {WATCHED_KEYS} keys may have values"
                raise RequestError(ErrorCode.MEMORY_ISSUE, text)
            if value is None:
                self._own.pop(key, None)
            else:
                self._own[key] = packed
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: nobody watches
                self._loop.call_soon_threadsafe(self._tell)

    def end(self) -> None:
        """The server ends: tell who watches `box.shutdown`."""
        self._is_ending = True
        self._tell()

    def join(self, watchers: Watchers) -> None:
        """Somebody watches: tell when values may have changed."""
        self._watchers.add(watchers)
        if self._forget is None:
            log, loop = self._instance.shared.log, asyncio.get_running_loop()
            self._loop = loop
            self._seen = log.inner.system_changes

            def committed(vclock: VClock) -> None:
                if log.inner.system_changes != self._seen:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches
                        loop.call_soon_threadsafe(self._look)

            self._forget = log.on_commit(committed)

    def leave(self, watchers: Watchers) -> None:
        """It does no longer. Twice does no harm."""
        self._watchers.discard(watchers)
        if not self._watchers and self._forget is not None:
            self._forget()
            self._forget = None

    def _look(self) -> None:
        changes = self._instance.shared.log.inner.system_changes
        if changes != self._seen:
            self._seen = changes
            self._tell()

    def _tell(self) -> None:
        for one in tuple(self._watchers):
            one.look()

    def _id(self) -> bytes | None:
        shared = self._instance.shared
        try:
            replicaset = shared.replicaset()
        except RequestError:  # a row that says it has not come yet
            return None
        values = {"id": shared.log.replica_id, "instance_uuid": shared.log.instance}
        return pack(values | {"replicaset_uuid": replicaset})

    def _status(self) -> bytes:
        shared = self._instance.shared
        values = {"is_ro": shared.is_read_only, "is_ro_cfg": shared.options.read_only}
        return pack(values | {"status": "running"})

    def _election(self) -> bytes:
        is_ro = self._instance.shared.is_read_only
        return pack({"term": 1, "role": "follower", "is_ro": is_ro, "leader": 0})


@dataclass(slots=True)
class _Watched:
    """One key. `sync`: of the newest WATCH; `is_ready`: that came after the newest EVENT; `sent`:
    the value in that."""

    sync: int
    is_ready: bool = True
    sent: bytes | None = None
    is_new: bool = True


class Watchers:
    """What one connection watches. `send`: takes bytes of an EVENT; `hold`: how many bytes the keys
    cost, about, see `Link.hold_beside`."""

    def __init__(
        self, events: Events, send: Callable[[bytes], None], hold: Callable[[int], None]
    ) -> None:
        self._events = events
        self._send = send
        self._hold = hold
        self._keys: dict[str, _Watched] = {}

    def watch(self, key: str, sync: int) -> None:
        """Begin to watch a key, or say that its EVENT was received. Raises error 2 for too many, or
        one that is too long."""
        watched = self._keys.get(key)
        if watched is None:
            if len(self._keys) >= WATCHED_KEYS or len(key) > _KEY_BYTES:
                text = f"A connection may watch {WATCHED_KEYS} keys of {_KEY_BYTES} letters"
                raise RequestError(ErrorCode.MEMORY_ISSUE, text)
            watched = self._keys[key] = _Watched(sync)
            self._hold(len(self._keys) * _WATCHED_BYTES)
            self._events.join(self)
        watched.sync, watched.is_ready = sync, True
        self._tell(key, watched)

    def unwatch(self, key: str) -> None:
        """Watch a key no longer."""
        self._keys.pop(key, None)
        self._hold(len(self._keys) * _WATCHED_BYTES)
        if not self._keys:
            self._events.leave(self)

    def look(self) -> None:
        """Values may have changed."""
        for key, watched in self._keys.items():
            if watched.is_ready:
                self._tell(key, watched)

    def close(self) -> None:
        """The connection has ended."""
        self._keys.clear()
        self._send = lambda data: None
        self._events.leave(self)

    def _tell(self, key: str, watched: _Watched) -> None:
        value = self._events.value(key)
        if watched.is_new or value != watched.sent:
            watched.is_new = watched.is_ready = False
            watched.sent = value
            self._send(encode_event(watched.sync, key, value))
