"""What a Synapse upstream's changes become in the store.

Each stream is a space `synapse_<stream>` (with a name given for the source:
`synapse_<name>_<stream>`): ``instance string, token integer, place unsigned, row any``, primary key
the first three. `instance` is the writer's name, with `#2`, `#3`, … appended after its tokens
began anew; `place` counts the rows of one token from 0.

A unit is one transaction. With a token above all that are stored it is inserted; otherwise what the
token has already is compared: equal rows are left alone, missing ones are added, different ones
replaced as a whole. So a unit that comes twice is stored once, whichever side crashed. The position
(`logweir.replication.stream.positions`, tokens ``last, resume, epoch``) is written with the last
unit of its stream in a batch, in its transaction; many new units that arrive together are appended
at once, each a transaction. A write that a crash cut in two leaves units without their position,
which are then compared when they come again.

With `contents` what the rows of `enriched` streams name is stored beside them, see `contents`.

Source id: `synapse:<server name>`, with `#<name>` after it if one was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final

from logweir.errors import SourceStopped
from logweir.replication.logs import get_logger
from logweir.replication.outgoing.shape import STREAM_FORMAT, STREAM_PREFIX
from logweir.replication.stream import positions
from logweir.replication.synapse.follow.contents import keep
from logweir.replication.synapse.follow.kinds import ENRICHED, Shape
from logweir.replication.synapse.wire.codec import instance_label, stream_of_space
from logweir.replication.synapse.wire.rows import Run, pack_tuples
from logweir.replication.synapse.wire.units import (
    RUN_UNITS,
    Change,
    Cursor,
    Gap,
    Moved,
    Unit,
    Units,
)
from logweir.store import Log
from logweir.store.commit.append import append_units
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, select
from logweir.wal.mp import encode_uint, pack, unpack
from logweir.wal.xrow import RowType

_log = get_logger("logweir.replication.synapse")

SOURCE_PREFIX: Final = "synapse:"
_Step = Callable[[Group], None]
_STREAM: Final = Shape(
    "",
    "stream of a homeserver",
    ("instance", "token", "place"),
    [{"name": name, "type": kind} for name, kind in STREAM_FORMAT],
)
_NAME_HINT: Final = "give this source a name of its own with the option name=…"


def source_name(source: str) -> str:
    """The name that was given for a source, of its id; "" for the only one."""
    return source.partition("#")[2]


def stream_space(stream: str, name: str = "") -> str:
    """The name of a stream's space. `name`: of the source, "" for the only one."""
    return STREAM_PREFIX + "_".join((*((name,) if name else ()), stream_of_space(stream)))


