"""Greenstack's frames: the libraries' bytes, what is refused, and any portions."""

from __future__ import annotations

import pytest
from support.gsmodel import CAPTURES, malformed, sent, spellings, vectors

from logweir.errors import DecodeError, LimitExceeded, LogweirError
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    decode_frames,
    encode_answer,
    encode_frame,
)

VECTORS = vectors()
CASES = malformed()


@pytest.mark.parametrize("name", VECTORS)
def test_frames_of_the_libraries_are_read_and_written_alike(name: str) -> None:
    """Header and entries as noted; the frame layer gives back the same bytes."""
    noted = VECTORS[name]["decoded"]
    for data in spellings(VECTORS[name]):
        (frame,), taken, _, problem = decode_frames(data)
        assert (taken, problem) == (len(data), None)
        assert frame.opcode == int(noted["opcode"], 16)
        assert frame.opaque == int(noted["opaque"], 16)
        assert frame.is_response == (noted["kind"] == "response")
        entries = {int(one["key"], 16): one["value_hex"] for one in noted.get("flex", ())}
        assert {key: value.hex() for key, value in frame.flex.items()} == entries
        assert encode_frame(frame) == data


@pytest.mark.parametrize("name", CASES)
def test_edge_cases_get_the_verdict_of_the_strict_parser(name: str) -> None:
    """Incomplete: it waits; ok: a frame; else the reason that is noted."""
    verdict = CASES[name]["strict_frame_layer"]
    data = bytes.fromhex(CASES[name]["hex"])
    buffer = FrameBuffer()
    found, problem = buffer.feed(data)
    if verdict == "incomplete":
        assert (len(found), problem, len(buffer)) == (0, None, len(data))
    elif verdict.startswith("frame ok"):
        assert problem is None
        assert len(found) == (2 if "follow" in verdict else 1)
    else:
        assert not found
        assert isinstance(problem, DecodeError)
        assert verdict.removeprefix("reject: ") in problem.reason


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_any_portions_give_the_same_frames(name: str, direction: str) -> None:
    """All at once, byte by byte, and in pieces of seven."""
    data = sent(name, direction)
    whole, problem = FrameBuffer().feed(data)
    assert problem is None
    for size in (1, 7):
        buffer = FrameBuffer()
        found = [
            f for at in range(0, len(data), size) for f in buffer.feed(data[at : at + size])[0]
        ]
        assert found == list(whole)


@pytest.mark.parametrize("name", ["get_request_all_flex", "hello_response"])
def test_cut_and_flipped_frames_give_frames_or_our_error(name: str) -> None:
    """Cut anywhere it waits; with a bit flipped nothing but our errors come."""
    data = spellings(VECTORS[name])[0]
    for end in range(len(data)):
        assert FrameBuffer().feed(data[:end]) == ([], None) or not data[:end]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found, problem = FrameBuffer().feed(bytes(flipped))
        assert problem is None or isinstance(problem, LogweirError)
        assert len(found) <= 1


def test_the_limit_is_the_longest_frame() -> None:
    """A frame of the limit is taken, one byte more is refused before it has come."""
    fits = encode_frame(Frame(3, payload=bytes(93)))
    assert len(FrameBuffer(100).feed(fits)[0]) == 1
    longer = encode_frame(Frame(3, payload=bytes(94)))
    found, problem = FrameBuffer(100).feed(longer[:4])
    assert not found
    assert isinstance(problem, LimitExceeded)
    assert (problem.limit, problem.got) == (100, 101)


def test_answers_repeat_opaque_opcode_and_lane_only() -> None:
    """The lane, and no other entry, not even an empty one's absence."""
    flex = {FlexKey.LANE.value: b"", FlexKey.VBUCKET.value: b"\0\1"}
    request = Frame(0x0406, 9, flags=Flag.FENCE, flex=flex)
    ((answer,), *_) = decode_frames(encode_answer(request, 8))
    assert answer == Frame(0x0406, 9, b"", 8, 0, {FlexKey.LANE.value: b""})
    ((answer,), *_) = decode_frames(encode_answer(Frame(0x0406, 9)))
    assert answer == Frame(0x0406, 9, b"", 0)


def test_values_of_fixed_length_are_checked_by_name() -> None:
    """A vbucket of one byte is the wrong key; unknown keys may have any length."""
    assert Frame(3, flex={7: b"\1"}).wrong_key() == FlexKey.VBUCKET
    assert Frame(3, flex={5: b""}).wrong_key() == FlexKey.PRIORITY
    assert Frame(3, flex={0x1234: b"abc", 0: b"x", 4: b""}).wrong_key() is None
