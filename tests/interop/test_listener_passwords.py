"""Upstreams whose password is changed while they are followed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.ports import free_port

import logweir
from interop.serving import Serving
from logweir.replication.bucket.store import Buckets
from logweir.replication.iproto.client.status import fetch_status
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.service import users
from logweir.store.schema.access import Privilege


@pytest.mark.parametrize("scheme", ["tarantool", "tap", "greenstack"])
def test_changed_password_is_read_from_its_file(scheme: str, tmp_path: Path) -> None:
    """A follower that comes back uses what the file holds then; nobody signals it."""
    upstream, file = tmp_path / "one", tmp_path / "password"
    with logweir.open(upstream) as log:
        Buckets(log).make("default")
        users.add_user(log, "ann", password="old")
        bits = Privilege.READ | Privilege.WRITE | Privilege.EXECUTE
        users.grant(log, "ann", bits, users.Target())
    file.write_text("old\n")
    listen = [parse_listen_url(f"{scheme}://:{free_port()}")]
    path = "" if scheme == "tarantool" else "/default"
    url = parse_url(f"{scheme}://ann@127.0.0.1:{listen[0].port}{path}?password_file={file}")
    with Serving(upstream, listen=listen):
        if scheme == "tarantool":
            asyncio.run(join(url, tmp_path / "copy"))
    with Serving(tmp_path / "copy", follow=[url]) as copy:
        (runner,) = copy.server.runners
        for password in ("old", "new"):
            with logweir.open(upstream) as log:
                users.change_password(log, "ann", password)
            file.write_text(f"{password}\n")
            with Serving(upstream, listen=listen):
                copy.wait(lambda: runner.status.state == SourceState.FOLLOWING)
                if scheme == "tarantool":
                    assert asyncio.run(fetch_status(url))["vclock"]
            copy.wait(lambda: runner.status.state != SourceState.FOLLOWING)
