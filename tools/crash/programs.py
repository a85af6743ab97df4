"""The two commands of a crash test: one that works and acknowledges, one that checks.

A command is a line as a shell's, without its operators: it is split into words, then ``{dir}``,
``{acked}`` and ``{seed}`` in a word are replaced. An *acknowledgement* is a whole line of the
program's standard output, or of the file that `Commands.acks` names. The check is given all of them
in their order in a file, and says with exit code 0 that nothing is missing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from logweir.errors import ConfigError
from logweir.tools.crash.recording import Recording

ACKS_BYTES: Final = 64 << 20
"""Acknowledgements of one life, at most."""
OUTPUT_BYTES: Final = 64 << 10
"""What is kept of what a command says besides, at most."""
ENDLESS_SECONDS: Final = 1.0
"""A program that still runs so long after its first acknowledgement is taken for an endless one."""
TOLD: Final = 3
"""Exit code of a check that says that the data is damaged."""
_LOOK_SECONDS: Final = 0.05
_CRASHES: Final = {
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
}


@dataclass(frozen=True, slots=True)
class Commands:
    """What is tested. `run`, `check`: the commands; `acks`: the file in which the program
    acknowledges, "" for its standard output; `timeout_seconds`: how long it may be silent, and how
    long a check may take. Raises `ConfigError` for what cannot be started."""

    run: str
    check: str
    acks: str = ""
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        for option, command in (("--run", self.run), ("--check", self.check)):
            words = _words(option, command)
            if not any("{dir}" in word for word in words):
                raise ConfigError(
                    option, f"{command!r} has no {{dir}}", hint="it stands for the folder to use"
                )
            if shutil.which(words[0]) is None:
                raise ConfigError(
                    option,
                    f"there is no program {words[0]!r}",
                    hint="a command is started without a shell; give its path, or `sh -c '…'`",
                )

    def run_words(self, directory: Path, seed: int) -> list[str]:
        """The program's words."""
        return _filled(self.run, {"dir": str(directory), "seed": str(seed)})

    def check_words(self, directory: Path, acked: Path) -> list[str]:
        """The check's words."""
        return _filled(self.check, {"dir": str(directory), "acked": str(acked)})

    def acks_file(self, directory: Path) -> Path | None:
        """Where the program acknowledges, None for its standard output."""
        return Path(self.acks.replace("{dir}", str(directory))) if self.acks else None


def _words(option: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(option, f"{command!r} cannot be split into words: {error}") from error
    if not words:
        raise ConfigError(option, "is empty", hint="see docs/crash-testing.md for an example")
    return words


def _filled(command: str, values: Mapping[str, str]) -> list[str]:
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


class Moment(NamedTuple):
    """When a program is killed: `seconds` after its acknowledgement number `acks`, 0 for its
    start."""

    acks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check said. `wrong`: in one phrase why it does not pass, "" if it does; `output`: what
    it printed, the beginning of it; `code`: its exit code, 0 if it has none."""

    wrong: str
    output: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one life. `code`: as `Popen.returncode`; `was_stopped`: whether it was killed
    here; `acked`: what it acknowledged, whole lines; `said`: the end of its standard error;
    `first_seconds`: when the first acknowledgement came, None if none did; `seconds`: how long it
    ran."""

    code: int
    was_stopped: bool
    acked: bytes
    said: str
    first_seconds: float | None
    seconds: float

    def must_be_well(self, commands: Commands) -> None:
        """Raise `ConfigError` if it failed without a fault, or acknowledged nothing."""
        if not self.is_killed and self.code != 0:
            raise ConfigError(
                "--run",
                f"the program ended with code {self.code} though nothing was done to it: "
                f"{self.said.strip()[-500:]}",
                hint="run the command by hand in an empty folder",
            )
        if not self.acked:
            where = commands.acks or "its standard output"
            raise ConfigError(
                "--run",
                f"the program acknowledged nothing in {self.seconds:.0f} seconds",
                hint=f"it has to write a line to {where} when a change is safe, and to flush it",
            )

    def failure(self) -> Checked:
        """How it failed by itself, if it did."""
        is_well = self.is_killed or self.code == 0
        return Checked("" if is_well else f"the program ended with code {self.code}", self.said)

    def fatal(self, *, is_endless: bool) -> Checked:
        """How it failed as nothing that is done to it excuses: it crashed, or it hung.
        `is_endless`: whether it never ends by itself, so that it did not hang if it acknowledged
        anything."""
        if -self.code in _CRASHES:
            return Checked(f"the program died by {signal.Signals(-self.code).name}", self.said)
        if self.was_stopped and (self.first_seconds is None or not is_endless):
            return Checked(f"the program hung for {self.seconds:.0f} seconds", self.said)
        return Checked("", self.said)

    @property
    def is_killed(self) -> bool:
        """Whether it ended by SIGKILL, wherever that came from."""
        return self.was_stopped or self.code == -signal.SIGKILL


class _Gathered:
    """What comes out of a program while it runs."""

    def __init__(self, output: int, errors: int, acks: Path | None) -> None:
        self.acked = bytearray()
        self.said = bytearray()
        self._acks = acks
        self._selector = selectors.DefaultSelector()
        for pipe, kept in ((output, self.acked), (errors, self.said)):
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ, kept)
        if acks is not None:  # what it prints besides is not kept
            self._selector.modify(output, selectors.EVENT_READ, None)

    def take(self, seconds: float) -> bool:
        """Wait for more, so long at most. Returns whether any pipe is still open."""
        for key, _ in self._selector.select(max(seconds, 0.0)):
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                self._selector.unregister(key.fd)
            elif key.data is not None:
                key.data.extend(piece)
        if self._acks is not None:
            with contextlib.suppress(FileNotFoundError), self._acks.open("rb") as file:
                file.seek(len(self.acked))
                self.acked += file.read(ACKS_BYTES)
        if len(self.acked) > ACKS_BYTES:
            raise ConfigError(
                "--run",
                f"acknowledged more than {ACKS_BYTES} bytes in one life",
                hint="print a short line for each change, such as its number",
            )
        del self.said[:-OUTPUT_BYTES]
        return bool(self._selector.get_map())

    def rest(self) -> None:
        """What is left once the program is dead."""
        while self.take(0.0) and self._selector.select(0.0):
            pass
        self._selector.close()


