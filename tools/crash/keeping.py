"""What every fault of a crash test does alike: check what is left, keep a failure, show it.

A failure is kept as a folder::

    before/         what the fault left, as the check was given it
    after/          the same behind the check, which may have changed it
    acked           what had been acknowledged, in order
    output          what the check said
    failure.json    what was done: commands, fault, seed, and in a sentence what was lost

`show_again` does once more what failed: the check on a copy of ``before``, the start of the program
there, or a whole run with the call that failed, where it died or hung by that.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from logweir.errors import ConfigError
from logweir.tools.crash.programs import Checked, Commands, Ended, check, live
from logweir.tools.crash.recording import Fault, Operation, Recording

_RECORD: Final = "failure.json"


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken promise. `fault`: which kind of fault; `number`: of the round or state; `what`: in a
    sentence, what was done to the program; `wrong`: how the check did not pass; `output`: what it
    said; `folder`: where it is kept."""

    fault: str
    number: int
    what: str
    wrong: str
    output: str
    folder: Path


class Again(NamedTuple):
    """How a failure is shown again. `do`: check what is kept; start the program on it with the seed
    `start_seed`; or run it in an empty folder with `call` failing, `is_endless` as `live` has
    it."""

    do: Literal["check", "start", "call"] = "check"
    start_seed: int = 0
    call: Fault | None = None
    is_endless: bool = True


class Recorded(NamedTuple):
    """What was recorded of a run. `counted`: calls that could have failed; `failed`: the name of
    the one that did, "" for none; `operations`: all of the run, if a sync failed in it."""

    counted: int
    failed: str
    operations: list[Operation]


@dataclass(slots=True)
class Tally:
    """What one kind of fault did. `tried`: faults; `acknowledged`: lines that the checks were given
    in all; `told`, `broken`: of damages, how many the program noticed and told, and how many broke
    a promise; `notes`: what the user has to know besides; `failure`: the first broken promise."""

    fault: str
    tried: int = 0
    acknowledged: int = 0
    told: int = 0
    broken: int = 0
    notes: list[str] = field(default_factory=list)
    failure: Failure | None = None


@dataclass(slots=True)
class CrashTest:
    """One test. `work`: an empty folder for what is passing; `keep`: where failures are kept;
    `seed`: all random choices follow from it; `deadline`: on `time.monotonic`, None for none;
    `progress`: told how many faults were tried."""

    commands: Commands
    work: Path
    keep: Path
    seed: int = 0
    deadline: float | None = None
    progress: Callable[[int], None] = lambda done: None

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def checked(self, directory: Path, acked: bytes) -> Checked:
        """Check a copy of a folder, which stays in `work` until the next one."""
        for name in ("after", "acked"):
            self._clear(self.work / name)
        (self.work / "acked").write_bytes(acked)
        shutil.copytree(directory, self.work / "after", symlinks=True)
        return check(self.commands, self.work / "after", self.work / "acked")

    def started(self, directory: Path, seed: int) -> Checked:
        """Start the program in a copy of a folder: how it fails."""
        copy = self.fresh("after")
        shutil.copytree(directory, copy, symlinks=True)
        commands = self.commands
        ended = live(
            commands.run_words(copy, seed),
            moment=None,
            acks=commands.acks_file(copy),
            timeout_seconds=commands.timeout_seconds,
        )
        return ended.failure()

    def failing(self, call: Fault, *, is_endless: bool) -> tuple[Ended, Recorded]:
        """Run the program in ``dir``, a new folder, with a call to the disk failing. Raises
        `ConfigError` if it cannot be recorded."""
        directory = self.fresh("dir")
        directory.mkdir()
        acks = self.commands.acks_file(directory)
        recording = Recording(self.fresh("trace"), directory, acks=acks, fault=call)
        try:
            ended = live(
                self.commands.run_words(directory, self.seed),
                moment=None,
                acks=acks,
                recording=recording,
                timeout_seconds=self.commands.timeout_seconds,
                is_endless=is_endless,
            )
            recording.must_be_loaded(self.commands.run)
            is_sync = call.kind == 1 and "sync" in recording.failed
            operations = list(recording.operations()) if is_sync else []
            return ended, Recorded(recording.counted, recording.failed, operations)
        finally:
            recording.close()

    def kept(
        self,
        tally: Tally,
        directory: Path,
        acked: bytes,
        what: str,
        found: Checked,
        *,
        again: Again = Again(),  # noqa: B008 - a constant
    ) -> None:
        """Keep a failure. `directory`: as the fault left it; `found`: what its check said, or how
        the program failed; `what`: in a sentence, what was done; `again`: how it is shown again."""
        self.keep.mkdir(parents=True, exist_ok=True)
        name = f"crash-{tally.fault.replace(' ', '-')}-{self.seed}-{tally.tried}"
        folder = self.keep / name
        count = 1
        while folder.exists():
            count += 1
            folder = self.keep / f"{name}-{count}"
        folder.mkdir()
        shutil.copytree(directory, folder / "before", symlinks=True)
        if (self.work / "after").is_dir():
            shutil.copytree(self.work / "after", folder / "after", symlinks=True)
        (folder / "acked").write_bytes(acked)
        (folder / "output").write_text(found.output)
        record = {
            "fault": tally.fault,
            "seed": self.seed,
            "number": tally.tried,
            "what": what,
            "wrong": found.wrong,
            "commands": asdict(self.commands),
            "again": again._asdict(),
        }
        (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        tally.failure = Failure(tally.fault, tally.tried, what, found.wrong, found.output, folder)

    def fresh(self, name: str) -> Path:
        """An empty place of that name in `work`: nothing is there."""
        self._clear(self.work / name)
        return self.work / name

    def _clear(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def show_again(folder: Path) -> Failure | None:
    """Do once more what failed; None if it passes now. Raises `ConfigError` if
    the folder holds no failure."""
    try:
        record = json.loads((folder / _RECORD).read_text())
        commands = Commands(**record["commands"])
        again = Again(**record["again"])
        call = Fault(*again.call) if again.call else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "--again",
            f"{folder} holds no failure that was kept: {error}",
            hint="give the folder that `logweir crashtest` named",
        ) from error
    with tempfile.TemporaryDirectory(prefix="logweir-crashtest-") as temporary:
        test = CrashTest(commands, Path(temporary), folder, seed=record["seed"])
        if call is not None:
            ended, _ = test.failing(call, is_endless=again.is_endless)
            found = ended.fatal(is_endless=again.is_endless)
        elif again.do == "start":
            found = test.started(folder / "before", again.start_seed)
        else:
            found = test.checked(folder / "before", (folder / "acked").read_bytes())
    if not found.wrong:
        return None
    return Failure(
        record["fault"], record["number"], record["what"], found.wrong, found.output, folder
    )
