"""Python programs that begin as copies of a process which has imported already what they need.

To start an interpreter and to import a server takes a second of processor time, which is more than
most of what tests then have it do. A `Nursery` does that once, and forks for each program: a
process of its own, with standard streams, arguments and an environment of its own, that ends, or is
killed, as any other. `LOGWEIR` is the one of the program `logweir`, from when it is first needed to
the end of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any, Final, Self

_MESSAGE_BYTES: Final = 1 << 17
_TESTS: Final = Path(__file__).resolve().parents[1]
LOGWEIR_CODE: Final = "from logweir.tools.cli.main import run; run()"


class Program:
    """One that runs, with what is used of `subprocess.Popen`; its streams are text."""

    def __init__(self, pid: int, pidfd: int, status: int, streams: Sequence[int | None]) -> None:
        self.pid = pid
        self._pidfd, self._status = pidfd, status
        stdin, stdout, stderr = streams
        self.stdin: IO[str] | None = None if stdin is None else os.fdopen(stdin, "w")
        self.stdout: IO[str] | None = None if stdout is None else os.fdopen(stdout)
        self.stderr: IO[str] | None = None if stderr is None else os.fdopen(stderr)
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self) -> int | None:
        """The `returncode`, if it has ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Returns the `returncode`, below 0 the signal that ended it; raises
        `TimeoutError`."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutError(f"it has not ended in {timeout} s")
            self.returncode = int(os.read(self._status, 20))
            os.close(self._status)
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Give it that to read, and wait for its end, behind which its streams are closed: what it
        printed, and what it complained."""
        if self.stdin is not None:
            self.stdin.write(given)
            self.stdin.close()
        with ThreadPoolExecutor(2) as pool:
            said = [pool.submit(one.read) if one else None for one in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except TimeoutError:
                self.kill()
                raise
            out, err = (one.result() if one else "" for one in said)
        self.close()
        return out, err

    def close(self) -> None:
        """Give up its streams, and wait for its end."""
        for one in (self.stdin, self.stdout, self.stderr):
            if one is not None:
                with contextlib.suppress(BrokenPipeError):
                    one.close()
        self.wait()


class Nursery:
    """Runs `prepare`, a program, in a process of its own, which is there while this is entered, and
    then programs in copies of that. `environment`: what it has beside that of this process."""

    def __init__(self, prepare: str, environment: Mapping[str, str] | None = None) -> None:
        self._prepare = prepare
        self._environment = {} if environment is None else environment
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            words = [sys.executable, "-P", __file__, str(its.fileno()), self._prepare]
            self._process = subprocess.Popen(
                words,
                pass_fds=[its.fileno()],
                stdin=DEVNULL,
                env={**os.environ, **self._environment},
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._process.wait(60)

    def start(
        self,
        code: str,
        words: Sequence[object],
        environment: Mapping[str, str] | None = None,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Program:
        """Run a program. `words`: behind its name in `sys.argv`; `environment`: what it has
        beside, or instead of, the variables of this process. The streams are as of
        `subprocess.Popen`: those of this process, `PIPE`, `DEVNULL`, or an open file's number."""
        asked: dict[str, Any] = {"code": code, "words": [*map(str, words)], "folder": os.getcwd()}
        asked["environment"] = {**os.environ, **(environment or {})}
        own: list[int | None] = []
        its: list[int] = []
        for number, chosen in enumerate((stdin, stdout, stderr)):
            if chosen == PIPE:
                pair = os.pipe()
                own.append(pair[not number])
                its.append(pair[bool(number)])
            else:
                own.append(None)
                open_for = os.O_WRONLY if number else os.O_RDONLY
                is_none = chosen == DEVNULL
                its.append(
                    os.open(os.devnull, open_for)
                    if is_none
                    else os.dup(number if chosen is None else chosen)
                )
        status, its_status = os.pipe()
        its.append(its_status)
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], its)
            pid, (pidfd,), _, _ = socket.recv_fds(self._socket, 20, 1)
        except BaseException:  # a test's time is over: the next one would have this one's program
            for one in (status, *own):
                if one is not None:
                    os.close(one)
            self.__exit__()
            raise
        finally:
            for one in its:
                os.close(one)
        return Program(int(pid), pidfd, status, own)


