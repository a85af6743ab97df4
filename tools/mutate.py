"""Mutants: small damages to the product, each with the tests that have to notice it.

    python -P -m logweir.tools.mutate                    run all
    python -P -m logweir.tools.mutate store hub-adopt    those of a room, and one by its name
    python -P -m logweir.tools.mutate --list [WHICH…]    show them
    python -P -m logweir.tools.mutate --random 20 --seed 3 wal [-- TESTS…]    20 that nobody chose

They are data: `tests/mutants/ROOM.toml` has those of a room, each with `name`, what it `breaks`,
the `file`, the `text` that stands there exactly once, what comes `into` its place, and the `tests`.
They are put into a copy of the tree, one after the other; the tree itself is not touched. A kernel
is compiled there anew. All tests have to pass in the copy as it is, before anything is broken.

With `--random` they are small changes at places drawn by the seed (`logweir.tools.randommutants`),
on lines that the room's tests run, or the tests that are named: these run once before, with their
lines noted. Those tests have to notice it that run its line; the quickest come first, and no more
of them than take a quarter of `--seconds` when nothing is broken.

Exit code 0 if each one was noticed (killed); 1 if one was not (survived), if its text is not there
once (stale), or if its tests did not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from logweir.tools.docs import find_root
from logweir.tools.randommutants import SOURCES, draw
from logweir.wal.built import RECORD, digests

__all__ = ["Lines", "Mutant", "Tree", "random_mutants", "read_mutants", "run_mutants", "stale"]

TIME_LIMIT_SECONDS: Final = 600.0
_TRACED_SECONDS: Final = 3600.0
KILLED: Final = "killed"
SURVIVED: Final = "survived"
STALE: Final = "stale"
NOT_RUN: Final = "not run"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One damage. `text` stands once in `file`, relative to the tree; `tests`: ids for pytest."""

    room: str
    name: str
    breaks: str
    file: str
    text: str
    into: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a mutant; `detail`: why, where that is not plain."""

    mutant: Mutant
    outcome: str
    seconds: float = 0.0
    detail: str = ""


def read_mutants(folder: Path) -> list[Mutant]:
    """Those of all rooms, in the order of their files. Raises `ValueError` with the file's name."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        try:
            for one in tomllib.loads(path.read_text("utf-8"))["mutant"]:
                one["tests"] = tuple(one["tests"])
                found.append(Mutant(room=path.stem, **one))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
    return found


def stale(mutant: Mutant, root: Path) -> str:
    """Why it cannot be put into the tree; "" if it can."""
    path = root / mutant.file
    if not path.is_file():
        return f"there is no {mutant.file}"
    count = path.read_text("utf-8").count(mutant.text)
    if count != 1:
        return f"its text stands {count} times in {mutant.file}"
    return "it changes nothing" if mutant.text == mutant.into else ""


@dataclass(frozen=True, slots=True)
class Lines:
    """What tests ran. `ran`: file to line to tests; `seconds`: that each test took."""

    ran: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, file: str, line: int, most_seconds: float) -> tuple[str, ...]:
        """Those that run a line, the quickest first, at least one."""
        found: list[str] = []
        took = 0.0
        for test in sorted(self.ran[file][line], key=lambda test: self.seconds[test]):
            took += self.seconds[test]
            if found and took > most_seconds:
                break
            found.append(test)
        return tuple(found)


