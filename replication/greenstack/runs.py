"""Runs of MUTATIONs, handled as bytes instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`. `execute_run` stores it inside a
group, through the same kernel as memcached's runs. A request that needs more than that knows goes
the ordinary way, everything before it being done. Both ways give the same answers and rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucketstore import GroupItems
from logweir.replication.greenstack import kernel as compiled
from logweir.replication.greenstack.codec import FlexKey, Frame, Opcode, Status, decode_frames
from logweir.replication.greenstack.messages import MutationAnswer
from logweir.replication.tap import kernel as tap_kernel
from logweir.replication.tap import runs
from logweir.replication.tap.codec import Packet, encode_answer
from logweir.store.bulk import interpreted
from logweir.store.group import Group
from logweir.wal import kernel as rows_kernel

__all__ = ["MutationRun", "chosen_kernel", "execute_run", "interpreted_kernel", "take_run"]

RUN_MIN: Final = 3
"""Shorter runs are left to the ordinary way."""

RUN_MAX: Final = 1024
"""Longer runs are divided, so that the first answers are on their way while others are made."""

_FRAME_MIN: Final = 64
_ZERO: Final = array("Q", (0,))
_END: Final = (1 << 64) - 1
_ROOM_BYTES: Final = TAP_VALUE_BYTES + (1 << 20)
_rooms: Final[list[bytearray]] = []
"""Buffers to be used again: memory that is new costs more than what is done in it."""


def interpreted_kernel() -> ModuleType:
    """The kernel as plain Python, and the others that it calls."""
    plain, plain_items, plain_rows = map(interpreted, (compiled, tap_kernel, rows_kernel))
    vars(plain_items)["rows"] = plain_rows
    vars(plain).update(rows=plain_rows, items=plain_items)
    return plain


def chosen_kernel() -> ModuleType:
    """The compiled kernel; the C functions of the others can only be called by a compiled one."""
    is_mixed = not compiled.COMPILED and (tap_kernel.COMPILED or rows_kernel.COMPILED)
    return interpreted_kernel() if is_mixed else compiled


kernel: Final = chosen_kernel()


@dataclass(frozen=True, slots=True)
class MutationRun:
    """Requests in `data` from `start` to `stop`. `flex`: the lane, if any; `sets`: the same
    requests as memcached's."""

    data: bytes
    start: int
    stop: int
    count: int
    flex: Mapping[int, bytes]
    sets: bytes
    table: array[int]
    opcode: int = Opcode.MUTATION
    flags: int = 0

    @property
    def lane(self) -> bytes | None:
        """As `Frame.lane`."""
        return self.flex.get(FlexKey.LANE)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.stop - self.start + 64 * self.count

    def frames(self) -> Sequence[Frame]:
        """The same as objects."""
        found, _, _, problem = decode_frames(self.data[self.start : self.stop])
        assert problem is None
        return found


def take_run(data: bytes, at: int = 0) -> MutationRun | None:
    """The run that begins at `at`; None where there is none of `RUN_MIN` requests."""
    left = len(data) - at
    most = min(left // _FRAME_MIN + 1, RUN_MAX)
    if most < RUN_MIN:
        return None
    found = _ZERO * 6
    table = _ZERO * (kernel.WIDTH * most)
    sets = _rooms.pop() if _rooms else bytearray(_ROOM_BYTES)
    count = kernel.take_run(data, at, most, TAP_VALUE_BYTES, found, table, sets)
    packed = bytes(memoryview(sets)[: found[kernel.RUN_BYTES]])
    _rooms.append(sets)
    if count < RUN_MIN:
        return None
    flex: dict[int, bytes] = {}
    if found[kernel.RUN_HAS_LANE]:
        lane_at = found[kernel.RUN_LANE_AT]
        flex[FlexKey.LANE] = data[lane_at : lane_at + found[kernel.RUN_LANE_BYTES]]
    return MutationRun(data, at, found[kernel.RUN_STOP], count, flex, packed, table)


def execute_run(
    run: MutationRun,
    items: GroupItems,
    group: Group,
    now: float,
    uuid: int,
    ordinary: Callable[[Frame], tuple[Status, bytes]],
) -> tuple[bytes, int]:
    """The answers to a run, and how many have failed. `now`: Unix seconds; `uuid`: first 8 bytes of
    the instance's; `ordinary`: runs one request, after what was deferred is applied.
    """
    marks = array("Q", (0, group.last_lsn + 1))
    frames: list[Frame] = []
    failed = 0

    def one(packet: Packet) -> bytes:
        nonlocal failed
        if not frames:
            frames.extend(run.frames())
        status, payload = ordinary(frames[packet.opaque])
        marks.extend((packet.opaque, group.last_lsn))
        if status != Status.SUCCESS:
            failed += 1
            return encode_answer(packet, status, value=b"")  # type: ignore[arg-type]
        return encode_answer(packet, cas=MutationAnswer.decode(payload).cas)

    sets = runs.RequestRun(run.sets, 0, len(run.sets), run.count, run.count, len(run.sets))
    replies = b"".join(runs.execute_run(sets, items, now, one, group))
    if not replies:  # all are quiet, and went well
        return b"", 0
    marks.append(_END)
    lane = run.lane
    out = bytearray((kernel.ANSWER_BYTES + len(lane or b"")) * run.count + kernel.ANSWER_BYTES)
    used = kernel.answers(
        replies,
        run.table,
        run.count,
        lane or b"",
        -1 if lane is None else len(lane),
        uuid,
        marks,
        out,
    )
    assert used >= 0
    return bytes(memoryview(out)[:used]), failed
