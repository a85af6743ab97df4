"""What `tools/fuzz` runs: each decoder for a while, guided by the lines that it reaches.

    fuzzing.py --minutes 5 [--inputs NUMBER] [--keep] [TARGET…]

Each target of `fuzz.targets` runs in a child of its own, under atheris, for an equal part of the
time or of the inputs, with the inputs that are kept in `tests/data/fuzz` to begin with. `--keep`
writes back those that reached new places, each place once. Compiled kernels have no lines to be
guided by: `LOGWEIR_PURE=1 tools/fuzz` makes an environment without them. An input that raises what
no decoder may raise is told with its bytes, and ends that target.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

_MOST_BYTES: Final = 2000
_KEPT_MOST: Final = 200
_PACKAGE: Final = str(Path(__file__).resolve().parents[2])


def _fuzz(name: str, words: Sequence[str]) -> None:
    """In a process of its own: does not return."""
    import atheris
    from fuzz.targets import TARGETS, run

    target = TARGETS[name]
    atheris.Setup(["fuzz", *words], lambda data: run(target, data) and None)
    atheris.Fuzz()


def _started(name: str, words: Sequence[str], scratch: Path) -> tuple[int, str]:
    """Fuzz in a child, which has all modules from here. Its exit code, and what it said."""
    said = scratch / "said"
    if (pid := os.fork()) == 0:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            _fuzz(name, words)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, said.read_text(errors="replace")


def fuzz(name: str, seconds: int, *, inputs: int = 0, keep: bool) -> tuple[int, str]:
    """Fuzz one target, for so long or with so many inputs, 0 for any number. How many were tried,
    and what was found, "" for nothing."""
    from fuzz.targets import corpus_of

    with tempfile.TemporaryDirectory(prefix="logweir-fuzz-") as scratch:
        old = Path(scratch, "old")
        old.mkdir()
        for number, data in enumerate(corpus_of(name)):
            (old / str(number)).write_bytes(data[:_MOST_BYTES])
        words = [f"-max_total_time={seconds}", f"-max_len={_MOST_BYTES}", "-print_final_stats=1"]
        words += [f"-artifact_prefix={scratch}/", *([f"-runs={inputs}"] if inputs else [])]
        code, said = _started(
            name, [*words, f"-artifact_prefix={scratch}/", str(old)], Path(scratch)
        )
        tried = re.search(r"number_of_executed_units: *(\d+)", said)
        found = ""
        if code != 0:
            spoilt = [path.read_bytes().hex() for path in Path(scratch).glob("*-*")]
            found = f"{said[-2000:]}\ninput: {' '.join(spoilt)}"
        elif keep:
            _keep(name, [path.read_bytes() for path in old.iterdir()])
    return int(tried[1]) if tried else 0, found


def _keep(name: str, inputs: Iterable[bytes]) -> None:
    """Write those, the shortest first, that reach a step from line to line that none before did."""
    from fuzz.targets import CORPUS, TARGETS, run

    ways: set[tuple[str, int, int]] = set()
    lines = []
    for data in sorted(inputs, key=lambda one: (len(one), one)):
        before = len(ways)
        with steps(ways):
            run(TARGETS[name], data)
        if len(ways) > before and len(lines) < _KEPT_MOST:
            lines.append(f"{data.hex()}\n")
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.hex").write_text("".join(lines))


@contextlib.contextmanager
def steps(ways: set[tuple[str, int, int]]) -> Iterator[None]:
    """Add the steps from line to line that are made in logweir meanwhile."""

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            return None
        last = 0

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            ways.add((file, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def _main(words: list[str]) -> int:
    import atheris

    with (
        contextlib.redirect_stderr(io.StringIO()),  # a line for each module
        atheris.instrument_imports(include=["logweir"]),
    ):
        from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="tools/fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all without")
    parser.add_argument("--minutes", type=float, default=5.0, help="in all, at most")
    parser.add_argument("--inputs", type=int, default=0, help="in all, at most; 0: any number")
    parser.add_argument("--keep", action="store_true", help="write what reached new places back")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.targets if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}, but {', '.join(TARGETS)}")
    names = asked.targets or list(TARGETS)
    seconds = max(int(60 * asked.minutes / len(names)), 1)
    total = failed = 0
    for name in names:
        inputs = -(-asked.inputs // len(names))
        tried, found = fuzz(name, seconds, inputs=inputs, keep=asked.keep)
        total += tried
        failed += bool(found)
        print(f"{name}: {tried} inputs{': ' + found if found else ''}", flush=True)
    print(f"{len(names)} targets, {total} inputs, {failed} with a finding")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
