"""Upstreams of one server whose buckets, topics or streams would meet here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logweir
from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.errors import ConfigError
from logweir.replication.runner import SourceState
from logweir.replication.urls import parse_listen_url, parse_url

SCHEMES = ["tap", "greenstack"]


def upstream(folder: Path, scheme: str) -> Serving:
    """A server with one item in bucket `default`, its second address of that scheme."""
    listen = [parse_listen_url(f"{one}://127.0.0.1:0") for one in ("memcached", scheme)]
    return Serving(folder, listen=listen, guest="all")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bucket_with_a_name_of_its_own(tmp_path: Path, scheme: str) -> None:
    """Two servers with a bucket of one name, in one store: refused without `name=`, apart with
    it, over a restart too."""
    with upstream(tmp_path / "a", scheme) as a, upstream(tmp_path / "b", scheme) as b:
        for server, value in ((a, b"of a"), (b, b"of b")):
            with KvClient(server.port) as client:
                client.ask(store(b"key", value))
        urls = [str(server.urls[1]) for server in (a, b)]
        with (
            pytest.raises(ConfigError, match="name=two"),
            Serving(tmp_path / "copy", follow=[parse_url(url) for url in urls]),
        ):
            pass
        follow = [parse_url(urls[0]), parse_url(f"{urls[1]}?name=two")]
        for value in (b"of b", b"changed"):
            with KvClient(b.port) as client:
                client.ask(store(b"key", value))
            with Serving(tmp_path / "copy", follow=follow) as copy:
                copy.wait(held(copy, "two_default", value))
                copy.wait(held(copy, "default", b"of a"))


def held(serving: Serving, bucket: str, value: bytes) -> Callable[[], bool]:
    """Whether a bucket has that one item."""

    def look() -> bool:
        if serving.log.schema.get(bucket) is None:
            return False
        return [row[2] for row in serving.log.select(bucket)] == [value]

    return look


@pytest.mark.parametrize("scheme", SCHEMES)
def test_name_that_a_space_has_stops_the_source(tmp_path: Path, scheme: str) -> None:
    """With what to do, instead of being tried for ever; the space is not touched."""
    with logweir.open(tmp_path / "copy") as log:
        log.create_space("default", [("id", "unsigned")])
    with (
        upstream(tmp_path / "a", scheme) as a,
        Serving(tmp_path / "copy", follow=[parse_url(str(a.urls[1]))]) as copy,
    ):
        (runner,) = copy.server.runners
        copy.wait(lambda: runner.status.state == SourceState.STOPPED)
        assert "name=two" in runner.status.last_error
        assert copy.log.count("default") == 0
