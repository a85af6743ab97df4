"""Rows of a transaction: the compiled encoder gives what the plain one gives, and reads back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.store.commit import rows
from logweir.wal.xrow import RowType

encode_rows = pytest.importorskip("logweir.store.commit.rowkernel").encode_transaction

KINDS = st.sampled_from([RowType.INSERT, RowType.REPLACE, RowType.DELETE])
LSNS = st.integers(0, 2**40)
ROWS = st.lists(st.tuples(KINDS, st.booleans(), st.binary(max_size=300)), min_size=1, max_size=6)


@given(ROWS, LSNS, LSNS, st.integers(1, 31), st.floats(0, 4e9))
def test_both_encoders_agree(
    drafts: list[tuple[RowType, bool, bytes]], local: int, own: int, replica_id: int, now: float
) -> None:
    """Bytes, and the lsns that they leave."""
    (bits,) = struct.unpack("Q", struct.pack("d", now))
    kinds, are_local, bodies = (list(column) for column in zip(*drafts, strict=True))
    lsns = [local, *[0] * 31]
    lsns[replica_id] = own
    plain_lsns = list(lsns)
    made = encode_rows(kinds, are_local, bodies, lsns, replica_id, bits)
    assert made == rows._encode_plain(kinds, are_local, bodies, plain_lsns, replica_id, bits)
    assert lsns == plain_lsns


def test_columns_of_other_lengths_are_refused() -> None:
    """Before a byte is read."""
    for columns in (([], [], []), ([2], [], [b""]), ([2, 2], [False, False], [b""])):
        with pytest.raises(ValueError, match="a kind, a space and a body"):
            encode_rows(*columns, [0] * 32, 1, 0)
