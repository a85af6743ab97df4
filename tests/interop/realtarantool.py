"""A real Tarantool process for tests, driven from Python.

    with RealTarantool(tmp_path) as box:                        # box.cfg() done, port in box.port
        box.eval("return box.info.vclock")                      # [{1: 3}]
        box.eval("return ...", [1, "two"])                      # [1, "two"]
        box.eval_raw("return box.space.t:get(...)", [1])        # the exact bytes of the results
        box.dml([("replace", 512, b"\\x92\\x01\\x02")])        # exact MsgPack in and out
        box.kill()                                              # SIGKILL; the folder stays as it is

The folder holds data files and nothing else, and may hold some already: then Tarantool recovers
from them. Commands go over a private Unix socket that Tarantool opens to us, as user admin: no
privilege is granted and no row is written for it. When our end closes, the process ends, so a
killed test leaves nothing behind. `box.cfg` runs in its own fiber: `start(wait=False)` returns
at once (a replica that waits for its master), `wait_ready()` follows, `eval` works meanwhile.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from logweir.wal.mp import pack, skip, unpack

PROGRAM = shutil.which("tarantool")
VERSION = "2.6.0"

_SCRIPT = r"""
jit.off(true, true)  -- calls through ffi may yield, which compiled traces do not survive
local ffi = require('ffi')
local fiber = require('fiber')
local msgpack = require('msgpack')
local socket = require('socket')

ffi.cdef[[
int box_insert(uint32_t, const char *, const char *, box_tuple_t **);
int box_replace(uint32_t, const char *, const char *, box_tuple_t **);
int box_delete(uint32_t, uint32_t, const char *, const char *, box_tuple_t **);
int box_update(uint32_t, uint32_t, const char *, const char *, const char *, const char *, int,
               box_tuple_t **);
int box_upsert(uint32_t, uint32_t, const char *, const char *, const char *, const char *, int,
               box_tuple_t **);
int box_index_get(uint32_t, uint32_t, const char *, const char *, box_tuple_t **);
ssize_t box_tuple_to_buf(box_tuple_t *, char *, size_t);
]]

