"""Clients that ask for much more than they take: what is held for them is bounded, and others are
answered meanwhile; in the end they have every answer, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.gsraw import RawClient, get, mutation, vbucket
from interop.test_greenstack_sockets import serve
from logweir.limits import OUTPUT_HIGH_BYTES, TURN_ANSWER_BYTES
from logweir.replication.greenstack.wire.codec import Flag, Frame, Status
from logweir.replication.greenstack.wire.messages import decode_get_answer

VALUE = b"x" * 900_000
COUNT = 300  # of these: more than a link may have unsent before it is cut


def many(kind: str) -> list[Frame]:
    """GETs of a large document, alone or with changes between them. Opaques rise from 0."""
    if kind == "gets":
        return [get(b"big", opaque=n) for n in range(COUNT)]
    frames = []
    for n in range(COUNT):
        lane = b"a" if kind == "lanes" and n % 2 else None
        flex = vbucket(0) if lane is None else vbucket(0, lane=lane)
        if n % 50 == 0 or n % 50 == 1:
            frames.append(mutation(b"k%d" % n, opaque=n, flex=flex))
        elif n % 50 in (20, 22):
            flags = Flag.MORE if n % 50 == 20 else Flag(0)
            frames.append(mutation(b"k%d" % n, opaque=n, flex=flex, flags=flags))
        elif n % 50 == 21 and kind == "changes":
            frames.append(mutation(b"k%d" % n, opaque=n, flex=flex, flags=Flag.MORE))
        else:
            frames.append(get(b"big", opaque=n, flex=flex))
    return frames


@pytest.mark.parametrize("kind", ["gets", "changes", "lanes"])
def test_answers_that_nobody_takes_are_not_made(tmp_path: Path, kind: str) -> None:
    """300 GETs of 900 KB by a client that reads nothing; another one is answered meanwhile."""
    frames = many(kind)
    with serve(tmp_path / "s") as server, RawClient(server.port) as greedy:
        assert greedy.ask(mutation(b"big", value=VALUE)).status == Status.SUCCESS
        with RawClient(server.port) as other:
            greedy.send(*frames)
            for _ in range(5):
                assert other.ask(get(b"none")).status == Status.NOT_FOUND
            held = max(link.unsent_bytes for link in server.server.listener.links)
            assert held <= OUTPUT_HIGH_BYTES + TURN_ANSWER_BYTES + 4 * len(VALUE)
        answers = [greedy.answer() for _ in frames]
        assert {answer.status for answer in answers} == {Status.SUCCESS}
        for lane in range(2 if kind == "lanes" else 1):
            step = 2 if kind == "lanes" else 1
            opaques = [one.opaque for one in answers if one.opaque % step == lane]
            assert opaques == list(range(lane, COUNT, step))
        values = [decode_get_answer(one.payload).value for one in answers if len(one.payload) > 999]
        changed = [frame.opaque for frame in frames if frame.opcode == mutation(b"").opcode]
        assert values == [VALUE] * (COUNT - len(changed))
        assert server.log.count("default") == 1 + len(changed)