class Logweir(Nursery):
    """Where programs `logweir` come from."""

    def __init__(self) -> None:
        super().__init__("from support import nursery\nnursery.import_logweir()")
        atexit.register(self.__exit__)

    def files(self) -> list[int]:
        """What it has open in this process for as long as that runs."""
        return [] if self._socket is None else [self._socket.fileno()]

    def start(self, *given: Any, **options: Any) -> Program:
        """See `Nursery`."""
        if self._socket is None:
            self.__enter__()
        return super().start(*given, **options)

    def command(self, folder: Path) -> int:
        """Write a program `logweir` into a folder, for shells that inherit the descriptor whose
        number is returned."""
        if self._socket is None:
            self.__enter__()
        (place,) = self.files()
        text = (_TESTS / "support" / "command.py").read_text()
        known = [
            place,
            os.fstat(place).st_ino,
            LOGWEIR_CODE,
            f"{Path(sys.executable).parent}/logweir",
        ]
        (folder / "logweir").write_text(f"#!{sys.executable} -IS\n{text}")
        (folder / "logweir").chmod(0o700)
        (folder / "logweir.json").write_text(json.dumps(known))
        return place

    def begin(self, *words: object, **options: Any) -> Program:
        """Start `logweir` with these words. `options`: of `start`."""
        return self.start(LOGWEIR_CODE, words, **options)

    def run(
        self, *words: object, given: str = "", timeout: float | None = None, **environment: str
    ) -> tuple[int, str, str]:
        """Run it to its end: exit code, what it printed, and what it complained. `given`: what it
        can read; the rest as in `start`."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
        with self.begin(*words, environment=environment, **streams) as program:
            out, err = program.communicate(given, timeout)
            return program.wait(), out, err


LOGWEIR = Logweir()


def import_logweir() -> None:
    """What a server needs, and the commands; most of it is imported when it is needed."""
    with contextlib.suppress(ImportError):
        from pyarrow import fs  # noqa: F401
    from logweir.replication import loop, server
    from logweir.replication.protocols import parse_listen_url, parse_url
    from logweir.tools.cli import main

    for command in main.COMMANDS:
        main.load_command(command)
    import logweir

    async def serve(log: Any) -> None:
        listen = [parse_listen_url(f"{one}://127.0.0.1:0") for one in ("tarantool", "tank", "tap")]
        for url in ("tank://127.0.0.1:1", "tap://127.0.0.1:1/b", "tarantool://127.0.0.1:1"):
            options = server.ServerOptions(follow=[parse_url(url)], listen=listen, guest="all")
            begun = server.Server(log, options)
            await begun.start()
            await begun.stop()

    with tempfile.TemporaryDirectory() as folder, logweir.open(folder) as log:
        loop.run(serve(log))


# --- the process itself ---------------------------------------------------------------------------


def _main(place: int, prepare: str) -> None:
    path = os.environ.get("PYTHONPATH", "")
    sys.path.insert(0, str(_TESTS))
    exec(compile(prepare, "prepare", "exec"), {})
    # A copy has one thread. Those of libraries (of what gives pyarrow its memory) know of forks.
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    woken, waker = socket.socketpair()
    for one in (woken, waker):
        one.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends: dict[int, int] = {}
    asking = socket.socket(fileno=place)
    while True:
        ready = select.select([asking, woken], [], [])[0]
        if woken in ready:
            woken.recv(1000)
            _tell_ends(ends)
        if asking not in ready:
            continue
        data, given, _, _ = socket.recv_fds(asking, _MESSAGE_BYTES, 4)
        if not data:
            return
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (asking, woken, waker):
                own.close()
            for end in (*ends.values(), given[3]):
                os.close(end)
            _be(json.loads(data), given[:3], path)
        ends[pid] = given[3]
        for end in given[:3]:
            os.close(end)
        if json.loads(data).get("tells"):
            os.write(ends[pid], b"%d\n" % pid)
            continue
        pidfd = os.pidfd_open(pid)  # nobody has waited for it yet: it is this one
        socket.send_fds(asking, [b"%d" % pid], [pidfd])
        os.close(pidfd)


def _tell_ends(ends: dict[int, int]) -> None:
    """Wait for those that have ended, and say how."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            place = ends.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(place, b"%d" % os.waitstatus_to_exitcode(status))
            os.close(place)


def _be(asked: dict[str, Any], streams: Sequence[int], path: str) -> None:
    """Be the program that was asked for. `path`: the PYTHONPATH of before."""
    for number, one in enumerate(streams):
        os.dup2(one, number)
        os.close(one)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    lines = 1 if asked["environment"].get("PYTHONUNBUFFERED") else -1
    sys.stdout = open(1, "w", buffering=lines, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path.remove(str(_TESTS))
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    if (new := os.environ.get("PYTHONPATH", "")) != path:
        sys.path[:0] = new.split(os.pathsep)
    tempfile.tempdir = None
    if (failpoint := sys.modules.get("logweir.wal.failpoint")) is not None:
        failpoint.arm_from_environment()
    sys.argv = ["-c", *asked["words"]]
    os._exit(_end_of(asked["code"]))


def _end_of(code: str) -> int:
    """Run it, and what an interpreter does at its end but for taking itself apart, which libraries
    do not bear in a copy. Returns the exit code."""
    ended = 0
    try:
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "program", "exec"), program.__dict__)
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else bool(end.code)
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    except KeyboardInterrupt:
        ended = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
        ended = 1
    for one in threading.enumerate():
        if not one.daemon and one is not threading.main_thread():
            one.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return ended


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