def live(
    words: list[str],
    *,
    moment: Moment | None,
    acks: Path | None = None,
    recording: Recording | None = None,
    timeout_seconds: float = 60.0,
    is_endless: bool = True,
) -> Ended:
    """Start a program in a process group of its own and kill the group at `moment`.

    `moment`: None: `ENDLESS_SECONDS` after its first acknowledgement; `acks`: the file in which it
    acknowledges; `recording`: of what it does; `timeout_seconds`: how long it may take for what
    `moment` waits for, before it is killed all the same; `is_endless`: whether it may be one that
    never ends; False: it is not killed before that time is over.
    """
    if acks is not None:
        acks.unlink(missing_ok=True)
    started = time.monotonic()
    due = started + moment.seconds if moment and not moment.acks else None
    limit = started + timeout_seconds
    first: float | None = None
    output, its_output = os.pipe()
    if recording is not None:
        recording.set_pipe(its_output)
    with (
        open(output, "rb", closefd=True),
        subprocess.Popen(  # noqa: S603 - the caller's own program
            words,
            env=dict(os.environ) | (recording.environment if recording else {}),
            stdin=subprocess.DEVNULL,
            stdout=its_output,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        os.close(its_output)
        assert process.stderr is not None
        gathered = _Gathered(output, process.stderr.fileno(), acks)
        try:
            while process.poll() is None:
                now = time.monotonic()
                if now >= limit or (due is not None and now >= due):
                    break
                gathered.take(min(_LOOK_SECONDS, limit - now, (due or limit) - now))
                if first is None and b"\n" in gathered.acked:
                    first = time.monotonic() - started
                    if moment is None and is_endless:
                        due = time.monotonic() + ENDLESS_SECONDS
                if due is None and moment and gathered.acked.count(b"\n") >= moment.acks:
                    due = time.monotonic() + moment.seconds
            was_stopped = process.poll() is None
            if recording is not None:
                recording.stop()
        finally:
            _kill_group(process.pid)
            process.wait()
            gathered.rest()
    if first is None and b"\n" in gathered.acked:
        first = time.monotonic() - started
    whole = bytes(gathered.acked[: gathered.acked.rfind(b"\n") + 1])
    said = gathered.said.decode(errors="replace")
    return Ended(process.returncode, was_stopped, whole, said, first, time.monotonic() - started)


def trial(commands: Commands, directory: Path, acked: Path) -> Ended:
    """Run the program once without a fault, and check what it left if it ended by itself.

    `directory`: a folder that is not there; `acked`: a file to write. Raises `ConfigError` if the
    program never acknowledges, fails by itself, or does not pass its own check.
    """
    directory.mkdir()
    ended = live(
        commands.run_words(directory, 0),
        moment=None,
        acks=commands.acks_file(directory),
        timeout_seconds=commands.timeout_seconds,
    )
    ended.must_be_well(commands)
    if not ended.was_stopped:
        acked.write_bytes(ended.acked)
        found = check(commands, directory, acked)
        if found.wrong:
            said = f": {found.output.strip()[-500:]}" if found.output.strip() else ""
            raise ConfigError(
                "--check",
                f"{found.wrong} though nothing was done to the program{said}",
                hint="run both commands by hand: the check has to pass without a fault",
            )
    return ended


def check(commands: Commands, directory: Path, acked: Path) -> Checked:
    """Check a folder, in place. `acked`: the file with what was acknowledged."""
    output = bytearray()
    with subprocess.Popen(  # noqa: S603 - the caller's own program
        commands.check_words(directory, acked),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        limit = time.monotonic() + commands.timeout_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            is_open = True
            while is_open and (left := limit - time.monotonic()) > 0:
                for _ in selector.select(left):
                    piece = os.read(process.stdout.fileno(), 1 << 16)
                    is_open = bool(piece)
                    output += piece[: OUTPUT_BYTES - len(output)]
        try:
            process.wait(max(limit - time.monotonic(), 0.0))
            is_late = False
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            _kill_group(process.pid)
    text = output.decode(errors="replace")
    if is_late:
        return Checked(f"the check took more than {commands.timeout_seconds:g} seconds", text)
    code = process.returncode
    return Checked(f"the check ended with code {code}" if code else "", text, code)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
