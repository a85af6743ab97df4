"""The compiled memtable under AddressSanitizer and UndefinedBehaviorSanitizer, and without memory.

It is built with an arena in which every entry and node is a block of its own, so that each step
over an edge is seen and each of them can fail to be had.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.sanitizing import FIND, PYTEST, ROOT, built

KERNELS = {
    "logweir.store.state.memtablekernel": ROOT / "store" / "state" / "memtablekernel.pyx",
    "logweir.store.state.mergekernel": ROOT / "store" / "state" / "mergekernel.pyx",
    "memtabledriver": ROOT / "tests" / "support" / "memtabledriver.pyx",
}
DRIVER = """
import memtabledriver
from logweir.store.state import memtable, memtablekernel
assert memtable.COMPILED and memtablekernel.__file__.startswith(sys.argv[1])
"""
DRIVE = """
from random import Random
from logweir.store.state.memtable import Memtable, PlainMemtable
def key(random):
    kind = random.randrange(4)
    if kind == 0:
        return b"\\x01" + random.randrange(3000).to_bytes(8, "big")
    if kind == 1:
        return bytes(random.choice(b"\\0\\1\\xff") for _ in range(random.randrange(14)))
    if kind == 2:
        return b"p" * random.randrange(30)
    return random.randbytes(random.randrange(12))
def value(random):
    return random.choice((b"", random.randbytes(random.randrange(1, 30)), b"L" * 4096))
state = {None: 0, b"": 1}
tables = []
for seed in range(int(sys.argv[2])):
    random = Random(seed)
    driver, plain, undo = memtabledriver.Driver(Memtable()), PlainMemtable(), []
    for _ in range(random.choice((5, 60, 1500))):
        one = key(random)
        if random.random() < 0.7:
            new = value(random)
            driver.set(one, new)
            undo.append((one, plain.put(one, new)))
        elif undo and random.random() < 0.9:
            driver.take_back()
            plain.restore(*undo.pop())
        found = plain.get(one)
        assert driver.find(one) == (state.get(found, 2), found or b""), seed
    items = list(plain.ascending())
    one = key(random)
    up = [own for own, _ in plain.ascending(one)][:9]
    assert driver.walk(one, 9, 0) == up + [None] * (9 - len(up))
    down = [held for _, held in plain.descending(one)][:9]
    assert driver.walk(one, 0, 9) == down + [None] * (9 - len(down))
    assert driver.walk(one, len(up), len(up))[len(up):] == [plain.get(own) for own in up[::-1]]
    assert list(driver.table.ascending()) == items
    tables = [driver.table, *tables[:3]]
    model = {}
    for table in tables[::-1]:
        model.update(table.ascending())
    for down in (False, True):
        assert memtabledriver.merged(tables, None, down) == [
            (state.get(held, 2), own, held)
            for own, held in sorted(model.items(), reverse=down)
        ]
    for own, _ in items[::2]:
        assert driver.unset(own) and not driver.unset(own)
    assert list(driver.table.ascending()) == items[1::2]
print("driven")
"""
FAIL = """
from ctypes import CDLL, c_long
from random import Random
from logweir.store.state.memtable import Memtable
left = c_long.in_dll(CDLL(memtablekernel.__file__), "memtable_allocations_left")
failures = 0
for seed, count in ((0, 40), (1, 700), (2, 1500)):
    random = Random(seed)
    keys = [b"\\x05" + random.randrange(1 << 30).to_bytes(4, "big") for _ in range(count)]
    if seed == 1:
        keys.sort()
    table, model = Memtable(), {}
    for at, key in enumerate(keys):
        value = b"L" * 5000 if at % 50 == 7 else b"%d" % at
        for chance in range(99):
            left.value = chance
            try:
                before = table.put(key, value)
            except MemoryError:
                left.value = -1
                failures += 1
                assert len(table) == len(model) and table.get(key) == model.get(key)
                if at % 10 == 0:
                    assert list(table.ascending()) == sorted(model.items())
            else:
                break
        left.value = -1
        assert before == model.get(key)
        model[key] = value
    assert list(table.ascending()) == sorted(model.items())
    for chance in range(0, 5000, 97):
        copy = Memtable()
        copy.put(b"other", b"1")
        left.value = chance
        try:
            copy.merge(table)
        except MemoryError:
            failures += 1
            left.value = -1
            part = dict(copy.ascending())
            assert part.pop(b"other") == b"1" and part.items() <= model.items()
            copy.merge(table)
        left.value = -1
        assert list(copy.ascending()) == sorted([*model.items(), (b"other", b"1")])
        copy.merge(copy)
print("failed", failures)
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the extensions, and the environment that they run in."""
    folder = tmp_path_factory.mktemp("sanitized")
    return folder, built(folder, KERNELS)


def _run(
    sanitized: tuple[Path, dict[str, str]], code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    folder, environment = sanitized
    return subprocess.run(
        [sys.executable, "-P", "-c", FIND + DRIVER + code, str(folder), *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_tests_of_memtables_hold_under_the_sanitizer(
    sanitized: tuple[Path, dict[str, str]],
) -> None:
    """What `test_memtable` does stays in its blocks, but for what limits the process's memory."""
    run = _run(
        sanitized,
        PYTEST,
        "tests/property/test_memtable.py",
        "-k",
        "not plain and not memory and not rising",
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]


@pytest.mark.slow
def test_other_kernels_use_memtables_without_the_interpreter(
    sanitized: tuple[Path, dict[str, str]],
) -> None:
    """By cimport: sets and undos of 100 random runs, lookups, steps both ways and merges."""
    run = _run(sanitized, DRIVE, "100")
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout == "driven\n"


@pytest.mark.slow
def test_no_failing_allocation_harms_a_memtable(sanitized: tuple[Path, dict[str, str]]) -> None:
    """Each allocation of each put fails once: MemoryError, everything is as it was, and the next
    try goes well. A merge that fails has taken a part, and takes the rest when asked again."""
    run = _run(sanitized, FAIL)
    assert run.returncode == 0, run.stderr[-4000:]
    assert int(run.stdout.split()[1]) > 2300  # each of 2240 puts at least once, and splits


@pytest.mark.slow
def test_the_sanitizer_sees_a_step_over_an_edge(sanitized: tuple[Path, dict[str, str]]) -> None:
    """Reading by a pointer that is held too long is caught, so that the others can fail."""
    code = """
from logweir.store.state.memtable import Memtable
driver = memtabledriver.Driver(Memtable())
driver.set(b"key", b"some bytes")
driver.set(b"key", b"2")
other = memtabledriver.Driver(Memtable())
memtabledriver.move_undo(driver, other)
del driver
other.take_back()
other.find(b"key")
"""
    run = _run(sanitized, code)
    assert run.returncode != 0
    assert "heap-use-after-free" in run.stderr
