"""Killing a writing process again and again, and looking at what it left each time.

A round starts the workload on the folder as the round before left it, kills it with SIGKILL at a
random moment or at a named failpoint, and checks the folder: everything that the workload had
acknowledged is there, nothing is there twice, no transaction is there in part. What is killed is a
process, not the machine: the system's memory survives. For power cuts see `sim`.

A workload is any program that takes the folder and a number as its last two arguments, makes its
random choices by that number, and prints ``ack N`` when change N is safe; numbers rise.
"""

from __future__ import annotations

import os
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from logweir.errors import ConfigError
from logweir.recovery.faults.workload import check_folder, make_folder

__all__ = ["FAILPOINTS", "CrashTestResult", "crashtest"]

FAILPOINTS: Final = (
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "wal.after_eof_before_sync",
    "wal.after_close",
    "wal.before_rename",
    "wal.after_rename_before_directory_sync",
    "snapshot.before_rename",
    "snapshot.after_rename_before_directory_sync",
)
"""Where the log can be made to die: see `wal.failpoint`."""

_WORKLOAD: Final = (sys.executable, "-m", "logweir.recovery.faults.workload")
_START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class CrashTestResult:
    """What happened. `kills`: rounds in which the workload was killed; `acknowledged`: the last
    number that it had confirmed; `problems`: promises that were broken, empty if none was."""

    rounds: int
    kills: int
    acknowledged: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, doubled or torn."""
        return not self.problems


def crashtest(
    directory: Path,
    *,
    rounds: int = 20,
    seed: int = 0,
    workload: Sequence[str] = _WORKLOAD,
    prepare: Callable[[Path], None] = make_folder,
    check: Callable[[Path, int], list[str]] = check_folder,
    failpoints: Sequence[str] = FAILPOINTS,
    alive_seconds: float = 0.15,
    progress: Callable[[int, int], None] | None = None,
) -> CrashTestResult:
    """Kill a workload `rounds` times and check after each. Stops at the first broken promise.

    `directory`: the folder, `prepare` makes it ready; `seed`: decides the moments and the
    workload's choices; `check`: given the folder and the last acknowledged number, says what is
    wrong; `failpoints`: where to die in half of the rounds; `alive_seconds`: how long it lives in
    the others at most, counted from its first acknowledgement. Raises `ConfigError` if the workload
    ends by itself or says nothing for a minute.
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    prepare(directory)
    acknowledged = kills = 0
    for number in range(rounds):
        argv = [*workload, str(directory), str(rng.getrandbits(32))]
        environment = dict(os.environ)
        environment.pop("LOGWEIR_FAILPOINTS", None)
        if failpoints and rng.random() < 0.5:
            point = rng.choice(failpoints)
            environment["LOGWEIR_FAILPOINTS"] = f"{point}=kill@{rng.randint(1, 40)}"
        last = _round(argv, environment, rng.uniform(0, alive_seconds))
        kills += 1
        acknowledged = max(acknowledged, last)
        problems = check(directory, acknowledged)
        if progress is not None:
            progress(number + 1, rounds)
        if problems:
            named = [f"round {number + 1} of seed {seed}: {text}" for text in problems]
            return CrashTestResult(number + 1, kills, acknowledged, tuple(named))
    return CrashTestResult(rounds, kills, acknowledged, ())


def _round(argv: Sequence[str], environment: dict[str, str], alive_seconds: float) -> int:
    """Start the workload, kill it, and return the last number that it acknowledged, 0 for none."""
    with subprocess.Popen(  # noqa: S603 - the caller's own program
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        output = b""
        deadline = time.monotonic() + _START_SECONDS
        started = False
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    continue
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    break  # it died at a failpoint, or by itself
                output = output[-64:] + piece
                if not started:
                    started = True
                    deadline = time.monotonic() + alive_seconds
        process.kill()
        output += _rest(process.stdout)
        errors = process.stderr.read()
        code = process.wait()
    if code != -9 or (not started and left <= 0):
        raise ConfigError(
            "workload",
            f"{argv[0]} ended with code {code}: {errors.decode(errors='replace')[-500:]}",
            hint="a workload writes until it is killed, and prints `ack N` for every change",
        )
    lines = [line for line in output.split(b"\n")[:-1] if line.startswith(b"ack ")]
    return int(lines[-1][4:]) if lines else 0


def _rest(pipe: IO[bytes]) -> bytes:
    """What is left in a pipe whose other end is closed."""
    return pipe.read()
