"""What a Synapse upstream's changes become in the store.

Each stream is a space `synapse_<stream>` (with a name given for the source:
`synapse_<name>_<stream>`): ``instance string, token integer, place unsigned, row any``, primary key
the first three. `instance` is the writer's name, with `#2`, `#3`, … behind it after its tokens
began anew; `place` counts the rows of one token from 0.

A unit is one transaction. With a token above all that are stored it is inserted; otherwise what the
token has already is compared: equal rows are left alone, missing ones are added, different ones
replaced as a whole. So a unit that comes twice is stored once, whichever side crashed. The position
(`logweir.replication.positions`, tokens ``last, resume, epoch, stopped``) is written with the last
unit of its stream in a batch, in its transaction; where many single rows of a stream arrive
together, each is still a transaction, and the position follows in the same commit. A commit that a
crash cut in two leaves rows without their position, which are then compared when they come again.

Source id: `synapse:<server name>`, with `#<name>` behind it if one was given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from logweir.errors import SourceStopped
from logweir.replication import positions
from logweir.replication.logs import get_logger
from logweir.replication.synapse.codec import instance_label, stream_of_space
from logweir.replication.synapse.cursors import Change, Cursor, Gap, Moved, Unit
from logweir.store import Log
from logweir.store.append import append_job
from logweir.store.commit import Job
from logweir.store.group import Group
from logweir.store.request import Request
from logweir.store.select import Select, select
from logweir.wal.mp import encode_uint, pack, unpack
from logweir.wal.xrow import RowType

_log = get_logger("logweir.replication.synapse")

__all__ = ["STREAM_FORMAT", "Intake", "stream_space"]

STREAM_FORMAT: Final = (
    ("instance", "string"),
    ("token", "integer"),
    ("place", "unsigned"),
    ("row", "any"),
)
_Step = Callable[[Group], None]
_KEY: Final = ("instance", "token", "place")

BULK_ROWS: Final = 64
"""Single new rows of one stream in a batch from which on they are appended in bulk."""


def stream_space(stream: str, name: str = "") -> str:
    """The name of a stream's space. `name`: of the source, "" for the only one."""
    return "_".join(("synapse", *((name,) if name else ()), stream_of_space(stream)))


