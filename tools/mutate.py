"""Mutants: small damages to the product, each with the tests that have to notice it.

    python -P -m logweir.tools.mutate                    run all
    python -P -m logweir.tools.mutate store hub-adopt    those of a room, and one by its name
    python -P -m logweir.tools.mutate --list [WHICH…]    show them
    python -P -m logweir.tools.mutate --random 20 --seed 3 wal [-- TESTS…]    20 that nobody chose
    python -P -m logweir.tools.mutate --fill 150 --seed 1 --results FILE wal  both, 150 in all

They are data: `tests/mutants/ROOM.toml` has those of a room, each with `name`, what it `breaks`,
the `file`, the `text` that stands there exactly once, what comes `into` its place, and the `tests`.
They are put into a copy of the tree, one after the other; the tree itself is not touched. One
process has all tests and forks for each mutant (`logweir.tools.mutantforks`); what is compiled
anew, or changes what is done at import, gets a process of its own. A test that fails in the copy as
it is does not count.

With `--random` they are small changes at places drawn by the seed (`logweir.tools.randommutants`),
a third of them in up to four compiled kernels (`logweir.tools.kernelmutants`), on lines that the
room's tests run, or the tests that are named: these run once before, with their lines noted.
Without names they are those of the room that are not marked as slow and need neither Spark nor a
Synapse. Those tests have to notice it that run its line; the quickest come first, and no more of
them than take `--seconds` when nothing is broken. What stands in `tests/equivalents.toml` is not
drawn.

`--results FILE` is written to as they are run, and a later run goes on there; beside it is kept
which test runs which line, and each kernel that was compiled.

Exit code 0 if each one was noticed (killed); 1 if one was not (survived), if its text is not there
once (stale), or if its tests did not run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from logweir.tools.kernelmutants import Switch, switches
from logweir.tools.mutantforks import KILLED, NOT_HERE, NOT_RUN, SURVIVED, Job
from logweir.tools.mutantrecords import Equivalent, Results, read_equivalents
from logweir.tools.mutanttree import Lines, Tree
from logweir.tools.page import find_root
from logweir.tools.randommutants import SOURCES, draw, lot, room_of

TIME_LIMIT_SECONDS: Final = 600.0
RANDOM_SECONDS: Final = 30.0
KERNELS: Final = 4
"""So many are compiled for a room: which, the seed decides."""

_TRACED_SECONDS: Final = 7200.0
_USUAL: Final = "not slow and not spark and not synapse"
STALE: Final = "stale"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One damage. `text` stands once in `file`, relative to the tree; `tests`: ids for pytest;
    `seconds`: how long those may take. One of a kernel that was drawn is number `switch` there."""

    room: str
    name: str
    breaks: str
    file: str
    text: str
    into: str
    tests: tuple[str, ...]
    seconds: float = TIME_LIMIT_SECONDS
    switch: int = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a mutant; `detail`: why, or which test noticed."""

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
    if mutant.switch >= 0:
        return ""
    count = path.read_text("utf-8").count(mutant.text)
    if count != 1:
        return f"its text stands {count} times in {mutant.file}"
    return "it changes nothing" if mutant.text == mutant.into else ""


class Run:
    """Mutants that are put into one copy of a tree, in `scratch`, with what came of them."""

    def __init__(self, root: Path, scratch: Path, say: Say, results: Path | None = None) -> None:
        self._root = root
        self._say = say
        self._results = Results.at(results)
        self._kept = scratch if results is None else results.parent
        self._kept.mkdir(parents=True, exist_ok=True)
        self._tree = Tree(root, scratch, self._kept / "kernels")
        self._passes: dict[tuple[str, ...], bool] = {}

    def judge(self, mutants: Sequence[Mutant], seed: int | None = None) -> list[Verdict]:
        """What comes of each, in their order."""
        verdicts: dict[Mutant, Verdict] = {}
        jobs: list[Job] = []
        for one in mutants:
            old = self._results.known.get(self._key(one), {})
            if why := stale(one, self._root):
                verdicts[one] = Verdict(one, STALE, detail=why)
            elif old.get("outcome") == KILLED:
                verdicts[one] = Verdict(one, KILLED, old["seconds"], old["test"])
            elif one.switch < 0 and self._tree.is_compiled(one.file):
                verdicts[one] = self._told(self._alone(one), seed)
            else:
                jobs.append(self._job(len(jobs), one))
        waiting = [one for one in mutants if one not in verdicts]
        for told in self._tree.forks(jobs) if jobs else ():
            one = waiting[told["number"]]
            verdict = Verdict(one, told["outcome"], told["seconds"], told["test"])
            verdicts[one] = verdict if verdict.outcome == NOT_HERE else self._told(verdict, seed)
        for one, verdict in verdicts.items():
            if verdict.outcome == NOT_HERE:
                verdicts[one] = self._told(self._alone(one), seed)
        return [verdicts[one] for one in mutants]

    def _key(self, mutant: Mutant) -> str:
        path = self._root / mutant.file
        source = path.read_text("utf-8") if path.is_file() else ""
        return Results.key(source, mutant.name, mutant.breaks)

    def _told(self, verdict: Verdict, seed: int | None) -> Verdict:
        one = verdict.mutant
        self._say(_line(verdict))
        told = {"room": one.room, "seed": seed, "name": one.name, "breaks": one.breaks}
        told |= {"outcome": verdict.outcome, "test": verdict.detail}
        self._results.add(self._key(one), {**told, "seconds": round(verdict.seconds, 2)})
        return verdict

    def _job(self, number: int, mutant: Mutant) -> Job:
        broken, module = "", ""
        if mutant.switch < 0:
            source = (self._root / mutant.file).read_text("utf-8")
            broken = source.replace(mutant.text, mutant.into)
        else:
            module = _module(mutant.file)
        tests = list(mutant.tests)
        return Job(number, mutant.file, broken, module, mutant.switch, tests, mutant.seconds)

    def _alone(self, mutant: Mutant) -> Verdict:
        """What comes of one in a process of its own."""
        source = (self._root / mutant.file).read_text("utf-8")
        begun = time.monotonic()
        try:
            with self._tree.changed(mutant.file, source.replace(mutant.text, mutant.into)):
                code, line = self._tree.test(mutant.tests, mutant.seconds)
        except subprocess.CalledProcessError as error:
            return Verdict(mutant, NOT_RUN, detail=f"it does not compile: {error.stderr[-300:]!r}")
        took = time.monotonic() - begun
        if code is None:  # not killed: a test that hangs fails by its own limit before
            return Verdict(mutant, NOT_RUN, took, line)
        if code == 0:
            skipped = "skipped" in line and not re.search(r"\d passed", line)
            return Verdict(mutant, NOT_RUN if skipped else SURVIVED, took, line)
        if code > 1:
            return Verdict(mutant, NOT_RUN, took, f"pytest ended with {code}: {line}")
        if mutant.tests not in self._passes:
            sound, _ = self._tree.test(mutant.tests, mutant.seconds)
            self._passes[mutant.tests] = sound == 0
        if not self._passes[mutant.tests]:
            return Verdict(mutant, NOT_RUN, took, f"its tests fail without it: {line}")
        return Verdict(
            mutant, KILLED, took, f"the tests ended by signal {-code}" if code < 0 else line
        )

    def draw(
        self, room: str, count: int, seed: int, seconds: float, tests: Sequence[str] = ()
    ) -> list[Mutant]:
        """`count` changes of a room that nobody chose, see the module. Raises `ValueError` where
        there is nothing to change."""
        words = list(tests) or [f"--room={room}", "-m", _USUAL]
        known = read_equivalents(self._root)
        switched = self._switched(room, count // 3, seed, known)
        lines = self._lines(room, words, switched)
        found = []
        for file, mutants in switched.items():
            module = _module(file)
            for number, one in enumerate(mutants):
                told = lines.tests(module, number, seconds) if module in lines.ran else ()
                if told:
                    breaks = f"{one.text!r} is {one.into!r}"
                    limit = 10 + 10 * sum(lines.seconds[test] for test in told)
                    name = f"{file}:{one.line}"
                    found.append(
                        Mutant(room, name, breaks, file, "", "", told, limit, switch=number)
                    )
        drawn = draw(self._root, room, lines.ran, seed)
        if not drawn and not found:
            raise ValueError(f"no test ran a line of the room {room!r} that could be changed")
        for file, change in drawn:
            told = lines.tests(file, change.line, seconds)
            source = (self._root / file).read_bytes()
            line = source.decode().splitlines()[change.line - 1].strip()
            if (
                len(found) < count
                and told
                and not self._tree.is_compiled(file)
                and Equivalent(file, line, change.text, change.into) not in known
            ):
                limit = 10 + 10 * sum(lines.seconds[test] for test in told)
                breaks = f"{change.text!r} is {change.into!r}"
                broken = change.applied(source).decode()
                name = f"{file}:{change.line}"
                found.append(Mutant(room, name, breaks, file, source.decode(), broken, told, limit))
        return found

    def _switched(
        self, room: str, count: int, seed: int, known: Iterable[Equivalent]
    ) -> dict[str, list[Switch]]:
        """Kernels of a room with some of their mutants, all compiled in, none of them put in."""
        drawn = []
        for path in sorted(self._root.glob("[a-z]*/**/*kernel.py*")):
            file = str(path.relative_to(self._root))
            if room_of(file) == room and self._tree.is_compiled(file):
                source = path.read_text("utf-8")
                lines = source.splitlines()
                drawn += [
                    (file, one)
                    for one in switches(source)
                    if Equivalent(file, lines[one.line - 1].strip(), one.text, one.into)
                    not in known
                ]
        drawn.sort(key=lambda one: lot(seed, one[0], *one[1]))
        files = list(dict.fromkeys(file for file, _ in drawn))[:KERNELS]
        drawn = [(file, one) for file, one in drawn if file in files][:count]
        chosen: dict[str, list[Switch]] = {}
        for file, one in drawn:
            chosen.setdefault(file, []).append(one)
        self._say(f"{room}: compiling {', '.join(chosen) or 'no kernel'} with {len(drawn)} mutants")
        return {file: self._tree.switch(file, some) for file, some in chosen.items()}

    def _lines(self, room: str, words: Sequence[str], switched: dict[str, list[Switch]]) -> Lines:
        """Which tests run which line. What was noted for the same sources is kept: only tests that
        were not asked for then, are new or are others than they were are run."""
        sources = sorted(path for path in self._sources() if room_of(path) == room)
        texts = [(path, (self._root / path).read_text("utf-8")) for path in sources]
        digest = hashlib.sha256(repr((texts, switched)).encode()).hexdigest()
        path = self._kept / f"{room}.lines.json"
        now = {
            str(one.relative_to(self._root)): hashlib.sha256(one.read_bytes()).hexdigest()
            for one in self._root.glob("tests/**/test_*.py")
        }
        old = json.loads(path.read_bytes()) if path.is_file() else {}
        if old.get("digest") != digest:
            old = {"tests": now, "words": [], "lines": Lines({}, {}).told()}
        lines = Lines.of(old["lines"])
        asked = [] if list(words) in old["words"] else [list(words)]
        if others := sorted(one for one in now if now[one] != old["tests"].get(one)):
            asked.append([*others, "-m", _USUAL])
        for some in asked:
            self._say(f"{room}: tests with their lines noted: {' '.join(some)}")
            modules = [_module(file) for file in switched]
            lines = lines.joined(self._tree.lines(some, modules, _TRACED_SECONDS))
        known = [*old["words"], *asked]
        kept = {"digest": digest, "tests": now, "words": known, "lines": lines.told()}
        path.write_text(json.dumps(kept))
        return lines

    def _sources(self) -> Iterator[str]:
        for begins in SOURCES.values():
            for begin in begins:
                for path in self._root.glob(f"{begin}**/*.py*" if begin.endswith("/") else begin):
                    yield str(path.relative_to(self._root))


def _module(file: str) -> str:
    return ".".join(("logweir", *Path(file).with_suffix("").parts))


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    text = f"{verdict.outcome:8} {verdict.seconds:6.1f} s  {mutant.room}: {mutant.name}"
    return f"{text}\n        {mutant.breaks}\n        {verdict.detail}"


def _table(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """How many of each room were killed, and what was not."""
    rooms: dict[str, list[Verdict]] = {}
    for one in verdicts:
        rooms.setdefault(one.mutant.room, []).append(one)
    yield f"{'room':12} {'mutants':>7} {'killed':>7} {'share':>6}  in kernels"
    for room, some in (rooms | {"all": [one for each in rooms.values() for one in each]}).items():
        killed = [one.mutant.file for one in some if one.outcome == KILLED]
        kernels = [one.mutant.file for one in some if "kernel." in one.mutant.file]
        share = 100 * len(killed) // len(some)
        inner = sum("kernel." in one for one in killed)
        yield f"{room:12} {len(some):7} {len(killed):7} {share:5} %  {inner} of {len(kernels)}"
    for one in (one for some in rooms.values() for one in some if one.outcome != KILLED):
        yield f"{one.outcome}: {one.mutant.name} ({one.mutant.breaks}) {one.detail}"


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m logweir.tools.mutate")
    parser.add_argument("which", nargs="*", help="rooms, or names of mutants; all without")
    parser.add_argument("--list", action="store_true", help="show them, run nothing")
    parser.add_argument("--seconds", type=float, metavar="S", help="tests of one take no longer")
    parser.add_argument("--random", type=int, metavar="N", help="N that nobody chose, of rooms")
    parser.add_argument(
        "--fill", type=int, metavar="N", help="the chosen, and so many that it is N"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides which those are")
    parser.add_argument("--results", type=Path, metavar="FILE", help="go on from there")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    root = find_root()
    drawn = options.random if options.random is not None else options.fill
    if drawn is not None and (not options.which or set(options.which) - set(SOURCES)):
        parser.error(f"--random and --fill need rooms, of {', '.join(SOURCES)}")
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
    return _run(options, root, mutants, arguments[split + 1 :])


def _run(
    options: argparse.Namespace, root: Path, mutants: Sequence[Mutant], tests: Sequence[str]
) -> int:
    verdicts: list[Verdict] = []
    seconds = options.seconds or TIME_LIMIT_SECONDS
    chosen = (
        [] if options.random is not None else [replace(one, seconds=seconds) for one in mutants]
    )
    drawn = options.random if options.random is not None else options.fill
    rooms = dict.fromkeys(options.which if drawn is not None else [""])
    for room in rooms:
        with tempfile.TemporaryDirectory(prefix="logweir-mutants-") as scratch:
            run = Run(root, Path(scratch), lambda text: print(text, flush=True), options.results)
            mine = [one for one in chosen if room in ("", one.room)]
            try:
                verdicts += run.judge(mine)
                if drawn is not None:
                    count = drawn - (len(mine) if options.fill is not None else 0)
                    least = options.seconds or RANDOM_SECONDS
                    some = run.draw(room, count, options.seed, least, tests)
                    verdicts += run.judge(some, options.seed)
            except ValueError as error:
                sys.stderr.write(f"mutate: {error}\n")
                return 1
    print("\n" + "\n".join(_table(verdicts)))
    return int(any(one.outcome != KILLED for one in verdicts))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
