"""A folder in which who granted something was dropped, as long as that was not refused.

The grant could not be revoked any more, and so neither its user nor its space be dropped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.errors import RequestError
from logweir.replication.service.users import add_user, drop_user
from logweir.store.commit.jobs import Job
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.xrow import Row, RowType, encode_row

USER, PRIV, OTHER = 304, 312, 7


@pytest.mark.parametrize("what", ["user", "space", "grant"])
def test_a_grant_of_who_is_gone_goes_with_its_user_or_space(tmp_path: Path, what: str) -> None:
    """Or alone; one of somebody who is there is looked at as ever."""
    with logweir.open(tmp_path) as log:
        owner, user = add_user(log, "owner"), add_user(log, "u")
        log.create_space("s")
        space = log.schema.space("s").id
        log.update("_space", space, [["=", 1, owner]])
        log.insert(PRIV, (owner, user, "space", space, 1))
        with pytest.raises(RequestError, match="the user has objects"):
            drop_user(log, "owner")
        row = Row(RowType.DELETE, OTHER, 1, 1.5, body=pack({0x10: USER, 0x20: [owner]}))
        columns = RowColumns.scan(encode_row(row))
        log.inner.run_job(Job(lambda group: group.add_replicated(columns, (1,))))
        assert log.get(USER, owner) is None
        if what == "user":
            drop_user(log, "u")
        elif what == "space":
            log.drop_space("s")
        else:
            log.delete(PRIV, (user, "space", space))
        assert log.get(PRIV, (user, "space", space)) is None