class Tree:
    """A copy of the tree in `scratch`, which is imported from there and not from where it came."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.path = scratch / "logweir"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.decode()
        wanted = [root / name for name in listed.split("\0") if name]
        if (root / RECORD).is_file():
            sources = [source for source, _ in json.loads((root / RECORD).read_bytes()).values()]
            folders = {(root / source).parent for source in sources}
            compiled = (folder.glob("*kernel.*.so") for folder in folders)  # shared ones, too
            wanted += [root / RECORD, *chain.from_iterable(compiled)]
        for path in filter(Path.is_file, wanted):
            target = self.path / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
        (self.path / ".venv").symlink_to(Path(sys.prefix))
        self._changes = 0
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(scratch), str(self.path / "pipeline/discovery"))),
            "PYTHONPYCACHEPREFIX": str(scratch / "pycache"),
        }

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[None]:
        """Put it in, and take it out again. Raises `subprocess.CalledProcessError` where a kernel
        does not compile."""
        path = self.path / mutant.file
        changed = [path, *self._made_of(path)]
        sound = [one.read_bytes() for one in changed]
        try:
            self._write(path, sound[0].replace(mutant.text.encode(), mutant.into.encode()))
            if len(changed) > 1:
                self._compile(path, changed[1])
            yield
        finally:
            for one, data in zip(changed, sound, strict=True):
                self._write(one, data)

    def _made_of(self, path: Path) -> list[Path]:
        """The compiled kernel that was made of a file, and the record of that; none of others."""
        found = sorted(path.parent.glob(f"{path.stem}.*.so"))
        return [*found, self.path / RECORD] if found else []

    def _write(self, path: Path, data: bytes) -> None:
        """With a time of its own: what was compiled of the last contents is old by that. As another
        file: a process that is left may have the old one mapped."""
        self._changes += 1
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        at = int(time.time()) + self._changes
        os.utime(path, (at, at))

    def _compile(self, path: Path, compiled: Path) -> None:
        source = path.relative_to(self.path)
        name = ".".join(("logweir", *source.with_suffix("").parts))
        translated = self.path.parent / f"{path.stem}.c"
        libraries = re.findall(r"^# distutils: libraries = (\w+)$", path.read_text(), re.MULTILINE)
        compiled.unlink()
        include = f"-I{sysconfig.get_path('include')}"
        compiler = shlex.split(sysconfig.get_config_var("CC"))
        cython: list[str | Path] = [sys.executable, "-P", "-m", "cython", "-3"]
        cython += ["-I", self.path.parent, "--module-name", name, path, "-o", translated]
        link: list[str | Path] = [*compiler, "-shared", "-fPIC", "-O1", "-w", include, translated]
        link += [*(f"-l{library}" for library in libraries), "-o", compiled]
        for command in (cython, link):
            subprocess.run(command, capture_output=True, check=True)  # noqa: S603
        record = self.path / RECORD
        told = json.loads(record.read_bytes()) | digests(self.path, {name: str(source)})
        self._write(record, json.dumps(told).encode())

    def lines(self, tests: Sequence[str], seconds: float) -> Lines:
        """Run tests once, and note which run which line. Raises `ValueError` where that takes
        longer."""
        told = self.path.parent / "lines.json"
        self._environment["LOGWEIR_LINES"] = str(told)
        code, line = self.test(["-p", "logweir.tools.linetrace", "--maxfail=1000", *tests], seconds)
        if not told.exists():
            raise ValueError(f"the tests did not come to their end ({code}): {line}")
        read = json.loads(told.read_bytes())
        took = read.pop("")
        return Lines(
            {file: {int(at): tests for at, tests in some.items()} for file, some in read.items()},
            took,
        )

    def test(self, tests: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Run tests until one fails. The exit code, None where time ran out; and pytest's last
        line."""
        command = [
            str(Path(sys.executable).parent / "pytest"),
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
        ]
        with subprocess.Popen(  # noqa: S603
            [*command, *tests],
            cwd=self.path,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        ) as running:
            try:
                said, _ = running.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, 9)  # with the programs that the tests started
                return None, f"not done after {seconds:.0f} s"
        lines = [line for line in said.splitlines() if line.strip()]
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return running.returncode, (failed or lines or [""])[-1]


def _judge(tree: Tree, mutant: Mutant, seconds: float) -> Verdict:
    why = stale(mutant, tree.path)
    if why:
        return Verdict(mutant, STALE, detail=why)
    began = time.monotonic()
    try:
        with tree.with_mutant(mutant):
            code, line = tree.test(mutant.tests, seconds)
    except subprocess.CalledProcessError as error:
        return Verdict(mutant, NOT_RUN, detail=f"it does not compile: {error.stderr[-300:]!r}")
    took = time.monotonic() - began
    if code is None:  # not killed: a test that hangs fails by its own limit before
        return Verdict(mutant, NOT_RUN, took, line)
    if code == 1:
        return Verdict(mutant, KILLED, took, line)
    if code < 0:
        return Verdict(mutant, KILLED, took, f"the tests ended by signal {-code}")
    if code == 0:
        skipped = "skipped" in line and not re.search(r"\d passed", line)
        return Verdict(mutant, NOT_RUN if skipped else SURVIVED, took, line)
    return Verdict(mutant, NOT_RUN, took, f"pytest ended with {code}: {line}")


def run_mutants(
    mutants: Sequence[Mutant], root: Path, say: Say, *, seconds: float, first: bool = True
) -> list[Verdict]:
    """What comes of each. `seconds`: how long the tests of one may take; `first`: whether they are
    run without any damage before. Raises `ValueError` where they fail then."""
    with tempfile.TemporaryDirectory(prefix="logweir-mutants-") as scratch:
        tree = Tree(root, Path(scratch))
        if first:
            tests = sorted({test for one in mutants for test in one.tests})
            say(f"{len(tests)} tests without any damage")
            code, line = tree.test(tests, seconds * max(1, len(mutants)))
            if code != 0:
                raise ValueError(f"not all tests pass as the tree stands: {line}")
        found = []
        for one in mutants:
            found.append(_judge(tree, one, seconds))
            say(_line(found[-1]))
        return found


