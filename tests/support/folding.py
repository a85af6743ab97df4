"""The jobs' folding without Spark: the same functions, the shuffle done by Arrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from logweir.pipeline.jobs.compact import Part, stage_part
from logweir.pipeline.jobs.fold import Folder
from logweir.pipeline.jobs.folding import Prepared, look_here, prepare
from logweir.pipeline.jobs.keyed import KEYED_SCHEMA, Keyer
from logweir.pipeline.jobs.narrow import keyed_rows
from logweir.wal.filesystem import OS, FileSystem

_ORDER = [(name, "ascending") for name in ("space_id", "key", "file", "position")]


def prepared_here(folder: Path, **options: object) -> Prepared:
    """`prepare` without Spark."""
    return prepare(look_here, [folder], **options)  # type: ignore[arg-type]


def keyed_here(prepared: Prepared, stretch_bytes: int = 2000) -> pa.Table:
    """The keyed rows of all splits that may count, looked for in stretches of so many bytes."""
    keyer = Keyer(prepared.plan)
    batches = [
        keyed
        for split in prepared.splits
        for keyed in keyed_rows(split, prepared.options, keyer, stretch_bytes)
    ]
    return pa.Table.from_batches(batches, schema=KEYED_SCHEMA)


def folded_here(
    prepared: Prepared, *, batch_rows: int = 1000, stretch_bytes: int = 2000
) -> dict[int, list[bytes]]:
    """The tuples that are left, by space, in the order of their keys."""
    keyer = Keyer(prepared.plan)
    rows = keyed_here(prepared, stretch_bytes)
    carried: list[pa.RecordBatch] = []
    out: dict[int, list[bytes]] = {}
    for level in range(prepared.history.segments):
        mine = rows.filter(pa.compute.equal(rows.column("level"), level))
        table = pa.concat_tables([mine, pa.Table.from_batches(carried, schema=KEYED_SCHEMA)])
        ordered = table.sort_by(_ORDER).combine_chunks().to_batches(max_chunksize=batch_rows)
        folder = Folder(prepared.history, prepared.plan.files)
        left = list(folder.fold(ordered))
        if level + 1 < prepared.history.segments:
            carried = [batch for one in left for batch in keyer.rekeyed(one)]
            continue
        for batch in left:
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
    order = [(name, "ascending") for name in ("part", "space_id", "key", "file", "position")]
    rows = keyed_here(prepared).sort_by(order)
    text, parts = prepared.plan.to_text(), []
    for number in range(prepared.plan.parts):
        mine = rows.filter(pa.compute.equal(rows.column("part"), number)).combine_chunks()
        for _ in range(2):
            told = list(stage_part(text, mine.to_batches(50), stage, 1.0, filesystem))
        parts += [Part(**row) for one in told for row in one.to_pylist()]
    return prepared, parts
