"""Runs of MUTATIONs, handled as bytes instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`. `execute_run` executes a run in
a group (`replication.bucket.batch`). A request that needs more than that knows is handed to
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
from logweir.replication.bucket import kernel as bucket_kernel
from logweir.replication.bucket.batch import Changes
from logweir.replication.bucket.store import GroupItems
from logweir.replication.greenstack.serve.commands import Answer
from logweir.replication.greenstack.wire import kernel as compiled
from logweir.replication.greenstack.wire.codec import (
    FlexKey,
    Frame,
    Opcode,
    Status,
    decode_frames,
    encode_answer,
)
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


def interpreted_kernel() -> ModuleType:
    """The kernel as plain Python, and those that it calls."""
    return interpreted(compiled)


ANY_COMPILED: Final = compiled.COMPILED or bucket_kernel.COMPILED or rows_kernel.COMPILED
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


@dataclass(slots=True)
class _Requests:
    """See `replication.bucket.batch.Requests`; places are numbers in the run."""

    run: MutationRun
    uuid: int
    failed: int = 0
    start: int = 0

    @property
    def stop(self) -> int:
        return self.run.count

    @property
    def count(self) -> int:
        return self.run.count

    @property
    def given_bytes(self) -> int:
        run = self.run
        size: int = run.key_bytes + run.value_bytes + kernel.ITEM_BYTES * run.count
        return size

    def name(self, at: int) -> tuple[bytes, int]:
        row = self.run.table[at * kernel.WIDTH : (at + 1) * kernel.WIDTH]
        key_at = row[kernel.KEY_AT]
        vbucket = row[kernel.TRAITS] >> 16 & 0xFFFF
        return self.run.data[key_at : key_at + row[kernel.KEY_BYTES]], vbucket

    def statements(
        self,
        numbers: array[int],
        most: int,
        states: bytearray,
        given: bytearray,
        columns: array[int],
    ) -> int:
        run = self.run
        everything = run.data, run.table, run.count, most, numbers, states, given, columns
        how: int = kernel.statements(*everything)
        return how

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes, lsn: int
    ) -> tuple[bytes, int]:
        del made
        run, lane = self.run, self.run.lane
        lane_bytes = -1 if lane is None else len(lane)
        numbers = array("Q", (at, 0, first, lsn, self.failed))
        out = bytearray((kernel.ANSWER_BYTES + max(lane_bytes, 0)) * (reached - at))
        how = kernel.answers(
            run.table, reached, numbers, results, lane or b"", lane_bytes, self.uuid, out
        )
        assert how == kernel.DONE
        self.failed = numbers[kernel.FAILED]
        return bytes(memoryview(out)[: numbers[kernel.USED]]), numbers[kernel.AT]


def execute_run(
    run: MutationRun,
    items: GroupItems,
    group: Group,
    now: float,
    uuid: int,
    ordinary: Callable[[Frame], Answer],
) -> tuple[bytes, int]:
    """The answers to a run, and how many have failed. `now`: Unix seconds; `uuid`: first 8 bytes of
    the instance's; `ordinary`: runs one request.
    """
    requests = _Requests(run, uuid)
    frames: list[Frame] = []

    def one(at: int) -> tuple[bytes, int]:
        if not frames:
            frames.extend(run.frames())
        status, payload = ordinary(frames[at])
        requests.failed += status != Status.SUCCESS
        is_told = status != Status.SUCCESS or not frames[at].is_quiet
        return encode_answer(frames[at], status, payload) if is_told else b"", at + 1

    answers = b"".join(Changes(requests, items, now, group, one).answer())
    return answers, requests.failed
