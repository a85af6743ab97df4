"""GETs as of what is published, all of one batch (`replication.bucket.batch.Looks`)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from logweir.errors import DecodeError
from logweir.limits import GREENSTACK_ID_BYTES
from logweir.replication.bucket.batch import (
    AT,
    COUNT,
    NEED_STATE,
    ODD,
    REFUSED,
    USED,
    WHOLE,
    Looks,
    Paused,
    computed,
)
from logweir.replication.bucket.change import LOOK
from logweir.replication.bucket.item import Item, VbucketState, pack_item
from logweir.replication.bucket.store import Bucket, Buckets
from logweir.replication.greenstack.serve.commands import Answer, Failed, name_of, told
from logweir.replication.greenstack.serve.lanes import Pending
from logweir.replication.greenstack.serve.statements import refusal_of
from logweir.replication.greenstack.wire.codec import Frame, Status
from logweir.replication.turns import Turn
from logweir.store.engine.executing import COLUMNS, RESULTS

__all__ = ["look_up"]

_TUPLE_BYTES = 32  # without its key
_OLD = 4


@dataclass(slots=True)
class _Gets:
    """See `replication.bucket.batch.Requests`; places are numbers in `names`. `found`: status and
    payload of each so far, `found_bytes` in all; what is behind the end of `turn` is left."""

    names: Sequence[tuple[bytes, int]]
    turn: Turn
    found: list[Answer] = field(default_factory=list)
    found_bytes: int = 0
    start: int = 0

    @property
    def stop(self) -> int:
        is_over = self.found and self.turn.is_over(self.found_bytes)
        return len(self.found) if is_over else len(self.names)

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def given_bytes(self) -> int:
        return len(self.names) * (_TUPLE_BYTES + GREENSTACK_ID_BYTES)

    def name(self, at: int) -> tuple[bytes, int]:
        return self.names[at]

    def statements(
        self,
        numbers: array[int],
        most: int,
        states: bytearray,
        given: bytearray,
        columns: array[int],
    ) -> int:
        del most
        for key, vbucket in self.names[numbers[AT] :]:
            if states[vbucket] != VbucketState.ACTIVE:
                return ODD if states[vbucket] else NEED_STATE
            start, at = numbers[USED], numbers[COUNT] * COLUMNS
            data = pack_item(Item(key, vbucket))
            stop = start + len(data)
            given[start:stop] = data
            columns[at : at + COLUMNS] = computed(LOOK, start, stop)
            numbers[AT] += 1
            numbers[USED] = stop
            numbers[COUNT] += 1
        return WHOLE

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes, lsn: int
    ) -> tuple[bytes, int]:
        del lsn
        ends = min(reached, at + len(results) // RESULTS - first)
        for number in range(first, first + ends - at):
            row = results[number * RESULTS : (number + 1) * RESULTS]
            data = made[row[_OLD] : row[_OLD + 1]] if row[_OLD + 1] else None
            try:
                if row[0] == REFUSED:
                    raise Failed(Status.INTERNAL_ERROR)
                payload = told(row[1], data)
                self.found_bytes += len(payload)
                self.found.append((Status.SUCCESS, payload))
            except Failed as failed:
                self.found.append((failed.status, b""))
        return b"", ends


def look_up(
    requests: Sequence[Pending],
    buckets: Buckets,
    bucket: Bucket,
    now: float,
    expired: list[tuple[bytes, int]],
) -> list[Answer] | None:
    """The answers to GETs, or to the first of them, one at least; None where one is of a vbucket
    that is not active: a change has to look then. `now`: Unix seconds; `expired`: see `Looks`."""
    answers: list[Answer | None] = []
    names: list[tuple[bytes, int]] = []
    for one in requests:
        status = refusal_of(one, now)
        try:
            if status is None:
                assert isinstance(one.frame, Frame)
                names.append(name_of(one.frame))
        except Failed as failed:
            status = failed.status
        except DecodeError:
            status = Status.INVALID_ARGUMENTS
        answers.append(None if status is None else (status, b""))
    gets = _Gets(names, Turn())
    try:
        Looks(gets, buckets, bucket, now, expired).answer()
    except Paused:
        return None
    found, first = iter(gets.found), list[Answer]()
    for answer in answers:
        made = next(found, None) if answer is None else answer
        if made is None:
            break
        first.append(made)
    return first
