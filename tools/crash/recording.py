"""What a program does to its folder, recorded with all bytes: the calls of the C library that
change it, by the small library in `preload/`, which a C compiler makes the first time.

The trace is a list of `Operation`, in an order in which they can have happened. Paths are relative
to the folder. What goes past the C library cannot be seen: a program that is linked statically, one
that calls the system by itself, and what is written through memory maps. The first two are found
out, since what the trace leads to is compared with the folder; the maps are named.

Layout of the file that the library shares with this module: `preload/recorder.h`.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from logweir.errors import ConfigError

SOURCES: Final = Path(__file__).parent / "preload"
TRACE_BYTES: Final = 1 << 30
"""Of a trace, at most; the file has holes where nothing is."""
_HEAD_BYTES: Final = 16384
_NUMBERS: Final = struct.Struct("<14Q")
_NOTE: Final = struct.Struct("<c3xIQII")
_PATH_BYTES: Final = 4096
_STATE: Final = 11  # which of the numbers says that a program has come
_OVER: Final = 12  # that it has to stop; the next one: that somebody is within a call
_STOP_SECONDS: Final = 2.0


class Operation(NamedTuple):
    """One call. `kind`: a letter, see recorder.h; `file`: the number of an open file; `at`: offset,
    size or token; `data`: bytes that were written, or a path; `target`: a second path."""

    kind: str
    file: int
    at: int
    data: bytes
    target: bytes

    @property
    def path(self) -> str:
        """`data`, if it is a path."""
        return os.fsdecode(self.data)


class Fault(NamedTuple):
    """Which call fails. `kind`: 1: any that changes something; 2: one that takes room; 3: a write,
    half of which is made; 4: any, it is made but SIGINT comes before it; `at`: its number, 0: none,
    they are counted only; `errno`: with what; `lasts`: all later ones, too."""

    kind: int
    at: int = 0
    errno: int = 0
    lasts: bool = False


def library() -> Path:
    """The compiled library. Raises `ConfigError` if there is no compiler or no Linux."""
    if sys.platform != "linux":
        raise ConfigError("recorder", "calls can be recorded on Linux only")
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "logweir")
    made = cache / f"recorder-{digest}.so"
    if made.exists():
        return made
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ConfigError(
            "recorder",
            "there is no C compiler, which makes the library that records a program's calls",
            hint="install one (Debian: apt install gcc libc6-dev); --kill needs none",
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        new = Path(temporary, made.name)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(new)]
        command += [str(source) for source in sources if source.suffix == ".c"]
        done = subprocess.run(  # noqa: S603 - of the sources that came with the package
            [*command, "-ldl", "-lpthread"], capture_output=True, text=True
        )
        if done.returncode:
            raise ConfigError(
                "recorder",
                f"{compiler} cannot compile the recorder: {done.stderr.strip()[-500:]}",
                hint="it needs the headers of the C library (Debian: libc6-dev)",
            )
        new.replace(made)
    return made


class Recording:
    """One run of a program that is recorded. `environment`: what it has to be started with; `pipe`:
    its standard output. Close it when the operations were taken."""

    def __init__(
        self,
        trace: Path,
        folder: Path,
        *,
        acks: Path | None = None,
        fault: Fault | None = None,
    ) -> None:
        self._library = library()
        self._trace = trace
        with trace.open("wb") as file:
            file.truncate(_HEAD_BYTES + TRACE_BYTES)
        self._file = trace.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        found = fault or Fault(0)
        numbers = [0, TRACE_BYTES, 0, 0, 0]
        numbers += [found.at, found.kind, found.errno, found.lasts, 0, 0, 0, 0, 0]
        paths = [os.fsencode(folder.resolve()), os.fsencode(acks.resolve()) if acks else b""]
        _NUMBERS.pack_into(self._map, 0, *numbers)
        for number, path in enumerate(paths):
            start = _NUMBERS.size + number * _PATH_BYTES
            self._map[start : start + len(path) + 1] = path + b"\0"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the program's environment."""
        first = os.environ.get("LD_PRELOAD", "")
        return {
            "LD_PRELOAD": f"{self._library} {first}".strip(),
            "LOGWEIR_CRASH_TRACE": str(self._trace),
        }

    def set_pipe(self, descriptor: int) -> None:
        """Say which pipe is the program's standard output."""
        found = os.fstat(descriptor)
        struct.pack_into("<2Q", self._map, 24, found.st_dev, found.st_ino)

    def stop(self) -> None:
        """Let the program do nothing more; what it has done is noted then."""
        struct.pack_into("<Q", self._map, 8 * _OVER, 1)
        limit = time.monotonic() + _STOP_SECONDS
        while self._numbers()[_OVER + 1] and time.monotonic() < limit:
            time.sleep(0.001)

    def must_be_loaded(self, command: str) -> None:
        """Raise `ConfigError` if no process of the program took the library."""
        if not self._numbers()[_STATE]:
            raise ConfigError(
                "recorder",
                f"{command.split()[0]} does not take preloaded libraries, so its calls cannot be "
                "recorded",
                hint="it is linked statically, or has more rights than who starts it; --kill works",
            )

    @property
    def counted(self) -> int:
        """How many calls could have failed."""
        return self._numbers()[9]

    @property
    def failed(self) -> str:
        """The name of the call that failed first, "" if none did."""
        start = _NUMBERS.size + 2 * _PATH_BYTES
        return self._map[start : start + 64].split(b"\0")[0].decode()

    def operations(self) -> Iterator[Operation]:
        """What was recorded. Raises `ConfigError` if it was too much."""
        used, _, is_full, *_ = self._numbers()
        if is_full:
            raise ConfigError(
                "--run",
                f"the program wrote more than {TRACE_BYTES} bytes in one run that was recorded",
                hint="let it do less, or end by itself",
            )
        place, end = _HEAD_BYTES, _HEAD_BYTES + used
        while place < end:
            kind, file, at, size, more = _NOTE.unpack_from(self._map, place)
            start = place + _NOTE.size
            data = self._map[start : start + size]
            target = self._map[start + size : start + size + more]
            yield Operation(kind.decode(), file, at, data, target)
            place += (_NOTE.size + size + more + 7) & ~7

    def close(self) -> None:
        """Remove the trace."""
        self._map.close()
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._trace.unlink()

    def _numbers(self) -> tuple[int, ...]:
        return _NUMBERS.unpack_from(self._map, 0)
