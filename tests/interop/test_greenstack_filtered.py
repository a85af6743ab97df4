"""Followers of parts of a bucket: what they choose is as it is there, all else is left alone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
from support.nursery import LOGWEIR

import logweir
from interop.gsraw import RawClient
from interop.serving import Serving
from interop.test_greenstack_kill import pushed_rows
from logweir.errors import ConfigError
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Opcode
from logweir.replication.greenstack.wire.messages import encode_remove
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.stream import positions

CHOICES: dict[str, tuple[str, Any]] = {  # options of each address, and the rows that it chooses
    "prefixed": ("prefix=a%3A&name=prefixed", lambda row: row[0].startswith(b"a:")),
    "shared 1": ("vbuckets=1&name=shared", lambda row: row[1] == 1),
    "shared 2": ("vbuckets=2,3&name=shared", lambda row: row[1] in (2, 3)),
    "both": (
        "prefix=b&vbuckets=0-1&name=both",
        lambda row: row[0].startswith(b"b") and row[1] in (0, 1),
    ),
    "all": ("name=all", lambda row: True),
}
KEYS = [b"%c:%03d" % (letter, number) for letter in b"abc" for number in range(60)]
OWN = (b"own", 1, b"here alone", 0, 0, 7, 0, 0, "", b"")  # what is in a follower's bucket besides


def addresses(port: int) -> dict[str, str]:
    """Of each follower."""
    return {
        name: f"greenstack://127.0.0.1:{port}/b?{options}" for name, (options, _) in CHOICES.items()
    }


def rows(server: Serving, space: str) -> list[tuple[Any, ...]]:
    """What a bucket holds, but for the servers that a change may still go through."""
    if server.log.schema.get(space) is None:
        return []
    return sorted((*row[:7], *row[8:]) for row in server.log.select(space))


def change(server: Serving, client: RawClient, luck: random.Random) -> None:
    """One that any of the protocols might make."""
    key = luck.choice(KEYS)
    vbucket = sum(key) % 4
    what = luck.random()
    if what < 0.005:
        server.log.truncate("b")
    elif what < 0.15:
        server.log.delete("b", key)
    elif what < 0.3:
        flex = {FlexKey.VBUCKET.value: vbucket.to_bytes(2, "big")}
        client.ask(Frame(Opcode.REMOVE, payload=encode_remove(key, 0), flex=flex))
    else:
        value = b"%d" % luck.getrandbits(40)
        server.log.replace("b", (key, vbucket, value, 5, 0, luck.getrandbits(40), 0, 0, "", b""))


@contextlib.contextmanager
def killed(upstream: Serving, words: list[str]) -> Iterator[None]:
    """A program that follows, from the first row that it is sent, and its end."""
    process = LOGWEIR.begin(*words, stderr=DEVNULL)
    try:
        upstream.wait(lambda: pushed_rows(upstream) or process.poll() is not None, 60)
        assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait()


def test_parts_are_followed_through_kills(tmp_path: Path) -> None:
    """Five followers in one process, killed while they copy and while they follow."""
    luck = random.Random(17)
    folder = tmp_path / "follower"
    with logweir.open(folder) as log:
        for name in ("prefixed_b", "shared_b", "both_b"):
            Buckets(log).make(name)
        log.replace("prefixed_b", OWN)
        log.replace("both_b", OWN)
    listen = [parse_listen_url("greenstack://:0")]
    quick = {"durability": "write"}
    with Serving(tmp_path / "a", listen=listen, guest="all", open_options=quick) as upstream:
        Buckets(upstream.log).make("b")
        with upstream.log.transaction() as tx:
            for key in KEYS:
                tx.replace("b", (key, sum(key) % 4, b"first", 0, 0, 1, 0, 0, "", b""))
        urls = addresses(upstream.port)
        follow = [word for url in urls.values() for word in ("--follow", url)]
        with RawClient(upstream.port, bucket="b") as client:
            for _ in range(2):
                with killed(upstream, ["serve", str(folder), *follow]):
                    for _ in range(100):
                        change(upstream, client, luck)
                for _ in range(50):
                    change(upstream, client, luck)
            with Serving(
                folder, listen=listen, guest="all", follow=[parse_url(url) for url in urls.values()]
            ) as follower:
                for lost in (False, True):  # all is copied anew the second time
                    for _ in range(100):
                        change(upstream, client, luck)
                    check(upstream, follower)
                    if lost:
                        break
                    follower.log.truncate(positions.POSITION_SPACE)
                    upstream.log.delete("b", KEYS[0])
                assert follower.log.count("all_b") > 20


def check(upstream: Serving, follower: Serving) -> None:
    """What is chosen is what is there, and nothing else was touched."""
    own = [(*OWN[:7], *OWN[8:])]
    there = rows(upstream, "b")
    wanted: dict[str, list[tuple[Any, ...]]] = {"prefixed_b": own, "both_b": own}
    for name, (_, chooses) in CHOICES.items():
        space = f"{name.split()[0]}_b"
        wanted[space] = sorted([*wanted.get(space, ()), *filter(chooses, there)])
    for space, expected in wanted.items():
        follower.wait(lambda: rows(follower, space) == expected)  # noqa: B023


def test_from_now_nothing_older_is_taken(tmp_path: Path) -> None:
    """And after a restart everything since the first time."""
    listen = [parse_listen_url("greenstack://:0")]
    with Serving(tmp_path / "a", listen=listen, guest="all") as upstream:
        Buckets(upstream.log).make("b")

        def put(*keys: bytes) -> None:
            for key in keys:
                upstream.log.replace("b", (key, 0, b"v", 0, 0, 1, 0, 0, "", b""))

        put(b"old", b"older")
        url = f"greenstack://127.0.0.1:{upstream.port}/b?from=now"
        options = {"listen": listen, "guest": "all", "follow": [parse_url(url)]}
        with Serving(tmp_path / "f", **options) as follower:
            follower.wait(lambda: positions.position(follower.log, url, "greenstack", "b"))
        put(b"between", b"old")
        with Serving(tmp_path / "f", **options) as follower:
            put(b"new")
            follower.wait(lambda: follower.log.count("b") == 3)
            assert {row[0] for row in follower.log.select("b")} == {b"between", b"old", b"new"}


@pytest.mark.parametrize("options", ["keys=only", "from=then", "vbuckets=1-x", "prefix=%ff"])
def test_what_no_follower_can_have_is_refused(tmp_path: Path, options: str) -> None:
    """By the name of the option, before anything is asked for."""
    with (
        pytest.raises(ConfigError, match=f"^{options.partition('=')[0]} .*Hint: "),
        Serving(tmp_path / "f", follow=[parse_url(f"greenstack://127.0.0.1:1/b?{options}")]),
    ):
        pass
