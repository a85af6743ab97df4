"""A server that says what no server says: its client ends, with a reason, and does not fail."""

from __future__ import annotations

import pytest

from logweir.errors import DecodeError
from logweir.replication.greenstack.client_session import ClientSession
from logweir.replication.greenstack.follow.incoming import (
    Incoming,
    Rows,
    SnapshotBegins,
    SnapshotEnds,
)
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, encode_answer
from logweir.replication.greenstack.wire.messages import (
    Mark,
    MarkKind,
    encode_remove,
    encode_sasl_answer,
)
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


def removal(lsn: int, flags: int = 0) -> Frame:
    """A row of replica 1."""
    flex = {FlexKey.LSN: lsn.to_bytes(8, "big"), FlexKey.ORIGIN: (1).to_bytes(4, "big")}
    return Frame(Opcode.REMOVE, payload=encode_remove(b"k", 7), flags=flags, flex=flex)


def test_a_row_at_the_position_is_refused() -> None:
    """It is here already; the one behind it is taken."""
    for lsn in (4, 5):
        with pytest.raises(DecodeError, match="does not come after"):
            Incoming(VClock({1: 5})).take(removal(lsn))
    assert isinstance(Incoming(VClock({1: 5})).take(removal(6)), Rows)


def test_a_transaction_is_given_whole_or_not_at_all() -> None:
    """Not before its last row has come."""
    incoming = Incoming(VClock({1: 5}))
    assert incoming.take(removal(6, Flag.MORE)) is None
    assert incoming.position == VClock({1: 5})
    rows = incoming.take(removal(7))
    assert isinstance(rows, Rows)
    assert [change.lsn for change in rows.changes] == [6, 7]
    assert incoming.position == VClock({1: 7})
