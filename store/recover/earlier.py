"""The state of a folder at an earlier position or time, in a scratch folder. Reads only.

Snapshot and logs are loaded as opening would do it, but only up to the cut, which
`recovery.restore` decides: the border of two transactions. The state is an LMDB of its own in the
system's folder for temporary files (`TMPDIR`), as large as that of the store was then; memory is
bounded as at opening. It goes when it is closed; a killed process leaves it there, where nobody
looks for it again.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from logweir.recovery import Batch, RecoveryPlan, examine
from logweir.recovery.restore import plan_until, unavailable
from logweir.recovery.rewrite import while_files_go
from logweir.store.engine.engine import Engine, Plans
from logweir.store.recover.loading import Source, load
from logweir.store.schema.schema import Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.state import State, typed
from logweir.wal.directory import no_store
from logweir.wal.filesystem import FileSystem
from logweir.wal.lease import leased
from logweir.wal.vclock import VClock


@contextlib.contextmanager
def earlier(
    directory: Path,
    at: VClock | float,
    *,
    end: VClock | None,
    now: float,
    filesystem: FileSystem,
) -> Iterator[tuple[Engine, VClock]]:
    """An engine that reads what the folder held at a vclock or a time, and the position of that.

    `end`: nothing behind it is read, None for all that is there; `now`: later times are refused.
    Raises `PositionUnavailable` if `at` is before the oldest snapshot or behind the end, and
    what `recovery.restore` raises.
    """
    states: list[State] = []  # one, and more where a file went while it was made
    with contextlib.ExitStack() as stack:
        with typed(directory):
            scratch = Path(tempfile.mkdtemp(prefix="logweir-as-of-"))
        stack.callback(_remove, scratch, states)

        def load_once() -> tuple[Schema, Plans, VClock]:
            states.append(State(scratch / f"state-{len(states)}"))
            stack.callback(states[-1].close, clean=False)
            source, until = _source(directory, at, end, now, filesystem)
            return _loaded(states[-1], source, until)

        with leased(directory):
            schema, plans, vclock = while_files_go(load_once)
        txn = LayeredTxn((), stack.enter_context(states[-1].read()), write=False)
        engine = Engine(txn, schema, plans)
        stack.callback(engine.end)
        yield engine, vclock


def _remove(scratch: Path, states: list[State]) -> None:
    if not any(state.is_foreign for state in states):  # a child of fork leaves it to its parent
        shutil.rmtree(scratch, ignore_errors=True)


def _source(
    directory: Path, at: VClock | float, end: VClock | None, now: float, filesystem: FileSystem
) -> tuple[RecoveryPlan, VClock | float]:
    """What to read, and up to where."""
    report = examine(directory, filesystem=filesystem)
    if report.is_empty:
        raise no_store(directory)
    if isinstance(at, VClock):
        is_there = end is None or end.covers(at)
    else:
        is_there = at <= max([now, *(one.last_timestamp or now for one in report.files)])
    if not is_there:
        raise unavailable(report, at)
    source, cut = plan_until(report, at)
    if end is None or end.covers(cut):
        return source, at
    return plan_until(report, end)[0], end  # what is behind it was not acknowledged yet


def _loaded(
    state: State, source: RecoveryPlan, until: VClock | float
) -> tuple[Schema, Plans, VClock]:
    plans, last = Plans(), deque[Batch](maxlen=1)
    end = until if isinstance(until, VClock) else source.vclock  # nobody goes on behind it
    schema, _ = load(state, plans, Source.of(source, end, until=until, took=last.append), None)
    return schema, plans, last[0].vclock if last else source.start
