"""Runs of MUTATIONs, handled as bytes instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`. `execute_run` stores a run in a
group, as memcached's commands are. A request that needs more than that knows is handed to
`ordinary`, everything before it being done.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.batch import Changes
from logweir.replication.bucket.store import GroupItems
from logweir.replication.greenstack.wire import kernel as compiled
from logweir.replication.greenstack.wire.codec import (
    FlexKey,
    Frame,
    Opcode,
    Status,
    decode_frames,
)
from logweir.replication.greenstack.wire.messages import MutationAnswer
from logweir.replication.memcached.serve import runs
from logweir.replication.memcached.wire.codec import Packet, encode_answer
from logweir.store.commit.group import Group
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as rows_kernel

__all__ = [
    "ANY_COMPILED",
    "MutationRun",
    "execute_run",
    "interpreted_kernel",
    "take_run",
]

RUN_MAX: Final = 4096
"""Longer runs are divided, so that the first answers are on their way while others are made."""

_FRAME_MIN: Final = 64
_SCRATCH_BYTES: Final = 4 * 1024 * 1024
_ZERO: Final = array("Q", (0,))
_END: Final = (1 << 64) - 1
_OWN_STATUS: Final = 0x8000  # as kernel._OWN_STATUS


def interpreted_kernel() -> ModuleType:
    """The kernel as plain Python, and the other that it calls."""
    return interpreted(compiled)


ANY_COMPILED: Final = compiled.COMPILED or rows_kernel.COMPILED
"""The C functions of a compiled kernel can only be called by another."""

_is_mixed: Final = not compiled.COMPILED and ANY_COMPILED
kernel: Final = interpreted_kernel() if _is_mixed else compiled


@dataclass(frozen=True, slots=True)
class MutationRun:
    """Requests in `data` from `start` to `stop`. `loud`: how many of them are not quiet;
    `key_bytes`, `value_bytes`: of all; `flex`: the lane, if any."""

    data: bytes
    start: int
    stop: int
    count: int
    loud: int
    key_bytes: int
    value_bytes: int
    flex: Mapping[int, bytes]
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

    def sets(self) -> bytes:
        """The same requests as memcached's."""
        out = bytearray(self.key_bytes + self.value_bytes + kernel.SET_BYTES * self.count)
        used = kernel.sets(self.data, self.table, self.count, out)
        assert used == len(out)
        return bytes(out)


def take_run(data: bytes, at: int = 0) -> MutationRun | None:
    """The run that begins at `at`; None where there is none."""
    left = len(data) - at
    most = min(left // _FRAME_MIN + 1, RUN_MAX)
    if not left:
        return None
    found = _ZERO * kernel.RUN_NUMBERS
    scratch = _scratch.numbers(kernel.WIDTH * most)
    count = kernel.take_run(data, at, most, TAP_VALUE_BYTES, found, scratch)
    if not count:
        return None
    flex: dict[int, bytes] = {}
    if found[kernel.RUN_HAS_LANE]:
        lane_at = found[kernel.RUN_LANE_AT]
        flex[FlexKey.LANE] = data[lane_at : lane_at + found[kernel.RUN_LANE_BYTES]]
    return MutationRun(
        data,
        at,
        found[kernel.RUN_STOP],
        count,
        found[kernel.RUN_LOUD],
        found[kernel.RUN_KEYS],
        found[kernel.RUN_VALUES],
        flex,
        scratch[: kernel.WIDTH * count],
    )


class _Scratch(threading.local):
    """Room for what the kernel writes, of each thread: to make it anew, all zeros, costs more than
    to copy what was used of it. It is as large as the largest was, at most `_SCRATCH_BYTES`."""

    def __init__(self) -> None:
        self._numbers = _ZERO

    def numbers(self, count: int) -> array[int]:
        """So many numbers at least."""
        if len(self._numbers) >= count:
            return self._numbers
        made = _ZERO * count
        if 8 * count <= _SCRATCH_BYTES:
            self._numbers = made
        return made


_scratch: Final = _Scratch()


def execute_run(
    run: MutationRun,
    items: GroupItems,
    group: Group,
    now: float,
    uuid: int,
    ordinary: Callable[[Frame], tuple[Status, bytes]],
) -> tuple[bytes, int]:
    """The answers to a run, and how many have failed. `now`: Unix seconds; `uuid`: first 8 bytes of
    the instance's; `ordinary`: runs one request.
    """
    data = run.sets()
    marks = array("Q")
    frames: list[Frame] = []
    failed = array("Q", (0,))

    def one(packet: Packet) -> bytes:
        if not frames:
            frames.extend(run.frames())
        status, payload = ordinary(frames[packet.opaque])
        marks.extend((packet.opaque, group.last_lsn))
        if status != Status.SUCCESS:
            own = status | _OWN_STATUS
            return encode_answer(packet, own, value=b"")  # type: ignore[arg-type]
        return encode_answer(packet, cas=MutationAnswer.decode(payload).cas)

    def mark(at: int, lsn: int) -> None:
        marks.extend((int.from_bytes(data[at + 12 : at + 16], "big"), lsn))

    sets = runs.RequestRun(data, 0, len(data), run.count, run.count)

    def odd(at: int) -> tuple[bytes, int]:
        packet, stop = sets.packet(at)
        return one(packet), stop

    replies = b"".join(Changes(sets, items, now, group, odd, mark).answer())
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
        failed,
        out,
    )
    assert used >= 0
    return bytes(memoryview(out)[:used]), failed[0]
