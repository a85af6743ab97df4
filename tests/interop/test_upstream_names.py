"""Upstreams of one server whose buckets, topics or streams would meet here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import logweir
from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.errors import ConfigError
from logweir.replication.protocols import SCHEMES, parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.service.names import Names

FILLERS = ["tap", "greenstack"]
MEETING = [
    ("tank://h/t", "tank://i/t", "'t'"),
    ("tank://h/t", "tank://i/t/1", "'t'"),
    ("tank://h/t/1", "tank://i/t", "'t'"),
    ("tank://h/t/01", "tank://i/t/1", "partition 1 of 't'"),
    ("tank://h/t", "tap://i/t", "'t'"),
    ("tank://h/t?name=x", "tank://i/x_t", "'x_t'"),
    ("tap://h/b", "tap://i/b?vbuckets=3", "'b'"),
    ("tap://h/b?vbuckets=1-4", "tap://i/b?vbuckets=3", "vbucket 3 of 'b'"),
    ("tap://h/b?vbuckets=3", "greenstack://i/b", "'b'"),
    ("tap://h", "greenstack://i/default", "'default'"),
    ("greenstack://h/b", "greenstack://h/b", "'b'"),
    ("synapse://h", "synapse+redis://i/two.test", "'synapse_*'"),
    ("synapse://h?name=x", "synapse://i?name=x", "'synapse_x_*'"),
]
APART = [
    ("tank://h/t/0", "tank://i/t/1"),
    ("tank://h/t", "tank://i/t?name=x"),
    ("tank://h/t?skip=t/0", "tank://i/t/0"),
    ("tank://h", "tank://i"),
    ("tap://h/b?vbuckets=1", "tap://i/b?vbuckets=2,3"),
    ("tap://h/b", "greenstack://i/c"),
    ("synapse://h", "synapse://i?name=two"),
    ("tarantool://h", "tarantool://i"),
]


@pytest.mark.parametrize(("first", "second", "what"), MEETING)
def test_addresses_that_meet_are_refused(first: str, second: str, what: str) -> None:
    """With both, and what would be filled twice, as it was written."""
    one, two = parse_url(first), parse_url(second)
    with pytest.raises(ConfigError, match="name=two") as caught:
        Names([one, two], SCHEMES)
    said = str(caught.value)
    assert said.startswith(f"address {two} (upstreams): it fills {what} here, as does {one}. Hint")


@pytest.mark.parametrize("urls", APART)
def test_addresses_that_do_not_meet_are_taken(urls: tuple[str, str]) -> None:
    """In both orders; each fills something of its own then."""
    first, second = map(parse_url, urls)
    for order in ((first, second), (second, first)):
        names = Names(order, SCHEMES)
        names.claim("topic", "more", "", urls[0])
        with pytest.raises(ConfigError, match="'more' here"):
            names.claim("topic", "more", "1", urls[1])


def test_meeting_upstreams_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    """Nothing is made, joined or listened on; a Tarantool is not even asked."""
    follow = ["tarantool://127.0.0.1:1", "tank://127.0.0.1:1/t", "tank://127.0.0.1:2/t"]
    words = [word for url in follow for word in ("--follow", url)]
    program = Path(sys.executable).parent / "logweir"
    done = subprocess.run(
        [program, "serve", tmp_path / "s", "--listen", "tarantool://127.0.0.1:0", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert f"it fills 't' here, as does {follow[1]}" in done.stderr
    assert "listener" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["tap", "greenstack"])
def test_a_follower_of_no_vbuckets_is_refused_before_anything_is_made(
    tmp_path: Path, scheme: str
) -> None:
    """A range that goes down holds none, which would be taken for all."""
    url = f"{scheme}://127.0.0.1:1/b?vbuckets=5-3"
    program = Path(sys.executable).parent / "logweir"
    words = [program, "follow", url, tmp_path / "s"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "write vbuckets=5,8-10" in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def upstream(folder: Path, scheme: str) -> Serving:
    """A server with one item in bucket `default`, its second address of that scheme."""
    listen = [parse_listen_url(f"{one}://127.0.0.1:0") for one in ("memcached", scheme)]
    return Serving(folder, listen=listen, guest="all")


@pytest.mark.parametrize("scheme", FILLERS)
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


@pytest.mark.parametrize("scheme", FILLERS)
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
