"""Greenstack's requests that are like the one before them: they are read as they would be alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st
from support.gsmodel import spellings, vectors

from interop.gsraw import mutation
from logweir.replication.greenstack.serve import runs
from logweir.replication.greenstack.wire import kernel
from logweir.replication.greenstack.wire.codec import encode_frame
from logweir.store.schema.bulk import interpreted

PLAIN = interpreted(runs.kernel)
STOP, KEYS, VALUES, _, _, HAS_LANE, LOUD, OPCODE = range(8)  # of what is said of a run


def taken(module: ModuleType, data: bytes) -> tuple[int, list[int], list[int]]:
    """How many requests there are in the run at the begin, what is said of all, and of each."""
    found, table = array("Q", [0] * module.RUN_NUMBERS), array("Q", [0] * 8 * module.WIDTH)
    count = module.take_run(data, 0, 8, 1 << 20, found, table)
    return count, list(found), list(table[: count * module.WIDTH])


def one_by_one(module: ModuleType, frames: Sequence[bytes]) -> tuple[int, list[int], list[int]]:
    """The same from looking at each request by itself; all have the lane of the first, or none."""
    found = [0] * module.RUN_NUMBERS
    table: list[int] = []
    at = count = 0
    for frame in frames:
        is_taken, one, row = taken(module, frame)
        alike = HAS_LANE, OPCODE
        if not is_taken or (count and any(one[each] != found[each] for each in alike)):
            break
        for place in (module.KEY_AT, module.VALUE_AT):
            row[place] += at
        table += row
        at += len(frame)
        if count == 0:
            found = one
        else:
            for number in (KEYS, VALUES, LOUD):
                found[number] += one[number]
            found[STOP] = at
        count += 1
    return count, found, table


def test_a_request_like_the_one_before_it_is_read_as_it_would_be_alone() -> None:
    """Each bit that may be turned in one, and then each in the next: also where an offset then
    leads into what was a key or a value."""
    frame = encode_frame(mutation(b"k1", b"value", opaque=7))
    kinds = [frame]
    for at in range(4, len(frame)):
        for bit in range(8):
            turned = bytearray(frame)
            turned[at] ^= 1 << bit
            if taken(kernel, bytes(turned))[0]:
                kinds.append(bytes(turned))
    assert len(kinds) > 100
    for first in kinds:
        for at in range(4, len(frame)):
            second = bytearray(first)
            second[at] ^= 1 << at % 8
            pair = (first, bytes(second))
            assert taken(kernel, b"".join(pair)) == one_by_one(kernel, pair)


def test_a_value_that_says_where_things_stand_is_read_again() -> None:
    """A vtable inside the value, and another one there in the next request."""
    names = bytes.fromhex("10001c000c0010001400180019000400")
    others = bytes.fromhex("10001c000c000c001400180019000400")
    frames = []
    for inside in (names, others):
        frame = bytearray(encode_frame(mutation(b"k", inside)))
        table = frame.index(names) + len(names)
        back = table - frame.rindex(inside)
        frame[table : table + 4] = back.to_bytes(4, "little", signed=True)
        frames.append(bytes(frame))
    for module in (kernel, PLAIN):
        found = taken(module, b"".join(frames))
        assert found == one_by_one(module, frames)
        assert found[0] == 2
        assert found[2][module.TRAITS] != found[2][module.WIDTH + module.TRAITS]


@settings(deadline=None)
@given(
    st.sampled_from([b"", b"v", b"a value"]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_requests_that_are_nearly_alike(value: bytes, changes: list[tuple[int, int]]) -> None:
    """Each has one more byte that is another; compiled and interpreted."""
    frames = [encode_frame(mutation(b"key", value, opaque=1))]
    for place, byte in changes:
        changed = bytearray(frames[-1])
        changed[4 + place % (len(changed) - 4)] = byte
        frames.append(bytes(changed))
    expected = one_by_one(PLAIN, frames)
    for module in (kernel, PLAIN):
        assert taken(module, b"".join(frames)) == expected


def test_the_libraries_frames_are_taken_too() -> None:
    """What each library writes for a plain Set."""
    for name in ("mutation_set_minimal", "mutation_set_quiet_lane"):
        for data in spellings(vectors()[name]):
            run = runs.take_run(data * 3)
            assert run is not None
            assert run.count == 3
