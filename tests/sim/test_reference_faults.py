"""Tuples that the state refers to, with failing calls: nothing acknowledged lost or changed.

The log is on the disk that fails; the state is LMDB on the real disk and, after a restart of the
process, is used again with its references.
"""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest
from support.calls import each

import logweir
from logweir.errors import LogweirError, WriteFailed
from logweir.recovery.faults import SimFileSystem, every_fault
from logweir.recovery.faults.faulty import KINDS, WRITING
from logweir.store.commit.append import append_tuples
from logweir.store.commit.jobs import Job
from logweir.store.schema.definition import TOPIC_FIELDS
from logweir.store.schema.values import LargeTuple
from logweir.wal.filesystem import FileSystem
from logweir.wal.mp import pack

OPTIONS = {"wal_max_size": 40_000, "checkpoint_count": 1, "checkpoint_interval": 0.0}
PAYLOAD = random.Random(3).randbytes(12_000)


class Known:
    """What a program knows of its tuples, each with a payload of its own."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.next = 1

    def payload(self, number: int) -> bytes:
        """Of that tuple."""
        return number.to_bytes(4, "big") + PAYLOAD

    def write(self, log: logweir.Log) -> None:
        """Append two tuples."""
        numbers = (self.next, self.next + 1)
        self.next += 2
        tuples = []
        for number in numbers:
            payload = self.payload(number)
            tuples.append(
                LargeTuple(pack([0, number, number, 0, payload])[: -len(payload)], payload)
            )
        space_id = log.schema.space("t").id
        try:
            log.inner.run_job(Job(lambda group: append_tuples(group, space_id, tuples)))
        except WriteFailed:
            self.refused.update(numbers)
            raise
        self.acknowledged.update(numbers)

    def check(self, log: logweir.Log) -> None:
        """All that was acknowledged is there, byte for byte; nothing that was refused."""
        rows = log.select("t")
        found = {row[1] for row in rows}
        assert self.acknowledged <= found
        assert not self.refused & found
        assert all(row[4] == self.payload(row[1]) for row in rows)


def prepare(folder: Path, known: Known) -> SimFileSystem:
    """A store with the space t and two tuples."""
    disk = SimFileSystem(seed=1)
    with logweir.open(folder, filesystem=disk, **OPTIONS) as log:  # type: ignore[arg-type]
        log.create_space("t", TOPIC_FIELDS, primary=["partition", "first"])
        known.write(log)
    disk.sync_directory(folder)
    return disk


def use(folder: Path, disk: FileSystem, known: Known) -> None:
    """Open, append, read, snapshot and remove logs, close; the first error comes in the end."""
    log = logweir.open(folder, filesystem=disk, **OPTIONS)  # type: ignore[arg-type]
    first: LogweirError | None = None
    for step in range(8):
        try:
            if step in (3, 6):
                log.snapshot()
            elif step == 5:
                known.check(log)
            else:
                known.write(log)
        except LogweirError as error:
            first = first or error
    try:
        log.close()
    except LogweirError as error:
        first = first or error
    if first is not None:
        raise first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "number", "part", "step"),
    [
        (WRITING, errno.EIO, 0.5, 3),
        ({"sync", "sync_directory"}, errno.EIO, 0.0, 1),
        (KINDS - WRITING, errno.EIO, 0.0, 3),
    ],
    ids=["writing", "sync", "reading"],
)
def test_no_failing_call_loses_a_tuple_that_is_referred_to(
    kinds: frozenset[str], number: int, part: float, step: int, tmp_path: Path
) -> None:
    """With the state as it was left, and again with one made anew. Of the calls that are no syncs
    each third fails, all with `LOGWEIR_CALLS=all`."""
    folder = tmp_path / "s"
    known = Known()
    runs = 0

    def make() -> FileSystem:
        nonlocal known
        shutil.rmtree(folder, ignore_errors=True)
        known = Known()
        return prepare(folder, known)

    fault = {"kinds": kinds, "number": number, "part": part, "step": each(step)}
    for run in every_fault(make, lambda disk: use(folder, disk, known), **fault):
        runs += 1
        assert run.error is None or isinstance(run.error, LogweirError), run.failed
        disk = run.filesystem.inner
        with logweir.open(folder, filesystem=disk, **OPTIONS) as log:  # type: ignore[arg-type]
            known.check(log)
            known.write(log)
        shutil.rmtree(folder / "state")
        with logweir.open(folder, filesystem=disk, **OPTIONS) as log:  # type: ignore[arg-type]
            known.check(log)
    assert runs > 5
