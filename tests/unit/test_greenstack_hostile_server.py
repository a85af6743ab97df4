"""A server that says what no server says: its client ends, with a reason, and does not fail."""

from __future__ import annotations

import pytest

from logweir.errors import DecodeError
from logweir.replication.greenstack.client_session import ClientSession
from logweir.replication.greenstack.follow.incoming import Incoming, SnapshotBegins, SnapshotEnds
from logweir.replication.greenstack.wire.codec import Frame, Opcode, encode_answer
from logweir.replication.greenstack.wire.messages import Mark, MarkKind, encode_sasl_answer
from logweir.wal.vclock import VClock


@pytest.mark.parametrize("opcode", [Opcode.SELECT_BUCKET, Opcode.SASL_AUTH, Opcode.NOOP])
def test_an_answer_before_that_to_hello_ends_the_connection(opcode: Opcode) -> None:
    """With the opaque that the first steps have."""
    session = ClientSession(bytes, user="ada", password="x", bucket="b")
    answer = encode_answer(Frame(opcode), 0, encode_sasl_answer())
    assert session.receive_data(answer, 0.0) == []
    assert "before that to HELLO" in session.close_reason
    assert not session.is_ready


def mark(kind: MarkKind) -> Frame:
    """A mark at a position."""
    return Frame(Opcode.STREAM_MARK, payload=Mark(kind, VClock({1: 5})).encode())


def test_a_snapshot_that_ends_without_a_beginning_is_refused() -> None:
    """Also the second end of one."""
    incoming = Incoming(VClock())
    with pytest.raises(DecodeError, match="not begun"):
        incoming.take(mark(MarkKind.SNAPSHOT_ENDS))
    assert isinstance(incoming.take(mark(MarkKind.SNAPSHOT_BEGINS)), SnapshotBegins)
    assert isinstance(incoming.take(mark(MarkKind.SNAPSHOT_ENDS)), SnapshotEnds)
    with pytest.raises(DecodeError, match="not begun"):
        incoming.take(mark(MarkKind.SNAPSHOT_ENDS))
