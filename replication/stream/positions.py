"""Where upstreams have been read to, and what was lost of them: two spaces of the store.

``logweir_position``: source string, stream string, instance string, tokens map, time unsigned
``logweir_gap``:      source string, stream string, instance string, start integer, end integer,
                      reason string, time unsigned

with primary keys (source, stream, instance) and (source, stream, instance, start). `source` is the
upstream's address without password, `stream` and `instance` what it divides its changes into,
`tokens` the protocol's own position, `time` ms since 1970. A position is written **in the same
transaction** as the rows it covers: so each change of an upstream is taken exactly once, whichever
side crashes. A gap names places, both included, that the upstream had and we do not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logweir.store import Log
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.store.engine.statements import Statements
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

POSITION_SPACE: Final = "logweir_position"
GAP_SPACE: Final = "logweir_gap"
RETENTION_SPACE: Final = "logweir_retention"
OWN_PREFIX: Final = "logweir_"
"""So begin the names of what the program keeps for itself: positions, lists of topics, states."""

_KEY: Final = (("source", "string"), ("stream", "string"), ("instance", "string"))
_GAP_KEY: Final = (*_KEY, ("start", "integer"))


@dataclass(frozen=True, slots=True)
class Gap:
    """One loss: the places `start` … `end` of a stream. `time_ms`: when it was noticed."""

    source: str
    stream: str
    instance: str
    start: int
    end: int
    reason: str
    time_ms: int


def make_spaces(log: Log) -> None:
    """Make the two spaces if they are missing."""
    for space, key, fields in (
        (POSITION_SPACE, _KEY, (("tokens", "map"), ("time", "unsigned"))),
        (GAP_SPACE, _GAP_KEY, (("end", "integer"), ("reason", "string"), ("time", "unsigned"))),
    ):
        if log.schema.get(space) is None:
            primary = [name for name, _ in key]
            log.create_space(space, (*key, *fields), primary=primary, if_not_exists=True)


def position(log: Log, source: str, stream: str, instance: str) -> Mapping[str, Any] | None:
    """The tokens noted last, None if there is no position yet."""
    if log.schema.get(POSITION_SPACE) is None:
        return None
    row = log.get(POSITION_SPACE, (source, stream, instance))
    return None if row is None else dict(row[3])


def put_position(
    group: Group | Statements,
    source: str,
    stream: str,
    instance: str,
    tokens: Mapping[str, Any],
    time_ms: int,
) -> None:
    """Note a position as part of the open transaction."""
    space = group.schema.space(POSITION_SPACE)
    row = pack([source, stream, instance, dict(tokens), time_ms])
    group.execute(Request(RowType.REPLACE, space.id, tuple=row))


def run_jobs(log: Log, jobs: Sequence[Job]) -> None:
    """Do jobs, not in the event loop; all durable then. Raises what the first that failed was
    refused for."""
    done = threading.Semaphore(0)
    for job in jobs:
        job.finished = lambda job: done.release()
    log.inner.submit_jobs(jobs)
    for _ in jobs:
        done.acquire()
    for job in jobs:
        if job.error is not None:
            raise job.error


def put_gap(group: Group, gap: Gap) -> None:
    """Note a loss as part of the open transaction."""
    space = group.schema.space(GAP_SPACE)
    row = pack([gap.source, gap.stream, gap.instance, gap.start, gap.end, gap.reason, gap.time_ms])
    group.execute(Request(RowType.REPLACE, space.id, tuple=row))


def forget(log: Log, gaps: Sequence[Gap]) -> None:
    """Strike losses off the record."""
    with log.transaction() as change:
        for gap in gaps:
            change.delete(GAP_SPACE, (gap.source, gap.stream, gap.instance, gap.start))


def gaps(log: Log, source: str | None = None) -> Sequence[Gap]:
    """All losses noted, of one source or of all."""
    if log.schema.get(GAP_SPACE) is None:
        return ()
    found = log.select(GAP_SPACE, None if source is None else [source])
    return [Gap(*row) for row in found]
