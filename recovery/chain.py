"""How files follow one another, and whether the last of them is there: for whoever reads a folder.

`examine`, `logweir info` and `logweir cat` ask the same functions, so that they find the same.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from logweir.recovery.report import Hole
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind
from logweir.wal.directory import DirectoryIndex, LogFile
from logweir.wal.endmark import END_MARK_NAME, EndMark
from logweir.wal.meta import Meta
from logweir.wal.vclock import VClock

FORCE_HINT: Final = (
    "copy the folder first; then `logweir repair DIR --to NEW` keeps what is whole and says what "
    "is lost, or open it with force_recovery"
)


def border(older: LogFile, reached: VClock, offset: int, newer: LogFile) -> Damage | None:
    """What is wrong between two neighbouring logs, None for nothing.

    `reached`: the state after the last row of `older`; `offset`: where its last whole block ends.
    """
    begin, previous = newer.vclock, newer.meta.prev_vclock
    order = reached.compare(begin)
    missing_file = previous is not None and previous != older.vclock
    known = order == "<" and Hole.before_log(newer.meta, reached) is not None
    if (order == "=" or known) and not missing_file:
        return None
    if order in (">", "!"):
        text = (
            f"begins at {begin}, but {older.path.name} already goes to {reached}: both "
            "hold rows with the same lsns."
        )
        doubted = reached.signature - begin.signature if order == ">" else None
        name = str(newer.path)
        return Damage(DamageKind.ORDER, name, 0, 0, text, hint=FORCE_HINT, rows_lost=doubted)
    lost = begin.signature - reached.signature
    if missing_file:
        text = (
            f"a log is missing before this one: it follows the log that begins at {previous}; "
            f"{older.path.name} begins at {older.vclock}. {lost} rows between "
            f"{reached} and {begin} are not there."
        )
        return gap(newer.path, 0, reached, begin, text)
    text = (
        f"its end is missing: it holds rows up to {reached}, the next log "
        f"{newer.path.name} begins at {begin}; {lost} rows are lost."
    )
    return gap(older.path, offset, reached, begin, text)


def gap(path: Path, offset: int, reached: VClock, begin: VClock, text: str) -> Damage:
    """Rows between two vclocks that are in no file."""
    return _lost(
        Damage(
            DamageKind.GAP,
            str(path),
            offset,
            0,
            text,
            hint="put the missing file back, or restore from a copy. " + FORCE_HINT,
            rows_lost=begin.signature - reached.signature,
        ),
        reached,
        begin,
    )


def _lost(damage: Damage, reached: VClock, begin: VClock) -> Damage:
    """With the lsns around the loss, if it is of one replica."""
    short = [i for i in begin if begin.lsn(i) > reached.lsn(i)]
    if len(short) != 1:
        return damage
    one = short[0]
    before, after = reached.lsn(one), begin.lsn(one) + 1
    return replace(damage, replica_id=one, lsn_before=before, lsn_after=after)


def foreign_tail(tail: Damage) -> Damage:
    """An unfinished end as damage: of a log of another program, which may not end like that."""
    text = f"{tail.message} A program other than logweir wrote this log, so it is taken for damage."
    return replace(tail, message=text, hint=FORCE_HINT)


def is_bad_tail(tail: Damage, meta: Meta) -> bool:
    """Whether an unfinished end is none that a crash leaves in a log with that header: zeros in a
    log of another program, which a real Tarantool 2.6.0 refuses (observed)."""
    return tail.kind in TAIL_KINDS and tail.kind is not DamageKind.TORN_TAIL and not meta.is_ours


def own_mark(found: EndMark | str | None, index: DirectoryIndex) -> tuple[EndMark | None, str]:
    """The end mark if it is of this folder's log; and why it says nothing, "" where it does.

    `found`: what `load_end_mark` gave before the folder was listed. In a live folder what is listed
    later is never behind it, what was listed before may be.
    """
    path = index.path / END_MARK_NAME
    if found is not None and END_MARK_NAME not in index.others:
        return None, ""  # another log was put in the place of the one that it is about
    if isinstance(found, str):
        text = f"{path} {found}. Whether the newest logs are there is not known."
        return None, text
    if found is not None and index.instance not in (found.instance, None):
        text = f"{path} is of instance {found.instance}, the folder's is {index.instance}. "
        return None, text + "Whether the newest logs are there is not known."
    return found, ""


def missing_begin(start: VClock, oldest: LogFile) -> Damage:
    """The rows between a snapshot and the oldest log, which begins behind it."""
    text = f"the oldest log begins at {oldest.vclock}, behind the snapshot at {start}: rows "
    return gap(oldest.path, 0, start, oldest.vclock, text + "between them are not there.")


def missing_end(mark: EndMark | None, index: DirectoryIndex, end: VClock) -> Damage | None:
    """What the log lost at its end, by the mark beside it. `end`: the state after what is there."""
    if mark is None or end.covers(mark.vclock):
        return None
    lost = sum(max(lsn - end.lsn(i), 0) for i, lsn in mark.vclock.items())
    newest = index.xlogs[-1] if index.xlogs else None
    is_there = any(file.path.name == mark.file for file in index.files)
    where = f"byte {mark.offset} of {mark.file}" + ("" if is_there else ", which is not there")
    text = (
        f"the log ends at {end}, but it went on to {mark.vclock}, up to {where} "
        f"({END_MARK_NAME} says so): the newest rows are gone, {lost} of them."
    )
    damage = Damage(
        DamageKind.MISSING_END,
        str(index.path if newest is None else newest.path),
        0 if newest is None else newest.size,
        0,
        text,
        hint="bring the missing log files back; or give the rows up with force_recovery, or "
        f"`logweir repair DIR --to NEW`. Remove {END_MARK_NAME} only if the folder was set back "
        "on purpose",
        rows_lost=lost,
    )
    return replace(_lost(damage, end, end.merge(mark.vclock)), lsn_after=None)
