"""The jobs' folding without Spark: the same functions, the shuffle done by Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from logweir.pipeline.jobs.compact import Part, stage_part
from logweir.pipeline.jobs.fold import Folder
from logweir.pipeline.jobs.folding import Prepared, keyed_rows, look_here, prepare
from logweir.pipeline.jobs.keyed import KEYED_SCHEMA, Keyer
from logweir.pipeline.jobs.runs import RUN_ORDER, RUN_SCHEMA, all_in_order, runs, stretches
from logweir.wal.filesystem import OS, FileSystem

_ORDER = [(name, "ascending") for name in RUN_ORDER]


def prepared_here(folder: Path, **options: object) -> Prepared:
    """`prepare` without Spark."""
    return prepare(look_here, [folder], **options)  # type: ignore[arg-type]


def keyed_here(prepared: Prepared, stretch_bytes: int = 2000) -> pa.Table:
    """The keyed rows of all splits that may count, looked for in stretches of so many bytes."""
    batches = _stretches(prepared, Keyer(prepared.plan), stretch_bytes)
    return pa.Table.from_batches(batches, schema=KEYED_SCHEMA)


def _stretches(prepared: Prepared, keyer: Keyer, stretch_bytes: int) -> Iterator[pa.RecordBatch]:
    for split in prepared.splits:
        yield from stretches(keyed_rows(split, prepared.options, keyer), stretch_bytes)


def parts_here(
    prepared: Prepared, level: int, some: Iterable[pa.RecordBatch], stretch_bytes: int
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The rows of each part, in order, of `some` stretches, by way of small runs."""
    keyer = Keyer(prepared.plan)
    table = pa.Table.from_batches(runs(some, keyer.parted, stretch_bytes // 8), schema=RUN_SCHEMA)
    table = table.filter(pa.compute.equal(table.column("level"), level))
    for part in range(prepared.plan.parts):
        mine = table.filter(pa.compute.equal(table.column("part"), part)).sort_by(_ORDER)
        yield part, all_in_order(mine.to_batches(max_chunksize=3), stretch_bytes)


def folded_here(
    prepared: Prepared, *, batch_rows: int = 1000, stretch_bytes: int = 2000
) -> dict[int, list[bytes]]:
    """The tuples that are left, by space, in the order of their keys."""
    keyer = Keyer(prepared.plan)
    carried: list[pa.RecordBatch] = []
    out: dict[int, list[bytes]] = {}
    for level in range(prepared.history.segments):
        some = chain(_stretches(prepared, keyer, stretch_bytes), stretches(carried, stretch_bytes))
        carried = []
        for _, rows in parts_here(prepared, level, some, stretch_bytes):
            cut = pa.Table.from_batches(rows, schema=KEYED_SCHEMA).combine_chunks()
            folder = Folder(prepared.history, prepared.plan.files)
            for batch in folder.fold(cut.to_batches(max_chunksize=batch_rows)):
                if level + 1 < prepared.history.segments:
                    carried += keyer.rekeyed(batch)
                    continue
                for row in batch.to_pylist():
                    out.setdefault(row["space_id"], []).append(row["tuple"])
    return out


def state_here(
    prepared: Prepared, *, batch_rows: int = 1000, stretch_bytes: int = 2000
) -> dict[int, list[bytes]]:
    """All that a snapshot would hold: folded tuples and those of system spaces."""
    out = folded_here(prepared, batch_rows=batch_rows, stretch_bytes=stretch_bytes)
    for space in prepared.history.system_spaces:
        tuples = prepared.history.tuples(space.id)
        if tuples:
            out[space.id] = tuples
    return out


def staged_here(
    folder: Path, stage: Path, filesystem: FileSystem = OS
) -> tuple[Prepared, list[Part]]:
    """The parts of a snapshot of the folder, by three tasks, each of which ran twice: an attempt
    that failed, or a speculative one, and the one that counts."""
    prepared = prepared_here(folder, parts=3)
    text, parts = prepared.plan.to_text(), []
    some = _stretches(prepared, Keyer(prepared.plan), 2000)
    for number, rows in parts_here(prepared, 0, some, 2000):
        mine = list(rows)
        for _ in range(2 if mine else 0):
            told = list(stage_part(text, number, mine, stage, 1.0, filesystem))
        parts += [Part(**row) for one in told for row in one.to_pylist()] if mine else []
    return prepared, parts