def random_mutants(
    room: str, root: Path, say: Say, *, tests: Sequence[str], count: int, seed: int, seconds: float
) -> list[Verdict]:
    """What comes of `count` changes of a room that nobody chose, see the module. `tests`: words for
    pytest that say which are run. Raises `ValueError` where there is nothing to change."""
    with tempfile.TemporaryDirectory(prefix="logweir-mutants-") as scratch:
        tree = Tree(root, Path(scratch))
        say(f"tests of {room} with their lines noted: {' '.join(tests)}")
        lines = tree.lines(tests, _TRACED_SECONDS)
        found = []
        for file, change in draw(tree.path, room, lines.ran, count, seed):
            source = (tree.path / file).read_bytes()
            mutant = Mutant(
                room,
                f"{file}:{change.line}",
                f"{change.text!r} is {change.into!r}",
                file,
                source.decode(),
                change.applied(source).decode(),
                lines.tests(file, change.line, seconds / 4),
            )
            found.append(_judge(tree, mutant, seconds))
            say(_line(found[-1]) + f"\n                   {mutant.breaks}")
        return found


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    text = f"{verdict.outcome:8} {verdict.seconds:6.1f} s  {mutant.room}: {mutant.name}"
    return f"{text}\n                   {verdict.detail}" if verdict.detail else text


def _table(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """How many of each room were killed, and what was not."""
    rooms: dict[str, list[Verdict]] = {}
    for one in verdicts:
        rooms.setdefault(one.mutant.room, []).append(one)
    yield f"{'room':12} {'mutants':>7} {'killed':>7} {'share':>6}"
    for room, some in (rooms | {"all": [one for each in rooms.values() for one in each]}).items():
        killed = sum(one.outcome == KILLED for one in some)
        yield f"{room:12} {len(some):7} {killed:7} {100 * killed // len(some):5} %"
    for one in (one for some in rooms.values() for one in some if one.outcome != KILLED):
        yield f"{one.outcome}: {one.mutant.name} ({one.mutant.breaks}) {one.detail}"


def _random(options: argparse.Namespace, root: Path, tests: Sequence[str]) -> int:
    verdicts = []
    try:
        for room in options.which:
            verdicts += random_mutants(
                room,
                root,
                lambda text: print(text, flush=True),
                tests=tests or [f"--room={room}"],
                count=options.random,
                seed=options.seed,
                seconds=options.seconds,
            )
    except ValueError as error:
        sys.stderr.write(f"mutate: {error}\n")
        return 1
    print("\n" + "\n".join(_table(verdicts)))
    return int(any(one.outcome != KILLED for one in verdicts))


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m logweir.tools.mutate")
    parser.add_argument("which", nargs="*", help="rooms, or names of mutants; all without")
    parser.add_argument("--list", action="store_true", help="show them, run nothing")
    parser.add_argument("--seconds", type=float, default=TIME_LIMIT_SECONDS, metavar="S")
    parser.add_argument(
        "--at-once", action="store_true", help="do not run the tests without damage first"
    )
    parser.add_argument("--random", type=int, metavar="N", help="N that nobody chose, of rooms")
    parser.add_argument("--seed", type=int, default=0, help="decides which those are")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    root = find_root()
    if options.random is not None:
        if not options.which or set(options.which) - set(SOURCES):
            parser.error(f"--random needs rooms, of {', '.join(SOURCES)}")
        return _random(options, root, arguments[split + 1 :])
    mutants = read_mutants(root / "tests" / "mutants")
    known = {word for one in mutants for word in (one.room, one.name)}
    for word in options.which:
        if word not in known:
            parser.error(f"there is no room and no mutant {word!r}: see --list")
    if options.which:
        mutants = [one for one in mutants if {one.room, one.name} & set(options.which)]
    if options.list:
        for one in mutants:
            print(
                f"{one.room}: {one.name}\n    {one.breaks}\n    {one.file}; {', '.join(one.tests)}"
            )
        return 0
    try:
        verdicts = run_mutants(
            mutants,
            root,
            lambda text: print(text, flush=True),
            seconds=options.seconds,
            first=not options.at_once,
        )
    except ValueError as error:
        sys.stderr.write(f"mutate: {error}\n")
        return 1
    print("\n" + "\n".join(_table(verdicts)))
    return int(any(one.outcome != KILLED for one in verdicts))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