class Intake:
    """Stores the changes of one upstream. Blocking: for a thread of its own, one at a time.

    `server`: the upstream's name; `name`: see `stream_space`; `enriched`: the streams whose
    contents are kept. Raises `SourceStopped` if another server fills the same spaces, or something
    else has the name of one.
    """

    def __init__(
        self,
        log: Log,
        server: str,
        *,
        name: str = "",
        enriched: Collection[str] = ENRICHED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.server = server
        self._log = log
        self._name = name
        self._clock = clock
        self.source = SOURCE_PREFIX + server + (f"#{name}" if name else "")
        self._spaces: dict[str, int] = {}
        self._enriched = enriched
        self._highest: dict[tuple[str, str], int] = {}
        positions.make_spaces(log)
        for row in log.select(positions.POSITION_SPACE):
            if self._is_other(str(row[0])) and source_name(row[0]) == name:
                raise self._meets("…", str(row[0]))

    def _is_other(self, source: str) -> bool:
        return source.startswith(SOURCE_PREFIX) and source != self.source

    def _meets(self, stream: str, other: str) -> SourceStopped:
        return SourceStopped(
            f"{stream_space(stream, self._name)} holds what {other} sends, not {self.source}",
            hint=_NAME_HINT,
        )

    def cursors(self) -> dict[tuple[str, str], Cursor]:
        """What is stored of this upstream."""
        found = {}
        for row in self._log.select(positions.POSITION_SPACE, [self.source]):
            _, stream, instance, tokens, _ = row
            epoch = tokens.get("epoch", 1)
            cursor = Cursor(tokens["last"], tokens["resume"], epoch)
            if "stopped" in tokens:  # by earlier versions, where the tokens went back
                cursor = Cursor(0, 0, epoch + 1)
            found[str(stream), str(instance)] = cursor
        return found

    def store(
        self,
        changes: Sequence[Change],
        contents: Mapping[tuple[str, ...], bytes] | None = None,
    ) -> int:
        """Store changes, in their order. `contents`: of what they name, by key; None where contents
        are not kept. Returns how many rows they held; all durable then."""
        try:
            positions.run_jobs(self._log, self._plan(changes, contents))
        except BaseException:
            self._highest.clear()
            raise
        return sum(map(_rows_of, changes))

    def space_name(self, stream: str) -> str:
        """The space that a stream fills."""
        return stream_space(stream, self._name)

    def contents_name(self, stream: str) -> str | None:
        """The space with what the rows of a stream name, if they name something."""
        shape = ENRICHED.get(stream)
        return None if shape is None else shape.space(self._name)

    # --- jobs -------------------------------------------------------------------------------------

    def _plan(
        self, changes: Sequence[Change], contents: Mapping[tuple[str, ...], bytes] | None
    ) -> list[Job]:
        """Units that are new and come together become a job with their position; what lies between
        them another. With contents units are stored one by one."""
        last = {
            (change.stream, change.instance): index
            for index, change in enumerate(changes)
            if isinstance(change, Unit | Units | Moved) and change.cursor is not None
        }
        final = set(last.values())
        enriched = self._enriched if contents is not None else ()
        jobs: list[Job] = []
        steps: list[_Step] = []
        index = 0
        while index < len(changes):
            change = changes[index]
            run = change.run if isinstance(change, Units) else None
            if isinstance(change, Unit) and change.stream not in enriched:
                units = self._new_units(changes, index)
                if len(units) >= RUN_UNITS:
                    run = Run.of([(unit.token, unit.rows) for unit in units])
                    index += len(units) - 1
                    change = units[-1]
            position: list[_Step] = []
            if isinstance(change, Moved):
                self._space(change.stream)  # a stream without rows can be asked for, too
            if index in final and isinstance(change, Unit | Units | Moved):
                assert change.cursor is not None
                position.append(self._position(change, change.cursor))
            if (
                run is not None
                and isinstance(change, Unit | Units)
                and run.tokens[0] > self._stored_highest(change)
            ):
                jobs += _steps_job(steps)
                steps = []
                jobs.append(self._run_job(change, run, position))
            else:
                steps += self._steps(change)
                if isinstance(change, Unit) and change.stream in enriched:
                    space = self._contents_space(change.stream)
                    steps.append(keep(space, change, contents or {}))
                steps += [*position, Group.divide]
            index += 1
        return jobs + _steps_job(steps)

    def _steps(self, change: Change) -> list[_Step]:
        if isinstance(change, Unit):
            return [self._unit(change)]
        if isinstance(change, Units):
            return [step for unit in change.each() for step in (self._unit(unit), Group.divide)]
        return [self._gap(change)] if isinstance(change, Gap) else []

    def _space(self, stream: str) -> int:
        space_id = self._spaces.get(stream)
        if space_id is None:
            filled = stream_space(stream, self._name)
            for row in self._log.select(positions.POSITION_SPACE):
                other = str(row[0])
                theirs = stream_space(str(row[1]), source_name(other))
                if self._is_other(other) and theirs == filled:
                    raise self._meets(stream, other)
            space_id = self._spaces[stream] = self._make(filled, _STREAM)
        return space_id

    def _contents_space(self, stream: str) -> int:
        """The space of what a stream's rows name."""
        shape = ENRICHED[stream]
        name = shape.space(self._name)
        if name not in self._spaces:
            self._spaces[name] = self._make(name, shape)
        return self._spaces[name]

    def _make(self, name: str, shape: Shape) -> int:
        """Make a space if it is not there. Raises `SourceStopped` if another one has its name."""
        found = self._log.schema.get(name)
        if found is not None and [one.name for one in found.fields] != shape.fields:
            raise SourceStopped(
                f"a space {name!r} is here already, and holds no {shape.holds}", hint=_NAME_HINT
            )
        return self._log.create_space(
            name, shape.format, primary=shape.key, indexes=shape.indexes, if_not_exists=True
        )

    def _stored_highest(self, unit: Unit | Units) -> int:
        """The highest token stored under a unit's label, with all that is planned so far."""
        key = (unit.stream, instance_label(unit.instance, unit.epoch))
        known = self._highest.get(key)
        if known is None:
            space = self._space(unit.stream)
            last = self._log.select(space, [key[1]], iterator="REQ", limit=1)
            known = self._highest[key] = last[0][1] if last else -(2**63) - 1
        return known

    def _raise_highest(self, unit: Unit | Units, token: int) -> None:
        key = (unit.stream, instance_label(unit.instance, unit.epoch))
        self._highest[key] = max(self._highest[key], token)

    def _new_units(self, changes: Sequence[Change], start: int) -> list[Unit]:
        """The units with ascending new tokens of one flow that begin there."""
        first = changes[start]
        assert isinstance(first, Unit)
        token = max(self._stored_highest(first), -1)
        flow = (first.stream, first.instance, first.epoch)
        run: list[Unit] = []
        for one in islice(changes, start, None):
            if (
                type(one) is not Unit
                or one.token <= token
                or (one.stream, one.instance, one.epoch) != flow
            ):
                break
            token = one.token
            run.append(one)
        return run

    def _run_job(self, change: Unit | Units, run: Run, position: Sequence[_Step]) -> Job:
        """New units at once; with a position the last of them is inserted with it."""
        space_id = self._space(change.stream)
        packed, bounds = pack_tuples(instance_label(change.instance, change.epoch), run)
        self._raise_highest(change, run.tokens[-1])
        ends = run.ends[:-1] if position else run.ends
        alone = ends[-1] if ends else 0
        append = append_units(space_id, packed, bounds[: alone + 1], ends)
        last = [packed[start:end] for start, end in pairwise(bounds[alone:])]

        def apply(group: Group) -> None:
            if ends:
                append(group)
            for one in last:
                group.execute(Request(RowType.INSERT, space_id, tuple=one))
            for step in position:
                step(group)

        return Job(apply, len(packed))

    def _unit(self, unit: Unit) -> _Step:
        space_id = self._space(unit.stream)
        label = instance_label(unit.instance, unit.epoch)
        packed_label = pack(label)
        is_new = unit.token > self._stored_highest(unit)
        self._raise_highest(unit, unit.token)

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

    def _position(self, change: Unit | Units | Moved, cursor: Cursor) -> _Step:
        tokens = {"last": cursor.last, "resume": cursor.resume}
        if cursor.epoch > 1:
            tokens["epoch"] = cursor.epoch
        where = (self.source, change.stream, change.instance)
        time_ms = self._time_ms()
        return lambda group: positions.put_position(group, *where, tokens, time_ms)

    def _time_ms(self) -> int:
        return int(self._clock() * 1000)


def _rows_of(change: Change) -> int:
    if isinstance(change, Units):
        return len(change.run.bounds) - 1
    return len(change.rows) if isinstance(change, Unit) else 0


def _stored_tuple(label: bytes, token: int, place: int, row: bytes) -> bytes:
    """A tuple of a stream space, as MsgPack. `label`: packed."""
    number = encode_uint(token) if token >= 0 else pack(token)
    return b"".join((b"\x94", label, number, encode_uint(place), row))


def _steps_job(steps: Sequence[_Step]) -> list[Job]:
    """One job that makes `steps`; none if there are none."""
    if not steps:
        return []

    def apply(group: Group) -> None:
        for step in steps:
            step(group)

    return [Job(apply, 100 * len(steps))]
