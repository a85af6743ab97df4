"""What a store and its server need of the machine, and whether it is there: for `logweir doctor`.

Nothing is changed, but for a file that is written, synced and removed to see how long that takes.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import resource
import shutil
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, Literal, NamedTuple

import logweir
from logweir.compiled import FINDER, KERNELS
from logweir.errors import WalError
from logweir.limits import MEMORY_BYTES, STATE_MAP_START_BYTES, WAL_MAX_SIZE_BYTES
from logweir.tools.cli.output import human_bytes
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS, explain
from logweir.wal.lease import LOCK_NAME
from logweir.wal.newfile import create_file

State = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """One thing that was looked at. `state`: `note` for what works and may surprise."""

    check: str
    state: State
    found: str
    hint: str = ""


_DEVELOPERS: Final = ("check", "fuzz", "test")
"""Extras of those who change logweir."""

_SYNCS: Final = 32
_SYNCED_BYTES: Final = 4096
_SYNC_SLOW_SECONDS: Final = 0.02
_SYNC_NONE_SECONDS: Final = 0.00002
"""What no disk is as quick as."""

_ROOM_BYTES: Final = 2 * WAL_MAX_SIZE_BYTES
"""A log, and as much for the state and a snapshot."""

_EARLIEST: Final = 1735689600.0
"""2025: logweir is younger, and a clock before it was never set."""

_CLOCK_SLACK_SECONDS: Final = 60.0

_NOT_FOR_STORES: Final = {
    **dict.fromkeys(("tmpfs", "ramfs"), "it is gone when the machine is started again"),
    "overlay": "it is gone with its container",
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs"),
        "locks and memory maps, which the state needs, may not hold over a network",
    ),
}
"""File systems, and what speaks against them."""


# --- the machine ----------------------------------------------------------------------------------


def machine_findings(files: int, memory: int = MEMORY_BYTES) -> Iterator[Finding]:
    """What holds whatever the folder is. `files`: how many a server may have open; `memory`: bytes
    that its connections may hold."""
    bits = 8 * struct.calcsize("P")
    yield Finding(
        "python",
        "ok" if bits == 64 else "note",
        f"{platform.python_implementation()} {platform.python_version()}, {bits} bits, "
        f"{platform.system()} {platform.release()} {platform.machine()}",
        "" if bits == 64 else "a store of some gigabytes needs 64 bits",
    )
    yield _kernels()
    yield _extras()
    yield from _limits(files)
    yield _memory(memory)
    yield _clock()


def _kernels() -> Finding:
    missing = [name.removeprefix("logweir.") for name in KERNELS if not _is_compiled(name)]
    total = len(KERNELS)
    if not missing:
        return Finding("kernels", "ok", f"all {total} are compiled")
    if FINDER.broken:
        hint = "install the library that it names, or logweir anew"
        return Finding("kernels", "problem", f"they cannot be loaded: {FINDER.broken}", hint)
    names = ", ".join(missing) if len(missing) < total else "all"
    return Finding(
        "kernels",
        "note",
        f"{len(missing)} of {total} are not compiled, which is slower: {names}",
        "install a C compiler and the headers of Python, LMDB and zstd (Debian: gcc python3-dev "
        "liblmdb-dev libzstd-dev), then logweir anew",
    )


def _is_compiled(kernel: str) -> bool:
    """Without importing it, which would import all that a server has."""
    folders = [str(Path(root, *kernel.split(".")[1:-1])) for root in logweir.__path__]
    spec = FINDER.find_spec(kernel, folders) or PathFinder.find_spec(kernel, folders)
    return spec is not None and not str(spec.origin).endswith(".py")


def _extras() -> Finding:
    needs: dict[str, list[str]] = {}
    for line in metadata.requires("logweir") or ():
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"""extra == ["'](\w+)["']\s*$""", line)
        if name and extra and name[0] != "logweir" and extra[1] not in _DEVELOPERS:
            needs.setdefault(extra[1], []).append(name[0])
    absent = [extra for extra, names in needs.items() if not all(map(_is_installed, names))]
    there = [extra for extra in needs if extra not in absent]
    text = f"installed: {', '.join(sorted(there)) or 'none'}"
    return Finding("extras", "ok", f"{text}; not: {', '.join(sorted(absent)) or 'none'}")


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _limits(files: int) -> Iterator[Finding]:
    def limit(number: int) -> float:
        most = resource.getrlimit(number)[1]
        return float("inf") if most == resource.RLIM_INFINITY else most

    most = limit(resource.RLIMIT_NOFILE)
    enough = most >= files
    yield Finding(
        "open files",
        "ok" if enough else "note",
        f"{most:.0f} at most (ulimit -Hn), a server with these settings may need {files}",
        "" if enough else "raise it (LimitNOFILE= of systemd), or serve with fewer --connections",
    )
    size = limit(resource.RLIMIT_FSIZE)
    if size < WAL_MAX_SIZE_BYTES:
        yield Finding(
            "file size",
            "problem",
            f"no file may be larger than {human_bytes(int(size))} (ulimit -f), a log grows to "
            f"{human_bytes(WAL_MAX_SIZE_BYTES)}",
            "raise the limit",
        )
    space = limit(resource.RLIMIT_AS)
    if space < 2 * STATE_MAP_START_BYTES:
        yield Finding(
            "address space",
            "note",
            f"{human_bytes(int(space))} (ulimit -v): the state is mapped, and cannot grow over it",
            "raise the limit: it is no memory that is used",
        )


def _memory(wanted: int) -> Finding:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # of version 2; `max` is no number
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    text = f"{human_bytes(there)}; connections of a server may hold {human_bytes(wanted)}"
    if there >= 2 * wanted:
        return Finding("memory", "ok", text)
    return Finding("memory", "note", text, "serve with a smaller --memory")


def _clock() -> Finding:
    now = time.time()
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < _EARLIEST:
        hint = "set it: rows carry their time, and --at-time goes by it"
        return Finding("clock", "problem", f"{text} is in the past", hint)
    return Finding("clock", "ok", text)


# --- the folder -----------------------------------------------------------------------------------


def folder_findings(folder: Path) -> Iterator[Finding]:
    """Whether a store can be in a folder, which need not be there yet."""
    place = folder
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        yield Finding("folder", "problem", f"{place} is no folder", "name another one")
        return
    rights = _rights(folder, place)
    yield rights
    kind = _kind_of_disk(place)
    against = _NOT_FOR_STORES.get(kind, "")
    yield Finding(
        "disk",
        "note" if against else "ok",
        f"{kind or 'unknown'}{': ' if against else ''}{against}",
        "keep stores on a local disk" if against else "",
    )
    yield _room(place)
    if rights.state == "problem":
        return
    yield _sync(place)
    if place == folder:
        yield _use(folder)
        yield _files(folder)
        yield from _back_clock(folder)


def _rights(folder: Path, place: Path) -> Finding:
    status = place.stat()
    who = f"user {os.geteuid()}"
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        hint = f"it belongs to user {status.st_uid}: run as that one, or give it to user (chown -R)"
        return Finding("folder", "problem", f"{place} may not be written to by {who}", hint)
    if place != folder:
        return Finding("folder", "ok", f"{folder} is not there; {who} can make it")
    foreign = [
        entry.name
        for entry in os.scandir(folder)
        if not os.access(entry.path, os.R_OK | os.W_OK, follow_symlinks=True)
    ]
    if foreign:
        text = f"{who} may not read and write {min(foreign)}, {len(foreign)} files in all"
        return Finding("folder", "problem", text, "have all files belong to who serves (chown -R)")
    text = f"{folder}, mode {status.st_mode & 0o7777:04o}"
    if status.st_mode & 0o007:
        hint = f"chmod o= {folder}"
        return Finding("folder", "note", f"{text}: open to all users of the machine", hint)
    return Finding("folder", "ok", text)


def _kind_of_disk(place: Path) -> str:
    """The file system, where the system tells."""
    best, kind = -1, ""
    path = str(place.resolve())
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
            fields, _, of_disk = line.partition(" - ")
            mount = re.sub(r"\\(\d{3})", lambda told: chr(int(told[1], 8)), fields.split()[4])
            is_above = path == mount or path.startswith(mount.rstrip("/") + "/")
            if is_above and len(mount) >= best:
                best, kind = len(mount), of_disk.split()[0]
    return kind


def _room(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    names = os.statvfs(place)
    text = f"{human_bytes(free)} free"
    if names.f_files and not names.f_favail:
        return Finding("room", "problem", f"{text}, but no inode", "remove files, or mend the disk")
    if free < _ROOM_BYTES:
        hint = f"have {human_bytes(_ROOM_BYTES)} at least: a log, the state and a snapshot"
        return Finding("room", "note", text, hint)
    return Finding("room", "ok", text)


def _sync(place: Path) -> Finding:
    path = place / f".logweir-doctor.{os.getpid()}"
    block = os.urandom(_SYNCED_BYTES)
    took = []
    try:
        with closing(create_file(OS, path)) as file:
            for _ in range(_SYNCS):
                began = time.perf_counter()
                file.write([block])
                file.sync()
                took.append(time.perf_counter() - began)
    except OSError as error:
        said = explain(error, str(path))
        return Finding("sync", "problem", said.message, said.hint)
    finally:
        with suppress(OSError):
            path.unlink()
    usual, worst = statistics.median(took), max(took)
    text = f"{usual * 1000:.2f} ms for {_SYNCED_BYTES} bytes, {worst * 1000:.2f} at worst"
    if usual < _SYNC_NONE_SECONDS:
        hint = "a power cut may take what was acknowledged: see what is below (RAM, a virtual disk)"
        return Finding("sync", "note", f"{text}: it seems to reach no disk", hint)
    if usual > _SYNC_SLOW_SECONDS:
        hint = "changes at the same time share a sync; a lone one waits so long"
        return Finding("sync", "note", f"{text}: slow", hint)
    return Finding("sync", "ok", text)


def _use(folder: Path) -> Finding:
    """Asked by a lock that does not keep others from reading, and is given back at once."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        who = "another process"  # a Tarantool does not say which
        with suppress(OSError, ValueError):
            who = f"process {int((folder / LOCK_NAME).read_text())}"
        return Finding("use", "ok", f"{who} has it open")
    except OSError as error:
        said = explain(error, str(folder))
        return Finding("use", "problem", f"it cannot be locked: {said.message}", said.hint)
    finally:
        os.close(fd)
    return Finding("use", "ok", "no process has it open")


def _files(folder: Path) -> Finding:
    """Whether the headers of its logs and snapshots can be read."""
    try:
        index = scan_directory(folder)
    except WalError as error:
        return Finding("files", "problem", str(error))
    if index.damage:
        text = f"{index.damage[0]} {len(index.damage)} of them cannot be used"
        return Finding("files", "problem", text, f"`logweir verify {folder}` tells what is lost")
    return Finding("files", "ok", f"{len(index.snaps)} snapshots, {len(index.xlogs)} logs")


def _back_clock(folder: Path) -> Iterator[Finding]:
    newest = max((path.stat().st_mtime for path in folder.glob("*.xlog")), default=0.0)
    ahead = newest - time.time()
    if ahead > _CLOCK_SLACK_SECONDS:
        yield Finding(
            "clock",
            "note",
            f"the newest log was written {ahead:.0f} seconds from now: the clock went back",
            "set it right before anything is written: --at-time finds rows by their times",
        )
