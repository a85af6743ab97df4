"""Users and roles, as commands change them."""

from __future__ import annotations

from pathlib import Path

import logweir
from logweir.replication.service.users import Target, add_user, drop_user, grant
from logweir.store.schema.access import Privilege


def test_a_role_takes_what_it_was_granted_with_it_and_nothing_else(tmp_path: Path) -> None:
    """Who had the role keeps the others."""
    with logweir.open(tmp_path) as log:
        log.create_space("s")
        space = log.schema.space("s").id
        user, role, other = (add_user(log, name, role=name != "u") for name in ("u", "r", "o"))
        before = log.select("_priv", user)
        for name in ("r", "o"):
            grant(log, "u", Privilege.EXECUTE, Target("role", name))
        for name in ("u", "r"):
            grant(log, name, Privilege.READ, Target("space", "s"))
        drop_user(log, "r")
        kept = sorted(row[2:4] for row in log.select("_priv", user))
        assert kept == sorted([*(row[2:4] for row in before), ("role", other), ("space", space)])
        assert log.select("_priv", role) == []