local function raw(name, space, a, b, base, index)
    local result = ffi.new('box_tuple_t *[1]')
    local pa = ffi.cast('const char *', a)
    local pb = b and ffi.cast('const char *', b)
    local rc
    if name == 'insert' then
        rc = ffi.C.box_insert(space, pa, pa + #a, result)
    elseif name == 'replace' then
        rc = ffi.C.box_replace(space, pa, pa + #a, result)
    elseif name == 'delete' then
        rc = ffi.C.box_delete(space, index or 0, pa, pa + #a, result)
    elseif name == 'get' then
        rc = ffi.C.box_index_get(space, index or 0, pa, pa + #a, result)
    elseif name == 'update' then
        rc = ffi.C.box_update(space, index or 0, pa, pa + #a, pb, pb + #b, base or 0, result)
    elseif name == 'upsert' then
        rc = ffi.C.box_upsert(space, 0, pa, pa + #a, pb, pb + #b, base or 0, result)
    else
        error('unknown call ' .. tostring(name))
    end
    if rc ~= 0 then
        local e = box.error.last()
        return {e.code, tostring(e.message)}
    end
    if result[0] == nil then
        return msgpack.NULL
    end
    local tuple = result[0]
    local size = ffi.C.box_tuple_to_buf(tuple, nil, 0)
    local buffer = ffi.new('char[?]', size)
    ffi.C.box_tuple_to_buf(tuple, buffer, size)
    return ffi.string(buffer, size)
end

local handlers = {}

function handlers.cfg(options)
    box.cfg(options)
    return {box.info.listen or msgpack.NULL, box.info.uuid}
end

function handlers.eval(code, args)
    local chunk, why = loadstring(code)
    if chunk == nil then error(why) end
    local results = {chunk(unpack(args, 1, table.maxn(args)))}
    for i = 1, table.maxn(results) do
        if results[i] == nil then results[i] = msgpack.NULL end
    end
    return setmetatable(results, {__serialize = 'seq'})
end

function handlers.dml(requests)
    local results = setmetatable({}, {__serialize = 'seq'})
    for i, request in ipairs(requests) do
        local b = request[4] ~= nil and request[4] or nil
        results[i] = raw(request[1], request[2], request[3], b, request[5], request[6])
    end
    return results
end

local function read_frame(peer)
    local head = peer:read(4)
    if head == nil or #head < 4 then return nil end
    local a, b, c, d = head:byte(1, 4)
    local size = ((a * 256 + b) * 256 + c) * 256 + d
    local body = peer:read(size)
    if body == nil or #body < size then return nil end
    return body
end

local function answer(peer, lock, id, ok, value)
    if not ok then
        local code = -1
        local message = tostring(value)
        if type(value) == 'cdata' and value.code ~= nil then
            code, message = value.code, value.message
        end
        value = {code, message}
    end
    local done, body = pcall(msgpack.encode, {id, ok, value})
    if not done then
        body = msgpack.encode({id, false, {-1, 'result cannot be encoded: ' .. tostring(body)}})
    end
    local n = #body
    lock:put(true)
    peer:write(string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256,
                           math.floor(n / 256) % 256, n % 256) .. body)
    lock:get()
end

local peer = socket('AF_UNIX', 'SOCK_STREAM', 0)
assert(peer:sysconnect('unix/', arg[1]))
peer:nonblock(true)
local lock = fiber.channel(1)
fiber.create(function()
    while true do
        local body = read_frame(peer)
        if body == nil then os.exit(0) end
        local id, name, args = unpack(msgpack.decode(body), 1, 3)
        fiber.create(function()
            answer(peer, lock, id, pcall(handlers[name], unpack(args, 1, table.maxn(args))))
        end)
    end
end)
"""


class TarantoolError(Exception):
    """What Tarantool answered. `code`: its error number, -1 for an error of the Lua code itself."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class TarantoolDied(Exception):
    """The process ended by itself. The text holds its exit code and the end of its log."""


class RealTarantool:
    """One Tarantool process over one data folder. See the module's text.

    `folder`: data files (made if missing); `listen`: an iproto address, port 0 for a free one,
    None for none; `cfg`: further `box.cfg` options, which override ours; `program`: the binary.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        listen: str | None = "127.0.0.1:0",
        cfg: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
        program: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.port: int | None = None
        self.uuid = ""
        self.exit_code: int | None = None
        self._options: dict[str, Any] = {
            "memtx_dir": str(self.folder),
            "wal_dir": str(self.folder),
            "vinyl_dir": str(self.folder),
            "memtx_memory": 64 * 1024 * 1024,
            "vinyl_memory": 1024 * 1024,
            "log_level": 5,
            **({} if listen is None else {"listen": listen}),
            **(cfg or {}),
        }
        self._timeout_seconds = timeout_seconds
        self._program = program or PROGRAM or "tarantool"
        self._runtime: Path | None = None
        self._log = ""
        self._cfg_id = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._peer: socket.socket | None = None
        self._sent = 0
        self._answers: dict[int, tuple[bool, bytes]] = {}

    # --- life -------------------------------------------------------------------------------------
    def start(self, *, wait: bool = True) -> Self:
        """Start the process; with `wait`, until `box.cfg` has returned (see `wait_ready`)."""
        assert self._process is None, "already started"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._runtime = Path(tempfile.mkdtemp(prefix="realtarantool-"))
        script = self._runtime / "main.lua"
        script.write_text(_SCRIPT)
        address = str(self._runtime / "control")
        with socket.socket(socket.AF_UNIX) as listener, (self._runtime / "log").open("wb") as log:
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(self._timeout_seconds)
            self._process = subprocess.Popen(
                [self._program, str(script), address],
                cwd=self._runtime,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            self._peer, _ = listener.accept()
        self._peer.settimeout(self._timeout_seconds)
        self._cfg_id = self._send("cfg", [self._options])
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until `box.cfg` has returned. Raises `TarantoolError`, `TarantoolDied`."""
        listen, self.uuid = unpack(self._receive(self._cfg_id))
        if listen is not None and not listen.startswith("unix"):
            self.port = int(listen.rpartition(":")[2])

    def stop(self) -> None:
        """Orderly stop (SIGTERM), as an operator would; nothing if it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what a crash of the process leaves."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self.exit_code = self._process.wait(self._timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self.exit_code = self._process.wait()
            self._process = None
        self._log = self.log_text()
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if self._runtime is not None:
            shutil.rmtree(self._runtime, ignore_errors=True)
            self._runtime = None
        self._answers.clear()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id. The process must be running."""
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """Everything Tarantool has logged so far, also after it ended."""
        if self._runtime is None:
            return self._log
        log = self._runtime / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    # --- commands ---------------------------------------------------------------------------------
    def eval(self, code: str, args: Sequence[Any] = ()) -> list[Any]:
        """Run a Lua chunk with `args` as `...`. Returns its results. Raises `TarantoolError`."""
        result: list[Any] = unpack(self.eval_raw(code, args))
        return result

    def eval_raw(self, code: str, args: Sequence[Any] = ()) -> bytes:
        """As `eval`, but returns the MsgPack array of results as Tarantool encoded it.

        Tuples among the results are their exact stored bytes.
        """
        return self._receive(self._send("eval", [code, list(args)]))

    def dml(self, requests: Iterable[tuple[Any, ...]]) -> list[bytes | tuple[int, str] | None]:
        """Run requests one by one, exact MsgPack in and out, in one round trip.

        Each is `("insert" | "replace", space_id, tuple)`, `("delete" | "get", space_id, key)`,
        `("update", space_id, key, ops[, index_base[, index_id]])` or
        `("upsert", space_id, tuple, ops[, index_base])`. Answers: the tuple's bytes, None where
        there is none, or (error number, message).
        """
        answers = unpack(self._receive(self._send("dml", [[list(one) for one in requests]])))
        return [
            (one[0], one[1])
            if isinstance(one, list)
            else one
            if one is None
            else one.encode("utf-8", "surrogateescape")
            for one in answers
        ]

    def _send(self, name: str, args: list[Any]) -> int:
        assert self._peer is not None, "not running"
        self._sent += 1
        body = pack([self._sent, name, args])
        try:
            self._peer.sendall(len(body).to_bytes(4, "big") + body)
        except OSError as error:
            raise self._death() from error
        return self._sent

    def _receive(self, wanted: int) -> bytes:
        while wanted not in self._answers:
            size = int.from_bytes(self._read(4), "big")
            frame = self._read(size)
            # [id, ok, value]: the first two are short, the third is kept as it is
            number = unpack(_element(frame, 0))
            self._answers[number] = (unpack(_element(frame, 1)), _element(frame, 2))
        ok, value = self._answers.pop(wanted)
        if not ok:
            code, message = unpack(value)
            raise TarantoolError(code, message)
        return value

    def _read(self, size: int) -> bytes:
        assert self._peer is not None, "not running"
        chunks = bytearray()
        while len(chunks) < size:
            try:
                chunk = self._peer.recv(min(size - len(chunks), 1 << 20))
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise self._death()
            chunks += chunk
        return bytes(chunks)

    def _death(self) -> TarantoolDied:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exit_code = self._process.wait(self._timeout_seconds)
        tail = "\n".join(self.log_text().splitlines()[-15:])
        return TarantoolDied(f"tarantool ended with code {self.exit_code}; its log ends:\n{tail}")


def _element(array: bytes, wanted: int) -> bytes:
    """The bytes of one element of a MsgPack array of up to 15."""
    at = 1
    for _ in range(wanted):
        at = skip(array, at)
    return array[at : skip(array, at)]
