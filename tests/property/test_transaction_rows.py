"""Rows of a transaction: the compiled encoder gives what the plain one gives, and reads back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.store.commit import rows
from logweir.store.schema.definition import SpaceDef
from logweir.wal.xrow import GROUP_LOCAL, RowType

encode_rows = pytest.importorskip("logweir.store.commit.rowkernel").encode_transaction

KINDS = st.sampled_from([RowType.INSERT, RowType.REPLACE, RowType.DELETE])
LSNS = st.integers(0, 2**40)
SPACES = st.sampled_from(
    [
        None,
        SpaceDef(600, 1, "a"),
        SpaceDef(601, 1, "here", group_id=GROUP_LOCAL),
        SpaceDef(602, 1, "everywhere", is_sync=True),
    ]
)
DRAFTS = st.lists(st.tuples(KINDS, st.binary(max_size=300), SPACES), min_size=1, max_size=6)


@given(DRAFTS, LSNS, LSNS, st.integers(1, 31), st.floats(0, 4e9))
def test_both_encoders_agree(
    drafts: list[rows.Draft], local: int, own: int, replica_id: int, now: float
) -> None:
    """Bytes, whether it is synchronous, and the lsns that they leave."""
    (bits,) = struct.unpack("Q", struct.pack("d", now))
    lsns = {each: lsn for each, lsn in ((0, local), (replica_id, own)) if lsn}
    plain_lsns = lsns.copy()
    made = encode_rows(drafts, lsns, replica_id, bits)
    assert made == rows._encode_plain(drafts, plain_lsns, replica_id, bits)
    assert lsns == plain_lsns


def test_what_is_no_transaction_is_refused() -> None:
    """Before a byte is read."""
    with pytest.raises(ValueError, match="a transaction has a row"):
        encode_rows([], {}, 1, 0)
    with pytest.raises(ValueError, match="no such component"):
        encode_rows([(2, b"", None)], {}, 32, 0)
