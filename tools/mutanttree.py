"""The copy of the tree that `logweir.tools.mutate` damages, and pytest in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logweir.tools.kernelmutants import Switch, declared, joined, switched
from logweir.tools.mutantforks import Job
from logweir.wal.built import RECORD, digests

_FAILED_SECONDS: Final = 1e9
_PYTEST: Final = ("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")


@dataclass(frozen=True, slots=True)
class Lines:
    """What tests ran. `ran`: file to line to tests; `seconds`: that each test took."""

    ran: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    @classmethod
    def of(cls, told: dict[str, Any]) -> Lines:
        """What `logweir.tools.linetrace` wrote."""
        ran = {file: {int(at): some for at, some in told[file].items()} for file in told if file}
        return cls(ran, told[""])

    def told(self) -> dict[str, Any]:
        """The same again."""
        return {**self.ran, "": self.seconds}

    def joined(self, more: Lines) -> Lines:
        """With what others ran; older word of the same files of tests is not kept."""
        files = {test.partition("::")[0] for test in more.seconds}
        old = {test for test in self.seconds if test.partition("::")[0] in files}
        ran: dict[str, dict[int, list[str]]] = {}
        for lines, left in ((self.ran, old), (more.ran, frozenset[str]())):
            for file, some in lines.items():
                for line, tests in some.items():
                    known = ran.setdefault(file, {}).setdefault(line, [])
                    known += [test for test in tests if test not in left]
        seconds = {test: took for test, took in self.seconds.items() if test not in old}
        return Lines(ran, seconds | more.seconds)

    def tests(self, file: str, line: int, most_seconds: float) -> tuple[str, ...]:
        """Those that run a line, the quickest first, at least one of those that pass."""
        found: list[str] = []
        took = 0.0
        for test in sorted(self.ran[file].get(line, ()), key=lambda test: self.seconds[test]):
            took += self.seconds[test]
            if self.seconds[test] >= _FAILED_SECONDS:
                break
            if found and took > most_seconds:
                break
            found.append(test)
        return tuple(found)


def _ended(lines: Sequence[str]) -> str:
    """What a fault that ended the process was, where, and in which test, as `faulthandler` told it;
    "" if it did not."""
    fault = "Fatal Python error"  # behind the dots of tests that have passed
    at = next((at for at, one in enumerate(lines) if fault in one), -1)
    frames = [one.strip() for one in lines[at + 1 :] if one.startswith("  File ")]
    tests = [one for one in frames if "/test_" in one]
    return (
        "" if at < 0 else "; ".join((lines[at][lines[at].index(fault) :], *frames[:1], *tests[:1]))
    )


class Tree:
    """A copy of the tree in `scratch`, which is imported from there and not from where it came."""

    def __init__(self, root: Path, scratch: Path, kernels: Path | None = None) -> None:
        self.path = scratch / "logweir"
        self._kernels = kernels or scratch / "kernels"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.decode()
        wanted = [root / name for name in listed.split("\0") if name]
        if (root / RECORD).is_file():
            wanted += [root / RECORD, *root.glob("kernels.*.so")]
        for path in filter(Path.is_file, wanted):
            target = self.path / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
        (self.path / ".venv").symlink_to(Path(sys.prefix))
        self._changes = 0
        self._environment = dict(os.environ)
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._environment |= {
            "PYTHONPATH": os.pathsep.join((str(scratch), str(self.path / "pipeline/discovery"))),
            "PYTHONPYCACHEPREFIX": str(scratch / "pycache"),
            "LOGWEIR_CALLS": "all",  # what notices a mutant is no matter of chance
        }

    @contextmanager
    def changed(self, file: str, broken: str) -> Iterator[None]:
        """Another text in a file, and take it out again. Raises `subprocess.CalledProcessError`
        where a kernel does not compile."""
        path = self.path / file
        changed = [path, *self._made_of(path)]
        sound = [one.read_bytes() if one.exists() else b"" for one in changed]
        try:
            self._write(path, broken.encode())
            if len(changed) > 1:
                self._compile(path, changed[1])
                self._record()
            yield
        finally:
            for one, data in zip(changed, sound, strict=True):
                self._write(one, data)
                if not data:
                    one.unlink()

    def _made_of(self, path: Path) -> list[Path]:
        """Of a file that is compiled the extension of its own, which counts where there is one,
        and the record of what was compiled; none of others."""
        record = self.path / RECORD
        if not record.is_file() or not [*self.path.glob("kernels.*.so")]:
            return []
        sources = {source for source, _ in json.loads(record.read_bytes()).values()}
        own = path.with_name(path.stem + sysconfig.get_config_var("EXT_SUFFIX"))
        return [own, record] if str(path.relative_to(self.path)) in sources else []

    def _write(self, path: Path, data: bytes) -> None:
        """With a time of its own: what was compiled of the last contents is old by that. As another
        file: a process that is left may have the old one mapped."""
        self._changes += 1
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        at = int(time.time()) + self._changes
        os.utime(path, (at, at))

    def _compile(self, path: Path, compiled: Path) -> None:
        """Of what was compiled of the same sources before a copy is taken."""
        source = path.relative_to(self.path)
        name = ".".join(("logweir", *source.with_suffix("").parts))
        ((_, digest),) = digests(self.path, {name: str(source)}).values()
        kept = self._kernels / f"{hashlib.sha256(f'{name} {digest}'.encode()).hexdigest()}.so"
        compiled.unlink(missing_ok=True)
        if not kept.is_file():
            translated = self.path.parent / f"{path.stem}.c"
            libraries = re.findall(
                r"^# distutils: libraries = (\w+)$", path.read_text(), re.MULTILINE
            )
            include = f"-I{sysconfig.get_path('include')}"
            compiler = shlex.split(sysconfig.get_config_var("CC"))
            cython: list[str | Path] = [sys.executable, "-P", "-m", "cython", "-3"]
            cython += ["-I", self.path.parent, "--module-name", name, path, "-o", translated]
            link: list[str | Path] = [*compiler, "-shared", "-fPIC", "-O0", "-w", include]
            link += [translated, *(f"-l{library}" for library in libraries), "-o", compiled]
            for command in (cython, link):
                subprocess.run(command, capture_output=True, check=True)  # noqa: S603
            self._kernels.mkdir(parents=True, exist_ok=True)
            shutil.copy2(compiled, kept)
        shutil.copy2(kept, compiled)

    def _record(self) -> None:
        """Say that all kernels are of the sources that are there."""
        told = json.loads((self.path / RECORD).read_bytes())
        now = digests(self.path, {name: source for name, (source, _) in told.items()})
        self._write(self.path / RECORD, json.dumps(now).encode())

    def is_compiled(self, file: str) -> bool:
        """Whether a file of the tree is a kernel that was compiled."""
        return bool(self._made_of(self.path / file))

    def switch(self, file: str, mutants: Sequence[Switch]) -> list[Switch]:
        """Have a compiled kernel with all of these mutants, none of them put in; those that
        compile, in their order, each with its place as its number."""
        path = self.path / file
        compiled = self._made_of(path)[0]
        types = path.with_suffix(".pxd")
        sound = [path.read_text(), types.read_text() if types.is_file() else ""]
        kept = list(mutants)
        while True:
            body, more = declared(max(1, len(kept)), path.suffix == ".py")
            text, line_of = joined(switched(sound[0], kept), body)
            self._write(path, text.encode())
            if more:
                self._write(types, (sound[1] + more).encode())
            try:
                self._compile(path, compiled)
                break
            except subprocess.CalledProcessError as error:
                said = error.stderr.decode(errors="replace")
                told = re.findall(rf"{re.escape(path.name)}:(\d+):\d+", said)
                bad = {line_of(int(line)) for line in told}
                fit = [one for one in kept if one.line not in bad]
                if len(fit) == len(kept):
                    raise ValueError(
                        f"{file} does not compile with mutants: {said[-500:]}"
                    ) from error
                kept = fit
        self._record()
        return kept

    def lines(self, tests: Sequence[str], modules: Sequence[str], seconds: float) -> Lines:
        """Run tests once, and note which run which line, and which mutant of compiled modules.
        Raises `ValueError` where that takes longer, or tests cannot be imported, or end the
        process."""
        told = self.path.parent / "lines.json"
        told.unlink(missing_ok=True)
        self._environment["LOGWEIR_LINES"] = str(told)
        self._environment["LOGWEIR_SWITCHED"] = " ".join(modules)
        code, line = self.test(["-p", "logweir.tools.linetrace", "--maxfail=1000", *tests], seconds)
        if code not in (0, 1) or not told.exists():
            raise ValueError(f"the tests did not come to their end ({code}): {line}")
        return Lines.of(json.loads(told.read_bytes()))

    def test(self, tests: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Run tests until one fails. The exit code, None where time ran out; and pytest's last
        line."""
        command = [str(Path(sys.executable).parent / "pytest"), "-x", *_PYTEST]
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
        if running.returncode < 0 and (where := _ended(lines)):
            return running.returncode, where
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return running.returncode, (failed or lines or [""])[-1]

    def forks(self, jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
        """What came of each mutant, in a child of one process that has all of their tests. Raises
        `ValueError` where that does not come to its end."""
        scratch = self.path.parent
        (scratch / "jobs.json").write_text(json.dumps([asdict(one) for one in jobs]))
        files = sorted({test.partition("::")[0] for one in jobs for test in one.tests})
        command = [str(Path(sys.executable).parent / "pytest"), *_PYTEST]
        command += ["-p", "logweir.tools.mutantforks", f"--basetemp={scratch / 'tmp'}", *files]
        reads, writes = os.pipe()
        environment = self._environment | {
            "LOGWEIR_MUTANTS": str(scratch / "jobs.json"),
            "LOGWEIR_MUTANTS_TOLD": str(writes),
        }
        with (
            open(scratch / "forks.log", "wb") as log,
            open(reads, encoding="utf-8") as told,
            subprocess.Popen(  # noqa: S603
                command,
                cwd=self.path,
                env=environment,
                stdout=log,
                stderr=log,
                pass_fds=[writes],
                process_group=0,
            ) as running,
        ):
            os.close(writes)
            try:
                count = 0
                for line in told:
                    count += 1
                    yield json.loads(line)
            finally:
                running.kill()
        if count < len(jobs):
            said = (scratch / "forks.log").read_text(errors="replace")
            raise ValueError(f"the mutants' process ended after {count}: {said[-2000:]}")