class Intake:
    """Stores the changes of one upstream. Blocking: for a thread of its own, one at a time.

    `server`: the upstream's name; `name`: see `stream_space`. Raises `SourceStopped` where another
    server fills the same spaces.
    """

    def __init__(
        self, log: Log, server: str, *, name: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.server = server
        self._log = log
        self._name = name
        self._clock = clock
        self.source = f"synapse:{server}" + (f"#{name}" if name else "")
        self._spaces: dict[str, int] = {}
        self._highest: dict[tuple[str, str], int] = {}
        positions.make_spaces(log)
        for row in log.select(positions.POSITION_SPACE):
            other, _, other_name = str(row[0]).partition("#")
            if other.startswith("synapse:") and other_name == name and row[0] != self.source:
                raise SourceStopped(
                    f"the spaces {stream_space('…', name)} hold the streams of {other}, not of "
                    f"{server}",
                    hint="give this source a name of its own with the option name=…",
                )

    def cursors(self) -> dict[tuple[str, str], Cursor]:
        """What is stored of this upstream."""
        found = {}
        for row in self._log.select(positions.POSITION_SPACE, [self.source]):
            _, stream, instance, tokens, _ = row
            found[str(stream), str(instance)] = Cursor(
                tokens["last"], tokens["resume"], tokens.get("epoch", 1), tokens.get("stopped", "")
            )
        return found

    def store(self, changes: Sequence[Change]) -> int:
        """Store changes, in their order. Returns how many rows they held; all durable then."""
        try:
            self._run(self._plan(changes))
        except BaseException:
            self._highest.clear()
            raise
        return sum(len(one.rows) for one in changes if isinstance(one, Unit))

    def _run(self, jobs: Sequence[Job]) -> None:
        done = threading.Semaphore(0)
        for job in jobs:
            job.finished = lambda job: done.release()
        self._log.submit_jobs(jobs)
        for _ in jobs:
            done.acquire()
        for job in jobs:
            if job.error is not None:
                raise job.error

    # --- jobs -------------------------------------------------------------------------------------

    def _plan(self, changes: Sequence[Change]) -> list[Job]:
        """Each run of single new rows becomes a job, and what lies between them another."""
        last = {
            (change.stream, change.instance): index
            for index, change in enumerate(changes)
            if isinstance(change, Unit | Moved) and change.cursor is not None
        }
        final = set(last.values())
        jobs: list[Job] = []
        steps: list[_Step] = []
        index = 0
        while index < len(changes):
            run = self._single_rows(changes, index)
            if len(run) >= BULK_ROWS:
                jobs += _steps_job(steps)
                steps = []
                jobs.append(self._bulk_job(run))
                index += len(run) - 1
            change = changes[index]
            if len(run) < BULK_ROWS and isinstance(change, Unit):
                steps.append(self._unit(change))
            elif isinstance(change, Gap):
                steps.append(self._gap(change))
            if index in final and isinstance(change, Unit | Moved) and change.cursor is not None:
                steps.append(self._position(change, change.cursor))
            steps.append(Group.divide)
            index += 1
        return jobs + _steps_job(steps)

    def _space(self, stream: str) -> int:
        space_id = self._spaces.get(stream)
        if space_id is None:
            space_id = self._spaces[stream] = self._log.create_space(
                stream_space(stream, self._name), STREAM_FORMAT, primary=_KEY, if_not_exists=True
            )
        return space_id

    def _stored_highest(self, unit: Unit) -> int:
        """The highest token stored under a unit's label, with all that is planned so far."""
        key = (unit.stream, instance_label(unit.instance, unit.epoch))
        known = self._highest.get(key)
        if known is None:
            space = self._space(unit.stream)
            last = self._log.select(space, [key[1]], iterator="REQ", limit=1)
            known = self._highest[key] = last[0][1] if last else -(2**63) - 1
        return known

    def _raise_highest(self, unit: Unit) -> None:
        key = (unit.stream, instance_label(unit.instance, unit.epoch))
        self._highest[key] = max(self._highest[key], unit.token)

    def _single_rows(self, changes: Sequence[Change], start: int) -> list[Unit]:
        """The units of one row each, with ascending new tokens of one flow, that begin there."""
        first = changes[start]
        run: list[Unit] = []
        if not isinstance(first, Unit) or len(first.rows) != 1:
            return run
        token = self._stored_highest(first)
        flow = (first.stream, first.instance, first.epoch)
        for one in changes[start:] if start else changes:
            if (
                type(one) is not Unit
                or one.token <= token
                or len(one.rows) != 1
                or (one.stream, one.instance, one.epoch) != flow
            ):
                break
            token = one.token
            run.append(one)
        return run

    def _bulk_job(self, units: Sequence[Unit]) -> Job:
        label = pack(instance_label(units[0].instance, units[0].epoch))
        data = b"".join([_stored_tuple(label, one.token, 0, one.rows[0]) for one in units])
        job = append_job(self._space(units[0].stream), data, one_transaction=False, is_array=False)
        self._raise_highest(units[-1])
        return Job(job, len(data))

    def _unit(self, unit: Unit) -> _Step:
        space_id = self._space(unit.stream)
        label = instance_label(unit.instance, unit.epoch)
        packed_label = pack(label)
        is_new = unit.token > self._stored_highest(unit)
        self._raise_highest(unit)

        def step(group: Group) -> None:
            stored: list[bytes] = []
            if not is_new:
                wanted = Select.of(group.schema, space_id, [label, unit.token])
                stored = list(select(group.engine, wanted))
            start = 0
            if unit.more and stored:
                start = unpack(stored[-1])[2] + 1
                stored = []
            tuples = [
                _stored_tuple(packed_label, unit.token, place, row)
                for place, row in enumerate(unit.rows, start)
            ]
            if tuples[: len(stored)] != stored:
                for found in stored:
                    key = pack(unpack(found)[:3])
                    group.execute(Request(RowType.DELETE, space_id, key=key))
                stored = []
            for one in tuples[len(stored) :]:
                group.execute(Request(RowType.INSERT, space_id, tuple=one))

        return step

    def _gap(self, gap: Gap) -> _Step:
        first, last = sorted((gap.after, gap.upto))
        noted = positions.Gap(
            self.source,
            gap.stream,
            gap.instance,
            min(first + 1, last),
            last,
            gap.reason,
            self._time_ms(),
        )
        _log.warning(
            "synapse.gap",
            source=self.source,
            stream=gap.stream,
            after=gap.after,
            upto=gap.upto,
            reason=gap.reason,
        )
        return lambda group: positions.put_gap(group, noted)

    def _position(self, change: Unit | Moved, cursor: Cursor) -> _Step:
        tokens: dict[str, int | str] = {"last": cursor.last, "resume": cursor.resume}
        if cursor.epoch > 1:
            tokens["epoch"] = cursor.epoch
        if cursor.stopped:
            tokens["stopped"] = cursor.stopped
        where = (self.source, change.stream, change.instance)
        time_ms = self._time_ms()
        return lambda group: positions.put_position(group, *where, tokens, time_ms)

    def _time_ms(self) -> int:
        return int(self._clock() * 1000)


def _stored_tuple(label: bytes, token: int, place: int, row: bytes) -> bytes:
    """A tuple of a stream space, as MsgPack. `label`: packed."""
    number = encode_uint(token) if token >= 0 else pack(token)
    return b"".join((b"\x94", label, number, encode_uint(place), row))


def _steps_job(steps: Sequence[_Step]) -> list[Job]:
    """One job that makes `steps`; none where there are none."""
    if not steps:
        return []

    def apply(group: Group) -> None:
        for step in steps:
            step(group)

    return [Job(apply, 100 * len(steps))]
